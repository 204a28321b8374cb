"""One curator's fit for `PrivatePCA`, step by step: plan, mean, components, small totals, guarantee."""

import math
import warnings
from dataclasses import dataclass, field, replace
from typing import Any, Literal, final

import numpy as np
from numpy.random import Generator

from eigenveil.core.accounting import Budget
from eigenveil.core.domain import Domain
from eigenveil.core.ledger import Ledger, Reserve
from eigenveil.core.mechanism import Exact, Gaussian
from eigenveil.core.noise import Noise
from eigenveil.core.rows import Rows
from eigenveil.core.unit import Neighbours, gram_sensitivity
from eigenveil.errors import ParameterWarning
from eigenveil.estimators.settings import bound_settings, settings_of
from eigenveil.estimators.verdict import FitVerdict, forewarned, noise_floor, released_of, verdict_of
from eigenveil.linalg import Array, Subspace
from eigenveil.methods import Method, MethodPlan, TaskContext, method_of
from eigenveil.papers.noise_scales import fpca_scale, ppm_multiplier
from eigenveil.plan import Plan, predict
from eigenveil.plan.choose.choice import DIVIDED
from eigenveil.privacy import Guarantee, bounded_count
from eigenveil.privacy.facts import (
    COMPONENTS,
    NO_PRIVACY,
    GuaranteeFacts,
    OneHolder,
    Person,
    PublishedNoise,
)
from eigenveil.protocols import run_pooled
from eigenveil.tasks.fit.bounds import RowBounds
from eigenveil.tasks.fit.split import split_budget
from eigenveil.tasks.fit.task import Fit, FitResult

__all__ = ["Curator", "PrivateFit", "PrivateSpec", "curator_settings"]

Calibration = Literal["exact", "paper"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class PrivateSpec:
    """What to fit, checked and public. With `rank` None, it is read off the released spectrum to explain `fraction`.

    A model records `settings`.
    """

    rank: int | None
    fraction: float
    bounds: RowBounds
    center: Array | Literal["private"] | None
    neighbours: Neighbours
    method: str
    calibration: Calibration
    oversample: int | None
    rounds: int | None
    protects: Person
    least_rows: int
    settings: dict[str, Any]


@final
@dataclass(frozen=True, slots=True, eq=False)
class PrivateFit:
    """What a fit released: directions, spectrum, center, the number of people, the plan, the guarantee, and the Gram matrix."""

    subspace: Subspace
    trace: float
    count: float
    center: Array
    domain: Domain
    scale: Array | None
    verdict: FitVerdict
    plan: Plan
    guarantee: Guarantee
    gram: Array | None
    rates: Array | None


@final
@dataclass(slots=True, eq=False)
class Curator:
    """The budget, the ledger and the noise of one fit. Changes in place: it spends.

    Everything that leaves goes through one mechanism, which is exact without a budget. The budget is reserved on the ledger
    while the fit runs, because other fits may spend from the same ledger at the same time.
    """

    request: PrivateSpec
    budget: Budget | None
    ledger: Ledger | None
    noise: Noise
    rng: Generator
    _reserve: Reserve | None = field(init=False, default=None)
    _overshoot: float = field(init=False, default=1.0)

    def fit(self, rows: Rows, *, names: tuple[str, ...] | None = None) -> PrivateFit:
        """Run the whole fit on `rows`. A ledger that cannot pay for all of it refuses before anything is released.

        What a fit does not spend, because it fails or ends early, is given back. The columns may have `names`.
        """
        # Plans are made from public numbers alone, so what is chosen reveals nothing.
        public = self._public_count(rows)
        plan = self._plan(public)
        study, before = self._study(plan, public), self._before(plan, public)
        for warning in before:
            # Before anything is spent, so that a caller who makes an error of it spends nothing.
            warnings.warn(warning, stacklevel=5)
        if self.budget is None or self.ledger is None:
            found = run_pooled(study, rows, Exact(because=NO_PRIVACY["fit"]))
        else:
            unit = self.request.protects.protected(self.request.neighbours)
            with self.ledger.reserve(
                self.budget.mu, label="this fit", unit=unit, budget=self.budget, lazy=True
            ) as self._reserve:
                found = run_pooled(study, rows, Gaussian(1.0 / self.budget.mu, self._reserve, self.noise))
        # How much more noise a published calibration added than its share of the budget needs.
        self._overshoot = math.sqrt(study.split.main(found.steps) / study.components_share(found.steps))
        return self._found(study, found, plan, names, before)

    def _study(self, plan: Plan, public: float | None) -> Fit:
        """The whole fit as one task, for a public number of people or a private one."""
        request, chosen, leaf = self.request, plan.chosen.plan, method_of(plan.chosen.method)
        context = TaskContext(neighbours=request.neighbours, rank=request.rank, private=self.budget is not None)
        split = split_budget(
            mean=isinstance(request.center, str),
            search=request.bounds.search,
            count=public is None,
            trace=not leaf.releases_gram,
            bound=request.bounds.find,
            units=request.bounds.units,
            observed=request.bounds.gaps is not None and request.bounds.gaps.divides,
        )
        return Fit(
            bounds=request.bounds,
            neighbours=request.neighbours,
            center=request.center,
            components=leaf.build_task(chosen, leaf.start_basis(request.bounds.dim, chosen, self.rng), context),
            split=split,
            people=public,
            multiplier=0.0 if self.budget is None else 1.0 / self.budget.mu,
            rank=request.rank,
            # Before the ledger is touched, because a published calibration may refuse the budget.
            at_most=self._at_most(chosen),
            needs_trace=not leaf.releases_gram,
            entry=leaf.entry_noise(chosen),
        )

    def _found(
        self,
        study: Fit,
        found: FitResult,
        plan: Plan,
        names: tuple[str, ...] | None,
        before: tuple[ParameterWarning, ...],
    ) -> PrivateFit:
        """What a fit found, with the verdict on it."""
        request, space = self.request, found.subspace
        floor = noise_floor(study, found, plan.chosen.plan)
        if request.rank is None:
            space = space.truncate(_rank_for(space, found.trace, request.fraction, floor))
        verdict = verdict_of(
            released_of(study, found, space=space, floor=floor) if floor > 0 else None,
            asked=request.settings,
            budget=self.budget,
            method=f"curator/{plan.chosen.method}",
            neighbours=request.neighbours,
            names=names,
            before=before,
        )
        guarantee = self._guarantee(found, method_of(plan.chosen.method))
        return PrivateFit(
            space,
            found.trace,
            found.people,
            found.center,
            found.domain,
            found.units,
            verdict,
            plan,
            guarantee,
            found.gram,
            found.rates,
        )

    def _before(self, plan: Plan, people: float | None) -> tuple[ParameterWarning, ...]:
        """What is to be said before anything is spent."""
        request = self.request
        if request.rank is None or request.calibration == "paper":
            return ()
        return forewarned(
            f"curator/{plan.chosen.method}",
            dim=request.bounds.dim,
            rank=request.rank,
            people=people,
            budget=self.budget,
            neighbours=request.neighbours,
            center="private" if isinstance(request.center, str) else None,
            bounds=request.bounds,
        )

    def _public_count(self, rows: Rows) -> float | None:
        """The number of people if it is public, None if it is private, or if only reading tells who counts."""
        if self.request.bounds.gaps is not None and self.request.bounds.gaps.drops:
            return None
        if self.budget is not None and not self.request.neighbours.count_is_public:
            return None
        if not self.request.protects.grouped:
            return float(rows.shape[0])
        # Rounded to a whole number: the last digits of a sum of weights 1/m would reveal m.
        return float(round(float(bounded_count(rows, neighbours=Neighbours.ZERO_OUT).value)))

    def _plan(self, people: float | None) -> Plan:
        request, dim = self.request, self.request.bounds.dim
        found = predict(
            dim=dim,
            # With a fraction the rank is not known yet. 32 is a guess, for the plan alone.
            rank=request.rank or min(dim, 32),
            budget=self.budget,
            method=request.method,
            neighbours=request.neighbours,
            people=None if people is None else round(people),
            oversample=request.oversample,
            rounds=request.rounds,
        )
        if self.budget is not None and request.calibration == "paper":
            # The paper's noise is the same in every round.
            rounds = len(found.chosen.plan.shares)
            chosen = replace(found.chosen, plan=replace(found.chosen.plan, shares=(1.0 / rounds,) * rounds))
            found = replace(found, chosen=chosen)
        divided = request.bounds.gaps is not None and request.bounds.gaps.divides
        return replace(found, why=DIVIDED, asked=False) if divided else found

    def _published(self, plan: MethodPlan) -> float | None:
        """The noise multiplier as the paper of the chosen method prints it, None with exact calibration."""
        if self.budget is None or self.request.calibration != "paper":
            return None
        if method_of(plan.method).releases_gram:
            # The paper prints a scale for rows in the unit ball. Over their sensitivity it is a multiplier for any
            # bound.
            return fpca_scale(self.budget, dim=self.request.bounds.dim) / gram_sensitivity(1.0, self.request.neighbours)
        rounds = len(plan.shares)
        # The paper's noise is that of each round. A mechanism enlarges its noise by sqrt(rounds) for a share of 1 /
        # rounds, so that comes off first.
        return ppm_multiplier(self.budget, rounds=rounds) / math.sqrt(rounds)

    def _at_most(self, plan: MethodPlan) -> float:
        """The share of the budget that the components spend. A published calibration adds more noise and spends less."""
        published = self._published(plan)
        # A multiplier of M spends mu = 1 / M, and shares are parts of the budget's mu^2.
        return 1.0 if published is None or self.budget is None else (self.budget.mu * published) ** -2

    def _guarantee(self, found: FitResult, method: Method) -> Guarantee:
        request = self.request
        if self.budget is None or self._reserve is None:
            return Guarantee.none(NO_PRIVACY["fit"])
        return GuaranteeFacts(
            budget=self.budget,
            protects=request.protects,
            neighbours=request.neighbours,
            rows=request.bounds.known(request.center, norm=found.domain.radius, least=request.least_rows),
            seen_by=OneHolder(),
            released=COMPONENTS + request.bounds.released,
            charges=self._reserve.charges,
            reproducible=self.noise.reproducible,
            published=self._published_noise(method),
            people=found.people,
        ).guarantee()

    def _published_noise(self, method: Method) -> PublishedNoise | None:
        if self.request.calibration == "exact":
            return None
        return PublishedNoise(
            "FPCA (17)" if method.releases_gram else "PPM Alg. 1 (zero-concentrated DP)", self._overshoot
        )


def _rank_for(subspace: Subspace, trace: float, fraction: float, floor: float) -> int:
    """The smallest rank whose released eigenvalues add up to `fraction` of the trace, among those above the noise floor."""
    eigenvalues = np.square(subspace.values)
    # Components below the floor are noise, and asking for a larger fraction must not bring them in.
    above = int((eigenvalues > floor).sum())
    if trace <= 0:
        # Nothing stands out, and the cost of learning that is spent. One direction, with a variance that says so.
        return 1
    # A hair below the fraction counts: rounding must not cost a component.
    enough = np.flatnonzero(np.cumsum(eigenvalues) >= fraction * trace * (1 - 1e-12))
    wanted = int(enough[0]) + 1 if len(enough) else subspace.rank
    return max(1, min(wanted, above)) if floor > 0 else max(1, wanted)


def curator_settings(
    request: PrivateSpec, plan: Plan, *, row_bound: float, scale: Array | None, private: bool
) -> dict[str, Any]:
    """The settings of a fit of one table, with the bound and the units that were found."""
    return settings_of(
        request.settings,
        method=plan.chosen.method,
        why=plan.reason,
        neighbours=request.neighbours if private else None,
        width=plan.chosen.plan.width,
        rounds=len(plan.chosen.plan.shares),
        **bound_settings(request.settings, request.bounds, row_bound, scale),
    )
