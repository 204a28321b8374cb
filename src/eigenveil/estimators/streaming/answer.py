"""`Answer`: what may be shown of a stream at any time, at one place or at many sites.

With privacy, all of it comes from released numbers.
"""

import math
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from eigenveil.estimators.released import model_of
from eigenveil.estimators.verdict import FitVerdict, Released
from eigenveil.linalg import Array, Sketch, Subspace, symmetric_edge
from eigenveil.model import Model
from eigenveil.privacy import Guarantee
from eigenveil.tasks.levels import Change

__all__ = ["Answer"]


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answer:
    """The components at some time, in the units of the columns over their scale."""

    sketch: Sketch
    rank: int  # Directions to show.
    floor: float = 0.0  # Eigenvalues of the scatter below this cannot be told from noise.
    rows: int = 0  # Rows that it covers, where they are counted.
    energy: float = 0.0  # Sum of squares of the rows as they were clipped, without what is missing.
    rates: Array | None = None  # Of entries, (d,), if sums were divided by them.
    change: Change | None = None  # Whether the last rows are clearly unlike the rest.
    unclear: tuple[int, ...] = ()  # Columns whose counts of entries noise hides.

    @property
    def subspace(self) -> Subspace:
        """The directions to show, none before the first release."""
        space = self.sketch.subspace
        return space if space.rank <= self.rank else space.truncate(self.rank)

    def mean(self, scale: Array | None) -> Array:
        """The mean, (d,), in the units of the columns."""
        return self.sketch.mean if scale is None else self.sketch.mean * scale

    def arrays(self) -> tuple[Array, ...]:
        """What sites are told: directions, values, the mean, and weight, energy and floor."""
        numbers = np.array([self.sketch.weight, self.sketch.energy, self.floor])
        return self.subspace.basis, self.subspace.values, self.sketch.mean, numbers

    def released(self, *, radius: float, at_edge: bool = False, **search: Any) -> Released:
        """What a verdict needs of it. Rows were clipped to the norm `radius`, and `search` is what else a search has found."""
        dim = self.sketch.dim
        return Released(
            space=self.subspace,
            trace=self.sketch.energy,
            people=self.sketch.weight,
            radius=radius,
            # A diagonal entry has no more noise than this, and a trace is the sum of d of them.
            trace_noise=self.floor / symmetric_edge(dim) * math.sqrt(dim),
            # The number of rows is public, or so many that its noise hardly matters.
            people_noise=0.0,
            noise_floor=self.floor,
            at_edge=at_edge,
            energy=self.energy,
            change=self.change,
            unclear=self.unclear,
            **search,
        )

    def model(
        self,
        verdict: FitVerdict,
        guarantee: Guarantee,
        *,
        scale: Array | None,
        columns: tuple[str, ...] | None,
        settings: dict[str, Any],
    ) -> Model:
        """The model of it, in the units of the columns."""
        return model_of(
            self.subspace,
            trace=self.sketch.energy,
            people=self.sketch.weight,
            center=self.mean(scale),
            verdict=verdict,
            guarantee=guarantee,
            scale=scale,
            columns=columns,
            settings=settings,
        )
