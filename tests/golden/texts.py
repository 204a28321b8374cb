"""Texts of the golden corpus: every --help at two widths, and what a command says when it is called wrongly."""

from collections.abc import Iterator
from typing import Any, Final

import typer
from typer.testing import CliRunner

from eigenveil.commands import app

__all__ = ["FRAME", "helps", "usage_errors"]

# What boxes are drawn with.
FRAME: Final = "│╭╮╰╯─"


def _commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, inner in sorted(getattr(command, "commands", {}).items()):
        yield from _commands(inner, (*path, name))


def _printed(*arguments: str, width: int) -> str:
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": str(width)})
    # Without the frames, which are half of the bytes.
    lines = (line.strip(FRAME).rstrip() for line in result.output.splitlines())
    return "\n".join([*lines, f"exit {result.exit_code}"])


def helps(width: int) -> dict[str, str]:
    """The --help of every command and group."""
    paths = _commands(typer.main.get_command(app))
    return {" ".join(("eigenveil", *path)): _printed(*path, "--help", width=width) for path in paths}


def usage_errors() -> dict[str, str]:
    """What each command says without arguments, and to an option that it does not have."""
    entries = {}
    for path in _commands(typer.main.get_command(app)):
        for further in ((), ("--no-such-option",)):
            # Without arguments these two do something.
            if further or path not in ((), ("audit",), ("demo",)):
                entries[" ".join(("eigenveil", *path, *further))] = _printed(*path, *further, width=80)
    return entries
