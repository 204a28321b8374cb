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
