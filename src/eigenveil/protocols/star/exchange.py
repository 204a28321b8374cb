"""`Exchange`: what a hub and those it asks say to each other in one round, until there is a total."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence, Set
from typing import Any

from eigenveil.protocols.messages import Body, Message
from eigenveil.tasks import Question

__all__ = ["Exchange", "NewExchange"]


class Exchange(ABC):
    """One round in one step or several. Changes in place.

    The hub sends what `asks` says, hands in what comes back (`receive`), and when everybody has answered or has had time enough
    checks that enough did (`sites`) and goes `onward`: there is another step, or there is a `total`.
    """

    round: int
    question: Question

    @property
    @abstractmethod
    def complete(self) -> bool:
        """Whether everybody who is awaited in this step has answered."""

    @abstractmethod
    def asks(self, sender: str, *, again: bool = False) -> list[Message]:
        """What is said in this step to everybody, or `again` to those who have not answered."""

    @abstractmethod
    def receive(self, sender: str, body: Body) -> None:
        """Take an answer, or raise a `PeerError` and change nothing."""

    @abstractmethod
    def sites(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The sites that are in so far, and those that are missing: from this step, or in the end from the total."""

    @abstractmethod
    def total(self) -> Any:
        """All parts that came, as one; None if there were none. The round is over: nothing may come after this."""

    @property
    def name(self) -> str:
        """Which step of several this is, in words; empty where there is only one."""
        return ""

    @property
    def failed(self) -> bool:
        """Whether parts were given in this round for nothing, so that it has to be asked anew and paid for again."""
        return False

    def onward(self) -> bool:
        """Go to the next step; False where this was the last. A `ProtocolError` says that the round has failed."""
        return False

    def reopen(self) -> bool:
        """After a lost quorum: wait once more for those who are missing from this step; False where only a new round helps."""
        return False


# From the number of a round, its question, those who are asked and the sites that have gone.
NewExchange = Callable[[int, Question, Sequence[str], Set[str]], Exchange]
