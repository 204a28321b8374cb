"""Parties in one process, on a simulated clock: for fits, for studies of network faults, and for tests.

`LocalNetwork` carries the messages. `LocalStar` runs a hub with its sites on it, `LocalPeers` runs peers without a hub. Without
faults every message arrives at once. With faults a seed decides what is lost, repeated, late or out of order, and who stops.
The same seed gives the same run.
"""

import heapq
import json
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, final

import numpy as np

from eigenveil.errors import PeerError, PeersLost, ProtocolError, require, require_param
from eigenveil.protocols.gossip.peer import Peer
from eigenveil.protocols.messages import Ask, Body, Done, Message, StepRequest
from eigenveil.protocols.party import Party
from eigenveil.protocols.star.hub import Hub
from eigenveil.protocols.wire import size

__all__ = ["Faults", "LocalNetwork", "LocalPeers", "LocalStar", "Refusal", "Traffic"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What the network does to messages."""

    loss: float = 0.0  # The probability that a message is lost.
    duplicate: float = 0.0  # The probability that it is sent twice.
    delay: float = 0.0  # The most seconds that it takes, so that messages overtake each other.
    dies: Mapping[str, int] = field(default_factory=dict)  # After how many messages a party stops for good.
    meddle: Callable[[Message], Iterable[Message]] | None = None  # What goes out in place of a message.

    def __post_init__(self) -> None:
        for name in ("loss", "duplicate"):
            value = getattr(self, name)
            require_param(0 <= value < 1, f"{{{name}}} must lie in [0, 1), got {{@value}}", value=value)
        require_param(self.delay >= 0, "{delay} must not be negative, got {@value}", value=self.delay)


@final
@dataclass(frozen=True, slots=True)
class Refusal:
    """A refused message."""

    by: str  # The party that refused it.
    peer: str  # The party that sent it.
    why: str


@final
@dataclass(slots=True)
class Traffic:
    """Bytes of one round on all links together: questions `down`, answers `up`. Changes in place."""

    down: int = 0
    up: int = 0


@final
class LocalNetwork:
    """The messages between `parties`. Changes in place. `counted` is called with each message that a party sends.

    Without faults the message sent last arrives first if `latest_first`. Otherwise messages arrive in the order sent.
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
        require(not unknown, f"faults say when {', '.join(unknown)} dies, but no party has that name")
        self.parties, self.refused = parties, list[Refusal]()
        self.now = 0.0
        # The party that acted last: its runner looks at that one alone after each step.
        self.last: str | None = None
        self._faults, self._latest_first, self._counted = faults, latest_first, counted
        self._rng = np.random.default_rng(seed)
        self._got: defaultdict[str, int] = defaultdict(int)
        self._count = 0
        self._bag: deque[Message] = deque()
        # Entries are (time, number, event). The number breaks ties, so that events of one time keep their order.
        self._heap: list[tuple[float, int, Message | tuple[str, int]]] = []
        self._timers: dict[str, int] = {}

    def clear(self) -> None:
        """Forget all messages on their way and all timers."""
        self._bag, self._heap, self._timers = deque(), [], {}

    @property
    def busy(self) -> bool:
        """Whether a message is on its way or a timer runs."""
        return bool(self._bag or self._heap)

    def alive(self, name: str) -> bool:
        """Whether a party still runs."""
        return self._faults is None or self._got[name] < self._faults.dies.get(name, 1 << 60)

    def send(self, sender: str, messages: list[Message]) -> None:
        """Send what a party says."""
        for message in messages:
            self._counted(message)
        faults = self._faults
        if faults is None:
            # Last in, first out: an answer is read before the next question is carried, so that few are in memory at once.
            self._bag.extend(reversed(messages) if self._latest_first else messages)
            return
        for message in messages:
            for changed in [message] if faults.meddle is None else faults.meddle(message):
                if changed.sender != sender:
                    # A transport knows where a message comes from, so a forged name must not reach a party here either.
                    self.refused.append(Refusal("network", sender, f"sent a message in the name of {changed.sender}"))
                    continue
                # The order of these draws is part of what a seed stands for.
                copies = 1 + int(self._rng.random() < faults.duplicate)
                for _ in range(copies):
                    if self._rng.random() >= faults.loss:
                        late = self.now + faults.delay * self._rng.random()
                        heapq.heappush(self._heap, (late, self._next(), changed))

    def watch(self, party: Party) -> None:
        """Start the timer for what a party has begun to wait for."""
        waiting = party.waiting
        if self._faults is None or waiting is None or self._timers.get(party.name) == waiting.number:
            return
        self._timers[party.name] = waiting.number
        heapq.heappush(self._heap, (self.now + waiting.seconds, self._next(), (party.name, waiting.number)))

    def step(self) -> bool:
        """Deliver one message, or let one timer expire. False if no message is on its way and no party waits."""
        # Without faults messages take no time, so no timer can expire before all of them have arrived.
        if self._bag:
            self._deliver(self._bag.pop() if self._latest_first else self._bag.popleft())
            return True
        if not self._heap:
            # Start a timer for every party that waits. It has no effect once its party waits for something else.
            for name, party in self.parties.items():
                wait = party.waiting
                if wait is not None and self.alive(name):
                    heapq.heappush(self._heap, (self.now + wait.seconds, self._next(), (name, wait.number)))
            return bool(self._heap)
        self.now, _, event = heapq.heappop(self._heap)
        if isinstance(event, Message):
            self._deliver(event)
            return True
        name, number = event
        party = self.parties[name]
        waiting = party.waiting
        # A timer whose wait is over expires without effect: the party has moved on.
        if self.alive(name) and waiting is not None and waiting.number == number:
            self.last = name
            self.send(name, party.timeout())
            self.watch(party)
        return True

    def _deliver(self, message: Message) -> None:
        party = self.parties.get(message.receiver)
        # A message to a party that has stopped is lost, as on a real network.
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


@final
class _ByteSizes:
    """Bytes of messages on the wire. A body sent to many receivers is encoded once: only the names on it differ."""

    def __init__(self) -> None:
        self._last: tuple[Body | None, int] = (None, 0)

    def of(self, message: Message) -> int:
        if self._last[0] is not message.body:
            self._last = (message.body, size(Message("", "", message.body)))
        # Two empty names are written as `""` and `""`: four bytes that are already in the size.
        return self._last[1] + _in_json(message.sender) + _in_json(message.receiver) - 4


@lru_cache(maxsize=4096)
def _in_json(name: str) -> int:
    # The same few names are on all messages of a run.
    return len(json.dumps(name))


@final
class LocalStar:
    """Runs `hub` and `others`, its sites and nodes, until the hub has its result. Changes in place."""

    def __init__(self, hub: Hub[Any], others: Iterable[Party], *, faults: Faults | None = None, seed: int | None = None) -> None:
        self.hub = hub
        self.parties: dict[str, Party] = {hub.name: hub} | {party.name: party for party in others}
        self.traffic: defaultdict[int, Traffic] = defaultdict(Traffic)
        self._sizes = _ByteSizes()
        self.network = LocalNetwork(self.parties, faults=faults, seed=seed, latest_first=True, counted=self._count)

    @property
    def refused(self) -> list[Refusal]:
        """Messages refused so far."""
        return self.network.refused

    def run(self, *, resume: bool = False, anew: bool = False) -> Any:
        """The hub's result. Errors of the hub, such as a lost quorum, pass through; `resume` continues after one.

        `anew` lets the hub begin again after rows have changed.
        """
        network = self.network
        # What is left of a run that stopped belongs to a step that the hub asks for again.
        network.clear()
        if resume:
            network.send(self.hub.name, self.hub.resume(anew=anew))
        else:
            for party in list(self.parties.values()):
                network.send(party.name, party.start())
        for party in self.parties.values():
            network.watch(party)
        while self.hub.result is None:
            if not network.step():
                stopped = "no message is left to deliver" if network.alive(self.hub.name) else "the hub has stopped"
                raise ProtocolError(f"{stopped}, and there is no result")
        # Deliver the hub's last words, so that sites have the result too. Answers to them change nothing.
        while network.busy:
            network.step()
        return self.hub.result

    def _count(self, message: Message) -> None:
        traffic = self.traffic[message.body.round]
        if isinstance(message.body, Ask | Done | StepRequest):
            traffic.down += self._sizes.of(message)
        else:
            traffic.up += self._sizes.of(message)


@final
class LocalPeers:
    """Runs `peers` until each has its result or an error. Changes in place. `sent` counts bytes by peer, `by_round` by round."""

    def __init__(self, peers: Iterable[Peer], *, faults: Faults | None = None, seed: int | None = None) -> None:
        self.peers: dict[str, Peer] = {}
        for peer in peers:
            require(peer.name not in self.peers, f"two peers are called {peer.name!r}")
            self.peers[peer.name] = peer
        self.sent: defaultdict[str, int] = defaultdict(int)
        self.by_round: defaultdict[int, int] = defaultdict(int)
        # In the order in which peers stopped: the first error is the cause, the others follow from it.
        self.errors: dict[str, Exception] = {}
        self._at_work: set[str] = set()
        self._sizes = _ByteSizes()
        parties: dict[str, Party] = dict(self.peers)
        self.network = LocalNetwork(parties, faults=faults, seed=seed, latest_first=False, counted=self._count)

    @property
    def refused(self) -> list[Refusal]:
        """Messages refused so far."""
        return self.network.refused

    def run(self) -> list[Peer]:
        """The peers that have a result, in their order. If none has one, the error of the first that stopped is raised."""
        network = self.network
        for name, peer in self.peers.items():
            if network.alive(name):
                network.send(name, peer.start())
                self._look(name)
        for peer in self.peers.values():
            network.watch(peer)
        while self._at_work:
            if not network.step():
                raise ProtocolError("no message is left to deliver, and there is no result")
            if network.last is not None:
                self._look(network.last)
        done = [peer for peer in self.peers.values() if peer.result is not None and network.alive(peer.name)]
        if done:
            return done
        for error in self.errors.values():
            raise error
        stopped = tuple(name for name in self.peers if not network.alive(name))
        raise PeersLost(stopped, round_=0, why="no peer is left")

    def _look(self, name: str) -> None:
        peer = self.peers[name]
        if peer.error is not None:
            self.errors.setdefault(name, peer.error)
        # A peer with a result may be at work again: others can begin the round anew without a lost peer.
        if peer.over or not self.network.alive(name):
            self._at_work.discard(name)
        else:
            self._at_work.add(name)

    def _count(self, message: Message) -> None:
        length = self._sizes.of(message)
        self.sent[message.sender] += length
        self.by_round[message.body.round] += length
