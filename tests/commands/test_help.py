"""What --help shows of every command: flags with nothing behind them, whole words, and the range of each whole number."""

from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from eigenveil.commands import app


def paths(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, inner in getattr(command, "commands", {}).items():
        yield from paths(inner, (*path, name))


@pytest.mark.parametrize("path", list(paths(typer.main.get_command(app))), ids=" ".join)
def test_flags_have_no_type_and_no_word_is_shortened(path: tuple[str, ...]) -> None:
    shown = CliRunner(env={"COLUMNS": "80"}).invoke(app, [*path, "--help"])
    assert shown.exit_code == 0
    assert "…" not in shown.output
    assert "--help" in shown.output and "bool" not in shown.output.lower()
    for word in ("<path>", "<int", "<float", "<str>", "<list", "{"):
        assert word not in shown.output


def line_of(command: str, option: str) -> str:
    output = CliRunner(env={"COLUMNS": "200"}).invoke(app, [*command.split(), "--help"]).output
    lines = (" ".join(line.strip("│ ").split()) for line in output.splitlines())
    return next(line for line in lines if line.startswith(f"{option} "))


def test_ranges_of_whole_numbers_are_shown() -> None:
    assert line_of("simulate", "--fanout").startswith("--fanout NUMBER [x>=2] For")
    assert line_of("fit", "--rounds").startswith("--rounds NUMBER [1<=x<=200] For")
    assert line_of("study new", "--rehearsal-seed").startswith("--rehearsal-seed INTEGER [x>=0] A test run")
    assert line_of("fit", "--row-bound").startswith("--row-bound NUMBER Rows")
