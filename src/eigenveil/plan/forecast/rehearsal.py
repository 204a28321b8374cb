"""Rehearsals: the real tasks with the real noise, on a table with the guessed spectrum, to see how much they capture.

All noise has the same law in every basis, so what a fit captures depends on the rows through their eigenvalues alone.
A table in its own eigenbasis, d rows along d axes, therefore tells as much as the private one. Nothing private is
read. The exception is a stream that is released in slices of columns: see `rehearse_blocks`.
"""

import math
from dataclasses import dataclass, replace
from functools import reduce
from typing import Final, final

import numpy as np

from eigenveil.core.domain import Domain
from eigenveil.core.ledger import Ledger
from eigenveil.core.mechanism import Exact, Gaussian, Mechanism
from eigenveil.core.noise import Noise
from eigenveil.core.rows import Rows
from eigenveil.core.unit import Neighbours, gram_sensitivity, sum_sensitivity
from eigenveil.data.rows import DenseRows, SparseRows, Symmetric
from eigenveil.linalg import Array, Subspace, merge, orthonormal, signed
from eigenveil.linalg.normals import normals
from eigenveil.methods.krylov import KeptProducts
from eigenveil.methods.segments import Segments
from eigenveil.methods.spaces import SiteSpace, SiteSpaces
from eigenveil.plan.choose.gossip import SegmentsPlan
from eigenveil.plan.choose.sites import SitesPlan, components_of, iterates
from eigenveil.protocols import run_pooled
from eigenveil.tasks import shrunk
from eigenveil.trackers import SlicedTracker, SumTerms

__all__ = [
    "Scene",
    "found_center",
    "found_inside",
    "judged",
    "leading_under_noise",
    "rehearse_blocks",
    "rehearse_segments",
    "rehearse_sites",
]

# Up to this many columns the whole noise matrix is drawn, as in a fit. Beyond, `leading_under_noise` draws only the
# products it needs.
_ALL_PAIRS: Final = 320
# Up to here rows are dense in memory; zeros cost less than the bookkeeping of a sparse matrix.
_FEW_COLUMNS: Final = 64
# Sites that are rehearsed one by one (`_FEW_SITES` for many columns). Further sites reuse that noise with other
# signs.
_SITES, _FEW_SITES = 16, 6
# At a site with many columns, the directions that are only noise need not be found to the last digit.
_BLOCKS: Final = 6
# The mean is searched for again if it seems to lie this far out, in units of row_bound (`eigenveil.tasks.lies_far`).
_FAR: Final = 0.3
# In a search for a bound around a mean that lies far out, the first ball is this many times the last. The last steps are
# repeated if the error of the mean is more than this over the bound (`eigenveil.tasks.fit.search`).
_WIDE, _POOR = 4.0, 1 / 3
# Blocks that are released with their own noise: `_COLUMNS` over the number of columns, within the two limits. Further
# blocks reuse that noise with other signs.
_COLUMNS, _FEWEST, _MOST_RELEASED = 2400, 10, 48
# After this many blocks the merged space has converged well enough.
_MOST_BLOCKS: Final = 500
# A last block with a smaller share of the rows than this is a rounding error.
_NOTHING_LEFT: Final = 1e-9
# The width of a Lanczos block: this many times the rank, or this much wider if that is more. And the most blocks.
_WIDER, _BEYOND, BLOCKS = 2, 8, 16
# Blocks are added until the captured share changes by no more than this.
_STILL: Final = 5e-4


@final
@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """What is rehearsed: rows whose Gram matrix is diag(`gram`) + shift shift^T, (d,) each, in units of row_bound^2.

    `multiplier` is the noise on a sum over its sensitivity, if it gets the components' whole budget. `seed` draws the
    noise.
    """

    gram: Array
    shift: Array | None
    rank: int
    neighbours: Neighbours
    multiplier: float
    seed: int

    @property
    def dim(self) -> int:
        """The number of columns."""
        return len(self.gram)

    @property
    def scale(self) -> float:
        """The size of the noise on an entry of the Gram matrix."""
        return self.multiplier * gram_sensitivity(1.0, self.neighbours)


def judged(basis: Array, values: Array) -> tuple[float, float]:
    """The captured variance of `basis`, (d, k), over the best possible, and its largest sine to the best space.

    `values`, (d,), are the eigenvalues along the axes, largest first.

    >>> judged(np.eye(3)[:, 1:2], np.array([4.0, 1.0, 0.0]))
    (0.25, 1.0)
    """
    rank = basis.shape[1]
    captured = float(values @ np.square(basis).sum(axis=1) / values[:rank].sum())
    # The best space is spanned by the first axes, so the cosines are singular values of the first rows.
    cosine = float(np.linalg.svd(basis[:rank], compute_uv=False)[-1])
    return min(captured, 1.0), math.sqrt(max(0.0, 1.0 - cosine**2))


def rehearse_sites(plan: SitesPlan, scene: Scene, *, sites: int = 1) -> Array:
    """The directions, (d, k), that the planned fit would find.

    `sites` matters to merges alone. All other methods add up what sites send, and `scene.multiplier` is the noise on
    the sum. For a merge it is the noise of one site.
    """
    if plan.method == "merge":
        return _merged(plan, scene, sites)
    if plan.method == "covariance" and scene.dim > _ALL_PAIRS:
        drawn = leading_under_noise(
            scene.gram, scene.shift, scale=scene.scale, rank=scene.rank, noise=Noise.seeded(scene.seed)
        )
        return drawn[1]
    if plan.method == "covariance":
        components = components_of(plan, None, neighbours=scene.neighbours, rank=scene.rank, private=True)
        released = run_pooled(
            components(Domain(scene.dim, 1.0)),
            Symmetric(_matrix(scene), people=1),
            _gaussian(scene.multiplier, Noise.seeded(scene.seed)),
        )
        return Subspace.of_gram(released, rank=scene.rank, overwrite=True).basis
    rows, radius = _rows_of(scene)
    begin = None
    if iterates(plan.method):
        begin = orthonormal(np.random.default_rng(scene.seed).standard_normal((scene.dim, plan.width)))
    components = components_of(plan, begin, neighbours=scene.neighbours, rank=scene.rank, private=True)
    task = components(Domain(scene.dim, radius, claimed=False))
    if isinstance(task, KeptProducts):
        # Only the last result matters here, so intermediate ones are not computed.
        task = replace(task, told=False)
    found: Subspace = run_pooled(task, rows, _gaussian(scene.multiplier / radius**2, Noise.seeded(scene.seed)))
    return found.basis


def rehearse_segments(plan: SegmentsPlan, scene: Scene) -> Array:
    """The directions, (d, k), that peers would find one after another.

    A start is z = sum_j x_j q_j with hidden scores q_j of many people. It is normal, with covariance (variance of a
    score) times the Gram matrix. The d rows here give the same law if their scores are normal and not clipped. So the
    clip is multiplied by the radius that these rows of larger norm need, which puts it out of reach. The noise at a
    start is then clip * radius * multiplier / radius^2 with a clip of radius times the true one: that of rows in the
    unit ball.
    """
    rows, radius = _rows_of(scene)
    task = Segments(
        Domain(scene.dim, radius, claimed=False),
        scene.neighbours,
        scene.rank,
        plan.rounds,
        plan.shares,
        # The hidden scores must not share a stream with the noise below.
        Noise.seeded((scene.seed << 8) + 1),
        plan.deviation * math.sqrt(_clipped_variance(plan.clip / plan.deviation)),
        plan.clip * radius,
        plan.tolerance,
    )
    return run_pooled(task, rows, _gaussian(scene.multiplier / radius**2, Noise.seeded(scene.seed))).basis


def rehearse_blocks(scene: Scene, *, share: float, oversample: int) -> Array:
    """The directions, (d, k), of a stream whose blocks are released on their own and merged one after another.

    Each block has this `share` of the rows, and the last one has what is left. A block is released in slices of
    columns, so it matters how much of a direction each column has. The rows are rotated at random, as columns are
    rarely aligned with the directions. The real tracker releases the first blocks and the last one. The others reuse
    that noise with other signs of the directions, for which its law is the same.
    """
    noise, rng = Noise.seeded(scene.seed), np.random.default_rng(scene.seed)
    rotation = orthonormal(rng.standard_normal((scene.dim, scene.dim)))
    whole = math.floor(1 / share + 1e-9)
    left = 1 - whole * share
    count = min(whole, max(_FEWEST, min(_MOST_RELEASED, _COLUMNS // scene.dim)))
    released = [_released(scene, share, oversample, rotation, noise) for _ in range(count)]
    spaces = released[:]
    for block in range(count, min(whole, _MOST_BLOCKS)):
        drawn = released[block % count]
        spaces.append(Subspace(drawn.basis * rng.choice([-1.0, 1.0], scene.dim)[:, None], drawn.values))
    if left > _NOTHING_LEFT:
        spaces.append(_released(scene, left, oversample, rotation, noise))
    width = min(scene.rank + oversample, scene.dim)
    return reduce(lambda joint, space: merge(joint, space, rank=width), spaces).basis[:, : scene.rank]


def found_center(
    dim: int,
    *,
    people: float,
    shares: tuple[float, ...],
    multiplier: float,
    neighbours: Neighbours,
    far: bool,
    rng: np.random.Generator,
) -> tuple[Array, int]:
    """The error of the private mean, (d,), in units of row_bound, and the number of steps the search took, of these
    `shares`.

    An error e adds people * e e^T to the Gram matrix. If `far`, the mean lies so far out that the search takes a
    second step from there, where noise lets it see that. Otherwise it lies half as far out as would trigger that.
    """
    entry = multiplier * sum_sensitivity(1.0, neighbours) / people
    sizes = [entry / math.sqrt(share) * math.sqrt(dim) for share in shares]
    errors = [size / math.sqrt(dim) * rng.standard_normal(dim) for size in sizes[:2]]
    mean = rng.standard_normal(dim)
    mean *= (2 if far else 0.5) * _FAR / float(np.linalg.norm(mean))
    if sizes[0] >= 1:
        # The noise is as large as the ball, so the search stays where it started.
        return mean, 1
    first = shrunk(mean + errors[0], noise=sizes[0]) - mean
    if len(shares) == 1 or sizes[0] >= _FAR or not far:
        return first, 1
    return first + shrunk(errors[1] - first, noise=sizes[1]), 2


def found_inside(
    dim: int,
    *,
    people: float,
    shares: tuple[float, ...],
    steps: tuple[int, ...],
    multiplier: float,
    neighbours: Neighbours,
    far: bool,
    rng: np.random.Generator,
) -> tuple[Array, int]:
    """The same where a bound or units are found, too: `steps` release the mean, each inside what was found before it.

    If `far`, the first mean of a search for a bound is of rows in a ball several times as large. If that leaves it
    poor, the last two steps are repeated, as in `BoundSearch`.
    """
    entry = multiplier * sum_sensitivity(1.0, neighbours) / people
    sizes = [entry / math.sqrt(shares[step]) * math.sqrt(dim) for step in steps]
    last, start = len(sizes) - 1, np.zeros(dim)
    if len(sizes) > 1:
        reach = _WIDE if far else 1.0
        doubt = min(reach, reach * sizes[0])
        # The error before the last mean: noise, or as far as the ball reaches where noise is larger.
        start = rng.standard_normal(dim)
        start *= min(doubt, 1.0) / float(np.linalg.norm(start))
        last = 2 if doubt > _POOR and min(1.0, sizes[1]) < doubt / 2 else 1
    if sizes[last] >= 1:
        return start, steps[last] + 1
    error = sizes[last] / math.sqrt(dim) * rng.standard_normal(dim)
    return start + shrunk(error - start, noise=sizes[last]), steps[last] + 1


def _gaussian(multiplier: float, noise: Noise) -> Mechanism:
    """The mechanism of a fit, on a ledger without limits: a rehearsal reads no one's data, so there is nothing to
    charge."""
    return Gaussian(multiplier, Ledger(epsilon=math.inf, delta=0.5), noise)


def _matrix(scene: Scene) -> Array:
    matrix = np.diag(scene.gram)
    if scene.shift is not None:
        matrix += np.outer(scene.shift, scene.shift)
    return matrix


def _rows_of(scene: Scene) -> tuple[Rows, float]:
    """A table with the scene's Gram matrix, and the radius of a ball that contains its rows.

    Each row stands for many people, so its norm exceeds one. Sensitivities grow with the square of the radius, so a
    noise of multiplier / radius^2 equals that of rows in the unit ball.
    """
    longest = math.sqrt(float(scene.gram[0]))
    if scene.shift is not None:
        longest = max(longest, float(np.linalg.norm(scene.shift)))
    return _table_of(np.sqrt(scene.gram), scene.shift), max(1.0, longest * (1 + 1e-9))


def _table_of(axes: Array, shift: Array | None) -> Rows:
    """The rows with these lengths along the axes, (d,), and the shift as one more row. Both forms have the same numbers."""
    if len(axes) <= _FEW_COLUMNS:
        # A sparse matrix of so few columns takes longer to make than to multiply with.
        table = np.diag(axes)
        return DenseRows(table if shift is None else np.vstack([table, shift]))
    import scipy.sparse as sp

    sparse = sp.diags_array(axes).tocsr()
    return SparseRows(sp.csr_array(sparse if shift is None else sp.vstack([sparse, sp.csr_array(shift[None, :])])))


def _merged(plan: SitesPlan, scene: Scene, sites: int) -> Array:
    """Each site releases the matrix of its own rows and sends its leading directions. The real task merges them.

    Beyond a few sites, noise that was drawn is reused with other signs. The law of the noise is the same for all
    signs of the axes. With independent signs, every product of two different axes has over the sites the mean and the
    variance of independent noise.
    """
    task = SiteSpaces(Domain(scene.dim, 1.0), scene.neighbours, kind="merge", rank=scene.rank, width=plan.width)
    rng = np.random.default_rng(scene.seed)
    shift = None if scene.shift is None else scene.shift / math.sqrt(sites)
    parts: list[SiteSpace] = []
    for site in range(min(sites, _SITES if scene.dim <= _ALL_PAIRS else _FEW_SITES)):
        one = replace(scene, gram=scene.gram / sites, shift=shift, seed=scene.seed * _SITES + site)
        parts.extend(_sent(task, one))
    spaces = [part.space for part in parts]
    for site in range(len(parts), sites):
        signs = rng.choice([-1.0, 1.0], scene.dim)
        drawn = spaces[site % len(spaces)]
        parts.append(SiteSpace(Subspace(drawn.basis * signs[:, None], drawn.values)))
    return task.advance(None, tuple(parts), Exact(because="the sites have added noise")).basis


def _sent(task: SiteSpaces, scene: Scene) -> tuple[SiteSpace, ...]:
    if scene.dim <= _ALL_PAIRS:
        rows = Symmetric(_matrix(scene), people=1)
        return task.work(task.ask(None), rows, _gaussian(scene.multiplier, Noise.seeded(scene.seed)))
    values, vectors = leading_under_noise(
        scene.gram,
        scene.shift,
        scale=scene.scale,
        rank=task.sent,
        noise=Noise.seeded(scene.seed),
        blocks=_BLOCKS,
    )
    return (SiteSpace(Subspace(vectors, np.sqrt(np.maximum(values, 0.0)))),)


def _clipped_variance(clip: float) -> float:
    """The variance of a standard normal clipped at +-`clip`: E min(z^2, c^2)."""
    inside = math.erf(clip / math.sqrt(2))
    density = math.exp(-clip * clip / 2) / math.sqrt(2 * math.pi)
    return inside - 2 * clip * density + clip * clip * (1 - inside)


def _released(scene: Scene, share: float, oversample: int, rotation: Array, noise: Noise) -> Subspace:
    """What a block with this `share` of the rows releases, in coordinates along the directions of the rows.

    Each row stands for many people, so its norm exceeds one. As in `_rows_of`, the noise is that of rows in the unit
    ball.
    """
    rows = np.sqrt(scene.gram * share)[:, None] * rotation.T
    radius = max(1.0, math.sqrt(float(scene.gram[0]) * share) * (1 + 1e-9))
    terms = SumTerms(Domain(scene.dim, radius), scene.neighbours, center=False)
    tracker = SlicedTracker(scene.rank, terms, oversample)
    found = tracker.step(tracker.start(scene.dim), rows, _gaussian(scene.multiplier / radius**2, noise)).space
    return Subspace(rotation.T @ found.basis, found.values)


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
    span, known, image = np.empty((dim, 0)), np.empty((dim, 0)), np.empty((dim, 0))
    share, best = -1.0, float(values[:rank].sum())
    while True:
        drawn = _product(span, known, block, scale, noise)
        whole = values[:, None] * block + drawn
        if shift is not None:
            whole += np.outer(shift, shift @ block)
        span, known, image = np.hstack([span, block]), np.hstack([known, drawn]), np.hstack([image, whole])
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


def _product(span: Array, known: Array, block: Array, scale: float, noise: Noise) -> Array:
    """N X for X = `block`, (d, p), given N Q = `known` for Q = `span`, as in the proof above."""
    drawn = normals(noise, block.shape) * (scale / math.sqrt(2))
    drawn -= span @ (span.T @ drawn)
    drawn -= block @ (block.T @ drawn)
    square = normals(noise, (block.shape[1], block.shape[1])) * scale
    drawn += block @ ((square + square.T) / 2)
    drawn += span @ (known.T @ block)
    return drawn
