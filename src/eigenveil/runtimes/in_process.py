"""All parties in one process, on a clock of its own: for fits, for studies of what a network may do, and for tests.

Without faults mail is carried at once, one answer at a time. With faults a seed decides what is lost, repeated, late and out of
order, and who stops; the same seed gives the same run.
"""

import heapq
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from eigenveil.errors import PeerError, ProtocolError, require
from eigenveil.protocols import Ask, Brief, Done, Envelope, Hub, Message, Party
from eigenveil.protocols.wire import size

__all__ = ["Faults", "InProcess", "Refusal", "Traffic"]


@final
@dataclass(frozen=True, slots=True)
class Faults:
    """What the network does to each envelope: `loss` and `duplicate` are chances, `delay` the longest time on the way, so that
    mail overtakes other mail. `dies` says after how many envelopes a party stops for good. `meddle` may change what a party
    sends: it gets the envelope and returns what goes out in its place.
    """

    loss: float = 0.0
    duplicate: float = 0.0
    delay: float = 0.0
    dies: Mapping[str, int] = field(default_factory=dict)
    meddle: Callable[[Envelope], Iterable[Envelope]] | None = None

    def __post_init__(self) -> None:
        for name in ("loss", "duplicate"):
            require(0 <= getattr(self, name) < 1, f"{name} must lie in [0, 1), got {getattr(self, name)}")
        require(self.delay >= 0, f"delay must not be negative, got {self.delay}")


@final
@dataclass(frozen=True, slots=True)
class Refusal:
    """Mail that a party refused: who refused it, who had sent it, and why."""

    by: str
    peer: str
    why: str


@final
@dataclass(slots=True)
class Traffic:
    """Bytes of one turn on all links together: questions `down`, answers `up`. Changes in place."""

    down: int = 0
    up: int = 0


@final
class InProcess:
    """Runs `parties`, one of which is the `hub`, until the hub has its result. Changes in place.

    >>> from eigenveil.privacy import Domain, Exact, Neighbours
    >>> from eigenveil.protocols import Hub, Member, Terms, star
    >>> from eigenveil.rows import DenseRows
    >>> from eigenveil.tasks import CovarianceSum
    >>> task, exact = CovarianceSum(Domain(1, 9.0), Neighbours.ADD_REMOVE), Exact(because="doctest")
    >>> hub = Hub(task, star(["a", "b"]).below["hub"], exact, terms=Terms())
    >>> sites = [Member(s, hub="hub", task=task, rows=DenseRows(np.ones((2, 1))), mechanism=exact) for s in "ab"]
    >>> InProcess(hub, sites).run().tolist()
    [[4.0]]
    """

    def __init__(
        self, hub: Hub[Any], others: Iterable[Party], *, faults: Faults | None = None, seed: int | None = None
    ) -> None:
        self.hub = hub
        self.parties: dict[str, Party] = {hub.name: hub} | {party.name: party for party in others}
        self.refused: list[Refusal] = []
        self.traffic: defaultdict[int, Traffic] = defaultdict(Traffic)
        unknown = [] if faults is None else [name for name in faults.dies if name not in self.parties]
        require(not unknown, f"faults say when {', '.join(unknown)} dies, and there is no such party")
        self._faults = faults
        self._rng = np.random.default_rng(seed)
        self._got: defaultdict[str, int] = defaultdict(int)
        self._now, self._count = 0.0, 0
        self._measured: tuple[Message | None, int] = (None, 0)
        self._stack: list[Envelope] = []
        self._heap: list[tuple[float, int, Envelope | tuple[str, int]]] = []
        self._timers: dict[str, int] = {}

    def run(self, *, resume: bool = False, anew: bool = False) -> Any:
        """The hub's result. What the hub raises, a lost quorum for one, passes through; `resume` goes on after that.

        `anew` lets the hub begin again, after rows have become others.
        """
        self._stack, self._heap, self._timers = [], [], {}
        if resume:
            self._send(self.hub.name, self.hub.resume(anew=anew))
        else:
            for party in list(self.parties.values()):
                self._send(party.name, party.start())
        for party in self.parties.values():
            self._watch(party)
        while self.hub.result is None:
            self._step()
        # What the hub said last is carried to the sites; nothing that comes of it matters any more.
        while self._stack or self._heap:
            self._step()
        return self.hub.result

    def _step(self) -> None:
        if self._stack:
            mail = self._stack.pop()
            self._deliver(mail)
            return
        if not self._heap:
            self._wake()
            return
        self._now, _, event = heapq.heappop(self._heap)
        if isinstance(event, Envelope):
            self._deliver(event)
            return
        name, number = event
        party = self.parties[name]
        waiting = party.waiting
        if self._alive(name) and waiting is not None and waiting.number == number:
            self._send(name, party.timeout())
            self._watch(party)

    def _wake(self) -> None:
        """Nothing is on its way: let the clock run on to the first who has waited long enough."""
        waiting = [(party.waiting, name) for name, party in self.parties.items() if self._alive(name)]
        due = min(((wait.seconds, name, wait.number) for wait, name in waiting if wait is not None), default=None)
        if due is None:
            stopped = "the hub has stopped" if not self._alive(self.hub.name) else "nobody has anything more to say"
            raise ProtocolError(f"{stopped}, and there is no result")
        heapq.heappush(self._heap, (self._now + due[0], self._next(), (due[1], due[2])))

    def _alive(self, name: str) -> bool:
        return self._faults is None or self._got[name] < self._faults.dies.get(name, 1 << 60)

    def _deliver(self, mail: Envelope) -> None:
        party = self.parties.get(mail.receiver)
        if party is None or not self._alive(mail.receiver):
            return
        self._got[mail.receiver] += 1
        try:
            answers = party.receive(mail)
        except PeerError as error:
            self.refused.append(Refusal(mail.receiver, error.peer, error.why))
            return
        self._send(mail.receiver, answers)
        self._watch(party)

    def _send(self, sender: str, mails: list[Envelope]) -> None:
        for mail in mails:
            self._count_bytes(mail)
        faults = self._faults
        if faults is None:
            # Last in, first out: an answer is taken before the next question is carried, so that few are held at once.
            self._stack.extend(reversed(mails))
            return
        for mail in mails:
            for changed in [mail] if faults.meddle is None else faults.meddle(mail):
                if changed.sender != sender:
                    # Whoever carries mail knows where it comes from.
                    self.refused.append(Refusal("network", sender, f"sent mail in the name of {changed.sender}"))
                    continue
                copies = 1 + int(self._rng.random() < faults.duplicate)
                for _ in range(copies):
                    if self._rng.random() >= faults.loss:
                        late = self._now + faults.delay * self._rng.random()
                        heapq.heappush(self._heap, (late, self._next(), changed))

    def _watch(self, party: Party) -> None:
        """Set the clock for what a party has begun to wait for."""
        waiting = party.waiting
        if self._faults is None or waiting is None or self._timers.get(party.name) == waiting.number:
            return
        self._timers[party.name] = waiting.number
        heapq.heappush(self._heap, (self._now + waiting.seconds, self._next(), (party.name, waiting.number)))

    def _next(self) -> int:
        self._count += 1
        return self._count

    def _count_bytes(self, mail: Envelope) -> None:
        turn = self.traffic[mail.body.turn]
        if isinstance(mail.body, Ask | Done | Brief):
            if self._measured[0] is not mail.body:
                # One question goes to many, and only the names on it differ.
                self._measured = (mail.body, size(Envelope("", "", mail.body)))
            turn.down += self._measured[1] + len(json.dumps(mail.sender)) + len(json.dumps(mail.receiver)) - 4
        else:
            turn.up += size(mail)
