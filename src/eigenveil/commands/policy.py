"""`eigenveil policy`: write the rules of a site, and check a study against them before anything runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eigenveil.commands._command import Command, Group
from eigenveil.commands._ending import wrote
from eigenveil.commands._network import MEMORY, Memory, bytes_allowed
from eigenveil.errors import require
from eigenveil.show.console import output

if TYPE_CHECKING:
    from eigenveil.network.study.file import StudyFile

__all__ = ["COMMAND"]

_REFUSED = 2

File = Annotated[Path, typer.Argument(metavar="FILE", help="The policy of this site, a .toml.", show_default=False)]


def group() -> None:
    """The rules of a site: what it takes part in. No coordinator sees them.

    Write a policy, with the pins of a study in it as comments. Compare
    each pin by telephone, enable it, and check the study:

      eigenveil policy new policy.toml --study heart.toml
      eigenveil policy check policy.toml heart.toml --as north
    """


def new(
    file: File,
    study: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="List the pins of this study, as comments.", show_default=False),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file if it exists.")] = False,
) -> None:
    """Write a policy with safe defaults and an explanation of each key.

      eigenveil policy new policy.toml --study heart.toml

    It pins no hub, so it refuses every study until you have compared a
    pin with its owner and removed the # before it. The coordinator
    could invent sites, so do not take pins from the coordinator.

    It also has the unit of the study as a comment: whether each row is a
    different person, or which column names people. Only you know that of
    your table. --yes is refused until you have said it.
    """
    from eigenveil.data.archive import whole_file
    from eigenveil.network.policy import template
    from eigenveil.network.study.file import StudyFile

    require(file.suffix.lower() == ".toml", f"the policy file must end in .toml, got {file}")
    require(not file.is_dir(), f"{file} is a folder")
    require(force or not file.exists(), f"{file} already exists; --force overwrites it")
    text = template(None if study is None else StudyFile.read(study))
    # No chmod: it stays readable by its owner only. A policy that others can change is refused when it is read.
    with whole_file(file) as temporary:
        temporary.write_text(text, encoding="utf-8")
    wrote(file)
    console = output()
    console.print(f"policy written to {file}; only you may read or change it", soft_wrap=True)
    pins = "compare the pins in it with their owners, by telephone," if study is not None else "write pins into it,"
    console.print(f"{pins} then run: eigenveil policy check {file} STUDY --as NAME", style="dim", soft_wrap=True)


def check(
    file: File,
    study: Annotated[Path, typer.Argument(metavar="STUDY", help="The study file, a .toml.", show_default=False)],
    name: Annotated[
        str, typer.Option("--as", metavar="NAME", help="The name of this site in the study.", show_default=False)
    ],
    memory: Memory = MEMORY,
) -> None:
    """Say whether the policy allows a study, and if not, every reason.

      eigenveil policy check policy.toml heart.toml --as north

    It reads no table and contacts nobody. The exit code is 2 if the
    study would be refused. How many rows or people the table has is
    checked when the site runs.
    """
    from eigenveil.network.policy import Policy
    from eigenveil.network.study.file import StudyFile
    from eigenveil.network.study.parties import require_possible
    from eigenveil.network.study.rules import method_of

    allowed = bytes_allowed(memory)
    # Read as the site itself reads them, with every check of hostile input.
    rules, found = Policy.read(file), StudyFile.read(study)
    # Only those with rows have policies. A hub or a node has nothing to refuse.
    names = [place.name for place in found.holders]
    require(
        name in names, f"--as {name}: no site or peer of that name is in the study; these are: {', '.join(names[:20])}"
    )
    # A study that cannot run at all is not one to compare with rules.
    require_possible(found, memory=allowed)
    reasons = rules.refusals(found, me=name, method=method_of(found))
    console = output()
    if not reasons:
        console.print(f"{name} would take part in {found.name}: the policy allows it", style="green", soft_wrap=True)
        console.print(
            f"[limits] rows: the table must have at least {rules.limits.rows} {_counted(found)}",
            style="dim",
            soft_wrap=True,
        )
        if rules.limits.unit is None:
            missing = "[limits] unit is not set: a person must agree at a terminal, and --yes is refused"
            console.print(missing, style="yellow", soft_wrap=True)
        return
    console.print(f"{name} would refuse {found.name}:", style="red", soft_wrap=True)
    for reason in reasons:
        console.print(f"- {reason}", soft_wrap=True)
    raise typer.Exit(_REFUSED)


def _counted(study: "StudyFile") -> str:
    return "people" if study.unit.each == "person" else "rows"


COMMAND = Group(
    "policy",
    group,
    (
        Command(new),
        Command(check),
    ),
    panel="Studies across organisations",
)
