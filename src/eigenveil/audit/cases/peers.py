"""Cases of peers without a hub: `GossipPCA`, with a guarantee against anyone who sees all messages and colludes with peers."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.random import Generator

from eigenveil.audit.case import Case, Claim, Trial, mu_of
from eigenveil.audit.cases.canaries import gram_of, lifted, require_guarantee, tossed
from eigenveil.audit.cases.messages import Look, Tap, scored
from eigenveil.audit.cases.peers_seen import Canary, WatchedGossip, seen, tables_of
from eigenveil.core.accounting import Budget, epsilon_of
from eigenveil.errors import require
from eigenveil.estimators.gossip.simulation import GossipSimulation
from eigenveil.linalg import Array
from eigenveil.methods import METHODS

__all__ = ["BUDGET", "CASES", "NAMES", "along", "few_rows", "watched"]

NAMES: Final = ("peer 0", "peer 1", "peer 2", "peer 3")
_COLLUDER, _LAST = NAMES[0], NAMES[-1]
_THREE: Final = NAMES[:3]
# About mu = 1.2: noise a fifth too small moves the rate of right guesses from 73% to 78%.
BUDGET: Final = Budget(4.0, 1e-3)
_DIM: Final = 6
# Peers 1 and 3 share noise with two others only, and when peer 0 colludes, with one.
_FEWEST, _NOISE_GRAPH = NAMES[1], ((0, 1), (1, 2), (2, 3), (3, 0), (0, 2))
# One direction, shared by so many people that every round multiplies by it.
_PEOPLE: Final = 400
# People along each axis at each peer: enough to keep the eigenvalues of the released sum above zero.
_LIFT: Final = 10
# In units of the bound: clipping is part of what is attacked.
_HEAVY: Final = 1000.0


def few_rows(names: Sequence[str] = NAMES) -> dict[str, Array]:
    """A few rows at each peer, along all axes. Messages show canaries whatever else there is."""
    return {name: 0.5 * np.eye(_DIM) for name in names}


def along(peer: str, *, instead: Array | None) -> list[Canary]:
    """A canary along each axis, every other one a thousand times the bound; when absent, a person with the row `instead`."""
    lengths = np.where(np.arange(_DIM) % 2 == 1, _HEAVY, 1.0)
    return [Canary(peer, row, instead) for row in lengths[:, None] * np.eye(_DIM)]


def _fitted(
    budget: Budget,
    state: int | None,
    tables: Mapping[str, Array],
    *,
    rank: int = _DIM,
    dies: Mapping[str, int] | None = None,
    before: Callable[[GossipSimulation], None] | None = None,
    **options: Any,
) -> tuple[WatchedGossip, Tap]:
    """A fit at this budget, and its messages. By default rows have norm at most one, around zero."""
    # The simplest setting in which a case can fail. Each case changes what it is about.
    common: dict[str, Any] = {"graph": "complete", "row_bound": 1.0, "center": None, "neighbours": "zero-out"}
    tap = Tap()
    pca = WatchedGossip(
        rank,
        epsilon=budget.epsilon,
        delta=budget.delta,
        random_state=state,
        faults=tap.faults(dies=dies),
        **(common | options),
    )
    pca.before = before
    pca.fit(tables)
    require_guarantee(pca.guarantee_, budget)
    return pca, tap


def watched(
    budget: Budget,
    rng: Generator,
    state: int | None,
    *,
    base: Mapping[str, Array],
    canaries: Sequence[Canary],
    colluder: str | None = None,
    dies: Mapping[str, int] | None = None,
    **options: Any,
) -> Trial:
    """All messages of one fit, scored by an adversary who knows all but the tosses, and the keys of a `colluder` if given."""
    present = tossed(len(canaries), rng)
    pca, tap = _fitted(budget, state, tables_of(base, canaries, present), dies=dies, **options)
    # The case tests nothing if the round that it is about did not begin again.
    again = any(round_.restarted for round_ in pca.transcript_)
    require(again == bool(dies), "a round must begin again exactly where a peer is lost")
    return scored(seen(pca.gossip, tap, base, canaries, colluder=colluder), present)


def _outside(budget: Budget, rng: Generator, state: int | None) -> Trial:
    """The whole released Gram matrix, under the noise of all peers together, which is a little more than a curator's."""
    # A released matrix is shown as components, which lose negative eigenvalues. These people keep them positive.
    base = dict.fromkeys(NAMES, lifted(_DIM, length=1.0, people=_LIFT))
    canaries = along(_LAST, instead=np.zeros(_DIM))
    present = tossed(_DIM, rng)
    tables = tables_of(base, canaries, present)
    pca, _ = _fitted(budget, state, tables, method="covariance", graph="ring", consensus="tree")
    pairing = pca.gossip.terms.among(()).pairing
    assert pairing is not None
    charged = pca.ledgers_[_LAST].charges[0].mu
    # The noise as it was drawn: rounding makes it a little larger than asked for.
    steps = pairing.in_steps(1.0, charged, (_DIM, _DIM), symmetric=True)
    exact = sum(rows.T @ rows for rows in base.values())
    # What is left of a canary after clipping, however long it was.
    clipped = np.eye(_DIM)
    look = Look(
        released=gram_of(pca.subspace_),
        base=np.asarray(exact),
        shifts=np.einsum("mi,mj->mij", clipped, clipped),
        # Pair noise cancels in the sum. The own noise of all peers is left.
        scale=math.sqrt(len(NAMES)) * steps.own * steps.step,
        symmetric=True,
        charged=charged,
    )
    return scored([look], present)


def _scores(budget: Budget, rng: Generator, state: int | None) -> Trial:
    """The messages of a fit, and then everybody's scores for as much again. Both are about the same people."""
    base, canaries = few_rows(_THREE), along(_THREE[-1], instead=np.zeros(_DIM))
    present = tossed(_DIM, rng)
    tables = tables_of(base, canaries, present)
    pca, tap = _fitted(budget, state, tables, method="covariance", noise="independent", consensus="tree")
    looks = seen(pca.gossip, tap, base, canaries)
    given = pca.publish_scores(epsilon=budget.epsilon, delta=budget.delta)
    claim = _with_scores(budget)
    require(
        math.isclose(given.guarantee.epsilon or 0.0, claim.epsilon, rel_tol=1e-9),
        f"the scores guarantee {given.guarantee.epsilon}",
    )
    # Canaries are the last rows of their peer, each in its place whether present or blank.
    released = given.scores[_THREE[-1]][-_DIM:]
    shifts = np.zeros((_DIM, *released.shape))
    # A canary's scores are its row times the components, in its own row of the table.
    shifts[np.arange(_DIM), np.arange(_DIM)] = pca.components_.T
    charged = given.guarantee.charges[-1].mu
    looks.append(
        Look(released=released, base=np.zeros_like(released), shifts=shifts, scale=1 / charged, charged=charged)
    )
    return scored(looks, present)


def _guarantee(budget: Budget) -> Claim:
    return Claim.of(budget, "GossipPCA's guarantee")


def _with_scores(budget: Budget) -> Claim:
    # The scores cost as much again as the fit, and squares of mu add up.
    mu = math.sqrt(2) * mu_of(budget)
    return Claim(
        words="GossipPCA's guarantee after publish_scores",
        epsilon=epsilon_of(mu, budget.delta),
        delta=budget.delta,
        mu=mu,
    )


_AXES: Final = "a row along each axis, every other one a thousand times the bound, present or"
_MESSAGES: Final = "all messages between peers"
_AND_KEYS: Final = f"{_MESSAGES}, seen by an adversary with all keys of one peer"


def _case(
    name: str,
    about: str,
    canary: str,
    trial: Callable[[Budget, Generator, int | None], Trial],
    *,
    quick: int,
    claim: Callable[[Budget], Claim] = _guarantee,
) -> Case:
    """A case scored by likelihood ratios: the threshold is half, and the noise is tested too."""
    return Case(
        name=name,
        kind="shipped",
        about=about,
        canary=canary,
        tests=("curve", "noise"),
        budget=BUDGET,
        claim=claim,
        trial=trial,
        quick=quick,
        full=10 * quick,
        threshold=0.5,
    )


CASES: Final = (
    _case(
        "peers/pairwise",
        f"GossipPCA(method='covariance', noise='pairwise'), {_AND_KEYS}",
        f"{_AXES} blank, at the peer that shares noise with the fewest others, one of which colludes",
        partial(
            watched,
            base=few_rows(),
            canaries=along(_FEWEST, instead=np.zeros(_DIM)),
            colluder=_COLLUDER,
            method="covariance",
            noise_graph=_NOISE_GRAPH,
        ),
        quick=160,
    ),
    _case(
        "peers/listener",
        f"GossipPCA(method='covariance', noise='pairwise'), {_MESSAGES}, seen by an outsider without keys",
        f"{_AXES} blank",
        partial(
            watched,
            base=few_rows(_THREE),
            canaries=along(_THREE[1], instead=np.zeros(_DIM)),
            method="covariance",
            consensus="tree",
        ),
        quick=60,
    ),
    _case(
        "peers/default",
        f"GossipPCA with default settings (private mean, products with a block, trace), {_AND_KEYS}",
        f"{_AXES} not",
        partial(
            watched,
            base=few_rows(_THREE),
            canaries=along(_THREE[1], instead=None),
            colluder=_COLLUDER,
            center="private",
            neighbours="add-remove",
        ),
        quick=60,
    ),
    *(
        _case(
            f"peers/{leaf}-tree",
            f"GossipPCA(method='{leaf}', consensus='tree', rounds=2), {_AND_KEYS}",
            f"{_AXES} blank, at the last peer",
            partial(
                watched,
                base=few_rows(_THREE),
                canaries=along(_THREE[-1], instead=np.zeros(_DIM)),
                colluder=_COLLUDER,
                method=leaf.name,
                consensus="tree",
                rounds=2,
            ),
            quick=60,
        )
        for leaf in METHODS.values()
        if "peers" in leaf.places and leaf.keeps_products
    ),
    _case(
        "peers/independent",
        "GossipPCA(noise='independent', method='power', consensus='chebyshev', neighbours='replace-one', rounds=2), "
        f"{_MESSAGES}, seen by all other peers",
        "a row along each axis, or one along the next",
        partial(
            watched,
            base=few_rows(_THREE),
            canaries=[Canary(_THREE[-1], row, np.roll(row, 1)) for row in np.eye(_DIM)],
            noise="independent",
            method="power",
            consensus="chebyshev",
            neighbours="replace-one",
            rounds=2,
        ),
        quick=60,
    ),
    _case(
        "peers/replaced-mean",
        "GossipPCA(noise='independent', method='covariance', center='private', neighbours='replace-one'), "
        f"{_MESSAGES}, seen by all other peers",
        "a row along each axis a thousand times the bound, or its opposite, or one along the next",
        partial(
            watched,
            base=few_rows(_THREE),
            canaries=[
                Canary(_THREE[-1], row, -row if place % 2 == 0 else np.roll(row, 1))
                for place, row in enumerate(_HEAVY * np.eye(_DIM))
            ],
            noise="independent",
            method="covariance",
            center="private",
            consensus="tree",
            neighbours="replace-one",
        ),
        quick=40,
    ),
    _case(
        "peers/segments",
        f"GossipPCA(1, method='segments', rounds=3), {_AND_KEYS}, except the start, which others do not know",
        "a row along the only direction, present or blank",
        partial(
            watched,
            base=dict.fromkeys(_THREE, lifted(2, length=1.0, people=_PEOPLE)[:_PEOPLE]),
            canaries=[Canary(_THREE[1], np.eye(2)[0], np.zeros(2))],
            colluder=_COLLUDER,
            rank=1,
            method="segments",
            consensus="tree",
            rounds=3,
        ),
        quick=80,
    ),
    _case(
        "peers/restarted",
        "GossipPCA(method='covariance', restarts=1), where a peer fails and the round begins again: "
        f"{_AND_KEYS}, before and after",
        f"{_AXES} blank",
        partial(
            watched,
            base=few_rows(),
            canaries=along(NAMES[1], instead=np.zeros(_DIM)),
            colluder=_COLLUDER,
            dies={_LAST: 6},
            method="covariance",
            graph="ring",
            consensus="chebyshev",
            noise_graph="complete",
            restarts=1,
        ),
        quick=60,
    ),
    _case(
        "peers/result",
        "GossipPCA(method='covariance', consensus='tree'), all components and variances, seen by anybody",
        f"{_AXES} blank, at the last peer",
        _outside,
        quick=100,
    ),
    _case(
        "peers/scores",
        f"GossipPCA(noise='independent', method='covariance') and publish_scores, {_MESSAGES} and all scores, seen by all other "
        "peers",
        f"{_AXES} blank, at the last peer",
        _scores,
        quick=100,
        claim=_with_scores,
    ),
)
