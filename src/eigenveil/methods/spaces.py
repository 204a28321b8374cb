"""Merge, UDA and WDA: one round, in which each site sends the leading directions of its own rows instead of a d x d matrix.

They are combined by one of three methods: FPCA's merge, which is exact while nothing was truncated, or one of the two averages of
projectors that FedPower compares with. With privacy, a site first releases its Gram matrix with noise; the rest is
post-processing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal, final, get_args

import numpy as np

from eigenveil.core.domain import Domain
from eigenveil.core.mechanism import Bounded, Exact, Mechanism
from eigenveil.core.noise import Noise
from eigenveil.core.rows import Rows, block_size, is_remote
from eigenveil.core.unit import Neighbours
from eigenveil.data.rows import Symmetric
from eigenveil.errors import require
from eigenveil.linalg import Array, Subspace, complement, merge_all, merged_edge, signed, top_eigen
from eigenveil.methods.base import (
    ALL_PAIRS,
    Components,
    Method,
    MethodPlan,
    PlanRequest,
    Scene,
    TaskContext,
    gaussian,
    leading_under_noise,
    matrix_of,
    refuse_oversample,
)
from eigenveil.privacy.floating import dense
from eigenveil.privacy.sums import bounded_count, bounded_gram
from eigenveil.tasks.base import Question, Task, require_array, require_step

__all__ = ["METHODS", "SiteSpace", "SiteSpaces", "SpacesKind"]

SpacesKind = Literal["merge", "uda", "wda"]
# In data scale, relative to the largest value: below this, a direction of a Gram matrix is rounding.
# Eigenvalues are good to about 1e-13 of the largest, and values are their roots.
_NOTHING = 3e-7
# Sites that are rehearsed one by one (`_FEW_SITES` for many columns). Further sites reuse that noise with other
# signs.
_SITES, _FEW_SITES = 16, 6
# At a site with many columns, the directions that are only noise need not be found to the last digit.
_BLOCKS: Final = 6


@final
@dataclass(frozen=True, slots=True, eq=False)
class SiteSpace:
    """What a site sends: its leading directions, in data scale, and the divisor in the average (one unless `normalise`)."""

    space: Subspace
    people: float = 1.0


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SiteSpaces(Task[Subspace | None, tuple[SiteSpace, ...], Subspace]):
    """The `rank` leading directions from those of the sites, by one of three methods.

    - "merge": sites send `width` >= rank directions with their values. Inner nodes of a tree merge them and truncate to `width`
      again. The hub takes the top of [U1 S1, U2 S2, ...] (FPCA Alg. 1 and Lemma 1). Exact if no site has more directions.
    - "uda": sites send `rank` directions, all of the same weight. The hub takes the top of sum_i V_i V_i^T (Fan et al. 2019,
      FedPower Alg. 4).
    - "wda": the same with the values: the top of sum_i V_i S_i V_i^T (Bhaskara and Wijewardena 2019, FedPower Alg. 5). With
      `normalise`, a site's Gram matrix is divided by its number of people, as printed. That number must then be public.

    The averages only determine a span, at the hub and over all sites at once. Within it, directions and values are those of the
    Gram matrix over all sites, as far as the sent directions determine it. A site with fewer directions, or without rows, sends
    fewer. If all sites together have fewer than `rank`, directions of zero weight fill the rest.

    >>> from eigenveil.core.mechanism import Exact
    >>> from eigenveil.protocols.party import run_pooled
    >>> from eigenveil.data.rows import DenseRows
    >>> task = SiteSpaces(
    ...     domain=Domain(dim=3, radius=9.0), neighbours=Neighbours.ADD_REMOVE, kind="merge", rank=1, width=2
    ... )
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
            f"{self.kind} needs a width equal to the rank, {self.rank}, got {self.width}",
        )
        require(not self.normalise or self.kind == "wda", f"normalise is for wda only, got {self.kind}")

    @property
    def sent(self) -> int:
        """How many directions a site sends at most."""
        return self.rank if self.width is None else self.width

    def start(self) -> Subspace | None:
        return None

    def ask(self, state: Subspace | None) -> Question:
        """For the leading directions; sites need no public arrays."""
        return Question()

    def require_question(self, question: Question) -> None:
        """The only step, without arrays."""
        require_step(question, steps=1, arrays=0)

    def work(self, question: Question, rows: Rows, mechanism: Mechanism) -> tuple[SiteSpace, ...]:
        """The leading directions of the released Gram matrix."""
        require(
            not self.normalise or self.neighbours.count_is_public or mechanism.scale(1.0) == 0,
            f"wda cannot divide by the number of people, which {self.neighbours.value!r} protects; pass normalise=False",
        )
        space = self._space(rows, mechanism)
        if not self.normalise:
            return (SiteSpace(space),)
        # Rounded to a whole number: the last digits of a sum of weights 1/m would reveal m.
        people = float(round(float(bounded_count(rows, neighbours=self.neighbours).value)))
        # A site without people has no directions, and still its divisor must not be zero.
        return (SiteSpace(space, max(people, 1.0)),)

    def combine(self, left: tuple[SiteSpace, ...], right: tuple[SiteSpace, ...]) -> tuple[SiteSpace, ...]:
        return left + right

    def condense(self, part: tuple[SiteSpace, ...]) -> tuple[SiteSpace, ...]:
        """All merged into one and truncated to the width: FPCA's merge. The averages have no such form."""
        require(self.kind == "merge", f"{self.kind} is an average over all sites and cannot run in a tree; use merge")
        return (SiteSpace(_merged([sent.space for sent in part], rank=self.sent)),)

    def advance(
        self, state: Subspace | None, total: tuple[SiteSpace, ...], mechanism: Mechanism, *, stretch: float = 1.0
    ) -> Subspace:
        """The leading directions of all. Noise at the hub is refused: no bound is known on how far one person moves them."""
        require(mechanism.scale(1.0) == 0, f"{self.kind} cannot have noise at the hub: add noise at the sites instead")
        spaces = [sent.space for sent in total]
        if self.kind == "merge":
            merged = _merged(spaces, rank=self.rank)
        else:
            # `_merged` adds squares of values, and a Gram matrix over its number of people has values over the root of that.
            weights = (
                np.ones(sent.space.rank) if self.kind == "uda" else sent.space.values / math.sqrt(sent.people) for sent in total
            )
            averaged = [Subspace(space.basis, values) for space, values in zip(spaces, weights, strict=True)]
            merged = _as_in_sum(_merged(averaged, rank=self.rank), spaces)
        if merged.rank == self.rank:
            return merged
        # Fewer than `rank` directions were found, so these axes leave enough directions outside their span.
        axes = np.eye(merged.dim)[:, : min(merged.dim, 2 * self.rank)]
        others = complement(axes, merged.basis)[:, : self.rank - merged.rank]
        return Subspace(np.hstack([merged.basis, others]), np.append(merged.values, np.zeros(others.shape[1])))

    def result(self, state: Subspace | None) -> Subspace | None:
        return state

    estimate = result

    def arrays(self, part: tuple[SiteSpace, ...]) -> tuple[Array, ...]:
        """A basis, (d, j), values, (j,), and the divisor, (1,), for each."""
        return tuple(a for sent in part for a in (sent.space.basis, sent.space.values, np.array([sent.people])))

    def part(self, question: Question, arrays: tuple[Array, ...]) -> tuple[SiteSpace, ...]:
        """The one subspace of a site, or of a node for all sites below it."""
        require(len(arrays) == 3, f"a part must be a basis, its values and a divisor, got {len(arrays)} arrays")
        count = int(np.shape(arrays[0])[1]) if np.ndim(arrays[0]) == 2 else 0
        require(count <= self.sent, f"a part must have at most {self.sent} directions, got {count}")
        basis = require_array(arrays[0], (self.domain.dim, count))
        people = float(require_array(arrays[2], (1,))[0])
        require(
            # The average divides by it, so a number below one would multiply the site's own weight.
            people == 1.0 if not self.normalise else people >= 1.0,
            "a part must have a divisor of 1, or a count of people",
        )
        return (SiteSpace(Subspace(basis, require_array(arrays[1], (count,))), people),)

    def _space(self, rows: Rows, mechanism: Mechanism) -> Subspace:
        """At most as many directions of these rows as are sent, without those of zero weight."""
        count, dim = rows.shape[0], self.domain.dim
        if mechanism.scale(1.0) == 0 and not rows.sparse and count < dim and not is_remote(rows):
            # Fewer numbers than the Gram matrix has. The infinite sensitivity makes every noise mechanism refuse the rows.
            blocks = [dense(self.domain, block, squared=True) for block in rows.blocks(block_size(rows))]
            bounded = Bounded(np.concatenate([np.empty((0, dim)), *blocks]), math.inf)
            few = mechanism.release(bounded, label="site rows")
            return _weighty(Subspace.of(few, rank=min(self.sent, count))) if count else _nothing(dim)
        gram = bounded_gram(rows, domain=self.domain, neighbours=self.neighbours)
        return _weighty(Subspace.of_gram(mechanism.release(gram, label="site covariance"), rank=self.sent))


def _merged(spaces: Sequence[Subspace], *, rank: int) -> Subspace:
    """`merge_all`, also where no subspace has a direction."""
    full = [space for space in spaces if space.rank > 0]
    if full:
        return _weighty(merge_all(full, rank=rank))
    return _nothing(spaces[0].dim)


def _as_in_sum(merged: Subspace, spaces: Sequence[Subspace]) -> Subspace:
    """The span of `merged`, rotated so that the sum of all sites' matrices is diagonal in it, with its values there."""
    if merged.rank == 0:
        return merged
    within = [space.values[:, None] * (space.basis.T @ merged.basis) for space in spaces]
    values, rotation = top_eigen(np.sum([part.T @ part for part in within], axis=0), rank=merged.rank)
    return Subspace(signed(merged.basis @ rotation), np.sqrt(np.maximum(values, 0.0)))


def _weighty(space: Subspace) -> Subspace:
    """The directions of nonzero weight."""
    n_kept = int((space.values > _NOTHING * space.values[0]).sum())
    return space if n_kept == space.rank else Subspace(space.basis[:, :n_kept], space.values[:n_kept])


def _nothing(dim: int) -> Subspace:
    return Subspace(np.empty((dim, 0)), np.empty(0))


@final
class Spaces(Method):
    """One of the three ways to combine directions of sites, each of which releases its own matrix."""

    places = ("sites",)
    is_additive, averages_subspaces = False, True

    def __init__(self, kind: SpacesKind) -> None:
        self.name, self.kind, merges = kind, kind, kind == "merge"
        self.phrase = "merged subspaces" if merges else kind
        self.settings = ("site",) if merges else ()
        self.runs_in_trees = merges

    def width(self, criteria: PlanRequest) -> int:
        """The rank; merges take more directions from each site."""
        if self.kind == "merge":
            return criteria.wider(max(10, criteria.rank))
        refuse_oversample(self, criteria)
        return criteria.rank

    def build_task(self, plan: MethodPlan, start_basis: Array | None, context: TaskContext) -> Components:
        """WDA as printed divides by a site's number of people, which must be public unless nothing is protected."""
        public = context.neighbours.count_is_public or not context.private
        return partial(
            SiteSpaces,
            neighbours=context.neighbours,
            kind=self.kind,
            rank=context.rank,
            width=plan.width,
            normalise=self.kind == "wda" and public,
        )

    def message_size(self, dim: int, plan: MethodPlan) -> int:
        return dim * plan.width

    def memory(self, dim: int, plan: MethodPlan) -> int:
        """A site's own matrix, its noise, its eigenvectors, and a copy."""
        return 4 * dim * dim

    def entry_noise(self, plan: MethodPlan) -> float:
        return math.sqrt(0.5)

    def noise_norm(self, dim: int, plan: MethodPlan, *, sites: int) -> float:
        """Every site has all of a matrix's noise."""
        return math.sqrt(2 * dim * sites)

    def noise_floor(self, dim: int, plan: MethodPlan, *, scale: float, spike: float, sites: int) -> float:
        """The total noise comes from the sites in equal parts."""
        return scale / math.sqrt(sites) * merged_edge(dim, plan.width, parts=sites) + spike

    def disclosure(self, width: int, *, role: str) -> str:
        return f"the {width} leading directions of this {role}'s own rows"

    def simulate(self, plan: MethodPlan, scene: Scene, *, sites: int) -> Array:
        """All sites with their own noise. Each sends the leading directions of its own rows, and the real task combines them."""
        domain, kind, near = Domain(dim=scene.dim, radius=1.0), self.kind, scene.neighbours
        task = SiteSpaces(domain=domain, neighbours=near, kind=kind, rank=scene.rank, width=plan.width)
        shift = None if scene.shift is None else scene.shift / math.sqrt(sites)
        parts: list[SiteSpace] = []
        for site in range(min(sites, _SITES if scene.dim <= ALL_PAIRS else _FEW_SITES)):
            site_scene = replace(scene, gram=scene.gram / sites, shift=shift, seed=scene.seed * _SITES + site)
            parts.extend(_sent(task, site_scene))
        # Beyond a few sites, noise that was drawn is reused with other signs. The law of the noise is the same for all signs of
        # the axes. With independent signs, every product of two different axes has over the sites the mean and the variance of
        # independent noise.
        rng, spaces = np.random.default_rng(scene.seed), [part.space for part in parts]
        for site in range(len(parts), sites):
            signs, drawn = rng.choice([-1.0, 1.0], scene.dim), spaces[site % len(spaces)]
            parts.append(SiteSpace(Subspace(drawn.basis * signs[:, None], drawn.values)))
        return task.advance(None, tuple(parts), Exact(because="the sites have added noise")).basis


METHODS: Final = tuple(map(Spaces, get_args(SpacesKind)))


def _sent(task: SiteSpaces, scene: Scene) -> tuple[SiteSpace, ...]:
    if scene.dim <= ALL_PAIRS:
        rows = Symmetric(matrix_of(scene), people=1)
        return task.work(task.ask(None), rows, gaussian(scene.multiplier, Noise.seeded(scene.seed)))
    values, vectors = leading_under_noise(
        scene.gram, scene.shift, scale=scene.scale, rank=task.sent, noise=Noise.seeded(scene.seed), blocks=_BLOCKS
    )
    return (SiteSpace(Subspace(vectors, np.sqrt(np.maximum(values, 0.0)))),)
