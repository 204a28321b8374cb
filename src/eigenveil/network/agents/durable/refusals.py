"""`Refusals`: messages that were refused, on the screen and in the ledger's log, where the site's own people find them.

Sites and peers use it. Nobody else learns of them: a reason, or how many there are, could tell about the rows. So they are not
among the entries, which may be exported.
"""

from typing import Final, final

from eigenveil.errors import PeerError
from eigenveil.ledger.durable import DurableLedger
from eigenveil.network.agents.durable.party import Event, OnEvent
from eigenveil.protocols import Decline, Message, Return
from eigenveil.protocols.masked.terms import DECLINED

__all__ = ["Refusals", "is_refusal"]

# Lines in the log for one run of a party. A flood of bad messages must not fill the disk.
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
        """Write it to the ledger's log, unless there are too many such lines."""
        self._count += 1
        if self._count <= _NOTED:
            self._durable_ledger.log(self._study, words)


def is_refusal(message: Message) -> bool:
    """Whether a message says that the site has no part to give."""
    return isinstance(message.body, Decline) or (isinstance(message.body, Return) and message.body.data == DECLINED)
