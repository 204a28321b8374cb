"""`Refusals`: messages that were refused, on the screen and in the ledger, where a privacy officer finds it."""

from typing import Final, final

from eigenveil.errors import PeerError
from eigenveil.network.agents.durable.party import Event, OnEvent
from eigenveil.network.ledger.durable import DurableLedger

__all__ = ["Refusals"]

# Lines for one run of a party: a flood of bad messages are not to fill the disk.
_NOTED: Final = 100


@final
class Refusals:
    """Changes in place: it counts."""

    def __init__(self, ledger: DurableLedger, study: str, on_event: OnEvent) -> None:
        self._durable_ledger, self._study, self._on_event, self._count = ledger, study, on_event, 0

    def note(self, error: PeerError) -> None:
        """Say what was refused and why, here and nowhere else."""
        self._on_event(Event("refused", error.peer, error.why))
        self.write(f"refused messages from {error.peer}: {error.why}")

    def write(self, words: str) -> None:
        """A line in the ledger, while there is room for such lines."""
        self._count += 1
        if self._count <= _NOTED:
            self._durable_ledger.note(self._study, words)
