"""`eigenveil watch`: the current answer of a study of streams, slot by slot. It has released and public numbers only."""

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from eigenveil.commands import _network as network
from eigenveil.commands._command import Command
from eigenveil.commands._files import require_file
from eigenveil.commands._options import flag
from eigenveil.commands._streams import lines_beside, lines_in
from eigenveil.errors import listed, require
from eigenveil.show.console import output

if TYPE_CHECKING:
    from eigenveil.network.study import StudyFile

__all__ = ["COMMAND"]

# Seconds between two looks at a file that another process writes.
_LOOK: Final = 0.2
# The columns that a component is shown by: those with the largest entries.
_LARGEST: Final = 3


def watch(
    study: network.Study,
    as_json: Annotated[bool, flag("--json", "Print the lines as they are: one JSON object each.")] = False,
    once: Annotated[bool, flag("--once", "Show the current answer, and stop.")] = False,
) -> None:
    """Show the current answer of a study of streams, and go on showing it.

    Beside the study file of the hub, while `eigenveil hub --serve` runs:

      eigenveil watch sensors.toml
      eigenveil watch sensors.toml --json | jq .explained_variance

    After every slot it shows the components, the variance along each,
    how many stand out from the noise, who was heard and who is missing.
    It reads released and public numbers only. While the hub is away it
    shows the last answer and waits. It ends when the study is over.
    """
    require_file(study)
    from eigenveil.network.study import StudyFile

    found = StudyFile.read(study)
    require(found.streaming, f"{study} is a study of tables: its model is there when it is over")
    for facts, line in _followed_lines(lines_beside(study), found, once=once):
        if as_json:
            typer.echo(line)
        else:
            for words_ in _shown(facts):
                output().print(words_, soft_wrap=True, highlight=False)


def _followed_lines(path: Path, study: "StudyFile", *, once: bool) -> Iterator[tuple[dict[str, Any], str]]:
    """The lines of the hub as they come, from the last one on; until the study is over."""
    last, said = "", False
    none_yet = f"{path} has no line yet: the hub has not asked for a slot, or runs elsewhere"
    while True:
        # Opened anew at every look: the hub replaces the file, and an open one would stay as it was.
        lines = lines_in(path)
        if not lines:
            require(not once, none_yet)
            if not said:
                # Once, and not among the lines: somebody may read those with another program.
                typer.echo(f"{none_yet}. Waiting for it", err=True)
            said = True
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
    missing = f"; missing: {listed(facts['missing'], most=10)}" if facts["missing"] else ""
    yield f"{facts['at']}  slot {facts['slot']} of {facts['slots']}: {len(facts['heard'])} of {sites} heard{missing}"
    for slot, names in facts["late"].items():
        if names:
            yield f"  slot {slot} still lacks {listed(names, most=10)}"
    if facts["skipped"]:
        yield f"  skipped, with nothing unmasked: slot {listed(list(map(str, facts['skipped'])), most=10)}"
    if facts["horizon"] < facts["slots"]:
        yield f"  sources have ended: there are {facts['horizon']} slots"
    if "components" not in facts:
        yield "  nothing has been released yet"
        return
    columns = facts["columns"]
    for place, (direction, variance, share) in enumerate(
        zip(facts["components"], facts["explained_variance"], facts["explained_variance_ratio"], strict=True)
    ):
        largest = sorted(range(len(columns)), key=lambda at: -abs(direction[at]))[:_LARGEST]
        entries = ", ".join(f"{columns[at]} {direction[at]:+.2f}" for at in largest)
        yield f"  component {place + 1}: variance {variance:.4g} ({share:.1%}): {entries}"
    if facts["noise_floor"] > 0:
        above, all_of_them = facts["above_noise"], len(facts["components"])
        yield f"  {above} of {all_of_them} components stand out from the noise (variance {facts['noise_floor']:.3g})"
    for warning in facts["warnings"]:
        yield f"  {warning}"


COMMAND = Command(run=watch, panel="Studies across organisations")
