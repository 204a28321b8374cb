"""`Command`: one that says what an option of version 0.1 is called now."""

from typing import Any

from typer.core import TyperCommand

from eigenveil.params.renamed import RENAMED_OPTIONS

__all__ = ["Command"]


class Command(TyperCommand):
    """A command that refuses an option it had in version 0.1 with the name that the option has now."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Look for old names first: what is nearest in letters, which is what people are shown else, is another option."""
        known = {name for one in self.params for name in (*one.opts, *one.secondary_opts)}
        for word in args[: args.index("--")] if "--" in args else args:
            name = word.partition("=")[0]
            now = [option for option in RENAMED_OPTIONS.get(name, ()) if option in known]
            if now and name not in known:
                ctx.fail(f"No such option: {name}. It is called {now[0]} now.")
        return super().parse_args(ctx, args)
