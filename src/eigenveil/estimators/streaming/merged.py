"""`Merged`: what a stream took over from others, with its noise and the guarantee to the people in it."""

import math
from dataclasses import dataclass, replace
from typing import final

from eigenveil.errors import require
from eigenveil.linalg import Subspace
from eigenveil.privacy import Guarantee
from eigenveil.trackers import Sketch, merge_sketches

__all__ = ["Merged"]


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Merged:
    """The `sketch` of other streams, as it was when the last was added, with the noise floor of its scatter.

    It covers `rows` rows. `fade` is the weight left after forgetting, and `shown` that weight at the last release. `streams`
    names all streams in it. The largest `epsilon` and `delta` among them go into the guarantee, and so does `seeded`.
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
        require(0 < self.fade <= self.shown <= 1, "the weights of what was merged are not possible")
        require(len(set(self.streams)) == len(self.streams) > 0, "a stream was merged twice")

    @classmethod
    def none(cls, dim: int) -> "Merged":
        """Nothing yet, to add the first stream to."""
        # A stream must have a name. The empty one stands for nobody, and `and_stream` drops it.
        return cls(
            sketch=Sketch.empty(dim),
            floor=0.0,
            fade=1.0,
            shown=1.0,
            epsilon=0.0,
            delta=0.0,
            seeded=False,
            rows=0,
            streams=("",),
        )

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
        """With one more stream, and all that it had taken over, truncated to `rank` directions."""
        return Merged(
            sketch=merge_sketches(self.seen(self.fade), sketch, rank=rank, center=center),
            # Independent noises: their floors add up in squares.
            floor=math.hypot(self.fade * self.floor, floor),
            # The weight lost so far is in the merged sketch now, so it starts at one again.
            fade=1.0,
            shown=1.0,
            # The maximum and not the sum, because nobody is in two of the streams.
            epsilon=max(self.epsilon, guarantee.epsilon or 0.0),
            delta=max(self.delta, guarantee.delta or 0.0),
            seeded=self.seeded or (guarantee.epsilon is not None and not guarantee.private),
            rows=self.rows + rows,
            streams=(*(name for name in self.streams if name), *streams),
        )

    def later(self, fade: float) -> "Merged":
        """After a block, when old rows lose weight."""
        return self if fade == 1.0 else replace(self, fade=self.fade * fade)

    def released(self) -> "Merged":
        """After a release, when the loss of weight becomes public."""
        return replace(self, shown=self.fade)

    def seen(self, fade: float) -> Sketch:
        """The sketch with this weight."""
        # Values are in data scale, and a weight belongs to their squares.
        space = Subspace(self.sketch.subspace.basis, self.sketch.subspace.values * math.sqrt(fade))
        return Sketch(
            subspace=space, mean=self.sketch.mean, weight=self.sketch.weight * fade, energy=self.sketch.energy * fade
        )
