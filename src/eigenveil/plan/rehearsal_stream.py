"""Rehearsals of streams that are released block by block: the real tracker on blocks with the guessed spectrum."""

import math
from dataclasses import replace
from functools import reduce
from typing import Final

import numpy as np

from eigenveil.linalg import Array, Subspace, merge
from eigenveil.plan.rehearsal import Scene, gaussian, rows_of
from eigenveil.privacy import Domain, Noise
from eigenveil.tracking import SlicedTracker, Terms

__all__ = ["rehearse_blocks"]

# Numbers of columns, over all blocks, that are released one by one; more blocks see their noise again with other signs.
_COLUMNS, _FEWEST, _MOST_RELEASED = 2400, 16, 48
# By then what is kept has come as close to what it tends to as matters.
_MOST: Final = 500
# A last block with a smaller share of the rows than this is none.
_NOTHING_LEFT: Final = 1e-9


def rehearse_blocks(scene: Scene, *, share: float, oversample: int) -> Array:
    """The directions, (d, k), when blocks with this `share` of the rows each, the last one with what is left, are released on
    their own and merged one after another.

    The first blocks and the last one are released by the real tracker. For the others noise that was drawn is used again with
    other signs of the axes, for which its law is the same.
    """
    tracker = SlicedTracker(scene.rank, Terms(Domain(scene.dim, 1.0), scene.neighbours, center=False), oversample)
    whole = math.floor(1 / share + 1e-9)
    left = 1 - whole * share
    count = min(whole, max(_FEWEST, min(_MOST_RELEASED, _COLUMNS // scene.dim)))
    noise = Noise.seeded(scene.seed)
    released = _released(tracker, scene, share, count, noise)
    rng, width = np.random.default_rng(scene.seed), min(scene.rank + oversample, scene.dim)
    spaces = released[:]
    for block in range(count, min(whole, _MOST)):
        drawn = released[block % count]
        spaces.append(Subspace(drawn.basis * rng.choice([-1.0, 1.0], scene.dim)[:, None], drawn.values))
    if left > _NOTHING_LEFT:
        spaces += _released(tracker, scene, left, 1, noise)
    return reduce(lambda joint, space: merge(joint, space, rank=width), spaces).basis[:, : scene.rank]


def _released(tracker: SlicedTracker, scene: Scene, share: float, count: int, noise: Noise) -> list[Subspace]:
    """What so many blocks with this `share` of the rows show, each on its own."""
    rows, radius = rows_of(replace(scene, gram=scene.gram * share, shift=None))
    terms = replace(tracker.terms, domain=Domain(scene.dim, radius))
    alone = replace(tracker, terms=terms)
    mechanism = gaussian(scene.multiplier / radius**2, noise)
    return [alone.step(alone.start(scene.dim), rows.values, mechanism).space for _ in range(count)]
