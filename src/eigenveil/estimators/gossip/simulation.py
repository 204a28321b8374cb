"""`GossipSimulation`: one fit between peers in one process, for `GossipPCA`. A runtime carries the messages."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import final

from eigenveil.core.ledger import Charge, Ledger
from eigenveil.core.rows import Rows
from eigenveil.errors import ParameterWarning, ProtocolError, TooFewPeople, at_place, require
from eigenveil.estimators.checks import WholeCharge
from eigenveil.estimators.gossip.parties import PeerParties
from eigenveil.estimators.gossip.spec import GossipSpec
from eigenveil.estimators.rounds import Round, Watch
from eigenveil.estimators.sites import Columns
from eigenveil.estimators.verdict import FitVerdict
from eigenveil.linalg import sines
from eigenveil.protocols.gossip import GossipTerms, Peer, PeerRound
from eigenveil.protocols.keys import Identity
from eigenveil.runtimes import Faults, LocalPeers, Refusal
from eigenveil.tasks.fit.task import Fit, FitResult

__all__ = ["GossipSimulation"]


@final
class GossipSimulation:
    """The peers of one fit and what they have done. Changes in place: it spends."""

    def __init__(
        self,
        request: GossipSpec,
        peers: Mapping[str, Rows],
        columns: Columns,
        *,
        watch: Watch | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        self.request, self.columns, self.watch = request, columns, watch
        self.rounds: list[Round] = []
        self.refused: tuple[Refusal, ...] = ()
        self.stopped: dict[str, Exception] = {}
        self.sent: dict[str, int] = {}
        self.done: list[Peer] = []
        # Peers that ended with the result of another set of peers.
        self.apart: tuple[str, ...] = ()
        self._names = tuple(peers)
        # Only pair noise needs keys.
        identities = {name: self._identity(name) for name in self._names} if request.noise == "pairwise" else {}
        roster = {name: identity.public for name, identity in identities.items()}
        self._whole = WholeCharge(ledger, request.budget, unit=request.fit.unit, label="this fit between peers")
        self.parties = PeerParties(request, self._names, roster=roster, through=self._whole)
        self.peers = {
            name: self.parties.peer(
                name, rows, watch=self._note, identity=identities.get(name), secret=self._secret("key", name)
            )
            for name, rows in peers.items()
        }
        self._runtime: LocalPeers | None = None
        self._speaker: str | None = None
        self._bytes = 0
        self._seen_charges: dict[str, int] = {}
        self._counted = self._names
        # What was said before anything was spent.
        self.before: tuple[ParameterWarning, ...] = ()

    @property
    def terms(self) -> GossipTerms:
        """The terms that the peers agreed on."""
        return self.parties.terms

    @property
    def ledgers(self) -> dict[str, Ledger]:
        """The ledger of each peer."""
        return self.parties.ledgers

    @property
    def studies(self) -> dict[str, Fit]:
        """Each peer's own task."""
        return self.parties.studies

    def _identity(self, name: str) -> Identity:
        return Identity(self._secret("identity", name))

    def _secret(self, what: str, name: str) -> bytes:
        """32 bytes that nobody can guess, or that a known seed determines."""
        seed = self.request.seed
        # With its purpose, or a peer's identity and its key for the study would be the same secret.
        return os.urandom(32) if seed is None else hashlib.sha256(f"{what} {seed} {name}".encode()).digest()

    def run(self, *, faults: Faults | None = None) -> FitResult:
        """The result of the first peer that has one. If none has, the error of the first peer that stopped. Runs once."""
        require(
            self._runtime is None, "these peers have run, and what they spent is spent. Make new ones for another fit"
        )
        self._runtime = LocalPeers(self.peers.values(), faults=faults, seed=self.request.seed)
        try:
            with self._whole.reserved():
                self._take(self._runtime.run())
        except ValueError as error:
            # Something is wrong with a peer's rows. `require_sound_peers` names the peer.
            raise ProtocolError("a peer could not give its part") from error
        finally:
            self.refused = tuple(self._runtime.refused)
            self.stopped = dict(self._runtime.errors)
            self.sent = {name: self._runtime.sent[name] for name in self._names}
        self._add_bytes()
        # Peers of one group have equal results up to rounding, so any of them may speak.
        found: FitResult = self.done[0].result
        return found

    def _take(self, done: list[Peer]) -> None:
        """Keep the result that most peers have: if a link fails in the last round, one of two groups may restart it."""
        groups: dict[tuple[str, ...], list[Peer]] = {}
        for peer in done:
            # Peers that counted the same others have the same result, up to rounding.
            groups.setdefault(peer.counted, []).append(peer)
        self.done = max(groups.values(), key=len)
        self.apart = tuple(peer.name for peer in done if peer.counted != self.done[0].counted)

    def require_sound_peers(self) -> None:
        """Raise the error of a peer with bad rows, naming it. Otherwise the others would continue without it."""
        for name, error in self.stopped.items():
            if isinstance(error, TooFewPeople):
                # All of them together, as every peer has found.
                raise error
            if isinstance(error, ValueError):
                raise at_place(name, error) from None

    @property
    def since(self) -> int:
        """The round from which on exactly the peers of the result were counted."""
        counted = set(self.done[0].counted)
        return next((done.number for done in self.rounds if set(done.answered) <= counted), 0)

    @property
    def disagreement(self) -> float:
        """The largest sine between the directions of the first peer and those of any other."""
        first: FitResult = self.done[0].result
        return max(float(sines(first.subspace.basis, peer.result.subspace.basis)[0]) for peer in self.done)

    def verdict(self, found: FitResult, *, names: tuple[str, ...] | None) -> FitVerdict:
        """The verdict on the fit. The columns may have `names`."""
        return self.parties.verdict(found, counted=self.done[0].counted, names=names, before=self.before)

    def _note(self, peer: Peer, round_: PeerRound) -> None:
        """Record a round, as the first peer that finished it saw it."""
        # Before the early return: rounds of a peer that is not shown were charged too, and are not new when it takes
        # over.
        charges = self._new_charges(peer.name)
        # The record is one peer's view. If that peer is gone, the next one takes over.
        if self._speaker is None or self._speaker not in round_.counted:
            self._speaker = peer.name
        if peer.name != self._speaker:
            return
        # Missing are peers that the round before still counted.
        missing = tuple(name for name in self._counted if name not in round_.counted)
        self._counted = round_.counted
        stage = round_.stage if round_.stage != "components" else f"{self.request.fit.method} {round_.step + 1}"
        done = Round(
            number=len(self.rounds),
            stage=stage,
            answered=round_.counted,
            missing=missing,
            bytes_down=0,
            bytes_up=self._new_bytes(),
            movement=round_.movement,
            residual=None,
            charges=charges,
            restarted=round_.restarted,
        )
        self.rounds.append(done)
        if self.watch is not None:
            self.watch(done)

    def _new_bytes(self) -> int:
        assert self._runtime is not None
        total, before = sum(self._runtime.sent.values()), self._bytes
        self._bytes = total
        return total - before

    def _add_bytes(self) -> None:
        """Add to the last round what was sent after the first peer had finished it."""
        self.rounds[-1] = replace(self.rounds[-1], bytes_up=self.rounds[-1].bytes_up + self._new_bytes())

    def _new_charges(self, name: str) -> tuple[Charge, ...]:
        if name not in self.ledgers:
            return ()
        charges = self.ledgers[name].charges
        new, self._seen_charges[name] = charges[self._seen_charges.get(name, 0) :], len(charges)
        return new
