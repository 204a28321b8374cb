"""The consent screen: what a study would learn from this site or peer, and what that costs each person.

`eigenveil site` and `peer` show it before anything is connected or spent. tests/commands/network/consent_screens.txt
has the screen of each situation, word for word.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from eigenveil.show import words
from eigenveil.show.agreement import Fact, facts_of, listed_columns, who_learns
from eigenveil.show.progress import Voice

if TYPE_CHECKING:
    from eigenveil.ledger.durable import DurableLedger
    from eigenveil.network.agents.peer import PeerAgent
    from eigenveil.network.agents.site import SiteAgent
    from eigenveil.network.agents.site_data import SiteData
    from eigenveil.network.agents.slot_site import SlotSiteAgent
    from eigenveil.network.study.file import StudyFile

__all__ = ["disclose", "disclose_stream"]

# Facts that the screen tells in its own, more exact words.
_TOLD_ABOVE: Final = frozenset({"Study", "Warning", "Columns", "Who learns what", "People", "Cost", "Restarts"})
_REHEARSAL: Final = (
    "A REHEARSAL: anyone who has the study file can subtract all noise. NOBODY IN THIS TABLE IS PROTECTED."
)


def disclose(
    voice: Voice,
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

    `leaving` says what leaves and to whom. `joined` says how the study goes on where it was joined before.
    """
    study, account = agent.study, agent.account
    voice.say(f'Study "{study.name}" asks for your data', style="bold")
    voice.gap()
    if study.seed is not None:
        from eigenveil.show.terminal import warning_panel

        voice.show(warning_panel(_REHEARSAL), [f"WARNING: {_REHEARSAL}"])
    learned = Fact("", who_learns(study, whose="this"))
    voice.say(learned.words, style=_style(learned))
    voice.gap()
    state = next((one for one in accounts.datasets() if one.name == account.dataset), None)
    voice.item("Columns used", _columns(study, holding, data))
    if voice.terminal:
        # How many rows and people there are is private: for the person at this terminal, never for a log.
        voice.item("Rows", _rows(study, holding))
    _show(voice, (fact for fact in facts_of(study) if fact.label == "People"))
    _show(voice, [words.cost_fact(account, state, life=agent.life, joined=joined is not None)])
    if account.private and agent.life is None:
        none = "none is set, so nothing limits what all studies together may cost."
        voice.item("Total budget", none, style="yellow")
    _show(voice, leaving)
    _show(voice, (fact for fact in facts_of(study) if fact.label not in _TOLD_ABOVE))
    voice.item("Ledger", f'{ledger.absolute()}, dataset "{account.dataset}"')
    voice.item("Study file", f"id {study.id}, digest {study.digest}")
    voice.item("Parties", f"{len(study.places)}, each with its pin (the fingerprint of a party's key):")
    _show_parties(voice, agent)
    voice.gap()
    if agent.policy is None:
        voice.say("You have no policy: nothing is refused for you, so read all of this.", style="yellow")
    if joined is not None:
        voice.say(joined, style="green")


def disclose_stream(
    voice: Voice, agent: "SlotSiteAgent", ledger: "DurableLedger", *, source: Path, kept: Path, joined: bool
) -> None:
    """What the study would learn from this stream, and at what cost, before anything is connected or spent."""
    study, account = agent.study, agent.account
    voice.say(f'Study "{study.name}" asks for your stream', style="bold")
    voice.gap()
    if study.seed is not None:
        voice.say(
            "A REHEARSAL: anyone who has the study file can subtract all noise. NOBODY IS PROTECTED.", style="red"
        )
    loud = study.trust in ("hub", "none")
    voice.say(who_learns(study, whose="this"), style="bold red" if loud else None)
    voice.gap()
    voice.item("Stream", f"{'standard input' if str(source) == '-' else source}, columns {listed_columns(study)}")
    state = next((one for one in ledger.datasets() if one.name == account.dataset), None)
    cost = words.cost_fact(account, state, life=agent.life, joined=joined)
    voice.item(cost.label, cost.words)
    # What was said above, in words for this very site, is not repeated.
    for fact in facts_of(study):
        if fact.label not in ("Study", "Warning", "Columns", "Who learns what", "Cost"):
            voice.item(fact.label, fact.words)
    voice.item("Ledger", f'{kept.absolute()}, dataset "{account.dataset}"')
    voice.item("Study file", f"id {study.id}, digest {study.digest}")
    voice.gap()


def _style(fact: Fact) -> str | None:
    return "bold red" if fact.alarming else None


def _show(voice: Voice, facts: Iterable[Fact]) -> None:
    for fact in facts:
        voice.item(fact.label, fact.words, style=_style(fact))


def _columns(study: "StudyFile", holding: "SiteData", data: Path) -> str:
    # Names of columns are in the public study file; the other columns of the table are counted and not named.
    among = "" if holding.columns is None else f" ({len(study.columns)} of the {holding.columns} in {data.name})"
    return f"{listed_columns(study)}{among}"


def _rows(study: "StudyFile", holding: "SiteData") -> str:
    # Nobody has counted people where no column names them.
    person = study.params.person
    whose = (
        "each taken for a different person" if person is None else f'from {holding.people:,} people (column "{person}")'
    )
    return f"{holding.rows.shape[0]:,}, {whose}"


def _show_parties(voice: Voice, agent: "SiteAgent | PeerAgent") -> None:
    for who, pin, style in words.party_words(agent.study, agent.place, agent.policy):
        if not voice.terminal:
            voice.say(f"{who}: {pin}")
            continue
        # Two halves fit on any screen, and a finger can follow them.
        voice.say(f"  {who}", style=style)
        groups = pin.split()
        for half in (groups[:8], groups[8:]):
            voice.say(f"    {' '.join(half)}", style=style)
