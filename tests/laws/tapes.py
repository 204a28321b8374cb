"""`Tape`: what mechanisms released on one table, played back on another one, and all that a fit then shows."""

import math
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from eigenveil.core.mechanism import Gaussian, Mechanism
from eigenveil.linalg import Array
from eigenveil.privacy import released
from eigenveil.privacy.lattice import Share
from eigenveil.privacy.paired import PairedPart
from eigenveil.privacy.released import packed_side
from eigenveil.tasks import slot_sums as sums
from eigenveil.trackers import slices


@dataclass(frozen=True)
class Held:
    """A private value before its noise, with its stated sensitivity, and the deviation of its noise, NaN if it is a part."""

    value: Array
    sensitivity: float
    deviation: float


@dataclass
class Tape:
    """What mechanisms have released, in order. Changes in place: it records, or plays what it has."""

    released: list[tuple[Any, Any]] = field(default_factory=list)
    at: int | None = None
    held: list[Held] = field(default_factory=list)  # Of this run, before noise.

    def playing(self) -> "Tape":
        """A tape for another run, which sees what was released in this one."""
        return Tape(self.released, 0)

    def through(self, facts: Any, made: Callable[[], Any]) -> Any:
        """What was released in this place, or what is made now."""
        # Also drawn and charged where the tape plays: costs are shown, too.
        found = made()
        if self.at is None:
            self.released.append((facts, [np.array(part) for part in found]))
            return found
        expected, found = self.released[self.at]
        # Each stream has a random name of its own.
        facts, expected = (re.sub(r"stream [0-9a-f]{16}", "stream", str(one)) for one in (facts, expected))
        # How much noise is drawn, under which name and for how many numbers is public.
        assert facts == expected
        self.at += 1
        return [np.array(part) for part in found]

    def hold(self, value: Any, sensitivity: float, deviation: float = math.nan) -> None:
        """Keep a private value."""
        self.held.append(Held(np.array(value, dtype=float), sensitivity, deviation))


@contextmanager
def taped(tape: Tape) -> Iterator[None]:
    """Every mechanism with noise records to the tape, or plays it."""
    with pytest.MonkeyPatch.context() as patch:
        whole, packed, columns = Gaussian.release, released.release_packed, released.release_columns
        shared, paired = Share.of, PairedPart.of

        def scale(self: Mechanism, sensitivity: float, more: dict[str, Any]) -> float:
            return self.scale(sensitivity, share=more.get("share", 1.0))

        def release(self: Gaussian, private: Any, **more: Any) -> Any:
            facts = ("whole", private.sensitivity, private.value.shape, str(more))
            tape.hold(private.value, private.sensitivity, scale(self, private.sensitivity, more))
            return tape.through(facts, lambda: [whole(self, private, **more)])[0]

        def release_packed(self: Mechanism, values: Array, **more: Any) -> Any:
            # So small a matrix is released as a whole, and held there.
            assert packed_side(len(values)) <= 256
            return tape.through(("packed", values.shape, str(more)), lambda: [packed(self, values, **more)])[0]

        def release_columns(self: Mechanism, slices: Any, **more: Any) -> Any:
            parts = [np.array(part) for part in slices]
            tape.hold(np.hstack(parts), more["sensitivity"], scale(self, more["sensitivity"], more))
            return iter(tape.through(("columns", str(more)), lambda: list(columns(self, parts, **more))))

        def of(self: Share, private: Any, **more: Any) -> Any:
            facts = ("share", private.sensitivity, private.value.shape, str(more))
            tape.hold(private.value, private.sensitivity)
            return tape.through(facts, lambda: [shared(self, private, **more)])[0]

        def of_pair(self: PairedPart, private: Any, *, pairs: Any, **more: Any) -> Any:
            facts = ("pair", private.sensitivity, private.value.shape, sorted(pairs), str(more))
            tape.hold(private.value, private.sensitivity)
            return tape.through(facts, lambda: [paired(self, private, pairs=pairs, **more)])[0]

        patch.setattr(PairedPart, "of", of_pair)
        patch.setattr(Gaussian, "release", release)
        patch.setattr(sums, "release_packed", release_packed)
        patch.setattr(slices, "release_columns", release_columns)
        patch.setattr(Share, "of", of)
        yield


SHOWN = (
    *("components_", "mean_", "explained_variance_", "explained_variance_ratio_", "singular_values_", "noise_floor_"),
    *(
        "bound_usage_",
        "clipped_fraction_",
        "n_above_noise_",
        "observed_fraction_",
        "noise_variance_",
        "warnings_",
        "guarantee_",
        "sites_",
    ),
    *("transcript_", "sent_", "refused_", "n_samples_seen_", "scale_"),
)


def _field(found: Any, name: str) -> Any:
    try:
        return getattr(found, name, None)
    except ValueError as error:
        # Bounds that were not found.
        return str(error)


def shown_of(fit: Callable[[Any], Any], X: Any) -> dict[str, Any]:
    """Everything that anybody is shown of a fit, as text."""
    with warnings.catch_warnings(record=True) as caught, np.errstate(all="warn"):
        warnings.simplefilter("always")
        try:
            found = fit(X)
        except Exception as error:
            # Errors are shown as well.
            return {"raised": (type(error).__name__, str(error)), "warned": [str(one.message) for one in caught]}
    # Bounds and spectra are values, all of which is public.
    fields = SHOWN if hasattr(found, "fit") else [name for name in dir(found) if not name.startswith("_")]
    values = {name: _field(found, name) for name in fields}
    facts = {name: repr(value) for name, value in values.items() if not callable(value)}
    if hasattr(found, "model_"):
        facts["model"] = repr({name: value for name, value in found.model_.settings.items() if name != "seconds"})
    return facts | {"warned": [(one.category.__name__, str(one.message)) for one in caught]}
