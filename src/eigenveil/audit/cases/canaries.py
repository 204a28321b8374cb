"""Canaries, people made to be noticed, and scores that notice them. Cases of all kinds use it."""

import math
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from eigenveil.core.accounting import Budget
from eigenveil.errors import require
from eigenveil.linalg import Array, Subspace
from eigenveil.privacy import Guarantee

__all__ = [
    "enough_people",
    "gram_of",
    "lifted",
    "moved_by_one",
    "require_guarantee",
    "symmetric_noise",
    "tossed",
]

# This many people along each axis keep all eigenvalues of a released matrix above zero, so that they are released unclipped.
_LIFT: Final = 400
# Standard deviations. A normal beyond 8 has probability 1e-15.
_FAR: Final = 8.0
# It takes two more runs to see how far a canary moves the releases, so only one run in this many does it. A little is
# subtracted, because another canary may also move slightly with a mean.
_SELDOM: Final = 8
_A_HAIR: Final = 1e-3


def tossed(count: int, rng: Generator) -> NDArray[np.bool_]:
    """Which of `count` canaries are present, by one toss of a fair coin for each."""
    return np.asarray(rng.integers(2, size=count), dtype=bool)


def lifted(dim: int, *, length: float, people: int = _LIFT) -> Array:
    """Rows, (people * dim, dim), of norm `length` along every axis: their Gram matrix is far above the noise everywhere."""
    return np.repeat(length * np.eye(dim), people, axis=0)


def gram_of(subspace: Subspace) -> Array:
    """The Gram matrix, (d, d), whose decomposition is a released subspace of full rank."""
    matrix: Array = (subspace.basis * np.square(subspace.values)) @ subspace.basis.T
    return matrix


def enough_people(dim: int, *, deviation: float) -> int:
    """How many rows of norm one along each axis keep a released Gram matrix, (dim, dim), above zero in all directions.

    Entries of the noise have this `deviation` on the diagonal and 1 / sqrt(2) of it off the diagonal. Then its norm is at most
    sqrt(2 dim) deviation on average, and its tail beyond that is a normal's of this deviation (Davidson and Szarek 2001). Above
    zero, a subspace of full rank shows the matrix as it was released. Negative eigenvalues would be set to zero.

    >>> enough_people(8, deviation=1.0)
    13
    """
    return math.ceil(deviation * (math.sqrt(2 * dim) + _FAR)) + 1


def symmetric_noise(residual: Array, *, deviation: float) -> Array:
    """Entries of symmetric noise, (d, d), on and above the diagonal, each in units of the deviation that it should have.

    That is `deviation` on the diagonal, and 1 / sqrt(2) of it off the diagonal.

    >>> symmetric_noise(np.array([[2.0, 1.0], [1.0, 0.0]]), deviation=2.0).round(9).tolist()
    [1.0, 0.0, 0.707106781]
    """
    beside: Array = residual[np.triu_indices(len(residual), 1)] * math.sqrt(2)
    return np.concatenate([np.diag(residual), beside]) / deviation


def moved_by_one(
    released: Callable[[NDArray[np.bool_], int], Sequence[Array]], present: NDArray[np.bool_], rng: Generator
) -> float:
    """How far one random canary moves all releases together; zero in the many runs that do not look at it.

    All releases for given tosses and a given seed are `released`, in units of the deviation that was charged. The same seed
    draws the same noise. So runs with the canary and without it differ exactly by what the canary moved,
    whatever it was clipped to, and whatever it should have been clipped to.

    >>> there, rng = np.array([True, False]), np.random.default_rng(0)
    >>> far = [moved_by_one(lambda tossed, seed: [3 * tossed.astype(float)], there, rng) for _ in range(20)]
    >>> sorted({round(one, 3) for one in far})
    [0.0, 2.997]
    """
    # Drawn in every run, used in few: the draws of a run must not depend on whether it looks.
    looked_at, which, seed = int(rng.integers(_SELDOM)), int(rng.integers(present.size)), int(rng.integers(2**31))
    if looked_at > 0:
        return 0.0
    other = present.copy()
    other.flat[which] = not other.flat[which]
    pairs = zip(released(present, seed), released(other, seed), strict=True)
    return (1 - _A_HAIR) * math.hypot(*(float(np.linalg.norm(one - two)) for one, two in pairs))


def require_guarantee(guarantee: Guarantee, budget: Budget) -> None:
    """Refuse a result that does not guarantee exactly the budget it was given: the case would test another claim.

    >>> require_guarantee(Guarantee.none("exact PCA was asked for"), Budget(1.0, 1e-6))
    Traceback (most recent call last):
    ...
    ValueError: the claim is (1.0, 1e-06), but the guarantee says (None, None)
    """
    require(
        (guarantee.epsilon, guarantee.delta) == (budget.epsilon, budget.delta),
        f"the claim is ({budget.epsilon}, {budget.delta}), but the guarantee says ({guarantee.epsilon}, {guarantee.delta})",
    )
