"""`Command` and `Group`, which the file of each command declares as COMMAND, and the program `eigenveil` made of them.

They make every --help, every usage error and every ending read alike, whichever command prints it.
"""

import inspect
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import wraps
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, Final, final

import typer
from typer.core import TyperCommand, TyperGroup

from eigenveil.commands._ending import errors_as_lines
from eigenveil.commands._files import write
from eigenveil.commands._options import OptionGroup, was_typed
from eigenveil.data.formats import PIPES, TableParams
from eigenveil.errors import ParameterError, Words, in_python, require, verbatim
from eigenveil.params.declare import Declared, declared, flag, in_options, option_help, refusal, validate_params
from eigenveil.params.values import Integer, InvalidValue
from eigenveil.show.console import draw

if TYPE_CHECKING:
    from eigenveil.show.console import View
    from eigenveil.show.values import Report

__all__ = ["Answer", "Command", "Group", "program", "typed_settings", "written_out"]

# Values of required parameters that an error shows as an example.
_EXAMPLES: Final = {"n_components": "5", "epsilon": "1", "delta": "1e-6", "kind": PIPES[0]}


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answer:
    """The result of a command. Each way to show it is made only when it is asked for."""

    view: "Callable[[], View]"  # For a person.
    values: Callable[[], Any] | None = None  # For a program: plain values, printed with --json.
    report: "Callable[[], Report] | None" = None  # For --report.
    after: Callable[[], None] | None = None  # Done once the rest is printed.
    code: int = 0  # The exit code.
    alone: bool = False  # Nothing else may be printed on stdout, as with --json.
    indent: int | None = 2  # Of the JSON; None for one line.

    def show(self, *, as_json: bool, report: "Path | None") -> None:
        """Print it, write the report, and end with its exit code."""
        if as_json and self.values is not None:
            # NaN is not JSON, and other programs refuse it.
            typer.echo(json.dumps(self.values(), indent=self.indent, allow_nan=False))
        else:
            draw(self.view())
        if self.report is not None:
            # With JSON on stdout nothing else is printed there.
            write(report, self.report, say=(lambda _: None) if as_json or self.alone else None)
        if self.after is not None:
            self.after()
        if self.code:
            raise typer.Exit(self.code)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command: `run` gets checked values and returns an `Answer`, or None if it has shown everything itself.

    --help has the docstring of `run`. Its options are the parameters of `run`, the fields of its `OptionGroup`s, and the
    parameters of the class `params`. `run` gets these as `settings`, the checked values by name. They are checked before the
    command imports anything heavy. In a `ParameterError` that it raises, names of parameters become names of options.
    """

    run: Callable[..., Answer | None]
    params: type | None = None
    panel: str = ""  # Where it stands in the --help of the program.
    name: str | None = None  # By default that of `run`.
    reads: bool = False  # It reads a table: `run` also gets `reading`, the checked `TableParams`.
    leave: Collection[str] = ()  # Parameters that it does not offer.
    ahead: Collection[str] = ()  # Its own options that come before those of `params`.
    rows: str = "the table"  # What its errors call the rows (X).
    panels: Mapping[str, str] | None = None  # Other names for panels of the declarations.
    # With one of these own options, such as --resume, no other is needed, and `settings` is None. `written_out` lists
    # those that were typed all the same.
    unless: Sequence[str] = ()
    spelling: Words | None = None  # Other names of parameters in errors.
    alone: bool = False  # Each value is checked by itself, and the command checks how they go together.

    @property
    def callback(self) -> Callable[..., None]:
        """What typer calls."""
        return errors_as_lines(self.derived)

    @property
    def derived(self) -> Callable[..., None]:
        """`run` with all of its options by name. It shows the answer."""
        offered = {} if self.params is None else declared(self.params)
        table = {name: entry for name, entry in declared(TableParams).items() if self.reads and name not in self.leave}
        # Parameters of both classes, such as --columns, become one option, which `reading` has.
        entries = {
            name: entry for name, entry in offered.items() if "cli" in entry.param.surfaces and name not in {*self.leave, *table}
        }
        own, groups = _own_options(self.run)
        others = {option.name: f"--{option.name.replace('_', '-')}" for option in own}
        spell_own = self.spelling or (in_python if self.params is None else in_options(self.params, X=self.rows, **others))
        reading = in_options(TableParams)

        def spelling(name: str, value: Any) -> str:
            return reading(name, value) if name in table else spell_own(name, value)

        panels = self.panels or {}
        derived = [
            option for entry in entries.values() for option in _options(entry, spelling, panels=panels, needed=not self.unless)
        ]
        last = [option for entry in table.values() for option in _options(entry, spelling, panels={}, needed=False)]

        @wraps(self.run)
        def run(**arguments: Any) -> None:
            shown = {"as_json": arguments.get("as_json", False), "report": arguments.get("report")}
            try:
                _require_all(entries | table, arguments, spelling, self.unless)
                if self.reads:
                    values = _settings(table, arguments, spelling, ()) or {}
                    arguments["reading"] = TableParams(**_checked(TableParams, values, alone=True))
                if self.params is not None:
                    settings = _settings(entries, arguments, spelling, self.unless)
                    checked = None if settings is None else _checked(self.params, settings, alone=self.alone)
                    arguments["settings"] = checked
                for name, group in groups.items():
                    arguments[name] = group(**{field.name: arguments.pop(field.name) for field in fields(group)})
                answer = self.run(**arguments)
                if answer is not None:
                    answer.show(**shown)
            except ParameterError as error:
                raise ValueError(error.said(spelling)) from error

        # In --help, arguments come first, then the options of parameters, then the command's own.
        first = [option for option in own if option.default is inspect.Parameter.empty or option.name in self.ahead]
        rest = [option for option in own if option not in first]
        # Keywords only: typer passes everything by name, and a required parameter may then follow an optional one.
        every = [option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in (*first, *derived, *rest, *last)]
        run.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
        run.__annotations__ = {option.name: option.annotation for option in every}
        return run

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


def program(name: str, commands: Iterable[Command | Group], **settings: Any) -> typer.Typer:
    """A program whose --help shows no Python types, with these commands in this order."""
    app = typer.Typer(name=name, cls=_Group, no_args_is_help=True, **settings)
    for command in commands:
        command.join(app)
    return app


def _own_options(run: Callable[..., Any]) -> tuple[list[inspect.Parameter], dict[str, type[Any]]]:
    """The options that `run` states itself, and its groups by the name of their argument. Each group becomes its fields."""
    own: list[inspect.Parameter] = []
    groups: dict[str, type[Any]] = {}
    for parameter in inspect.signature(run).parameters.values():
        kind = parameter.annotation
        if isinstance(kind, type) and issubclass(kind, OptionGroup):
            groups[parameter.name] = kind
            own += inspect.signature(kind).parameters.values()
        elif parameter.name not in ("settings", "reading"):
            own.append(parameter)
    return own, groups


def _settings(
    entries: Mapping[str, Declared], options: dict[str, Any], spelling: Words, unless: Sequence[str]
) -> dict[str, Any] | None:
    """The values of parameters. Their options are removed from `options`."""
    # Taken out even if they are not used, because the command itself has no such arguments.
    taken = {name: (options.pop(name), options.pop(_switch(entry), False)) for name, entry in entries.items()}
    if any(options[name] for name in unless):
        return None
    settings = {name: _value(entry, *taken[name], spelling) for name, entry in entries.items()}
    for name, entry in entries.items():
        other = entry.param.required_with
        if other is None or other not in settings:
            continue
        if settings[other] is None and settings[name] is not None:
            raise ParameterError(f"{{{name}}} does not apply with {{{other}=None}}. Leave it out")
        if settings[other] is not None and settings[name] is None:
            raise ParameterError(f"{{{name}}} is missing. {entry.param.missing or entry.param.help}")
    return settings


def _require_all(entries: Mapping[str, Declared], options: Mapping[str, Any], spelling: Words, unless: Sequence[str]) -> None:
    """Refuse a command that lacks several options, all of them in one message. Of a single one `_value` says more."""
    lacking = [] if any(options[name] for name in unless) else list(_lacking(entries, options))
    # A pipe has no name, whose ending would tell its format.
    piped = any(isinstance(option, Path) and str(option) == "-" for option in options.values())
    lacking += [entries["kind"]] if piped and options.get("kind", "") is None else []
    if len(lacking) < 2:
        return
    names = [verbatim(spelling(entry.name, ...)) for entry in lacking]
    example = " ".join(f"{entry.param.short or flag(entry)} {_example(entry)}" for entry in lacking)
    instead = "".join(
        f". In place of {spelling(entry.name, ...)}, {entry.param.opt_out.option} gives: {entry.param.opt_out.help.rstrip('.')}"
        for entry in lacking
        if entry.param.opt_out is not None
    )
    raise ParameterError(
        f"{', '.join(names[:-1])} and {names[-1]} are missing. For example: {verbatim(example)}{verbatim(instead)}"
    )


def _lacking(entries: Mapping[str, Declared], options: Mapping[str, Any]) -> Iterator[Declared]:
    """The required options that were not given."""
    for name, entry in entries.items():
        # An option may belong to another, such as --delta to --epsilon, unless a switch such as --no-privacy was given.
        partner = entries.get(entry.param.required_with or "")
        needed = entry.default is MISSING if partner is None else not options.get(_switch(partner), False)
        if options[name] is None and not options.get(_switch(entry), False) and needed:
            yield entry


def _example(entry: Declared) -> str:
    usual = _EXAMPLES.get(entry.name) if entry.param.opt_out is None else entry.param.opt_out.suggested
    return usual or entry.param.metavar or entry.name.upper()


def _checked(params: type, settings: dict[str, Any], *, alone: bool) -> dict[str, Any]:
    others = {name: entry.default for name, entry in declared(params).items() if name not in settings}
    # If the command supplies a required parameter itself, only the command can check the whole.
    if MISSING in others.values():
        return settings
    values = vars(validate_params(params, SimpleNamespace(**settings, **others), alone=alone))
    return {name: values[name] for name in settings}


def written_out(context: typer.Context, params: type) -> list[str]:
    """The options of `params` that the user typed on the command line."""
    names = {name: flag(entry) for name, entry in declared(params).items()}
    for entry in declared(params).values():
        if entry.param.opt_out is not None:
            names[_switch(entry)] = entry.param.opt_out.option
    return [names[name] for name in was_typed(context, names)]


def typed_settings(context: typer.Context, params: type, spelling: Words) -> dict[str, Any]:
    """The values of those options of `params` that the user typed, by name, except those that say how a table is read."""
    reading = declared(TableParams)
    return {
        name: _value(entry, context.params[name], context.params.get(_switch(entry), False), spelling)
        for name, entry in declared(params).items()
        if name not in reading and was_typed(context, (name, _switch(entry)))
    }


def _options(entry: Declared, spelling: Words, *, panels: Mapping[str, str], needed: bool) -> Iterator[inspect.Parameter]:
    """The option of a parameter, and its switch for None if it has one."""
    panel = panels.get(entry.param.panel or "", entry.param.panel) or None
    yield _option(entry, spelling, panel=panel, needed=needed)
    if entry.param.opt_out is not None:
        about = typer.Option(entry.param.opt_out.option, help=entry.param.opt_out.help, rich_help_panel=panel)
        yield inspect.Parameter(_switch(entry), inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[bool, about], default=False)


def _switch(entry: Declared) -> str:
    return f"{entry.name}_is_none"


def _option(entry: Declared, spelling: Words, *, panel: str | None, needed: bool) -> inspect.Parameter:
    spec = entry.param
    kind: Any = entry.type if spec.parse is None else str
    # None stands for "not given". Typer's own refusal of a missing option would not say what to type.
    default = None if entry.default is MISSING else entry.default
    # A parameter with a switch for None, such as --no-privacy, needs one of the two; `_value` checks that.
    needed = needed and entry.default is MISSING and spec.opt_out is None and spec.missing is None
    if entry.default is MISSING and not needed:
        kind = kind | None
    if spec.is_repeatable:
        kind, needed = list[str] | None, False
    if spec.switch is not None:
        kind, default = bool, False
    elif spec.parse is not None and not needed and not spec.is_repeatable:
        kind, default = (str | None, None) if default is None else (str, str(default))
    # What is off unless it is asked for needs no option to turn it off.
    both = entry.type is bool and spec.switch is None and entry.default is not False
    metavar = spec.metavar or ("NUMBER" if set(entry.kinds) <= {int, float} else None)
    if isinstance(spec.check, Integer) and spec.parse is None:
        metavar = f"{metavar} [{spec.check.range}]"
    about = typer.Option(
        f"{flag(entry)}/--no-{flag(entry)[2:]}" if both else flag(entry),
        *(() if spec.short is None else (spec.short,)),
        help=option_help(entry, spelling),
        metavar=metavar,
        rich_help_panel=panel,
        show_default=spec.switch is None if default is not None else (spec.none_means or False),
        parser=None if spec.among is None else _word_of(spec.among, default),
    )
    return inspect.Parameter(
        entry.name,
        inspect.Parameter.KEYWORD_ONLY,
        annotation=Annotated[kind, about],
        default=inspect.Parameter.empty if needed else default,
    )


def _word_of(among: Callable[[], tuple[str, ...]], default: Any) -> Callable[[str], str]:
    """The check of an option whose words a registry knows, as typer checks those of a Literal."""

    def word(text: str) -> str:
        # Typer checks defaults, too. Asking the registry loads every leaf, and so numpy, before a mistake is said.
        if text != default and text not in (choices := among()):
            raise typer.BadParameter(f"{text!r} is not one of {', '.join(map(repr, choices))}.")
        return text

    return word


def _value(entry: Declared, raw: Any, opts_out: bool, spelling: Words) -> Any:
    """The value that the option of a parameter gives, or its switch for None."""
    if entry.param.opt_out is not None:
        name, switch = spelling(entry.name, ...), spelling(entry.name, None)
        require(raw is None or not opts_out, f"{name} and {switch} contradict each other. Give one of them")
        require(
            raw is not None or opts_out,
            f"{name} is missing. Try {name} {entry.param.opt_out.suggested}, or give {switch} ({entry.param.opt_out.help})",
        )
    elif raw is None and entry.default is MISSING:
        raise ParameterError(f"{{{entry.name}}} is missing. {entry.param.missing or entry.param.help}")
    if entry.param.switch is not None:
        return entry.param.switch[1] if raw else entry.default
    if entry.param.is_repeatable and not raw:
        # An empty list, if it was not given.
        return None
    if raw is None or entry.param.parse is None:
        return raw
    if entry.param.none is not None and raw == entry.param.none:
        return None
    try:
        return entry.param.parse(raw)
    except InvalidValue as error:
        raise refusal(entry, error, raw) from None
    except ValueError:
        # Python's own message, such as that of float(), would not name the option.
        raise refusal(entry, InvalidValue(f"of the form {entry.param.metavar}"), raw) from None


# What --help shows for a value whose option names no metavar of its own. Typer would print Python's types.
_METAVARS: Final = {"<path>": "FILE", "<str>": "TEXT", "<list[str]>": "TEXT"} | dict.fromkeys(
    ("<int>", "<int range>", "<float>", "<float range>"), "NUMBER"
)

# What is wrong with a value that does not parse, by the name that pydantic gives the error.
_EXPECTED: Final = {
    "float_parsing": "must be a number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
}


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
    for param in params:
        if param.param_type_name == "argument":
            _name_only(param)
        elif getattr(param, "is_flag", False):
            # A flag takes no value.
            param.metavar = ""
        elif param.metavar is None and hasattr(param, "display_type"):
            shown = param.display_type(context)
            param.metavar = _METAVARS.get(shown, shown)
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
