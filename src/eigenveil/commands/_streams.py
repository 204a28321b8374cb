"""Studies of streams: `eigenveil site --follow`, `eigenveil hub --serve`, and `eigenveil watch`.

The hub writes its model and one line of JSON after every slot, and `watch` shows them. These have released and public numbers
only.
"""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from eigenveil.commands import _consent as consent
from eigenveil.commands._joining import Given, opening
from eigenveil.commands._network import carried
from eigenveil.errors import require
from eigenveil.show import disclosure
from eigenveil.show.disclosure import disclose_stream
from eigenveil.show.progress import PartyView, Voice

if TYPE_CHECKING:
    from eigenveil.network.agents.slot_hub import SlotHubAgent
    from eigenveil.network.certificates import Keys
    from eigenveil.network.study import Place, StudyFile

__all__ = ["followed", "lines_beside", "lines_in", "served"]

# The file of lines has no more bytes than this, unless a single line does.
_RECENT: Final = 1 << 20
# M_MMAP_THRESHOLD of glibc's malloc.h. Setting it also stops glibc from raising it.
_MMAP_THRESHOLD: Final = -3


def lines_beside(study: Path) -> Path:
    """Where the hub of a study writes one line after every slot."""
    return study.with_suffix(".watch.jsonl")


def lines_in(path: Path) -> list[str]:
    """The lines that the hub has written so far."""
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def recent(lines: list[str]) -> list[str]:
    """The last of these lines, as many as fit: a stream may go on for years, and all of it is written at every slot.

    >>> [len(recent(["x" * size] * 3)) for size in (10, 1 << 19, 1 << 21)]
    [3, 2, 1]
    """
    room, kept = _RECENT, list[str]()
    for line in reversed(lines):
        room -= len(line)
        if kept and room < 0:
            break
        kept.append(line)
    return kept[::-1]


def _told(line: str) -> dict[str, Any]:
    """What a line says, but for when it was written."""
    return {name: value for name, value in json.loads(line).items() if name != "at"}


def followed(given: Given, source: Path, *, connect: str | None) -> None:
    """Take part in a study of streams, from the study file to the end, with consent in between."""
    from eigenveil.data.follow import ByClock, Followed, follow
    from eigenveil.data.formats import FileParams
    from eigenveil.network.agents.slot_site import SlotSiteAgent
    from eigenveil.network.streams import rule_of

    def read(study: "StudyFile", place: "Place") -> Followed:
        require(study.streaming, f"{given.study} is a study of tables: give --data, and not --follow")
        how, sized = FileParams(**given.reading), isinstance(rule_of(study), ByClock)
        return follow(sys.stdin.buffer if str(source) == "-" else source, columns=study.columns, how=how, sized=sized)

    def make(study: "StudyFile", rows: Followed, **settings: Any) -> SlotSiteAgent:
        return SlotSiteAgent(study, **settings)

    _give_back_memory()
    with opening(given, "site", make, read) as opened:
        agent, ledger, voice, view = opened.agent, opened.ledger, opened.voice, opened.view
        view.of(agent, calls=agent.calls)
        disclose_stream(voice, agent, ledger, source=source, kept=given.ledger, joined=opened.known is not None)
        if given.dry_run:
            voice.say("This was a dry run: nothing was written and nobody was called.")
            return
        note = None
        # After a restart the ledger knows the study, and nobody has to agree twice.
        if opened.known is None:
            note = consent.agreed(voice, agent.study, ledger, rules=given.policy if given.yes else None)
        with voice.under(view):
            carried(
                lambda: agent.run(opened.rows, address=connect, note=note),
                voice,
                left=lambda: (
                    "nothing is lost: the same command goes on where it stopped. What was charged stays charged"
                ),
                look=view.look,
            )
        voice.say("the study is over", style="green")


def _give_back_memory() -> None:
    """From here on, memory of large arrays goes back to the system as soon as they are freed, where the C library is glibc.

    Otherwise it is kept for later arrays, which seldom fit into it: a site of 1000 columns then takes 8 MiB more.
    """
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, 1 << 17)


def served(found: "StudyFile", keys: "Keys", *, study: Path, log: Path, model: Path, listen: str, memory: int) -> None:
    """Run the hub of a study of streams until the last slot and its window are over."""
    from eigenveil.data.archive import whole_file
    from eigenveil.network.agents.slot_hub import SlotHubAgent, current_line

    voice, lines = Voice(), lines_beside(study)
    view = PartyView(voice)

    def show(agent: "SlotHubAgent") -> None:
        # Before the first release there is no model, but a line is written all the same.
        learned = agent.model()
        line, before = current_line(agent), lines_in(lines)
        # A hub without a clock asks every few seconds. As long as nobody has closed a slot, it has nothing new to tell.
        if before and _told(before[-1]) == _told(line) and (learned is None or model.exists()):
            return
        if learned is not None:
            learned.save(model)
        # The last lines and this one, whole or not at all: `watch` may read at any moment.
        with whole_file(lines) as temporary:
            temporary.write_text("".join(f"{one}\n" for one in recent([*before, line])), encoding="utf-8")
            # Released numbers only, and whoever watches may be another user of this machine.
            temporary.chmod(0o644)

    with SlotHubAgent.log_for(log, found) as written:
        agent = SlotHubAgent(found, keys=keys, log=written, memory=memory, on_event=view.on_event)
        view.of(agent, calls=())
        voice.say(disclosure.title_words(found), style="bold")
        voice.say(f"The current answer is in {model} and {lines}. Show it: eigenveil watch {study}", whole=True)
        with voice.under(view):
            carried(
                lambda: agent.run(
                    show,
                    listen=listen,
                    ready=lambda port: voice.happen(f"listening at {listen.rpartition(':')[0]}:{port}"),
                ),
                voice,
                left=lambda: f"nothing is lost: the same command goes on from {log}",
                look=view.look,
            )
        slots, there = agent.parties.spec.slots, agent.durable.party.horizon
        over = (
            f"all {slots} slots are over"
            if there == slots
            else f"the sources have ended after {there} of {slots} slots"
        )
        result = "nothing was released" if agent.model() is None else f"the model is in {model}"
        voice.say(f"{over}; {result}", style="green", whole=True)
