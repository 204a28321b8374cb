"""Krylov: the same product per round as the power method, but the hub uses all of them.

The blocks that were multiplied span a Krylov space. The best directions in all of it (Ritz vectors) converge far sooner than
those of the last block, and without an error floor. Traffic and the sites' work are those of the power method. That is
`KrylovSum`, for exact fits.

Under noise, blocks orthogonal to the old ones would multiply mostly noise, so each block starts from the best directions so far.
All products together determine the Gram matrix better than the last one alone (docs/decisions/0009). That is `KeptProducts`.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Final, final

import numpy as np

from eigenveil.core.domain import Region
from eigenveil.core.unit import Neighbours
from eigenveil.errors import require
from eigenveil.linalg import Array, Subspace, complement, orthonormal, signed, sines, top_eigen
from eigenveil.linalg.blas import blas_threads
from eigenveil.linalg.subspace import TOLD_APART, tie_at
from eigenveil.methods.base import (
    WORKING,
    Components,
    MethodPlan,
    PlanRequest,
    ProductMethod,
    ProductTask,
    Scene,
    TaskContext,
    found_in,
    ritz,
)
from eigenveil.tasks.base import Question

__all__ = ["METHOD", "KeptProducts", "KeptState", "KrylovState", "KrylovSum", "ritz_of_all"]

# Both are relative to the largest Ritz value. Below the first, a direction of the residual is rounding noise. Below the second,
# so is the residual of the leading vectors, where values tie and there is no gap to compare it with.
_DROPPED, _ROUNDING = 1e-12, 1e-13
# Residuals this small that three rounds have not halved will not become smaller.
_FLOOR, _IN_VAIN = 1e-11, 3
# What rounding of a product hides, relative to the largest value; and a sine that is good enough.
_HIDDEN, _GOOD = 1e-15, 1e-6
# If the next block overlaps those before it by more than this, it is orthogonalised again.
_LEAN = 1e-14
# How much of the first block is mixed into a restart.
_FRESH = 0.01
_ORTHONORMAL = 1e-8


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class KrylovState:
    """The public state: G Q = Q H + R E^T for the blocks Q multiplied so far, where R is the part outside their span."""

    round: int
    span: Array  # Q, (d, m).
    small: Array  # H, (m, m).
    basis: Array  # The orthonormal basis of R, (d, p), to be multiplied next. It has no column if Q spans an invariant space.
    values: Array  # The Ritz values, (m,), largest first.
    residual: float  # The spectral norm of R on the leading Ritz vectors.
    space: Subspace | None  # Those vectors, in data scale.
    in_vain: int = 0  # Rounds in which the residual has not halved.


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class KrylovSum(ProductTask[KrylovState]):
    """Block Lanczos with full reorthogonalisation from the orthonormal `begin`, (d, w), for the `rank` <= w leading directions.

    Golub and Van Loan (2013), section 10.3.6. The start `begin` must be random, because a start inside an invariant space never
    leaves it. There are at most `rounds` products. There are fewer if the span is invariant or the residual is rounding. With a
    `tolerance`, the task also stops when residual over gap is no larger than that. By Davis and Kahan (1970) this ratio estimates
    the largest sine to the true space. Without `shares`, all rounds get the same part of the budget.

    >>> from eigenveil.core.domain import Domain
    >>> from eigenveil.core.mechanism import Exact
    >>> from eigenveil.protocols.party import run_pooled
    >>> from eigenveil.data.rows import DenseRows
    >>> begin = orthonormal(np.random.default_rng(0).standard_normal((6, 2)))
    >>> task = KrylovSum(
    ...     domain=Domain(dim=6, radius=np.inf), neighbours=Neighbours.ADD_REMOVE, begin=begin, rounds=6, rank=1
    ... )
    >>> run_pooled(task, DenseRows(np.diag([6.0, 5.0, 4.0, 3.0, 2.0, 1.0])), Exact(because="doctest")).values.round(
    ...     9
    ... ).tolist()
    [6.0]
    """

    domain: Region
    neighbours: Neighbours
    begin: Array
    rounds: int
    rank: int
    tolerance: float = 0.0
    shares: tuple[float, ...] = ()
    name = "krylov product"

    def __post_init__(self) -> None:
        require(self.rounds >= 1, f"rounds must be at least 1, got {self.rounds}")
        if not self.shares:
            object.__setattr__(self, "shares", (1.0 / self.rounds,) * self.rounds)
        self.require_terms()
        require(len(self.shares) == self.rounds, f"{self.rounds} rounds need as many shares, got {len(self.shares)}")
        # H = Q^T G Q and its Ritz values mean something only for an orthonormal Q.
        gap = float(np.abs(self.begin.T @ self.begin - np.eye(self.begin.shape[1])).max())
        require(gap < _ORTHONORMAL, f"begin must be orthonormal, but begin.T @ begin is {gap:.1e} off the identity")
        require(0 <= self.tolerance < 1, f"tolerance must lie in [0, 1), got {self.tolerance}")

    def start(self) -> KrylovState:
        return self._starting(self.begin)

    def require_question(self, question: Question) -> None:
        """A product with a basis no wider than the first: dependent directions are dropped."""
        self.require_product(question, min_width=1)

    def update(self, state: KrylovState, released: Array) -> KrylovState:
        """One block step: H grows by Q^T Y, the part of Y outside the span becomes the next block, Ritz vectors are updated."""
        span = np.hstack([state.span, state.basis])
        done = state.span.shape[1]
        inner = span.T @ released
        # Rounding leaves it unsymmetric, and `eigh` would read one triangle only.
        corner = (inner[done:] + inner[done:].T) / 2
        small = np.block([[state.small, inner[:done]], [inner[:done].T, corner]])
        # Small eigenproblems are solved on one thread: starting more costs more than it saves.
        with blas_threads(1):
            values, rotation = np.linalg.eigh(small)
        values, rotation = values[::-1], rotation[:, ::-1]
        # Against the whole span, and again in `_next_block`: a three-term recurrence or a single pass fails.
        rest: Array = span @ inner
        np.subtract(released, rest, out=rest)
        basis, link = _next_block(span, rest, floor=_DROPPED * float(np.abs(values).max()))
        # By G Q = Q H + R E^T, a Ritz vector leaves the span only through its part in the last block.
        leaving = link @ rotation[done:, : self.rank]
        residual = float(np.linalg.norm(leaving, 2)) if leaving.size else 0.0
        stuck = 2 * residual > state.residual and residual <= _FLOOR * float(values[0])
        return KrylovState(
            round=state.round + 1,
            span=span,
            small=small,
            basis=basis,
            values=values,
            residual=residual,
            # In data scale. Noise or rounding may have made a value negative, and then it is zero.
            space=Subspace(signed(span @ rotation[:, : self.rank]), np.sqrt(np.maximum(values[: self.rank], 0.0))),
            in_vain=state.in_vain + 1 if stuck else 0,
        )

    def result(self, state: KrylovState) -> Subspace | None:
        """The leading Ritz vectors, once all rounds are used or more of them would not help."""
        over = state.round == self.rounds or state.in_vain >= _IN_VAIN
        return state.space if over or self.converged(state) else None

    def estimate(self, state: KrylovState) -> Subspace | None:
        """The leading Ritz vectors so far."""
        return state.space

    def converged(self, state: KrylovState) -> bool:
        """Whether the answer is within the tolerance, or as good as rounding allows where values tie."""
        if state.space is None or state.basis.shape[1] == 0:
            return state.space is not None
        if (gap := self._gap(state)) is None:
            return state.residual <= _ROUNDING * float(state.values[0])
        return state.residual <= max(self.tolerance, TOLD_APART) * gap

    def _gap(self, state: KrylovState) -> float | None:
        """How far the value at the rank is above the next; None where there is no next one yet, or both tie."""
        if len(state.values) == self.rank or tie_at(state.values, rank=self.rank):
            return None
        return float(state.values[self.rank - 1] - state.values[self.rank])

    def has_converged(self, state: KrylovState) -> bool | None:
        """Whether it has converged, and rounding of the largest value does not hide the difference."""
        if not self.converged(state):
            return False
        gap = self._gap(state)
        return gap is None or _HIDDEN * float(state.values[0]) <= max(self.tolerance, _GOOD) * gap

    def tied(self, state: KrylovState) -> bool | None:
        """Whether eigenvalues tie at the rank, so that the answer, though found, is not unique.

        One case is rows with fewer than `rank` directions: all others tie at zero. A block wider than the rank sees every tie. A
        block of exactly that width can miss copies of the largest value. The exception is a first product that shows a single
        value: if a random block is invariant at once, all directions are alike.
        """
        if not self.converged(state) or self.rank == self.domain.dim:
            return False
        if len(state.values) == self.rank:
            return bool(state.basis.shape[1] == 0)
        return tie_at(state.values, rank=self.rank)

    def after_dropout(self, state: KrylovState) -> KrylovState:
        """A new start from the Ritz vectors, with rounds counted from zero: H contains products with rows that have left.

        A little of `begin` is mixed in, because the start might lie in a space that only the lost rows spanned.
        """
        if state.space is None:
            return state
        width = self.begin.shape[1]
        _, rotation = np.linalg.eigh(state.small)
        return self._starting(orthonormal(state.span @ rotation[:, ::-1][:, :width] + _FRESH * self.begin))

    def _starting(self, basis: Array) -> KrylovState:
        return KrylovState(
            round=0,
            span=np.empty((self.domain.dim, 0)),
            small=np.empty((0, 0)),
            basis=basis,
            values=np.empty(0),
            residual=np.inf,
            space=None,
        )


def _next_block(span: Array, rest: Array, *, floor: float) -> tuple[Array, Array]:
    """An orthonormal basis W, (d, p), of a residual `rest`, (d, q), outside `span`, (d, m), and W^T rest, (p, q).

    Directions of `rest` below `floor` are rounding noise and dropped. The others are normalised first and then orthogonalised
    against the span a second time. In the other order, rounding errors would be scaled up with small directions.
    """
    room = span.shape[0] - span.shape[1]
    if room == 0:
        return np.empty((span.shape[0], 0)), np.empty((0, rest.shape[1]))
    frame = orthonormal(rest)
    link: Array = frame.T @ rest
    rotation, sizes, across = np.linalg.svd(link)
    n_kept = min(room, int((sizes > floor).sum()))
    if n_kept < len(sizes):
        frame, link = frame @ rotation[:, :n_kept], sizes[:n_kept, None] * across[:n_kept]
    lean = span.T @ frame
    if np.abs(lean).max(initial=0.0) > _LEAN:
        frame = orthonormal(frame - span @ lean)
    return frame, link


# Directions of the stacked bases smaller than this, relatively, repeat others. We compute their squares, which keep half of the
# digits.
_REPEATED = 1e-4
# How much larger than the average entry an important entry may be; and the least signal to assume, over the noise.
_BOLD, _LEAST_SIGNAL = 3.0, 1e-3


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class KeptState:
    """The public state."""

    bases: tuple[Array, ...]  # Those that were multiplied, (d, p) each.
    products: tuple[Array, ...]  # What was released of them.
    basis: Array  # The next one.
    space: Subspace | None = None
    done: bool = False

    @property
    def round(self) -> int:
        """The products so far."""
        return len(self.bases)


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class KeptProducts(ProductTask[KeptState]):
    """Rounds of Y = G X + noise, one per share, from the orthonormal `begin`, (d, p), for the `rank` leading directions.

    The next X are the Ritz vectors of the last product; the answer is that of `ritz_of_all`. With a `tolerance` the task stops
    when the estimate has moved by no more than that, as a sine, since the round before. This uses released numbers only.

    The ledger labels a round with `name`. If `reports`, the estimate is computed after every round, not only at the end, which is
    slower.

    Rows of X of norm above `longest` are scaled down to it before sites get X. X is public, and scaling rows down stretches no
    direction. Where one interaction is protected, noise is calibrated to the largest row norm of X. A few rows of large norm
    would otherwise decide all of it.

    >>> from eigenveil.core.domain import Domain
    >>> from eigenveil.core.mechanism import Exact
    >>> from eigenveil.protocols.party import run_pooled
    >>> from eigenveil.data.rows import DenseRows
    >>> begin = orthonormal(np.random.default_rng(0).standard_normal((4, 2)))
    >>> task = KeptProducts(
    ...     domain=Domain(dim=4, radius=9.0), neighbours=Neighbours.ADD_REMOVE, begin=begin, shares=(0.25,) * 4, rank=1
    ... )
    >>> run_pooled(task, DenseRows(np.diag([4.0, 3.0, 2.0, 1.0])), Exact(because="doctest")).values.round(1).tolist()
    [4.0]
    """

    domain: Region
    neighbours: Neighbours
    begin: Array
    shares: tuple[float, ...]
    rank: int
    tolerance: float = 0.0
    longest: float = math.inf
    reports: bool = True
    name: str = "krylov product"

    def __post_init__(self) -> None:
        require(self.longest > 0, f"longest must be positive, got {self.longest}")
        require(self.reports or self.tolerance == 0, "tolerance needs an estimate after every round: pass reports=True")
        self.require_terms()

    def start(self) -> KeptState:
        return KeptState(bases=(), products=(), basis=self._capped(self.begin))

    def update(self, state: KeptState, released: Array) -> KeptState:
        """One more product, the estimate from all of them, and the next basis."""
        bases, products = (*state.bases, state.basis), (*state.products, released)
        done, space = len(bases) == len(self.shares), None
        if done or self.reports:
            # One over the variance of the noise on each product, up to a factor: public numbers.
            precisions = self.shares[: len(bases)]
            # Without a bound all sensitivities are infinite, and their ratios would be NaN.
            if not math.isinf(self.domain.radius):
                scales = [self.sensitivity(Question(at, (basis,))) for at, basis in enumerate(bases)]
                precisions = tuple(share * (scales[0] / scale) ** 2 for share, scale in zip(precisions, scales, strict=True))
            space = ritz_of_all(bases, products, precisions, rank=self.rank)
        if self.tolerance > 0 and state.space is not None and space is not None:
            done = done or bool(sines(state.space.basis, space.basis)[0] <= self.tolerance)
        following = state.basis
        if not done and math.isinf(self.longest):
            # The leading directions of the last product, as many as the block is wide.
            following = orthonormal(ritz(following, released, rank=self.begin.shape[1]).basis)
        elif not done:
            # A capped basis is not orthonormal, which `ritz` assumes. The general fit does not need that.
            following = ritz_of_all((following,), (released,), (1.0,), rank=self.begin.shape[1]).basis
            following = self._capped(following)
        return KeptState(bases=bases, products=products, basis=following, space=space, done=done)

    def result(self, state: KeptState) -> Subspace | None:
        """The estimate from all products, after the last round."""
        return state.space if state.done else None

    def has_converged(self, state: KeptState) -> bool | None:
        """Not claimed under noise."""
        return None

    def estimate(self, state: KeptState) -> Subspace | None:
        """The estimate from the products so far."""
        return state.space

    def _capped(self, basis: Array) -> Array:
        """A basis with no row of norm above `longest`. A diagonal matrix of factors up to one stretches nothing."""
        if math.isinf(self.longest):
            return basis
        norms = np.sqrt(np.einsum("ij,ij->i", basis, basis))
        # A row of zeros gives infinity here, and the minimum with one leaves that row as it is.
        with np.errstate(divide="ignore"):
            return np.asarray(basis * np.minimum(1.0, self.longest / norms)[:, None])


def ritz_of_all(bases: tuple[Array, ...], products: tuple[Array, ...], shares: tuple[float, ...], *, rank: int) -> Subspace:
    """The `rank` leading directions of the symmetric G that best fits all products Y_t ~ G X_t, (d, p) each, all public.

    G minimises sum_t r_t ||G X_t - Y_t||_F^2 + (c/2) ||G||_F^2. Here r_t is the precision of round t, relative to the first: one
    over the variance of its noise. Where all rounds are equally sensitive, `shares` are precisions.
    Let A = sum r_t X_t X_t^T = U diag(a) U^T and B = sum r_t Y_t X_t^T. The gradient vanishes where G A + A G + c G = B + B^T.
    On U an entry is (U^T (B + B^T) U)_ij / (a_i + a_j + c). Between U and the rest it is that of B over a_j + c. On the rest,
    where nothing is known, it is zero. For one product and c = 0 that is `ritz`.

    The ridge c is the variance of the noise on the first product over the variance of an entry of G. Both come from released
    numbers: X^T Y - Y^T X is pure noise, and ||Y||^2 is the signal's square plus the noise's. A few eigenvalues may be far larger
    than the last one requested. Their square would make the ridge so small that noise in rarely multiplied directions exceeds
    that last one. An entry is therefore assumed no larger than if all eigenvalues were as large as the last.
    """
    relative = np.asarray(shares) / shares[0]
    noise, signal = _variances(bases, products, relative, rank)
    # Without the ridge the fit is dangerous: on a9a at epsilon 1 it captured 0.80 instead of 0.999
    # (docs/decisions/0009).
    ridge = noise / signal if signal > 0 else 0.0
    stack = np.hstack([np.sqrt(r) * basis for r, basis in zip(relative, bases, strict=True)])
    # Through the small matrix of products: much faster than decomposing the tall one, and accurate enough.
    weights, rotation = np.linalg.eigh(stack.T @ stack)
    mask = weights > _REPEATED**2 * weights[-1]
    weights = weights[mask]
    span = orthonormal(stack @ (rotation[:, mask] / np.sqrt(weights)))
    del stack
    across = np.zeros(span.shape)
    for r, basis, product in zip(relative, bases, products, strict=True):
        across += r * (product @ (basis.T @ span))
    inner = span.T @ across
    inside = (inner + inner.T) / (weights[:, None] + weights[None, :] + ridge)
    across -= span @ inner
    across /= weights + ridge
    rest = complement(across, span) if span.shape[1] < len(span) else np.empty((len(span), 0))
    link = rest.T @ across
    small = np.block([[inside, link.T], [link, np.zeros((rest.shape[1], rest.shape[1]))]])
    _, vectors = top_eigen(small, rank=rank)
    directions: Array = span @ vectors[: span.shape[1]]
    directions += rest @ vectors[span.shape[1] :]
    return _with_values(directions, bases[-1], products[-1])


def _with_values(directions: Array, basis: Array, product: Array) -> Subspace:
    """`directions`, (d, k), with values from the last product, largest first: the ridge would shrink them.

    A direction v = X c + r has v^T G v = c^T X^T G X c + 2 r^T G X c + r^T G r. The product G X gives all but the last term,
    which is small, because X was the best estimate of the directions in the last round.
    """
    within = basis.T @ directions
    inside, whole = within * (basis.T @ product @ within), directions * (product @ within)
    values = 2 * whole.sum(axis=0) - inside.sum(axis=0)
    order = np.argsort(-values, kind="stable")
    return Subspace(signed(directions[:, order]), np.sqrt(np.maximum(values[order], 0.0)))


def _variances(bases: tuple[Array, ...], products: tuple[Array, ...], relative: Array, rank: int) -> tuple[float, float]:
    """The variance of the noise on an entry of the first product, and a generous guess at that of an entry of G."""
    dim, width = products[0].shape
    # A 1 x 1 matrix has no skew part, so nothing here tells noise from signal. No signal means no ridge.
    if width < 2:
        return 0.0, 0.0
    skew = [float(np.square((m := basis.T @ product) - m.T).sum()) for basis, product in zip(bases, products, strict=True)]
    # Entries of the skew part have the variances of both columns. For an orthonormal basis these add up to its width.
    sizes = [float(np.square(basis).sum()) for basis in bases]
    noise = float(np.mean(relative * skew / np.array(sizes))) / (2 * (width - 1))
    total = float(np.square(products[0]).sum())
    bold = _BOLD * max((total / dim - noise * width) / sizes[0], _LEAST_SIGNAL * noise)
    inner = bases[-1].T @ products[-1]
    # A column of noise has a norm of about sqrt(dim * noise). An eigenvalue below that is not believed.
    last = max(float(np.linalg.eigvalsh((inner + inner.T) / 2)[-min(rank, width)]), math.sqrt(dim * noise))
    return noise, min(bold, last * last / dim)


@final
class Krylov(ProductMethod):
    """All products count: exact to rounding in few rounds, or with noise on all of them."""

    name = "krylov"
    phrase = "a Krylov subspace"
    places = ("sites", "peers", "remote peers")
    settings = ("hub", "site", "masked", "peers", "peers-independent")
    keeps_products = True
    max_rounds = 60
    # More rounds than where the last product counts alone, and a more even budget (docs/decisions/0009).
    noisy_rounds, growth = 8, 1.3

    def width(self, criteria: PlanRequest) -> int:
        """Without noise a slightly wider block saves rounds."""
        return criteria.wider(5) if criteria.budget is None else super().width(criteria)

    def build_task(self, plan: MethodPlan, start_basis: Array | None, context: TaskContext) -> Components:
        """Kept products under noise, a Krylov space without."""
        terms = self.terms(plan, start_basis, context)
        return partial(KeptProducts, **terms) if context.private else partial(KrylovSum, rounds=plan.rounds, **terms)

    def memory(self, dim: int, plan: MethodPlan) -> int:
        """A few products, and all bases with their products."""
        return (WORKING + 2 * plan.rounds) * dim * plan.width

    def simulate(self, plan: MethodPlan, scene: Scene, *, sites: int) -> Array:
        """The real task. Only its last result matters, so intermediate ones are not computed."""
        context = TaskContext(neighbours=scene.neighbours, rank=scene.rank, private=True)
        terms = self.terms(plan, self.start_basis(scene.dim, plan, scene.seed), context)
        return found_in(scene, partial(KeptProducts, reports=False, **terms))


METHOD: Final = Krylov()
