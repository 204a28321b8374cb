"""`Gathering`: the parts of one round, checked as they come in and folded in the order of the sites.

What hubs and nodes share.
"""

from collections.abc import Mapping, Sequence, Set
from typing import Any, final

from eigenveil.errors import PeerError
from eigenveil.protocols.messages import Ask, Body, Decline, Give, Message
from eigenveil.protocols.party import require_plain
from eigenveil.protocols.star.exchange import Exchange
from eigenveil.tasks import Question, Task

__all__ = ["Gathering", "reachable"]

Below = Mapping[str, tuple[str, ...]]


def reachable(below: Below, gone: Set[str]) -> list[str]:
    """Those directly below with at least one site behind them that has not gone."""
    return [name for name, behind in below.items() if any(site not in gone for site in behind)]


@final
class Gathering(Exchange):
    """One round's question to those `asked`, each with the sites behind it (`below`), and their parts. Changes in place.

    Parts are added in the order of `asked` whatever order they come in, so a sum is the same to the last bit on every run. Those
    at the front are added up at once: parts that come in order take no more room than one. `weights` is how often each
    counts, `gone` the sites that no longer do.
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
        # Whether each one asked gave a part (True) or said that there will be none (False); None while it is awaited.
        self._answers: dict[str, bool | None] = dict.fromkeys(asked)
        self._awaited = len(self._answers)
        self._short: dict[str, tuple[str, ...]] = {}
        self._held: dict[str, Any] = {}
        self._order, self._next = tuple(asked), 0
        self._total: Any = None

    @property
    def complete(self) -> bool:
        """Whether everybody has answered."""
        return self._awaited == 0

    def asks(self, sender: str, *, again: bool = False) -> list[Message]:
        """The question to everybody, or `again` to those who have not answered."""
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
            part = self._checked(sender, body)
            self._held[sender], self._short[sender] = part, body.missing
        self._answers[sender] = isinstance(body, Give)
        self._awaited -= 1
        self._fold()

    def sites(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The sites that are in the total, and those that are missing from it."""
        answered: list[str] = []
        missing: list[str] = []
        for name, answer in self._answers.items():
            short = set(self._short.get(name, ()))
            for site in self._below[name]:
                if site not in self._gone:
                    (answered if answer and site not in short else missing).append(site)
        return tuple(answered), tuple(missing)

    def total(self) -> Any:
        """All parts that came, as one; None if there were none. The round is over: nothing may come after this."""
        for name in self._order[self._next :]:
            self._add(name)
        self._next = len(self._order)
        return self._total

    def _checked(self, sender: str, body: Give) -> Any:
        named = set(body.missing)
        # Some of those behind it, never all: a part is somebody's.
        if len(named) != len(body.missing) or not named < set(self._below[sender]) - self._gone:
            raise PeerError(sender, "says that sites are missing which are not behind it, or that all are")
        try:
            require_plain(body.arrays)
            return self._task.part(self.question, body.arrays)
        except ValueError as error:
            raise PeerError(sender, f"sent a part that cannot be one: {error}") from error

    def _fold(self) -> None:
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
