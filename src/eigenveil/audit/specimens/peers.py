"""Specimens of peers: D-DP-PM as published, and pairwise noise on a graph that falls apart without one peer."""

import math
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np
from numpy.random import Generator
from scipy.special import ndtri

from eigenveil.audit.case import Case, Claim, Trial
from eigenveil.audit.cases.canaries import tossed
from eigenveil.audit.cases.messages import Tap
from eigenveil.audit.cases.peers import BUDGET, NAMES, along, few_rows, watched
from eigenveil.core.accounting import Budget
from eigenveil.estimators import GossipPCA
from eigenveil.estimators.gossip.simulation import GossipSimulation
from eigenveil.linalg import Array
from eigenveil.linalg.graphs import Graph
from eigenveil.protocols.messages import Pass

__all__ = ["CASES", "lone_tables", "published"]

# D-DP-PM's experiments: four agents, each mixing with two others by these weights, and five rounds.
_WEIGHTS: Final = np.array([[0.5, 0.25, 0, 0.25], [0.25, 0.5, 0.25, 0], [0, 0.25, 0.5, 0.25], [0.25, 0, 0.25, 0.5]])
_ROUNDS: Final = 5
_OBSERVER, _HOME = NAMES[0], NAMES[1]
# The paper's report at the smallest epsilon of its schedule for Wine, where delta is largest.
_REPORTED: Final = Budget(1.0, 0.44)
_DIM: Final = 4


def lone_tables(*, present: bool) -> dict[str, Array]:
    """Rows along all axes but the last at all peers. The second peer also has one along the last axis, or a blank one."""
    # Shorter than the bound, so that clipping plays no part in what is seen.
    rows = 0.9 * np.eye(_DIM)[np.arange(3 * (_DIM - 1)) % (_DIM - 1)]
    lone = np.eye(_DIM)[-1] if present else np.zeros(_DIM)
    return {name: np.vstack([rows, lone]) if name == _HOME else rows for name in NAMES}


def published(state: int | None, tap: Tap) -> GossipPCA:
    """D-DP-PM's Alg. 1 for one component, in its own setting."""
    return GossipPCA(
        1,
        graph=_WEIGHTS,
        epsilon=None,
        row_bound=1.0,
        center=None,
        method="segments",
        noise="published",
        rounds=_ROUNDS,
        steps=1,
        random_state=state,
        faults=tap.faults(),
    )


def _lone(budget: Budget, rng: Generator, state: int | None) -> Trial:
    """The last entry of what the canary's peer first sends to its neighbour: zero if no row has a value there."""
    present, tap = tossed(1, rng), Tap()
    published(state, tap).fit(lone_tables(present=bool(present[0])))
    # The first message of the first round has no noise in the published method, so one look is enough.
    first = next(
        message.body.values
        for message in tap.messages
        if isinstance(message.body, Pass) and (message.sender, message.receiver) == (_HOME, _OBSERVER)
    )
    return Trial(scores=np.abs(first[-1:]), present=present)


def _reported(budget: Budget) -> Claim:
    """By (epsilon, delta), at most (e^epsilon + delta) / (1 + e^epsilon) of guesses about a fair coin are right.

    Proof. Right alarms come at most at e^epsilon times the rate a of false ones plus delta, and likewise for misses m. Adding
    1 - m <= e^epsilon a + delta and 1 - a <= e^epsilon m + delta gives a + m >= 2 (1 - delta) / (1 + e^epsilon). The claimed mu
    is that of this rate, so that the curve is tested no more strictly than the claim allows.
    """
    rate = (math.exp(budget.epsilon) + budget.delta) / (1 + math.exp(budget.epsilon))
    words = "the largest delta that D-DP-PM reports for its experiments, by its Theorem 2"
    return Claim(words=words, epsilon=budget.epsilon, delta=budget.delta, mu=2 * float(ndtri(rate)))


def _star(gossip: GossipSimulation) -> None:
    """Peers share noise with the first one only, as if nobody had checked that the graph stays connected without it."""
    among = gossip.terms.among(())
    assert among.pairing is not None
    # Everything computed for a graph that stays connected, except the graph itself.
    apart = replace(among, pairing=replace(among.pairing, graph=Graph.named("star", NAMES), exact=False))
    # Past the check of `Pairing.within`, which refuses a star.
    gossip.terms._known[frozenset()] = apart
    for peer in gossip.peers.values():
        peer._outgoing.count(apart, frozenset(), 0)


def _pairwise(budget: Budget) -> Claim:
    return Claim.of(budget, "GossipPCA's guarantee, if it accepted this noise graph")


CASES: Final = (
    Case(
        name="wrong/ddppm-lone-direction",
        kind="specimen",
        about="D-DP-PM as published, the first numbers that a peer sends, which have no noise, seen by its neighbour",
        canary="a row that alone spans a direction, present or blank",
        tests=("rates", "curve"),
        budget=_REPORTED,
        claim=_reported,
        trial=_lone,
        quick=180,
        full=1000,
        threshold=0.0,
    ),
    Case(
        name="wrong/pairwise-star",
        kind="specimen",
        about="GossipPCA(noise='pairwise') with noise shared along a star, which it refuses. Seen by an adversary with all "
        "messages and the keys of the peer in the middle: only the others' own noise is left",
        canary="a row along each axis at the last peer, every other one a thousand times the bound, present or blank",
        tests=("curve", "noise"),
        budget=BUDGET,
        claim=_pairwise,
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
        threshold=0.5,
    ),
)
