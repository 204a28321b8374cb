"""Cases of peers without a hub: `GossipPCA`, with a guarantee against anyone who sees all messages and colludes with peers.

In each round a peer publishes a sum over its rows, under noise of a known size, and the rounds before determine what it is a sum
of, so the adversary repeats the fit from the messages, and computes what each canary would have moved in each round.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, final

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from eigenveil.audit.case import Case, Claim, Trial, mu_of, usual_case
from eigenveil.audit.cases.seen import Look, Tap, evened, flip_coins, gram_of, lifted, require_guarantee, scored
from eigenveil.core.accounting import Budget
from eigenveil.core.mechanism import Exact
from eigenveil.core.noise import distance_in_steps, step_of, values_of
from eigenveil.data.rows import DenseRows
from eigenveil.errors import require
from eigenveil.estimators import GossipPCA
from eigenveil.estimators.gossip.parties import GossipSimulation
from eigenveil.estimators.terms import Watch
from eigenveil.linalg import Array
from eigenveil.methods import METHODS
from eigenveil.methods.segments import Segments
from eigenveil.privacy.paired import PairedSteps
from eigenveil.privacy.released import pack, unpack
from eigenveil.protocols.gossip.terms import Among
from eigenveil.protocols.messages import PartialSum
from eigenveil.tasks.base import Question, SumTask

__all__ = ["CASES", "NAMES", "Canary", "WatchedGossip", "along", "few_rows", "seen", "tables_of", "watched"]

_ADDED: Final = Exact(because="noise was added before the sum was")


@final
@dataclass(frozen=True, slots=True, eq=False)
class Canary:
    """A person with this `row`, (d,), at `peer`. When absent, no row takes the place, or a person whose row is `instead`."""

    peer: str
    row: Array
    instead: Array | None = None


@final
class WatchedGossip(GossipPCA):
    """`GossipPCA` that keeps the peers of the last fit as `gossip`, and differs in nothing else. Changes in place.

    Specimens change the peers `before` they begin.
    """

    before: Callable[[GossipSimulation], None] | None = None

    def prepare(self, peers: Any, *, watch: Watch | None = None) -> GossipSimulation:
        """The peers of a fit, kept."""
        self.gossip = super().prepare(peers, watch=watch)
        if self.before is not None:
            self.before(self.gossip)
        return self.gossip


def tables_of(base: Mapping[str, Array], canaries: Sequence[Canary], present: NDArray[np.bool_]) -> dict[str, Array]:
    """Each peer's table: its `base`, (n, d), and below it the canaries that are present, in their order.

    >>> tables_of({"a": np.zeros((1, 2))}, [Canary("a", np.ones(2))], np.array([True]))["a"].tolist()
    [[0.0, 0.0], [1.0, 1.0]]
    """
    tables = dict(base)
    for canary, is_present in zip(canaries, present, strict=True):
        row = canary.row if is_present else canary.instead
        if row is not None:
            tables[canary.peer] = np.vstack([tables[canary.peer], row])
    return tables


def seen(
    gossip: GossipSimulation, tap: Tap, base: Mapping[str, Array], canaries: Sequence[Canary], *, colluder: str | None = None
) -> list[Look]:
    """What all messages of a fit on `tables_of(...)` show to an adversary who knows all but the tosses, round by round.

    With a `colluder`, all noise that it shares with others is known too. The noise of the others is correlated, so what they sent
    is transformed to independent noise: each look has noise of one size on all of its numbers.

    A hidden start of "segments" is skipped: nobody else knows what it is a sum of, and it has 2% of the budget.
    """
    study = gossip.studies[gossip.parties.names[0]]
    # The tables with every canary absent, which have the people that take their places.
    nobody = np.zeros(len(canaries), dtype=bool)
    rows = {name: DenseRows(table) for name, table in tables_of(base, canaries, nobody).items()}
    states: dict[int, Any] = {0: study.start()}
    looks = []
    for index, (round_, passed) in enumerate(_rounds(tap).items()):
        among = gossip.terms.among(round_.gone)
        parts = _parts(among, passed)
        summed, question, _ = study.as_sum(study.ask(states[round_.number]))
        # A round that starts from scores that only their own peers have shows nothing.
        if not (isinstance(summed, Segments) and question.arrays[1].shape[1] == 0):
            looks.append(
                _RoundView(
                    gossip=gossip, among=among, round=round_, index=index, summed=summed, question=question, colluder=colluder
                ).look(parts, rows, canaries)
            )
        if set(parts) == set(among.graph.names):
            total = np.sum([parts[name] for name in among.graph.names], axis=0)
            whole = unpack(total, summed.shape(question), symmetric=summed.symmetric)
            before = study.with_contributors(states[round_.number], among.graph.names)
            states[round_.number + 1] = study.advance(before, whole, _ADDED)
    require(study.result(states[max(states)]) is not None, "the messages of the fit are not enough to repeat it")
    return looks


@final
@dataclass(frozen=True, slots=True)
class _SeenRound:
    """The round of this `number`, begun among the peers without `gone`, who began again at round `base`."""

    number: int
    base: int
    gone: frozenset[str]


def _rounds(tap: Tap) -> dict[_SeenRound, dict[tuple[str, int], Array]]:
    """The numbers sent in each round, by sender and step."""
    rounds: dict[_SeenRound, dict[tuple[str, int], Array]] = {}
    for message in tap.messages:
        body = message.body
        if isinstance(body, PartialSum):
            round_ = _SeenRound(body.round, body.base, frozenset(body.without))
            # The same numbers go to several neighbours, and count once.
            rounds.setdefault(round_, {}).setdefault((message.sender, body.step), body.values)
    return rounds


def _parts(among: Among, passed: Mapping[tuple[str, int], Array]) -> dict[str, Array]:
    """What each peer published, (n,), as far as it was sent. In a tree parts come added up, and subtraction separates them."""
    names, tree = among.graph.names, among.mixing.tree
    if among.mixing.consensus != "tree":
        # Before the first step of mixing, peers send their parts as they are.
        return {name: passed[name, 0] for name in names if (name, 0) in passed}
    assert tree is not None
    # The root sends no part up; its total, sent down in step 1, is the sum of all.
    up = {name: passed[name, 0] for name in names if name != tree.root} | {tree.root: passed[tree.root, 1]}
    return {name: up[name] - np.sum([up[below] for below in tree.below[name]], axis=0) for name in names}


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _RoundView:
    """One round of a fit, with the `index`th charge: which peers took part, what it asked, and who colludes."""

    gossip: GossipSimulation
    among: Among
    round: _SeenRound
    index: int
    summed: SumTask[Any, Any]
    question: Question
    colluder: str | None

    def look(self, parts: Mapping[str, Array], rows: Mapping[str, DenseRows], canaries: Sequence[Canary]) -> Look:
        """What the honest peers sent, h rows of n numbers, whitened: noise of covariance own^2 S, times the inverse root of S."""
        honest = tuple(name for name in parts if name != self.colluder)
        mus = {self.gossip.ledgers[name].charges[self.index].mu for name in honest}
        require(len(mus) == 1, "peers were charged differently for one round")
        mu = mus.pop()
        left = np.array([self._even(parts[name] - self._known(name, mu)) for name in honest])
        base = np.array([self._part(rows[name]) for name in honest])
        own, covariance = self._noise(honest, mu)
        # After this the numbers have independent noise of one size, which is what `scored` assumes.
        white = np.linalg.inv(np.linalg.cholesky(covariance))
        shifts = []
        for canary in canaries:
            # How far it moves the part of its peer, (n,).
            moved = self._part(DenseRows(canary.row[None]))
            if canary.instead is not None:
                moved = moved - self._part(DenseRows(canary.instead[None]))
            shifts.append(np.outer(white[:, honest.index(canary.peer)], moved))
        return Look(released=white @ left, base=white @ base, shifts=np.array(shifts), scale=own, charged=mu)

    def _part(self, rows: DenseRows) -> Array:
        """What these rows add to a part, (n,), before noise, in the units of `_even`."""
        private = self.summed.private(self.question, rows)
        return self._even(pack(private.value, symmetric=private.symmetric))

    def _even(self, packed: Array) -> Array:
        """A packed array scaled to the same noise on all entries: a symmetric one has less off the diagonal."""
        return evened(packed, self.summed.shape(self.question)) if self.summed.symmetric else packed

    def _known(self, name: str, mu: float) -> Array | float:
        """The noise that this peer shares with the colluder, (n,), with its sign."""
        pairing, round_, colluder = self.among.pairing, self.round, self.colluder
        if pairing is None or colluder is None or colluder not in pairing.graph.names:
            return 0.0
        if name not in pairing.graph.neighbours(colluder):
            return 0.0
        # The colluder uses its own keys.
        keys = self.gossip.peers[colluder]._outgoing.keys
        assert keys is not None
        label, steps = self.summed.label(self.question), self._steps(mu)
        shared = keys.stream(name, gone=round_.gone, base=round_.base, round_=round_.number, label=label, steps=steps)
        order = pairing.graph.names
        sign = 1.0 if order.index(name) < order.index(colluder) else -1.0
        return sign * values_of(steps.draw_between(shared), steps.step)

    def _noise(self, honest: tuple[str, ...], mu: float) -> tuple[float, Array]:
        """The deviation of a peer's own noise, and the covariance, (h, h), of all honest noise in units of its square."""
        pairing = self.among.pairing
        if pairing is None:
            size = int(np.prod(self.summed.shape(self.question)))
            step = step_of(self._sensitivity, size, multiplier=1 / mu)
            return distance_in_steps(self._sensitivity, size, step) * step / mu, np.eye(len(honest))
        graph = pairing.graph.without(name for name in pairing.graph.names if name == self.colluder)
        # K of docs/pairwise-noise.md, over the peers whose pair noise the adversary does not know.
        covariance = np.eye(len(graph.names)) + pairing.ratio**2 * graph.laplacian()
        # Noise shared with a peer whose part was never sent hides as well.
        places = [graph.names.index(name) for name in honest]
        steps = self._steps(mu)
        return steps.own * steps.step, covariance[np.ix_(places, places)]

    def _steps(self, mu: float) -> PairedSteps:
        """The scale of the noise of this round, in whole steps. Public."""
        assert self.among.pairing is not None
        shape, symmetric = self.summed.shape(self.question), self.summed.symmetric
        return self.among.pairing.in_steps(self._sensitivity, mu, shape, symmetric=symmetric)

    @property
    def _sensitivity(self) -> float:
        return self.summed.sensitivity(self.question)


NAMES: Final = ("peer 0", "peer 1", "peer 2", "peer 3")
_COLLUDER: Final = NAMES[0]
_LAST: Final = NAMES[-1]
_THREE: Final = NAMES[:3]
_DIM: Final = 6
# Peers 1 and 3 share noise with two others only, and when peer 0 colludes, with one.
_NOISE_GRAPH: Final = ((0, 1), (1, 2), (2, 3), (3, 0), (0, 2))
_FEWEST: Final = NAMES[1]
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
        rank, epsilon=budget.epsilon, delta=budget.delta, random_state=state, faults=tap.faults(dies=dies), **(common | options)
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
    present = flip_coins(len(canaries), rng)
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
    present = flip_coins(_DIM, rng)
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
    """The messages of a fit, and then all scores for as much again. Both are about the same people."""
    base, canaries = few_rows(_THREE), along(_THREE[-1], instead=np.zeros(_DIM))
    present = flip_coins(_DIM, rng)
    tables = tables_of(base, canaries, present)
    pca, tap = _fitted(budget, state, tables, method="covariance", noise="independent", consensus="tree")
    looks = seen(pca.gossip, tap, base, canaries)
    published = pca.publish_scores(epsilon=budget.epsilon, delta=budget.delta)
    claim = _with_scores(budget)
    require(
        math.isclose(published.guarantee.epsilon or 0.0, claim.epsilon, rel_tol=1e-9),
        f"the scores guarantee {published.guarantee.epsilon}",
    )
    # Canaries are the last rows of their peer, each in its place whether present or blank.
    released = published.scores[_THREE[-1]][-_DIM:]
    shifts = np.zeros((_DIM, *released.shape))
    # A canary's scores are its row times the components, in its own row of the table.
    shifts[np.arange(_DIM), np.arange(_DIM)] = pca.components_.T
    charged = published.guarantee.charges[-1].mu
    looks.append(Look(released=released, base=np.zeros_like(released), shifts=shifts, scale=1 / charged, charged=charged))
    return scored(looks, present)


def _with_scores(budget: Budget) -> Claim:
    # The scores cost as much again as the fit, and squares of mu add up.
    return Claim.at_mu(math.sqrt(2) * mu_of(budget), budget.delta, "GossipPCA's guarantee after publish_scores")


_AXES: Final = "a row along each axis, every other one a thousand times the bound, present or"
_MESSAGES: Final = "all messages between peers"
_AND_KEYS: Final = f"{_MESSAGES}, seen by an adversary with all keys of one peer"


_case = partial(usual_case, claim="GossipPCA's guarantee")


def _watched(name: str, about: str, canary: str, *, quick: int = 60, **fit: Any) -> Case:
    """A case of all messages of a fit."""
    return _case(name, about, canary, partial(watched, **fit), quick=quick)


CASES: Final = (
    _watched(
        "peers/pairwise",
        f"GossipPCA(method='covariance', noise='pairwise'), {_AND_KEYS}",
        f"{_AXES} blank, at the peer that shares noise with the fewest others, one of which colludes",
        base=few_rows(),
        canaries=along(_FEWEST, instead=np.zeros(_DIM)),
        colluder=_COLLUDER,
        method="covariance",
        noise_graph=_NOISE_GRAPH,
        quick=160,
    ),
    _watched(
        "peers/listener",
        f"GossipPCA(method='covariance', noise='pairwise'), {_MESSAGES}, seen by an outsider without keys",
        f"{_AXES} blank",
        base=few_rows(_THREE),
        canaries=along(_THREE[1], instead=np.zeros(_DIM)),
        method="covariance",
        consensus="tree",
    ),
    _watched(
        "peers/default",
        f"GossipPCA with default settings (private mean, products with a block, trace), {_AND_KEYS}",
        f"{_AXES} not",
        base=few_rows(_THREE),
        canaries=along(_THREE[1], instead=None),
        colluder=_COLLUDER,
        center="private",
        neighbours="add-remove",
    ),
    *(
        _watched(
            f"peers/{leaf}-tree",
            f"GossipPCA(method='{leaf}', consensus='tree', rounds=2), {_AND_KEYS}",
            f"{_AXES} blank, at the last peer",
            base=few_rows(_THREE),
            canaries=along(_THREE[-1], instead=np.zeros(_DIM)),
            colluder=_COLLUDER,
            method=leaf.name,
            consensus="tree",
            rounds=2,
        )
        for leaf in METHODS.values()
        if "peers" in leaf.places and leaf.keeps_products
    ),
    _watched(
        "peers/independent",
        "GossipPCA(noise='independent', method='power', consensus='chebyshev', neighbours='replace-one', rounds=2), "
        f"{_MESSAGES}, seen by all other peers",
        "a row along each axis, or one along the next",
        base=few_rows(_THREE),
        canaries=[Canary(_THREE[-1], row, np.roll(row, 1)) for row in np.eye(_DIM)],
        noise="independent",
        method="power",
        consensus="chebyshev",
        neighbours="replace-one",
        rounds=2,
    ),
    _watched(
        "peers/replaced-mean",
        "GossipPCA(noise='independent', method='covariance', center='private', neighbours='replace-one'), "
        f"{_MESSAGES}, seen by all other peers",
        "a row along each axis a thousand times the bound, or its opposite, or one along the next",
        base=few_rows(_THREE),
        canaries=[
            Canary(_THREE[-1], row, -row if index % 2 == 0 else np.roll(row, 1))
            for index, row in enumerate(_HEAVY * np.eye(_DIM))
        ],
        noise="independent",
        method="covariance",
        center="private",
        consensus="tree",
        neighbours="replace-one",
        quick=40,
    ),
    _watched(
        "peers/segments",
        f"GossipPCA(1, method='segments', rounds=3), {_AND_KEYS}, except the start, which others do not know",
        "a row along the only direction, present or blank",
        base=dict.fromkeys(_THREE, lifted(2, length=1.0, people=_PEOPLE)[:_PEOPLE]),
        canaries=[Canary(_THREE[1], np.eye(2)[0], np.zeros(2))],
        colluder=_COLLUDER,
        rank=1,
        method="segments",
        consensus="tree",
        rounds=3,
        quick=80,
    ),
    _watched(
        "peers/restarted",
        "GossipPCA(method='covariance', restarts=1), where a peer fails and the round begins again: "
        f"{_AND_KEYS}, before and after",
        f"{_AXES} blank",
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
