"""`eigenveil watch`: the current answer of a study of streams, slot by slot. It has released and public numbers only."""

import json
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from eigenveil.commands import _consent as consent
from eigenveil.commands import _network as network
from eigenveil.commands._command import Command
from eigenveil.commands._files import require_file
from eigenveil.commands._joining import JoinOptions, opening
from eigenveil.commands._network import run_protocol
from eigenveil.commands._options import flag
from eigenveil.errors import join_names, require
from eigenveil.show import disclosure
from eigenveil.show.console import output
from eigenveil.show.progress import PartyView, StatusWriter

if TYPE_CHECKING:
    from eigenveil.network.agents.slot_hub import SlotHubAgent
    from eigenveil.network.certificates import Keys
    from eigenveil.network.study import Place, StudyFile

__all__ = ["COMMAND", "follow_source", "lines_beside", "lines_in", "serve_stream"]

# The file of lines has no more bytes than this, unless a single line does.
_RECENT: Final = 1 << 20
# M_MMAP_THRESHOLD of glibc's malloc.h. Setting it also stops glibc from raising it.
_MMAP_THRESHOLD: Final = -3
# Seconds between two looks at a file that another process writes.
_LOOK: Final = 0.2
# The columns that a component is shown by: those with the largest entries.
_LARGEST: Final = 3


def lines_beside(study: Path) -> Path:
    """Where the hub of a study writes one line after every slot."""
    return study.with_suffix(".watch.jsonl")


def lines_in(path: Path) -> list[str]:
    """The lines that the hub has written so far."""
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def recent(lines: list[str]) -> list[str]:
    """The last of these lines, as many as fit: a stream may last for years, and all of it is written at every slot.

    >>> [len(recent(["x" * size] * 3)) for size in (10, 1 << 19, 1 << 21)]
    [3, 2, 1]
    """
    room, retained = _RECENT, list[str]()
    for line in reversed(lines):
        room -= len(line)
        if retained and room < 0:
            break
        retained.append(line)
    return retained[::-1]


def _summary_of(line: str) -> dict[str, Any]:
    """A line without the time when it was written."""
    return {name: value for name, value in json.loads(line).items() if name != "at"}


def follow_source(options: JoinOptions, source: Path, reading: Mapping[str, Any], *, connect: str | None) -> None:
    """Take part in a study of streams, from the study file to the end, with consent in between."""
    import ctypes

    from eigenveil.data.follow import ByClock, Followed, follow
    from eigenveil.data.formats import FileParams
    from eigenveil.network.agents.slot_site import SlotSiteAgent
    from eigenveil.network.streams import rule_of

    def read(study: "StudyFile", party: "Place") -> Followed:
        require(study.streaming, f"{options.study} is a study of tables: give --data, and not --follow")
        how, sized = FileParams(**reading), isinstance(rule_of(study), ByClock)
        return follow(sys.stdin.buffer if str(source) == "-" else source, columns=study.columns, how=how, sized=sized)

    def make(study: "StudyFile", rows: Followed, **settings: Any) -> SlotSiteAgent:
        return SlotSiteAgent(study, **settings)

    # From here on, memory of large arrays goes back to the system as soon as they are freed, where the C library is glibc.
    # Otherwise it is kept for later arrays, which seldom fit into it: a site of 1000 columns then takes 8 MiB more.
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, 1 << 17)
    with opening(options, "site", make, read) as opened:
        agent, ledger, voice, view = opened.agent, opened.ledger, opened.voice, opened.view
        view.of(agent, calls=agent.calls)
        joined = opened.replay is not None
        disclosure.disclose_stream(voice, agent, ledger, source=source, ledger_path=options.ledger, joined=joined)
        if options.dry_run:
            voice.say("This was a dry run: nothing was written and no other party was called.")
            return
        note = None
        # After a restart the ledger knows the study, and has the consent.
        if not joined:
            note = consent.obtain_consent(voice, agent.study, ledger, rules=options.policy if options.yes else None)
        with voice.under(view):
            run_protocol(
                lambda: agent.run(opened.rows, address=connect, note=note),
                voice,
                left=lambda: "nothing is lost: the same command resumes where it stopped. What was charged stays charged",
                look=view.look,
            )
        voice.say("the study is over", style="green")


def serve_stream(study_file: "StudyFile", keys: "Keys", *, study: Path, log: Path, model: Path, listen: str, memory: int) -> None:
    """Run the hub of a study of streams until the last slot and its window are over."""
    from eigenveil.data.archive import whole_file
    from eigenveil.network.agents.slot_hub import SlotHubAgent, current_line

    voice, lines = StatusWriter(), lines_beside(study)
    view = PartyView(voice)

    def show(agent: "SlotHubAgent") -> None:
        # Before the first release there is no model, but a line is written all the same.
        learned = agent.model()
        line, before = current_line(agent), lines_in(lines)
        # A hub without a clock asks every few seconds. As long as no site has closed a slot, it has nothing new to tell.
        if before and _summary_of(before[-1]) == _summary_of(line) and (learned is None or model.exists()):
            return
        if learned is not None:
            learned.save(model)
        # The last lines and this one, whole or not at all: `watch` may read at any moment.
        with whole_file(lines) as temporary:
            temporary.write_text("".join(f"{entry}\n" for entry in recent([*before, line])), encoding="utf-8")
            # Released numbers only, and another user of this machine may watch.
            temporary.chmod(0o644)

    with SlotHubAgent.log_for(log, study_file) as written:
        agent = SlotHubAgent(study_file, keys=keys, log=written, memory=memory, on_event=view.on_event)
        view.of(agent, calls=())
        voice.say(disclosure.title_words(study_file), style="bold")
        voice.say(f"The current answer is in {model} and {lines}. Show it: eigenveil watch {study}", whole=True)
        with voice.under(view):
            run_protocol(
                lambda: agent.run(
                    show, listen=listen, ready=lambda port: voice.write_line(f"listening at {listen.rpartition(':')[0]}:{port}")
                ),
                voice,
                left=lambda: f"nothing is lost: the same command resumes from {log}",
                look=view.look,
            )
        slots, horizon = agent.parties.spec.slots, agent.durable.party.horizon
        over = f"all {slots} slots are over" if horizon == slots else f"the sources have ended after {horizon} of {slots} slots"
        result = "nothing was released" if agent.model() is None else f"the model is in {model}"
        voice.say(f"{over}; {result}", style="green", whole=True)


def watch(
    study: network.Study,
    as_json: Annotated[bool, flag("--json", "Print the lines as they are: one JSON object each.")] = False,
    once: Annotated[bool, flag("--once", "Show the current answer, and stop.")] = False,
) -> None:
    """Show the current answer of a study of streams, and keep showing it.

    Next to the study file of the hub, while `eigenveil hub --serve` runs:

      eigenveil watch sensors.toml
      eigenveil watch sensors.toml --json | jq .explained_variance

    After every slot it shows the components, the variance along each,
    how many stand out from the noise, who was heard and who is missing.
    It reads released and public numbers only. While the hub is away it
    shows the last answer and waits. It ends when the study is over.
    """
    require_file(study)
    from eigenveil.network.study import StudyFile

    study_file = StudyFile.read(study)
    require(study_file.streaming, f"{study} is a study of tables: its model is there when it is over")
    for facts, line in _followed_lines(lines_beside(study), study_file, once=once):
        if as_json:
            typer.echo(line)
        else:
            for words_ in _shown(facts):
                output().print(words_, soft_wrap=True, highlight=False)


def _followed_lines(path: Path, study: "StudyFile", *, once: bool) -> Iterator[tuple[dict[str, Any], str]]:
    """The lines of the hub as they come, from the last one on; until the study is over."""
    last, is_announced = "", False
    none_yet = f"{path} has no line yet: the hub has not asked for a slot, or runs elsewhere"
    while True:
        # Opened anew at every look: the hub replaces the file, and an open one would stay as it was.
        lines = lines_in(path)
        if not lines:
            require(not once, none_yet)
            if not is_announced:
                # Once, and not among the lines: another program may read those.
                typer.echo(f"{none_yet}. Waiting for it", err=True)
            is_announced = True
        # From the last one: what was current before is of no use now. The hub drops old lines, so they cannot be counted.
        for line in lines[lines.index(last) + 1 :] if last in lines else lines[-1:]:
            facts = json.loads(line)
            # The study file may have been changed since these lines were written.
            require(facts.get("digest") == study.digest, f"{path} is of another study")
            last = line
            yield facts, line
            if facts["over"] or once:
                return
        time.sleep(_LOOK)


def _shown(facts: Mapping[str, Any]) -> Iterator[str]:
    """The current answer in words."""
    sites = len(facts["heard"]) + len(facts["missing"])
    missing = f"; missing: {join_names(facts['missing'], max_count=10)}" if facts["missing"] else ""
    yield f"{facts['at']}  slot {facts['slot']} of {facts['slots']}: {len(facts['heard'])} of {sites} heard{missing}"
    for slot, names in facts["late"].items():
        if names:
            yield f"  slot {slot} still lacks {join_names(names, max_count=10)}"
    if facts["skipped"]:
        yield f"  skipped, with nothing unmasked: slot {join_names(list(map(str, facts['skipped'])), max_count=10)}"
    if facts["horizon"] < facts["slots"]:
        yield f"  sources have ended: there are {facts['horizon']} slots"
    if "components" not in facts:
        yield "  nothing has been released yet"
        return
    columns = facts["columns"]
    for index, (direction, variance, share) in enumerate(
        zip(facts["components"], facts["explained_variance"], facts["explained_variance_ratio"], strict=True)
    ):
        largest = sorted(range(len(columns)), key=lambda at: -abs(direction[at]))[:_LARGEST]
        entries = ", ".join(f"{columns[at]} {direction[at]:+.2f}" for at in largest)
        yield f"  component {index + 1}: variance {variance:.4g} ({share:.1%}): {entries}"
    if facts["noise_floor"] > 0:
        above, all_of_them = facts["above_noise"], len(facts["components"])
        yield f"  {above} of {all_of_them} components stand out from the noise (variance {facts['noise_floor']:.3g})"
    for warning in facts["warnings"]:
        yield f"  {warning}"


COMMAND = Command(run=watch, panel="Studies across organisations")
