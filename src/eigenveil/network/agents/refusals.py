"""`Refusals`: mail that was refused, on the screen and in the book, where a privacy officer finds it."""

from typing import Final, final

from eigenveil.errors import PeerError
from eigenveil.network.agents.durable import Event, Tell
from eigenveil.network.ledger.durable import DurableLedger

__all__ = ["Refusals"]

# Lines for one run of a party: a flood of bad mail is not to fill the disk.
_NOTED: Final = 100


@final
class Refusals:
    """Changes in place: it counts."""

    def __init__(self, book: DurableLedger, study: str, tell: Tell) -> None:
        self._book, self._study, self._tell, self._count = book, study, tell, 0

    def note(self, error: PeerError) -> None:
        """Say what was refused and why, here and nowhere else."""
        self._tell(Event("refused", error.peer, error.why))
        self.write(f"refused mail from {error.peer}: {error.why}")

    def write(self, words: str) -> None:
        """A line in the book, while there is room for such lines."""
        self._count += 1
        if self._count <= _NOTED:
            self._book.note(self._study, words)
