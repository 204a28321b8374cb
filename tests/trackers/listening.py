"""Mechanisms for tests: one that writes down what is released, and one that releases the same whatever it is given."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import final

import numpy as np

from eigenveil.core.ledger import Slot
from eigenveil.core.mechanism import Bounded, Mechanism
from eigenveil.linalg import Array
from eigenveil.privacy.released import release_columns


@final
@dataclass
class Listening(Mechanism):
    """Passes everything on to `through`, and keeps label, slot, sensitivity and the public value. Changes in place."""

    through: Mechanism
    heard: list[tuple[str, Slot | None, float, Array]] = field(default_factory=list)

    def release(self, private: Bounded, *, label: str, share: float = 1.0, slot: Slot | None = None) -> Array:
        """What `through` releases."""
        public = self.through.release(private, label=label, share=share, slot=slot)
        self.heard.append((label, slot, private.sensitivity, np.array(public)))
        return public

    def release_columns(
        self, slices: Iterable[Array], *, dim: int, sensitivity: float, label: str, share: float = 1.0, slot: Slot | None = None
    ) -> Iterator[Array]:
        """The slices that `through` releases, kept as one array."""
        public = release_columns(self.through, slices, dim=dim, sensitivity=sensitivity, label=label, share=share, slot=slot)
        whole = [np.array(part) for part in public]
        self.heard.append((label, slot, sensitivity, np.hstack(whole)))
        return iter(whole)

    def scale(self, sensitivity: float, *, share: float = 1.0) -> float:
        """That of `through`."""
        return self.through.scale(sensitivity, share=share)


@final
@dataclass
class Deaf(Mechanism):
    """Releases arrays of its own, one after the other, and looks at nothing but their shape. Changes in place."""

    count: int = 0

    def _own(self, shape: tuple[int, ...]) -> Array:
        self.count += 1
        drawn = np.random.default_rng(self.count).standard_normal(shape)
        return drawn @ drawn.T if len(shape) == 2 and shape[0] == shape[1] else drawn

    def release(self, private: Bounded, *, label: str, share: float = 1.0, slot: Slot | None = None) -> Array:
        """Something of the same shape."""
        return self._own(private.value.shape)

    def release_columns(
        self, slices: Iterable[Array], *, dim: int, sensitivity: float, label: str, share: float = 1.0, slot: Slot | None = None
    ) -> Iterator[Array]:
        """Things of the same shapes."""
        return (self._own(part.shape) for part in slices)

    def scale(self, sensitivity: float, *, share: float = 1.0) -> float:
        """As if there were noise."""
        return 1.0
