"""A ledger on disk: what was spent, on whom, and what is left, through crashes and in several processes.

`Ledger.open` and `--ledger` charge it before noise is drawn, agents of studies before an answer leaves, and
`eigenveil ledger` shows it. It may import `data`, `core` and `errors`. After an import of `Ledger` from here, or of any file of
this package, a notebook shows ledgers.
"""

from importlib import import_module

from eigenveil.core.ledger import Ledger

__all__ = ["Ledger"]


def _in_notebook(ledger: Ledger) -> str:
    # By name, because nothing here draws either.
    return str(import_module("eigenveil.show.notebook").html_of(ledger))


Ledger._repr_html_ = _in_notebook
