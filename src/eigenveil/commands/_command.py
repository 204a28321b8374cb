"""`Command` and `Group`, which the file of each command declares as COMMAND, and the program `eigenveil` made of them.

They make every --help, every usage error and every ending read alike, whichever command prints it.
"""

import inspect
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, replace
from functools import wraps
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, Final, final

import typer
from typer.core import TyperCommand, TyperGroup

from eigenveil.commands._ending import errors_as_lines
from eigenveil.commands._files import write
from eigenveil.data.formats import PIPES, TableParams
from eigenveil.errors import ParameterError, Words, require, verbatim
from eigenveil.params.declare import Declared, declared, flag, in_options, option_help, refusal, validate_params
from eigenveil.params.values import Integer, InvalidValue
from eigenveil.show.console import draw

if TYPE_CHECKING:
    from eigenveil.show.console import View
    from eigenveil.show.values import Report

__all__ = ["Answer", "Command", "Group", "program", "typed_settings", "with_options", "written_out"]

# Values of required parameters that an error shows as an example.
_USUAL: Final = {"n_components": "5", "epsilon": "1", "delta": "1e-6", "kind": PIPES[0]}


def with_options(
    params: type,
    *,
    leave: Collection[str] = (),
    ahead: Collection[str] = (),
    rows: str = "the table",
    panels: Mapping[str, str] | None = None,
    unless: Sequence[str] = (),
    spelling: Words | None = None,
    alone: bool = False,
    reads: bool = False,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for each parameter of `params`, except those in `leave`.

    The command gets `settings`, the checked values by name. They are checked before the command imports anything heavy.
    A `ParameterError` that it raises names options, and calls the rows of an estimator (X) `rows`.

    - `panels` renames panels of the declarations, and `ahead` lists the command's own options that come first.
    - With one of the command's own options `unless`, such as --resume, no option is needed, and `settings` is None.
      `written_out` lists the options that were typed all the same.
    - With `alone`, each value is checked by itself, and the command checks how they go together.
    - `spelling` replaces the names of parameters in errors.
    - A command that `reads` a table also gets `reading`, the checked `TableParams`. They are no part of `settings`.
    """
    table = {name: parameter for name, parameter in declared(TableParams).items() if reads and name not in leave}
    offered = {
        name: parameter
        for name, parameter in declared(params).items()
        if "cli" in parameter.param.surfaces and name not in leave
    }
    # Parameters of both classes, such as --columns, become one option, which `reading` has.
    fields = {name: parameter for name, parameter in offered.items() if name not in table}

    def made(command: Callable[..., None]) -> Callable[..., None]:
        arguments = inspect.signature(command).parameters.values()
        own = [parameter for parameter in arguments if parameter.name not in ("settings", "reading")]
        others = {parameter.name: f"--{parameter.name.replace('_', '-')}" for parameter in own}
        option_names = _also(spelling or in_options(params, X=rows, **others), table)
        # In --help, arguments come first, then the options of parameters, then the command's own.
        first = [
            parameter for parameter in own if parameter.default is inspect.Parameter.empty or parameter.name in ahead
        ]
        rest = [parameter for parameter in own if parameter not in first]
        shown = [_under(parameter, panels or {}) for parameter in fields.values()]
        options = [option for parameter in shown for option in _options(parameter, option_names, needed=not unless)]
        last = [option for parameter in table.values() for option in _options(parameter, option_names, needed=False)]

        @wraps(command)
        def run(**arguments: Any) -> None:
            try:
                _require_all(fields | table, arguments, option_names, unless)
                if reads:
                    arguments["reading"] = TableParams(
                        **_checked(TableParams, _settings(table, arguments, option_names, ()) or {}, alone=True)
                    )
                settings = _settings(fields, arguments, option_names, unless)
                command(settings=None if settings is None else _checked(params, settings, alone=alone), **arguments)
            except ParameterError as error:
                raise ValueError(error.said(option_names)) from error

        # Keywords only: typer passes everything by name, and a required parameter may then follow an optional one.
        whole = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in (*first, *options, *rest, *last)
        ]
        run.__signature__ = inspect.Signature(whole)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in whole}
        return run

    return made


def _also(spelling: Words, table: Mapping[str, Declared]) -> Words:
    """The words of a command that also has the options of `TableParams`."""
    reading = in_options(TableParams)
    return lambda name, value: reading(name, value) if name in table else spelling(name, value)


def _settings(
    fields: Mapping[str, Declared], options: dict[str, Any], spelling: Words, unless: Sequence[str]
) -> dict[str, Any] | None:
    """The values of parameters. Their options are removed from `options`."""
    # Taken out even if they are not used, because the command itself has no such arguments.
    taken = {name: (options.pop(name), options.pop(_switch(field), False)) for name, field in fields.items()}
    if any(options[name] for name in unless):
        return None
    settings = {name: _value(field, *taken[name], spelling) for name, field in fields.items()}
    _require_together(fields, settings)
    return settings


def _require_all(
    fields: Mapping[str, Declared], options: Mapping[str, Any], spelling: Words, unless: Sequence[str]
) -> None:
    """Refuse a command that lacks several options, all of them in one message. Of a single one `_value` says more."""
    lacking = [] if any(options[name] for name in unless) else list(_lacking(fields, options))
    # A pipe has no name, whose ending would tell its format.
    piped = any(isinstance(field, Path) and str(field) == "-" for field in options.values())
    lacking += [fields["kind"]] if piped and options.get("kind", "") is None else []
    if len(lacking) < 2:
        return
    names = [verbatim(spelling(field.name, ...)) for field in lacking]
    tried = " ".join(f"{field.param.short or flag(field)} {_tried(field)}" for field in lacking)
    instead = "".join(
        f". In place of {spelling(field.name, ...)}, {field.param.opt_out.option} gives: {field.param.opt_out.help.rstrip('.')}"
        for field in lacking
        if field.param.opt_out is not None
    )
    raise ParameterError(
        f"{', '.join(names[:-1])} and {names[-1]} are missing. For example: {verbatim(tried)}{verbatim(instead)}"
    )


def _lacking(fields: Mapping[str, Declared], options: Mapping[str, Any]) -> Iterator[Declared]:
    """The required options that were not given."""
    for name, field in fields.items():
        # An option may belong to another, such as --delta to --epsilon, unless a switch such as --no-privacy was given.
        beside = fields.get(field.param.required_with or "")
        needed = field.default is MISSING if beside is None else not options.get(_switch(beside), False)
        if options[name] is None and not options.get(_switch(field), False) and needed:
            yield field


def _tried(field: Declared) -> str:
    """A value that an example shows."""
    usual = _USUAL.get(field.name) if field.param.opt_out is None else field.param.opt_out.suggested
    return usual or field.param.metavar or field.name.upper()


def _checked(params: type, settings: dict[str, Any], *, alone: bool) -> dict[str, Any]:
    others = {name: field.default for name, field in declared(params).items() if name not in settings}
    # If the command supplies a required parameter itself, only the command can check the whole.
    if MISSING in others.values():
        return settings
    values = vars(validate_params(params, SimpleNamespace(**settings, **others), alone=alone))
    return {name: values[name] for name in settings}


def written_out(context: typer.Context, params: type) -> list[str]:
    """The options of `params` that the user typed on the command line."""
    names = {name: flag(field) for name, field in declared(params).items()}
    names |= {
        _switch(field): field.param.opt_out.option
        for field in declared(params).values()
        if field.param.opt_out is not None
    }
    sources = ((option, context.get_parameter_source(name)) for name, option in names.items())
    return [option for option, source in sources if source is not None and source.name == "COMMANDLINE"]


def typed_settings(context: typer.Context, params: type, spelling: Words) -> dict[str, Any]:
    """The values of those options of `params` that the user typed, by name, but for those that say how a table is read."""
    settings, reading = {}, declared(TableParams)
    for name, field in declared(params).items():
        typed = [context.get_parameter_source(option) for option in (name, _switch(field))]
        if name not in reading and any(source is not None and source.name == "COMMANDLINE" for source in typed):
            settings[name] = _value(field, context.params[name], context.params.get(_switch(field), False), spelling)
    return settings


def _under(field: Declared, panels: Mapping[str, str]) -> Declared:
    panel = field.param.panel or ""
    return replace(field, param=replace(field.param, panel=panels.get(panel, panel)))


def _options(field: Declared, spelling: Words, *, needed: bool) -> Iterator[inspect.Parameter]:
    yield _option(field, spelling, needed=needed)
    if field.param.opt_out is not None:
        about = typer.Option(
            field.param.opt_out.option, help=field.param.opt_out.help, rich_help_panel=field.param.panel or None
        )
        yield inspect.Parameter(
            _switch(field), inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[bool, about], default=False
        )


def _switch(field: Declared) -> str:
    return f"{field.name}_is_none"


def _option(field: Declared, spelling: Words, *, needed: bool) -> inspect.Parameter:
    spec = field.param
    kind: Any = field.type if spec.parse is None else str
    # None stands for "not given". Typer's own refusal of a missing option would not say what to type.
    default = None if field.default is MISSING else field.default
    # A parameter with a switch for None, such as --no-privacy, needs one of the two; `_value` checks that.
    needed = needed and field.default is MISSING and spec.opt_out is None and spec.missing is None
    if field.default is MISSING and not needed:
        kind = kind | None
    if spec.is_repeatable:
        kind, needed = list[str] | None, False
    if spec.switch is not None:
        kind, default = bool, False
    elif spec.parse is not None and not needed and not spec.is_repeatable:
        kind, default = (str | None, None) if default is None else (str, str(default))
    # What is off unless it is asked for needs no option to turn it off.
    both = field.type is bool and spec.switch is None and field.default is not False
    name = f"{flag(field)}/--no-{flag(field)[2:]}" if both else flag(field)
    about = typer.Option(
        name,
        *(() if spec.short is None else (spec.short,)),
        help=option_help(field, spelling),
        metavar=_metavar(field),
        rich_help_panel=spec.panel or None,
        show_default=spec.switch is None if default is not None else (spec.none_means or False),
        parser=None if spec.among is None else _word_of(spec.among, default),
    )
    return inspect.Parameter(
        field.name,
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


def _metavar(field: Declared) -> str | None:
    """The placeholder for the value, with the range of a whole number."""
    word, check = field.param.metavar, field.param.check
    if word is None and set(field.kinds) <= {int, float}:
        word = "NUMBER"
    return f"{word} [{check.range}]" if isinstance(check, Integer) and field.param.parse is None else word


def _require_together(fields: Mapping[str, Declared], settings: Mapping[str, Any]) -> None:
    """Refuse a parameter that was given without the one it belongs to, or the other way round."""
    for name, field in fields.items():
        other = field.param.required_with
        if other is None or other not in settings:
            continue
        if settings[other] is None and settings[name] is not None:
            raise ParameterError(f"{{{name}}} does not apply with {{{other}=None}}. Leave it out")
        if settings[other] is not None and settings[name] is None:
            raise ParameterError(f"{{{name}}} is missing. {field.param.missing or field.param.help}")


def _value(field: Declared, raw: Any, aloud: bool, spelling: Words) -> Any:
    """The value that the option of a parameter gives, or its switch for None."""
    if field.param.opt_out is not None:
        name, switch = spelling(field.name, ...), spelling(field.name, None)
        require(raw is None or not aloud, f"{name} and {switch} contradict each other. Give one of them")
        require(
            raw is not None or aloud,
            f"{name} is missing. Try {name} {field.param.opt_out.suggested}, or give {switch} ({field.param.opt_out.help})",
        )
    elif raw is None and field.default is MISSING:
        raise ParameterError(f"{{{field.name}}} is missing. {field.param.missing or field.param.help}")
    if field.param.switch is not None:
        return field.param.switch[1] if raw else field.default
    if field.param.is_repeatable and not raw:
        # An empty list, if it was not given.
        return None
    if raw is None or field.param.parse is None:
        return raw
    if field.param.none is not None and raw == field.param.none:
        return None
    try:
        return field.param.parse(raw)
    except InvalidValue as error:
        raise refusal(field, error, raw) from None
    except ValueError:
        # Python's own message, such as that of float(), would not name the option.
        raise refusal(field, InvalidValue(f"of the form {field.param.metavar}"), raw) from None


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
    spelling: Words | None = None
    alone: bool = False

    @property
    def callback(self) -> Callable[..., None]:
        """What typer calls."""

        @wraps(self.run)
        def answered(**arguments: Any) -> None:
            answer = self.run(**arguments)
            if answer is not None:
                _show(answer, as_json=arguments.get("as_json", False), report=arguments.get("report"))

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
            spelling=self.spelling,
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
