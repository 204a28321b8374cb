"""`PeerParties` makes the peers of a fit from its public terms alone.

In one process `GossipSimulation` makes all of them. Over a network each peer makes itself from the same terms, so that they fit
together.
"""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, final

from eigenveil.core.ledger import Account, Ledger
from eigenveil.core.mechanism import Exact, Gaussian
from eigenveil.core.noise import Noise
from eigenveil.core.rows import Rows
from eigenveil.errors import ParameterWarning, require
from eigenveil.estimators.gossip.spec import GossipSpec, directions_of
from eigenveil.estimators.settings import bound_settings, settings_of
from eigenveil.estimators.verdict import FitVerdict, forewarned, noise_floor, released_of, verdict_of
from eigenveil.linalg import Array
from eigenveil.privacy import PairedPart
from eigenveil.protocols.gossip import GossipTerms, Outgoing, Paired, PairKeys, Peer, PeerNoise, PeerRound, Plain
from eigenveil.protocols.keys import Identity, digest_of
from eigenveil.tasks.fit.task import Fit, FitResult

__all__ = ["PeerParties", "peers_settings"]

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
        request: GossipSpec,
        names: Sequence[str],
        *,
        roster: Mapping[str, bytes],
        title: str = "",
        start: Any = None,
        apart: bool = False,
        through: Account | None = None,
    ) -> None:
        self.request, self.names, self.apart = request, tuple(names), apart
        # Where every charge of a peer is kept first, where all of them are in one process.
        self._through = through
        self.ledgers: dict[str, Ledger] = {}
        self.studies: dict[str, Fit] = {}
        self._places = {name: 1 + place for place, name in enumerate(self.names)}
        self._start = request.seed if start is None else start
        self._split = request.fit.split()
        self._begin = self._first_basis()
        self.terms = self._terms(roster, title)
        # An impossible pairing is refused here, before any message is sent.
        self._among = self.terms.among(())

    def noise_floor(self, found: FitResult, *, counted: tuple[str, ...]) -> float:
        """Gram eigenvalues below this cannot be told from noise, with the peers `counted`."""
        if found.scale == 0:
            return 0.0
        # Fewer peers share the noise among themselves in another way.
        pairing = self.terms.among(set(self.names) - set(counted)).pairing
        multiplier = self._total_noise(len(counted), None if pairing is None else pairing.excess)
        found = replace(found, scale=found.scale * multiplier / self._planned_noise)
        study = next(iter(self.studies.values()))
        return noise_floor(study, found, self.request.fit.plan)

    def verdict(
        self,
        found: FitResult,
        *,
        counted: tuple[str, ...],
        names: tuple[str, ...] | None,
        before: tuple[ParameterWarning, ...] = (),
    ) -> FitVerdict:
        """The verdict on a fit with the peers `counted`. The columns may have `names`."""
        if found.scale == 0:
            return FitVerdict(warned=before, said=len(before))
        floor, study = self.noise_floor(found, counted=counted), next(iter(self.studies.values()))
        return verdict_of(
            released_of(study, found, space=found.subspace, floor=floor),
            asked=self.request.fit.settings,
            budget=self.request.budget,
            method=self.planned,
            neighbours=self.request.fit.neighbours,
            names=names,
            sites=len(self.names),
            before=before,
        )

    def before(self) -> tuple[ParameterWarning, ...]:
        """What is to be said before anything is spent, where the number of people is public."""
        request = self.request
        return forewarned(
            self.planned,
            dim=request.fit.bounds.dim,
            rank=request.fit.known_rank,
            people=request.fit.people,
            budget=request.budget,
            neighbours=request.fit.neighbours,
            sites=len(self.names),
            center=request.fit.seeks_center,
            bounds=request.fit.bounds,
        )

    @property
    def planned(self) -> str:
        """The name of this setting and method in a plan."""
        request = self.request
        setting = "peers" if request.noise == "pairwise" else "peers-independent"
        return f"{setting}/{request.fit.method}"

    @property
    def _planned_noise(self) -> float:
        """Noise over sensitivity of a sum over all peers, at a share of one."""
        pairing = self._among.pairing
        return self._total_noise(len(self.names), None if pairing is None else pairing.excess)

    def _first_basis(self) -> Array | None:
        """The first basis, public and the same at all peers."""
        request = self.request
        return request.fit.method.start_basis(request.fit.bounds.dim, request.fit.plan, self._start)

    def _terms(self, roster: Mapping[str, bytes], title: str) -> GossipTerms:
        request = self.request
        # D-DP-PM adds its noise inside the task, so what leaves a peer gets none on top.
        noise: PeerNoise = "none" if request.noise == "published" else request.noise
        return GossipTerms(
            graph=request.graph,
            consensus=request.consensus,
            weights=request.weights,
            steps=request.steps,
            noise=noise,
            noise_graph=request.noise_graph,
            colluders=request.colluders,
            quorum=request.quorum,
            # Without a budget a restart costs nothing, so their number has no limit.
            restarts=request.restarts if request.fit.private else None,
            deadline=request.deadline,
            retries=request.retries,
            study=self._study_digest(title),
            # Only pair noise needs identities: other peers sign nothing.
            roster=roster if noise == "pairwise" else {},
        )

    def _study_digest(self, title: str) -> bytes:
        """All that a peer's messages depend on, so that peers with other terms refuse each other."""
        request, plan, bounds, gaps = (
            self.request,
            self.request.fit.plan,
            self.request.fit.bounds,
            self.request.fit.bounds.gaps,
        )
        return digest_of(
            "study",
            title=title,
            rank=request.fit.rank,
            neighbours=request.fit.neighbours.value,
            method=plan.method,
            width=plan.width,
            rounds=plan.rounds,
            shares=plan.shares,
            tolerance=plan.tolerance,
            published=request.fit.published,
            people=plan.people,
            budget=None if request.budget is None else (request.budget.epsilon, request.budget.delta),
            restarts=request.restarts,
            sizes=request.fit.sizes if request.fit.people is not None else None,
            dim=bounds.dim,
            row_bound=bounds.row_bound,
            mean_bound=bounds.mean_bound,
            search=bounds.search,
            find=bounds.find,
            units=bounds.units,
            quantile=bounds.quantile,
            center=request.fit.center,
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
        split = self._split
        # The number of people is released with one of the steps.
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

    def _study(self, name: str) -> Fit:
        fit = self.request.fit
        return fit.fit(
            directions_of(self.request, self._begin, self._noise(name, "hidden")),
            multiplier=self._planned_noise,
            begins_again=not fit.private and not fit.published,
        )

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
        self.studies[name] = self._study(name)
        outgoing = self._outgoing(name, identity, os.urandom(32) if secret is None else secret)
        return Peer(name, terms=self.terms, task=self.studies[name], rows=rows, outgoing=outgoing, watch=watch)

    def _outgoing(self, name: str, identity: Identity | None, secret: bytes) -> Outgoing:
        request = self.request
        if request.budget is None:
            return Plain(Exact(because="nothing is guaranteed"))
        budget = request.budget
        ledger = self.ledgers[name] = Ledger.continued(budget, (), {}, unit=request.fit.unit, through=self._through)
        own = self._noise(name, "own")
        if request.noise != "pairwise":
            # All of a curator's noise at every peer: it protects against all other peers together.
            return Plain(Gaussian(multiplier=self.multiplier, ledger=ledger, noise=own))
        require(identity is not None, f"{name} needs its identity: noise is shared by pairs")
        assert identity is not None
        assert self._among.pairing is not None
        keys = PairKeys(name, identity, self.terms, secret, reproducible=request.seed is not None)
        return Paired(
            PairedPart(pairing=self._among.pairing, name=name, ledger=ledger, noise=own, multiplier=self.multiplier),
            keys,
        )


def peers_settings(
    parties: PeerParties, found: FitResult, *, peers: int, rounds: int, sent: int | None
) -> dict[str, Any]:
    """The settings of a fit between `peers`, as far as the peer that writes the model knows them. `sent` is in bytes."""
    request, plan = parties.request, parties.request.fit.plan
    return settings_of(
        request.fit.settings,
        method=plan.method,
        why=plan.reason,
        neighbours=request.fit.neighbours if request.fit.private else None,
        noise=request.noise,
        graph=f"{len(request.graph.names)} peers, {len(request.graph.edges)} edges",
        steps=parties.terms.among(()).mixing.steps,
        peers=peers,
        rounds=rounds,
        bytes=sent,
        tolerance=plan.tolerance if request.fit.method.fixed_rounds is None else None,
        width=plan.width,
        **bound_settings(request.fit.settings, request.fit.bounds, found.domain.radius, found.units),
    )
