"""`Method`: everything that the rest of the library must know of a way to find components. One leaf, one file.

A leaf says where it may run, how its budget is shared, what it sends, how far noise alone can reach, what a fit should find, and
in words what leaves a site: all from public numbers. Whatever depends on the method asks its leaf, and nothing else compares
names. The questions are abstract, so a leaf that leaves one open cannot be made.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar, final

import numpy as np

from eigenveil.core.accounting import Budget
from eigenveil.core.domain import Domain, Region
from eigenveil.core.ledger import Ledger
from eigenveil.core.mechanism import Bounded, Gaussian, Mechanism
from eigenveil.core.noise import Noise
from eigenveil.core.rows import Rows
from eigenveil.core.sums import CONTRACTION, require_contraction
from eigenveil.core.unit import Neighbours, gram_sensitivity
from eigenveil.data.rows import DenseRows, SparseRows
from eigenveil.errors import require, require_param
from eigenveil.linalg import Array, Subspace, complement, orthonormal, product_edge, signed, spiked_edge, top_eigen
from eigenveil.linalg.blas import tall_product, tall_times
from eigenveil.linalg.sketch import normals
from eigenveil.privacy.sums import bounded_gram_times
from eigenveil.protocols.party import run_pooled
from eigenveil.tasks.base import Components, Question, SumTask, require_step

__all__ = [
    "ALL_PAIRS",
    "TOLERANCE",
    "WORKING",
    "Components",
    "Method",
    "MethodPlan",
    "Place",
    "PlanRequest",
    "ProductMethod",
    "ProductTask",
    "Scene",
    "TaskContext",
    "block_norm",
    "found_in",
    "gaussian",
    "geometric_shares",
    "leading_under_noise",
    "matrix_of",
    "refuse_oversample",
    "require_shares",
    "ritz",
    "rows_of",
]

# Up to this many columns the whole noise matrix is drawn, as in a fit. Beyond, `leading_under_noise` draws only the
# products it needs.
ALL_PAIRS: Final = 320
# Up to here rows are dense in memory; zeros cost less than the bookkeeping of a sparse matrix.
_FEW_COLUMNS: Final = 64
# The width of a Lanczos block: this many times the rank, or this much wider if that is more. And the most blocks.
_WIDER, _BEYOND, BLOCKS = 2, 8, 16
# Blocks are added until the captured share changes by no more than this.
_STILL: Final = 5e-4


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Scene:
    """What is rehearsed: rows whose Gram matrix is diag(`gram`) + shift shift^T, (d,) each, in units of row_bound^2."""

    gram: Array
    shift: Array | None
    rank: int
    neighbours: Neighbours
    multiplier: float  # The noise on a sum over its sensitivity, if it gets the components' whole budget.
    seed: int  # Of the noise.

    @property
    def dim(self) -> int:
        """The number of columns."""
        return len(self.gram)

    @property
    def scale(self) -> float:
        """The size of the noise on an entry of the Gram matrix."""
        return self.multiplier * gram_sensitivity(1.0, self.neighbours)


def found_in(scene: Scene, components: Components) -> Array:
    """The directions, (d, k), that a task finds in the rows of a scene."""
    rows, radius = rows_of(scene)
    task = components(domain=Domain(dim=scene.dim, radius=radius, claimed=False))
    basis: Array = run_pooled(task, rows, gaussian(scene.multiplier / radius**2, Noise.seeded(scene.seed))).basis
    return basis


def gaussian(multiplier: float, noise: Noise) -> Mechanism:
    """The mechanism of a fit, on a ledger without limits: a rehearsal reads no one's data, so there is nothing to
    charge."""
    return Gaussian(multiplier=multiplier, ledger=Ledger(epsilon=math.inf, delta=0.5), noise=noise)


def matrix_of(scene: Scene) -> Array:
    """Its Gram matrix."""
    matrix = np.diag(scene.gram)
    if scene.shift is not None:
        matrix += np.outer(scene.shift, scene.shift)
    return matrix


def rows_of(scene: Scene) -> tuple[Rows, float]:
    """A table with the scene's Gram matrix, and the radius of a ball that contains its rows.

    Each row stands for many people, so its norm exceeds one. Sensitivities grow with the square of the radius, so a
    noise of multiplier / radius^2 equals that of rows in the unit ball.
    """
    axes, shift = np.sqrt(scene.gram), scene.shift
    longest = max(float(axes[0]), 0.0 if shift is None else float(np.linalg.norm(shift)))
    radius = max(1.0, longest * (1 + 1e-9))
    if len(axes) <= _FEW_COLUMNS:
        # A sparse matrix of so few columns takes longer to make than to multiply with.
        table = np.diag(axes)
        return DenseRows(table if shift is None else np.vstack([table, shift])), radius
    import scipy.sparse as sp

    sparse = sp.diags_array(axes).tocsr()
    whole = sparse if shift is None else sp.vstack([sparse, sp.csr_array(shift[None, :])])
    return SparseRows(sp.csr_array(whole)), radius


def leading_under_noise(
    values: Array, shift: Array | None, *, scale: float, rank: int, noise: Noise, blocks: int = BLOCKS
) -> tuple[Array, Array]:
    """The `rank` largest eigenvalues, (rank,), and their vectors, (d, rank), of A = diag(`values`) + shift shift^T +
    N.

    N = (M + M^T) / 2, where M, (d, d), has independent entries of size `scale`: what `Gaussian` adds to a symmetric
    matrix. N is never stored. Block Lanczos from the first axes needs only products N X. They are drawn when they are
    needed, with the law that they would have had. It stops after at most `blocks` blocks.

    Proof. N has the same law in every orthonormal basis. Let N Q be known for an orthonormal Q, chosen block by block
    from what was known before. Let X be orthonormal with Q^T X = 0, chosen from N Q.
    - In a basis [Q, X, Z] the known entries are the columns of Q and, by symmetry, its rows.
    - All others are independent of them, with variance scale^2 on the diagonal and scale^2 / 2 off it. This holds for
      all Q and X, because each was fixed before the entries in question were seen (by induction over blocks).
    - So N X = Q (N Q)^T X + X S + (I - Q Q^T - X X^T) g scale / sqrt(2). Here S is new and symmetric, of that law,
      and g, (d, p), is new and standard normal.
    This is exact. Only Lanczos stops early, when more blocks would change next to nothing.

    >>> found, vectors = leading_under_noise(np.arange(50.0, 0, -1) ** 2, None, scale=0.01, rank=2, noise=Noise.seeded(1))
    >>> np.abs(vectors[:2]).round(2).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    dim = len(values)
    width = min(dim, max(_WIDER * rank, rank + _BEYOND))
    block: Array = np.eye(dim, width)
    span, products, image = np.empty((dim, 0)), np.empty((dim, 0)), np.empty((dim, 0))
    share, best = -1.0, float(values[:rank].sum())
    while True:
        drawn = _product(span, products, block, scale, noise)
        whole = values[:, None] * block + drawn
        if shift is not None:
            whole += np.outer(shift, shift @ block)
        span, products, image = np.hstack([span, block]), np.hstack([products, drawn]), np.hstack([image, whole])
        small = span.T @ image
        eigenvalues, rotation = np.linalg.eigh((small + small.T) / 2)
        vectors = span @ rotation[:, ::-1][:, :rank]
        before, share = share, float(values @ np.square(vectors).sum(axis=1)) / best
        room = dim - span.shape[1]
        settled = abs(share - before) <= _STILL and span.shape[1] >= 3 * width
        if room == 0 or settled or span.shape[1] >= blocks * width:
            return eigenvalues[::-1][:rank], signed(vectors)
        rest = whole - span @ (span.T @ whole)
        block = orthonormal(rest)[:, : min(width, room)]
        # Orthogonalise a second time: where little was left after the first, rounding errors along `span` are large.
        block = orthonormal(block - span @ (span.T @ block))


def _product(span: Array, products: Array, block: Array, scale: float, noise: Noise) -> Array:
    """N X for X = `block`, (d, p), given N Q = `products` for Q = `span`, as in the proof above."""
    drawn = normals(noise, block.shape) * (scale / math.sqrt(2))
    drawn -= span @ (span.T @ drawn)
    drawn -= block @ (block.T @ drawn)
    square = normals(noise, (block.shape[1], block.shape[1])) * scale
    drawn += block @ ((square + square.T) / 2)
    drawn += span @ (products.T @ block)
    return drawn


LocalSteps = int | Sequence[int | str]
# Who may run it: a curator, sites around a hub, peers in one process, and peers over a network.
Place = Literal["curator", "sites", "peers", "remote peers"]
# The change at which a method has converged, where nothing is noisy.
TOLERANCE: Final = 1e-8
# Temporary d x w matrices at one place, beside products that are kept.
WORKING: Final = 6


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """What a plan is made from, all of it public. None stands for the usual."""

    dim: int
    rank: int
    budget: Budget | None  # None without noise.
    eigenvalues: Array  # A guess at those of the Gram matrix, (d,), in units of row_bound^2, largest first.
    people: int = 2  # A guess at their number.
    rounds: int | None = None
    tolerance: float | None = None
    oversample: int | None = None
    local_steps: LocalSteps = 1

    def wider(self, more: int) -> int:
        """The width of a block: the rank and `more`, or as much more as the caller wants."""
        return min(self.dim, self.rank + (more if self.oversample is None else self.oversample))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MethodPlan:
    """What was decided and why."""

    method: str
    width: int  # Columns of a product, or of what a site sends.
    rounds: int  # Exchanges; of each component, where they are found one after another.
    shares: tuple[float, ...]  # Each exchange's part of the components' budget.
    steps: tuple[int, ...] = ()  # Local steps of each round, where sites take any.
    tolerance: float = 0.0
    reason: str = ""
    people: int = 0  # A guess at their number, where hidden starts need one.

    @property
    def exchanges(self) -> int:
        """All exchanges."""
        return max(self.rounds, len(self.shares))

    @property
    def headline(self) -> str:
        """The method and why it was chosen, on one line."""
        return self.reason if self.reason.startswith(self.method) else f"{self.method}: {self.reason}"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TaskContext:
    """How a planned task is used."""

    neighbours: Neighbours
    rank: Any  # None where it is read off what was released.
    private: bool
    align: Literal["procrustes", "sign", "none"] = "procrustes"  # How FedPower compares bases.
    hidden: Noise | None = None  # What a peer keeps to itself.


class Method(ABC):
    """A way to find components."""

    name: str
    phrase: str  # In words, after "with": the private power method.
    places: tuple[Place, ...]
    settings: tuple[str, ...] = ()  # In which a plan compares it, and "auto" may take it.

    is_additive: bool = True  # Every round is a sum of arrays: masks and gossip can only add.
    averages_subspaces: bool = False  # Sites send directions of their own, which only their own noise covers.
    needs_start_basis: bool = False  # It starts from a public random basis.
    releases_gram: bool = False  # The whole Gram matrix is released, with its trace: entries can be divided by counts.
    fixed_rounds: int | None = 1  # None where the caller may choose.
    takes_samples: bool = False  # Every round may use other sites.
    runs_in_trees: bool = True
    has_private_form: bool = True
    takes_local_steps: bool = False  # Sites may take several steps on their own rows in a round.
    keeps_products: bool = False  # The answer is made of all products, and not of the last one.
    finds_one_by_one: bool = False  # One component after another.

    def __str__(self) -> str:
        return self.name

    @abstractmethod
    def width(self, criteria: PlanRequest) -> int:
        """The columns of a product, or of what a site sends."""

    @abstractmethod
    def build_task(self, plan: MethodPlan, start_basis: Array | None, context: TaskContext) -> Components:
        """A factory for the planned task. `start_basis` is that of `needs_start_basis`."""

    @abstractmethod
    def message_size(self, dim: int, plan: MethodPlan) -> int:
        """How many numbers a site releases in a round."""

    @abstractmethod
    def memory(self, dim: int, plan: MethodPlan) -> int:
        """The most numbers in memory at one place."""

    @abstractmethod
    def entry_noise(self, plan: MethodPlan) -> float:
        """The noise on an entry of what the answer is read off, over that on a diagonal entry of a Gram matrix."""

    @abstractmethod
    def noise_norm(self, dim: int, plan: MethodPlan, *, sites: int) -> float:
        """The expected spectral norm of the noise, over its size on a diagonal entry of a Gram matrix."""

    @abstractmethod
    def noise_floor(self, dim: int, plan: MethodPlan, *, scale: float, spike: float, sites: int) -> float:
        """What noise alone exceeds in one fit of a hundred.

        `scale` is the noise on an entry at a share of one, and the error of the mean adds at most `spike` to one eigenvalue.
        """

    @abstractmethod
    def disclosure(self, width: int, *, role: str) -> str:
        """What leaves a `role`, a site or a peer, in words that its operator consents to."""

    @abstractmethod
    def simulate(self, plan: MethodPlan, scene: Scene, *, sites: int) -> Array:
        """The directions, (d, k), that the planned fit would find in a scene.

        `scene.multiplier` is the noise on the sum over all sites; on the part of each site where they average subspaces.
        """

    def start_basis(self, dim: int, plan: MethodPlan, seed: Any) -> Array | None:
        """The first basis, (d, width), which all parties draw from the same public seed; None where there is none."""
        if not self.needs_start_basis:
            return None
        return orthonormal(np.random.default_rng(seed).standard_normal((dim, plan.width)))

    def plan(self, criteria: PlanRequest, reason: str) -> MethodPlan:
        """Width, rounds and shares, for a method with a fixed number of rounds."""
        assert self.fixed_rounds is not None
        return MethodPlan(method=self.name, width=self.width(criteria), rounds=self.fixed_rounds, shares=(1.0,), reason=reason)

    def last_share(self, plan: MethodPlan) -> float:
        """The share of the release that components are read off: the smallest, where there are several."""
        return plan.shares[-1]

    def longest_part(self, dim: int, plan: MethodPlan) -> int:
        """The numbers in the longest part that a site may send, for limits: a basis and its values."""
        return dim * plan.width + plan.width + 1


def refuse_oversample(method: Method, criteria: PlanRequest) -> None:
    """Refuse a width for a method that has none of its own."""
    require_param(criteria.oversample is None, "{oversample} has no meaning for {method=}", method=method.name)


def block_norm(dim: int, width: int) -> float:
    """The expected spectral norm of a (dim, width) block of noise of size one."""
    return math.sqrt(dim) + math.sqrt(width)


State = TypeVar("State")


class ProductTask(SumTask[State, Subspace]):
    """A task whose questions have one basis, (d, p), with ||basis||_2 <= 1 + 1e-8, and whose parts are the product with it.

    The first is `begin`, and there are `rounds` of them, each with its own of the `shares`. States have the next `round` and its
    `basis`. The ledger labels a round with `name`.
    """

    domain: Region
    neighbours: Neighbours
    begin: Array
    rank: int | None  # None for as many directions as the basis is wide.
    shares: tuple[float, ...]
    name: str

    @property
    def rounds(self) -> int:
        """The most products."""
        return len(self.shares)

    def require_terms(self) -> None:
        """Refuse a first basis that is too long, a rank beyond its width, and shares that are more than the budget."""
        require_contraction(self.begin, dim=self.domain.dim)
        width = self.begin.shape[1]
        require(self.rank is None or 1 <= self.rank <= width, f"rank must lie in 1..{width}, the width, got {self.rank}")
        require_shares(self.shares)

    def ask(self, state: Any) -> Question:
        """For the product with the next basis."""
        return Question(state.round, (state.basis,))

    def require_question(self, question: Question) -> None:
        """A product with a basis as wide as the first."""
        self.require_product(question, min_width=self.begin.shape[1])

    def label(self, question: Question) -> str:
        """One entry per round."""
        return f"{self.name} {question.step + 1} of {self.rounds}"

    def share(self, question: Question) -> float:
        """This round's share."""
        return self.shares[question.step]

    def private(self, question: Question, rows: Rows) -> Bounded:
        return bounded_gram_times(rows, basis=question.arrays[0], domain=self.domain, neighbours=self.neighbours)

    def sensitivity(self, question: Question) -> float:
        basis = question.arrays[0]
        # The largest norm that `require_contraction` accepts, so the noise covers every basis that a hub may send.
        return self.domain.gram_times_sensitivity(self.neighbours, basis=basis, basis_norm=CONTRACTION)

    def shape(self, question: Question) -> tuple[int, ...]:
        return question.arrays[0].shape

    def require_product(self, question: Question, *, min_width: int) -> None:
        """Refuse a question without one basis of `min_width` columns up to the first one's, and norm at most 1 + 1e-8."""
        # The question came over the network: its shape is checked before anything is multiplied.
        require_step(question, steps=self.rounds, arrays=1)
        # Measured where the rows are: a longer basis would stretch a person's part beyond the noise.
        require_contraction(question.arrays[0], dim=self.domain.dim)
        width, max_width = question.arrays[0].shape[1], self.begin.shape[1]
        limits = f"{max_width}" if min_width == max_width else f"{min_width} to {max_width}"
        require(min_width <= width <= max_width, f"basis must have {limits} columns, got {width}")


class ProductMethod(Method):
    """A method of products with a block that the hub sends, in rounds whose shares grow."""

    needs_start_basis: bool = True
    fixed_rounds: int | None = None
    max_rounds: int = 200  # Without noise, where it stops at a tolerance.
    noisy_rounds: int = 4
    # Each product gets this many times the budget of the one before: the last one makes the result.
    # benchmarks/plan/power_shares.py.
    growth: float = 1.6

    def width(self, criteria: PlanRequest) -> int:
        """Wider than the rank: under noise a wider block gains more than its noise costs."""
        # Without noise it only has to contain the space.
        return criteria.wider(max(10, criteria.rank if criteria.budget is None else 3 * criteria.rank))

    def plan(self, criteria: PlanRequest, reason: str) -> MethodPlan:
        """Rounds with growing shares."""
        private = criteria.budget is not None
        rounds = (self.noisy_rounds if private else self.max_rounds) if criteria.rounds is None else criteria.rounds
        # With noise, shares are fixed in advance: a round that is left out would leave its share unused.
        usual = 0.0 if private else TOLERANCE
        return MethodPlan(
            method=self.name,
            width=self.width(criteria),
            rounds=rounds,
            shares=geometric_shares(rounds, growth=self.growth if private else 1.0),
            steps=self.steps(criteria, rounds),
            tolerance=usual if criteria.tolerance is None else criteria.tolerance,
            reason=reason,
        )

    def terms(self, plan: MethodPlan, start_basis: Array | None, context: TaskContext) -> dict[str, Any]:
        """The fields that tasks of products share."""
        assert start_basis is not None
        terms = {"neighbours": context.neighbours, "begin": start_basis, "rank": context.rank}
        return terms | {"shares": plan.shares, "tolerance": plan.tolerance}

    def steps(self, criteria: PlanRequest, rounds: int) -> tuple[int, ...]:
        return (1,) * rounds

    def message_size(self, dim: int, plan: MethodPlan) -> int:
        return dim * plan.width

    def memory(self, dim: int, plan: MethodPlan) -> int:
        """A few products."""
        return WORKING * dim * plan.width

    def entry_noise(self, plan: MethodPlan) -> float:
        return float(plan.shares[-1] ** -0.5)

    def noise_norm(self, dim: int, plan: MethodPlan, *, sites: int) -> float:
        """Of the last product: the result is read off it."""
        return block_norm(dim, plan.width) / math.sqrt(plan.shares[-1])

    def noise_floor(self, dim: int, plan: MethodPlan, *, scale: float, spike: float, sites: int) -> float:
        """The edge of the Ritz values of a product."""
        entry = scale / math.sqrt(self.last_share(plan))
        return entry * spiked_edge(product_edge(dim, plan.width), spike=spike / entry, row=dim - plan.width / 2)

    def disclosure(self, width: int, *, role: str) -> str:
        return f"products of the rows with {width} directions"

    def simulate(self, plan: MethodPlan, scene: Scene, *, sites: int) -> Array:
        """The real task, with noise on the sum."""
        context = TaskContext(neighbours=scene.neighbours, rank=scene.rank, private=True)
        return found_in(scene, self.build_task(plan, self.start_basis(scene.dim, plan, scene.seed), context))


def require_shares(shares: tuple[float, ...]) -> None:
    """Refuse shares that are not positive or sum to more than one.

    >>> require_shares((0.25, 0.75))
    """
    require(len(shares) > 0, "there must be at least one round, got no shares")
    require(
        # Shares that add up to one on paper may exceed it by rounding.
        min(shares) > 0 and sum(shares) <= 1 + 1e-12,
        f"shares must be positive and sum to at most one, got {len(shares)} from {min(shares):g} that sum to {sum(shares):g}",
    )


def geometric_shares(rounds: int, *, growth: float) -> tuple[float, ...]:
    """Shares of a budget over `rounds`, each `growth` times the one before, summing to one.

    >>> [round(share, 3) for share in geometric_shares(3, growth=2.0)]
    [0.143, 0.286, 0.571]
    """
    require(rounds >= 1, f"rounds must be at least 1, got {rounds}")
    require(growth > 0, f"growth must be positive, got {growth}")
    # Exponents are counted from the round with the largest share, so that no power overflows.
    raw = growth ** (np.arange(float(rounds)) - (rounds - 1 if growth > 1 else 0))
    return tuple((raw / raw.sum()).tolist())


def ritz(basis: Array, product: Array, *, rank: int) -> Subspace:
    """The `rank` leading directions, with data-scale values, from an orthonormal X and Y ~ G X, (d, p), both public.

    Y determines two blocks of the symmetric matrix G. On X it is H = (X^T Y + Y^T X) / 2. Between X and the orthonormal rest Q of
    Y's span it is T = Q^T Y. The block on Q is unknown and set to zero. The eigenvectors of [[H, T^T], [T, 0]] in the basis [X,
    Q] are the Ritz vectors of that completion, which is G itself when X spans an invariant space. In data scale a value is the
    root of its eigenvalue, or zero if noise made it negative.

    >>> space = ritz(np.eye(2)[:, :1], np.array([[4.0], [0.0]]), rank=1)
    >>> space.values.tolist(), space.basis.ravel().tolist()
    ([2.0], [1.0, 0.0])
    """
    width = basis.shape[1]
    inner = tall_product(basis, product)
    rest = complement(product, basis, within=inner)
    across = tall_product(rest, product)
    small = np.block([[(inner + inner.T) / 2, across.T], [across, np.zeros((rest.shape[1], rest.shape[1]))]])
    # A matrix of twice the width: all that was released is in it, so nothing tall is needed any more.
    values, vectors = top_eigen(small, rank=rank)
    directions = tall_times(basis, vectors[:width])
    directions += tall_times(rest, vectors[width:])
    # Freed as soon as it is used, because a subspace copies its arrays.
    del rest
    return Subspace(signed(directions), np.sqrt(np.maximum(values, 0.0)))
