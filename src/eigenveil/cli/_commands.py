"""`Commands`: what all commands and groups of them are made by."""

from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from eigenveil.params.renamed import RENAMED_OPTIONS

__all__ = ["Commands"]


class Commands(typer.Typer):
    """A group of commands, in whose --help no flag has a type: nothing is written behind it."""

    def __init__(self, name: str, **settings: Any) -> None:
        super().__init__(name=name, cls=_Group, no_args_is_help=True, **settings)

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Any], Any]:
        """As in typer."""
        return super().command(name, cls=_Command, **settings)


class _Command(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        return _plain_flags(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse an option of version 0.1 with the name it has now."""
        # Before typer sees it: typer would suggest the nearest spelling, which is another option.
        known = {name for one in self.params for name in (*one.opts, *one.secondary_opts)}
        for word in args[: args.index("--")] if "--" in args else args:
            name = word.partition("=")[0]
            now = [option for option in RENAMED_OPTIONS.get(name, ()) if option in known]
            if now and name not in known:
                ctx.fail(f"No such option: {name}. It is called {now[0]} now.")
        return super().parse_args(ctx, args)


class _Group(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _plain_flags(super().get_params(ctx))


def _plain_flags(params: list[Any]) -> list[Any]:
    for one in params:
        if getattr(one, "is_flag", False):
            one.metavar = ""
    return params
