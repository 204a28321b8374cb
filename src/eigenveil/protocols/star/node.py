"""`Node`: an inner node of a tree. It passes questions down, and up one part for all sites below it.

    | state     | event                                    | next state
    | idle      | Ask of a later round, from above         | gathering: the question goes down
    | gathering | last answer, or timeout, no tries left   | answered: one Give or Decline goes up
    |           | timeout, tries left                      | gathering: those who are silent are asked again
    | answered  | the same Ask again                       | answered: the same Give or Decline
    |           | Ask of a later round                     | gathering
    | any       | Done, from above                         | done: it goes down

Anything else is a `PeerError` and changes nothing, except that the same Ask while gathering is ignored.
"""

from collections.abc import Mapping
from typing import Any, final

from eigenveil.errors import PeerError
from eigenveil.protocols.messages import Ask, Decline, Done, Give, Message
from eigenveil.protocols.party import require_asked
from eigenveil.protocols.star.rounds import Asker, Exchange, Gathering, Terms, reachable
from eigenveil.tasks import Question, Task

__all__ = ["Node"]


@final
class Node(Asker):
    """Gathers the parts of `below`, each with the sites behind it, for `above`. Changes in place.

    It has neither rows nor noise. It sees parts as they come, in the clear where sites do not add noise. Sites that do not answer
    in time are reported as missing; the hub decides whether too few are left.
    """

    def __init__(
        self,
        name: str,
        *,
        above: str,
        below: Mapping[str, tuple[str, ...]],
        task: Task[Any, Any, Any],
        terms: Terms,
    ) -> None:
        super().__init__(name, below, terms)
        self._above, self._task = above, task
        self._asked: Question | None = None
        self._answer: Give | Decline | None = None
        self._result: Done | None = None
        self._round = -1

    def receive(self, message: Message) -> list[Message]:
        """Questions from above, parts from below."""
        if message.sender == self._above:
            return self._from_above(message)
        if message.sender in self._below:
            return self._from_below(message)
        raise PeerError(message.sender, "is neither above nor below this node")

    @property
    def over(self) -> bool:
        """Whether the result has come and was passed on."""
        return self._done is not None

    @property
    def _done(self) -> Done | None:
        return self._result

    def _from_above(self, message: Message) -> list[Message]:
        match message.body:
            case body if self._done is not None:
                raise PeerError(message.sender, f"sent {type(body).__name__} after the answer")
            # A later round may come while one is open: the hub has gone on without this node's part.
            case Ask() as ask if ask.round > self._round:
                return self._open(ask, message.sender)
            case Ask() as ask if (
                ask.round == self._round and self._asked is not None and ask.question.same(self._asked)
            ):
                # Asked again: the same part, or nothing while it is still being gathered.
                return [] if self._answer is None else [Message(self.name, self._above, self._answer)]
            case Done() as done if done.round >= self._round:
                self._now, self._result = None, done
                return self._told()
            case body:
                raise PeerError(message.sender, f"sent {type(body).__name__} down the tree in round {self._round}")

    def _open(self, ask: Ask, above: str) -> list[Message]:
        require_asked(self._task, ask.question, by=above)
        # The hub says who has dropped out, for good: a node that was started again would not know.
        gone = set(ask.without)
        self._round, self._asked, self._answer = ask.round, ask.question, None
        # A new number for each wait, so that a timer of an earlier round cannot close this one.
        self._waits, self._tries = self._waits + 1, 0
        asked = reachable(self._below, gone)
        self._now = Gathering(self._task, ask.round, ask.question, asked, below=self._below, gone=gone)
        return self._now.asks(self.name)

    def _from_below(self, message: Message) -> list[Message]:
        if self._now is None:
            raise PeerError(message.sender, "answered when no round was open")
        self._now.receive(message.sender, message.body)
        return self._close(self._now) if self._now.complete else []

    def _close(self, now: Exchange) -> list[Message]:
        _, missing = now.sites()
        total = now.total()
        # An empty sum would be a number that no site gave.
        if total is None:
            self._answer = Decline(now.round)
        else:
            arrays = self._task.arrays(self._task.condense(total))
            self._answer = Give(round=now.round, arrays=arrays, missing=missing, half=self._task.halved(now.question))
        self._now = None
        return [Message(self.name, self._above, self._answer)]
