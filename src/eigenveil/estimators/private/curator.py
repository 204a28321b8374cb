"""One curator's fit for `PrivatePCA`, step by step: plan, mean, components, small totals, guarantee."""

import math
import warnings
from dataclasses import dataclass, field, replace
from typing import Any, final

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
from eigenveil.estimators.checks import covariance_for, rank_and_fraction
from eigenveil.estimators.settings import bound_settings, settings_of
from eigenveil.estimators.terms import Terms
from eigenveil.estimators.verdict import FitVerdict, forewarned, noise_floor, released_of, verdict_of
from eigenveil.linalg import Array, Subspace
from eigenveil.methods import TaskContext
from eigenveil.papers.noise_scales import fpca_scale, ppm_multiplier
from eigenveil.params import PrivateParams
from eigenveil.plan import Plan, predict
from eigenveil.plan.choose.choice import DIVIDED
from eigenveil.privacy import Guarantee
from eigenveil.privacy.facts import (
    COMPONENTS,
    NO_PRIVACY,
    GuaranteeFacts,
    OneHolder,
    Person,
    PublishedNoise,
)
from eigenveil.protocols import run_pooled
from eigenveil.tasks.fit.task import Fit, FitResult

__all__ = ["Curator", "PrivateFit", "curator_settings", "least_rows", "plan_of"]


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PrivateFit:
    """What a fit released: directions, spectrum, center, the number of people, the guarantee, and the Gram matrix."""

    subspace: Subspace
    trace: float
    count: float
    center: Array
    domain: Domain
    scale: Array | None
    verdict: FitVerdict
    guarantee: Guarantee
    gram: Array | None
    rates: Array | None


@final
@dataclass(slots=True, eq=False, kw_only=True)
class Curator:
    """The budget, the ledger and the noise of one fit. Changes in place: it spends.

    Everything that leaves goes through one mechanism, which is exact without a budget. The budget is reserved on the ledger
    while the fit runs, because other fits may spend from the same ledger at the same time.
    """

    params: PrivateParams
    terms: Terms
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
        study, before = self._study(), self._before()
        for warning in before:
            # Before anything is spent, so that a caller who makes an error of it spends nothing.
            warnings.warn(warning, stacklevel=5)
        if self.budget is None or self.ledger is None:
            found = run_pooled(study, rows, Exact(because=NO_PRIVACY["fit"]))
        else:
            with self.ledger.reserve(
                self.budget.mu, label="this fit", unit=self.terms.unit, budget=self.budget, lazy=True
            ) as self._reserve:
                found = run_pooled(
                    study, rows, Gaussian(multiplier=1.0 / self.budget.mu, ledger=self._reserve, noise=self.noise)
                )
        # How much more noise a published calibration added than its share of the budget needs.
        self._overshoot = math.sqrt(study.split.main(found.steps) / study.components_share(found.steps))
        return self._found(study, found, names, before)

    def _study(self) -> Fit:
        """The whole fit as one task."""
        terms, plan = self.terms, self.terms.plan
        context = TaskContext(neighbours=terms.neighbours, rank=terms.rank, private=terms.private)
        basis = terms.method.start_basis(terms.bounds.dim, plan, self.rng)
        return terms.fit(
            terms.method.build_task(plan, basis, context),
            multiplier=0.0 if self.budget is None else 1.0 / self.budget.mu,
            # Before the ledger is touched, because a published calibration may refuse the budget.
            at_most=self._at_most(),
        )

    def _found(
        self,
        study: Fit,
        found: FitResult,
        names: tuple[str, ...] | None,
        before: tuple[ParameterWarning, ...],
    ) -> PrivateFit:
        """What a fit found, with the verdict on it."""
        terms, space = self.terms, found.subspace
        floor = noise_floor(study, found, terms.plan)
        if terms.rank is None:
            fraction = rank_and_fraction(self.params.n_components, terms.bounds.dim)[1]
            space = space.truncate(_rank_for(space, found.trace, fraction, floor))
        verdict = verdict_of(
            released_of(study, found, space=space, floor=floor) if floor > 0 else None,
            asked=terms.settings,
            budget=self.budget,
            method=f"curator/{terms.method}",
            neighbours=terms.neighbours,
            names=names,
            before=before,
        )
        guarantee = self._guarantee(found)
        return PrivateFit(
            subspace=space,
            trace=found.trace,
            count=found.people,
            center=found.center,
            domain=found.domain,
            scale=found.units,
            verdict=verdict,
            guarantee=guarantee,
            gram=found.gram,
            rates=found.rates,
        )

    def _before(self) -> tuple[ParameterWarning, ...]:
        """What is to be said before anything is spent."""
        terms = self.terms
        if terms.rank is None or self.params.calibration == "paper":
            return ()
        return forewarned(
            f"curator/{terms.method}",
            dim=terms.bounds.dim,
            rank=terms.rank,
            people=terms.people,
            budget=self.budget,
            neighbours=terms.neighbours,
            center=terms.seeks_center,
            bounds=terms.bounds,
        )

    def _published(self) -> float | None:
        """The noise multiplier as the paper of the chosen method prints it, None with exact calibration."""
        terms = self.terms
        if self.budget is None or self.params.calibration != "paper":
            return None
        if terms.method.releases_gram:
            # The paper prints a scale for rows in the unit ball. Over their sensitivity it is a multiplier for any
            # bound.
            return fpca_scale(self.budget, dim=terms.bounds.dim) / gram_sensitivity(1.0, terms.neighbours)
        rounds = terms.plan.rounds
        # The paper's noise is that of each round. A mechanism enlarges its noise by sqrt(rounds) for a share of 1 /
        # rounds, so that comes off first.
        return ppm_multiplier(self.budget, rounds=rounds) / math.sqrt(rounds)

    def _at_most(self) -> float:
        """The share of the budget that the components spend. A published calibration adds more noise and spends less."""
        published = self._published()
        # A multiplier of M spends mu = 1 / M, and shares are parts of the budget's mu^2.
        return 1.0 if published is None or self.budget is None else (self.budget.mu * published) ** -2

    def _guarantee(self, found: FitResult) -> Guarantee:
        terms = self.terms
        if self.budget is None or self._reserve is None:
            return Guarantee.none(NO_PRIVACY["fit"])
        return GuaranteeFacts(
            budget=self.budget,
            protects=Person(grouped=terms.grouped, column=terms.person),
            neighbours=terms.neighbours,
            rows=terms.bounds.known(terms.center, norm=found.domain.radius, least=least_rows(terms)),
            seen_by=OneHolder(),
            released=COMPONENTS + terms.bounds.released,
            charges=self._reserve.charges,
            reproducible=self.noise.reproducible,
            published=self._published_noise(),
            people=found.people,
        ).guarantee()

    def _published_noise(self) -> PublishedNoise | None:
        if self.params.calibration == "exact":
            return None
        return PublishedNoise(
            "FPCA (17)" if self.terms.method.releases_gram else "PPM Alg. 1 (zero-concentrated DP)", self._overshoot
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


def plan_of(params: PrivateParams, *, rank: int | None, dim: int, budget: Budget | None, people: float | None) -> Plan:
    """The plan of a fit, from public numbers alone, so that what is chosen reveals nothing. `people`: if that is public."""
    found = predict(
        dim=dim,
        # With a fraction the rank is not known yet. 32 is a guess, for the plan alone.
        rank=rank or min(dim, 32),
        budget=budget,
        method=covariance_for(params.missing, params.method, dim),
        neighbours=Neighbours(params.neighbours),
        people=None if people is None else round(people),
        oversample=params.oversample,
        rounds=params.rounds,
    )
    if budget is not None and params.calibration == "paper":
        # The paper's noise is the same in every round.
        rounds = len(found.chosen.plan.shares)
        chosen = replace(found.chosen, plan=replace(found.chosen.plan, shares=(1.0 / rounds,) * rounds))
        found = replace(found, chosen=chosen)
    return replace(found, why=DIVIDED, asked=False) if params.missing in ("counts", "groups") else found


def least_rows(terms: Terms) -> int:
    """Fewer rows are refused, which reveals that there are fewer, so the guarantee states this minimum as public."""
    return max(2, terms.rank or 2)


def curator_settings(terms: Terms, plan: Plan, *, row_bound: float, scale: Array | None) -> dict[str, Any]:
    """The settings of a fit of one table, with the bound and the units that were found."""
    return settings_of(
        terms.settings,
        method=terms.plan.method,
        why=plan.reason,
        neighbours=terms.neighbours if terms.private else None,
        width=terms.plan.width,
        rounds=len(terms.plan.shares),
        **bound_settings(terms.settings, terms.bounds, row_bound, scale),
    )
