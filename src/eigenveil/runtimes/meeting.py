"""`Meeting`: peers without a hub in one process, until each of them has its result or has said why there is none."""

import json
from collections import defaultdict
from collections.abc import Iterable
from typing import final

from eigenveil.errors import PeersLost, ProtocolError, require
from eigenveil.protocols import Body, Message, Party
from eigenveil.protocols.gossip import Peer
from eigenveil.protocols.wire import size
from eigenveil.runtimes.post import Faults, Post, Refusal

__all__ = ["Meeting"]


@final
class Meeting:
    """Runs `peers`. Changes in place. `sent` is how many bytes each peer has sent, in all and by round.

    >>> import numpy as np
    >>> from eigenveil.linalg.graphs import Graph
    >>> from eigenveil.privacy import Domain, Exact, Neighbours
    >>> from eigenveil.protocols.gossip import GossipTerms, Plain
    >>> from eigenveil.data.rows import DenseRows
    >>> from eigenveil.tasks import CovarianceSum
    >>> task, rows = CovarianceSum(Domain(1, 9.0), Neighbours.ADD_REMOVE), DenseRows(np.ones((2, 1)))
    >>> terms, out = GossipTerms(Graph.named("ring", ["a", "b", "c"])), Plain(Exact(because="doctest"))
    >>> peers = [Peer(name, terms=terms, task=task, rows=rows, outgoing=out) for name in "abc"]
    >>> [peer.result.round(9).tolist() for peer in Meeting(peers).run()]
    [[[6.0]], [[6.0]], [[6.0]]]
    """

    def __init__(self, peers: Iterable[Peer], *, faults: Faults | None = None, seed: int | None = None) -> None:
        self.peers: dict[str, Peer] = {}
        for peer in peers:
            require(peer.name not in self.peers, f"two peers are called {peer.name!r}")
            self.peers[peer.name] = peer
        self.sent: defaultdict[str, int] = defaultdict(int)
        self.by_round: defaultdict[int, int] = defaultdict(int)
        # In the order in which they stopped.
        self.errors: dict[str, Exception] = {}
        self._at_work: set[str] = set()
        self._measured: tuple[Body | None, int] = (None, 0)
        parties: dict[str, Party] = dict(self.peers)
        self.post = Post(parties, faults=faults, seed=seed, latest_first=False, counted=self._count_bytes)

    @property
    def refused(self) -> list[Refusal]:
        """Messages that were refused so far."""
        return self.post.refused

    def run(self) -> list[Peer]:
        """The peers that have a result, in their order. If there are none, what the first that stopped says is raised."""
        for name, peer in self.peers.items():
            if self.post.alive(name):
                self.post.send(name, peer.start())
                self._look(name)
        for peer in self.peers.values():
            self.post.watch(peer)
        while self._at_work:
            if not self.post.step():
                raise ProtocolError("nobody has anything more to say, and there is no result")
            if self.post.last is not None:
                self._look(self.post.last)
        done = [peer for peer in self.peers.values() if peer.result is not None and self.post.alive(peer.name)]
        if done:
            return done
        for error in self.errors.values():
            raise error
        stopped = tuple(name for name in self.peers if not self.post.alive(name))
        raise PeersLost(stopped, round_=0, why="nobody is left")

    def _look(self, name: str) -> None:
        peer = self.peers[name]
        if peer.error is not None:
            self.errors.setdefault(name, peer.error)
        if peer.over or not self.post.alive(name):
            self._at_work.discard(name)
        else:
            self._at_work.add(name)

    def _count_bytes(self, message: Message) -> None:
        if self._measured[0] is not message.body:
            # The same numbers go to all neighbours, and only the names on them differ.
            self._measured = (message.body, size(Message("", "", message.body)))
        length = self._measured[1] + len(json.dumps(message.sender)) + len(json.dumps(message.receiver)) - 4
        self.sent[message.sender] += length
        self.by_round[message.body.round] += length
