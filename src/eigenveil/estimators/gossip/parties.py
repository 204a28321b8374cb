"""`PeerParties` makes the peers of a fit from its public terms alone.

In one process `GossipSimulation` makes all of them. Over a network each peer makes itself from the same terms, so that they fit
together.
"""

import hashlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, final

from eigenveil.core.ledger import Account, Ledger
from eigenveil.core.mechanism import Exact, Gaussian
from eigenveil.core.noise import Noise
from eigenveil.core.rows import Rows
from eigenveil.errors import ParameterWarning, ProtocolError, TooFewPeople, at_place, require
from eigenveil.estimators.checks import WholeCharge
from eigenveil.estimators.gossip.spec import GossipSpec, directions_of
from eigenveil.estimators.reading import Columns
from eigenveil.estimators.terms import Round, Watch, bound_settings, settings_of
from eigenveil.estimators.verdict import FitVerdict, assess_fit, noise_floor, released_quantities, warnings_before_fit
from eigenveil.linalg import sines
from eigenveil.privacy.facts import COMPONENTS, NO_PRIVACY, GuaranteeFacts, PeersAlone, Person
from eigenveil.privacy.guarantee import Guarantee
from eigenveil.privacy.paired import PairedPart
from eigenveil.protocols.gossip.averaging import Outgoing, Paired, PairKeys, Plain
from eigenveil.protocols.gossip.peer import Peer, PeerRound
from eigenveil.protocols.gossip.terms import GossipTerms, PeerNoise
from eigenveil.protocols.keys import Identity, digest_of
from eigenveil.runtimes.local import Faults, LocalPeers, Refusal
from eigenveil.tasks.fit.task import Fit, FitResult

__all__ = ["GossipSimulation", "PeerParties", "gossip_guarantee", "peers_settings"]

# Spending stays this far below the budget, relatively. Otherwise rounding could refuse the last release.
_MARGIN: Final = 1e-10


@final
class PeerParties:
    """The peers `names`. Changes in place: it keeps the ledgers and tasks of the peers it has made.

    Over a network peers are `apart`. Then `roster` has the public identities of all, and their terms are bound to `title`. All
    of them know `start`, the public seed of the first basis.
    """

    def __init__(
        self,
        spec: GossipSpec,
        names: Sequence[str],
        *,
        roster: Mapping[str, bytes],
        title: str = "",
        start: Any = None,
        apart: bool = False,
        through: Account | None = None,
    ) -> None:
        self.request, self.names, self.apart = spec, tuple(names), apart
        # Where every charge of a peer is kept first, where all of them are in one process.
        self._through = through
        self.ledgers: dict[str, Ledger] = {}
        self.studies: dict[str, Fit] = {}
        self._places = {name: 1 + index for index, name in enumerate(self.names)}
        self._start = spec.seed if start is None else start
        # The first basis, public and the same at all peers.
        self._begin = spec.fit.method.start_basis(spec.fit.bounds.dim, spec.fit.plan, self._start)
        self.terms = self._terms(roster, title)
        # An impossible pairing is refused here, before any message is sent.
        self._among = self.terms.among(())

    def noise_floor(self, result: FitResult, *, counted: tuple[str, ...]) -> float:
        """Gram eigenvalues below this cannot be told from noise, with the peers `counted`."""
        if result.scale == 0:
            return 0.0
        # Fewer peers share the noise among themselves in another way.
        pairing = self.terms.among(set(self.names) - set(counted)).pairing
        multiplier = self._total_noise(len(counted), None if pairing is None else pairing.excess)
        result = replace(result, scale=result.scale * multiplier / self._planned_noise)
        study = next(iter(self.studies.values()))
        return noise_floor(study, result, self.request.fit.plan)

    def verdict(
        self,
        result: FitResult,
        *,
        counted: tuple[str, ...],
        names: tuple[str, ...] | None,
        before: tuple[ParameterWarning, ...] = (),
    ) -> FitVerdict:
        """The verdict on a fit with the peers `counted`. The columns may have `names`."""
        if result.scale == 0:
            return FitVerdict(warned=before, n_before_fit=len(before))
        floor, study = self.noise_floor(result, counted=counted), next(iter(self.studies.values()))
        return assess_fit(
            released_quantities(study, result, floor=floor),
            settings=self.request.fit.settings,
            budget=self.request.budget,
            method=self.planned,
            neighbours=self.request.fit.neighbours,
            names=names,
            sites=len(self.names),
            before=before,
        )

    def before(self) -> tuple[ParameterWarning, ...]:
        """What is to be said before anything is spent, where the number of people is public."""
        spec = self.request
        return warnings_before_fit(
            self.planned,
            dim=spec.fit.bounds.dim,
            rank=spec.fit.known_rank,
            people=spec.fit.people,
            budget=spec.budget,
            neighbours=spec.fit.neighbours,
            sites=len(self.names),
            center=spec.fit.seeks_center,
            bounds=spec.fit.bounds,
        )

    @property
    def planned(self) -> str:
        """The name of this setting and method in a plan."""
        spec = self.request
        setting = "peers" if spec.noise == "pairwise" else "peers-independent"
        return f"{setting}/{spec.fit.method}"

    @property
    def _planned_noise(self) -> float:
        """Noise over sensitivity of a sum over all peers, at a share of one."""
        pairing = self._among.pairing
        return self._total_noise(len(self.names), None if pairing is None else pairing.excess)

    def _terms(self, roster: Mapping[str, bytes], title: str) -> GossipTerms:
        spec = self.request
        noise: PeerNoise = spec.noise
        return GossipTerms(
            graph=spec.graph,
            consensus=spec.consensus,
            weights=spec.weights,
            steps=spec.steps,
            noise=noise,
            noise_graph=spec.noise_graph,
            colluders=spec.colluders,
            quorum=spec.quorum,
            # Without a budget a restart costs nothing, so their number has no limit.
            restarts=spec.restarts if spec.fit.private else None,
            deadline=spec.deadline,
            retries=spec.retries,
            study=self._study_digest(title),
            # Only pair noise needs identities: other peers sign nothing.
            roster=roster if noise == "pairwise" else {},
        )

    def _study_digest(self, title: str) -> bytes:
        """All that a peer's messages depend on, so that peers with other terms refuse each other."""
        spec, plan, bounds = self.request, self.request.fit.plan, self.request.fit.bounds
        gaps = bounds.gaps
        return digest_of(
            "study",
            title=title,
            rank=spec.fit.rank,
            neighbours=spec.fit.neighbours.value,
            method=plan.method,
            width=plan.width,
            rounds=plan.rounds,
            shares=plan.shares,
            tolerance=plan.tolerance,
            # A key of the digest that pair noise is derived from: without it seeded fits would have other noise.
            published=False,
            people=plan.people,
            budget=None if spec.budget is None else (spec.budget.epsilon, spec.budget.delta),
            restarts=spec.restarts,
            sizes=spec.fit.sizes if spec.fit.people is not None else None,
            dim=bounds.dim,
            row_bound=bounds.row_bound,
            mean_bound=bounds.mean_bound,
            search=bounds.search,
            find=bounds.finds_bound,
            units=bounds.finds_scale,
            quantile=bounds.quantile,
            center=spec.fit.center,
            origin=bounds.origin,
            scale=bounds.scale,
            low=bounds.low,
            high=bounds.high,
            start=self._begin,
            gaps=None if gaps is None else (gaps.rule, gaps.group, gaps.values),
        )

    @property
    def _reserve(self) -> float:
        """The share of mu^2 for a fit without restarts. The rest pays for the most expensive round, once for each restart."""
        if self.request.restarts == 0:
            return 1.0
        # The number of people is released with one of the steps.
        split = self.request.fit.split()
        means = [split.step(step) for step in range(len(split.mean))]
        dearest = max(*means, split.extra, split.main(0) * max(self.request.fit.plan.shares), 0.0)
        # A fit and its restarts together spend the whole: reserve * (1 + restarts * dearest) = 1.
        return 1.0 / (1.0 + self.request.restarts * dearest)

    @property
    def multiplier(self) -> float:
        """Noise over sensitivity that one trusted curator would need, at a share of one."""
        assert self.request.budget is not None
        return (1 + _MARGIN) / (self.request.budget.mu * math.sqrt(self._reserve))

    def _total_noise(self, peers: int, excess: float | None) -> float:
        """Noise over sensitivity of a sum over so many `peers`, at a share of one."""
        if not self.request.fit.private:
            return 0.0
        return self.multiplier * (math.sqrt(peers) if excess is None else excess)

    def _noise(self, name: str, purpose: str) -> Noise:
        seed = self.request.seed
        if seed is None:
            return Noise.fresh()
        # A seed for each peer and each purpose: equal noise would cancel in a difference.
        # Two bits for the purpose and 32 for the peer, so that no two sums of these are equal.
        return Noise.seeded((seed << 34) + (self._places[name] << 2) + ("own", "hidden").index(purpose))

    def peer(
        self,
        name: str,
        rows: Rows,
        *,
        watch: Callable[[Peer, PeerRound], None] | None,
        identity: Identity | None = None,
        secret: bytes | None = None,
    ) -> Peer:
        """The peer of this name. With pairwise noise it needs an `identity`, and a `secret` as its key for the study."""
        fit = self.request.fit
        self.studies[name] = fit.fit(
            directions_of(self.request, self._begin, self._noise(name, "hidden")),
            multiplier=self._planned_noise,
            begins_again=not fit.private,
        )
        outgoing = self._outgoing(name, identity, os.urandom(32) if secret is None else secret)
        return Peer(name, terms=self.terms, task=self.studies[name], rows=rows, outgoing=outgoing, watch=watch)

    def _outgoing(self, name: str, identity: Identity | None, secret: bytes) -> Outgoing:
        spec = self.request
        if spec.budget is None:
            return Plain(Exact(because="nothing is guaranteed"))
        budget = spec.budget
        ledger = self.ledgers[name] = Ledger.continued(budget, (), {}, unit=spec.fit.unit, through=self._through)
        own = self._noise(name, "own")
        if spec.noise != "pairwise":
            # All of a curator's noise at every peer: it protects against all other peers together.
            return Plain(Gaussian(multiplier=self.multiplier, ledger=ledger, noise=own))
        require(identity is not None, f"{name} needs its identity: noise is shared by pairs")
        assert identity is not None
        assert self._among.pairing is not None
        keys = PairKeys(name, identity, self.terms, secret, reproducible=spec.seed is not None)
        return Paired(
            PairedPart(pairing=self._among.pairing, name=name, ledger=ledger, noise=own, multiplier=self.multiplier), keys
        )


def peers_settings(parties: PeerParties, result: FitResult, *, peers: int, rounds: int, sent: int | None) -> dict[str, Any]:
    """The settings of a fit between `peers`, as far as the peer that writes the model knows them. `sent` is in bytes."""
    spec, plan = parties.request, parties.request.fit.plan
    return settings_of(
        spec.fit.settings,
        method=plan.method,
        why=plan.reason,
        neighbours=spec.fit.neighbours if spec.fit.private else None,
        noise=spec.noise,
        graph=f"{len(spec.graph.names)} peers, {len(spec.graph.edges)} edges",
        steps=parties.terms.among(()).mixing.steps,
        peers=peers,
        rounds=rounds,
        bytes=sent,
        tolerance=plan.tolerance if spec.fit.method.fixed_rounds is None else None,
        width=plan.width,
        **bound_settings(spec.fit.settings, spec.fit.bounds, result.domain.radius, result.units),
    )


def gossip_guarantee(parties: PeerParties, result: FitResult, *, counted: tuple[str, ...], since: int = 0) -> Guarantee:
    """The guarantee of a finished fit, from its ledgers. The result is that of the peers `counted`, from round `since` on."""
    spec = parties.request
    if spec.budget is None:
        return Guarantee.none(NO_PRIVACY["fit"])
    # Peers that restarted were charged more. The guarantee must cover the largest charge.
    dearest = max(parties.ledgers.values(), key=lambda ledger: ledger.spent_mu)
    return GuaranteeFacts(
        budget=spec.budget,
        protects=Person(source="peer", grouped=spec.fit.grouped, column=spec.fit.person),
        neighbours=spec.fit.neighbours,
        rows=spec.fit.bounds.known(spec.fit.center, norm=result.domain.radius),
        seen_by=_seen_by(parties, counted, since),
        released=COMPONENTS + spec.fit.bounds.released,
        charges=dearest.charges,
        reproducible=spec.seed is not None,
        people=result.people,
    ).guarantee()


def _seen_by(parties: PeerParties, counted: tuple[str, ...], since: int) -> PeersAlone:
    spec, names = parties.request, parties.request.graph.names
    alone = PeersAlone(
        names=names,
        counted=counted,
        colluders=None,
        # Every peer adds a curator's noise, and variances add up.
        excess=math.sqrt(len(counted)),
        apart=parties.apart,
        since=since,
        restarts=spec.restarts,
    )
    if spec.noise == "independent":
        return alone
    pairing = parties.terms.among(set(names) - set(counted)).pairing
    assert pairing is not None
    return replace(alone, colluders=spec.colluders, excess=pairing.excess, ratio=pairing.ratio, exact=pairing.exact)


@final
class GossipSimulation:
    """The peers of one fit and what they have done. Changes in place: it spends."""

    def __init__(
        self,
        spec: GossipSpec,
        peers: Mapping[str, Rows],
        columns: Columns,
        *,
        watch: Watch | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        self.request, self.columns, self.watch = spec, columns, watch
        self.rounds: list[Round] = []
        self.refused: tuple[Refusal, ...] = ()
        self.stopped: dict[str, Exception] = {}
        self.sent: dict[str, int] = {}
        self.done: list[Peer] = []
        # Peers that ended with the result of another set of peers.
        self.apart: tuple[str, ...] = ()
        self._names = tuple(peers)
        # Only pair noise needs keys.
        needs = self._names if spec.noise == "pairwise" else ()
        identities = {name: Identity(self._secret("identity", name)) for name in needs}
        roster = {name: identity.public for name, identity in identities.items()}
        self._whole = WholeCharge(ledger, spec.budget, unit=spec.fit.unit, label="this fit between peers")
        self.parties = PeerParties(spec, self._names, roster=roster, through=self._whole)
        self.terms, self.ledgers, self.studies = self.parties.terms, self.parties.ledgers, self.parties.studies
        self.peers = {
            name: self.parties.peer(name, rows, watch=self._note, identity=identities.get(name), secret=self._secret("key", name))
            for name, rows in peers.items()
        }
        self._runtime: LocalPeers | None = None
        self._speaker: str | None = None
        self._bytes = 0
        self._seen_charges: dict[str, int] = {}
        self._counted = self._names
        # What was said before anything was spent.
        self.before: tuple[ParameterWarning, ...] = ()

    def _secret(self, what: str, name: str) -> bytes:
        """32 bytes that no one can guess, or that a known seed determines."""
        seed = self.request.seed
        # With its purpose, or a peer's identity and its key for the study would be the same secret.
        return os.urandom(32) if seed is None else hashlib.sha256(f"{what} {seed} {name}".encode()).digest()

    def run(self, *, faults: Faults | None = None) -> FitResult:
        """The result of the first peer that has one. If none has, the error of the first peer that stopped. Runs once."""
        require(self._runtime is None, "these peers have run, and what they spent is spent. Make new ones for another fit")
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
        # What was sent after the first peer had finished the last round.
        self.rounds[-1] = replace(self.rounds[-1], bytes_up=self.rounds[-1].bytes_up + self._new_bytes())
        # Peers of one group have equal results up to rounding, so any of them may speak.
        result: FitResult = self.done[0].result
        return result

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

    def verdict(self, result: FitResult, *, names: tuple[str, ...] | None) -> FitVerdict:
        """The verdict on the fit. The columns may have `names`."""
        return self.parties.verdict(result, counted=self.done[0].counted, names=names, before=self.before)

    def _note(self, peer: Peer, round_: PeerRound) -> None:
        """Record a round, as the first peer that finished it saw it."""
        # Before the early return: rounds of a peer that is not shown were charged too, and are not new when it takes over.
        spent = self.ledgers[peer.name].charges if peer.name in self.ledgers else ()
        charges = spent[self._seen_charges.get(peer.name, 0) :]
        self._seen_charges[peer.name] = len(spent)
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
