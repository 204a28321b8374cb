"""Rehearsals of streams that are released block by block: the real tracker on blocks with the guessed spectrum."""

import math
from functools import reduce
from typing import Final

import numpy as np

from eigenveil.linalg import Array, Subspace, merge, orthonormal
from eigenveil.plan.forecast.rehearsal import Scene, gaussian
from eigenveil.privacy import Domain, Noise
from eigenveil.tracking import SlicedTracker, SumTerms

__all__ = ["rehearse_blocks"]

# Numbers of columns, over all blocks, that are released one by one; more blocks see their noise again with other signs.
_COLUMNS, _FEWEST, _MOST_RELEASED = 2400, 10, 48
# By then what is kept has come as close to what it tends to as matters.
_MOST: Final = 500
# A last block with a smaller share of the rows than this is none.
_NOTHING_LEFT: Final = 1e-9


def rehearse_blocks(scene: Scene, *, share: float, oversample: int) -> Array:
    """The directions, (d, k), when blocks with this `share` of the rows each, the last one with what is left, are released on
    their own and merged one after another.

    A block is released some columns at a time, and how much of a direction each of them has matters: rows are turned at random,
    as one is not to expect a table whose columns are its directions. The first blocks and the last one are released by the real
    tracker. For the others noise that was drawn is used again with other signs of the directions, for which its law is the same.
    """
    noise, rng = Noise.seeded(scene.seed), np.random.default_rng(scene.seed)
    round_ = orthonormal(rng.standard_normal((scene.dim, scene.dim)))
    whole = math.floor(1 / share + 1e-9)
    left = 1 - whole * share
    count = min(whole, max(_FEWEST, min(_MOST_RELEASED, _COLUMNS // scene.dim)))
    released = [_released(scene, share, oversample, round_, noise) for _ in range(count)]
    spaces = released[:]
    for block in range(count, min(whole, _MOST)):
        drawn = released[block % count]
        spaces.append(Subspace(drawn.basis * rng.choice([-1.0, 1.0], scene.dim)[:, None], drawn.values))
    if left > _NOTHING_LEFT:
        spaces.append(_released(scene, left, oversample, round_, noise))
    width = min(scene.rank + oversample, scene.dim)
    return reduce(lambda joint, space: merge(joint, space, rank=width), spaces).basis[:, : scene.rank]


def _released(scene: Scene, share: float, oversample: int, round_: Array, noise: Noise) -> Subspace:
    """What a block with this `share` of the rows shows on its own, with axes along the directions of the rows.

    Rows stand for many people and are longer than one: as in `rows_of`, noise is that of rows in the unit ball.
    """
    rows = np.sqrt(scene.gram * share)[:, None] * round_.T
    radius = max(1.0, math.sqrt(float(scene.gram[0]) * share) * (1 + 1e-9))
    terms = SumTerms(Domain(scene.dim, radius), scene.neighbours, center=False)
    tracker = SlicedTracker(scene.rank, terms, oversample)
    found = tracker.step(tracker.start(scene.dim), rows, gaussian(scene.multiplier / radius**2, noise)).space
    return Subspace(round_.T @ found.basis, found.values)
