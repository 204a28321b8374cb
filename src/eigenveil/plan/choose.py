"""Compares the methods by memory and noise, and chooses one. Every "auto" ends here.

It never sees a row. The number of people enters only where the caller declared it public.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

from eigenveil.core.accounting import Budget
from eigenveil.core.unit import Neighbours, gram_sensitivity
from eigenveil.errors import ParameterError, require, require_param
from eigenveil.linalg import Array, expected_captured_variance
from eigenveil.methods import METHODS, Method, MethodPlan, PlanRequest, method_of, methods_in
from eigenveil.methods.base import LocalSteps
from eigenveil.plan.spectrum import Spectrum, guessed_eigenvalues, require_rank

MEMORY_LIMIT: Final = 1 << 30
# The reason where the caller left the method open, and values may be missing.
DIVIDED: Final = "only its entries can be divided by counts of the values that are present"
# Products of one table without noise: there is no tolerance at which they stop.
_EXACT_ROUNDS: Final = 24


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One method as it is planned, with its costs.

    - `noise` is the expected spectral norm of the noise on the Gram matrix, in units of row_bound^2.
    - `captured` is the expected share of what exact PCA finds in the clipped rows, None where the number of people is not public.

    That share comes from a first-order formula, for a first idea: `eigenveil.plan.rehearsal` rehearses the
    fit.
    """

    plan: MethodPlan
    noise: float
    memory: int
    captured: float | None

    @property
    def method(self) -> str:
        """The name of the method."""
        return self.plan.method

    def __str__(self) -> str:
        guess = "" if self.captured is None else f", captured variance of the clipped rows about {self.captured:.2f}"
        return f"{self.method}: noise {self.noise:.3g} row_bound^2, {self.memory / 2**20:.3g} MiB{guess}"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What was considered, what was chosen and `why`, all from public numbers. `is_explicit`: the caller named the
    mechanism."""

    chosen: Choice
    considered: tuple[Choice, ...]
    why: str
    is_explicit: bool

    @property
    def reason(self) -> str:
        """The choice and its reason, on one line."""
        return f"{self.chosen.method}{' ' if self.is_explicit else ': '}{self.why}"


def predict(
    *,
    dim: int,
    rank: int,
    budget: Budget | None,
    method: str = "auto",
    neighbours: Neighbours = Neighbours.ADD_REMOVE,
    people: int | None = None,
    spectrum: Spectrum | Array | None = None,
    oversample: int | None = None,
    rounds: int | None = None,
    memory_limit: int = MEMORY_LIMIT,
) -> Plan:
    """Compare the methods for `rank` of `dim` components and choose one, or explain the one that was asked for.

    `spectrum` is what is known of the eigenvalues, or their shape alone, (up to dim,). By default it is the guess of
    `Spectrum.guessed`. It matters only for `captured`.

    Noise alone decides. In every rehearsal that compared them, releasing all pairs of columns captured at least as
    much as noisy products did.

    >>> plan = predict(dim=100, rank=5, budget=Budget(1.0, 1e-6))
    >>> plan.chosen.method
    'covariance'
    >>> predict(dim=50_000, rank=5, budget=Budget(1.0, 1e-6)).chosen.method
    'power'
    """
    require_rank(rank, dim)
    sigma = 0.0 if budget is None else gram_sensitivity(1.0, neighbours) / budget.mu
    prior, considered = _known(dim, spectrum), []
    usual = _EXACT_ROUNDS if budget is None else None
    compared = methods_in("curator")
    # One that "auto" may not take can be asked for.
    for leaf in map(method_of, compared if method in ("auto", *compared) else (*compared, method)):
        chooses = leaf.fixed_rounds is None
        criteria = PlanRequest(
            dim=dim,
            rank=rank,
            budget=budget,
            eigenvalues=prior.values,
            rounds=(usual if rounds is None else rounds) if chooses else None,
            tolerance=0.0,
            oversample=oversample if chooses else None,
        )
        plan = leaf.plan(criteria, "")
        considered.append(
            Choice(
                plan=plan,
                noise=sigma * leaf.noise_norm(dim, plan, sites=1),
                memory=8 * leaf.memory(dim, plan),
                captured=_captured(prior, people, rank, sigma * leaf.entry_noise(plan)),
            )
        )
    chosen, why = _choose(method, considered, memory_limit)
    return Plan(chosen=chosen, considered=tuple(considered), why=why, is_explicit=method != "auto")


def in_mebibytes(size: float) -> str:
    """A size for a sentence, in MiB, that is never nothing.

    >>> in_mebibytes(1200), in_mebibytes(3.26 * 2**20)
    ('less than 0.1', '3.3')
    """
    return "less than 0.1" if size < 0.1 * 2**20 else f"{size / 2**20:.1f}"


def _choose(method: str, considered: Sequence[Choice], limit: int) -> tuple[Choice, str]:
    """The choice and why. "auto" is the quietest that fits; of equals the first."""
    if method != "auto":
        return next(choice for choice in considered if choice.method == method), "was asked for"
    allowed = f"{limit / 2**20:.0f} MiB allowed"
    by_noise = sorted(considered, key=lambda choice: choice.noise)
    quietest = by_noise[0]
    # Memory comes first: where all pairs of columns fit, rehearsals never found products better.
    fitting = [choice for choice in by_noise if choice.memory <= limit]
    chosen = fitting[0] if fitting else min(considered, key=lambda choice: choice.memory)
    if chosen is not quietest or not fitting:
        return chosen, f"the {quietest.method} would need {quietest.memory / 2**20:.0f} MiB, more than the {allowed}"
    reason = "it is exact"
    if chosen.noise > 0:
        next_best = by_noise[1]
        reason = f"its noise is {next_best.noise / chosen.noise:.1f} times lower than that of the {next_best.method} method"
    return chosen, f"{reason}, and it fits ({in_mebibytes(chosen.memory)} of {allowed})"


def _known(dim: int, spectrum: Spectrum | Array | None) -> Spectrum:
    if spectrum is None:
        return Spectrum.guessed(dim)
    if not isinstance(spectrum, Spectrum):
        require(len(spectrum) <= dim, f"spectrum has {len(spectrum)} values for {dim} columns")
        try:
            return Spectrum.of_variances(spectrum, dim=dim)
        except ParameterError as error:
            raise error.within("spectrum") from None
        except ValueError as error:
            raise ValueError(f"spectrum: {error}") from None
    require(spectrum.dim == dim, f"spectrum has {spectrum.dim} values for {dim} columns: give one for each column")
    return spectrum


def _captured(spectrum: Spectrum, people: int | None, rank: int, entry: float) -> float | None:
    """Expected captured variance when noise entries have size `entry`, at least that of random directions."""
    if people is None:
        return None
    require(people >= 1, f"people must be at least 1, got {people}")
    top = people * spectrum.values[:rank]
    return max(expected_captured_variance(top, entry=entry, dim=spectrum.dim), spectrum.at_random(rank))


def plan_sites(
    *,
    dim: int,
    rank: int,
    budget: Budget | None,
    method: str,
    neighbours: Neighbours,
    rounds: int | None = None,
    tolerance: float | None = None,
    oversample: int | None = None,
    local_steps: LocalSteps = 1,
    guessed_people: int = 2,
) -> MethodPlan:
    """The plan for `rank` components of `dim` columns. Each setting that the caller gave is used or refused.

    `guessed_people` is a public guess at how many there are, for methods with hidden starts.

    >>> few = dict(dim=100, rank=5, neighbours=Neighbours.ADD_REMOVE)
    >>> plan_sites(budget=None, method="auto", **few).method, plan_sites(budget=Budget(1.0, 1e-6), method="auto", **few).method
    ('krylov', 'covariance')
    """
    require_rank(rank, dim)
    leaf, reason = _chosen(dim, rank, budget, method, neighbours)
    criteria = PlanRequest(
        dim=dim,
        rank=rank,
        budget=budget,
        eigenvalues=guessed_eigenvalues(dim=dim, people=guessed_people),
        people=guessed_people,
        rounds=rounds,
        tolerance=tolerance,
        oversample=oversample,
        local_steps=local_steps,
    )
    _require_used(leaf, criteria)
    return leaf.plan(criteria, reason)


def _require_used(leaf: Method, criteria: PlanRequest) -> None:
    """Refuse what has no meaning for a method."""
    others = [method for method in METHODS.values() if "sites" in method.places]
    *names, last = (method.name for method in others if method.fixed_rounds is None)
    several = f"{', '.join(names)} and {last}"
    require_param(
        criteria.rounds is None or leaf.fixed_rounds is None,
        f"{{rounds}} is for {several}; {{method=}} takes {'one' if leaf.fixed_rounds == 1 else 'two'}",
        method=leaf.name,
    )
    require_param(
        criteria.tolerance is None or leaf.fixed_rounds is None,
        f"{{tolerance}} is for {several}, not {{@chosen}}",
        chosen=leaf.name,
    )
    one_step = isinstance(criteria.local_steps, int) and criteria.local_steps == 1
    local = " or ".join(f"{{method={method}}}" for method in others if method.takes_local_steps)
    require_param(one_step or leaf.takes_local_steps, f"{{local_steps}} is for {local}, not {{@chosen}}", chosen=leaf.name)


def _chosen(dim: int, rank: int, budget: Budget | None, method: str, neighbours: Neighbours) -> tuple[Method, str]:
    """The method and why. "auto" is the first that takes products, unless one release is better and fits."""
    if method != "auto":
        return method_of(method), f"{method} was asked for"
    products = next(leaf for leaf in METHODS.values() if "sites" in leaf.places and leaf.needs_start_basis)
    if budget is None:
        return products, f"{products}: exact to rounding in few rounds of d x w numbers"
    plan = predict(dim=dim, rank=rank, budget=budget, neighbours=neighbours)
    chosen = method_of(plan.chosen.method)
    if not chosen.needs_start_basis:
        return chosen, plan.reason
    return products, f"{products}: {plan.why}; all noisy products are kept"
