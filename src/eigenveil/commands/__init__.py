"""The program `eigenveil`: one module per command, a folder where a command needs several.

Numpy and scikit-learn are imported inside the commands, never here, so that --help answers at once.
The console script and `python -m eigenveil` call it. It may import every other package, and none may import it.
"""

from typing import Annotated

import typer

from eigenveil import __version__
from eigenveil.commands._commands import Commands
from eigenveil.commands._streams import watch
from eigenveil.commands.account import account
from eigenveil.commands.audit import audit
from eigenveil.commands.bounds import bounds
from eigenveil.commands.demo import demo
from eigenveil.commands.fit import fit
from eigenveil.commands.hub import hub
from eigenveil.commands.inspect import inspect
from eigenveil.commands.keys import keys
from eigenveil.commands.ledger import ledger
from eigenveil.commands.node import node
from eigenveil.commands.peer import peer
from eigenveil.commands.plan import plan
from eigenveil.commands.policy import policy
from eigenveil.commands.recommend import recommend
from eigenveil.commands.report import report
from eigenveil.commands.simulate import simulate
from eigenveil.commands.site import site
from eigenveil.commands.spectrum import spectrum
from eigenveil.commands.stream import stream
from eigenveil.commands.study import study
from eigenveil.commands.transform import transform

__all__ = ["app"]

app = Commands(
    "eigenveil",
    # Plain tracebacks only: pretty ones print local variables, which can be rows.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)
# The order of --help: panels as a new user needs them, and in each the commands in the order they are typed.
_FIRST, _FITS, _AFTER = "Start here", "Fit", "Use and check a model"
_STUDIES = "Studies across organisations"
for _panel, _commands in (
    (_FIRST, (demo, plan, bounds, spectrum)),
    (_FITS, (fit, stream, simulate)),
    (_AFTER, (inspect, report, transform, account, audit)),
    (_STUDIES, (hub, site, node, peer, watch)),
):
    for _command in _commands:
        app.command(rich_help_panel=_panel)(_command)
for _panel, _groups in ((_FITS, (recommend,)), (_STUDIES, (keys, study, policy, ledger))):
    for _group in _groups:
        app.add_typer(_group, rich_help_panel=_panel)


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
