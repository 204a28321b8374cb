"""Options with one name have one meaning in every command."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import eigenveil.commands
from each import each
from eigenveil.commands import app


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every command, under the words that are typed for it."""
    for name, one in getattr(group, "commands", {}).items():
        if getattr(one, "commands", None):
            yield from commands(one, (*path, name))
        else:
            yield " ".join((*path, name)), one


def options() -> dict[str, dict[str, Any]]:
    """Every option, by its name, in every command that has it."""
    found: dict[str, dict[str, Any]] = defaultdict(dict)
    for command, one in commands(typer.main.get_command(app)):
        for option in one.params:
            for name in (*option.opts, *option.secondary_opts):
                if name.startswith("-"):
                    found[name][command] = option
    return found


OPTIONS = options()


def kind_of(option: Any) -> str:
    """What is written behind an option: nothing, or what its metavar stands for, whatever its range."""
    return "a flag" if option.is_flag else str(option.metavar).split(" [", maxsplit=1)[0]


@each("name", sorted(OPTIONS))
def test_an_option_takes_one_kind_of_value_in_all_commands(name: str) -> None:
    kinds = {command: kind_of(option) for command, option in OPTIONS[name].items()}
    if name == "--data":
        # The data sets of papers have names. Everywhere else a table is a file.
        assert kinds.pop("reproduce") == "NAME"
    assert len(set(kinds.values())) == 1, kinds


@each("name", sorted(OPTIONS))
def test_an_option_has_the_same_other_names_in_all_commands(name: str) -> None:
    names = {command: tuple(sorted(option.opts)) for command, option in OPTIONS[name].items()}
    assert len(set(names.values())) == 1, names


# What people mix up most easily: each means this, wherever it is.
MEANINGS = {
    "--columns": ("NAMES", "columns by name"),
    "--features": ("D", "number of columns"),
    "--components": ("K", "How many"),
    "--history": ("ITEMS", "how many items a user has"),
    "-n": ("NUMBER", "how many people"),
    "--authority": ("FOLDER", "folder"),
    "--keys": ("FILE", "keys"),
    "--trust": ("WHO", "noise"),
    "--rounds": ("NUMBER", "rounds"),
    "--center": ("WHICH", "private: "),
    "--neighbours": ("WHICH", "indistinguishable"),
    "--memory-limit": ("BYTES", "memory"),
    "--seed": ("INTEGER", "eproducible"),
}


@pytest.mark.parametrize("name", MEANINGS)
def test_an_option_means_the_same_wherever_it_is(name: str) -> None:
    metavar, words = MEANINGS[name]
    for command, option in OPTIONS[name].items():
        assert kind_of(option) == metavar, command
        assert words.lower() in option.help.lower(), (command, option.help)


def test_a_default_of_neighbours_that_differs_says_why() -> None:
    for command, option in OPTIONS["--neighbours"].items():
        if option.required:
            # Where nothing may be assumed there is no default to explain.
            continue
        usual = option.default == "add-remove" or option.show_default == "add-remove"
        assert usual == ("Other commands" not in option.help), command


def test_every_file_is_in_the_registry_once() -> None:
    folder = Path(str(eigenveil.commands.__file__)).parent
    files = {path.stem for path in folder.glob("*.py") if not path.stem.startswith("_")}
    assert sorted(eigenveil.commands._NAMES) == sorted(files)


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
