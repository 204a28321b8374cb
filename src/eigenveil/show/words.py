"""The sentences of the consent screen: what leaves a site or peer, to whom, and what it costs each person.

`disclosure.py` puts them in order. They are about to be agreed to, so epsilons are rounded against the reader.
"""

import math
from collections.abc import Iterator, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import TYPE_CHECKING, Final, assert_never

from eigenveil.errors import require
from eigenveil.show.agreement import Fact

if TYPE_CHECKING:
    from eigenveil.core.accounting import Budget
    from eigenveil.estimators.federated.parties import Parties
    from eigenveil.estimators.gossip.parties import PeerParties
    from eigenveil.ledger.durable import DatasetState, StudyBudget
    from eigenveil.methods import MethodPlan
    from eigenveil.network.policy import Policy
    from eigenveil.network.study.file import Place, StudyFile
    from eigenveil.tasks.fit.bounds import RowBounds

__all__ = [
    "WHEN_THERE",
    "cost_fact",
    "leaving_peer",
    "leaving_site",
    "left_words",
    "listed",
    "party_words",
    "rounded",
    "title_words",
]

# For those who waited in vain, before anything was asked of anyone.
WHEN_THERE: Final = "run the same command again when they are there"


def title_words(study: "StudyFile") -> str:
    """The study's name, and the digest that all parties must see alike."""
    return f'Study "{study.name}" with the digest {study.digest}.'


def leaving_site(study: "StudyFile", parties: "Parties", *, above: "Place", address: str | None) -> Iterator[Fact]:
    """What leaves a site, in how many rounds and to whom, from the terms that the site itself has worked out."""
    from eigenveil.tasks.fit.task import Fit

    plan, task = parties.request.plan, parties.study
    assert isinstance(task, Fit)
    numbers = task.extent().entries
    # The site's own count, which it enforces: it answers no more different questions than this.
    each = f"The site sends at most {_numbers(numbers)} in each, plus headers"
    yield Fact("Rounds", f"at most {parties.most_questions}. {each}{' and the keys of its masks' * study.masked}.")
    sums = _sums(
        study,
        plan,
        count=task.people is None,
        center=task.center,
        trace=task.needs_trace,
        bounds=task.bounds,
    )
    yield Fact("What leaves", f"{listed(sums)}. {_covered(study)}")
    yield Fact("Connection", f"this site connects to {_the(above)} at {address or above.address}.")


def leaving_peer(
    study: "StudyFile", parties: "PeerParties", *, near: Sequence["Place"], listens: str
) -> Iterator[Fact]:
    """What leaves a peer, in how many rounds and to whom, from the terms that the peer itself has worked out."""
    from eigenveil.tasks.fit.search import NORMS
    from eigenveil.tasks.fit.split import split_budget
    from eigenveil.tasks.fit.units import ENTRIES

    request, plan, dim = parties.request, parties.request.fit.plan, parties.request.fit.bounds.dim
    count, trace = request.fit.people is None, not request.fit.method.releases_gram
    bounds = request.fit.bounds
    split = split_budget(
        mean=isinstance(request.fit.center, str),
        search=bounds.search,
        count=count,
        trace=trace,
        bound=bounds.find,
        units=bounds.units,
        observed=bounds.gaps is not None and bounds.gaps.divides,
    )
    # The search for bound and mean, the components, and one more where counts or squares are released apart.
    rounds = len(split.mean) + plan.rounds + (split.extra > 0)
    # Without privacy nothing is charged, and a fit begins again each time a peer is lost.
    most = rounds + request.restarts if request.fit.private else rounds * len(parties.names)
    # A sum of rows with its count has d + 1 numbers.
    product = request.fit.method.message_size(dim, plan)
    times = parties.terms.among(()).mixing.steps
    again = (
        f" Of these, {request.restarts} may repeat a round with new noise when peers vanish. The cost includes them."
        if request.restarts
        else ""
    )
    counted = dim * ENTRIES.count if bounds.units else NORMS.count if bounds.find else 0
    seen = 0 if bounds.gaps is None else bounds.gaps.entries
    numbers = max(product, dim + 1 + seen, counted)
    each = f"In each, the peer sends at most {_numbers(numbers)} to each neighbour, {times} times"
    yield Fact("Rounds", f"at most {most}.{again} {each}, plus headers.")
    sums = _sums(study, plan, count=count, center=request.fit.center, trace=trace, bounds=bounds)
    yield Fact("What leaves", f"{listed(sums)}. {_covered(study)}")
    names = listed([f"{place.name} at {place.address}" for place in near])
    yield Fact(
        "Neighbours", f"{names}. They pass on what they get, added to their own: assume that every peer sees it."
    )
    yield Fact("Connection", f"this peer listens at {listens} for the neighbours that connect to it.")


def _covered(study: "StudyFile") -> str:
    """How sums are covered when they leave; `who_learns` says what that means for those who get them."""
    match study.trust:
        case "masked":
            return "They leave as whole numbers, under masks, with this site's share of the noise."
        case "site" | "both":
            return "They leave with this site's own noise."
        case "pairwise":
            return "They leave with this peer's own noise, and with noise that it shares in pairs."
        case "independent":
            return "They leave with this peer's own noise."
        case "none" | "hub":
            return "They leave under masks, without noise." if study.masked else "They leave without noise."
        case _:
            assert_never(study.trust)


def _numbers(count: int) -> str:
    from eigenveil.show.marks import in_bytes

    # Every number on the wire has 8 bytes, a float or a masked integer.
    return f"{_counted(count, 'number')} ({in_bytes(8 * count)})"


def _sums(
    study: "StudyFile",
    plan: "MethodPlan",
    *,
    count: bool,
    center: object,
    trace: bool,
    bounds: "RowBounds",
) -> list[str]:
    from eigenveil.methods import method_of

    people, role = study.unit.each == "person", "peer" if study.carrier == "gossip" else "site"
    whole = "complete " * (bounds.gaps is not None and bounds.gaps.drops)
    sums = [
        f"the number of {'people with complete rows' if people and whole else 'people' if people else f'{whole}rows'}"
    ]
    sums = sums if count else []
    sums += ["how many rows are longer than each of many norms (for the bound)"] if bounds.find else []
    sums += ["how many entries of each column exceed each of many numbers (for its units)"] if bounds.units else []
    sums += [f"the sum of {'their' if people else 'the'} rows (for the mean)"] if isinstance(center, str) else []
    if bounds.gaps is not None and bounds.gaps.divides:
        each = "each column" if bounds.gaps.rule == "counts" else "each pair of groups of columns"
        sums.append(f"how many {'people' if people else 'rows'} have {each} (for missing values)")
    sums.append(method_of(plan.method).disclosure(plan.width, role=role))
    return sums + (["the sum of squares of all entries"] if trace else [])


def party_words(study: "StudyFile", me: "Place", policy: "Policy | None") -> Iterator[tuple[str, str, str | None]]:
    """Each party and whether the policy has its pin, the pin in groups of four, and a style."""
    from eigenveil.network.identity.certificates import pin_words

    for place in study.places:
        # All parties, pinned or not: without a policy the person is the only one who can compare.
        who, pin = _named(place), pin_words(place.pin)
        if place is me:
            yield f"{who}, this {place.certificate.role}", pin, "dim"
        elif policy is not None and _pinned(place, policy):
            yield f"{who}, pinned by your policy", pin, None
        else:
            yield f"{who}, NOT verified: compare this fingerprint by telephone", pin, "yellow"


def _named(place: "Place") -> str:
    """The role and the name in quotes, without the role where the name begins with it: hub, "site 0", site "north"."""
    role, name = place.certificate.role, place.name
    if name == role:
        return role
    return f'"{name}"' if name.startswith(f"{role} ") else f'{role} "{name}"'


def _the(place: "Place") -> str:
    named = _named(place)
    return named if named.startswith('"') else f"the {named}"


def _pinned(place: "Place", policy: "Policy") -> bool:
    if place.certificate.role == "hub":
        return place.pin in policy.pins.hub
    return policy.pins.peers.get(place.name) == place.pin


def cost_fact(account: "StudyBudget", state: "DatasetState | None", *, life: "Budget | None", joined: bool) -> Fact:
    """What the study costs each row or person, beside what the dataset has cost so far and may cost in total.

    `joined`: the study is counted in `state` already.
    """
    name, label = (
        f'dataset "{account.dataset}"',
        f"Cost to each {'person' if account.unit is None else account.unit.each}",
    )
    # In capitals, so that the screen shows it in red: no number could be compared with a budget.
    if account.epsilon is None or account.delta is None:
        loses = f"In the ledger, {name} loses its guarantee for good, whatever is done with it later."
        return Fact(label, f"NOTHING IS GUARANTEED, so no budget can pay for it. {loses}")
    most = _with_this_study(account, state, life=life, joined=joined)
    cost = f"at most epsilon {account.epsilon:g} at delta {account.delta:g}."
    # A study and a policy may count at two deltas, and epsilons at two deltas cannot be compared.
    delta = account.delta if life is None else life.delta
    allowed = "" if life is None else f" of the {life.epsilon:g} your policy allows, both"
    total = f"In total with this study: at most epsilon {most}{allowed} at delta {delta:g}."
    return Fact(label, f"{cost} {_so_far(state, delta, name)} {total}")


def _so_far(state: "DatasetState | None", delta: float, name: str) -> str:
    if state is None:
        return f"So far {name} has cost nothing."
    parts = (("spent", state.spent), ("reserved by open studies", state.reserved), ("counted in total", state.counted))
    each = ", ".join(f"{rounded(state.epsilon(delta, mu=mu))} {words}" for words, mu in parts)
    return f"So far {name}, as epsilon at delta {delta:g}: {each}."


def _with_this_study(
    account: "StudyBudget", state: "DatasetState | None", *, life: "Budget | None", joined: bool
) -> str:
    assert account.delta is not None
    delta = account.delta if life is None else life.delta
    counted, beyond = (0.0, 0.0) if state is None else (state.counted, state.beyond)
    if not joined:
        # Squares of mu add up, and so do the parts of delta that masks take.
        counted, beyond = math.hypot(counted, account.mu), beyond + account.beyond
    return rounded(_epsilon(counted, delta - beyond))


def left_words(state: "DatasetState", life: "Budget | None") -> str:
    """What is left of a dataset's total budget."""
    if life is None:
        return "no total budget is set, so nothing limits further studies"
    room = life.delta - state.beyond
    if state.void or room <= 0:
        return "nothing is left of the total budget"
    from eigenveil.core.accounting import Budget

    # In Gaussian DP the squares of mu add up, so what is left is a difference of squares.
    square = Budget(life.epsilon, room).mu ** 2 - state.counted**2
    if square <= 0:
        return "nothing is left of the total budget"
    left = rounded(_epsilon(math.sqrt(square), room), up=False)
    return f"left of the total budget: another study of epsilon {left} at delta = {life.delta:g}, of {life.epsilon:g} in all"


def _epsilon(mu: float, delta: float) -> float:
    from eigenveil.core.accounting import epsilon_of

    return epsilon_of(mu, delta) if delta > 0 and math.isfinite(mu) else math.inf


def rounded(number: float, *, up: bool = True) -> str:
    """Four significant digits. Round an epsilon that was spent up, and one that is left down.

    >>> rounded(1.00001), rounded(0.123456, up=False), rounded(0.0)
    ('1.001', '0.1234', '0')
    """
    require(number >= 0, f"an epsilon must not be negative, got {number}")
    if number == 0 or math.isinf(number):
        return f"{number:g}"
    # From the exact value of the float. Formatting rounds to the nearest, which may favour the study.
    unit = Decimal(1).scaleb(Decimal(number).adjusted() - 3)
    return format(Decimal(number).quantize(unit, ROUND_CEILING if up else ROUND_FLOOR).normalize(), "f")


def listed(words: Sequence[str]) -> str:
    """The words with commas between them, and "and" before the last.

    >>> listed(["north"]), listed(["north", "south", "west"])
    ('north', 'north, south and west')
    """
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last


def _counted(number: int, word: str) -> str:
    return f"{number:,} {word}{'s' * (number != 1)}"
