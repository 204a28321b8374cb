"""Specimens of one curator: shipped fits with one mistake each. An audit that does not refute them is blind."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, cast, final

import numpy as np
from numpy.random import Generator

from eigenveil.audit.case import Case, Claim, Trial, mu_of
from eigenveil.audit.cases.canaries import enough_people, lifted, tossed
from eigenveil.audit.cases.curator import two_fits
from eigenveil.audit.cases.curator_seen import BUDGET, blanked, fitted, guarantee_of
from eigenveil.core.accounting import Budget
from eigenveil.core.domain import Domain, Region, Scored, SparseBlock
from eigenveil.core.ledger import Charge, Ledger, Memory
from eigenveil.core.rows import Block, Rows
from eigenveil.core.unit import Neighbours
from eigenveil.estimators import PrivatePCA
from eigenveil.estimators.terms import Terms
from eigenveil.linalg import Array
from eigenveil.plan import Plan
from eigenveil.privacy.sums.clipped import FloatRegion, moved, sparse
from eigenveil.tasks.fit.bounds import RowBounds

__all__ = ["CASES"]

_DIM: Final = 8
_AXES: Final = np.eye(_DIM)
# The budgets of shipped cases are large enough to show noise that is a fifth too small, so a specimen has just that.
_TOO_LITTLE: Final = 0.8


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Misjudged(FloatRegion):
    """A region that clips rows as `inner` does, and states `part` of the sensitivities of `stated`."""

    dim: int
    radius: float
    stated: Domain
    inner: Domain
    part: float = 1.0

    @property
    def shifted_center(self) -> Array | None:
        return self.inner.shifted_center

    @property
    def unit(self) -> float | None:
        return self.inner.unit

    def moved(self, block: Block, *, out: Array, squared: bool = False) -> tuple[Array, Array]:
        return moved(self.inner, block, out=out, squared=squared)

    def sparse(self, block: Block, *, squared: bool = False) -> SparseBlock:
        return sparse(self.inner, block, squared=squared)

    def whole(self, block: Block, *, unit: float, squared: bool = False, out: Array | None = None) -> Array:
        return self.inner.whole(block, unit=unit, squared=squared, out=out)

    def whole_sparse(self, block: Block, *, unit: float, squared: bool = False) -> SparseBlock:
        return self.inner.whole_sparse(block, unit=unit, squared=squared)

    def squares(self, block: Block) -> Array:
        return self.inner.squares(block)

    def scored(self, block: Block, *, basis: Array, out: Array | None = None) -> Scored:
        return self.inner.scored(block, basis=basis, out=out)

    def sum_sensitivity(self, neighbours: Neighbours) -> float:
        return self.part * self.stated.sum_sensitivity(neighbours)

    def gram_sensitivity(self, neighbours: Neighbours) -> float:
        return self.part * self.stated.gram_sensitivity(neighbours)

    def gram_times_sensitivity(self, neighbours: Neighbours, *, basis: Array, basis_norm: float) -> float:
        return self.part * self.stated.gram_times_sensitivity(neighbours, basis=basis, basis_norm=basis_norm)

    def trace_sensitivity(self, neighbours: Neighbours) -> float:
        return self.part * self.stated.trace_sensitivity(neighbours)

    @property
    def scale(self) -> Array | None:
        """The units of the columns, which a fit shows."""
        return self.stated.scale


@final
class _OtherBounds:
    """Bounds whose regions are `changed`, and which otherwise equal the bounds they replace."""

    def __init__(self, bounds: RowBounds, changed: Callable[[Domain], Region]) -> None:
        self._bounds, self._changed = bounds, changed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bounds, name)

    def around(self, center: Array | None) -> Region:
        return self._changed(self._bounds.around(center))


# Each specimen differs from the shipped fit in one place, so that what refutes it is that place.
def _quiet(domain: Domain) -> Region:
    """A sensitivity that is a fifth too small; noise is proportional to it."""
    return _Misjudged(dim=domain.dim, radius=domain.radius, stated=domain, inner=domain, part=_TOO_LITTLE)


def _unclipped(domain: Domain) -> Region:
    """Rows as in exact fits, which are not clipped."""
    return _Misjudged(dim=domain.dim, radius=domain.radius, stated=domain, inner=replace(domain, radius=math.inf))


@final
class _QuietPCA(PrivatePCA):
    """A `PrivatePCA` whose noise is a fifth too small."""

    def _planned(self, asked: PrivatePCA, rows: Rows, budget: Budget | None) -> tuple[Plan, Terms]:
        plan, terms = super()._planned(asked, rows, budget)
        return plan, replace(terms, bounds=cast(RowBounds, _OtherBounds(terms.bounds, _quiet)))


@final
class _UnclippedPCA(PrivatePCA):
    """A `PrivatePCA` that does not clip rows to `row_bound`."""

    def _planned(self, asked: PrivatePCA, rows: Rows, budget: Budget | None) -> tuple[Plan, Terms]:
        plan, terms = super()._planned(asked, rows, budget)
        return plan, replace(terms, bounds=cast(RowBounds, _OtherBounds(terms.bounds, _unclipped)))


def _forgetful(budget: Budget) -> Ledger:
    """A ledger that does not record the first charge that it accepts."""
    memory = Memory(budget)
    write = memory.write
    seen = []

    def forget(charge: Charge) -> None:
        seen.append(charge)
        # The first charge is accepted and forgotten, so that the second fit seems to be the first.
        if len(seen) > 1:
            write(charge)

    # On this one object: `Memory` is final and has no subclasses.
    vars(memory)["write"] = forget
    return Ledger.kept(budget, memory)


def _twice(budget: Budget, rng: Generator, state: int | None) -> Trial:
    # Two fits at the whole budget each, where the ledger believes that there was one.
    return two_fits(budget, rng, state, ledger=_forgetful(budget), each=budget)


def _measured(budget: Budget, rng: Generator, state: int | None) -> Trial:
    """An analyst who passes the largest row norm as row_bound: the amount of noise then reveals that row."""
    present = tossed(1, rng)
    # So many people that the components alone tell nothing: only the amount of noise gives the row away.
    base = lifted(_DIM, length=1.0, people=enough_people(_DIM, deviation=1 / mu_of(budget)))
    # A tenth above all others, so the largest norm tells whether this row is there.
    table = np.vstack([base, np.where(present[:, None], 1.1, 0.0) * _AXES[:1]])
    pca = fitted(table, budget, state, row_bound=float(np.linalg.norm(table, axis=1).max()))
    # The attacker sees only what a fit may always state: the variance below which there is only noise.
    return Trial(scores=np.array([pca.noise_floor_]), present=present)


CASES = (
    Case(
        name="wrong/quiet-noise",
        kind="specimen",
        about="PrivatePCA with noise a fifth too small: all components and variances, seen by anybody",
        canary="a row along each axis, present or blank",
        tests=("curve", "noise"),
        budget=BUDGET,
        claim=guarantee_of,
        trial=partial(blanked, given=np.eye(16), bounded=np.eye(16), estimator=_QuietPCA),
        quick=300,
        full=3000,
        threshold=0.5,
    ),
    Case(
        name="wrong/forgetful-ledger",
        kind="specimen",
        about="two fits of PrivatePCA charged to a Ledger that forgets one charge: all components and variances, twice",
        canary="a row along each axis, present or blank in both fits",
        tests=("curve",),
        budget=BUDGET,
        claim=lambda budget: Claim.of(budget, "the ledger"),
        trial=_twice,
        quick=200,
        full=2000,
        threshold=0.5,
    ),
    Case(
        name="wrong/unclipped-row",
        kind="specimen",
        about="PrivatePCA that does not clip rows to row_bound: all components and variances, seen by anybody",
        canary="a row along each axis ten times the bound, present or blank",
        tests=("curve",),
        budget=BUDGET,
        claim=guarantee_of,
        trial=partial(blanked, given=10 * _AXES, bounded=_AXES, estimator=_UnclippedPCA),
        quick=80,
        full=800,
    ),
    Case(
        name="wrong/bound-from-data",
        kind="specimen",
        about="PrivatePCA with the largest row norm as row_bound: the noise floor alone, seen by anybody",
        canary="a row of norm a tenth above all others, present or blank",
        tests=("curve",),
        budget=BUDGET,
        claim=guarantee_of,
        trial=_measured,
        quick=100,
        full=1000,
    ),
)
