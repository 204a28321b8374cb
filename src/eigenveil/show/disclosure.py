"""The consent screen: what a study would learn from this site or peer, and what that costs each person.

`eigenveil site` and `peer` show it before anything is connected or spent. It is about to be agreed to, so epsilons are rounded
against the reader. tests/commands/network/consent_screens.txt has the screen of each situation, word for word.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Final, assert_never

from eigenveil.errors import require
from eigenveil.show.agreement import Fact, facts_of, listed_columns, who_learns
from eigenveil.show.progress import StatusWriter

if TYPE_CHECKING:
    from eigenveil.core.accounting import Budget
    from eigenveil.estimators.federated.parties import Parties
    from eigenveil.estimators.gossip.parties import PeerParties
    from eigenveil.ledger.durable import DatasetState, DurableLedger, StudyBudget
    from eigenveil.methods import MethodPlan
    from eigenveil.network.agents.peer import PeerAgent
    from eigenveil.network.agents.site_data import SiteData
    from eigenveil.network.agents.slot_site import SlotSiteAgent
    from eigenveil.network.agents.star import SiteAgent
    from eigenveil.network.policy import Policy
    from eigenveil.network.study import Place, StudyFile
    from eigenveil.tasks.fit.bounds import RowBounds

# Facts that the screen tells in its own, more exact words.
_TOLD_ABOVE: Final = frozenset({"Study", "Warning", "Columns", "Who learns what", "People", "Cost", "Restarts"})
_REHEARSAL: Final = "A REHEARSAL: anyone who has the study file can subtract all noise. NO PERSON IN THIS TABLE IS PROTECTED."
# Sums without noise are shown in red.
_LOUD: Final = "bold red"


def disclose(
    voice: StatusWriter,
    agent: "SiteAgent | PeerAgent",
    holding: "SiteData",
    accounts: "DurableLedger",
    *,
    leaving: Iterable[Fact],
    data: Path,
    ledger: Path,
    joined: str | None,
) -> None:
    """Show the screen for the table in `data`, as far as the question.

    `leaving` says what leaves and to whom. `joined` says how the study continues where it was joined before.
    """
    study, account = agent.study, agent.account
    _open_screen(voice, study, "data")
    # Names of columns are in the public study file; the other columns of the table are counted and not named.
    among = "" if holding.columns is None else f" ({len(study.columns)} of the {holding.columns} in {data.name})"
    voice.item("Columns used", f"{listed_columns(study)}{among}")
    if voice.terminal:
        # How many rows and people there are is private: for the person at this terminal, never for a log.
        person = study.params.person
        # People were counted only where a column names them.
        each = "each taken for a different person"
        whose = each if person is None else f'from {holding.people:,} people (column "{person}")'
        voice.item("Rows", f"{holding.rows.shape[0]:,}, {whose}")
    _show(voice, (fact for fact in facts_of(study) if fact.label == "People"))
    _show(voice, [cost_fact(account, _state(accounts, account), life=agent.life, joined=joined is not None)])
    if account.private and agent.life is None:
        none = "none is set, so nothing limits what all studies together may cost."
        voice.item("Total budget", none, style="yellow")
    _show(voice, leaving)
    _show(voice, (fact for fact in facts_of(study) if fact.label not in _TOLD_ABOVE))
    _show_files(voice, study, account, ledger)
    voice.item("Parties", f"{len(study.places)}, each with its pin (the fingerprint of a party's key):")
    _show_parties(voice, agent)
    voice.gap()
    if agent.policy is None:
        voice.say("You have no policy: nothing is refused for you, so read all of this.", style="yellow")
    if joined is not None:
        voice.say(joined, style="green")


def disclose_stream(
    voice: StatusWriter, agent: "SlotSiteAgent", ledger: "DurableLedger", *, source: Path, ledger_path: Path, joined: bool
) -> None:
    """What the study would learn from this stream, and at what cost, before anything is connected or spent."""
    study, account = agent.study, agent.account
    _open_screen(voice, study, "stream")
    voice.item("Stream", f"{'standard input' if str(source) == '-' else source}, columns {listed_columns(study)}")
    _show(voice, [cost_fact(account, _state(ledger, account), life=agent.life, joined=joined)])
    # What was said above, in words for this very site, is not repeated.
    _show(voice, (fact for fact in facts_of(study) if fact.label not in _TOLD_ABOVE - {"People"}))
    _show_files(voice, study, account, ledger_path)
    voice.gap()


def _open_screen(voice: StatusWriter, study: "StudyFile", what: str) -> None:
    """What is wanted, that it is a rehearsal if it is one, and who learns what."""
    voice.say(f'Study "{study.name}" wants to use your {what}', style="bold")
    voice.gap()
    if study.seed is not None:
        from eigenveil.show.terminal import warning_panel

        voice.show(warning_panel(_REHEARSAL), [f"WARNING: {_REHEARSAL}"])
    learned = Fact("", who_learns(study, whose="this"))
    voice.say(learned.text, style=_LOUD if learned.alarming else None)
    voice.gap()


def _state(ledger: "DurableLedger", account: "StudyBudget") -> "DatasetState | None":
    return next((dataset for dataset in ledger.datasets() if dataset.name == account.dataset), None)


def _show_files(voice: StatusWriter, study: "StudyFile", account: "StudyBudget", ledger: Path) -> None:
    voice.item("Ledger", f'{ledger.absolute()}, dataset "{account.dataset}"')
    voice.item("Study file", f"id {study.params.id}, digest {study.digest}")


def _show(voice: StatusWriter, facts: Iterable[Fact]) -> None:
    for fact in facts:
        voice.item(fact.label, fact.text, style=_LOUD if fact.alarming else None)


def _show_parties(voice: StatusWriter, agent: "SiteAgent | PeerAgent") -> None:
    for who, pin, style in party_words(agent.study, agent.place, agent.policy):
        if not voice.terminal:
            voice.say(f"{who}: {pin}")
            continue
        # Two halves fit on any screen, and a finger can follow them.
        voice.say(f"  {who}", style=style)
        groups = pin.split()
        for half in (groups[:8], groups[8:]):
            voice.say(f"    {' '.join(half)}", style=style)


# For those who waited in vain, before anything was asked of anyone.
WHEN_THERE: Final = "run the same command again when they are there"


def title_words(study: "StudyFile") -> str:
    """The study's name, and the digest that all parties must see alike."""
    return f'Study "{study.name}" with the digest {study.digest}.'


def site_disclosures(study: "StudyFile", parties: "Parties", *, above: "Place", address: str | None) -> Iterator[Fact]:
    """What leaves a site, in how many rounds and to whom, from the terms that the site itself has worked out."""
    from eigenveil.tasks.fit.task import Fit

    plan, task = parties.request.fit.plan, parties.study
    assert isinstance(task, Fit)
    numbers = task.extent().entries
    # The site's own count, which it enforces: it answers no more different questions than this.
    each = f"The site sends at most {_numbers(numbers)} in each, plus headers"
    yield Fact("Rounds", f"at most {parties.most_questions}. {each}{' and the keys of its masks' * study.masked}.")
    sums = _sums(study, plan, count=task.people is None, center=task.center, trace=task.needs_trace, bounds=task.bounds)
    yield Fact("What leaves", f"{listed(sums)}. {_covered(study)}")
    named = _named(above)
    named = named if named.startswith('"') else f"the {named}"
    yield Fact("Connection", f"this site connects to {named} at {address or above.address}.")


def leaving_peer(study: "StudyFile", parties: "PeerParties", *, near: Sequence["Place"], listens: str) -> Iterator[Fact]:
    """What leaves a peer, in how many rounds and to whom, from the terms that the peer itself has worked out."""
    from eigenveil.tasks.fit.gaps import split_budget
    from eigenveil.tasks.fit.search import NORMS
    from eigenveil.tasks.fit.units import ENTRIES

    spec, plan, dim = parties.request, parties.request.fit.plan, parties.request.fit.bounds.dim
    count, trace = spec.fit.people is None, not spec.fit.method.releases_gram
    bounds = spec.fit.bounds
    split = split_budget(
        mean=isinstance(spec.fit.center, str),
        search=bounds.search,
        count=count,
        trace=trace,
        bound=bounds.finds_bound,
        units=bounds.finds_scale,
        observed=bounds.gaps is not None and bounds.gaps.divides,
    )
    # The search for bound and mean, the components, and one more where counts or squares are released apart.
    rounds = len(split.mean) + plan.rounds + (split.extra > 0)
    # Without privacy nothing is charged, and a fit begins again each time a peer is lost.
    max_rounds = rounds + spec.restarts if spec.fit.private else rounds * len(parties.names)
    # A sum of rows with its count has d + 1 numbers.
    product = spec.fit.method.message_size(dim, plan)
    times = parties.terms.among(()).mixing.steps
    again = ""
    if spec.restarts:
        again = f" Of these, {spec.restarts} may repeat a round with new noise when peers vanish. The cost includes them."
    counted = dim * ENTRIES.count if bounds.finds_scale else NORMS.count if bounds.finds_bound else 0
    gap_entries = 0 if bounds.gaps is None else bounds.gaps.entries
    numbers = max(product, dim + 1 + gap_entries, counted)
    each = f"In each, the peer sends at most {_numbers(numbers)} to each neighbour, {times} times"
    yield Fact("Rounds", f"at most {max_rounds}.{again} {each}, plus headers.")
    sums = _sums(study, plan, count=count, center=spec.fit.center, trace=trace, bounds=bounds)
    yield Fact("What leaves", f"{listed(sums)}. {_covered(study)}")
    names = listed([f"{neighbour.name} at {neighbour.address}" for neighbour in near])
    yield Fact("Neighbours", f"{names}. They pass on what they get, added to their own: assume that every peer sees it.")
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
    return f"{count:,} number{'s' * (count != 1)} ({in_bytes(8 * count)})"


def _sums(study: "StudyFile", plan: "MethodPlan", *, count: bool, center: object, trace: bool, bounds: "RowBounds") -> list[str]:
    from eigenveil.methods import method_of

    gaps, role = bounds.gaps, "peer" if study.topology == "gossip" else "site"
    people, complete = study.unit.kind == "person", gaps is not None and gaps.drops
    counted = "people with complete rows" if people and complete else "people" if people else "complete " * complete + "rows"
    observed = "each column" if gaps is not None and gaps.rule == "counts" else "each pair of groups of columns"
    sums = {
        f"the number of {counted}": count,
        "how many rows are longer than each of many norms (for the bound)": bounds.finds_bound,
        "how many entries of each column exceed each of many numbers (for its units)": bounds.finds_scale,
        f"the sum of {'their' if people else 'the'} rows (for the mean)": isinstance(center, str),
        f"how many {'people' if people else 'rows'} have {observed} (for missing values)": gaps is not None and gaps.divides,
        method_of(plan.method).disclosure(plan.width, role=role): True,
        "the sum of squares of all entries": trace,
    }
    return [text for text, leaves in sums.items() if leaves]


def party_words(study: "StudyFile", me: "Place", policy: "Policy | None") -> Iterator[tuple[str, str, str | None]]:
    """Each party and whether the policy has its pin, the pin in groups of four, and a style."""
    from eigenveil.network.certificates import pin_words

    for party in study.places:
        # All parties, pinned or not: without a policy the person is the only one who can compare.
        who, pin = _named(party), pin_words(party.pin)
        if party is me:
            yield f"{who}, this {party.certificate.role}", pin, "dim"
        elif policy is not None and party.pin in (
            policy.pins.hub if party.certificate.role == "hub" else (policy.pins.peers.get(party.name),)
        ):
            yield f"{who}, pinned by your policy", pin, None
        else:
            yield f"{who}, NOT verified: compare this fingerprint by telephone", pin, "yellow"


def _named(party: "Place") -> str:
    """The role and the name in quotes, without the role where the name begins with it: hub, "site 0", site "north"."""
    role, name = party.certificate.role, party.name
    if name == role:
        return role
    return f'"{name}"' if name.startswith(f"{role} ") else f'{role} "{name}"'


def cost_fact(account: "StudyBudget", state: "DatasetState | None", *, life: "Budget | None", joined: bool) -> Fact:
    """What the study costs each row or person, beside what the dataset has cost so far and may cost in total.

    `joined`: the study is counted in `state` already.
    """
    name, kind = f'dataset "{account.dataset}"', "person" if account.unit is None else account.unit.kind
    label = f"Cost to each {kind}"
    # In capitals, so that the screen shows it in red: no number could be compared with a budget.
    if account.epsilon is None or account.delta is None:
        loses = f"In the ledger, {name} loses its guarantee for good, whatever is done with it later."
        return Fact(label, f"NOTHING IS GUARANTEED, so no budget can pay for it. {loses}")
    # A study and a policy may count at two deltas, and epsilons at two deltas cannot be compared.
    delta = account.delta if life is None else life.delta
    counted, extra = (0.0, 0.0) if state is None else (state.counted, state.extra_delta)
    if not joined:
        # Squares of mu add up, and so do the parts of delta that masks take.
        counted, extra = math.hypot(counted, account.mu), extra + account.extra_delta
    so_far = f"So far {name} has cost nothing."
    if state is not None:
        parts = {"spent": state.spent, "reserved by open studies": state.reserved, "counted in total": state.counted}
        listing = ", ".join(f"{rounded(state.epsilon(delta, mu=mu))} {text}" for text, mu in parts.items())
        so_far = f"So far {name}, as epsilon at delta {delta:g}: {listing}."
    allowed = "" if life is None else f" of the {life.epsilon:g} your policy allows, both"
    total = f"at most epsilon {rounded(_epsilon(counted, delta - extra))}{allowed} at delta {delta:g}."
    cost = f"at most epsilon {account.epsilon:g} at delta {account.delta:g}."
    return Fact(label, f"{cost} {so_far} In total with this study: {total}")


def remaining_budget_text(state: "DatasetState", life: "Budget | None") -> str:
    """What is left of a dataset's total budget."""
    if life is None:
        return "no total budget is set, so nothing limits further studies"
    room = life.delta - state.extra_delta
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


def listed(texts: Sequence[str]) -> str:
    """The words with commas between them, and "and" before the last.

    >>> listed(["north"]), listed(["north", "south", "west"])
    ('north', 'north, south and west')
    """
    *others, last = texts
    return f"{', '.join(others)} and {last}" if others else last
