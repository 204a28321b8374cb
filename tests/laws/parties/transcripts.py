"""`Transcript`: what left through a Gaussian mechanism, recorded and played back.

Later releases depend on earlier ones only through what was released. So a second run, on neighbouring data, gets the first
one's released values in place of its own. Take the distances of all private values, each over the noise that was added to
it. Their squares add up to that of the mu of telling the two apart, for this transcript.
"""

import math
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pytest

from eigenveil.core.ledger import Slot
from eigenveil.core.mechanism import Bounded, Gaussian, Mechanism
from eigenveil.linalg import Array
from eigenveil.plan import recommendation
from eigenveil.privacy import released
from eigenveil.trackers import slices


class Transcript:
    """Stands in for `Gaussian`: records private values and noise scales, and can play released values back."""

    def __init__(self, played: "Transcript | None" = None) -> None:
        self.values: list[Array] = []
        self.scales: list[float] = []
        self.released: list[Array] = []
        self.played = played

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        """Take the place of both ways out."""
        whole, columns_of = Gaussian.release, released.release_columns

        def release(mechanism: Gaussian, private: Bounded, *, label: str, share: float = 1.0, slot: Slot | None = None) -> Array:
            public = whole(mechanism, private, label=label, share=share, slot=slot)
            return self._through(private.value, public, private.sensitivity * mechanism.multiplier / math.sqrt(share))

        def release_columns(
            mechanism: Mechanism,
            slices: Iterable[Array],
            *,
            dim: int,
            sensitivity: float,
            label: str,
            share: float = 1.0,
            slot: Slot | None = None,
        ) -> Iterator[Array]:
            private = list(slices)
            public = columns_of(mechanism, private, dim=dim, sensitivity=sensitivity, label=label, share=share, slot=slot)
            scale = mechanism.scale(sensitivity, share=share)
            return (self._through(one, other, scale) for one, other in zip(private, public, strict=True))

        patch.setattr(Gaussian, "release", release)
        # A plan rehearses on rows of its own, and what it releases there is not meant.
        patch.setattr(recommendation, "hopeless", lambda facts, method: None)
        patch.setattr(slices, "release_columns", release_columns)

    def _through(self, private: Array, public: Array, scale: float) -> Array:
        if self.played is not None:
            public = self.played.released[len(self.values)]
        self.values.append(np.array(private))
        self.scales.append(scale)
        self.released.append(public)
        return public


def realised_mu(one: Callable[[], object], other: Callable[[], object]) -> float:
    """The mu of telling two runs apart, the second of which sees what the first released."""
    first, second = Transcript(), None
    for run in (one, other):
        second = first if second is None else Transcript(first)
        with pytest.MonkeyPatch.context() as patch:
            second.watch(patch)
            run()
    assert second is not None
    assert len(first.values) == len(second.values) > 0
    assert first.scales == second.scales
    gaps = [np.linalg.norm(a - b) for a, b in zip(first.values, second.values, strict=True)]
    return math.sqrt(sum((g / s) ** 2 for g, s in zip(gaps, first.scales, strict=True)))
