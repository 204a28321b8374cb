"""`Party`: one participant as a machine without sockets, clocks or threads. Messages in, messages out, and time is an input.

Whoever runs it delivers messages, one message at a time, and calls `timeout` when the party has waited as long as it
says. So every order of events can be tried in a test, and the same machine runs over a network.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from eigenveil.errors import PeerError, require
from eigenveil.protocols.messages import Message
from eigenveil.tasks import Question, Task

__all__ = ["Party", "Wait", "require_asked", "require_plain"]


@final
@dataclass(frozen=True, slots=True)
class Wait:
    """What a party waits for: a number that is new with each wait, and for how many seconds at most."""

    number: int
    seconds: float


class Party(ABC):
    """One participant. Changes in place. A `PeerError` from `receive` means: refused, and nothing was changed."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Who this is."""

    @abstractmethod
    def start(self) -> list[Message]:
        """What this party says first."""

    @abstractmethod
    def receive(self, message: Message) -> list[Message]:
        """What it says in answer to this."""

    @property
    def waiting(self) -> Wait | None:
        """What it is waiting for now, None if for nothing in particular."""
        return None

    def timeout(self) -> list[Message]:
        """What it says when it has waited long enough."""
        return []

    def rejoined(self, other: str) -> list[Message]:
        """What it says to one who can be reached again after a while: messages between the two may have been lost both ways."""
        return []

    def recall(self, message: Message, said: list[Message]) -> None:
        """Be again as after `receive(message)`, which was answered by `said` before this party was stopped.

        What was let out is taken from `said` and not made anew: there is no second noise on the same numbers.
        """
        self.receive(message)


def require_plain(arrays: tuple[Any, ...]) -> None:
    """Refuse, with a `ValueError`, anything but arrays of float64 among what came from elsewhere: tasks look no further."""
    plain = all(isinstance(array, np.ndarray) and array.dtype == np.float64 for array in arrays)
    require(plain, "arrays must be of float64")


def require_asked(task: Task[Any, Any, Any], question: Question, *, by: str) -> None:
    """Refuse, with a `PeerError` that names who asked, a question that `task` would not ask."""
    try:
        require_plain(question.arrays)
        task.require_question(question)
    except ValueError as error:
        raise PeerError(by, f"asked what this study does not ask: {error}") from error
