"""`Merged`: what a stream has taken over from others: their sketch, the noise in it, and what was guaranteed to their people."""

import math
from dataclasses import dataclass, replace
from typing import final

from eigenveil.errors import require
from eigenveil.linalg import Subspace
from eigenveil.privacy import Guarantee
from eigenveil.tracking import Sketch, merge_sketches

__all__ = ["Merged"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Merged:
    """The `sketch` of other streams, as it was when the last was added, with the noise floor of its scatter.

    It is of `rows` rows.
    `fade` is what has been forgotten of it since, `shown` what had been when something was last released. `streams` names
    all that are in it, and the largest `epsilon` and `delta` among them, and whether any was `seeded`, go into the guarantee.
    """

    sketch: Sketch
    floor: float
    fade: float
    shown: float
    epsilon: float
    delta: float
    seeded: bool
    rows: int
    streams: tuple[str, ...]

    def __post_init__(self) -> None:
        require(0 < self.fade <= self.shown <= 1, "what was merged cannot have faded so")
        require(len(set(self.streams)) == len(self.streams) > 0, "a stream was merged twice")

    @classmethod
    def none(cls, dim: int) -> "Merged":
        """To add the first stream to."""
        return cls(Sketch.empty(dim), 0.0, 1.0, 1.0, 0.0, 0.0, False, 0, ("",))

    def and_stream(
        self,
        sketch: Sketch,
        *,
        floor: float,
        guarantee: Guarantee,
        rows: int,
        streams: tuple[str, ...],
        rank: int,
        center: bool,
    ) -> "Merged":
        """With one more stream, and whatever that had taken over, cut to `rank` directions."""
        return Merged(
            merge_sketches(self.seen(self.fade), sketch, rank=rank, center=center),
            math.hypot(self.fade * self.floor, floor),
            1.0,
            1.0,
            max(self.epsilon, guarantee.epsilon or 0.0),
            max(self.delta, guarantee.delta or 0.0),
            self.seeded or (guarantee.epsilon is not None and not guarantee.private),
            self.rows + rows,
            (*(name for name in self.streams if name), *streams),
        )

    def later(self, fade: float) -> "Merged":
        """After a block, at which old rows fade."""
        return self if fade == 1.0 else replace(self, fade=self.fade * fade)

    def released(self) -> "Merged":
        """Where something was just released, so that the fading may be seen."""
        return replace(self, shown=self.fade)

    def seen(self, fade: float) -> Sketch:
        """The sketch, faded."""
        space = Subspace(self.sketch.subspace.basis, self.sketch.subspace.values * math.sqrt(fade))
        return Sketch(space, self.sketch.mean, self.sketch.weight * fade, self.sketch.energy * fade)
