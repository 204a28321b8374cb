"""Rehearsals: the real tasks on a table that has the guessed spectrum, with the real noise, to see how much is captured.

All noise has the same law in every basis, so what a fit captures depends on the rows through their eigenvalues alone, and a table
in its own eigenbasis, d rows along d axes, tells as much as the private one would. Nothing private is read. The exception are
streams that are released some columns at a time: see `rehearsal_stream.py`.
"""

import math
from dataclasses import dataclass, replace
from typing import Final, final

import numpy as np
import scipy.sparse as sp

from eigenveil.data.rows import SparseRows, Symmetric
from eigenveil.linalg import Array, Subspace, orthonormal
from eigenveil.plan.choose.components import components_of, iterates
from eigenveil.plan.choose.gossip import SegmentsPlan
from eigenveil.plan.choose.sites import SitesPlan
from eigenveil.plan.forecast.late_noise import leading_under_noise
from eigenveil.privacy import (
    Domain,
    Exact,
    Gaussian,
    Ledger,
    Mechanism,
    Neighbours,
    Noise,
    gram_sensitivity,
    sum_sensitivity,
)
from eigenveil.protocols import run_pooled
from eigenveil.tasks import KeptProducts, Segments, SiteSpaces, shrunk
from eigenveil.tasks.spaces import SiteSpace

__all__ = ["Scene", "found_center", "gaussian", "judged", "rehearse_segments", "rehearse_sites", "rows_of"]

# Up to so many columns all pairs of them are released as in a fit; beyond, noise is drawn where it is looked at.
_ALL_PAIRS: Final = 320
# Sites that are rehearsed one by one, few where there are many columns; more of them see their noise again with other signs.
_SITES, _FEW_SITES = 16, 6
# Of a site with many columns, directions that are noise need not be found to the last digit.
_BLOCKS: Final = 6
# The mean is looked for again where the first look says that it lies this far out, in radii (`eigenveil.tasks.lies_far`).
_FAR: Final = 0.3


@final
@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """What is rehearsed: rows whose Gram matrix is diag(`gram`) + shift shift^T, (d,) each, in units of row_bound^2.

    `multiplier` is the noise on a sum over its sensitivity for all that the components may spend, `seed` says which noise.
    """

    gram: Array
    shift: Array | None
    rank: int
    neighbours: Neighbours
    multiplier: float
    seed: int

    @property
    def dim(self) -> int:
        """How many columns."""
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
    cosine = float(np.linalg.svd(basis[:rank], compute_uv=False)[-1])
    return min(captured, 1.0), math.sqrt(max(0.0, 1.0 - cosine**2))


def rehearse_sites(plan: SitesPlan, scene: Scene, *, sites: int = 1) -> Array:
    """The directions, (d, k), that a fit as planned would find. `sites` matter to merges alone: all others add up what they
    send, and `scene.multiplier` is the noise on the sum; of a merge it is that of one site."""
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
            gaussian(scene.multiplier, Noise.seeded(scene.seed)),
        )
        return Subspace.of_gram(released, rank=scene.rank, overwrite=True).basis
    rows, radius = rows_of(scene)
    begin = None
    if iterates(plan.method):
        begin = orthonormal(np.random.default_rng(scene.seed).standard_normal((scene.dim, plan.width)))
    components = components_of(plan, begin, neighbours=scene.neighbours, rank=scene.rank, private=True)
    task = components(Domain(scene.dim, radius, claimed=False))
    if isinstance(task, KeptProducts):
        # What the products say before the last one is not looked at here.
        task = replace(task, told=False)
    found: Subspace = run_pooled(task, rows, gaussian(scene.multiplier / radius**2, Noise.seeded(scene.seed)))
    return found.basis


def rehearse_segments(plan: SegmentsPlan, scene: Scene) -> Array:
    """The directions, (d, k), that peers would find one after another.

    A start is z = sum_j x_j q_j with hidden scores q_j of many people: normal, of covariance (variance of a score) times the Gram
    matrix, and so is that of the d rows here if their scores are normal and not cut. So the clip is moved out of
    the way, by the radius that these longer rows need, which also makes the noise what it is for rows in the unit ball: at a
    start clip * radius * multiplier / radius^2 for a clip of radius times the true one.
    """
    rows, radius = rows_of(scene)
    task = Segments(
        Domain(scene.dim, radius, claimed=False),
        scene.neighbours,
        scene.rank,
        plan.rounds,
        plan.shares,
        Noise.seeded((scene.seed << 8) + 1),
        plan.deviation * math.sqrt(_clipped_variance(plan.clip / plan.deviation)),
        plan.clip * radius,
        plan.tolerance,
    )
    return run_pooled(task, rows, gaussian(scene.multiplier / radius**2, Noise.seeded(scene.seed))).basis


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
    """How far off, (d,), in units of row_bound, the mean is found, and in how many of the steps with these `shares`.

    An error e in it adds people * e e^T to the Gram matrix. `far` says that the mean lies so far out that, where noise lets it be
    seen, it is looked for again from there; otherwise it lies half as far out as that would take.
    """
    entry = multiplier * sum_sensitivity(1.0, neighbours) / people
    sizes = [entry / math.sqrt(share) * math.sqrt(dim) for share in shares]
    errors = [size / math.sqrt(dim) * rng.standard_normal(dim) for size in sizes[:2]]
    mean = rng.standard_normal(dim)
    mean *= (2 if far else 0.5) * _FAR / float(np.linalg.norm(mean))
    if sizes[0] >= 1:
        # Noise as large as the ball: the fit stays where it began looking.
        return mean, 1
    first = shrunk(mean + errors[0], noise=sizes[0]) - mean
    if len(shares) == 1 or sizes[0] >= _FAR or not far:
        return first, 1
    return first + shrunk(errors[1] - first, noise=sizes[1]), 2


def gaussian(multiplier: float, noise: Noise) -> Mechanism:
    """The mechanism of a fit, on a ledger without limits: nobody is there to be charged."""
    return Gaussian(multiplier, Ledger(epsilon=math.inf, delta=0.5), noise)


def _matrix(scene: Scene) -> Array:
    matrix = np.diag(scene.gram)
    if scene.shift is not None:
        matrix += np.outer(scene.shift, scene.shift)
    return matrix


def rows_of(scene: Scene) -> tuple[SparseRows, float]:
    """A table with the scene's Gram matrix, and the radius of a ball that holds its rows.

    Rows stand for many people and are longer than one. Sensitivities grow with the square of the radius, so that noise of
    multiplier / radius^2 is that of rows in the unit ball.
    """
    axes = sp.diags_array(np.sqrt(scene.gram)).tocsr()
    table = axes if scene.shift is None else sp.vstack([axes, sp.csr_array(scene.shift[None, :])]).tocsr()
    longest = math.sqrt(float(scene.gram[0]))
    if scene.shift is not None:
        longest = max(longest, float(np.linalg.norm(scene.shift)))
    return SparseRows(sp.csr_array(table)), max(1.0, longest * (1 + 1e-9))


def _merged(plan: SitesPlan, scene: Scene, sites: int) -> Array:
    """Sites release their own matrices, each its part of the rows, and send what stands out; merged by the real task.

    Beyond a few sites, noise that was drawn is used again with other signs. The law of the noise is the same for all signs of
    the axes, and with independent signs every product of two different axes has, over sites, the mean and the variance of
    independent noise.
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
        return task.work(task.ask(None), rows, gaussian(scene.multiplier, Noise.seeded(scene.seed)))
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
    """The variance of a standard normal that is cut at +-`clip`: E min(z^2, c^2)."""
    inside = math.erf(clip / math.sqrt(2))
    density = math.exp(-clip * clip / 2) / math.sqrt(2 * math.pi)
    return inside - 2 * clip * density + clip * clip * (1 - inside)
