"""What `PrivatePCA` shows of canaries in one table, to an adversary who knows everything but the tosses.

Such an adversary can subtract all others from the release. A Gram matrix of full rank shows as it was released, so the score of
a canary x is what is left along x x^T: the likelihood ratio.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from eigenveil.audit.case import Claim, Trial, mu_of
from eigenveil.audit.cases.canaries import (
    enough_people,
    gram_of,
    lifted,
    moved_by_one,
    require_guarantee,
    symmetric_noise,
    tossed,
)
from eigenveil.core.accounting import Budget
from eigenveil.errors import require
from eigenveil.estimators import PrivatePCA
from eigenveil.linalg import Array
from eigenveil.tasks.fit.split import split_budget

__all__ = ["AXES", "BUDGET", "DIM", "blanked", "fitted", "guarantee_of", "joined", "replaced", "unshrunk"]

DIM: Final = 16
AXES: Final = np.eye(DIM)
# About mu = 1.2: noise a fifth too small moves the rate of right guesses from 73% to 78%.
BUDGET: Final = Budget(4.0, 1e-3)

Tosses = NDArray[np.bool_]


def guarantee_of(budget: Budget) -> Claim:
    """The claim of a fitted `PrivatePCA`."""
    return Claim.of(budget, "PrivatePCA's guarantee")


def fitted(
    rows: Any,
    budget: Budget,
    state: int | None,
    *,
    estimator: type[PrivatePCA] = PrivatePCA,
    components: int | None = None,
    **settings: Any,
) -> PrivatePCA:
    """A fit of `rows` for all of `budget`; by default rows of norm one around zero, and one noisy Gram matrix."""
    usual: dict[str, Any] = {"row_bound": 1.0, "center": None, "method": "covariance", "neighbours": "zero-out"}
    pca = estimator(
        components, epsilon=budget.epsilon, delta=budget.delta, random_state=state, **(usual | settings)
    ).fit(rows)
    require_guarantee(pca.guarantee_, budget)
    return pca


def blanked(
    budget: Budget,
    rng: Generator,
    state: int | None,
    *,
    given: Array,
    bounded: Array,
    scale: Array | float = 1.0,
    rows_each: Sequence[int] | int = 1,
    deviation: float | None = None,
    **settings: Any,
) -> Trial:
    """All of a released Gram matrix, from a table with a canary for each row of `given`, (m, d), present or blank.

    Each canary should have become its row of `bounded`, (m, d), in units of `scale`; these are orthogonal. It has `rows_each`
    rows. The noise has the `deviation`, by default the largest squared norm over mu.
    """
    dim = given.shape[1]
    squares = np.square(bounded).sum(axis=1)
    noise = float(squares.max()) / mu_of(budget) if deviation is None else deviation
    present = tossed(len(given), rng)
    base = lifted(dim, length=1.0, people=enough_people(dim, deviation=noise))
    people = np.repeat(np.arange(len(given)), rows_each)
    if len(people) > len(given):
        # Everybody else has one row, and an identifier beyond those of the canaries.
        settings["person"] = np.concatenate([len(given) + np.arange(len(base)), people])

    def released(there: Tosses, seed: int | None) -> Array:
        table = np.vstack([base * scale, np.where(there[:, None], given, 0.0)[people]])
        return gram_of(fitted(table, budget, seed, scale=None if np.isscalar(scale) else scale, **settings).subspace_)

    # Measured, not computed: a sensitivity that is too small would pass a test by its own number.
    moved = moved_by_one(lambda there, seed: [released(there, seed) / noise], present, rng)
    rest = released(present, state) - base.T @ base - bounded[present].T @ bounded[present]
    # What is left along x x^T, in units of what the canary would add.
    along = np.einsum("ij,jk,ik->i", bounded, rest, bounded) / squares**2
    return Trial(scores=present + along, present=present, noise=symmetric_noise(rest, deviation=noise), moved=moved)


def joined(
    budget: Budget,
    rng: Generator,
    state: int | None,
    *,
    center: Literal["private", "public"] | None,
    table: Callable[[Array], Any] = np.asarray,
) -> Trial:
    """Canaries that join the table or stay away: the Gram matrix, the number of people, and the mean if it is searched for.

    Rows, (n, d), are put into the kind of table that `table` makes.
    """
    searched = center == "private"
    split = split_budget(mean=searched, search=searched, count=True, trace=False)
    by_sum, by_count = (split.mean[0] if searched else 0.0), max(split.count, split.extra)
    by_gram = split.main(int(searched))
    deviation = {
        name: 1 / (mu_of(budget) * math.sqrt(share)) for name, share in (("gram", by_gram), ("count", by_count))
    }
    size = 1 / (mu_of(budget) * math.sqrt(by_sum)) if searched else 1.0
    present = tossed(DIM, rng)
    # Around a point that is far enough from zero to be found, and near enough for one step and for no row to be clipped.
    middle = np.full(DIM, 0.2 / math.sqrt(DIM)) if center is not None else np.zeros(DIM)
    arms = lifted(DIM, length=0.75, people=enough_people(DIM, deviation=deviation["gram"]))
    base = np.vstack([middle + arms, middle - arms])
    given = 1000 * AXES

    def released(there: Tosses, seed: int | None) -> tuple[Array, Array, Array, Array]:
        """The Gram matrix, the number of people and the sum, less those of the base, and the mean found."""
        pca = fitted(
            table(np.vstack([base, given[there]])),
            budget,
            seed,
            neighbours="add-remove",
            center=middle if center == "public" else center,
        )
        require(not searched or len(pca.guarantee_.charges) == 2, "the mean must be found in one step")
        around = base - pca.mean_
        # Variances are the squared values over the number of people less one.
        people = float(pca.subspace_.values[0] ** 2 / pca.explained_variance_[0]) + 1.0
        total = np.zeros(DIM)
        if searched:
            total = people * unshrunk(pca.mean_, size * math.sqrt(DIM) / people) - base.sum(axis=0)
        return gram_of(pca.subspace_) - around.T @ around, np.array([people - len(base)]), total, pca.mean_

    def in_units(there: Tosses, seed: int) -> tuple[Array, ...]:
        gram, count, total, _ = released(there, seed)
        return gram / deviation["gram"], count / deviation["count"], total / size

    moved = moved_by_one(in_units, present, rng)
    gram, count, total, found = released(present, state)
    inside = given - found
    # Clipped to norm one around the mean that was found.
    inside /= np.linalg.norm(inside, axis=1)[:, None]
    gram = gram - inside[present].T @ inside[present]
    count = count - present.sum()
    scores = present + by_gram * np.einsum("ij,jk,ik->i", inside, gram, inside) + by_count * count[0]
    noise = [symmetric_noise(gram, deviation=deviation["gram"]), count / deviation["count"]]
    if searched:
        scores += by_sum * (total - present)
        noise.append((total - present) / size)
    return Trial(scores=scores, present=present, noise=np.concatenate(noise), parts=tuple(map(len, noise)), moved=moved)


def replaced(budget: Budget, rng: Generator, state: int | None) -> Trial:
    """Each canary has one axis or the next: a shift of sqrt(2) in the Gram matrix, with the same number of people."""
    present = tossed(DIM // 2, rng)
    deviation = math.sqrt(2) / mu_of(budget)
    base = lifted(DIM, length=1.0, people=enough_people(DIM, deviation=deviation))

    def released(there: Tosses, seed: int | None) -> Array:
        taken = np.where(there, np.arange(0, DIM, 2), np.arange(1, DIM, 2))
        return gram_of(fitted(np.vstack([base, AXES[taken]]), budget, seed, neighbours="replace-one").subspace_)

    moved = moved_by_one(lambda there, seed: [released(there, seed) / deviation], present, rng)
    there = np.ravel(np.column_stack([present, ~present])).astype(float)
    rest = released(present, state) - base.T @ base - np.diag(there)
    # A replacement moves two entries in opposite directions, so their difference is the likelihood ratio.
    scores = present + (np.diag(rest)[0::2] - np.diag(rest)[1::2]) / 2
    return Trial(scores=scores, present=present, noise=symmetric_noise(rest, deviation=deviation), moved=moved)


def unshrunk(mean: Array, noise: float) -> Array:
    """The released mean before it was shrunk for noise of norm `noise`: the root of l - noise^2 / l = length."""
    length = float(np.linalg.norm(mean))
    return mean * ((length + math.hypot(length, 2 * noise)) / (2 * length))
