"""`candidate_of`: how a method would run a fit, its noise, its costs and its guarantee.

The plans come from `plan_sites`, `plan_stream`, `plan_masks` and `split_budget`, as in a fit. So
what is rehearsed is what would run.
"""

import math
from dataclasses import dataclass, replace
from typing import Final, final

from eigenveil.core.unit import Neighbours, gram_sensitivity
from eigenveil.methods import Method, MethodPlan, method_of
from eigenveil.plan.choose import MEMORY_LIMIT, plan_sites, predict
from eigenveil.plan.facts import Facts, FitParams, Setting, params_of, parts_of, unknown_of
from eigenveil.plan.masks import plan_masks
from eigenveil.plan.streams import StreamPlan, plan_stream, stream_split
from eigenveil.protocols.masked.terms import require_survivors
from eigenveil.tasks.fit.gaps import Extent, Split, split_budget
from eigenveil.tasks.fit.search import NORMS, least_for_a_bound
from eigenveil.tasks.fit.units import ENTRIES, min_people_for_scale
from eigenveil.trackers import published_as
from eigenveil.trackers.sums import MEAN_SHARE

# With pair noise, each peer's own noise is 0.1% above what the fewest honest peers need
# (`eigenveil.privacy.Pairing`).
_PAIRED: Final = 1.001
_SEES: Final[dict[Setting, str]] = {
    "curator": "against all who see the result; the curator has the rows",
    "stream": "against all who see what the stream releases; the device that follows it sees every row",
    "hub": "against all who see the result; the hub is trusted with sums over each site's rows",
    "site": "against everyone outside a person's own site, including the hub",
    "masked": "against the hub, which sees noisy sums over sites only, even if {colluders} of the sites collude with it",
    "peers": "against any {colluders} of the peers together, and all who listen in",
    "peers-independent": "against everyone outside a person's own peer",
}


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Candidate:
    """A method as it would be run.

    - `split` divides the budget.
    - `noise_inflation` is the noise on the components over that of one curator with the same budget, and `mean_louder` the same
      for the search before them.
    - `min_people` is the number of people that the search for a bound or units needs, 0 where there is none.
    - `neighbours` is the relation of its guarantee.
    - `params`, `unknown` and everything from `noise` on are as in `Forecast`.
    """

    method: str
    params: FitParams
    unknown: tuple[str, ...]
    plan: MethodPlan | StreamPlan
    split: Split
    noise_inflation: float
    neighbours: Neighbours
    mean_louder: float = 1.0
    min_people: int = 0
    oversample: int = 0
    blocks: int = 1
    noise: float = 0.0
    memory: int = 0
    rounds: int = 0
    traffic: int = 0
    refused: str = ""
    guarantee: str = ""

    def multiplier(self, mu: float, steps: int) -> float:
        """The noise on a sum over its sensitivity, if components get all of `mu` that `steps` for the mean leave."""
        return self.noise_inflation / (mu * math.sqrt(self.split.main(steps)))


def candidate_of(facts: Facts, method: str) -> Candidate:
    """How `method` would run a fit, given these `facts`.

    >>> from eigenveil.plan.spectrum import Spectrum
    >>> from eigenveil.core.accounting import Budget
    >>> facts = Facts(dim=50, rank=3, people=10_000, budget=Budget(1.0, 1e-6), spectrum=Spectrum.guessed(50), sites=16)
    >>> candidate_of(facts, "site/covariance").noise_inflation, round(candidate_of(facts, "masked/covariance").noise_inflation, 3)
    (4.0, 1.0...)
    """
    setting, name = parts_of(method)
    candidate = _stream(facts, name) if setting == "stream" else _sums(facts, setting, name)
    noise = candidate.mean_louder / facts.budget.mu
    needed = 0.0
    if facts.seeks is not None:
        needed = min_people_for_scale(facts.dim, noise) if facts.seeks == "units" else least_for_a_bound(noise)
    candidate = replace(candidate, noise=_noise(candidate, facts), min_people=math.ceil(needed))
    against = _SEES[setting].format(colluders=facts.colluders)
    budget = f"epsilon = {facts.budget.epsilon:g}, delta = {facts.budget.delta:g} ({candidate.neighbours.value})"
    return replace(candidate, refused=_refused(candidate, facts), guarantee=f"each person, {against}: {budget}")


def _sums(facts: Facts, setting: Setting, name: str) -> Candidate:
    """The plan of a method on rows at one curator, at sites or at peers."""
    leaf = method_of(name)
    split = split_budget(
        mean=facts.center == "private",
        search=facts.search,
        count=not facts.neighbours.count_is_public,
        trace=not leaf.releases_gram,
        bound=facts.seeks == "bound",
        units=facts.seeks == "units",
    )
    plan = _plan(facts, setting, leaf, split)
    rounds, size, held = plan.exchanges, leaf.message_size(facts.dim, plan), leaf.memory(facts.dim, plan)
    around = len(split.mean) + (split.extra > 0)
    searched, counted = _searched(facts, split)
    held = max(held, 2 * counted)
    sent = 8 * (searched + rounds * size + 2) if setting != "curator" else 0
    if setting in ("peers", "peers-independent"):
        # Parts go up a spanning tree, and the sum comes down again.
        sent *= 2
    noise_inflation, refused = _louder(
        facts, setting, leaf, Extent.of(split, dim=facts.dim, shares=plan.shares, rounds=rounds, size=size, searched=counted)
    )
    method = f"{setting}/{name}"
    params = params_of(facts, method, plan, facts.neighbours)
    return Candidate(
        method=method,
        params=params,
        unknown=unknown_of(facts, params),
        plan=plan,
        split=split,
        noise_inflation=noise_inflation,
        neighbours=facts.neighbours,
        # Sites that merge their own matrices still search together, each with a curator's noise.
        mean_louder=math.sqrt(facts.sites) if leaf.averages_subspaces else noise_inflation,
        memory=8 * held,
        rounds=rounds + around if setting != "curator" else 0,
        traffic=sent,
        refused=refused,
    )


def _searched(facts: Facts, split: Split) -> tuple[int, int]:
    """How many numbers a site sends in all steps of the search, and how many in one that counts norms or entries."""
    total = facts.dim + 1
    if facts.seeks == "units":
        counted = ENTRIES.count * facts.dim
        return (len(split.mean) - 1) * counted + total, counted
    if facts.seeks == "bound":
        # Norms and means take turns, and norms come first.
        means = len(split.mean) // 2
        return (len(split.mean) - means) * NORMS.count + means * total, NORMS.count
    return len(split.mean) * total, 0


def _plan(facts: Facts, setting: Setting, leaf: Method, split: Split) -> MethodPlan:
    if setting == "curator":
        return predict(dim=facts.dim, rank=facts.rank, budget=facts.budget, method=leaf.name).chosen.plan

    def planned(rounds: int | None) -> MethodPlan:
        return plan_sites(
            dim=facts.dim,
            rank=facts.rank,
            budget=facts.budget,
            method=leaf.name,
            neighbours=facts.neighbours,
            rounds=rounds,
            guessed_people=facts.people,
        )

    # Fewer rounds than usual only where the limit asks for it: `rounds=None` keeps the estimator's own default.
    plan = planned(None)
    if facts.rounds is None or leaf.fixed_rounds is not None:
        return plan
    room, usual = facts.rounds - len(split.mean) - (split.extra > 0), plan.rounds
    if leaf.finds_one_by_one:
        # Each component takes one round for its start and the rest for products.
        room, usual = room // facts.rank - 1, usual - 1
    return planned(room) if 1 <= room < usual else plan


def _louder(facts: Facts, setting: Setting, leaf: Method, extent: Extent) -> tuple[float, str]:
    """How many times louder the noise is than one curator's, and why the setting is impossible, "" if it is not."""
    match setting:
        case "site" if leaf.averages_subspaces:
            # One site's noise: the merge is rehearsed with all sites.
            return 1.0, ""
        case "site" | "peers-independent":
            # Each site adds a full curator's noise to its own part, and variances add up.
            return math.sqrt(facts.sites), ""
        case "peers":
            honest = facts.sites - facts.colluders
            if honest < 2:
                return math.sqrt(facts.sites), f"{facts.sites} peers are too few if {facts.colluders} may collude"
            # The same with pair noise: the honest peers alone must make a curator's noise.
            return math.sqrt(facts.sites * _PAIRED / honest), ""
        case "masked":
            survivors = facts.sites if facts.survivors is None else facts.survivors
            try:
                require_survivors(facts.sites, survivors=survivors, colluders=facts.colluders)
                plan = plan_masks(extent, sites=facts.sites, budget=facts.budget, survivors=survivors, colluders=facts.colluders)
            except ValueError as error:
                return 1.0, str(error)
            # The honest survivors alone must make a curator's noise, and all sites add their share of it.
            return plan.multiplier * facts.budget.mu * math.sqrt(facts.sites / plan.lattice.honest), ""
    return 1.0, ""


def _stream(facts: Facts, name: str) -> Candidate:
    # A stream's number of rows is public, so a person's rows are blanked and not removed.
    near = facts.neighbours if facts.neighbours.count_is_public else Neighbours.ZERO_OUT
    oversample = max(10, facts.rank)
    split = stream_split(center=facts.center == "private", bound=facts.seeks == "bound", units=facts.seeks == "units")

    def planned(limit: int | None) -> StreamPlan:
        return plan_stream(
            dim=facts.dim,
            rank=facts.rank,
            oversample=oversample,
            budget=facts.budget,
            neighbours=near,
            publish=name,
            center=facts.center == "private",
            adapt=False,
            forget=False,
            block=None if facts.blocks is None else -(-facts.people // facts.blocks),
            horizon=facts.people if published_as(name).needs_horizon else None,
            person_blocks=1,
            noise_target=None,
            memory_limit=limit,
            bound=facts.seeks == "bound",
            units=facts.seeks == "units",
        )

    refused = ""
    try:
        plan = planned(None if facts.memory_limit == MEMORY_LIMIT else facts.memory_limit)
    except ValueError as error:
        # The plan without a limit, and why the limit refuses it.
        plan, refused = planned(1 << 62), str(error)
    blocks = -(-facts.people // plan.block) if plan.kind.every_block else 1
    # Part of each release goes to the sum of rows, from which the mean comes.
    noise_inflation = 1.0 / math.sqrt(1 - MEAN_SHARE) if facts.center == "private" else 1.0
    if not plan.kind.apart:
        noise_inflation *= math.sqrt(plan.kind.noise_variance(blocks))
    if plan.kind.publishes != name:
        refused = refused or f"{published_as(name).too_large}: use stream/{plan.kind.publishes}"
    params = params_of(facts, f"stream/{name}", plan, near)
    return Candidate(
        method=f"stream/{name}",
        params=params,
        unknown=unknown_of(facts, params),
        plan=plan,
        split=split,
        noise_inflation=noise_inflation,
        neighbours=near,
        oversample=oversample,
        blocks=blocks,
        memory=plan.memory,
        refused=refused,
    )


def _noise(candidate: Candidate, facts: Facts) -> float:
    """The expected spectral norm of the noise on the Gram matrix, in units of row_bound^2.

    A symmetric matrix with off-diagonal entries of size s / sqrt(2) has norm about s sqrt(2 d). A d x w block with
    entries of size s has norm about s (sqrt(d) + sqrt(w)).
    """
    noise = candidate.multiplier(facts.budget.mu, candidate.split.usual)
    scale = noise * gram_sensitivity(1.0, candidate.neighbours)
    plan, dim = candidate.plan, facts.dim
    if isinstance(plan, StreamPlan):
        return scale * math.sqrt(2 * dim * (plan.kind.noise_variance(candidate.blocks) if plan.kind.apart else 1))
    return scale * method_of(plan.method).noise_norm(dim, plan, sites=facts.sites)


def _refused(candidate: Candidate, facts: Facts) -> str:
    setting, _ = parts_of(candidate.method)
    if setting not in facts.settings:
        alone = facts.sites == 1 and setting not in ("curator", "stream")
        return "it needs several sites, and there is one" if alone else f"trust does not include {setting!r}"
    if candidate.refused:
        return candidate.refused
    if facts.people < candidate.min_people:
        sought = "a row bound" if facts.seeks == "bound" else f"units for {facts.dim} columns"
        return f"finding {sought} privately needs about {candidate.min_people} people at this budget"
    if candidate.memory > facts.memory_limit:
        limit = _bytes(facts.memory_limit)
        return f"it needs {_bytes(candidate.memory)} of memory at one place, and the limit is {limit}"
    if facts.rounds is not None and candidate.rounds > facts.rounds:
        return f"it takes up to {candidate.rounds} rounds, and the limit is {facts.rounds}"
    if facts.traffic is not None and candidate.traffic > facts.traffic:
        return f"a site would send {_bytes(candidate.traffic)}, and the limit is {_bytes(facts.traffic)}"
    return ""


def _bytes(count: int) -> str:
    for size, word in ((30, "GiB"), (20, "MiB")):
        if count >= 1 << size:
            return f"{count / 2**size:.3g} {word}"
    return f"{count / 2**10:.3g} KiB"
