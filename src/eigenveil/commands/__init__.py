"""The program `eigenveil`: one file per command, which declares it as COMMAND.

Numpy and scikit-learn are imported inside the commands, never here, so that --help answers at once.
The console script and `python -m eigenveil` call it. It may import every other package, and none may import it.
"""

from importlib import import_module
from typing import Annotated, Final

import typer

from eigenveil import __version__
from eigenveil.commands._command import program

__all__ = ["app"]

# The registry. Commands come before groups, and each panel of --help has them in the order they are typed.
_NAMES: Final = (
    *("demo", "plan", "bounds", "spectrum"),
    *("fit", "stream", "simulate"),
    *("inspect", "report", "transform", "account", "audit", "reproduce"),
    *("hub", "site", "node", "peer", "watch"),
    "recommend",
    *("keys", "study", "policy", "ledger"),
)
app = program(
    "eigenveil",
    (import_module(f"eigenveil.commands.{name}").COMMAND for name in _NAMES),
    # Plain tracebacks only: pretty ones print local variables, which can be rows.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"eigenveil {__version__}")
        raise typer.Exit


@app.callback()
def main(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Private PCA for data that can't be pooled.

    Eigenveil computes principal components of sensitive tables. Every result
    says what it reveals about the people in them.

    Start with a public dataset. Then fit your own table. The norm that rows
    are clipped to is found privately:

      eigenveil demo
      eigenveil fit people.csv -k 5 --epsilon 1 --delta 1e-6

    Columns in different units, such as years and euros, are standardised
    privately with --scale private.

    Each command explains itself: eigenveil fit --help
    """
