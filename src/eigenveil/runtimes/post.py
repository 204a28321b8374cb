"""`Post`: carries messages between parties in one process, on a clock of its own, through whatever faults it is told of.

Without faults messages are carried at once. With faults a seed decides what is lost, repeated, late and out of order, and who
stops; the same seed gives the same run. `InProcess` and `Meeting` run on it.
"""

import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import final

import numpy as np

from eigenveil.errors import PeerError, require, require_param
from eigenveil.protocols import Message, Party

__all__ = ["Faults", "Post", "Refusal"]


@final
@dataclass(frozen=True, slots=True)
class Faults:
    """What the network does to each message: `loss` and `duplicate` are chances, `delay` the longest time on the way, so that
    messages overtake other messages. `dies` says after how many messages a party stops for good. `meddle` may change what a party
    sends: it gets the message and returns what goes out in its place.
    """

    loss: float = 0.0
    duplicate: float = 0.0
    delay: float = 0.0
    dies: Mapping[str, int] = field(default_factory=dict)
    meddle: Callable[[Message], Iterable[Message]] | None = None

    def __post_init__(self) -> None:
        for name in ("loss", "duplicate"):
            value = getattr(self, name)
            require_param(0 <= value < 1, f"{{{name}}} must lie in [0, 1), got {{@value}}", value=value)
        require_param(self.delay >= 0, "{delay} must not be negative, got {@value}", value=self.delay)


@final
@dataclass(frozen=True, slots=True)
class Refusal:
    """Messages that a party refused: who refused it, who had sent it, and why."""

    by: str
    peer: str
    why: str


@final
class Post:
    """The messages between `parties`. Changes in place. `counted` is told of each message that a party sends.

    Without faults the messages that were sent last is carried first if `latest_first`, otherwise in the order in which it was
    sent.
    """

    def __init__(
        self,
        parties: Mapping[str, Party],
        *,
        faults: Faults | None,
        seed: int | None,
        latest_first: bool,
        counted: Callable[[Message], None],
    ) -> None:
        unknown = [] if faults is None else [name for name in faults.dies if name not in parties]
        require(not unknown, f"faults say when {', '.join(unknown)} dies, and there is no such party")
        self.parties, self.refused = parties, list[Refusal]()
        self.now = 0.0
        # Who did something last.
        self.last: str | None = None
        self._faults, self._latest_first, self._counted = faults, latest_first, counted
        self._rng = np.random.default_rng(seed)
        self._got: defaultdict[str, int] = defaultdict(int)
        self._count = 0
        self._bag: deque[Message] = deque()
        self._heap: list[tuple[float, int, Message | tuple[str, int]]] = []
        self._timers: dict[str, int] = {}

    def clear(self) -> None:
        """Nothing is on its way any more, and nobody's clock runs."""
        self._bag, self._heap, self._timers = deque(), [], {}

    @property
    def busy(self) -> bool:
        """Whether anything is on its way, or a clock runs."""
        return bool(self._bag or self._heap)

    def alive(self, name: str) -> bool:
        """Whether a party has not stopped."""
        return self._faults is None or self._got[name] < self._faults.dies.get(name, 1 << 60)

    def send(self, sender: str, messages: list[Message]) -> None:
        """Put what a party says on its way."""
        for message in messages:
            self._counted(message)
        faults = self._faults
        if faults is None:
            # Last in, first out: an answer is taken before the next question is carried, so that few are held at once.
            self._bag.extend(reversed(messages) if self._latest_first else messages)
            return
        for message in messages:
            for changed in [message] if faults.meddle is None else faults.meddle(message):
                if changed.sender != sender:
                    # Whoever carries messages knows where it comes from.
                    self.refused.append(Refusal("network", sender, f"sent messages in the name of {changed.sender}"))
                    continue
                copies = 1 + int(self._rng.random() < faults.duplicate)
                for _ in range(copies):
                    if self._rng.random() >= faults.loss:
                        late = self.now + faults.delay * self._rng.random()
                        heapq.heappush(self._heap, (late, self._next(), changed))

    def watch(self, party: Party) -> None:
        """Set the clock for what a party has begun to wait for."""
        waiting = party.waiting
        if self._faults is None or waiting is None or self._timers.get(party.name) == waiting.number:
            return
        self._timers[party.name] = waiting.number
        heapq.heappush(self._heap, (self.now + waiting.seconds, self._next(), (party.name, waiting.number)))

    def step(self) -> bool:
        """Carry one message, or let a clock run out. False: nothing is on its way, and nobody waits for anything."""
        if self._bag:
            self._deliver(self._bag.pop() if self._latest_first else self._bag.popleft())
            return True
        if not self._heap:
            return self._wake()
        self.now, _, event = heapq.heappop(self._heap)
        if isinstance(event, Message):
            self._deliver(event)
            return True
        name, number = event
        party = self.parties[name]
        waiting = party.waiting
        if self.alive(name) and waiting is not None and waiting.number == number:
            self.last = name
            self.send(name, party.timeout())
            self.watch(party)
        return True

    def _wake(self) -> bool:
        """Nothing is on its way: set everybody's clock. Whoever waits for something else by then is passed over."""
        waiting = [(party.waiting, name) for name, party in self.parties.items() if self.alive(name)]
        for wait, name in waiting:
            if wait is not None:
                heapq.heappush(self._heap, (self.now + wait.seconds, self._next(), (name, wait.number)))
        return bool(self._heap)

    def _deliver(self, message: Message) -> None:
        party = self.parties.get(message.receiver)
        if party is None or not self.alive(message.receiver):
            return
        self._got[message.receiver] += 1
        self.last = message.receiver
        try:
            answers = party.receive(message)
        except PeerError as error:
            self.refused.append(Refusal(message.receiver, error.peer, error.why))
            return
        self.send(message.receiver, answers)
        self.watch(party)

    def _next(self) -> int:
        self._count += 1
        return self._count
