"""How a notebook shows a ledger: what was spent, and where it is kept."""

from eigenveil.core.ledger import Ledger
from eigenveil.drawing import escaped, fragment, table
from eigenveil.errors import EigenveilError

__all__ = ["html_of"]


def html_of(ledger: Ledger) -> str:
    """What was spent, and what is left."""
    budget, where = ledger.budget, ledger.place
    try:
        spent = f"spent: epsilon {ledger.epsilon():.3g} of {budget.epsilon:g} at delta = {budget.delta:g}"
    except EigenveilError as error:
        # A file may be gone or damaged since.
        return fragment(f"<p>{escaped(where)}</p><p>{escaped(str(error))}</p>")
    entries = table(("release", "mu"), [(charge.label, charge.mu) for charge in ledger.charges])
    place = f"<p>{escaped(where)}. Left: epsilon {ledger.left():g}</p>" if where else ""
    return fragment(f"<p><strong>{escaped(spent)}</strong></p>{place}{entries}")


Ledger.drawn = html_of
