"""How commands declare options and arguments of their own: `argument`, `option` and `flag`."""

from typing import Any

import typer

__all__ = ["argument", "flag", "option"]


def argument(metavar: str, words: str, *, unset: str | bool = False, shows: bool = False) -> Any:
    """An argument, with its --help. That says what happens when it is `unset`, or `shows` the default itself."""
    return typer.Argument(metavar=metavar, help=words, show_default=shows or unset)


def option(
    *names: str | None, unset: str | bool = False, shows: bool = False, panel: str | None = None, **range_: Any
) -> Any:
    """An option: its names, if they are not those of the parameter, its metavar or None, and its --help.

    That says what happens when it is `unset`, or `shows` the default itself. A number may have a `min`.
    """
    *flags, metavar, words = names
    return typer.Option(
        *map(str, flags), metavar=metavar, help=words, show_default=shows or unset, rich_help_panel=panel, **range_
    )


def flag(name: str, words: str, *, panel: str | None = None) -> Any:
    """A switch that is off unless it is given."""
    return typer.Option(name, help=words, rich_help_panel=panel)
