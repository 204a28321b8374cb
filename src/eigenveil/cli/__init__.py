"""The command `eigenveil`: one module per subcommand, and heavy imports inside them, so that --help answers at once."""

from typing import Annotated

import typer

from eigenveil import __version__
from eigenveil.cli._renamed import Command
from eigenveil.cli.account import account
from eigenveil.cli.audit import audit
from eigenveil.cli.bounds.command import bounds
from eigenveil.cli.bounds.spectrum import spectrum
from eigenveil.cli.demo import demo
from eigenveil.cli.fit import fit
from eigenveil.cli.inspect import inspect
from eigenveil.cli.network.hub import hub
from eigenveil.cli.network.node import node
from eigenveil.cli.network.peer import peer
from eigenveil.cli.network.site import site
from eigenveil.cli.plan.command import plan
from eigenveil.cli.recommend.command import recommend
from eigenveil.cli.simulate.command import simulate
from eigenveil.cli.stream.command import stream
from eigenveil.cli.study.command import study
from eigenveil.cli.study.keys import keys
from eigenveil.cli.study.ledger import ledger
from eigenveil.cli.study.policy import policy
from eigenveil.cli.transform import transform

__all__ = ["app"]

app = typer.Typer(
    name="eigenveil",
    no_args_is_help=True,
    # Plain tracebacks, if one ever shows: pretty ones can print local variables, and those hold rows.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)
for _command in (
    *(plan, bounds, spectrum, fit, stream, simulate, transform, inspect, account, audit, demo),
    *(hub, site, peer, node),
):
    app.command(cls=Command)(_command)
for _group in (recommend, keys, study, policy, ledger):
    app.add_typer(_group)


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
    """Principal components of sensitive tables, with a differential-privacy guarantee.

    Start with a public dataset, then fit your own table:

      eigenveil demo
      eigenveil fit people.csv -k 5 --epsilon 1 --delta 1e-6 --row-bound 1

    Each command explains itself: eigenveil fit --help
    """
