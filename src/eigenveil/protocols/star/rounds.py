"""One round of a star: the question out, the answers in, until there is a total.

`Exchange` is what a hub needs to know of a round. `Gathering` is the plain round, question and answer, that hubs and nodes
share. The masked round, in several steps, is `protocols.masked.hub.MaskedExchange`. `Asker` is what hubs and nodes have in
common: how long they wait, and whom they ask again.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, final

from eigenveil.errors import PeerError, require
from eigenveil.protocols.messages import Ask, Body, Decline, Done, Give, Message
from eigenveil.protocols.party import Party, Wait, require_plain
from eigenveil.tasks import Question, Task

__all__ = ["Asker", "Exchange", "Gathering", "NewExchange", "Terms", "reachable"]

Below = Mapping[str, tuple[str, ...]]


@final
@dataclass(frozen=True, slots=True)
class Terms:
    """How a hub deals with sites that do not answer: it waits `deadline` seconds and asks again up to `retries` times.

    Then it goes on with those who did answer, if they are at least `quorum` (None: all who were asked).
    """

    quorum: int | None = None
    deadline: float = 30.0
    retries: int = 4

    def __post_init__(self) -> None:
        require(self.quorum is None or self.quorum >= 1, f"quorum must be at least 1, got {self.quorum}")
        require(self.deadline > 0, f"deadline must be positive, got {self.deadline}")
        require(self.retries >= 0, f"retries must not be negative, got {self.retries}")


class Exchange(ABC):
    """One round, in one step or several. Changes in place.

    The hub sends what `asks` returns and hands the answers to `receive`. A step ends when everybody has answered or the time
    is up. The hub then checks that enough sites answered (`sites`) and calls `onward`: another step follows, or the `total`.
    """

    round: int
    question: Question

    @property
    @abstractmethod
    def complete(self) -> bool:
        """Whether everybody asked in this step has answered."""

    @abstractmethod
    def asks(self, sender: str, *, again: bool = False) -> list[Message]:
        """The messages of this step to everybody, or, with `again`, to those who have not answered."""

    @abstractmethod
    def receive(self, sender: str, body: Body) -> None:
        """Take an answer, or raise a `PeerError` and change nothing."""

    @abstractmethod
    def sites(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The sites that answered this step and those that are missing; after the last step, those in the total or not."""

    @abstractmethod
    def total(self) -> Any:
        """The sum of all parts received, None if there were none. Ends the round: no answer may follow."""

    @property
    def name(self) -> str:
        """The name of this step, in words; empty where a round has one step."""
        return ""

    @property
    def failed(self) -> bool:
        """Whether parts of this round are lost, so that it must be asked anew and charged again."""
        return False

    def onward(self) -> bool:
        """Go to the next step; False after the last. A `ProtocolError` says that the round has failed."""
        return False

    def reopen(self) -> bool:
        """After a lost quorum: wait once more for the missing answers. False where only a new round helps."""
        return False


# From the number of a round, its question, the names asked and the sites that have dropped out.
NewExchange = Callable[[int, Question, Sequence[str], Set[str]], Exchange]


class Asker(Party):
    """A party that asks those `below` it, each with the sites behind it, and waits for their answers. Changes in place."""

    def __init__(self, name: str, below: Below, terms: Terms) -> None:
        super().__init__(name)
        self._below, self._terms = dict(below), terms
        self._now: Exchange | None = None
        # A new number for each wait, so that a timer of an earlier one has no effect.
        self._waits, self._tries = 0, 0

    @abstractmethod
    def _close(self, now: Exchange) -> list[Message]:
        """End a step of the open round: everybody has answered, or the time is up."""

    @property
    @abstractmethod
    def _done(self) -> Done | None:
        """The result, once it is there."""

    @property
    def _awaited(self) -> Exchange | None:
        """The round whose answers are awaited."""
        return self._now

    @property
    def _most_tries(self) -> int:
        """How often those who are silent are asked again in this round."""
        return self._terms.retries

    @property
    def waiting(self) -> Wait | None:
        """The answers from below."""
        return None if self._awaited is None else Wait(self._waits, self._terms.deadline)

    def timeout(self) -> list[Message]:
        """Ask those who are silent once more, or go on without them."""
        now = self._awaited
        if now is None:
            return []
        self._waits += 1
        if self._tries < self._most_tries:
            self._tries += 1
            return now.asks(self.name, again=True)
        return self._close(now)

    def rejoined(self, other: str) -> list[Message]:
        """The result, or what is still awaited from this one."""
        # A party that was away when the study ended would otherwise wait for ever.
        if self._done is not None:
            return [message for message in self._told() if message.receiver == other]
        asks = [] if self._awaited is None else self._awaited.asks(self.name, again=True)
        return [message for message in asks if message.receiver == other]

    def _told(self) -> list[Message]:
        """The result, to everybody."""
        done = self._done
        assert done is not None
        return [Message(self.name, name, done) for name in self._below]


def reachable(below: Below, gone: Set[str]) -> list[str]:
    """The names directly below that have at least one active site behind them."""
    return [name for name, behind in below.items() if any(site not in gone for site in behind)]


@final
class Gathering(Exchange):
    """One question to the names `asked`, each with the sites behind it (`below`), and their parts. Changes in place.

    Parts are added in the order of `asked`, whatever order they arrive in, so a sum is the same to the last bit on every run.
    Parts that arrive in order are added at once and take no more memory than one. `weights` says how often each part counts,
    `gone` which sites have dropped out.
    """

    def __init__(
        self,
        task: Task[Any, Any, Any],
        round_: int,
        question: Question,
        asked: Sequence[str],
        *,
        below: Below,
        gone: Set[str],
        weights: Mapping[str, float] | None = None,
    ) -> None:
        self.round, self.question = round_, question
        self._task, self._below, self._gone, self._weights = task, below, frozenset(gone), weights
        # True for a part, False for a decline, None while the answer is awaited.
        self._answers: dict[str, bool | None] = dict.fromkeys(asked)
        self._awaited = len(self._answers)
        self._short: dict[str, tuple[str, ...]] = {}
        # Parts that came before an earlier one in the order, and cannot be added yet.
        self._held: dict[str, Any] = {}
        self._order, self._next = tuple(asked), 0
        self._total: Any = None

    @property
    def complete(self) -> bool:
        """Whether everybody has answered."""
        return self._awaited == 0

    def asks(self, sender: str, *, again: bool = False) -> list[Message]:
        """The question to everybody, or, with `again`, to those who have not answered."""
        # A set has no order, and the same question must have the same bytes on every run.
        ask = Ask(self.round, self.question, tuple(sorted(self._gone)))
        return [Message(sender, name, ask) for name, answer in self._answers.items() if answer is None or not again]

    def receive(self, sender: str, body: Body) -> None:
        """Take an answer, or raise a `PeerError` and change nothing."""
        if not isinstance(body, Give | Decline):
            raise PeerError(sender, f"sent {type(body).__name__} where an answer to round {self.round} was due")
        if body.round != self.round:
            raise PeerError(sender, f"answered round {body.round} in round {self.round}")
        if sender not in self._answers:
            raise PeerError(sender, f"was not asked in round {self.round}")
        if self._answers[sender] is not None:
            raise PeerError(sender, f"answered round {self.round} more than once")
        if isinstance(body, Give):
            # Checked before anything is noted, so that a site whose part is refused can still send a good one.
            part = self._checked(sender, body)
            self._held[sender], self._short[sender] = part, body.missing
        self._answers[sender] = isinstance(body, Give)
        self._awaited -= 1
        self._fold()

    def sites(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The sites in the total, and those missing from it."""
        answered: list[str] = []
        missing: list[str] = []
        for name, answer in self._answers.items():
            # A node may have answered without some of the sites behind it.
            short = set(self._short.get(name, ()))
            for site in self._below[name]:
                if site not in self._gone:
                    (answered if answer and site not in short else missing).append(site)
        return tuple(answered), tuple(missing)

    def total(self) -> Any:
        """The sum of all parts received, None if there were none. Ends the round: no answer may follow."""
        # Silent sites have held up the order, and no answer will come from them any more.
        for name in self._order[self._next :]:
            self._add(name)
        self._next = len(self._order)
        return self._total

    def _checked(self, sender: str, body: Give) -> Any:
        named = set(body.missing)
        # A strict subset: a part with every site missing would be nobody's, and its numbers would come from nowhere.
        if len(named) != len(body.missing) or not named < set(self._below[sender]) - self._gone:
            raise PeerError(sender, "reports sites as missing that are not behind it, or all of its sites")
        try:
            require_plain(body.arrays)
            return self._task.part(self.question, body.arrays)
        except ValueError as error:
            raise PeerError(sender, f"sent an invalid part: {error}") from error

    def _fold(self) -> None:
        # Only in order: floating-point sums depend on it, and a resumed study must give the same bits.
        while self._next < len(self._order) and self._answers[self._order[self._next]] is not None:
            self._add(self._order[self._next])
            self._next += 1

    def _add(self, name: str) -> None:
        if name not in self._held:
            return
        part = self._held.pop(name)
        if self._weights is not None:
            part = self._task.weighted(part, self._weights[name])
        self._total = part if self._total is None else self._task.combine(self._total, part)
