"""`SiteSpaces`: one turn, in which each site sends the leading directions of its own rows and no matrix of all columns.

Three ways to put them together: FPCA's merge, which is exact while nothing was cut off, and the two averages of
projectors that FedPower compares with. On private rows a site first releases its Gram matrix with noise, and all the rest
is post-processing.
"""

import math
from dataclasses import dataclass
from typing import Literal, final, get_args

import numpy as np

from eigenveil.errors import require
from eigenveil.linalg import Array, Subspace, merge_all
from eigenveil.privacy import Bounded, Domain, Mechanism, Neighbours, bounded_count, bounded_gram
from eigenveil.rows import Rows, block_size
from eigenveil.tasks.base import Question, Task, require_array, require_step

__all__ = ["SiteSpaces", "SpacesKind"]

SpacesKind = Literal["merge", "uda", "wda"]

# In data scale, relative to the largest value: what rounding leaves where a Gram matrix has no direction.
_NOTHING = 3e-7


@final
@dataclass(frozen=True, slots=True, eq=False)
class SiteSpaces(Task[Subspace | None, tuple[Subspace, ...], Subspace]):
    """The `rank` leading directions from those of the sites, in one of three ways.

    "merge": sites send `width` >= rank directions with their values, inner nodes of a tree merge and cut to `width` again, the
    hub takes the top of [U1 S1, U2 S2, ...] (FPCA Alg. 1 and Lemma 1). Exact where no site has more directions than that.
    "uda": `rank` directions a site, all of the same weight: the top of sum_i V_i V_i^T (Fan et al. 2019, FedPower Alg. 4).
    "wda": the same with the values: the top of sum_i V_i S_i V_i^T (Bhaskara and Wijewardena 2019, FedPower Alg. 5), where
    `normalise` divides a site's Gram matrix by its number of people, as printed: the number must then be public.

    Values are those of the sum over sites, where the papers divide by the number of sites. A site with fewer directions, or
    without rows, sends fewer; the result has fewer than `rank` where all sites together do.

    >>> from eigenveil.privacy import Exact
    >>> from eigenveil.protocols import run_pooled
    >>> from eigenveil.rows import DenseRows
    >>> task = SiteSpaces(Domain(dim=3, radius=9.0), Neighbours.ADD_REMOVE, kind="merge", rank=1, width=2)
    >>> run_pooled(task, DenseRows(np.diag([1.0, 3.0, 2.0])), Exact(because="doctest")).values.round(9).tolist()
    [3.0]
    """

    domain: Domain
    neighbours: Neighbours
    kind: SpacesKind
    rank: int
    width: int | None = None
    normalise: bool = False

    def __post_init__(self) -> None:
        dim = self.domain.dim
        kinds = get_args(SpacesKind)
        require(self.kind in kinds, f"kind must be one of {', '.join(kinds)}, got {self.kind!r}")
        require(1 <= self.rank <= dim, f"rank must lie in 1..{dim}, got {self.rank}")
        require(self.rank <= self.sent <= dim, f"width must lie in {self.rank}..{dim}, got {self.width}")
        require(
            self.kind == "merge" or self.sent == self.rank,
            f"{self.kind} takes as many directions from a site as it gives, {self.rank}, got width {self.width}",
        )
        require(
            not self.normalise or self.kind == "wda",
            f"normalise is for wda, and has no meaning for {self.kind}",
        )

    @property
    def sent(self) -> int:
        """How many directions a site sends at most."""
        return self.rank if self.width is None else self.width

    def start(self) -> Subspace | None:
        """Nothing is known yet."""
        return None

    def ask(self, state: Subspace | None) -> Question:
        """For the leading directions, which needs no telling."""
        return Question()

    def require_question(self, question: Question) -> None:
        """There is one."""
        require_step(question, steps=1, arrays=0)

    def work(self, question: Question, rows: Rows, mechanism: Mechanism) -> tuple[Subspace, ...]:
        """The leading directions of the released Gram matrix."""
        require(
            not self.normalise or self.neighbours.count_is_public or mechanism.scale(1.0) == 0,
            f"wda cannot divide by the number of people, which {self.neighbours.value!r} protects; give normalise=False",
        )
        space = self._space(rows, mechanism)
        if self.kind == "uda":
            return (Subspace(space.basis, np.ones(space.rank)),)
        if not self.normalise:
            return (space,)
        people = float(bounded_count(rows, neighbours=self.neighbours).value)
        return (Subspace(space.basis, space.values / math.sqrt(max(people, 1.0))),)

    def combine(self, left: tuple[Subspace, ...], right: tuple[Subspace, ...]) -> tuple[Subspace, ...]:
        """Side by side."""
        return left + right

    def condense(self, part: tuple[Subspace, ...]) -> tuple[Subspace, ...]:
        """All as one: cut to the width by the merge, which is FPCA's, and whole for the averages, which have none in a tree."""
        return (_merged(part, rank=self.sent if self.kind == "merge" else self.domain.dim),)

    def advance(
        self, state: Subspace | None, total: tuple[Subspace, ...], mechanism: Mechanism, *, stretch: float = 1.0
    ) -> Subspace:
        """The top of them all. Noise at the hub is refused: one person moves directions by more than any bound we know."""
        require(mechanism.scale(1.0) == 0, f"{self.kind} has no form with noise at the hub: each site must add its own")
        found = _merged(total, rank=self.rank)
        require(found.rank > 0, "no site sent any direction: all rows are zero, or there are none")
        return found

    def result(self, state: Subspace | None) -> Subspace | None:
        """There after one turn."""
        return state

    def estimate(self, state: Subspace | None) -> Subspace | None:
        """The result."""
        return state

    def arrays(self, part: tuple[Subspace, ...]) -> tuple[Array, ...]:
        """A basis, (d, j), and values, (j,), for each."""
        return tuple(array for space in part for array in (space.basis, space.values))

    def part(self, question: Question, arrays: tuple[Array, ...]) -> tuple[Subspace, ...]:
        """The one subspace of a site, or of a node for all below it."""
        require(len(arrays) == 2, f"a part must be a basis and its values, got {len(arrays)} arrays")
        shape: tuple[int, ...] = getattr(arrays[0], "shape", ())
        count = shape[1] if len(shape) == 2 else 0
        # Nodes of a tree send on all that the averages are made of.
        most = self.sent if self.kind == "merge" else self.domain.dim
        require(count <= most, f"a part must have at most {most} directions, got {count}")
        basis = require_array(arrays[0], (self.domain.dim, count))
        return (Subspace(basis, require_array(arrays[1], (count,))),)

    def _space(self, rows: Rows, mechanism: Mechanism) -> Subspace:
        """At most as many directions of these rows as are sent, those without any weight left out."""
        count, dim = rows.shape[0], self.domain.dim
        if mechanism.scale(1.0) == 0 and not rows.sparse and count < dim:
            # Fewer numbers than the Gram matrix has. No noise could cover the rows themselves, and their bound says so.
            blocks = [self.domain.dense(block, squared=True) for block in rows.blocks(block_size(rows))]
            bounded = Bounded(np.concatenate([np.empty((0, dim)), *blocks]), math.inf)
            few = mechanism.release(bounded, label="site rows")
            return _weighty(Subspace.of(few, rank=min(self.sent, count))) if count else _nothing(dim)
        gram = bounded_gram(rows, domain=self.domain, neighbours=self.neighbours)
        return _weighty(Subspace.of_gram(mechanism.release(gram, label="site covariance"), rank=self.sent))


def _merged(spaces: tuple[Subspace, ...], *, rank: int) -> Subspace:
    """`merge_all`, also where none has a direction."""
    full = [space for space in spaces if space.rank > 0]
    if full:
        return _weighty(merge_all(full, rank=rank))
    return _nothing(spaces[0].dim)


def _weighty(space: Subspace) -> Subspace:
    """The directions that carry some weight."""
    kept = int((space.values > _NOTHING * space.values[0]).sum())
    return space if kept == space.rank else Subspace(space.basis[:, :kept], space.values[:kept])


def _nothing(dim: int) -> Subspace:
    return Subspace(np.empty((dim, 0)), np.empty(0))
