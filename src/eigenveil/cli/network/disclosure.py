"""Everything that somebody must know before they agree to take part: what is revealed, to whom, and what it costs."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from eigenveil.cli.network import words
from eigenveil.cli.network.view import Voice

if TYPE_CHECKING:
    from eigenveil.network.agents.peer import PeerAgent
    from eigenveil.network.agents.site import SiteAgent
    from eigenveil.network.agents.site_data import SiteData
    from eigenveil.network.ledger.durable import DurableLedger

__all__ = ["disclose"]

_COLUMNS_SHOWN: Final = 20


def disclose(
    voice: Voice,
    agent: "SiteAgent | PeerAgent",
    holding: "SiteData",
    accounts: "DurableLedger",
    *,
    revealed: Iterable[str],
    ledger: Path,
    joined: str | None,
) -> None:
    """Say all of it; nothing is connected or spent yet.

    `revealed` are sentences on what leaves, and `joined` says how things stand where the study was joined before.
    """
    study, account = agent.study, agent.account
    if study.seed is not None:
        from eigenveil.cli._report import warning_panel

        loud = "A REHEARSAL: whoever has the study file can subtract all noise. NOBODY IN THIS TABLE IS PROTECTED."
        voice.show(warning_panel(loud), [f"WARNING: {loud}"])
    voice.say(f"What the study is (digest {study.digest})", style="bold")
    _say_all(voice, study.words())
    if len(study.columns) > _COLUMNS_SHOWN:
        voice.say(f"All {len(study.columns)} columns are listed in the study file, under [task] columns.")
    voice.gap()
    voice.say(f"What this {agent.place.certificate.role} reveals", style="bold")
    if voice.terminal:
        # How many there are is private, and for whoever sits here; a log may go further.
        voice.say(f"The table here has {holding.people:,} people.")
    _say_all(voice, revealed)
    voice.say("Who takes part, and the pin of each:")
    _show_parties(voice, agent)
    voice.gap()
    voice.say(f"What it costs, by the ledger {ledger.absolute()}", style="bold")
    state = next((one for one in accounts.datasets() if one.name == account.dataset), None)
    life = None if agent.policy is None else agent.policy.life
    for sentence, style in words.cost_words(account, state, life=life, joined=joined is not None):
        voice.say(sentence, style=style)
    if agent.policy is None:
        voice.say("There is no policy: nothing is refused for you, so read all of this.", style="yellow")
    voice.gap()
    if joined is not None:
        voice.say(joined, style="green")


def _say_all(voice: Voice, sentences: Iterable[str]) -> None:
    """What begins in capitals is bad news."""
    for sentence in sentences:
        voice.say(sentence, style="bold red" if sentence[:8].isupper() else None)


def _show_parties(voice: Voice, agent: "SiteAgent | PeerAgent") -> None:
    for who, pin, style in words.party_words(agent.study, agent.place, agent.policy):
        if not voice.terminal:
            voice.say(f"{who}: {pin}")
            continue
        # Two halves, which fit on any screen and can be followed with a finger.
        voice.say(who, style=style)
        groups = pin.split()
        for half in (groups[:8], groups[8:]):
            voice.say(f"    {' '.join(half)}", style=style)
