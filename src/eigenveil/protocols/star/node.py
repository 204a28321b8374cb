"""`Node`: an inner node of a tree. It passes questions down, and one part for all below it up."""

from collections.abc import Mapping
from typing import Any, final

from eigenveil.errors import PeerError
from eigenveil.protocols.messages import Ask, Decline, Done, Envelope, Give
from eigenveil.protocols.party import Party, Wait, require_asked
from eigenveil.protocols.star.gathering import Gathering, reachable
from eigenveil.protocols.star.hub import Terms
from eigenveil.tasks import Question, Task

__all__ = ["Node"]


@final
class Node(Party):
    """Gathers the parts of `below`, each with the sites behind it, for `above`. Changes in place.

    It has neither rows nor noise: it sees the parts as they come, raw where the sites do not add noise. Who does not answer in
    time is named as missing; whether that is too few is for the hub to say.
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
        self._name, self._above, self._below, self._task, self._terms = name, above, dict(below), task, terms
        self._gathering: Gathering | None = None
        self._asked: Question | None = None
        self._answer: Give | Decline | None = None
        self._done: Done | None = None
        self._turn, self._waits, self._tries = -1, 0, 0

    @property
    def name(self) -> str:
        """Who this is."""
        return self._name

    def start(self) -> list[Envelope]:
        """Nothing: the hub speaks first."""
        return []

    @property
    def waiting(self) -> Wait | None:
        """For the parts from below."""
        return None if self._gathering is None else Wait(self._waits, self._terms.deadline)

    def receive(self, mail: Envelope) -> list[Envelope]:
        """Questions from above, parts from below."""
        if mail.sender == self._above:
            return self._from_above(mail)
        if mail.sender in self._below:
            return self._from_below(mail)
        raise PeerError(mail.sender, "is not part of this tree here")

    @property
    def over(self) -> bool:
        """Whether the answer has come, and was passed on."""
        return self._done is not None

    def rejoined(self, other: str) -> list[Envelope]:
        """To one below: the answer, or the question. Above it is known what to ask for."""
        if other not in self._below:
            return []
        if self._done is not None:
            return [Envelope(self._name, other, self._done)]
        asks = [] if self._gathering is None else self._gathering.asks(self._name, again=True)
        return [mail for mail in asks if mail.receiver == other]

    def timeout(self) -> list[Envelope]:
        """Ask those who are silent once more, or pass on what there is."""
        if self._gathering is None:
            return []
        self._waits += 1
        if self._tries < self._terms.retries:
            self._tries += 1
            return self._gathering.asks(self._name, again=True)
        return self._close(self._gathering)

    def _from_above(self, mail: Envelope) -> list[Envelope]:
        match mail.body:
            case body if self._done is not None:
                raise PeerError(mail.sender, f"sent {type(body).__name__} after the answer")
            case Ask() as ask if ask.turn > self._turn:
                return self._open(ask, mail.sender)
            case Ask() as ask if ask.turn == self._turn and self._asked is not None and ask.question.same(self._asked):
                # Asked again: the same part, or nothing while it is still being gathered.
                return [] if self._answer is None else [Envelope(self._name, self._above, self._answer)]
            case Done() as done if done.turn >= self._turn:
                self._gathering, self._done = None, done
                return [Envelope(self._name, name, done) for name in self._below]
            case body:
                raise PeerError(mail.sender, f"sent {type(body).__name__} down the tree in turn {self._turn}")

    def _open(self, ask: Ask, above: str) -> list[Envelope]:
        require_asked(self._task, ask.question, by=above)
        gone = set(ask.without)
        self._turn, self._asked, self._answer = ask.turn, ask.question, None
        self._waits, self._tries = self._waits + 1, 0
        asked = reachable(self._below, gone)
        self._gathering = Gathering(self._task, ask.turn, ask.question, asked, below=self._below, gone=gone)
        return self._gathering.asks(self._name)

    def _from_below(self, mail: Envelope) -> list[Envelope]:
        if self._gathering is None:
            raise PeerError(mail.sender, "answered when no turn was open")
        self._gathering.receive(mail.sender, mail.body)
        return self._close(self._gathering) if self._gathering.complete else []

    def _close(self, now: Gathering) -> list[Envelope]:
        _, missing = now.sites()
        total = now.total()
        if total is None:
            self._answer = Decline(now.turn)
        else:
            arrays = self._task.arrays(self._task.condense(total))
            self._answer = Give(now.turn, arrays, missing, symmetric=self._task.halved(now.question))
        self._gathering = None
        return [Envelope(self._name, self._above, self._answer)]
