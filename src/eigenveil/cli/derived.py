"""Options of commands, derived from the declarations of parameters."""

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import MISSING
from functools import wraps
from typing import Annotated, Any

import typer

from eigenveil.errors import ParameterError, Words, require
from eigenveil.params.declare import Declared, declared, refusal
from eigenveil.params.values import Expected
from eigenveil.params.words import flag, help_of, in_options

__all__ = ["with_options"]


def with_options(
    params: type, *, leave: Collection[str] = (), rows: str = "the table", words: Words | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for each parameter of `params` but those in `leave`.

    The command is called with `settings`, their values by name. A `ParameterError` in it is said in the words of its
    options, and X, the rows of an estimator, as `rows`; or all of it in other `words`.
    """
    words = words or in_options(params, X=rows)
    known = {name: one for name, one in declared(params).items() if "cli" in one.param.surfaces and name not in leave}

    def made(command: Callable[..., None]) -> Callable[..., None]:
        own = [one for one in inspect.signature(command).parameters.values() if one.name != "settings"]
        # Options come behind the arguments, and before the command's own options.
        first = [one for one in own if one.default is inspect.Parameter.empty]
        rest = [one for one in own if one.default is not inspect.Parameter.empty]
        options = [option for one in known.values() for option in _options(one, words)]

        @wraps(command)
        def run(**given: Any) -> None:
            try:
                settings = {name: _value(one, given, words) for name, one in known.items()}
                _require_together(known, settings)
                command(**given, settings=settings)
            except ParameterError as error:
                raise ValueError(error.said(words)) from error

        whole = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in (*first, *options, *rest)]
        run.__signature__ = inspect.Signature(whole)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in whole}
        return run

    return made


def _options(one: Declared, words: Words) -> Iterator[inspect.Parameter]:
    yield _option(one, words)
    if one.param.aloud is not None:
        about = typer.Option(one.param.aloud.option, help=one.param.aloud.help, rich_help_panel=one.param.panel or None)
        yield inspect.Parameter(
            _switch(one), inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[bool, about], default=False
        )


def _switch(one: Declared) -> str:
    return f"{one.name}_is_none"


def _option(one: Declared, words: Words) -> inspect.Parameter:
    spec = one.param
    kind: Any = one.type if spec.parse is None else str
    default = None if one.default is MISSING else one.default
    # Where a switch of its own says None, such as --no-privacy, one of the two is needed, and `_value` sees to it.
    needed = one.default is MISSING and spec.aloud is None
    if spec.parse is not None and not needed:
        kind, default = (str | None, None) if default is None else (str, str(default))
    name = f"{flag(one)}/--no-{flag(one)[2:]}" if kind is bool else flag(one)
    about = typer.Option(
        name,
        *(() if spec.short is None else (spec.short,)),
        help=help_of(one, words),
        metavar=spec.metavar,
        rich_help_panel=spec.panel or None,
        show_default=True if default is not None else (spec.unset or False),
    )
    return inspect.Parameter(
        one.name,
        inspect.Parameter.KEYWORD_ONLY,
        annotation=Annotated[kind, about],
        default=inspect.Parameter.empty if needed else default,
    )


def _require_together(known: Mapping[str, Declared], settings: Mapping[str, Any]) -> None:
    """Refuse a parameter that goes with another one and was given without it, or the other way round."""
    for name, one in known.items():
        other = one.param.beside
        if other is None or other not in settings:
            continue
        if settings[other] is None and settings[name] is not None:
            raise ParameterError(f"{{{name}}} means nothing with {{{other}=None}}; leave it out")
        if settings[other] is not None and settings[name] is None:
            raise ParameterError(f"{{{name}}} is missing. {one.param.help}")


def _value(one: Declared, options: dict[str, Any], words: Words) -> Any:
    """What the options of a parameter say; taken out of `options`."""
    given, aloud = options.pop(one.name), options.pop(_switch(one), False)
    if one.param.aloud is not None:
        name, switch = words(one.name, ...), words(one.name, None)
        require(given is None or not aloud, f"{name} and {switch} contradict each other; give one of them")
        require(
            given is not None or aloud, f"{name} is missing. Try {name} 1, or ask for {switch}: {one.param.aloud.help}"
        )
    if given is None or one.param.parse is None:
        return given
    if one.param.none is not None and given == one.param.none:
        return None
    try:
        return one.param.parse(given)
    except Expected as error:
        raise refusal(one, error, given) from None
    except ValueError:
        raise refusal(one, Expected(f"of the form {one.param.metavar}"), given) from None
