"""`KeptProducts`: noisy products, all of which are used. The private counterpart of `KrylovSum`.

Under noise, blocks orthogonal to the old ones would multiply mostly noise, so each block starts from the best directions so far.
All products together determine the Gram matrix better than the last one alone (docs/decisions/0009).
"""

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from eigenveil.core.domain import Region
from eigenveil.core.sums import require_contraction
from eigenveil.core.unit import Neighbours
from eigenveil.errors import require
from eigenveil.linalg import Array, Subspace, complement, orthonormal, signed, sines, top_eigen
from eigenveil.tasks.base import Question
from eigenveil.tasks.power import ritz
from eigenveil.tasks.products import ProductTask, require_shares

__all__ = ["KeptProducts", "KeptState", "ritz_of_all"]

# Directions of the stacked bases smaller than this, relatively, repeat others. We compute their squares, which keep half of the
# digits.
_REPEATED = 1e-4
# How much larger than the average entry an important entry may be; and the least signal to assume, over the noise.
_BOLD, _LEAST_SIGNAL = 3.0, 1e-3


@final
@dataclass(frozen=True, slots=True, eq=False)
class KeptState:
    """The public state: the bases multiplied so far, their released products, (d, p) each, the next basis, and the estimate."""

    bases: tuple[Array, ...]
    products: tuple[Array, ...]
    basis: Array
    space: Subspace | None = None
    done: bool = False


@final
@dataclass(frozen=True, slots=True, eq=False)
class KeptProducts(ProductTask[KeptState]):
    """Rounds of Y = G X + noise, one per share, from the orthonormal `begin`, (d, p), for the `rank` leading directions.

    The next X are the Ritz vectors of the last product; the answer is that of `ritz_of_all`. With a `tolerance` the task stops
    when the estimate has moved by no more than that, as a sine, since the round before. This uses released numbers only.

    The ledger labels a round with `name`. If `told`, the estimate is computed after every round, not only at the end, which is
    slower.

    Rows of X of norm above `longest` are scaled down to it before sites get X. X is public, and scaling rows down stretches no
    direction. Where one interaction is protected, noise is calibrated to the largest row norm of X. A few rows of large norm
    would otherwise decide all of it.

    >>> from eigenveil.core.domain import Domain
    >>> from eigenveil.core.mechanism import Exact
    >>> from eigenveil.protocols import run_pooled
    >>> from eigenveil.data.rows import DenseRows
    >>> begin = orthonormal(np.random.default_rng(0).standard_normal((4, 2)))
    >>> task = KeptProducts(Domain(dim=4, radius=9.0), Neighbours.ADD_REMOVE, begin, shares=(0.25,) * 4, rank=1)
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
    told: bool = True
    name: str = "krylov product"

    def __post_init__(self) -> None:
        require(self.longest > 0, f"longest must be positive, got {self.longest}")
        require(self.told or self.tolerance == 0, "tolerance needs an estimate after every round: pass told=True")
        require_contraction(self.begin, dim=self.domain.dim)
        width = self.begin.shape[1]
        require(1 <= self.rank <= width, f"rank must lie in 1..{width}, the width, got {self.rank}")
        require_shares(self.shares)

    def start(self) -> KeptState:
        """The given basis."""
        return KeptState((), (), self._capped(self.begin))

    def ask(self, state: KeptState) -> Question:
        """For the product with the next basis."""
        return Question(len(state.bases), (state.basis,))

    def require_question(self, question: Question) -> None:
        """A product with a basis as wide as the first."""
        width = self.begin.shape[1]
        self.require_product(question, steps=len(self.shares), least=width, most=width)

    def label(self, question: Question) -> str:
        """One entry per round."""
        return f"{self.name} {question.step + 1} of {len(self.shares)}"

    def share(self, question: Question) -> float:
        """This round's share."""
        return self.shares[question.step]

    def update(self, state: KeptState, released: Array) -> KeptState:
        """One more product, the estimate from all of them, and the next basis."""
        bases, products = (*state.bases, state.basis), (*state.products, released)
        done, space = len(bases) == len(self.shares), None
        if done or self.told:
            space = ritz_of_all(bases, products, self._precisions(bases), rank=self.rank)
        if self.tolerance > 0 and state.space is not None and space is not None:
            done = done or bool(sines(state.space.basis, space.basis)[0] <= self.tolerance)
        following = state.basis if done else self._capped(self._improved(state.basis, released))
        return KeptState(bases, products, following, space, done)

    def result(self, state: KeptState) -> Subspace | None:
        """The estimate from all products, after the last round."""
        return state.space if state.done else None

    def at_rest(self, state: KeptState) -> bool | None:
        """Not claimed under noise."""
        return None

    def estimate(self, state: KeptState) -> Subspace | None:
        """The estimate from the products so far."""
        return state.space

    def _improved(self, basis: Array, product: Array) -> Array:
        """The leading directions of the last product, as many as the block is wide."""
        width = self.begin.shape[1]
        if math.isinf(self.longest):
            return orthonormal(ritz(basis, product, rank=width).basis)
        # A capped basis is not orthonormal, which `ritz` assumes. The general fit does not need that.
        return ritz_of_all((basis,), (product,), (1.0,), rank=width).basis

    def _capped(self, basis: Array) -> Array:
        """A basis with no row of norm above `longest`. A diagonal matrix of factors up to one stretches nothing."""
        if math.isinf(self.longest):
            return basis
        norms = np.sqrt(np.einsum("ij,ij->i", basis, basis))
        # A row of zeros gives infinity here, and the minimum with one leaves that row as it is.
        with np.errstate(divide="ignore"):
            return np.asarray(basis * np.minimum(1.0, self.longest / norms)[:, None])

    def _precisions(self, bases: tuple[Array, ...]) -> tuple[float, ...]:
        """One over the variance of the noise on each product, up to a factor: public numbers."""
        # Without a bound all sensitivities are infinite, and their ratios would be NaN.
        if math.isinf(self.domain.radius):
            return self.shares[: len(bases)]
        scales = [self.sensitivity(Question(at, (basis,))) for at, basis in enumerate(bases)]
        return tuple(share * (scales[0] / scale) ** 2 for share, scale in zip(self.shares, scales, strict=False))


def ritz_of_all(
    bases: tuple[Array, ...], products: tuple[Array, ...], shares: tuple[float, ...], *, rank: int
) -> Subspace:
    """The `rank` leading directions of the symmetric G that best fits all products Y_t ~ G X_t, (d, p) each, all public.

    G minimises sum_t r_t ||G X_t - Y_t||_F^2 + (c/2) ||G||_F^2. Here r_t is the precision of round t, relative to the first: one
    over the variance of its noise. Where all rounds are equally sensitive, `shares` are precisions.
    Let A = sum r_t X_t X_t^T = U diag(a) U^T and B = sum r_t Y_t X_t^T. The gradient vanishes where G A + A G + c G = B + B^T.
    On U an entry is (U^T (B + B^T) U)_ij / (a_i + a_j + c). Between U and the rest it is that of B over a_j + c. On the rest,
    where nothing is known, it is zero. For one product and c = 0 that is `ritz`.

    The ridge c is the variance of the noise on the first product over the variance of an entry of G. Both come from released
    numbers: X^T Y - Y^T X is pure noise, and ||Y||^2 is the signal's square plus the noise's. A few eigenvalues may be far larger
    than the last one requested. Their square would make the ridge so small that noise in rarely multiplied directions exceeds
    that last one. So an entry is assumed no larger than if all eigenvalues were as large as the last.
    """
    relative = np.asarray(shares) / shares[0]
    noise, signal = _variances(bases, products, relative, rank)
    # Without the ridge the fit is dangerous: on a9a at epsilon 1 it captured 0.80 instead of 0.999
    # (docs/decisions/0009).
    ridge = noise / signal if signal > 0 else 0.0
    stack = np.hstack([np.sqrt(r) * basis for r, basis in zip(relative, bases, strict=True)])
    # Through the small matrix of products: much faster than decomposing the tall one, and accurate enough.
    weights, rotation = np.linalg.eigh(stack.T @ stack)
    kept = weights > _REPEATED**2 * weights[-1]
    weights = weights[kept]
    span = orthonormal(stack @ (rotation[:, kept] / np.sqrt(weights)))
    del stack
    across = np.zeros(span.shape)
    for r, basis, product in zip(relative, bases, products, strict=True):
        across += r * (product @ (basis.T @ span))
    inner = span.T @ across
    known = (inner + inner.T) / (weights[:, None] + weights[None, :] + ridge)
    across -= span @ inner
    across /= weights + ridge
    rest = complement(across, span) if span.shape[1] < len(span) else np.empty((len(span), 0))
    link = rest.T @ across
    small = np.block([[known, link.T], [link, np.zeros((rest.shape[1], rest.shape[1]))]])
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


def _variances(
    bases: tuple[Array, ...], products: tuple[Array, ...], relative: Array, rank: int
) -> tuple[float, float]:
    """The variance of the noise on an entry of the first product, and a generous guess at that of an entry of G."""
    dim, width = products[0].shape
    # A 1 x 1 matrix has no skew part, so nothing here tells noise from signal. No signal means no ridge.
    if width < 2:
        return 0.0, 0.0
    skew = [
        float(np.square((m := basis.T @ product) - m.T).sum()) for basis, product in zip(bases, products, strict=True)
    ]
    # Entries of the skew part have the variances of both columns. For an orthonormal basis these add up to its width.
    sizes = [float(np.square(basis).sum()) for basis in bases]
    noise = float(np.mean(relative * skew / np.array(sizes))) / (2 * (width - 1))
    total = float(np.square(products[0]).sum())
    bold = _BOLD * max((total / dim - noise * width) / sizes[0], _LEAST_SIGNAL * noise)
    inner = bases[-1].T @ products[-1]
    # A column of noise has a norm of about sqrt(dim * noise). An eigenvalue below that is not believed.
    last = max(float(np.linalg.eigvalsh((inner + inner.T) / 2)[-min(rank, width)]), math.sqrt(dim * noise))
    return noise, min(bold, last * last / dim)
