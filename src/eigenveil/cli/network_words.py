"""What a site is about to reveal, to whom and at what cost, in plain words: what its person reads before they consent."""

import math
from collections.abc import Iterator
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import TYPE_CHECKING

from eigenveil.errors import require

if TYPE_CHECKING:
    from eigenveil.estimators.parties import Parties
    from eigenveil.network.book import Account, DatasetState
    from eigenveil.network.policy import Policy
    from eigenveil.network.study_file import Place, StudyFile
    from eigenveil.privacy import Budget

__all__ = ["cost_words", "left_words", "party_words", "revealed_words", "rounded"]


def revealed_words(study: "StudyFile", parties: "Parties") -> Iterator[str]:
    """What leaves a site around a hub, from the terms that the site itself has worked out: in how many rounds, what, and how
    covered."""
    from eigenveil.estimators.study import Study

    request, plan = parties.request, parties.request.plan
    assert isinstance(parties.study, Study)
    sums = ["the number of people"] if request.people is None else []
    sums += ["the sum of their rows, for the mean"] if isinstance(request.center, str) else []
    match plan.method:
        case "covariance":
            sums.append("the sums of products of each two columns")
        case "merge" | "uda" | "wda":
            sums.append(f"the {plan.width} leading directions of this site's own rows")
        case "fedpower":
            sums.append(f"products of the rows with {plan.width} directions, after steps on these rows alone")
        case _:
            sums.append(f"products of the rows with {plan.width} directions")
    sums += ["the sum of squares of all entries"] if parties.study.needs_trace else []
    extent = parties.study.extent()
    yield (
        f"What leaves this site, in at most {_counted(parties.most_questions, 'round')}: {'; '.join(sums)}. At most "
        f"{_counted(extent.entries, 'number')} at once, no row and no score."
    )
    yield _covered(study)


def _covered(study: "StudyFile") -> str:
    match study.trust:
        case "masked":
            return (
                "They leave as whole numbers with this site's share of the noise, under masks: nobody can read them, the hub "
                f"only their sum over at least {_counted(study.fewest, 'site')}."
            )
        case "site":
            return "They leave with noise that this site adds itself, all that the promise needs."
        case "both":
            return "They leave with noise that this site adds itself; the hub adds more before it passes anything on."
        case "curator":
            return "THEY LEAVE AS THEY ARE, without noise: the hub reads them and must be trusted."
        case _ if study.masked:
            return f"THEY LEAVE WITHOUT NOISE, under masks: the hub reads their exact sum over at least {study.fewest} sites."
        case _:
            return "THEY LEAVE AS THEY ARE, without noise, for the hub to read, and nothing is promised to anybody."


def party_words(study: "StudyFile", me: "Place", policy: "Policy | None") -> Iterator[tuple[str, str, str | None]]:
    """Everybody who takes part and whether the policy has their pin, the pin in groups of four, and a style."""
    from eigenveil.network.identity import pin_words

    for place in study.places:
        who, pin = f"{place.certificate.role} {place.name}", pin_words(place.pin)
        if place is me:
            yield f"{who}, this site", pin, "dim"
        elif policy is not None and _pinned(place, policy):
            yield f"{who}, pinned by your policy", pin, None
        else:
            yield f"{who}, NOT pinned: compare by telephone", pin, "yellow"


def _pinned(place: "Place", policy: "Policy") -> bool:
    if place.certificate.role == "hub":
        return place.pin in policy.pins.hub
    return policy.pins.peers.get(place.name) == place.pin


def cost_words(
    account: "Account", state: "DatasetState | None", *, life: "Budget | None", joined: bool
) -> Iterator[tuple[str, str | None]]:
    """What the study costs and what the dataset has cost so far, with styles. `joined`: the study is counted in `state`."""
    if account.epsilon is None or account.delta is None:
        yield "Cost: NO PROMISE IS MADE, and no budget pays for that.", "bold red"
        void = f"In the book, {account.dataset!r} will have no promise for life from then on, whatever else is done with it."
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


def _counted(number: int, word: str) -> str:
    return f"{number:,} {word}{'s' * (number != 1)}"
