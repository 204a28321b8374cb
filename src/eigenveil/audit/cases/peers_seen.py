"""What an adversary who sees all messages between peers, and colludes with one of them, learns about a canary's presence.

In each round a peer publishes a sum over its rows, under noise of a known size, and the rounds before determine what it is a sum
of. So the adversary repeats the fit from the messages, and computes what each canary would have moved in each round.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from eigenveil.audit.cases.messages import Look, Tap, evened
from eigenveil.core.mechanism import Exact
from eigenveil.core.noise import distance_in_steps, step_of, values_of
from eigenveil.data.rows import DenseRows
from eigenveil.errors import require
from eigenveil.estimators import GossipPCA
from eigenveil.estimators.gossip.simulation import GossipSimulation
from eigenveil.estimators.rounds import Watch
from eigenveil.linalg import Array
from eigenveil.methods.segments import Segments
from eigenveil.privacy.integers.paired import PairedSteps
from eigenveil.privacy.packed import pack, unpack
from eigenveil.protocols.gossip.terms import Among
from eigenveil.protocols.messages import Pass
from eigenveil.tasks import Question, SumTask

__all__ = ["Canary", "WatchedGossip", "seen", "tables_of"]

_ADDED: Final = Exact(because="noise was added before the sum was")


@final
@dataclass(frozen=True, slots=True, eq=False)
class Canary:
    """A person with this `row`, (d,), at `peer`. When absent, nobody takes the place, or a person whose row is `instead`."""

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
    for canary, there in zip(canaries, present, strict=True):
        row = canary.row if there else canary.instead
        if row is not None:
            tables[canary.peer] = np.vstack([tables[canary.peer], row])
    return tables


def seen(
    gossip: GossipSimulation,
    tap: Tap,
    base: Mapping[str, Array],
    canaries: Sequence[Canary],
    *,
    colluder: str | None = None,
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
    for place, (round_, passed) in enumerate(_rounds(tap).items()):
        among = gossip.terms.among(round_.gone)
        parts = _parts(among, passed)
        summed, asked, _ = study.as_sum(study.ask(states[round_.number]))
        if not _hidden(summed, asked):
            looks.append(
                _RoundView(
                    gossip=gossip, among=among, round=round_, place=place, summed=summed, asked=asked, colluder=colluder
                ).look(parts, rows, canaries)
            )
        if set(parts) == set(among.graph.names):
            total = np.sum([parts[name] for name in among.graph.names], axis=0)
            whole = unpack(total, summed.shape(asked), symmetric=summed.symmetric)
            before = study.counted(states[round_.number], among.graph.names)
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
    found: dict[_SeenRound, dict[tuple[str, int], Array]] = {}
    for message in tap.messages:
        body = message.body
        if isinstance(body, Pass):
            round_ = _SeenRound(body.round, body.base, frozenset(body.without))
            # The same numbers go to several neighbours, and count once.
            found.setdefault(round_, {}).setdefault((message.sender, body.step), body.values)
    return found


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


def _hidden(summed: SumTask[Any, Any], asked: Question) -> bool:
    """Whether this round starts from scores that only their own peers know."""
    return isinstance(summed, Segments) and asked.arrays[1].shape[1] == 0


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _RoundView:
    """One round of a fit, with the `place`th charge: which peers took part, what it asked, and who colludes."""

    gossip: GossipSimulation
    among: Among
    round: _SeenRound
    place: int
    summed: SumTask[Any, Any]
    asked: Question
    colluder: str | None

    def look(self, parts: Mapping[str, Array], rows: Mapping[str, DenseRows], canaries: Sequence[Canary]) -> Look:
        """What the honest peers sent, h rows of n numbers, whitened: noise of covariance own^2 S, times the inverse root of S."""
        honest = tuple(name for name in parts if name != self.colluder)
        mu = self._charged(honest)
        left = np.array([self._even(parts[name] - self._known(name, mu)) for name in honest])
        base = np.array([self._part(rows[name]) for name in honest])
        own, covariance = self._noise(honest, mu)
        # After this the numbers have independent noise of one size, which is what `scored` assumes.
        white = np.linalg.inv(np.linalg.cholesky(covariance))
        shifts = np.array([np.outer(white[:, honest.index(one.peer)], self._moved(one)) for one in canaries])
        return Look(released=white @ left, base=white @ base, shifts=shifts, scale=own, charged=mu)

    def _part(self, rows: DenseRows) -> Array:
        """What these rows add to a part, (n,), before noise, in the units of `_even`."""
        private = self.summed.private(self.asked, rows)
        return self._even(pack(private.value, symmetric=private.symmetric))

    def _even(self, packed: Array) -> Array:
        """A packed array scaled to the same noise on all entries: a symmetric one has less off the diagonal."""
        return evened(packed, self.summed.shape(self.asked)) if self.summed.symmetric else packed

    def _moved(self, canary: Canary) -> Array:
        """How far the canary moves the part of its peer, (n,)."""
        by = self._part(DenseRows(canary.row[None]))
        return by if canary.instead is None else by - self._part(DenseRows(canary.instead[None]))

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
        label, steps = self.summed.label(self.asked), self._steps(mu)
        shared = keys.stream(name, gone=round_.gone, base=round_.base, round_=round_.number, label=label, steps=steps)
        order = pairing.graph.names
        sign = 1.0 if order.index(name) < order.index(colluder) else -1.0
        return sign * values_of(steps.draw_between(shared), steps.step)

    def _noise(self, honest: tuple[str, ...], mu: float) -> tuple[float, Array]:
        """The deviation of a peer's own noise, and the covariance, (h, h), of all honest noise in units of its square."""
        pairing = self.among.pairing
        if pairing is None:
            size = int(np.prod(self.summed.shape(self.asked)))
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
        shape, symmetric = self.summed.shape(self.asked), self.summed.symmetric
        return self.among.pairing.in_steps(self._sensitivity, mu, shape, symmetric=symmetric)

    @property
    def _sensitivity(self) -> float:
        return self.summed.sensitivity(self.asked)

    def _charged(self, honest: tuple[str, ...]) -> float:
        """The mu that each peer was charged for this round."""
        found = {self.gossip.ledgers[name].charges[self.place].mu for name in honest}
        require(len(found) == 1, "peers were charged differently for one round")
        return found.pop()
