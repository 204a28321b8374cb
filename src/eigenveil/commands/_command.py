"""`Command` and `Group`, which the file of each command declares as COMMAND, and the program `eigenveil` made of them.

They make every --help, every usage error and every ending read alike, whichever command prints it.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

import typer
from typer.core import TyperCommand, TyperGroup

from eigenveil.commands._derived import with_options
from eigenveil.commands._ending import errors_as_lines
from eigenveil.commands._files import write
from eigenveil.errors import Words
from eigenveil.show.console import draw

if TYPE_CHECKING:
    from eigenveil.show.console import View
    from eigenveil.show.values import Report

__all__ = ["Answer", "Command", "Group", "program"]

# What --help shows for a value whose option names no metavar of its own. Typer would print Python's types.
_METAVARS: Final = {
    "<path>": "FILE",
    "<str>": "TEXT",
    "<list[str]>": "TEXT",
    "<int>": "NUMBER",
    "<int range>": "NUMBER",
    "<float>": "NUMBER",
    "<float range>": "NUMBER",
}
# What is wrong with a value that does not parse, by the name that pydantic gives the error.
_EXPECTED: Final = {
    "float_parsing": "must be a number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
}


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answer:
    """What a command found. Each way to show it is made only when it is asked for."""

    view: "Callable[[], View]"  # For a person.
    values: Callable[[], Any] | None = None  # For a program: plain values, printed with --json.
    report: "Callable[[], Report] | None" = None  # For --report.
    after: Callable[[], None] | None = None  # What else is done, once this is printed.
    code: int = 0  # The exit code.
    alone: bool = False  # Whether nothing else may be printed on stdout, as with --json.
    indent: int | None = 2  # Of the JSON; None for one line.


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command: `run` gets checked values and returns an `Answer`, or None where it has shown everything itself.

    --help has the docstring of `run`. Its options are the parameters of `run`, and those that `params` declares; see
    `with_options` for how these are derived. In a program it stands in the `panel`, called like `run` unless it has a `name`.
    """

    run: Callable[..., Answer | None]
    params: type | None = None
    panel: str = ""
    name: str | None = None
    reads: bool = False
    leave: Collection[str] = ()
    ahead: Collection[str] = ()
    rows: str = "the table"
    panels: Mapping[str, str] | None = None
    unless: Sequence[str] = ()
    words: Words | None = None
    alone: bool = False

    @property
    def callback(self) -> Callable[..., None]:
        """What typer calls."""

        @wraps(self.run)
        def answered(**given: Any) -> None:
            answer = self.run(**given)
            if answer is not None:
                _show(answer, as_json=given.get("as_json", False), report=given.get("report"))

        if self.params is None:
            return errors_as_lines(answered)
        derived = with_options(
            self.params,
            reads=self.reads,
            leave=self.leave,
            ahead=self.ahead,
            rows=self.rows,
            panels=self.panels,
            unless=self.unless,
            words=self.words,
            alone=self.alone,
        )
        return errors_as_lines(derived(answered))

    def join(self, app: typer.Typer) -> None:
        """Add this command to a program."""
        app.command(self.name, cls=_Command, rich_help_panel=self.panel or None)(self.callback)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Commands under one `name`. --help has the docstring of `about`."""

    name: str
    about: Callable[[], None]
    commands: tuple[Command, ...]
    panel: str = ""

    @property
    def app(self) -> typer.Typer:
        """The commands as a program of their own."""
        app = program(self.name, self.commands)
        app.callback()(self.about)
        return app

    def join(self, app: typer.Typer) -> None:
        """Add the group to a program."""
        app.add_typer(self.app, rich_help_panel=self.panel or None)


def program(name: str, commands: "Iterable[Command | Group]", **settings: Any) -> typer.Typer:
    """A program whose --help shows no Python types, with these commands in this order."""
    app = typer.Typer(name=name, cls=_Group, no_args_is_help=True, **settings)
    for command in commands:
        command.join(app)
    return app


def _show(answer: Answer, *, as_json: bool, report: "Path | None") -> None:
    if as_json and answer.values is not None:
        # NaN is not JSON, and other programs refuse it.
        typer.echo(json.dumps(answer.values(), indent=answer.indent, allow_nan=False))
    else:
        draw(answer.view())
    if answer.report is not None:
        # Beside JSON on stdout nothing else is printed.
        write(report, answer.report, say=(lambda _: None) if as_json or answer.alone else None)
    if answer.after is not None:
        answer.after()
    if answer.code:
        raise typer.Exit(answer.code)


class _Command(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx), ctx)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse a bad value in plain words."""
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            error.message = _plainly(error)
            raise


class _Group(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx), ctx)


def _without_types(params: list[Any], context: Any) -> list[Any]:
    for one in params:
        if one.param_type_name == "argument":
            _name_only(one)
        elif getattr(one, "is_flag", False):
            # A flag takes no value.
            one.metavar = ""
        elif one.metavar is None and hasattr(one, "display_type"):
            shown = one.display_type(context)
            one.metavar = _METAVARS.get(shown, shown)
    return params


def _name_only(argument: Any) -> None:
    """Show an argument by its name alone: `DATA`, where typer has `{DATA}` in the usage and `DATA <path>` below."""
    name = argument.metavar or argument.name.upper() + "..." * (argument.nargs != 1)
    argument.get_usage_pieces = lambda _context: [name if argument.required or name[0] == "[" else f"[{name}]"]
    argument.display_type_rich = lambda ctx: None


def _plainly(error: typer.BadParameter) -> str:
    """The message without the words of the library that read the value."""
    details = getattr(error.__cause__, "errors", None)
    if details is None:
        return error.message
    first = details()[0]
    if first["type"] == "value_error":
        return f"{first['ctx']['error']}"
    expected = _EXPECTED.get(first["type"])
    return error.message if expected is None else f"{expected}, got {first['input']!r}."
