"""`Terms`: what a fit is, in every setting. They are stated once, public, the same at every party, and passed on whole."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, final

from eigenveil.core.unit import Neighbours, PrivacyUnit
from eigenveil.linalg import Array
from eigenveil.methods import Method, MethodPlan, method_of
from eigenveil.methods.base import Components
from eigenveil.tasks.fit.bounds import RowBounds
from eigenveil.tasks.fit.split import Split, split_budget
from eigenveil.tasks.fit.task import Fit

__all__ = ["Terms"]


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Terms:
    """What to fit, checked."""

    rank: int | None  # None: read off the released spectrum.
    bounds: RowBounds
    center: Array | Literal["private"] | None
    neighbours: Neighbours
    plan: MethodPlan
    private: bool  # Whether any noise is added.
    people: float | None  # How many there are, if public.
    settings: dict[str, Any]  # What a model records of the parameters.
    sizes: Mapping[str, float] | None = None  # Rows of each site or peer, if public.
    published: bool = False  # With the whole fit as a paper prints it, which releases no totals.
    grouped: bool = False  # People may have several rows.
    person: str | None = None  # The column that names them.

    @property
    def known_rank(self) -> int:
        """The rank, where it was asked for as a number."""
        assert self.rank is not None
        return self.rank

    @property
    def unit(self) -> PrivacyUnit:
        """What every charge of this fit protects."""
        return PrivacyUnit.of(self.neighbours, grouped=self.grouped, column=self.person)

    @property
    def method(self) -> Method:
        """How directions are found."""
        return method_of(self.plan.method)

    @property
    def needs_trace(self) -> bool:
        """Whether the sum of squares is released beside the components: a Gram matrix contains it."""
        return not self.method.releases_gram and not self.published

    @property
    def seeks_center(self) -> Literal["private"] | None:
        """The word for a mean that is found privately."""
        return "private" if isinstance(self.center, str) else None

    def split(self) -> Split:
        """How the budget is divided."""
        bounds = self.bounds
        return split_budget(
            mean=self.seeks_center is not None,
            search=bounds.search,
            count=self.people is None,
            trace=self.needs_trace,
            bound=bounds.find,
            units=bounds.units,
            observed=bounds.gaps is not None and bounds.gaps.divides,
        )

    def fit(self, components: Components, *, multiplier: float, **carrier: Any) -> Fit:
        """The whole fit as one task. `carrier` is what only its carrier decides, by the names of `Fit`."""
        return Fit(
            bounds=self.bounds,
            neighbours=self.neighbours,
            center=self.center,
            components=components,
            split=self.split(),
            people=self.people,
            multiplier=multiplier,
            rank=self.rank,
            needs_trace=self.needs_trace,
            sizes=self.sizes if self.people is not None else None,
            products=(self.plan.shares, self.plan.exchanges, self.method.message_size(self.bounds.dim, self.plan)),
            entry=self.method.entry_noise(self.plan),
            **carrier,
        )
