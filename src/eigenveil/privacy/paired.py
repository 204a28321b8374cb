"""Where noise is added between peers: noise that cancels in pairs hides what each peer sends, without a hub.

The sum is nearly as accurate as a trusted curator's. Peer i sends y_i = x_i + eta_i + sum_j s(i, j) D_ij, over its neighbours j
in the noise graph. Its own noise eta_i has deviation s_eta. The pair noise D_ij = D_ji has deviation s_D, and both ends draw it
from a shared key. The sign s(i, j) is +1 for the peer that comes first in the order of names and -1 for the other. Only own
noise is left in the sum over all peers. (Sabater, Bellet and Ramon 2022; Allouah et al. 2024.)

Colluders know all noise that they share. Let H be the noise graph of the honest peers. Their y have, in each coordinate, noise of
covariance Sigma = s_eta^2 I + s_D^2 L_H. One person at peer i, who moves x_i by at most Delta, is protected with
mu^2 = Delta^2 [Sigma^-1]_ii. The proofs are in docs/pairwise-noise.md, including the case where peers were told different
things. Two ends may draw the same D only for the same round, graph, colluders and `PairedSteps`, so each round takes new
sources, from a key that is bound to all four, and uses them once.

Value, own noise and pair noise are whole steps of one public lattice (`eigenveil.core.noise`). Each term is rounded by
itself and all are added as whole numbers. Pair noise therefore cancels to the last bit, and the possible outputs do not depend
on the rows. Rounded terms hide as much as the normals they come from: docs/pairwise-noise.md, "Whole numbers".
"""

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from eigenveil.core.ledger import Ledger
from eigenveil.core.mechanism import Bounded
from eigenveil.core.noise import CAPACITY, LARGEST_SCALE, REACH, ROOT_HALF, Noise, distance_in_steps, step_of, steps_of, values_of
from eigenveil.errors import ParameterError, require, require_param, verbatim
from eigenveil.linalg import Array
from eigenveil.linalg.blas import blas_threads
from eigenveil.linalg.graphs import Graph
from eigenveil.privacy.released import pack, packed_noise

__all__ = ["PairedPart", "PairedSteps", "Pairing"]

# Pair noise is made so large that mu^2 is within this factor of its limit.
_CLOSE = 1.001
_SMALLEST_RATIO = 16.0
# Up to this many operations, every set of colluders is enumerated: a second or two.
_ENUMERATED = 1e9
# Numbers that are worked on at a time.
_CHUNK = 1 << 19
# Covers the rounding of a few sums, quotients and roots.
_ROUNDING = 1 + 1e-12
_UNIT = 2.0**-52
# Own noise has at least this many steps in every entry for each unit of sqrt(2 degree): the t of the proof.
_SMOOTH = 4.0
# Own noise is rounded up to this many binary digits, so that two machines agree even if their roots differ in the last digit.
_AGREED = 14
# Sums of whole numbers stay below this, half of what an int64 holds.
_ROOM = 2.0**62


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """How much own noise and pair noise peers need, against any `colluders` of them.

    The noise graph of the peers in the sum is `graph`, and `ratio` is s_D / s_eta. An upper bound on [(I + ratio^2 L_H)^-1]_ii,
    over all sets of that many colluders and all other peers i, is `gain`. If `exact`, it is the largest such number, up to
    rounding. Ratio and gain are computed by `Pairing.within`; fewer colluders learn no more.

    >>> pairing = Pairing.within(Graph.named("ring", "abcdefgh"), colluders=1)
    >>> pairing.ratio, pairing.exact, round(pairing.excess, 3)
    (128.0, True, 1.069)
    >>> round(pairing.own(1.0, mu=0.5), 3), round(pairing.between(1.0, mu=0.5), 1)
    (0.756, 96.8)
    """

    graph: Graph
    colluders: int
    ratio: float
    gain: float
    exact: bool

    def __post_init__(self) -> None:
        _require_honest(self.graph, self.colluders)
        # The proof that rounded pair noise hides as much as normals needs at least this ratio.
        require(
            _SMALLEST_RATIO <= self.ratio < math.inf, f"ratio must be finite and at least {_SMALLEST_RATIO:g}, got {self.ratio}"
        )
        min_gain = 1 / (len(self.graph.names) - self.colluders)
        require(
            min_gain <= self.gain <= 1, f"gain must lie between {min_gain}, one over the honest peers, and 1, got {self.gain}"
        )

    @classmethod
    def within(cls, graph: Graph, *, colluders: int) -> "Pairing":
        """The noise for this noise graph, which must stay connected without any `colluders` peers.

        `ratio` is the smallest power of two, from 16, for which `gain` is within 0.1% of its limit 1 / (m - colluders).

        >>> Pairing.within(Graph.named("star", "abcd"), colluders=1)
        Traceback (most recent call last):
        ...
        eigenveil.errors.ParameterError: the noise graph must stay connected without any 1 of its peers: removing a leaves the \
others in 3 separate groups, one of them d. Use a denser noise_graph, where every peer has at least 2 neighbours, or fewer \
colluders. noise='independent' needs no such graph
        """
        _require_honest(graph, colluders)
        _require_connected(graph, colluders)
        # Many small matrices: BLAS threads would only wait for each other.
        with blas_threads(1):
            honest = len(graph.names) - colluders
            limit, ratio, connectivity = _CLOSE / honest, _SMALLEST_RATIO, _connectivity(graph, colluders)
            # The second bound falls with the square of the ratio, so this ends on every connected graph.
            while (gain := _bound(honest, connectivity, ratio)) > limit:
                ratio *= 2
            # All eigenvalues but the first are equal in a complete graph, so the bound is reached.
            exact, trial = _complete(graph), _SMALLEST_RATIO
            is_enumerable = math.comb(len(graph.names), colluders) * honest**3 <= _ENUMERATED
            while not exact and is_enumerable and trial <= ratio:
                exact_gain = _largest(graph, colluders, trial, limit)
                if exact_gain <= limit:
                    ratio, gain, exact = trial, exact_gain, True
                trial *= 2
            return cls(graph=graph, colluders=colluders, ratio=ratio, gain=gain, exact=exact)

    def own(self, sensitivity: float, mu: float) -> float:
        """s_eta: the deviation of each peer's own noise, for a release of this sensitivity at this mu."""
        require(0 < sensitivity < math.inf, f"sensitivity must be positive and finite, got {sensitivity}")
        require(0 < mu < math.inf, f"mu must be positive and finite, got {mu}")
        return sensitivity * math.sqrt(self.gain) / mu

    def between(self, sensitivity: float, mu: float) -> float:
        """s_D: the deviation of the noise that two neighbours share."""
        return self.ratio * self.own(sensitivity, mu)

    def in_steps(self, sensitivity: float, mu: float, shape: tuple[int, ...], *, symmetric: bool) -> "PairedSteps":
        """The noise of one release of an array of this shape, on its lattice; a `ValueError` where it cannot be drawn exactly.

        The lattice is as in `step_of` for noise of this size, so own noise is two thousand steps or more. That is far above
        the 4 sqrt(2 degree) in every entry that the proof for rounded terms needs. Rounding to steps adds at most
        `ROUNDING_COST` to the noise, and rounding its deviation at most 2^-13.

        >>> pairing = Pairing.within(Graph.named("complete", "abc"), colluders=1)
        >>> noise = pairing.in_steps(1.0, 0.5, (2,), symmetric=False)
        >>> noise.step == 2.0**-14, 1 < noise.own * noise.step / pairing.own(1.0, 0.5) < 1.0004
        (True, True)
        """
        size = math.prod(shape)
        step = step_of(sensitivity, size, multiplier=self.own(1.0, mu))
        own = _rounded_up(self.own(distance_in_steps(sensitivity, size, step), mu))
        degree = max(self.graph.degree(name) for name in self.graph.names)
        require_param(
            own >= _SMOOTH * math.sqrt(2 * degree) / (ROOT_HALF if symmetric else 1.0),
            f"pair noise cannot be drawn exactly where a peer has {degree} neighbours. Use a {{noise_graph}} with fewer",
        )
        between = self.ratio * own
        require_param(
            max(own, between) <= LARGEST_SCALE and CAPACITY + REACH * (own + degree * between) < _ROOM,
            f"pair noise is too large to be drawn exactly: a deviation of {between:.2g} steps, added {degree} times, for "
            f"{size} numbers at mu {mu:.2g}. Use a larger {{epsilon}}, a denser {{noise_graph}} or {{noise=independent}}",
        )
        return PairedSteps(shape=shape, symmetric=symmetric, step=step, own=own, between=between)

    @property
    def excess(self) -> float:
        """The noise of the sum relative to a curator's at the same mu: sqrt(m gain), close to sqrt(m / (m - colluders))."""
        return math.sqrt(len(self.graph.names) * self.gain)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PairedSteps:
    """Noise of one release: the deviations of `own` noise and of pair noise, `between`, in whole steps of `step`.

    Two ends that disagree about any of this must draw independent noise, so `words` goes into their key. Entries off the diagonal
    of a symmetric array have both deviations over sqrt(2): see `packed_noise`.
    """

    shape: tuple[int, ...]
    symmetric: bool
    step: float
    own: float
    between: float

    @property
    def words(self) -> str:
        """All fields as text, to the last bit."""
        numbers = " ".join(number.hex() for number in (self.step, self.own, self.between))
        return f"{self.shape} {'symmetric ' if self.symmetric else ''}{numbers}"

    def draw_own(self, noise: Noise) -> NDArray[np.int64]:
        """Own noise for the packed array."""
        return packed_noise(noise, self.own, self.shape, symmetric=self.symmetric)

    def draw_between(self, noise: Noise) -> NDArray[np.int64]:
        """Pair noise for the packed array: both ends, with equal sources, draw the same whole numbers."""
        return packed_noise(noise, self.between, self.shape, symmetric=self.symmetric)


@final
@dataclass(slots=True, eq=False, kw_only=True)
class PairedPart:
    """A peer's part of a sum, with its own noise and its pair noise. Changes in place: it spends and draws.

    `multiplier` is 1 / mu of the whole budget: a share of one spends all of it.

    >>> pairing = Pairing.within(Graph.named("complete", "abc"), colluders=1)
    >>> part = PairedPart(
    ...     pairing=pairing, name="a", ledger=Ledger(epsilon=1.0, delta=1e-6), noise=Noise.seeded(1), multiplier=5.0
    ... )
    >>> sent = part.of(
    ...     Bounded(np.zeros(2), 1.0), label="sum", share=1.0, pairs={"b": Noise.seeded(2), "c": Noise.seeded(3)}
    ... )
    >>> sent.shape, part.ledger.spent_mu
    ((2,), 0.2)
    """

    pairing: Pairing
    name: str
    ledger: Ledger
    noise: Noise
    multiplier: float

    def __post_init__(self) -> None:
        # Only to refuse a name that is not in the graph.
        self.pairing.graph.neighbours(self.name)
        require(0 < self.multiplier < math.inf, f"multiplier must be positive and finite, got {self.multiplier}")

    def of(self, private: Bounded, *, label: str, share: float, pairs: Mapping[str, Noise]) -> Array:
        """The packed value, (size,), plus own noise plus signed pair noise, for a `share` in (0, 1] of mu^2.

        `pairs` has a new source for each neighbour in the noise graph, for this release only. The neighbour draws from an equal
        source. The order matters: checks of public numbers, then the charge, then the value and the noise. A value that is too
        large or not finite is clipped, as in `Gaussian`: an error would reveal it.
        """
        mu, noise = self._mu(share), self.in_steps(private, label=label, share=share)
        self._require_sources(pairs)
        self.ledger.spend(mu, label=label)
        total = steps_of(pack(private.value, symmetric=private.symmetric), noise.step)
        # All terms are whole numbers and stay below 2^62, which `in_steps` has checked, so nothing is rounded.
        total += noise.draw_own(self.noise)
        first = True
        for name in self.pairing.graph.names:
            if name == self.name:
                first = False
            elif name in pairs:
                # The first of the two in the order of names adds, the other subtracts. A neighbour seen before us is the first.
                if first:
                    total -= noise.draw_between(pairs[name])
                else:
                    total += noise.draw_between(pairs[name])
        return values_of(total, noise.step)

    def in_steps(self, private: Bounded, *, label: str, share: float) -> PairedSteps:
        """The noise that `of` adds to this value: it follows from public numbers only."""
        sensitivity, shape = private.sensitivity, np.shape(private.value)
        require(
            0 < sensitivity < math.inf, f"{label!r} has sensitivity {sensitivity}; noise needs a positive, finite sensitivity"
        )
        return self.pairing.in_steps(sensitivity, self._mu(share), shape, symmetric=private.symmetric)

    def _mu(self, share: float) -> float:
        require(0 < share <= 1, f"share must lie in (0, 1], got {share}")
        return math.sqrt(share) / self.multiplier

    def _require_sources(self, pairs: Mapping[str, Noise]) -> None:
        near = self.pairing.graph.neighbours(self.name)
        missing, more = sorted(set(near) - set(pairs)), sorted(set(pairs) - set(near))
        require(not missing, f"pairs must have noise for each neighbour of {self.name!r}; it lacks {missing}")
        require(not more, f"pairs must have noise for neighbours of {self.name!r} only; it also has {more}")
        # One source for two neighbours would make their noises depend on each other.
        sources = {id(source) for source in (*pairs.values(), self.noise)}
        require(len(sources) == len(near) + 1, "pairs must have a separate source for each neighbour; two are the same")


def _rounded_up(scale: float) -> float:
    """The next number of `_AGREED` binary digits: at most 2^-13 more."""
    digits, exponent = math.frexp(scale)
    return math.ldexp(math.ceil(math.ldexp(digits, _AGREED)), exponent - _AGREED)


def _require_honest(graph: Graph, colluders: int) -> None:
    m = len(graph.names)
    require_param(colluders >= 1, f"{{colluders}} must be at least 1, since every peer knows its own noise, got {colluders}")
    require_param(
        m >= colluders + 2,
        f"{m} peers are too few against {colluders} colluder{'s' * (colluders != 1)}: at least two honest peers must hide each "
        "other. {noise=independent} needs no other peer",
    )


def _require_connected(graph: Graph, colluders: int) -> None:
    cut = graph.cut(colluders)
    if cut is None:
        return
    groups = graph.without(cut).components()
    smallest = groups[-1]
    shown = ", ".join(smallest[:5]) + (f" and {len(smallest) - 5} more" if len(smallest) > 5 else "")
    leaves = f"removing {', '.join(cut)} leaves the others" if cut else "it is"
    raise ParameterError(
        f"the noise graph must stay connected without any {colluders} of its peers: {verbatim(leaves)} in {len(groups)} separate "
        f"groups, one of them {verbatim(shown)}. Use a denser {{noise_graph}}, where every peer has at least {colluders + 1} "
        "neighbours, or fewer {colluders}. {noise=independent} needs no such graph"
    )


def _complete(graph: Graph) -> bool:
    return len(graph.edges) == math.comb(len(graph.names), 2)


def _bound(honest: int, connectivity: float, ratio: float) -> float:
    """An upper bound on every [(I + r^2 L_H)^-1]_ii, for r = `ratio`, h = `honest` peers and l_2(L_H) >= `connectivity`.

    L_H has eigenvalues 0 = l_1 < l_2 <= .. with unit vectors u_k, of which u_1 is constant, so the entry is 1/h + sum over
    k > 1 of u_k(i)^2 / (1 + r^2 l_k). With l <= l_2 that is at most 1/h + (1 - 1/h) / (1 + r^2 l).

    Whatever l is, the sum is also at most [L_H^+]_ii / r^2, with [L_H^+]_ii <= (h-1)(2h-1) / (6h), as at the end of a path.
    Proof. [L^+]_ii is the largest x_i^2 / x^T L x over x of sum zero. Take a spanning tree of H with root i, and let n_e be the
    number of vertices beyond its edge e. Then h x_i = sum_j (x_i - x_j) = sum_e n_e (difference along e), which is at most
    sqrt(sum_e n_e^2 x^T L x). Order the edges by decreasing n_e, nearer ones first among equals. Neither i nor the far ends of
    earlier edges are beyond the t-th edge, so n_e <= h - t. The sum of squares is at most 1 + 4 + .. + (h-1)^2.
    """
    square = ratio * ratio
    by_value = (1 - 1 / honest) / (1 + square * max(connectivity, 0.0))
    by_tree = (honest - 1) * (2 * honest - 1) / (6 * honest * square)
    return (1 / honest + min(by_value, by_tree)) * _ROUNDING


def _connectivity(graph: Graph, colluders: int) -> float:
    """A lower bound on l_2(L_H) for any set of `colluders`: l_2(G) - colluders (Fiedler 1973), or h for complete graphs.

    Proof. Extend x on H, of sum zero, by zeros. Then l_2(G) |x|^2 <= x^T L_G x = x^T L_H x + sum_i x_i^2 (number of colluders
    adjacent to i). Rounding moves computed eigenvalues by at most a small multiple of m u |L|, and |L| <= m.
    """
    m = len(graph.names)
    if _complete(graph):
        return float(m - colluders)
    return float(np.linalg.eigvalsh(graph.laplacian())[1]) - colluders - 16 * m * m * _UNIT


def _largest(graph: Graph, colluders: int, ratio: float, limit: float) -> float:
    """The largest [(I + r^2 L_H)^-1]_ii over all sets of colluders and all other peers i; or one above `limit`, if there is one.

    Computed from N = I + r^2 (L_H + J), J all ones. N^-1 differs from the inverse in question only in the constant direction,
    where it has 1 / (1 + r^2 h) in place of 1. Its smallest eigenvalue is 1 + r^2 l_2 and not 1, which saves digits.

    With X the computed inverse and E = N X - I, N^-1 = X (I + E)^-1, so no entry of X is off by more than
    |X| |E| / (1 - |E|) in Frobenius norms. E itself is rounded by at most h u |N| |X|.
    """
    h = len(graph.names) - colluders
    square = ratio * ratio
    constant = (1 - 1 / (1 + square * h)) / h
    largest = 0.0
    for laplacians in _left(graph, colluders):
        matrices = np.eye(h) + square * (laplacians + 1)
        inverses = np.linalg.inv(matrices)
        sizes = np.linalg.norm(inverses, axis=(1, 2))
        errors = np.linalg.norm(matrices @ inverses - np.eye(h), axis=(1, 2))
        errors += 2 * h * _UNIT * np.linalg.norm(matrices, axis=(1, 2)) * sizes
        if errors.max() >= 0.5:
            # Too inaccurate to prove anything: the caller falls back on the proved bound.
            return math.inf
        entries = np.diagonal(inverses, axis1=1, axis2=2).max(axis=1) + sizes * errors / (1 - errors)
        largest = max(largest, (constant + float(entries.max())) * _ROUNDING)
        if largest > limit:
            break
    return largest


def _left(graph: Graph, colluders: int) -> Iterator[Array]:
    """The Laplacians, (sets, h, h), of the honest peers for each set of colluders, a batch of sets at a time."""
    adjacency = graph.adjacency()
    m = len(adjacency)
    h = m - colluders
    sets = itertools.combinations(range(m), h)
    while batch := list(itertools.islice(sets, max(1, _CHUNK // h**2))):
        chosen = np.array(batch)
        laplacians = -adjacency[chosen[:, :, None], chosen[:, None, :]]
        laplacians[:, np.arange(h), np.arange(h)] = -laplacians.sum(axis=2)
        yield laplacians
