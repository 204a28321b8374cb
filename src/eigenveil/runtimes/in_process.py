"""All parties in one process, on a clock of its own: for fits, for studies of what a network may do, and for tests."""

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, final

from eigenveil.errors import ProtocolError
from eigenveil.protocols import Ask, Body, Brief, Done, Hub, Message, Party
from eigenveil.protocols.wire import size
from eigenveil.runtimes.post import Faults, Post, Refusal

__all__ = ["InProcess", "Traffic"]


@final
@dataclass(slots=True)
class Traffic:
    """Bytes of one round on all links together: questions `down`, answers `up`. Changes in place."""

    down: int = 0
    up: int = 0


@final
class InProcess:
    """Runs `parties`, one of which is the `hub`, until the hub has its result. Changes in place.

    >>> import numpy as np
    >>> from eigenveil.privacy import Domain, Exact, Neighbours
    >>> from eigenveil.protocols import Hub, Member, Terms
    >>> from eigenveil.protocols.star.layout import star
    >>> from eigenveil.data.rows import DenseRows
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
        self.traffic: defaultdict[int, Traffic] = defaultdict(Traffic)
        self._measured: tuple[Body | None, int] = (None, 0)
        self.post = Post(self.parties, faults=faults, seed=seed, latest_first=True, counted=self._count_bytes)

    @property
    def refused(self) -> list[Refusal]:
        """Messages that were refused so far."""
        return self.post.refused

    def run(self, *, resume: bool = False, anew: bool = False) -> Any:
        """The hub's result. What the hub raises, a lost quorum for one, passes through; `resume` goes on after that.

        `anew` lets the hub begin again, after rows have become others.
        """
        self.post.clear()
        if resume:
            self.post.send(self.hub.name, self.hub.resume(anew=anew))
        else:
            for party in list(self.parties.values()):
                self.post.send(party.name, party.start())
        for party in self.parties.values():
            self.post.watch(party)
        while self.hub.result is None:
            if not self.post.step():
                alive = self.post.alive(self.hub.name)
                stopped = "nobody has anything more to say" if alive else "the hub has stopped"
                raise ProtocolError(f"{stopped}, and there is no result")
        # What the hub said last is carried to the sites; nothing that comes of it matters any more.
        while self.post.busy:
            self.post.step()
        return self.hub.result

    def _count_bytes(self, message: Message) -> None:
        round_ = self.traffic[message.body.round]
        if isinstance(message.body, Ask | Done | Brief):
            if self._measured[0] is not message.body:
                # One question goes to many, and only the names on it differ.
                self._measured = (message.body, size(Message("", "", message.body)))
            round_.down += self._measured[1] + len(json.dumps(message.sender)) + len(json.dumps(message.receiver)) - 4
        else:
            round_.up += size(message)
