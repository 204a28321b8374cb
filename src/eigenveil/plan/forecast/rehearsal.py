"""What is rehearsed beside the methods: the search for a mean, and streams that are released block by block."""

import math
from functools import reduce
from typing import Final

import numpy as np

from eigenveil.core.domain import Domain
from eigenveil.core.noise import Noise
from eigenveil.core.unit import Neighbours, sum_sensitivity
from eigenveil.linalg import Array, Subspace, merge, orthonormal
from eigenveil.methods.scene import Scene, gaussian
from eigenveil.tasks import shrunk
from eigenveil.trackers import SlicedTracker, SumTerms

__all__ = [
    "found_center",
    "found_inside",
    "judged",
    "rehearse_blocks",
]

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


def _released(scene: Scene, share: float, oversample: int, rotation: Array, noise: Noise) -> Subspace:
    """What a block with this `share` of the rows releases, in coordinates along the directions of the rows.

    Each row stands for many people, so its norm exceeds one. As in `rows_of`, the noise is that of rows in the unit
    ball.
    """
    rows = np.sqrt(scene.gram * share)[:, None] * rotation.T
    radius = max(1.0, math.sqrt(float(scene.gram[0]) * share) * (1 + 1e-9))
    terms = SumTerms(domain=Domain(dim=scene.dim, radius=radius), neighbours=scene.neighbours, center=False)
    tracker = SlicedTracker(rank=scene.rank, terms=terms, oversample=oversample)
    found = tracker.step(tracker.start(scene.dim), rows, gaussian(scene.multiplier / radius**2, noise)).space
    return Subspace(rotation.T @ found.basis, found.values)
