"""One fit between peers: parties set up as the noise says, carried by a runtime, with a transcript. `GossipPCA` is its face."""

import hashlib
import math
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, final

import numpy as np

from eigenveil.errors import ProtocolError, require
from eigenveil.estimators.curator import noise_floor
from eigenveil.estimators.federated_request import iterates
from eigenveil.estimators.gossip_request import PeersRequest, directions_of
from eigenveil.estimators.rounds import Round, Watch
from eigenveil.estimators.sites import Columns
from eigenveil.estimators.study import Found, Study
from eigenveil.linalg import Array, orthonormal, sines
from eigenveil.plan import Split, split_budget
from eigenveil.plan_gossip import SegmentsPlan
from eigenveil.privacy import Charge, Exact, Gaussian, Ledger, Noise, PairedPart
from eigenveil.protocols.gossip import GossipTerms, Outgoing, Paired, PairKeys, Peer, PeerNoise, PeerTurn, Plain
from eigenveil.protocols.keys import Identity, digest
from eigenveil.rows import Rows
from eigenveil.runtimes import Faults, Meeting, Refusal

__all__ = ["Gossip"]

# What is spent stays this far below what may be, relatively, so that rounding never refuses the last release.
_MARGIN: Final = 1e-10


@final
class Gossip:
    """The peers of one fit and what they have done. Changes in place: it spends."""

    def __init__(
        self, request: PeersRequest, peers: Mapping[str, Rows], columns: Columns, *, watch: Watch | None = None
    ) -> None:
        self.request, self.columns, self.watch = request, columns, watch
        self.rounds: list[Round] = []
        self.ledgers: dict[str, Ledger] = {}
        self.refused: tuple[Refusal, ...] = ()
        self.stopped: dict[str, Exception] = {}
        self.sent: dict[str, int] = {}
        self.done: list[Peer] = []
        # Peers that ended with the answer of another count.
        self.apart: tuple[str, ...] = ()
        self._names = tuple(peers)
        self._places = {name: 1 + place for place, name in enumerate(self._names)}
        self._split = self._split_budget()
        self._begin = self._first_basis()
        identities = {name: self._identity(name) for name in self._names} if request.noise == "pairwise" else {}
        self.terms = self._terms(identities)
        # Refused here, before anybody has said a word, if it cannot be.
        self._among = self.terms.among(())
        self.studies = {name: self._study(name) for name in self._names}
        self.peers = {name: self._peer(name, rows, identities.get(name)) for name, rows in peers.items()}
        self._meeting: Meeting | None = None
        self._speaker: str | None = None
        self._bytes = 0
        self._lines: dict[str, int] = {}
        self._counted = self._names

    def run(self, *, faults: Faults | None = None) -> Found:
        """The result of the first peer that has one, once. What the first peer that stopped says is raised if none has."""
        require(self._meeting is None, "these peers have met: what they spent is spent, and another fit needs others")
        self._meeting = Meeting(self.peers.values(), faults=faults, seed=self.request.seed)
        try:
            self._take(self._meeting.run())
        except ValueError as error:
            # It is somebody's rows, and `require_sound_peers` says whose.
            raise ProtocolError("a peer could not give its part") from error
        finally:
            self.refused = tuple(self._meeting.refused)
            self.stopped = dict(self._meeting.errors)
            self.sent = {name: self._meeting.sent[name] for name in self._names}
        self._add_bytes()
        found: Found = self.done[0].result
        return found

    def _take(self, done: list[Peer]) -> None:
        """Keep the answer that most peers hold: where a link fails in the last turn, one of two groups may begin it again."""
        groups: dict[tuple[str, ...], list[Peer]] = {}
        for peer in done:
            groups.setdefault(peer.counted, []).append(peer)
        self.done = max(groups.values(), key=len)
        self.apart = tuple(peer.name for peer in done if peer.counted != self.done[0].counted)

    def require_sound_peers(self) -> None:
        """Raise what is wrong with a peer's rows, naming it, if anything is: others would go on without it."""
        for name, error in self.stopped.items():
            if isinstance(error, ValueError):
                raise ValueError(f"{name}: {error}") from None

    @property
    def disagreement(self) -> float:
        """The largest sine between the directions of the first peer and those that any other has come to."""
        first: Found = self.done[0].result
        return max(float(sines(first.subspace.basis, peer.result.subspace.basis)[0]) for peer in self.done)

    def noise_floor(self, found: Found) -> float:
        """Gram eigenvalues below this cannot be told from noise."""
        if found.scale == 0:
            return 0.0
        plan, counted = self.request.plan, len(self.done[0].counted)
        multiplier = self._total_noise(counted, self._excess(self.done[0]))
        found = replace(found, scale=found.scale * multiplier / self.studies[self.done[0].name].multiplier)
        if isinstance(plan, SegmentsPlan):
            return noise_floor(found, "power", width=1, last=min(plan.shares[plan.turns - 1 :: plan.turns]))
        return noise_floor(found, plan.method, width=plan.width, last=plan.shares[-1])

    def _excess(self, peer: Peer) -> float | None:
        pairing = self.terms.among(set(self._names) - set(peer.counted)).pairing
        return None if pairing is None else pairing.excess

    def _split_budget(self) -> Split:
        request = self.request
        return split_budget(
            mean=isinstance(request.center, str),
            search=request.bounds.search,
            count=request.people is None,
            trace=request.method != "covariance" and not request.published,
        )

    def _first_basis(self) -> Array | None:
        """Public, and the same at all peers."""
        plan = self.request.plan
        if isinstance(plan, SegmentsPlan) or not iterates(plan.method):
            return None
        rng = np.random.default_rng(self.request.seed)
        return orthonormal(rng.standard_normal((self.request.bounds.dim, plan.width)))

    def _terms(self, identities: Mapping[str, Identity]) -> GossipTerms:
        request = self.request
        noise: PeerNoise = "none" if request.noise == "published" else request.noise
        bounds, public = request.bounds, request.sizes if request.people is not None else None
        words = repr((request.rank, request.neighbours, request.plan, request.budget, request.restarts, public))
        numbers = repr((bounds.dim, bounds.row_bound, bounds.mean_bound, bounds.search))
        center = request.center if isinstance(request.center, str) else ""
        given = (None if center else request.center, bounds.origin, bounds.scale, bounds.low, bounds.high, self._begin)
        return GossipTerms(
            request.graph,
            request.consensus,
            weights=request.weights,
            steps=request.steps,
            noise=noise,
            noise_graph=request.noise_graph,
            colluders=request.colluders,
            quorum=request.quorum,
            restarts=request.restarts if request.private else None,
            deadline=request.deadline,
            retries=request.retries,
            study=digest("study", words, numbers, center, *map(_as_bytes, given)),
            roster={name: identity.public for name, identity in identities.items()},
        )

    @property
    def _reserve(self) -> float:
        """Which part of mu^2 a fit may spend when no turn is begun again: the rest pays for the dearest turn so many times."""
        if self.request.restarts == 0:
            return 1.0
        split = self._split
        # The number of people is found beside the first step of the mean.
        means = [share + (split.count if step == 0 else 0.0) for step, share in enumerate(split.mean)]
        dearest = max(*means, split.extra, split.main(0) * self.request.largest, 0.0)
        return 1.0 / (1.0 + self.request.restarts * dearest)

    @property
    def multiplier(self) -> float:
        """The noise of a release over its sensitivity, at a share of one, as one trusted curator would need it."""
        assert self.request.budget is not None
        return (1 + _MARGIN) / (self.request.budget.mu * math.sqrt(self._reserve))

    def _total_noise(self, peers: int, excess: float | None) -> float:
        """The noise on a sum over its sensitivity, at a share of one."""
        if not self.request.private:
            return 0.0
        return self.multiplier * (math.sqrt(peers) if excess is None else excess)

    def _study(self, name: str) -> Study:
        request = self.request
        pairing = self._among.pairing
        hidden = self._noise(name, "hidden")
        return Study(
            bounds=request.bounds,
            neighbours=request.neighbours,
            center=request.center,
            components=lambda domain: directions_of(request, domain, self._begin, hidden),
            split=self._split,
            people=request.people,
            multiplier=self._total_noise(len(self._names), None if pairing is None else pairing.excess),
            rank=request.rank,
            needs_trace=request.method != "covariance" and not request.published,
            begins_again=not request.private and not request.published,
            sizes=request.sizes if request.people is not None else None,
        )

    def _noise(self, name: str, purpose: str) -> Noise:
        seed = self.request.seed
        if seed is None:
            return Noise.fresh()
        return Noise.seeded((seed << 34) + (self._places[name] << 2) + ("own", "hidden").index(purpose))

    def _peer(self, name: str, rows: Rows, identity: Identity | None) -> Peer:
        return Peer(
            name,
            terms=self.terms,
            task=self.studies[name],
            rows=rows,
            outgoing=self._outgoing(name, identity),
            watch=self._note,
        )

    def _outgoing(self, name: str, identity: Identity | None) -> Outgoing:
        request = self.request
        if request.budget is None:
            return Plain(Exact(because="nothing is promised"))
        ledger = self.ledgers[name] = Ledger(epsilon=request.budget.epsilon, delta=request.budget.delta)
        own = self._noise(name, "own")
        if identity is None:
            return Plain(Gaussian(self.multiplier, ledger, own))
        assert self._among.pairing is not None
        keys = PairKeys(name, identity, self.terms, self._secret("key", name), reproducible=request.seed is not None)
        return Paired(PairedPart(self._among.pairing, name, ledger, own, self.multiplier), keys)

    def _identity(self, name: str) -> Identity:
        return Identity(self._secret("identity", name))

    def _secret(self, what: str, name: str) -> bytes:
        """32 bytes that nobody can guess, or who knows the seed can."""
        seed = self.request.seed
        return os.urandom(32) if seed is None else hashlib.sha256(f"{what} {seed} {name}".encode()).digest()

    def _note(self, peer: Peer, turn: PeerTurn) -> None:
        """Write down a turn, as the first peer that got to its end saw it."""
        charges = self._new_charges(peer.name)
        if self._speaker is None or self._speaker not in turn.counted:
            self._speaker = peer.name
        if peer.name != self._speaker:
            return
        missing = tuple(name for name in self._counted if name not in turn.counted)
        self._counted = turn.counted
        stage = turn.stage if turn.stage != "components" else f"{self.request.method} {turn.step + 1}"
        done = Round(
            number=len(self.rounds),
            stage=stage,
            answered=turn.counted,
            missing=missing,
            bytes_down=0,
            bytes_up=self._new_bytes(),
            movement=turn.movement,
            residual=None,
            charges=charges,
            restarted=turn.restarted,
        )
        self.rounds.append(done)
        if self.watch is not None:
            self.watch(done)

    def _new_bytes(self) -> int:
        assert self._meeting is not None
        total, before = sum(self._meeting.sent.values()), self._bytes
        self._bytes = total
        return total - before

    def _add_bytes(self) -> None:
        """What was sent after the first peer had ended its last turn belongs to that turn."""
        self.rounds[-1] = replace(self.rounds[-1], bytes_up=self.rounds[-1].bytes_up + self._new_bytes())

    def _new_charges(self, name: str) -> tuple[Charge, ...]:
        if name not in self.ledgers:
            return ()
        lines = self.ledgers[name].charges
        new, self._lines[name] = lines[self._lines.get(name, 0) :], len(lines)
        return new


def _as_bytes(array: object) -> bytes:
    """Every digit of an array, which its text would not show."""
    if array is None:
        return b"none"
    numbers = np.ascontiguousarray(array, dtype="<f8")
    return repr(numbers.shape).encode() + numbers.tobytes()
