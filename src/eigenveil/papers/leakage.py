"""How much a run of D-DP-PM as published would reveal of one row of *this* data: D-DP-PM Theorem 2, as a diagnostic only.

Everything that peers send in `PublishedSegments` is linear in normal numbers, so what one peer sees is Gaussian, and there is a
closed form for how well it tells two tables apart. It is the leakage of this table against one neighbour, not the worst case over
all tables. It is computed from private rows, so it is private itself and no guarantee. Theorem 2 reads as if it were one.

How (27)-(29) are read. The text wants to bound what one node learns about another. But y_i, as printed, is what agent i itself
*sends*, given what agent i itself drew. It contains what i received only through its own rows, and only the final mix of what
others sent. But i receives more. In consensus step s its neighbours k send it (W^s z)_k, at s = 0 their bare z_k. In step 8
everybody sends it their scores, so the view here is everything that i receives, given everything that it drew. The printed view
is `as_printed=True`. Both condition on the observer's randomness.

Misprints that matter. (16) drops the factor m of (11). In (20) the power of the last block is T. In (21) the noise p^(k) is in
z^(t) from t = k + 1 on, and the row for q^(T) is missing. (59) should read sum over k of sigma_p(k)^2 (alpha Xi)^(2(T-k)), with
sigma_q^2 (alpha Xi)^(2T). (33)-(34) should have S* = (beta+1) S' - beta S of Gil (2011), which must be positive definite. They
print the inverse of (beta+1) S^-1 - beta S'^-1, and wrong dimensions. Here all matrices come from running the algorithm on
the sources themselves, and (34) uses S*.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import final

import numpy as np

from eigenveil.errors import require
from eigenveil.linalg import Array

__all__ = ["InstanceLeakage", "ObservedLaw", "instance_leakage", "observed_law"]

# Roots of covariances are accurate to about 1e-15 of their size. Directions below the first number do not count, and a component
# outside a span below the second is rounding.
_NO_DIRECTION, _LEAN = 1e-12, 1e-11
# Combinations of messages below this fraction of the largest are rounding.
_SEEN = 1e-12
# A difference of means of this many deviations adds about its square to a divergence, which is negligible.
_UNMOVED = 1e-9
_GOLDEN = (math.sqrt(5) - 1) / 2


@final
@dataclass(frozen=True, slots=True, eq=False)
class ObservedLaw:
    """The Gaussian law of a view y, (k,), given what the observer drew, r: y ~ N(transfer r, root root^T). Private.

    r, (n_i (T + 1),), is q_i^(0) and then p_i^(1) to p_i^(T), each in units of its deviation, so standard normal. The
    view y has the z of the first round, of the second and so on, peer after peer, and then q^(T).
    """

    transfer: Array
    root: Array

    def __repr__(self) -> str:
        return f"ObservedLaw(numbers={len(self.root)}, private)"


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class InstanceLeakage:
    """How well a view tells two neighbouring tables apart. Not a guarantee; private, like the rows.

    Take coordinates in which the view has covariance I for the table and diag(`ratios`), (k,), for its neighbour. Their means
    differ by `shifts` g, (k, j). If the observer's numbers count as seen (`drawn`), g is standard normal. If they were given, g
    is all ones. If `infinite`, no epsilon covers it, and `why` says why.

    >>> leak = InstanceLeakage(ratios=np.ones(1), shifts=np.ones((1, 1)), drawn=False)
    >>> leak.divergence(1.0), round(leak.delta(4.0), 6)
    (1.0, 0.002187)
    >>> print(leak)
    an instance estimate for this data, itself private: not a guarantee, do not publish
    """

    ratios: Array
    shifts: Array
    drawn: bool
    infinite: bool = False
    why: str = ""
    dropped: int | None = None

    def divergence(self, beta: float) -> float:
        """D_(beta+1) of the view of the table from that of its neighbour, (34), for beta > 0; infinite where it does not exist.

        Let c = (beta+1) ratio - beta in each coordinate, which must be positive, and H = shifts^T diag(1/c) shifts. It is
        1/2 [(beta+1) 1^T H 1 - 1/beta sum (ln c - (beta+1) ln ratio)]. What the observer drew has the same law in both tables. If
        it counts as seen, -1/beta ln det(I - beta (beta+1) H) replaces the first term: the mean of exp(beta D) over it.
        """
        require(beta > 0, f"beta must be positive, got {beta}")
        if self.infinite:
            return math.inf
        excess = (beta + 1) * (self.ratios - 1)
        if not (1 + excess > 0).all():
            return math.inf
        # Ratios may be near one, where the logarithm of 1 + excess would lose their digits.
        spread = float((np.log1p(excess) - (beta + 1) * np.log(self.ratios)).sum()) / beta
        curved = self.shifts.T @ (self.shifts / (1 + excess)[:, None])
        if not self.drawn:
            return 0.5 * ((beta + 1) * float(curved.sum()) - spread)
        left = 1 - beta * (beta + 1) * np.linalg.eigvalsh(curved)
        if not (left > 0).all():
            return math.inf
        return 0.5 * (-float(np.log(left).sum()) / beta - spread)

    def delta(self, epsilon: float) -> float:
        """The minimum over beta of exp(-beta epsilon + beta D_(beta+1)), (30), at most one: how often the loss exceeds epsilon.

        beta D_(beta+1) is the logarithm of a mean of exponentials and so convex in beta. Golden-section search finds the minimum.
        """
        require(epsilon >= 0, f"epsilon must not be negative, got {epsilon}")
        if self.infinite:
            return 1.0

        def exponent(beta: float) -> float:
            return beta * (self.divergence(beta) - epsilon)

        low, high = 0.0, 1.0
        # The exponent is convex. Once doubling no longer lowers it, the minimum is below `high`.
        while exponent(high) < exponent(high / 2) and high < 1e12:
            high *= 2
        for _ in range(100):
            inner, outer = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
            # Where the divergence does not exist it is infinite. The comparison `<=` then moves the upper end inwards.
            low, high = (low, outer) if exponent(inner) <= exponent(outer) else (inner, high)
        return math.exp(min(0.0, exponent((low + high) / 2)))

    @property
    def words(self) -> str:
        """What this number is, and what it is not."""
        text = "an instance estimate for this data, itself private: not a guarantee, do not publish"
        if self.dropped is not None:
            text += f"; all but {self.dropped} directions of the view were dropped, as in D-DP-PM (43), so it can be far too low"
        return f"{text}; infinite: {self.why}" if self.infinite else text

    def __str__(self) -> str:
        return self.words

    def __repr__(self) -> str:
        # No numbers: all of them are private.
        return f"InstanceLeakage({self.words})"


def instance_leakage(
    peers: Sequence[Array],
    weights: Array,
    *,
    steps: int,
    alpha: float,
    sigma_q: float,
    sigma_p: Sequence[float],
    observer: int,
    replaced: tuple[int, int],
    by: Array | None,
    own: Array | None = None,
    as_printed: bool = False,
    dropping: int | None = None,
) -> InstanceLeakage:
    """How well one component of the published form tells `observer` whether row `replaced`, (peer, row), was replaced.

    The replacement is `by`, (d,), or zeros. The rows of the peers are `peers`, (n_i, d). The `weights`, (m, m), mix `steps` times
    per round, and T is the number of `sigma_p`. The observer's q^(0) and p^(1) to p^(T) are `own`, (T + 1, n_i), for the law (29)
    as printed. By default they count as seen with the rest, which averages over them. Memory is about n^2 (T + 1) numbers.

    Two Gaussians on different subspaces are told apart with certainty, and the result then says so. With `dropping` = r, only the
    r directions in which the view varies most are kept, (42)-(43), those of the table for both tables. This hides what is
    certain. It exists to reproduce the paper's figures.

    >>> peers, weights = [np.eye(2), np.array([[1.0, 0.0]])], np.full((2, 2), 0.5)
    >>> few = dict(steps=1, alpha=0.5, sigma_q=1.0, sigma_p=(0.5, 0.5), replaced=(1, 0), by=None)
    >>> instance_leakage(peers, weights, observer=0, **few).infinite
    True
    """
    require(
        as_printed or replaced[0] != observer,
        f"replaced must be a row of a peer other than the observer, {observer}, who knows its own rows",
    )
    neighbours = _replaced(peers, replaced, by)
    laws = [
        observed_law(
            rows, weights, steps=steps, alpha=alpha, sigma_q=sigma_q, sigma_p=sigma_p, observer=observer, as_printed=as_printed
        )
        for rows in (peers, neighbours)
    ]
    law, other = laws
    shifts = law.transfer - other.transfer
    if own is not None:
        deviations = np.array([sigma_q, *sigma_p])[:, None]
        require(own.shape == (len(deviations), len(peers[observer])), f"own must be (T + 1, n_i), got {own.shape}")
        # A deviation of zero draws zeros, whatever `own` says.
        units = np.divide(own, deviations, out=np.zeros(own.shape), where=deviations > 0)
        shifts = shifts @ units.reshape(-1, 1)
    if dropping is not None:
        require(1 <= dropping <= len(law.root), f"dropping must lie in 1..{len(law.root)}, got {dropping}")
        basis = np.linalg.svd(_square(law.root))[0][:, :dropping].T
        return _told_apart(basis @ law.root, basis @ other.root, basis @ shifts, drawn=own is None, dropped=dropping)
    return _told_apart(law.root, other.root, shifts, drawn=own is None, dropped=None)


def observed_law(
    peers: Sequence[Array],
    weights: Array,
    *,
    steps: int,
    alpha: float,
    sigma_q: float,
    sigma_p: Sequence[float],
    observer: int,
    as_printed: bool = False,
) -> ObservedLaw:
    """The law of what `observer` sees of one component, given what it drew, (29) for either reading.

    In round t, z_j = X_j^T q_j at each peer, and then q_j = alpha X_j m sum_k (W^c)_jk z_k + p_j. Of the z of a round the
    observer sees the combinations by the rows e_k^T W^s, s < c, of its neighbours k. Any basis of them shows the same, so we
    take one. At the end it sees the other peers' q^(T). As printed, it is the observer's own z_i of every round, and its own
    q_i^(T).

    >>> few = dict(steps=1, alpha=0.5, sigma_q=1.0, sigma_p=(0.1,))
    >>> law = observed_law([np.eye(2), np.eye(2)], np.full((2, 2), 0.5), observer=0, **few)
    >>> law.transfer.shape, law.root.shape
    ((4, 4), (4, 4))
    """
    _require_network(peers, weights, steps, observer)
    rounds, sizes = len(sigma_p), [len(rows) for rows in peers]
    count, dim, ends = sum(sizes), peers[0].shape[1], np.cumsum([0, *sizes])
    places = [slice(start, stop) for start, stop in pairwise(ends.tolist())]
    # The factor m is that of (11); (16) drops it.
    mixed = len(peers) * np.linalg.matrix_power(weights, steps)
    observed = np.eye(len(peers))[[observer]] if as_printed else _received(weights, steps, observer)
    # Everything is linear in the sources, which are all standard normal. Columns are q^(0), then p^(1) and so on.
    scores = np.zeros((count, count * (rounds + 1)))
    scores[:, :count] = sigma_q * np.eye(count)
    views = []
    for round_, sigma in enumerate(sigma_p, start=1):
        sums = np.stack([rows.T @ scores[span] for rows, span in zip(peers, places, strict=True)])
        views.append(np.tensordot(observed, sums, axes=1).reshape(-1, sums.shape[-1]))
        agreed = np.tensordot(mixed, sums, axes=1)
        scores = np.vstack([alpha * (rows @ part) for rows, part in zip(peers, agreed, strict=True)])
        # A view, so that p^(t) is added to the scores themselves.
        drawn = scores[:, round_ * count : (round_ + 1) * count]
        drawn[np.diag_indices(count)] += sigma
    mine = np.zeros(count, dtype=bool)
    mine[places[observer]] = True
    views.append(scores[mine if as_printed else ~mine])
    view, own = np.vstack(views), np.tile(mine, rounds + 1)
    assert len(view) == rounds * dim * len(observed) + len(views[-1])
    return ObservedLaw(view[:, own], view[:, ~own])


def _received(weights: Array, steps: int, observer: int) -> Array:
    """What the observer can compute of a round's z, as orthonormal combinations of peers, (k, m).

    It knows its own z. Subtracting it from a message changes nothing about what the message reveals, so it is left out.
    """
    neighbours = np.flatnonzero(weights[observer])
    rows, power = [], np.eye(len(weights))
    for _ in range(steps):
        rows.append(power[neighbours])
        power = power @ weights
    # With the row of zeros there is a largest singular value even if the observer receives nothing.
    messages = np.vstack([*rows, np.zeros((1, len(weights)))])
    messages[:, observer] = 0.0
    _, sizes, combinations = np.linalg.svd(messages, full_matrices=False)
    combined: Array = combinations[sizes > _SEEN * max(float(sizes[0]), 1e-300)]
    return combined


def _told_apart(root: Array, other: Array, shifts: Array, *, drawn: bool, dropped: int | None) -> InstanceLeakage:
    """The comparison of N(., one one^T) with N(., other other^T), whose means differ by `shifts`, all (k, .)."""

    def certain(why: str) -> InstanceLeakage:
        return InstanceLeakage(ratios=np.ones(0), shifts=np.zeros((0, 0)), drawn=drawn, infinite=True, why=why, dropped=dropped)

    # Units in which every number of the view has a size of about one, so that none is lost beside a larger one.
    sizes = np.sqrt(np.square(root).sum(axis=1) + np.square(other).sum(axis=1))
    units = np.where(sizes > 0, sizes, 1.0)[:, None]
    root, other, shifts = _square(root / units), _square(other / units), shifts / units
    basis, spread = _range(root)
    theirs, _ = _range(other)
    if basis.shape[1] != theirs.shape[1]:
        return certain("the view varies in more directions for one table than for the other")
    if _leans(other, basis) or _leans(root, theirs):
        return certain("the view varies in other directions for one table than for the other")
    if _leans(shifts, basis):
        return certain("the means differ in a direction in which the view does not vary")
    rotation, roots, _ = np.linalg.svd((basis.T @ other) / spread[:, None], full_matrices=False)
    moved = rotation.T @ ((basis.T @ shifts) / spread[:, None])
    if drawn and moved.size > 0:
        # One row changes few combinations of what the observer drew; only those are kept.
        left, norms, _ = np.linalg.svd(moved, full_matrices=False)
        moved = left[:, norms > _UNMOVED] * norms[norms > _UNMOVED]
    return InstanceLeakage(ratios=np.square(roots), shifts=moved, drawn=drawn, dropped=dropped)


def _square(root: Array) -> Array:
    """A root of the same covariance with no more columns than rows, (k, at most k): R^T of the transposed QR."""
    return np.asarray(np.linalg.qr(root.T, mode="r")).T if root.shape[1] > root.shape[0] else root


def _range(root: Array) -> tuple[Array, Array]:
    """An orthonormal basis, (k, r), of the directions of a root of a covariance, (k, n), and its size in each, (r,)."""
    vectors, sizes, _ = np.linalg.svd(root, full_matrices=False)
    mask = sizes > _NO_DIRECTION * max(float(sizes.max(initial=0.0)), 1e-300)
    return vectors[:, mask], sizes[mask]


def _leans(matrix: Array, basis: Array) -> bool:
    """Whether columns of `matrix`, (k, n), leave the span of `basis`, (k, r)."""
    if basis.shape[1] == len(basis):
        return False
    rest = matrix - basis @ (basis.T @ matrix)
    return float(np.abs(rest).max(initial=0.0)) > _LEAN * max(1.0, float(np.abs(matrix).max(initial=0.0)))


def _replaced(peers: Sequence[Array], replaced: tuple[int, int], by: Array | None) -> list[Array]:
    """The neighbouring table: one row replaced, by another or by zeros."""
    peer, row = replaced
    is_row = 0 <= peer < len(peers) and 0 <= row < len(peers[peer])
    require(is_row, f"replaced must name a peer and one of its rows, got {replaced}")
    tables = [np.array(rows, dtype=np.float64) for rows in peers]
    require(by is None or by.shape == tables[peer][row].shape, "by must be a row of as many columns as the peers have")
    tables[peer][row] = 0.0 if by is None else by
    return tables


def _require_network(peers: Sequence[Array], weights: Array, steps: int, observer: int) -> None:
    many = len(peers)
    require(many >= 2, f"peers must be at least 2, got {many}")
    shapes = {rows.shape[1] for rows in peers}
    require(len(shapes) == 1, f"peers must have the same columns, got {sorted(shapes)}")
    require(weights.shape == (many, many), f"weights must have shape ({many}, {many}), got {weights.shape}")
    sums = np.concatenate([weights.sum(axis=0), weights.sum(axis=1)])
    require(bool(np.allclose(sums, 1.0)), "weights must be doubly stochastic: every row and column must sum to one")
    require(steps >= 1, f"steps must be at least 1, got {steps}")
    require(0 <= observer < many, f"observer must lie in 0..{many - 1}, got {observer}")
