"""`FederatedSpec`: what sites around a hub are asked for, checked and public, made from the parameters of `FederatedPCA`.

Rows are needed only for what `SiteInfo` says of them, so a network can make the same spec from declared sizes.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Literal, Self, cast, final

import numpy as np

from eigenveil.core.accounting import Budget
from eigenveil.core.domain import Domain, MissingPolicy, row_sums
from eigenveil.core.rows import Block, Rows, block_size, total_of
from eigenveil.core.unit import Neighbours
from eigenveil.data.rows import Symmetric
from eigenveil.errors import ParameterError, at_place, require, require_param, verbatim
from eigenveil.estimators.checks import budget_of, center_of, covariance_for, rank_of, seed_of
from eigenveil.estimators.reading import SiteInfo
from eigenveil.estimators.terms import Terms, asked_settings
from eigenveil.linalg import Array
from eigenveil.methods import METHODS, MethodPlan, TaskContext, method_of, methods_at
from eigenveil.params.declarations.federated import FederatedParams
from eigenveil.params.declarations.recommend import RecommenderParams
from eigenveil.params.values import LONGEST, SHORTEST, InvalidValue, number_or_share
from eigenveil.plan.choose import DIVIDED, plan_sites
from eigenveil.privacy.floating import moved
from eigenveil.privacy.sums import bounded_count, bounded_kept, bounded_observed, bounded_sum
from eigenveil.protocols.masked.terms import require_survivors
from eigenveil.protocols.star.rounds import Terms as Patience
from eigenveil.tasks.fit.bounds import RowBounds
from eigenveil.tasks.fit.gaps import Rates
from eigenveil.tasks.fit.task import Fit, FitTask, ProtocolNoise

__all__ = [
    "DeclaredBounds",
    "Design",
    "FederatedSpec",
    "Participation",
    "budgets_of",
    "drawn_of",
    "masks_of",
    "pca_fit",
    "request_of",
    "require_enough",
    "require_few_rounds",
    "require_legal",
    "require_maskable",
    "share_of",
]


@final
@dataclass(frozen=True, slots=True)
class DeclaredBounds:
    """How far rows lie, as sites declare it: from the mean or center, and from the origin of the search for the mean.

    Only for fits without privacy, because these numbers are read from rows. Masked sums are sums of integers, and their step
    must come from numbers that all parties know.
    """

    row_bound: float
    mean_bound: float
    explicit_bound: float | None = None

    @classmethod
    def of(
        cls,
        sites: Mapping[str, Rows],
        *,
        scale: Any,
        origin: Any,
        center: Array | Literal["private"] | None,
        mean_bound: float | None,
        gaps: MissingPolicy | None = None,
    ) -> Self:
        """Bounds, powers of two, that no row of these sites exceeds, even if some of the sites leave.

        The mean of fewer sites is no further from that of all than the farthest row. Twice that distance is enough. If the
        caller has bounded the mean, it may lie elsewhere, but within that bound of the origin. With `gaps`, missing entries are
        at the center, so that they make no row longer.
        """
        dim = next(iter(sites.values())).shape[1]
        units: Array = np.broadcast_to(1.0 if scale is None else np.asarray(scale, dtype=np.float64), dim)
        start: Array = np.zeros(dim) if origin is None else np.broadcast_to(np.asarray(origin, dtype=np.float64), dim)

        def reach(point: Array) -> float:
            domain = Domain(dim=dim, radius=math.inf, center=point, scale=units, gaps=gaps)
            return max(_farthest(name, rows, domain) for name, rows in sites.items())

        far = reach(start)
        if center is None:
            return cls(_power(reach(np.zeros(dim))), _power(far))
        if not isinstance(center, str):
            return cls(_power(reach(center)), _power(far))
        # The caller bounds the mean, so it may end anywhere within that bound.
        if mean_bound is not None:
            return cls(_power(far + mean_bound), mean_bound, mean_bound)
        # Without privacy, so the exact mean may be looked at to make the bound tight.
        return cls(_power(2 * reach(_mean(sites, dim, gaps))), _power(far))


def _farthest(name: str, rows: Rows, domain: Domain) -> float:
    """The largest distance of a row from the center of `domain`, in its units. For a matrix, the root of its norm.

    Errors name the site.
    """
    units, point = domain.scale, domain.center
    assert units is not None
    assert point is not None
    try:
        # Overflow becomes infinity, which is refused below with the name of the site.
        with np.errstate(over="ignore"):
            lengths = [0.0] if isinstance(rows, Symmetric) else total_of(rows, _LongestWork(domain))
    except ValueError as error:
        raise at_place(name, error) from None
    farthest = max(lengths)
    if isinstance(rows, Symmetric):
        inner = rows.matrix / np.outer(units, units)
        farthest = math.sqrt(max(float(np.linalg.norm(inner)), abs(float(np.trace(inner)))))
    require_param(not any(map(math.isnan, lengths)), f"{verbatim(name)}: {{X}} contains NaN")
    require(farthest < LONGEST / 8, f"{name}: numbers too large to square. Divide the columns by a constant first")
    require(
        farthest == 0 or farthest > 8 * SHORTEST, f"{name}: numbers too small to square. Multiply the columns by a constant first"
    )
    return farthest


@final
@dataclass(frozen=True, slots=True, eq=False)
class _LongestWork:
    """The longest row of each block, around the center and in the units of `domain`: for fits without privacy."""

    domain: Domain

    def of(self, rows: Rows) -> list[float]:
        """Those of rows that are here."""
        with np.errstate(over="ignore"):
            # The zero is for a site without rows, where `max` would have nothing to take.
            return [0.0, *(_longest(block, self.domain) for block in rows.blocks(block_size(rows)))]

    def joined(self, left: list[float], right: list[float]) -> list[float]:
        """Those of the rows of both."""
        return left + right


def _longest(block: Block, domain: Domain) -> float:
    if not block.sparse:
        rows, _ = moved(domain, block, out=np.empty(block.values.shape))
        return float(np.linalg.norm(rows, axis=1).max(initial=0.0))
    # The triangle inequality: an exact distance from the center would make sparse rows dense.
    around = domain.shifted_center
    assert around is not None
    squares = row_sums(np.square(replace(domain, center=None).stored(block)), block.values.indptr)
    return math.sqrt(float(squares.max(initial=0.0))) + float(np.linalg.norm(around))


def _mean(sites: Mapping[str, Rows], dim: int, gaps: MissingPolicy | None) -> Array:
    """The mean over the people who have each column."""
    total, count = np.zeros(dim), np.zeros(dim)
    # Plain counts: nothing is released here.
    gaps = None if gaps is None else replace(gaps, less_half=False)
    whole = Domain(dim=dim, radius=math.inf, gaps=gaps, claimed=False)
    for rows in sites.values():
        total += bounded_sum(rows, domain=whole, neighbours=Neighbours.ADD_REMOVE).value
        if gaps is None or not gaps.divides:
            # Each of a person's m rows has weight 1/m, so that the mean is one over people (decision 4).
            people = bounded_count(rows, neighbours=Neighbours.ADD_REMOVE)
            count += people.value if gaps is None or not gaps.drops else bounded_kept(rows, gaps=gaps).value
        else:
            # Counts of columns, or of pairs of groups.
            observed = bounded_observed(rows, gaps=gaps).value
            largest = float(observed.max(initial=1.0))
            count += Rates.of(gaps, observed, people=largest, noise=0.0).columns * largest
    return total / np.maximum(count, 1.0)


def _power(length: float) -> float:
    """The power of two above a length, with room for rounding of the mean. One for a length of zero."""
    return 1.0 if length == 0 else 2.0 ** math.ceil(math.log2(1.01 * length))


Participation = tuple[Literal["with-replacement", "without-replacement"], int]

# With noise, shares grow from round to round. With more rounds, the first share would be next to nothing.
_MOST_NOISY_ROUNDS: Final = 200


def share_of(name: str, value: Any, sites: int) -> int | None:
    """How many sites a number or a share of them means, None for all. Errors name the parameter `name`."""
    if value is None:
        return None
    try:
        number = number_or_share(value)
    except InvalidValue as error:
        raise ParameterError(f"{{{name}}} must be {error}, got {{@value}}", value=value) from None
    if isinstance(number, int):
        require_param(number <= sites, f"{{{name}}} must be from 1 to the {sites} sites, got {{@value}}", value=number)
        return number
    # As binary fractions, shares such as 0.28 are a little larger than written.
    return max(1, math.ceil(number * sites * (1 - 1e-12)))


def drawn_of(params: FederatedParams, sites: int) -> Participation | None:
    """How sites are drawn, None if all take part."""
    if params.participation == "full":
        return None
    scheme, count = params.participation
    # With replacement a site may be drawn several times.
    max_count = sites if scheme == "without-replacement" else 10**6
    message = f"{{participation}} must draw from 1 to {max_count} of the {sites} sites, got {{@value}}"
    require_param(count <= max_count, message, value=count)
    return cast("Participation", (scheme, count))


def masks_of(
    params: FederatedParams | RecommenderParams, sites: int, *, few: str = "a sum over one site is that site's own sum"
) -> tuple[int, int] | None:
    """With masks, how many sites must survive and how many may collude. `few` says why one site is not enough."""
    if params.trust != "masked":
        return None
    require_param(sites >= 2, f"{{trust=masked}} needs at least 2 sites: {verbatim(few)}")
    require_param(
        params.quorum is None, "{quorum} is not for {trust=masked}. Use {survivors}, how many sites must be in each sum"
    )
    max_colluders = max(1, sites - 1)
    require_param(
        params.colluders <= max_colluders,
        f"{{colluders}} must be an integer from 1 to {max_colluders}, got {{@value}}",
        value=params.colluders,
    )
    # Each site adds the noise of one of t - c honest survivors, so fewer survivors mean more noise from each. All by default.
    survivors = share_of("survivors", params.survivors, sites) or sites
    require_survivors(sites, survivors=survivors, colluders=params.colluders)
    return survivors, params.colluders


def require_maskable(params: FederatedParams, plan: MethodPlan, sites: int) -> None:
    """Refuse with masks what needs more than sums over enough sites."""
    if params.trust != "masked":
        return
    require_param(
        params.topology == "star", "{trust=masked} needs {topology=star}: nodes of a tree would see sums over few sites"
    )
    # Masks cancel in sums only.
    additive = [name for name in methods_at("sites") if METHODS[name].is_additive]
    require_param(
        plan.method in additive,
        f"{{trust=masked}} can only add, and {{method=}} does more. Use one of {', '.join(additive)}",
        method=plan.method,
    )
    require_param(
        params.participation == "full",
        "{participation} with {trust=masked} would make sums over few sites. Use {participation=full}",
    )


def require_legal(
    params: FederatedParams,
    plan: MethodPlan,
    participation: Participation | None,
    at_sites: Budget | None,
    at_hub: Budget | None,
    *,
    private: bool,
) -> None:
    """Refuse guarantees that cannot be kept, and settings without meaning."""
    method, leaf = plan.method, method_of(plan.method)
    # After the first local step a site's product depends on its rows in ways that the hub's noise is not calibrated for.
    several = max(plan.steps, default=1) > 1
    require_param(
        not private or leaf.has_private_form, f"{{method={method}}} has no private form. Use {{method=auto}}, or {{epsilon=None}}"
    )
    require_param(
        not (several and at_hub is not None),
        "{local_steps} above 1 with {epsilon} and {trust=}: local steps read rows, and noise at the hub does not cover them. "
        "Use {trust=site}, which charges every local step, or {local_steps=1}",
        trust=params.trust,
    )
    sampled = [name for name, candidate in METHODS.items() if candidate.takes_samples]
    require_param(
        participation is None or leaf.takes_samples,
        f"{{participation}} is for {' and '.join(sampled)}: {method} needs the same sites in every round",
    )
    require_param(participation is None or params.topology == "star", "{participation} needs {topology=star}")
    require_param(
        params.topology == "star" or leaf.runs_in_trees,
        "{method=} averages at the hub. Use {topology=star}, or {method=merge} for a tree",
        method=method,
    )
    require_param(
        participation is None or not params.tolerance,
        "{tolerance} needs {participation=full}: the same sites drawn twice would look like convergence",
    )
    # With add/remove the sizes of sites are private, and a draw by size would reveal them.
    by_size = participation is not None and participation[0] == "with-replacement"
    require_param(
        not (by_size and private) or Neighbours(params.neighbours).count_is_public,
        "{participation=} draws sites by size, which {neighbours=add-remove} protects. Draw them without replacement, or use "
        "{neighbours=zero-out} or {neighbours=replace-one}, which make sizes public",
        participation=participation,
    )


def require_few_rounds(rounds: int | None, *, private: bool) -> None:
    """Refuse more rounds than a budget can be divided into."""
    require_param(
        rounds is None or not private or rounds <= _MOST_NOISY_ROUNDS,
        f"{{rounds}} must be an integer from 1 to {_MOST_NOISY_ROUNDS} with a budget, got {{@value}}",
        value=rounds,
    )


def require_enough(sizes: Mapping[str, float] | None, dim: int, rank: int, *, private: bool) -> None:
    """Refuse too few columns and, if the numbers of rows are public, too few rows."""
    require(dim >= 2, "sites have 1 column, and principal components need at least 2")
    if sizes is None:
        return
    # With a budget the number of rows may be private, and then no error may depend on it.
    if not private:
        total = sum(sizes.values())
        require(total >= 2, f"the sites have {total:g} rows together, and principal components need at least 2")
        require_param(
            total >= rank, "all sites together have fewer rows than {n_components=}. Ask for fewer components", n_components=rank
        )


# Makes the fit from the spec, from what it must know of its carrier, and from the public seed of the first basis.
Design = Callable[["FederatedSpec", ProtocolNoise, Any], FitTask[Any, Any, Any]]


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FederatedSpec:
    """How sites fit together what `fit` says and `design` makes."""

    fit: Terms
    design: Design
    at_sites: Budget | None  # None for no noise there.
    at_hub: Budget | None  # The same.
    patience: Patience
    seed: int | None
    masks: tuple[int, int] | None = None  # With masks, how many sites must survive and how many may collude.
    fanout: int | None = None  # None in a star.
    participation: Participation | None = None  # None if all take part.
    person_sites: int = 1
    declared: DeclaredBounds | None = None  # What sites said of their rows when no bound was given.


def budgets_of(params: FederatedParams) -> tuple[Budget | None, Budget | None]:
    """The budgets at the sites and at the hub, None if no noise is added there."""
    epsilon, delta = params.epsilon, params.delta
    if epsilon is None:
        return None, None
    averages = params.method in METHODS and METHODS[params.method].averages_subspaces
    if params.trust == "both":
        if not isinstance(epsilon, tuple):
            raise ParameterError(
                "{epsilon} must be a pair with {trust=both}, against the hub and against everyone else. Got {@value}",
                value=epsilon,
            )
        require_param(not averages, "{method=} adds noise at the sites only. Use {trust=site}", method=params.method)
        # One delta for both budgets is usual.
        deltas = delta if isinstance(delta, tuple) else (delta, delta)
        return budget_of(epsilon[0], deltas[0]), budget_of(epsilon[1], deltas[1])
    for name, value in (("epsilon", epsilon), ("delta", delta)):
        if isinstance(value, tuple):
            raise ParameterError(f"{{{name}}} must be a number with {{trust=}}, got {{@value}}", trust=params.trust, value=value)
    budget = budget_of(epsilon, delta)
    # No bound is known on how far one person moves a site's directions. Only its matrix can be covered, at the site.
    return (budget, None) if params.trust in ("site", "masked") or averages else (None, budget)


def request_of(params: FederatedParams, info: SiteInfo) -> FederatedSpec:
    """The spec of a federated fit, from its parameters and what is known of its sites. Refuses what cannot be kept."""
    at_sites, at_hub = budgets_of(params)
    dim, count = info.dim, len(info.names)
    private = at_sites is not None or at_hub is not None
    require_few_rounds(params.rounds, private=private)
    require_param(
        params.person_sites <= max(1, count),
        f"{{person_sites}} must be an integer from 1 to {max(1, count)}, got {{@value}}",
        value=params.person_sites,
    )
    rank = rank_of(params.n_components, dim)
    # Without a budget no person is protected, and the number of people is gathered like any other sum.
    near = Neighbours(params.neighbours) if private else Neighbours.ADD_REMOVE
    participation = drawn_of(params, count)
    plan = _plan(params, dim, rank, at_sites if at_sites is not None else at_hub, near)
    if participation is not None:
        # Rounds with other sites differ even if the answer is near.
        plan = replace(plan, tolerance=0.0)
    require_maskable(params, plan, count)
    masks = masks_of(params, count)
    require_legal(params, plan, participation, at_sites, at_hub, private=private)
    center = center_of(params.center, dim)
    sizes = info.sizes() if not private or near.count_is_public else None
    require_enough(sizes, dim, rank, private=private)
    declared = None
    if masks is not None and not private:
        declared = _declared(params, info, center)
    instead = {} if declared is None else {"row_bound": declared.row_bound, "mean_bound": declared.mean_bound}
    # With masks, a sum over fewer sites than survivors cannot be unmasked, so that number is the quorum.
    quorum = "survivors" if params.trust == "masked" else "quorum"
    fit = Terms(
        rank=rank,
        bounds=RowBounds.of(params, dim, private=private, sparse=info.sparse, names=info.columns, **instead),
        center=center,
        neighbours=near,
        plan=plan,
        private=private,
        # Without privacy the number is gathered like any other sum: the hub has no rows to count. Where incomplete rows are
        # dropped, a public number of rows is not that of those that count.
        people=sum(sizes.values()) if sizes is not None and private and params.missing != "drop" else None,
        settings=asked_settings(params),
        sizes=sizes,
        grouped=info.grouped,
        person=params.person if info.grouped else None,
    )
    return FederatedSpec(
        fit=fit,
        design=partial(pca_fit, align=params.align),
        at_sites=at_sites,
        at_hub=at_hub,
        fanout=params.fanout if params.topology == "tree" else None,
        participation=participation,
        patience=Patience(share_of(quorum, getattr(params, quorum), count), params.deadline, params.retries),
        person_sites=params.person_sites,
        seed=seed_of(params.random_state),
        masks=masks,
        declared=declared,
    )


def _plan(params: FederatedParams, dim: int, rank: int, budget: Budget | None, near: Neighbours) -> MethodPlan:
    method = covariance_for(params.missing, params.method, dim)
    plan = plan_sites(
        dim=dim,
        rank=rank,
        budget=budget,
        method=method,
        neighbours=near,
        rounds=params.rounds,
        tolerance=params.tolerance,
        oversample=params.oversample,
        local_steps=params.local_steps,
    )
    divided = params.missing in ("counts", "groups") and params.method == "auto"
    return replace(plan, reason=f"{plan.method}: {DIVIDED}") if divided else plan


def _declared(params: FederatedParams, info: SiteInfo, center: Array | Literal["private"] | None) -> DeclaredBounds | None:
    """What sites declare of their rows, for masks without privacy and without a bound: masked integers need a step."""
    require_param(
        not isinstance(params.scale, str),
        "{scale=private} without a budget needs {trust=hub}, which gives the same answer: masks add whole numbers, and their "
        "step must come from public units. Or give them as {scale}",
    )
    if isinstance(params.row_bound, float) or params.column_bounds is not None:
        return None
    # Wrong scales and origins are refused here, before any row is looked at.
    bounds = RowBounds.of(params, info.dim, private=False, sparse=info.sparse, names=info.columns)
    if info.rows is None:
        raise ParameterError(
            "{row_bound} is required with {trust=masked} when no party sees the rows of all sites. Find one privately at one of "
            "them with eigenveil.find_bounds, or with `eigenveil bounds` on the command line"
        )
    return DeclaredBounds.of(
        info.rows, scale=params.scale, origin=params.origin, center=center, mean_bound=params.mean_bound, gaps=bounds.gaps
    )


def pca_fit(spec: FederatedSpec, setting: ProtocolNoise, start: Any, *, align: Literal["procrustes", "sign", "none"]) -> Fit:
    """Principal components of rows within bounds, as one task. `start` is the public seed of the first basis, None for any."""
    fit = spec.fit
    context = TaskContext(neighbours=fit.neighbours, rank=fit.rank, private=fit.private, align=align)
    # The first basis is public, and over a network all parties draw it from the same seed.
    basis = fit.method.start_basis(fit.bounds.dim, fit.plan, start)
    return fit.fit(
        fit.method.build_task(fit.plan, basis, context),
        multiplier=setting.multiplier,
        # With a budget a restart would be charged twice, so the fit continues without the lost sites.
        begins_again=not fit.private and spec.participation is None,
        grid=setting.grid,
        rounding=setting.rounding,
    )
