"""`Refusals`: messages that were refused, on the screen and in the ledger, where a privacy officer finds them.

Sites and peers use it. The sender learns nothing: a reason could tell it about the rows.
"""

from typing import Final, final

from eigenveil.errors import PeerError
from eigenveil.network.agents.durable.party import Event, OnEvent
from eigenveil.network.ledger.durable import DurableLedger
from eigenveil.protocols import Decline, Message, Return
from eigenveil.protocols.masked.terms import DECLINED

__all__ = ["Refusals", "is_refusal"]

# Notes for one run of a party. A flood of bad messages must not fill the disk.
_NOTED: Final = 100


@final
class Refusals:
    """Reports refused messages. Changes in place: it counts them."""

    def __init__(self, ledger: DurableLedger, study: str, on_event: OnEvent) -> None:
        self._durable_ledger, self._study, self._on_event, self._count = ledger, study, on_event, 0

    def note(self, error: PeerError) -> None:
        """Say what was refused and why, here and nowhere else."""
        # On the screen every time, in the ledger up to the limit: a screen does not fill a disk.
        self._on_event(Event("refused", error.peer, error.why))
        self.write(f"refused a message from {error.peer}: {error.why}")

    def write(self, words: str) -> None:
        """Note it in the ledger, unless there are too many such notes."""
        self._count += 1
        if self._count <= _NOTED:
            self._durable_ledger.note(self._study, words)


def is_refusal(message: Message) -> bool:
    """Whether a message says that the site has no part to give."""
    return isinstance(message.body, Decline) or (isinstance(message.body, Return) and message.body.data == DECLINED)
