"""Fits that are known to be wrong. An audit that does not refute each of them is blind: its other verdicts mean nothing.

Each is the smallest change to something shipped, or a method as it was published: one curator's fit with one mistake; a reader
of a file that puts a row into the slot in which it is read, as followers did at first; FedPower with local steps as published;
masks with a missing share of noise; D-DP-PM as published; pairwise noise on a graph that falls apart without one peer; a site
that notes in its ledger which of its slots nobody has rows in; and noise in floating point, as most libraries add it.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, ClassVar, Final, cast, final

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.special import ndtri

from eigenveil.audit.case import Claim, Trial, mu_of, usual_case
from eigenveil.audit.cases.bits import site_parts
from eigenveil.audit.cases.curator import blanked, fitted, two_fits
from eigenveil.audit.cases.ledgers import SLOTS, seen_in_export, stream_on_a_ledger
from eigenveil.audit.cases.peers import NAMES, along, few_rows, watched
from eigenveil.audit.cases.seen import enough_people, flip_coins, lifted
from eigenveil.audit.cases.sites import UNDER_MASKS, seen_by_hub_and_colluder
from eigenveil.audit.cases.stream import followed_file
from eigenveil.core.accounting import Budget
from eigenveil.core.domain import Domain, Region
from eigenveil.core.ledger import Charge, Ledger, Memory, Slot
from eigenveil.core.mechanism import Bounded, Gaussian, Mechanism
from eigenveil.core.noise import Noise
from eigenveil.core.rows import Rows
from eigenveil.core.unit import Neighbours
from eigenveil.data.follow import ByClock, Closed, Followed, FollowedRows, Instant, SlotEnds, SlotStart
from eigenveil.data.rows import DenseRows
from eigenveil.estimators import PrivatePCA
from eigenveil.estimators.federated.parties import Parties
from eigenveil.estimators.gossip.parties import GossipSimulation
from eigenveil.estimators.terms import Terms
from eigenveil.linalg import Array, orthonormal
from eigenveil.linalg.graphs import Graph
from eigenveil.linalg.sketch import normals
from eigenveil.papers.baselines import DDPPM, FedPower
from eigenveil.plan.choose import Plan
from eigenveil.protocols.keys import Identity
from eigenveil.protocols.party import Party
from eigenveil.protocols.star.site import Member
from eigenveil.tasks.fit.bounds import RowBounds

__all__ = ["CASES", "DDPPM_SETTINGS", "AsRead", "FloatingGaussian", "lone_tables", "published_fedpower"]

_CURATOR_DIM: Final = 8
_CURATOR_AXES: Final = np.eye(_CURATOR_DIM)
# The budgets of shipped cases are large enough to show noise that is a fifth too small, so a specimen has just that.
_TOO_LITTLE: Final = 0.8


# `Domain` is final, and a specimen is what becomes of the package where that is ignored.
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Misjudged(Domain):  # type: ignore[misc]
    """A domain that states `part` of the sensitivities of another one."""

    stated: Domain
    part: float = 1.0

    def sum_sensitivity(self, neighbours: Neighbours) -> float:
        return self.part * self.stated.sum_sensitivity(neighbours)

    def gram_sensitivity(self, neighbours: Neighbours) -> float:
        return self.part * self.stated.gram_sensitivity(neighbours)

    def gram_times_sensitivity(self, neighbours: Neighbours, *, basis: Array, basis_norm: float) -> float:
        return self.part * self.stated.gram_times_sensitivity(neighbours, basis=basis, basis_norm=basis_norm)

    def trace_sensitivity(self, neighbours: Neighbours) -> float:
        return self.part * self.stated.trace_sensitivity(neighbours)


@final
class _OtherBounds:
    """Bounds whose regions have other `facts`, and which otherwise equal the bounds they replace."""

    def __init__(self, bounds: RowBounds, **facts: Any) -> None:
        self._bounds, self._facts = bounds, facts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bounds, name)

    def around(self, center: Array | None) -> Region:
        stated = self._bounds.around(center)
        own = {name: getattr(stated, name) for name in (field.name for field in fields(stated))}
        return _Misjudged(**(own | self._facts), stated=stated)


# Each specimen differs from the shipped fit in one place, so that what refutes it is that place.
class _MisjudgingPCA(PrivatePCA):
    facts: ClassVar[dict[str, float]]

    def _planned(self, params: PrivatePCA, rows: Rows, budget: Budget | None) -> tuple[Plan, Terms]:
        plan, terms = super()._planned(params, rows, budget)
        return plan, replace(terms, bounds=cast(RowBounds, _OtherBounds(terms.bounds, **self.facts)))


@final
class _QuietPCA(_MisjudgingPCA):
    """A `PrivatePCA` whose sensitivities, and so its noise, are a fifth too small."""

    facts: ClassVar = {"part": _TOO_LITTLE}


@final
class _UnclippedPCA(_MisjudgingPCA):
    """A `PrivatePCA` that clips no row, as in exact fits, and states sensitivities as if it did."""

    facts: ClassVar = {"radius": math.inf}


def _forgetful(budget: Budget) -> Ledger:
    """A ledger that does not record the first charge that it accepts."""
    memory = Memory(budget)
    write = memory.write
    charges = []

    def forget(charge: Charge) -> None:
        charges.append(charge)
        # The first charge is accepted and forgotten, so that the second fit seems to be the first.
        if len(charges) > 1:
            write(charge)

    # On this one object: `Memory` is final and has no subclasses.
    vars(memory)["write"] = forget
    return Ledger.kept(budget, memory)


def _forgetting_fits(budget: Budget, rng: Generator, state: int | None) -> Trial:
    # Two fits at the whole budget each, where the ledger believes that there was one.
    return two_fits(budget, rng, state, ledger=_forgetful(budget), each=budget)


def _measured(budget: Budget, rng: Generator, state: int | None) -> Trial:
    """An analyst who passes the largest row norm as row_bound: the amount of noise then reveals that row."""
    present = flip_coins(1, rng)
    # So many people that the components alone tell nothing: only the amount of noise gives the row away.
    base = lifted(_CURATOR_DIM, length=1.0, people=enough_people(_CURATOR_DIM, deviation=1 / mu_of(budget)))
    # A tenth above all others, so the largest norm tells whether this row is there.
    table = np.vstack([base, np.where(present[:, None], 1.1, 0.0) * _CURATOR_AXES[:1]])
    pca = fitted(table, budget, state, row_bound=float(np.linalg.norm(table, axis=1).max()))
    # The attacker sees only what a fit may always state: the variance below which there is only noise.
    return Trial(scores=np.array([pca.noise_floor_]), present=present)


@final
class AsRead:
    """Closes a slot when its time is over, with the rows that were read by then. Changes in place."""

    def __init__(self, source: Followed, rule: ByClock, *, start: SlotStart | None = None, ends: SlotEnds | None = None) -> None:
        self._source, self._rule, self.start = source, rule, SlotStart() if start is None else start
        self._offset, self._count = self.start.offset, 0

    @property
    def over(self) -> bool:
        """Whether all slots are closed."""
        return self.start.slot >= self._rule.horizon

    def poll(self, now: Instant, *, max_rows: int) -> FollowedRows | Closed | None:
        """The next rows, whichever slot they came in, or the end of the slot that was open."""
        slot = self._rule.slot_at(now.wall)
        if slot > self.start.slot:
            closed = Closed(self.start.slot, self._count, SlotStart(slot, self._offset, now.wall))
            self.start, self._count = closed.then, 0
            return closed
        rows, self._offset = self._source.read(self._offset, max_rows=max_rows)
        self._count += len(rows)
        return FollowedRows(rows) if len(rows) else None


# FedPower's own neighbours: Gram matrices that differ by one in one entry, here on the diagonal of a multiple of the identity.
# With this many columns and directions, one local step as published keeps the guarantee for such an entry; four do not.
_FEDPOWER_DIM: Final = 32
_RANK: Final = 10
_LEVEL: Final = 400.0  # The multiple.
_ENTRIES: Final = 10  # How many of them are canaries.
# One round, in which the number of people is public.
_MASKED: Final[dict[str, Any]] = {"method": "covariance", "neighbours": "zero-out"}


def published_fedpower(budget: Budget, rng: Generator, state: int | None, *, steps: int) -> Trial:
    """What a device sends after its local `steps`, against what it would send with and without one more in an entry.

    The score is how far the answer lies on the line from one to the other.
    """
    # Several entries at once are several trials for the price of one round.
    present = flip_coins(_ENTRIES, rng)
    fedpower = FedPower(_RANK, rounds=1, local_steps=steps, epsilon=(budget.epsilon, math.inf), delta=budget.delta)
    begin = orthonormal(rng.standard_normal((_FEDPOWER_DIM, _RANK)))

    def answer(tosses: NDArray[np.bool_]) -> Array:
        """What the device would send, without noise."""
        gram = _matrix(tosses)
        return gram @ fedpower.aligned(fedpower.local_basis(gram, begin, steps), begin)

    exact, scores = answer(present), np.empty(_ENTRIES)
    largest = float(np.abs(fedpower.local_basis(_matrix(present), begin, steps)).max())
    sent = exact + fedpower.deviations(np.ones(1))[0] * largest * rng.standard_normal(exact.shape)
    for entry in range(_ENTRIES):
        flipped = present.copy()
        flipped[entry] = not flipped[entry]
        far = exact - answer(flipped)
        # The answer's place on the line between the two, with the noise across it left out.
        way = np.vdot(far, sent - exact) / np.vdot(far, far)
        scores[entry] = 1 + way if present[entry] else -way
    return Trial(scores=scores, present=present)


def _matrix(tosses: NDArray[np.bool_]) -> Array:
    """The Gram matrix of a device whose first diagonal entries are larger by one, or not."""
    return np.diag(_LEVEL + np.pad(tosses.astype(np.float64), (0, _FEDPOWER_DIM - _ENTRIES)))


class _Silent:
    """Replaces a `Noise`: every word is zero, and so is every whole number drawn from it."""

    def words(self, count: int) -> NDArray[np.uint64]:
        return np.zeros(count, dtype=np.uint64)

    @contextmanager
    def batch(self) -> Iterator[Callable[[int], NDArray[np.uint64]]]:
        yield self.words


def _missing_share(budget: Budget, rng: Generator, state: int | None, *, sites: int) -> Trial:
    """`masked/covariance`, except that the last site, which is honest, adds no noise."""
    silent = {f"site {sites - 1}": cast("Noise", _Silent())}
    return seen_by_hub_and_colluder(budget, rng, state, sites=sites, sources=silent, **_MASKED)


# D-DP-PM's experiments: four agents, each mixing with two others by these weights, and five rounds.
_WEIGHTS: Final = np.array([[0.5, 0.25, 0, 0.25], [0.25, 0.5, 0.25, 0], [0, 0.25, 0.5, 0.25], [0.25, 0, 0.25, 0.5]])
_ROUNDS: Final = 5
_HOME: Final = NAMES[1]
# Corollary 1 for forty people whose largest variances are in the ratio of two.
_SIGMA_Q: Final = 40**-0.5
DDPPM_SETTINGS: Final[dict[str, Any]] = {
    "alpha": 0.07,
    "sigma_q": _SIGMA_Q,
    "sigma_p": tuple(_SIGMA_Q * 0.5**step for step in range(1, _ROUNDS + 1)),
    "c": 1,
    "weights": _WEIGHTS,
}
# The paper's report at the smallest epsilon of its schedule for Wine, where delta is largest.
_REPORTED: Final = Budget(1.0, 0.44)
_DDPPM_DIM: Final = 4


def lone_tables(*, present: bool) -> dict[str, Array]:
    """Rows along all axes but the last at all peers. The second peer also has one along the last axis, or a blank one."""
    # Shorter than the bound, so that clipping plays no part in what is seen.
    rows = 0.9 * np.eye(_DDPPM_DIM)[np.arange(3 * (_DDPPM_DIM - 1)) % (_DDPPM_DIM - 1)]
    lone = np.eye(_DDPPM_DIM)[-1] if present else np.zeros(_DDPPM_DIM)
    return {name: np.vstack([rows, lone]) if name == _HOME else rows for name in NAMES}


def _lone(budget: Budget, rng: Generator, state: int | None) -> Trial:
    """The last entry of what the canary's peer first sends to its neighbour: zero if no row has a value there."""
    present = flip_coins(1, rng)
    agents = DDPPM(1, random_state=state, **DDPPM_SETTINGS).fit(list(lone_tables(present=bool(present[0])).values()))
    # The first message of the first round has no noise in the published method, so one look is enough.
    first = agents.sent_[0][NAMES.index(_HOME)]
    return Trial(scores=np.abs(first[-1:]), present=present)


def _reported(budget: Budget) -> Claim:
    """By (epsilon, delta), at most (e^epsilon + delta) / (1 + e^epsilon) of guesses about a fair coin are right.

    Proof. Right alarms come at most at e^epsilon times the rate a of false ones plus delta, and likewise for misses m. Adding
    1 - m <= e^epsilon a + delta and 1 - a <= e^epsilon m + delta gives a + m >= 2 (1 - delta) / (1 + e^epsilon). The claimed mu
    is that of this rate, so that the curve is tested no more strictly than the claim allows.
    """
    rate = (math.exp(budget.epsilon) + budget.delta) / (1 + math.exp(budget.epsilon))
    description = "the largest delta that D-DP-PM reports for its experiments, by its Theorem 2"
    return Claim(words=description, epsilon=budget.epsilon, delta=budget.delta, mu=2 * float(ndtri(rate)))


def _star(gossip: GossipSimulation) -> None:
    """Peers share noise with the first one only, without a check that the graph stays connected without it."""
    among = gossip.terms.among(())
    assert among.pairing is not None
    # Everything computed for a graph that stays connected, except the graph itself.
    apart = replace(among, pairing=replace(among.pairing, graph=Graph.named("star", NAMES), exact=False))
    # Past the check of `Pairing.within`, which refuses a star.
    gossip.terms._among_cache[frozenset()] = apart
    for peer in gossip.peers.values():
        peer._outgoing.count(apart, frozenset(), 0)


@final
class FloatingGaussian:
    """Adds normals in floating point: as much noise as `exact`, for the same charge. Changes in place: it draws.

    A symmetric value gets (N + N^T) / 2 with N of independent entries. Every released number is fl(v + fl(s z)).
    """

    def __init__(self, exact: Gaussian) -> None:
        self._exact = exact

    def scale(self, sensitivity: float, *, share: float = 1.0) -> float:
        """As of the exact mechanism, without what rounding to steps adds."""
        return self._exact.scale(sensitivity, share=share)

    def release(self, private: Bounded, *, label: str, share: float = 1.0, slot: Slot | None = None) -> Array:
        """The value and its noise, added as floats. The charge is right, but the guarantee does not hold."""
        # The same charge as the exact mechanism's: only the arithmetic differs.
        self._exact.ledger.spend(np.sqrt(share) / self._exact.multiplier, label=label, slot=slot)
        # From the same source as shipped noise, so that the addition in floating point is the only mistake.
        drawn = normals(self._exact.noise, np.shape(private.value))
        scale = self.scale(private.sensitivity, share=share)
        released: Array = private.value + ((scale / 2) * (drawn + drawn.T) if private.symmetric else scale * drawn)
        return released


def _floating(parties: Parties, name: str, rows: DenseRows, identity: Identity | None) -> Party:
    """The site's own party with another mechanism."""
    member = parties.member(name, rows, identity=identity)
    assert isinstance(member, Member) and isinstance(member._mechanism, Gaussian)
    member._mechanism = cast(Mechanism, FloatingGaussian(member._mechanism))
    return member


_wrong = partial(usual_case, kind="specimen")
_shown = partial(_wrong, tests=("curve",))
_AS_READ: Final[dict[str, Any]] = {
    "claim": "the guarantee of a study of streams, where a row is in the slot in which it arrives",
    "quick": 120,
    "full": 1500,
}
CASES: Final = (
    _wrong(
        "wrong/quiet-noise",
        "PrivatePCA with noise a fifth too small: all components and variances, seen by anybody",
        "a row along each axis, present or blank",
        claim="PrivatePCA's guarantee",
        trial=partial(blanked, canaries=np.eye(16), bounded=np.eye(16), estimator=_QuietPCA),
        quick=300,
    ),
    _shown(
        "wrong/forgetful-ledger",
        "two fits of PrivatePCA charged to a Ledger that forgets one charge: all components and variances, twice",
        "a row along each axis, present or blank in both fits",
        claim="the ledger",
        trial=_forgetting_fits,
        quick=200,
    ),
    _shown(
        "wrong/unclipped-row",
        "PrivatePCA that does not clip rows to row_bound: all components and variances, seen by anybody",
        "a row along each axis ten times the bound, present or blank",
        claim="PrivatePCA's guarantee",
        trial=partial(blanked, canaries=10 * _CURATOR_AXES, bounded=_CURATOR_AXES, estimator=_UnclippedPCA),
        quick=80,
        threshold=None,
    ),
    _shown(
        "wrong/bound-from-data",
        "PrivatePCA with the largest row norm as row_bound: the noise floor alone, seen by anybody",
        "a row of norm a tenth above all others, present or blank",
        claim="PrivatePCA's guarantee",
        trial=_measured,
        quick=100,
        threshold=None,
    ),
    _wrong(
        "wrong/slots-as-read",
        "a site that puts a row into the slot in which it reads it, with a backlog and a burst: every matrix that it sends, "
        "seen by the hub",
        "the first row of the file, a thousand times the bound, present or not",
        trial=partial(followed_file, reader=AsRead),
        **_AS_READ,
    ),
    _wrong(
        "wrong/slots-as-read-long",
        "the same site, where the number of rows of every slot is public: every matrix and every number, seen by the hub",
        "the first row of the file, a thousand times the bound, or a row of zeros in four megabytes of text",
        trial=partial(followed_file, reader=AsRead, neighbours=Neighbours.ZERO_OUT),
        **_AS_READ,
    ),
    _shown(
        "wrong/fedpower-4-steps",
        "FedPower with 4 local steps, noise as published, what a site sends, seen by the hub",
        "one in an entry on the diagonal of a site's Gram matrix, present or not: FedPower's own neighbours",
        budget=Budget(1.0, 1e-5),
        claim="FedPower's Theorem 4, for one entry of a Gram matrix",
        trial=partial(published_fedpower, steps=4),
        quick=260,
    ),
    _wrong(
        "wrong/missing-share",
        "masked sums over 3 sites, one of which adds no noise, seen by the hub and another of the sites",
        "a row along each axis at the honest site that adds its noise, present or blank",
        claim=UNDER_MASKS,
        trial=partial(_missing_share, sites=3),
        quick=60,
        full=2600,
    ),
    _wrong(
        "wrong/missing-only-share",
        "masked sums over 2 sites, the honest one of which adds no noise, seen by the hub and the other site",
        "a row along each axis at the honest site, present or blank",
        tests=("rates",),
        budget=Budget(1.0, 1e-3),
        claim=UNDER_MASKS,
        trial=partial(_missing_share, sites=2),
        quick=100,
    ),
    _wrong(
        "wrong/ddppm-lone-direction",
        "D-DP-PM as published, the first numbers that a peer sends, which have no noise, seen by its neighbour",
        "a row that alone spans a direction, present or blank",
        tests=("rates", "curve"),
        budget=_REPORTED,
        claim=_reported,
        trial=_lone,
        quick=180,
        full=1000,
        threshold=0.0,
    ),
    _wrong(
        "wrong/pairwise-star",
        "GossipPCA(noise='pairwise') with noise shared along a star, which it refuses. Seen by an adversary with all "
        "messages and the keys of the peer in the middle: only the others' own noise is left",
        "a row along each axis at the last peer, every other one a thousand times the bound, present or blank",
        claim="GossipPCA's guarantee, if it accepted this noise graph",
        trial=partial(
            watched,
            base=few_rows(),
            canaries=along(NAMES[-1], instead=np.zeros(6)),
            colluder=NAMES[0],
            before=_star,
            method="covariance",
        ),
        quick=120,
        full=1800,
    ),
    _shown(
        "wrong/ledger-reasons",
        "the export of the ledger of a site that notes there which slots are empty, seen by anybody",
        "the only person of each slot, there or not",
        claim="the guarantee of what is released",
        trial=partial(seen_in_export, workload=partial(stream_on_a_ledger, noting=True), canaries=SLOTS),
        quick=80,
        full=80,
        threshold=0.0,
    ),
    _shown(
        "wrong/floating-noise",
        "FederatedPCA(trust='site') with noise in floating point, the last places of each site's matrix and count, seen by "
        "the hub, by an attacker who knows all other rows",
        "a row of real numbers, three times the bound, present or not",
        claim="FederatedPCA's guarantee, if noise were real numbers",
        trial=partial(site_parts, standing=_floating),
        quick=60,
        threshold=0.0,
    ),
)
