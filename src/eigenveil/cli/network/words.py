"""What a site or peer is about to reveal, to whom and at what cost, in plain words: what its person reads before they consent."""

import math
from collections.abc import Iterator, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import TYPE_CHECKING, Final

from eigenveil.errors import require

if TYPE_CHECKING:
    from eigenveil.estimators.federated.parties import Parties
    from eigenveil.estimators.gossip.parties import PeerParties
    from eigenveil.network.ledger.durable import DatasetState, StudyBudget
    from eigenveil.network.policy import Policy
    from eigenveil.network.study.file import Place, StudyFile
    from eigenveil.privacy import Budget

__all__ = [
    "WHEN_THERE",
    "cost_words",
    "left_words",
    "listed",
    "party_words",
    "peer_revealed_words",
    "revealed_words",
    "rounded",
    "title_words",
]

# What is said where somebody did not come in time, and nothing was asked of anybody.
WHEN_THERE: Final = "run the same command again when they are there"


def title_words(study: "StudyFile") -> str:
    """What it is called, and the digest that everybody must see the same."""
    return f"Study {study.name!r} with the digest {study.digest}."


def revealed_words(study: "StudyFile", parties: "Parties") -> Iterator[str]:
    """What leaves a site around a hub, from the terms that the site itself has worked out: in how many rounds, what, and how
    covered."""
    from eigenveil.tasks.fit.task import Fit

    plan, task = parties.request.plan, parties.study
    assert isinstance(task, Fit)
    sums = _sums("site", plan.method, plan.width, count=task.people is None, center=task.center, trace=task.needs_trace)
    yield _leaving("site", sums, rounds=parties.most_questions, numbers=task.extent().entries)
    yield _covered(study)


def peer_revealed_words(study: "StudyFile", parties: "PeerParties") -> Iterator[str]:
    """What leaves a peer, from the terms that the peer itself has worked out: in how many rounds, what, and how covered."""
    from eigenveil.plan import SitesPlan
    from eigenveil.privacy import packed_size
    from eigenveil.tasks.fit.split import split_budget

    request, plan, dim = parties.request, parties.request.plan, parties.request.bounds.dim
    # Studies over the network find all components at once.
    assert isinstance(plan, SitesPlan)
    count, summed = request.people is None, plan.method == "covariance"
    split = split_budget(
        mean=isinstance(request.center, str), search=request.bounds.search, count=count, trace=not summed
    )
    rounds = len(split.mean) + plan.rounds + (split.extra > 0)
    # Where nothing is paid for all begins anew whenever somebody is gone.
    most = rounds + request.restarts if request.private else rounds * len(parties.names)
    product = packed_size((dim, dim), symmetric=True) if summed else dim * plan.width
    sums = _sums("peer", plan.method, plan.width, count=count, center=request.center, trace=not summed)
    yield _leaving("peer", sums, rounds=most, numbers=max(product, dim + 1))
    yield _covered_between_peers(study)
    if request.restarts:
        again = _counted(request.restarts, "round")
        yield f"Up to {again} may leave once more, with new noise, when peers vanish; the cost below includes that."


def _leaving(role: str, sums: Sequence[str], *, rounds: int, numbers: int) -> str:
    return (
        f"What leaves this {role}, in at most {_counted(rounds, 'round')}: {'; '.join(sums)}. At most "
        f"{_counted(numbers, 'number')} at once, no row and no score."
    )


def _sums(role: str, method: str, width: int, *, count: bool, center: object, trace: bool) -> list[str]:
    sums = ["the number of people"] if count else []
    sums += ["the sum of their rows, for the mean"] if isinstance(center, str) else []
    match method:
        case "covariance":
            sums.append("the sums of products of each two columns")
        case "merge" | "uda" | "wda":
            sums.append(f"the {width} leading directions of this {role}'s own rows")
        case "fedpower":
            sums.append(f"products of the rows with {width} directions, after steps on these rows alone")
        case _:
            sums.append(f"products of the rows with {width} directions")
    return sums + (["the sum of squares of all entries"] if trace else [])


def _covered(study: "StudyFile") -> str:
    match study.trust:
        case "masked":
            return (
                "They leave as whole numbers with this site's share of the noise, under masks: nobody can read them, the hub "
                f"only their sum over at least {_counted(study.fewest, 'site')}."
            )
        case "site":
            return "They leave with noise that this site adds itself, all that the guarantee needs."
        case "both":
            return "They leave with noise that this site adds itself; the hub adds more before it passes anything on."
        case "hub":
            return "THEY LEAVE AS THEY ARE, without noise: the hub reads them and must be trusted."
        case _ if study.masked:
            return f"THEY LEAVE WITHOUT NOISE, under masks: the hub reads their exact sum over at least {study.fewest} sites."
        case _:
            return "THEY LEAVE AS THEY ARE, without noise, for the hub to read, and nothing is guaranteed to anybody."


def _covered_between_peers(study: "StudyFile") -> str:
    few = study.params.colluders
    match study.trust:
        case "pairwise":
            told = "one peer that tells them" if few == 1 else f"{few} peers that tell them"
            return (
                "They leave with noise of this peer's own, and with more that it shares in pairs with others, which cancels in "
                f"sums over all peers alone: the guarantee holds against all who see them together with {told} everything."
            )
        case "independent":
            return "They leave with noise that this peer adds itself, all that the guarantee needs, whoever sees them."
        case _:
            return (
                "THEY LEAVE AS THEY ARE, without noise, for neighbours to read, and nothing is guaranteed to anybody."
            )


def party_words(study: "StudyFile", me: "Place", policy: "Policy | None") -> Iterator[tuple[str, str, str | None]]:
    """Everybody who takes part and whether the policy has their pin, the pin in groups of four, and a style."""
    from eigenveil.network.identity.certificates import pin_words

    for place in study.places:
        who, pin = f"{place.certificate.role} {place.name}", pin_words(place.pin)
        if place is me:
            yield f"{who}, this {place.certificate.role}", pin, "dim"
        elif policy is not None and _pinned(place, policy):
            yield f"{who}, pinned by your policy", pin, None
        else:
            yield f"{who}, NOT pinned: compare by telephone", pin, "yellow"


def _pinned(place: "Place", policy: "Policy") -> bool:
    if place.certificate.role == "hub":
        return place.pin in policy.pins.hub
    return policy.pins.peers.get(place.name) == place.pin


def cost_words(
    account: "StudyBudget", state: "DatasetState | None", *, life: "Budget | None", joined: bool
) -> Iterator[tuple[str, str | None]]:
    """What the study costs and what the dataset has cost so far, with styles. `joined`: the study is counted in `state`."""
    if account.epsilon is None or account.delta is None:
        yield "Cost: NOTHING IS GUARANTEED, and no budget pays for that.", "bold red"
        void = f"In the ledger, {account.dataset!r} will have no guarantee for life from then on, whatever else is done with it."
        yield void, "bold red"
        return
    yield (
        f"Cost, for each person here: at most epsilon = {account.epsilon:g} at delta = {account.delta:g} "
        f"(mu = {account.mu:.4g}).",
        "bold",
    )
    delta = account.delta if life is None else life.delta
    together = (0.0 if state is None else state.counted, 0.0 if state is None else state.beyond)
    if state is None:
        yield f"Dataset {account.dataset!r} has cost nothing so far.", None
    else:
        parts = [
            ("spent", state.spent),
            ("reserved by open studies", state.reserved),
            ("counted for life", state.counted),
        ]
        each = ", ".join(f"{rounded(state.epsilon(delta, mu=mu))} {words}" for words, mu in parts)
        yield f"Dataset {account.dataset!r} so far, as epsilon at delta = {delta:g}: {each}.", None
    if not joined:
        together = (math.hypot(together[0], account.mu), together[1] + account.beyond)
    most = rounded(_epsilon(together[0], delta - together[1]))
    if life is None:
        words = "nothing limits what all studies together may cost: no policy does, or it sets no bound for life"
        yield f"With this study it is at most {most}; {words}.", "yellow"
    else:
        yield f"With this study it is at most {most}, of {life.epsilon:g} that the policy allows for life.", None


def left_words(state: "DatasetState", life: "Budget | None") -> str:
    """What is left of a dataset's budget for life."""
    if life is None:
        return "there is no bound for life to say what is left"
    room = life.delta - state.beyond
    if state.void or room <= 0:
        return "nothing is left for life"
    from eigenveil.privacy import Budget

    # Charges add up in squares, and so does what is left of them.
    square = Budget(life.epsilon, room).mu ** 2 - state.counted**2
    if square <= 0:
        return "nothing is left for life"
    left = rounded(_epsilon(math.sqrt(square), room), up=False)
    return f"left for life: another study of epsilon {left} at delta = {life.delta:g}, of {life.epsilon:g} for all"


def _epsilon(mu: float, delta: float) -> float:
    from eigenveil.privacy import epsilon_of

    return epsilon_of(mu, delta) if delta > 0 and math.isfinite(mu) else math.inf


def rounded(number: float, *, up: bool = True) -> str:
    """Four significant digits. An epsilon that was spent is rounded up, and one that is left is rounded down.

    >>> rounded(1.00001), rounded(0.123456, up=False), rounded(0.0)
    ('1.001', '0.1234', '0')
    """
    require(number >= 0, f"an epsilon must not be negative, got {number}")
    if number == 0 or math.isinf(number):
        return f"{number:g}"
    unit = Decimal(1).scaleb(Decimal(number).adjusted() - 3)
    return format(Decimal(number).quantize(unit, ROUND_CEILING if up else ROUND_FLOOR).normalize(), "f")


def listed(words: Sequence[str]) -> str:
    """With commas between, and a word before the last.

    >>> listed(["north"]), listed(["north", "south", "west"])
    ('north', 'north, south and west')
    """
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last


def _counted(number: int, word: str) -> str:
    return f"{number:,} {word}{'s' * (number != 1)}"
