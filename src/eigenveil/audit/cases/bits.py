"""Cases of low bits: do the last places of released numbers tell more about a person than the size of the noise allows?

Tables have rows of real numbers. One person, along any direction and with a norm above the bound, is present or not. The
attacker has both tables and everything that is public, and computes from either the values before noise, to the last bit. The
released numbers then tell which of the two they can have come from (`eigenveil.audit.low_bits`). If that is both, as it must be,
only the likelihood ratio is left, and guesses are right as often as mu allows.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal, final

import numpy as np
import scipy.sparse as sp
from numpy.random import Generator

from eigenveil.audit.case import Trial, mu_of, usual_case
from eigenveil.audit.cases.curator import fitted, unshrunk
from eigenveil.audit.cases.peers import WatchedGossip
from eigenveil.audit.cases.seen import (
    StudyBalance,
    Tap,
    announced,
    as_member,
    enough_people,
    exact,
    flip_coins,
    gram_of,
    require_guarantee,
)
from eigenveil.audit.low_bits import Candidates, evidence, on_steps
from eigenveil.core.accounting import Budget
from eigenveil.core.domain import Domain
from eigenveil.core.noise import ROUNDING_COST
from eigenveil.core.unit import Neighbours
from eigenveil.data.rows import DenseRows, SparseRows
from eigenveil.estimators import FederatedPCA, StreamingPCA
from eigenveil.linalg import Array
from eigenveil.model import Model
from eigenveil.privacy.histories import Histories
from eigenveil.privacy.released import unpack
from eigenveil.privacy.sums import bounded_gram, bounded_sum
from eigenveil.protocols.messages import PartialSum
from eigenveil.recommend import PrivateRecommender
from eigenveil.tasks.base import Question, Task
from eigenveil.trackers import published_as

__all__ = ["CASES", "site_parts"]

_DIM: Final = 12
_SITES: Final = ("site 0", "site 1", "site 2")
_PEERS: Final = ("peer 0", "peer 1", "peer 2")
_ITEMS: Final = 16
_PUBLISH: Final = ("sync", "block", "continual")
_NOISES: Final[tuple[Literal["pairwise", "independent"], ...]] = ("pairwise", "independent")
# Rows have about this standard deviation in each direction, so that only the canary reaches the bound, which is one.
_SPREAD: Final = 0.2


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Tables:
    """A table with the person, `including`, (n + 1, d), and one `without`, (n, d) or with a blank row; and which of them is "
    "true."""

    without: Array
    including: Array
    present: bool

    @classmethod
    def of(
        cls, rng: Generator, *, people: int, dim: int, present: np.bool_, around: float = 0.0, blank: bool = False
    ) -> "_Tables":
        """Rows with mean `around` in each column. The canary has three times the norm allowed, along any direction."""
        others = around + _SPREAD * rng.standard_normal((people, dim))
        row = rng.standard_normal(dim)
        # Above the bound, so that clipping is part of what is attacked, to the last bit.
        row *= 3 / np.linalg.norm(row)
        without = np.vstack([others, np.zeros((1, dim))]) if blank else others
        return cls(without, np.vstack([others, row]), bool(present))

    @property
    def true(self) -> Array:
        return self.including if self.present else self.without

    def sums(self, of: Callable[[Array], Array]) -> tuple[Array, Array]:
        """A sum over the rows of each table, without noise."""
        return of(self.without), of(self.including)


def _enough(dim: int, *, deviation: float) -> int:
    """People for a released Gram matrix of such rows to stay above zero, where it shows as it was released.

    The least eigenvalue of n of them is about n (1 - sqrt(d / n))^2 times their variance.
    """
    return max(100, math.ceil(1.5 * enough_people(dim, deviation=deviation) / _SPREAD**2))


def site_parts(budget: Budget, rng: Generator, state: int | None, *, standing: StudyBalance = as_member) -> Trial:
    """Each site's covariance and count, as the hub receives them: a guess for each site. `standing` may change a site."""
    present, tap = flip_coins(len(_SITES), rng), Tap()
    tables = {
        name: _Tables.of(rng, people=60, dim=_DIM, present=is_present) for name, is_present in zip(_SITES, present, strict=True)
    }
    run = announced(
        _federated(budget, state, trust="site"), {name: table.true for name, table in tables.items()}, tap, standing=standing
    )
    require_guarantee(run.guarantee, budget)
    scores = []
    for name, table in tables.items():
        # What crosses the wire, not what the estimator reports: the claim is about the hub.
        parts, charges = tap.parts(to="hub", by=name), run.parties.ledgers[name].charges
        scores.append(
            evidence(
                [
                    _candidates(part.arrays[0], table.sums(partial(exact, run.parties.study, part.question)), 1 / charge.mu)
                    for part, charge in zip(parts, charges, strict=True)
                ]
            )
        )
    return Trial(scores=np.array(scores), present=present)


def _hub_release(budget: Budget, rng: Generator, state: int | None, *, trust: Literal["hub", "masked"]) -> Trial:
    """What the hub publishes, or learns under masks: sums over all sites. The canary is at the last of them."""
    present, tap, masked = flip_coins(1, rng), Tap(), trust == "masked"
    table = _Tables.of(rng, people=60, dim=_DIM, present=present[0], blank=masked)
    others = {name: _SPREAD * rng.standard_normal((60, _DIM)) for name in _SITES[:-1]}
    options = {"neighbours": "zero-out", "colluders": 1} if masked else {}
    run = announced(_federated(budget, state, trust=trust, **options), others | {_SITES[-1]: table.true}, tap)
    require_guarantee(run.guarantee, budget)
    # A hub that adds noise rounds parts to a grid, and counts the rounding in the sensitivity.
    extra = 1 + ROUNDING_COST
    if run.parties.masked is not None:
        # Shares of noise are sized for the fewest honest sites, and here all sites are honest.
        extra = math.sqrt(len(_SITES) / run.parties.masked.lattice.honest)
    charges = run.parties.ledgers[_SITES[-1] if masked else "hub"].charges
    candidates = []
    for (question, released), charge in zip(run.rounds, charges, strict=True):
        part = partial(_counted, run.parties.study, question)
        rest = sum((part(rows) for rows in others.values()), np.zeros_like(released))
        without, including = table.sums(part)
        candidates.append(_candidates(released, (rest + without, rest + including), extra / charge.mu))
    return Trial(scores=np.array([evidence(candidates)]), present=present)


def _saved_model(budget: Budget, rng: Generator, state: int | None) -> Trial:
    """The mean and the whole spectrum of a model that was written to a file and read from it again.

    The sum is n times the mean, before the mean was shrunk. The Gram matrix follows from components and values. Both are known up
    to a few last digits, which the steps of a lattice restore.
    """
    dim, near = _DIM // 2, Neighbours.ZERO_OUT
    present = flip_coins(1, rng)
    people = _enough(dim, deviation=1.2 / mu_of(budget))
    table = _Tables.of(rng, people=people, dim=dim, present=present[0], around=0.25 / math.sqrt(dim), blank=True)
    pca = fitted(table.true, budget, state, center="private", mean_bound=1.0)
    of_mean, of_gram = pca.guarantee_.charges
    # Through a file, because that is what gets published.
    with TemporaryDirectory() as folder:
        pca.save(Path(folder) / "model.safetensors")
        model = Model.load(Path(folder) / "model.safetensors")
    mean, count = model.mean, len(table.true)
    # The released mean is shrunk towards zero by a public formula, which can be undone.
    total = count * unshrunk(mean, math.sqrt(dim) / (of_mean.mu * count))
    # As in the fit: rows are clipped around zero for the sum, and around the released mean for products.
    ball, around = Domain(dim=dim, radius=1.0), Domain(dim=dim, radius=1.0, center=mean)
    sums = table.sums(lambda rows: bounded_sum(DenseRows(rows), domain=ball, neighbours=near).value)
    grams = table.sums(lambda rows: bounded_gram(DenseRows(rows), domain=around, neighbours=near).value)
    return Trial(
        scores=np.array(
            [
                evidence(
                    [
                        _candidates(on_steps(total), sums, 1 / of_mean.mu),
                        _candidates(on_steps(gram_of(model.subspace)), grams, 1 / of_gram.mu),
                    ]
                )
            ]
        ),
        present=present,
    )


def _item_degrees(budget: Budget, rng: Generator, state: int | None) -> Trial:
    """How popular each item is, and all pairs of items. The canary is a user of half of the items, present or not."""
    near, domain = Neighbours.ADD_REMOVE, Histories(dim=_ITEMS)
    present = flip_coins(1, rng)
    # Users of one item each lift the spectrum above the noise; users of several do not.
    users = np.vstack([rng.random((200, _ITEMS)) < 0.3, np.repeat(np.eye(_ITEMS), 60, axis=0)]).astype(np.float64)
    user = (rng.permutation(_ITEMS) < _ITEMS // 2).astype(np.float64)
    table = _Tables(users, np.vstack([users, user]), bool(present[0]))
    recommender = PrivateRecommender(
        _ITEMS,
        epsilon=budget.epsilon,
        delta=budget.delta,
        method="covariance",
        item_degrees="private",
        neighbours="add-remove",
        on_noise="warn",
        random_state=state,
    ).fit(sp.csr_array(table.true))
    require_guarantee(recommender.guarantee_, budget)
    assert recommender.item_degrees_ is not None
    of_degrees, of_pairs = recommender.ledgers_["hub"].charges

    def summed(kind: Callable[..., Any]) -> tuple[Array, Array]:
        return table.sums(lambda rows: kind(SparseRows(sp.csr_array(rows)), domain=domain, neighbours=near).value)

    sums, grams = summed(bounded_sum), summed(bounded_gram)
    pairs = (recommender.components_.T * np.square(recommender.singular_values_)) @ recommender.components_
    candidates = [
        _candidates(recommender.item_degrees_, sums, 1 / of_degrees.mu),
        _candidates(on_steps(pairs), grams, 1 / of_pairs.mu),
    ]
    return Trial(scores=np.array([evidence(candidates)]), present=present)


# Which stretches of four blocks are released, and the deviation of their noise times mu: in a tree everybody is in three of them.
_STRETCHES: Final[dict[str, tuple[tuple[tuple[int, int], ...], float]]] = {
    "sync": (((0, 2), (2, 4)), 1.0),
    "block": (((0, 1), (1, 2), (2, 3), (3, 4)), 1.0),
    "continual": (((0, 1), (0, 2), (2, 3), (0, 4)), math.sqrt(3)),
}


def _stream(budget: Budget, rng: Generator, state: int | None, *, publish: str) -> Trial:
    """Every stretch of blocks that a stream releases, as views of its whole spectrum show it. The canary is in the first."""
    dim, present, (stretches, deviation) = _DIM // 2, flip_coins(1, rng), _STRETCHES[publish]
    # All noise together, because views are added up from several releases.
    people = _enough(dim, deviation=math.sqrt(len(stretches)) * deviation / mu_of(budget))
    table = _Tables.of(rng, people=people, dim=dim, present=present[0], blank=True)
    others = [_SPREAD * rng.standard_normal(table.true.shape) for _ in range(3)]
    pca = StreamingPCA(
        dim,
        epsilon=budget.epsilon,
        delta=budget.delta,
        row_bound=1.0,
        center=None,
        block_size=len(table.true),
        publish=publish,
        horizon=4 * len(table.true) if published_as(publish).needs_horizon else None,
        random_state=state,
    )
    views = {0: np.zeros((dim, dim))}
    for number, rows in enumerate([table.true, *others], start=1):
        pca.partial_fit(rows)
        if any(end == number for _, end in stretches):
            # Back on the lattice before views are subtracted, so that their differences are exact.
            views[number] = on_steps(gram_of(pca.sync().subspace_))
    require_guarantee(pca.guarantee_, budget)
    domain, candidates = Domain(dim=dim, radius=1.0), list[Candidates]()
    for first, end in stretches:

        def gram(rows: Array, first: int = first, end: int = end) -> Array:
            stretch = DenseRows(np.vstack([rows, *others][first:end]))
            return bounded_gram(stretch, domain=domain, neighbours=Neighbours.ZERO_OUT).value

        candidates.append(_candidates(views[end] - views[first], table.sums(gram), deviation / mu_of(budget)))
    return Trial(scores=np.array([evidence(candidates)]), present=present)


def _peers(budget: Budget, rng: Generator, state: int | None, *, noise: Literal["pairwise", "independent"]) -> Trial:
    """What each of three peers sends, before any of it is mixed; and with pair noise also their sum, where that noise cancels."""
    present, tap = flip_coins(1, rng), Tap()
    table = _Tables.of(rng, people=60, dim=_DIM, present=present[0], blank=True)
    others = {name: _SPREAD * rng.standard_normal((60, _DIM)) for name in _PEERS[:-1]}
    pca = WatchedGossip(
        _DIM,
        graph="complete",
        epsilon=budget.epsilon,
        delta=budget.delta,
        row_bound=1.0,
        center=None,
        neighbours="zero-out",
        method="covariance",
        consensus="chebyshev",
        noise=noise,
        random_state=state,
        faults=tap.faults(),
    )
    pca.fit(others | {_PEERS[-1]: table.true})
    require_guarantee(pca.guarantee_, budget)
    study = pca.gossip.studies[_PEERS[-1]]
    summed, question, _ = study.as_sum(study.ask(study.start()))
    # Step 0 has the parts as they leave a peer. Later steps have mixtures of them.
    sent = {
        message.sender: message.body.values
        for message in tap.messages
        if isinstance(message.body, PartialSum) and message.body.step == 0
    }
    parts = {name: unpack(values, (_DIM, _DIM), symmetric=True) for name, values in sent.items()}

    def part(rows: Array) -> Array:
        return summed.private(question, DenseRows(rows)).value

    # As charged, so that a wrong charge shows as a wrong guess rate.
    mu = pca.ledgers_[_PEERS[-1]].charges[0].mu
    own = _candidates(parts[_PEERS[-1]], table.sums(part), 1 / mu)
    if noise == "independent":
        return Trial(scores=np.array([evidence([own])]), present=present)
    rest, pairing = sum(part(rows) for rows in others.values()), pca.gossip.terms.among(()).pairing
    assert pairing is not None
    sums = table.sums(lambda rows: rest + part(rows))
    scale = math.sqrt(len(_PEERS)) * pairing.own(1.0, mu)
    total = _candidates(np.sum(list(parts.values()), axis=0), sums, scale)
    # The peer's own part has far more noise: only its low bits are used, and its likelihood adds nothing.
    return Trial(scores=np.array([evidence([own, total], weighed=[total])]), present=present)


def _federated(budget: Budget, state: int | None, **options: Any) -> FederatedPCA:
    """The covariance around zero of rows of norm at most one: one person moves each release by at most one."""
    common: dict[str, Any] = {"method": "covariance", "row_bound": 1.0, "center": None, "retries": 0, "random_state": state}
    return FederatedPCA(_DIM, epsilon=budget.epsilon, delta=budget.delta, **(common | options))


def _counted(task: Task[Any, Any, Any], question: Question, rows: Array) -> Array:
    """A site's answer as the hub counts it, without noise."""
    counted: Array = task.part(question, (exact(task, question, rows),))
    return counted


def _candidates(released: Array, values: tuple[Array, Array], scale: float) -> Candidates:
    """All matrices released here are symmetric, and nothing else has two dimensions."""
    without, including = values
    return Candidates.of(released, without, including, scale=scale, symmetric=released.ndim == 2)


# A score is a log likelihood ratio, or a certainty with its sign, so zero is the best threshold.
_case = partial(usual_case, quick=80, tests=("curve",), threshold=0.0)
_REAL: Final = "a row of real numbers, three times the bound, present or not (blank, where the number of people is public)"
_KNOWN: Final = "by an attacker who knows all other rows"
CASES: Final = (
    _case(
        "bits/site-part",
        "FederatedPCA(trust='site', method='covariance'), the last places of each site's matrix and count, seen by the hub, "
        f"{_KNOWN}",
        _REAL,
        site_parts,
        claim="FederatedPCA's guarantee",
    ),
    _case(
        "bits/hub-release",
        f"FederatedPCA(trust='hub', method='covariance'), the last places of what the hub releases, seen {_KNOWN}",
        _REAL,
        partial(_hub_release, trust="hub"),
        claim="FederatedPCA's guarantee",
    ),
    _case(
        "bits/masked-sum",
        f"FederatedPCA(trust='masked', method='covariance'), the last places of the unmasked sum, seen by the hub, {_KNOWN}",
        _REAL,
        partial(_hub_release, trust="masked"),
        claim="FederatedPCA's guarantee under masks",
    ),
    _case(
        "bits/saved-model",
        f"PrivatePCA(center='private'), the last places of mean and spectrum in a model's file, seen {_KNOWN}",
        _REAL,
        _saved_model,
        claim="PrivatePCA's guarantee",
    ),
    _case(
        "bits/item-degrees",
        "PrivateRecommender(item_degrees='private', method='covariance'), the last places of item degrees and pairs of items, "
        f"seen {_KNOWN}",
        "a user of half of the items, present or not",
        _item_degrees,
        claim="PrivateRecommender's guarantee",
    ),
    *(
        _case(
            f"bits/stream-{publish}",
            f"StreamingPCA(publish='{publish}'), the last places of each view of its spectrum, seen {_KNOWN}",
            _REAL,
            partial(_stream, publish=publish),
            claim="StreamingPCA's guarantee",
        )
        for publish in _PUBLISH
    ),
    *(
        _case(
            f"bits/peers-{noise}",
            f"GossipPCA(noise='{noise}', method='covariance'), the last places of all messages between peers, seen {_KNOWN}",
            _REAL,
            partial(_peers, noise=noise),
            claim="GossipPCA's guarantee",
        )
        for noise in _NOISES
    ),
)
