"""Compares the methods by memory and noise, and chooses one. Every "auto" ends here.

It never sees a row. The number of people enters only where the caller declared it public.
"""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, final

from eigenveil.core.accounting import Budget
from eigenveil.core.unit import Neighbours, gram_sensitivity
from eigenveil.errors import ParameterError, require, require_param
from eigenveil.linalg import Array, found_share
from eigenveil.methods import METHODS, Method, MethodPlan, PlanRequest, method_of, methods_in
from eigenveil.methods.base import LocalSteps
from eigenveil.plan.spectrum import Spectrum, guessed_eigenvalues, require_rank
from eigenveil.privacy import Lattice
from eigenveil.protocols.masked import MaskedTerms, MaskGraph, mask_graph
from eigenveil.protocols.masked.dealing import checks_needed
from eigenveil.tasks.fit.gaps import Extent, Split, split_budget
from eigenveil.tasks.fit.units import ENTRIES
from eigenveil.trackers import TRACKERS, StreamRequest, TrackerKind, publishing
from eigenveil.trackers.sums import MEAN_SHARE

__all__ = [
    "STREAM_MEAN_SHARES",
    "Choice",
    "MasksPlan",
    "Plan",
    "StreamPlan",
    "first_block",
    "in_mebibytes",
    "masked_terms",
    "plan_masks",
    "plan_sites",
    "plan_stream",
    "predict",
    "stream_split",
]

MEMORY_LIMIT: Final = 1 << 30
# The reason where the caller left the method open, and values may be missing.
DIVIDED: Final = "its entries can be divided by counts of what is there, and those of other methods cannot"
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
    """What was considered, what was chosen and `why`, all from public numbers. `asked`: the caller named the
    mechanism."""

    chosen: Choice
    considered: tuple[Choice, ...]
    why: str
    asked: bool

    @property
    def reason(self) -> str:
        """The choice and its reason, on one line."""
        return f"{self.chosen.method}{' ' if self.asked else ': '}{self.why}"


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
    known, considered = _known(dim, spectrum), []
    usual = _EXACT_ROUNDS if budget is None else None
    compared = methods_in("curator")
    # One that "auto" may not take can be asked for.
    for leaf in map(method_of, compared if method in ("auto", *compared) else (*compared, method)):
        chooses = leaf.fixed_rounds is None
        request = PlanRequest(
            dim=dim,
            rank=rank,
            budget=budget,
            eigenvalues=known.values,
            rounds=(usual if rounds is None else rounds) if chooses else None,
            tolerance=0.0,
            oversample=oversample if chooses else None,
        )
        plan = leaf.plan(request, "")
        considered.append(
            Choice(
                plan=plan,
                noise=sigma * leaf.noise_norm(dim, plan, sites=1),
                memory=8 * leaf.memory(dim, plan),
                captured=_captured(known, people, rank, sigma * leaf.entry_noise(plan)),
            )
        )
    chosen, why = _choose(method, considered, memory_limit)
    return Plan(chosen=chosen, considered=tuple(considered), why=why, asked=method != "auto")


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
        reason = (
            f"its noise is {next_best.noise / chosen.noise:.1f} times lower than that of the {next_best.method} method"
        )
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
    return max(found_share(top, entry=entry, dim=spectrum.dim), spectrum.at_random(rank))


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
    equal_shares: bool = False,
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
    request = PlanRequest(
        dim=dim,
        rank=rank,
        budget=budget,
        eigenvalues=guessed_eigenvalues(dim=dim, people=guessed_people),
        people=guessed_people,
        rounds=rounds,
        tolerance=tolerance,
        oversample=oversample,
        local_steps=local_steps,
        equal_shares=equal_shares,
    )
    _require_used(leaf, request)
    return leaf.plan(request, reason)


def _require_used(leaf: Method, request: PlanRequest) -> None:
    """Refuse what has no meaning for a method."""
    others = [one for one in METHODS.values() if "sites" in one.places]
    *most, last = (one.name for one in others if one.fixed_rounds is None)
    several = f"{', '.join(most)} and {last}"
    require_param(
        request.rounds is None or leaf.fixed_rounds is None,
        f"{{rounds}} is for {several}; {{method=}} takes {'one' if leaf.fixed_rounds == 1 else 'two'}",
        method=leaf.name,
    )
    require_param(
        request.tolerance is None or leaf.fixed_rounds is None,
        f"{{tolerance}} is for {several}, not {{@chosen}}",
        chosen=leaf.name,
    )
    one_step = isinstance(request.local_steps, int) and request.local_steps == 1
    local = " or ".join(f"{{method={one}}}" for one in others if one.takes_local_steps)
    require_param(
        one_step or leaf.takes_local_steps, f"{{local_steps}} is for {local}, not {{@chosen}}", chosen=leaf.name
    )


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


# Sparse masks and spot-checked signatures may each fail with this part of delta; and the delta assumed where none is
# given.
_PART, _DELTA = 2.5e-4, 1e-6
# The most rounds that one exchange of keys serves.
_ROUNDS: Final = 24
_MARGIN: Final = 1e-10


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MasksPlan:
    """How sums are masked.

    `graph` says which sites share masks, and `lattice` which integers carry the sums. `multiplier` is the noise that
    the fewest survivors add to a sum, over its sensitivity. One exchange of keys serves `rounds` rounds. A fit has at
    most `most_rounds` rounds and `sessions` exchanges of keys. Each site verifies `checks` signatures, 0 meaning all
    of them.
    """

    graph: MaskGraph
    lattice: Lattice
    multiplier: float
    rounds: int
    most_rounds: int
    sessions: int
    checks: int


def plan_masks(
    extent: Extent,
    *,
    sites: int,
    budget: Budget | None,
    survivors: int,
    colluders: int,
    several: int = 1,
    people: float | None = None,
) -> MasksPlan:
    """The plan for a fit of this `extent` over `sites` sites. A `ValueError` where the integers have no room for it.

    `several` is the most sites that one person's rows may be at. `people` is the most people at any site, where that
    is public.
    """
    # A fit without privacy restarts when a site that was counted has left: at most once for each site that may leave.
    again = 2 if budget is not None else sites - survivors + 2
    most, each = again * extent.rounds + 8 + colluders, min(extent.rounds, _ROUNDS)
    # Each cheating site can make one exchange of keys fail, and late sites make others restart.
    sessions = math.ceil(most / each) + again + colluders + 8
    part = _PART * (_DELTA if budget is None else budget.delta)
    # A dishonest hub may start exchanges of keys with one site after another, see which share holders it draws, and
    # continue with the draw that suits it. So the failure probability is divided over all these draws.
    draws = sessions * sites
    graph = mask_graph(sites, survivors=survivors, colluders=colluders, failure=part / draws)
    checks = 0
    if not graph.complete:
        times = most + sessions
        checks = checks_needed(sites, survivors=survivors, colluders=colluders, times=times, failure=part)
    lattice, multiplier = Lattice.exact(sites=sites, people=2.0**20 if people is None else people), 1.0
    if budget is not None:
        lattice = Lattice(
            budget=budget,
            sites=sites,
            survivors=survivors,
            colluders=colluders,
            loss=graph.loss,
            failure=draws * graph.failure + (part if checks else 0.0),
        )
        assert lattice.gaussian is not None
        multiplier = (1 + _MARGIN) / lattice.gaussian.mu
        # The smallest share has the most noise, and the largest has the finest steps. If either does not fit, fail
        # now and not in the middle of a fit.
        for share in (extent.smallest, 1.0):
            lattice.deviation(1.0, mu=math.sqrt(share) / multiplier, size=2 * extent.entries, several=several)
    return MasksPlan(
        graph=graph,
        lattice=lattice,
        multiplier=multiplier,
        rounds=each,
        most_rounds=most,
        sessions=sessions,
        checks=checks,
    )


def masked_terms(
    extent: Extent,
    roster: Mapping[str, bytes],
    *,
    budget: Budget | None,
    survivors: int,
    colluders: int,
    several: int,
    people: float | None,
    title: str | None = None,
) -> MaskedTerms:
    """The terms of a study: who must survive, between whom there are masks, and on which integers parts are sent.

    `people` is the largest number at any site, if public. Signatures are bound to `title`, None for a new one.
    """
    plan = plan_masks(
        extent,
        sites=len(roster),
        budget=budget,
        survivors=survivors,
        colluders=colluders,
        several=several,
        people=people,
    )
    return MaskedTerms(
        # Unique for every fit, so that nobody can replay a signature of another fit.
        study=f"eigenveil fit {os.urandom(16).hex()}" if title is None else title,
        roster=roster,
        survivors=survivors,
        colluders=colluders,
        graph=plan.graph,
        rounds=plan.rounds,
        most_rounds=plan.most_rounds,
        lattice=plan.lattice,
        multiplier=plan.multiplier,
        several=several,
        checks=plan.checks,
        sessions=plan.sessions,
    )


# A stream finds a rough mean in its first block alone, to clip around it. The mean itself comes with every release.
STREAM_MEAN_SHARES: Final = (0.05, 0.05, 0.05)
# Entries are counted in the first block alone, so they get more than in a fit of a whole table.
STREAM_GAPS_SHARE: Final = 0.05
_BLOCK: Final = 512
# The largest error, in units of row_bound, that the mean of the first block may have.
_PLACED: Final = 0.2
# The fewest rows of a first block that a bound is found in, times mu. A search refuses less than two thirds of them.
_FOR_A_BOUND: Final = 150.0
# The same where units of d columns are found, times mu over sqrt(d).
_FOR_UNITS: Final = 135.0
# A search that did not reach the mean goes on in this many times the rows of a first block: each pass is as many times finer.
_SEARCHED_AGAIN: Final = 8


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPlan:
    """How a stream is followed: the `tracker`, the rows of a `block`, the `memory` in bytes, and why.

    The first block may be longer. `horizon_blocks` is 0 where the plan does not depend on where the stream ends. If the rows of
    the first block lie too far out to find their mean in it, up to `search_rows` are kept and searched. Zero is for no more than
    that block.
    """

    tracker: str
    block: int
    first_block: int
    horizon_blocks: int
    memory: int
    reason: str
    search_rows: int = 0

    @property
    def kind(self) -> TrackerKind:
        """The tracker, before it is made."""
        return TRACKERS[self.tracker]

    def block_of(self, row: int) -> int:
        """The block that a row falls into, both counted from 0. A synchronisation does not move the ends of blocks."""
        return 0 if row < self.first_block else 1 + (row - self.first_block) // self.block


def first_block(*, noise_target: float, mu: float, neighbours: Neighbours) -> int:
    """The fewest rows whose average product has noise of standard deviation at most `noise_target`, in units of
    row_bound^2.

    This corrects the inequality of FPCA Lemma 2.2. Its bracket is the noise on a sum, so dividing by n meets the
    target when n is at least bracket / target. The bracket here is the exact one, sensitivity / mu.

    >>> first_block(noise_target=0.01, mu=Budget(1.0, 1e-5).mu, neighbours=Neighbours.ZERO_OUT)
    374
    """
    good = 0 < noise_target < math.inf
    require_param(good, "{noise_target} must be positive and finite, got {@value}", value=noise_target)
    return math.ceil(gram_sensitivity(1.0, neighbours) / (mu * noise_target))


def stream_split(
    *, center: bool, bound: bool, units: bool = False, observed: bool = False, count: bool = False
) -> Split:
    """The shares of the search in the first block: for the mean, with `bound` the norm to clip at, with `units` those.

    Where values may be missing, entries that are `observed`, or complete rows, are counted once, in that block.
    """
    if bound or units:
        split = split_budget(mean=center, search=False, count=count, trace=False, bound=bound, units=units)
    else:
        split = Split(mean=STREAM_MEAN_SHARES if center else (), count=0.0, extra=0.0)
    if not (observed or count):
        return split
    # Without a mean to go along with, they are a release of their own.
    beside, alone = (STREAM_GAPS_SHARE, 0.0) if center else (0.0, STREAM_GAPS_SHARE)
    return replace(
        split,
        count=beside if count else 0.0,
        extra=alone,
        observed=beside if observed else 0.0,
        observed_at=4 if units else 1 if bound else 0,
        observed_later=alone,
    )


def plan_stream(
    *,
    dim: int,
    rank: int,
    oversample: int,
    budget: Budget | None,
    neighbours: Neighbours,
    publish: str,
    center: bool,
    adapt: bool,
    forget: bool,
    block: int | None,
    horizon: int | None,
    person_blocks: int,
    noise_target: float | None,
    memory_limit: int | None,
    sparse: bool = False,
    bound: bool = False,
    units: bool = False,
) -> StreamPlan:
    """How to follow a stream of `dim` columns, from public numbers alone.

    A given memory limit is kept or refused. Without one, 1 GiB decides between trackers and refuses only the tree,
    which has no smaller form. Blocks of sparse rows are not counted, because their size is not known beforehand. With
    `bound`, the first block must be long enough to find a row bound in, and with `units`, to find units in.

    >>> few = dict(rank=2, oversample=10, neighbours=Neighbours.ZERO_OUT, center=True, adapt=False, forget=False)
    >>> more = dict(block=None, horizon=None, person_blocks=1, noise_target=None, memory_limit=None)
    >>> plan_stream(dim=20, budget=Budget(1.0, 1e-6), publish="sync", **few, **more).tracker
    'products'
    >>> plan_stream(dim=50_000, budget=Budget(1.0, 1e-6), publish="sync", **few, **more).tracker
    'slices'
    """
    limit = MEMORY_LIMIT if memory_limit is None else memory_limit
    width = min(rank + oversample, dim)
    request = StreamRequest(
        dim=dim,
        width=width,
        private=budget is not None,
        publish=publish,
        fades=adapt or forget,
        block=block or _BLOCK,
        limit=limit,
    )
    kind, reason = next((kind, why) for kind in TRACKERS.values() if (why := kind.suits(request)) is not None)
    size = block if block is not None else _default_block(dim, width, budget, kind, center=center)
    if block is None and memory_limit is not None and not sparse:
        # A given limit shrinks the block: what the tracker keeps cannot shrink, and a block and its copy take 2 d
        # numbers a row.
        size = max(1, min(size, (limit // 8 - kind.numbers(dim, width, 0)) // (2 * dim)))
    first = size
    require_param(
        noise_target is None or kind.apart,
        "{noise_target} is for a stream that is released block by block. Use "
        f"{publishing(lambda kind: kind.apart)}, or leave it out: {reason}",
    )
    if budget is not None and noise_target is not None:
        # The search takes its shares first. A person in several blocks divides the rest over them.
        searched = stream_split(center=center, bound=bound, units=units)
        left = budget.mu * math.sqrt((1 - sum(searched.mean)) * (1 - MEAN_SHARE) if center else 1 - sum(searched.mean))
        each = left / math.sqrt(person_blocks)
        first = max(size, first_block(noise_target=noise_target, mu=each, neighbours=neighbours))
    if budget is not None and bound:
        first = max(first, math.ceil(_FOR_A_BOUND / budget.mu))
    if budget is not None and units:
        first = max(first, math.ceil(_FOR_UNITS * math.sqrt(dim) / budget.mu))
    blocks = 0 if horizon is None else -(-horizon // size)
    # The counts of a search for units are gone before the tracker begins.
    held = max(kind.numbers(dim, width, blocks), 2 * ENTRIES.count * dim if units else 0)
    memory = 8 * (held + (0 if sparse else 2 * first * dim))
    require_param(
        memory <= limit or (memory_limit is None and kind.has_smaller),
        f"this stream needs about {memory / 2**20:.3g} MiB ({kind.name}, blocks of {first} rows), and {{memory_limit}} "
        f"allows {limit / 2**20:.3g} MiB. {kind.smaller}",
    )
    # Somebody in several blocks has a row in each, and a search must not see two of them. Others have one row in all.
    again = 0
    if budget is not None and bound and center and person_blocks == 1:
        room = _SEARCHED_AGAIN * first if sparse else (limit // 8 - held) // (2 * dim)
        again = max(0, min(_SEARCHED_AGAIN * first, room))
    return StreamPlan(
        tracker=kind.name,
        block=size,
        first_block=first,
        horizon_blocks=blocks,
        memory=memory,
        reason=reason,
        search_rows=again if again > first else 0,
    )


def _default_block(dim: int, width: int, budget: Budget | None, kind: TrackerKind, *, center: bool) -> int:
    size = max(_BLOCK, 2 * width)
    if budget is not None and center:
        # Long enough for the first block's mean to be a useful place to clip around.
        needed = math.sqrt(dim) / (budget.mu * math.sqrt(STREAM_MEAN_SHARES[0]) * _PLACED)
        size = max(size, min(math.ceil(needed), max(2 * dim, (1 << 20) // dim)))
    return kind.block_size(size, dim)
