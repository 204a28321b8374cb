"""`Commands`: the base of the program `eigenveil` and of its groups of commands, such as `eigenveil study`.

It makes every --help and every usage error read alike, whichever command prints it.
"""

from collections.abc import Callable
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

__all__ = ["Commands"]

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


class Commands(typer.Typer):
    """A group of commands whose --help shows no Python types."""

    def __init__(self, name: str, **settings: Any) -> None:
        super().__init__(name=name, cls=_Group, no_args_is_help=True, **settings)

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Any], Any]:
        """As in typer."""
        return super().command(name, cls=_Command, **settings)


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
