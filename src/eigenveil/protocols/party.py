"""`Party`: one participant as a state machine. It takes messages and returns messages; time is an input too.

A runtime delivers one message at a time, and calls `timeout` when the party has waited as long as `waiting` says, so a test
can try every order of events, and the same machine runs over a network.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar, final

import numpy as np

from eigenveil.core.mechanism import Exact, Mechanism
from eigenveil.core.rows import Rows
from eigenveil.errors import PeerError, require
from eigenveil.protocols.messages import Message
from eigenveil.tasks.base import Question, Task

__all__ = ["AnyTask", "Party", "Wait", "require_asked", "require_plain", "run_pooled"]


# Most parties carry any task: only its state says more about it.
AnyTask: TypeAlias = Task[Any, Any, Any]


@final
@dataclass(frozen=True, slots=True)
class Wait:
    """What a party waits for: a number that is new for each wait, and the longest wait in seconds."""

    # A timer keeps the number of the wait it was set for. If the party has moved on, it has no effect.
    number: int
    seconds: float


class Party(ABC):
    """One participant. Changes in place. A `PeerError` from `receive` means that it refused the message and changed nothing."""

    def __init__(self, name: str) -> None:
        self.name = name

    def start(self) -> list[Message]:
        """The first messages of this party; none if others speak first."""
        return []

    @abstractmethod
    def receive(self, message: Message) -> list[Message]:
        """The answers to a message."""

    @property
    def waiting(self) -> Wait | None:
        """What it waits for now; None if for nothing."""
        return None

    def timeout(self) -> list[Message]:
        """The messages to send when the wait is over."""
        return []

    def on_reconnect(self, other: str) -> list[Message]:
        """The messages to a party that can be reached again. Messages between the two may have been lost both ways."""
        return []

    def recall(self, message: Message, replies: list[Message]) -> None:
        """Return to the state after `receive(message)`, which this party answered with `replies` before it was stopped.

        Published numbers are taken from `replies` and never made anew: a second noise on the same numbers would cost privacy
        that was not charged.
        """
        self.receive(message)


def require_plain(arrays: tuple[Any, ...]) -> None:
    """Refuse received arrays that are not float64, with a `ValueError`. Tasks do not check the type again."""
    plain = all(isinstance(array, np.ndarray) and array.dtype == np.float64 for array in arrays)
    require(plain, "arrays must be of float64")


def require_asked(task: AnyTask, question: Question, *, by: str) -> None:
    """Refuse a question that `task` would not ask, with a `PeerError` that names the party `by` which it came."""
    try:
        require_plain(question.arrays)
        task.require_question(question)
    except ValueError as error:
        raise PeerError(by, f"asked what this study does not ask: {error}") from error


State = TypeVar("State")

Part = TypeVar("Part")

Result = TypeVar("Result")


def run_pooled(task: Task[State, Part, Result], rows: Rows, mechanism: Mechanism, *, begun: State | None = None) -> Result:
    """The result of `task` on `rows`; each round's total leaves through `mechanism`. A `begun` task continues from there.

    >>> import numpy as np
    >>> from eigenveil.core.domain import Domain
    >>> from eigenveil.core.unit import Neighbours
    >>> from eigenveil.data.rows import DenseRows
    >>> from eigenveil.methods.covariance import CovarianceSum
    >>> task = CovarianceSum(Domain(dim=1, radius=9.0), Neighbours.ADD_REMOVE)
    >>> run_pooled(task, DenseRows(np.array([[1.0], [2.0]])), Exact(because="doctest")).tolist()
    [[5.0]]
    """
    # Nothing leaves between `work` and `advance`: the noise is added once, to the total.
    inside = Exact(because="the holder of the rows is also the one who releases the total")
    state = task.start() if begun is None else begun
    while (result := task.result(state)) is None:
        state = task.advance(state, task.work(task.ask(state), rows, inside), mechanism)
    return result
