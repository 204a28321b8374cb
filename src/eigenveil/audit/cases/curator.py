"""Cases of one curator with one table: everything that `PrivatePCA` shows of canaries, under each of its guarantees.

The adversary knows everything but the tosses, and can subtract all others from the release. A Gram matrix of full rank shows as
it was released, so the score of a canary x is what is left along x x^T: the likelihood ratio.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Literal

import numpy as np
import scipy.sparse as sp
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.linalg import hadamard

from eigenveil.audit.case import Trial, mu_of, usual_case
from eigenveil.audit.cases.seen import (
    enough_people,
    flip_coins,
    gram_of,
    lifted,
    moved_by_one,
    require_guarantee,
    symmetric_noise,
)
from eigenveil.core.accounting import Budget, epsilon_of
from eigenveil.core.ledger import Ledger
from eigenveil.errors import require
from eigenveil.estimators import PrivatePCA
from eigenveil.linalg import Array
from eigenveil.tasks.fit.gaps import split_budget

__all__ = ["AXES", "CASES", "DIM", "blanked", "fitted", "joined", "replaced", "two_fits", "unshrunk"]

DIM: Final = 16
AXES: Final = np.eye(DIM)

Tosses = NDArray[np.bool_]


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
    pca = estimator(components, epsilon=budget.epsilon, delta=budget.delta, random_state=state, **(usual | settings)).fit(rows)
    require_guarantee(pca.guarantee_, budget)
    return pca


def blanked(
    budget: Budget,
    rng: Generator,
    state: int | None,
    *,
    canaries: Array,
    bounded: Array,
    scale: Array | float = 1.0,
    rows_each: Sequence[int] | int = 1,
    deviation: float | None = None,
    **settings: Any,
) -> Trial:
    """All of a released Gram matrix, from a table with a canary for each row of `canaries`, (m, d), present or blank.

    Each canary should have become its row of `bounded`, (m, d), in units of `scale`; these are orthogonal. It has `rows_each`
    rows. The noise has the `deviation`, by default the largest squared norm over mu.
    """
    dim = canaries.shape[1]
    squares = np.square(bounded).sum(axis=1)
    noise = float(squares.max()) / mu_of(budget) if deviation is None else deviation
    present = flip_coins(len(canaries), rng)
    base = lifted(dim, length=1.0, people=enough_people(dim, deviation=noise))
    people = np.repeat(np.arange(len(canaries)), rows_each)
    if len(people) > len(canaries):
        # Everybody else has one row, and an identifier beyond those of the canaries.
        settings["person"] = np.concatenate([len(canaries) + np.arange(len(base)), people])

    def released(tosses: Tosses, seed: int | None) -> Array:
        table = np.vstack([base * scale, np.where(tosses[:, None], canaries, 0.0)[people]])
        return gram_of(fitted(table, budget, seed, scale=None if np.isscalar(scale) else scale, **settings).subspace_)

    # Measured, not computed: a sensitivity that is too small would pass a test by its own number.
    moved = moved_by_one(lambda tosses, seed: [released(tosses, seed) / noise], present, rng)
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
    deviation = {name: 1 / (mu_of(budget) * math.sqrt(share)) for name, share in (("gram", by_gram), ("count", by_count))}
    size = 1 / (mu_of(budget) * math.sqrt(by_sum)) if searched else 1.0
    present = flip_coins(DIM, rng)
    # Around a point that is far enough from zero to be found, and near enough for one step and for no row to be clipped.
    middle = np.full(DIM, 0.2 / math.sqrt(DIM)) if center is not None else np.zeros(DIM)
    arms = lifted(DIM, length=0.75, people=enough_people(DIM, deviation=deviation["gram"]))
    base = np.vstack([middle + arms, middle - arms])
    canaries = 1000 * AXES

    def released(tosses: Tosses, seed: int | None) -> tuple[Array, Array, Array, Array]:
        """The Gram matrix, the number of people and the sum, less those of the base, and the mean found."""
        pca = fitted(
            table(np.vstack([base, canaries[tosses]])),
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

    def in_units(tosses: Tosses, seed: int) -> tuple[Array, ...]:
        gram, count, total, _ = released(tosses, seed)
        return gram / deviation["gram"], count / deviation["count"], total / size

    moved = moved_by_one(in_units, present, rng)
    gram, count, total, mean = released(present, state)
    inside = canaries - mean
    # Clipped to norm one around the mean that was found.
    inside /= np.linalg.norm(inside, axis=1)[:, None]
    gram = gram - inside[present].T @ inside[present]
    count = count - present.sum()
    scores = present + by_gram * np.einsum("ij,jk,ik->i", inside, gram, inside) + by_count * count[0]
    noise = [symmetric_noise(gram, deviation=deviation["gram"]), count / deviation["count"]]
    if searched:
        scores += by_sum * (total - present)
        noise.append((total - present) / size)
    return Trial.of_releases(scores, present, noise, moved=moved)


def replaced(budget: Budget, rng: Generator, state: int | None) -> Trial:
    """Each canary has one axis or the next: a shift of sqrt(2) in the Gram matrix, with the same number of people."""
    present = flip_coins(DIM // 2, rng)
    deviation = math.sqrt(2) / mu_of(budget)
    base = lifted(DIM, length=1.0, people=enough_people(DIM, deviation=deviation))

    def released(indicators: Tosses, seed: int | None) -> Array:
        taken = np.where(indicators, np.arange(0, DIM, 2), np.arange(1, DIM, 2))
        return gram_of(fitted(np.vstack([base, AXES[taken]]), budget, seed, neighbours="replace-one").subspace_)

    moved = moved_by_one(lambda indicators, seed: [released(indicators, seed) / deviation], present, rng)
    indicators = np.ravel(np.column_stack([present, ~present])).astype(float)
    rest = released(present, state) - base.T @ base - np.diag(indicators)
    # A replacement moves two entries in opposite directions, so their difference is the likelihood ratio.
    scores = present + (np.diag(rest)[0::2] - np.diag(rest)[1::2]) / 2
    return Trial(scores=scores, present=present, noise=symmetric_noise(rest, deviation=deviation), moved=moved)


def unshrunk(mean: Array, noise: float) -> Array:
    """The released mean before it was shrunk for noise of norm `noise`: the root of l - noise^2 / l = length."""
    length = float(np.linalg.norm(mean))
    return mean * ((length + math.hypot(length, 2 * noise)) / (2 * length))


# Canaries of a single run.
_MANY: Final = 320
# It tells little where delta is far above the test's level divided by the number of canaries, and where epsilon is so large that
# it explains all guesses being right.
_ONE_LOOK: Final = Budget(1.0, 1e-8)
# Corners of a box that are orthogonal to each other, so that each canary has its own direction.
_CORNERS: Final = np.array(hadamard(8), dtype=np.float64)
_UNITS: Final = np.logspace(-3, 3, DIM)
_FEW: Final = 3  # Columns of a table with gaps.
_HALF: Final = 400  # How many people have them.
_PEOPLE: Final = 100  # With a small budget, this many over mu, so that a bound is found.
# Where units are found: columns, their units, and how many people over mu find them to within a few percent.
_AXES_FOUND: Final = 8
_RAW: Final = np.logspace(-3, 3, _AXES_FOUND)
_MANY_FOR_UNITS: Final = 2000


def _tied(budget: Budget, rng: Generator, state: int | None) -> Trial:
    """Components only: each canary decides which of two tied axes comes first. Pairs of axes lie far apart."""
    present = flip_coins(DIM // 2, rng)
    people = enough_people(DIM, deviation=math.sqrt(2) / mu_of(budget))
    # Two axes of a pair have the same number of people, and different pairs differ by more than the noise.
    base = np.repeat(AXES, people * (1 + np.arange(DIM) // 2), axis=0)
    taken = np.where(present, np.arange(0, DIM, 2), np.arange(1, DIM, 2))
    pca = fitted(np.vstack([base, AXES[taken]]), budget, state, neighbours="replace-one")
    # The pair with most people comes first; of its two directions the first is the leader.
    leaders = pca.components_[0::2][::-1]
    pairs = leaders.reshape(DIM // 2, DIM // 2, 2)[np.arange(DIM // 2), np.arange(DIM // 2)]
    return Trial(scores=pairs[:, 0] ** 2 - pairs[:, 1] ** 2, present=present)


def _alone(budget: Budget, rng: Generator, state: int | None) -> Trial:
    """Components only: half of the axes have nobody but a canary each, and half of those directions are shown."""
    present = flip_coins(DIM // 2, rng)
    used, unused = AXES[: DIM // 2], AXES[DIM // 2 :]
    base = np.repeat(used, 2 * enough_people(DIM, deviation=1 / mu_of(budget)), axis=0)
    table = np.vstack([base, np.where(present[:, None], unused, 0.0)])
    pca = fitted(table, budget, state, components=3 * DIM // 4)
    return Trial(scores=np.square(pca.components_ @ unused.T).sum(axis=0), present=present)


def _power(budget: Budget, rng: Generator, state: int | None) -> Trial:
    """The end of a power method with a block as wide as the table: its last product, symmetrised."""
    dim = DIM // 2
    present = flip_coins(dim, rng)
    # More than enough people: the noise of the last product is not known before the fit has chosen its rounds.
    base = lifted(dim, length=1.0, people=2 * enough_people(dim, deviation=1 / mu_of(budget)))
    table = np.vstack([base, np.where(present[:, None], np.eye(dim), 0.0)])
    pca = fitted(table, budget, state, components=dim, method="power")
    # The components are read off the last product, so only its noise is seen.
    *_, last, total = pca.guarantee_.charges
    require(last.label.startswith("power product") and total.label == "trace", "the products come before the trace")
    rest = gram_of(pca.subspace_) - base.T @ base - np.diag(present.astype(float))
    scores = np.diag(rest) + present
    return Trial(scores=scores, present=present, noise=symmetric_noise(rest, deviation=1 / last.mu))


def _trace(budget: Budget, rng: Generator, state: int | None) -> Trial:
    """Only the total variance of a power method: a variance over its ratio to the total. All canaries add to it."""
    dim = DIM // 2
    present = flip_coins(dim, rng)
    base = lifted(dim, length=1.0, people=2 * enough_people(dim, deviation=1 / mu_of(budget)))
    table = np.vstack([base, np.where(present[:, None], 1000 * np.eye(dim), 0.0)])
    # Half of the components have far less than the total variance, by more than noise can make up.
    pca = fitted(table, budget, state, components=dim // 2, method="power")
    charge = pca.guarantee_.charges[-1]
    require(charge.label == "trace", "the trace must come last")
    rest = pca.subspace_.values[0] ** 2 / pca.explained_variance_ratio_[0] - len(base) - present.sum()
    return Trial(scores=present + rest, present=present, noise=np.array([rest * charge.mu]))


def two_fits(budget: Budget, rng: Generator, state: int | None, *, ledger: Ledger, each: Budget) -> Trial:
    """Two fits of the same people, at the budget `each`, charged to one ledger, which must state what both show together."""
    present = flip_coins(DIM, rng)
    deviation = 1 / mu_of(each)
    base = lifted(DIM, length=1.0, people=enough_people(DIM, deviation=deviation))
    table = np.vstack([base, np.where(present[:, None], AXES, 0.0)])
    rests = []
    for fit in range(2):
        # Two seeds: the same noise twice would count as one release.
        pca = fitted(table, each, None if state is None else 2 * state + fit, ledger=ledger)
        rests.append(gram_of(pca.subspace_) - base.T @ base - np.diag(present.astype(float)))
    says = ledger.spent_mu
    require(abs(says - mu_of(budget)) <= 1e-6 * mu_of(budget), f"the ledger must state mu = {mu_of(budget)}, but states {says}")
    # Both fits have noise of the same size, so their mean is the likelihood ratio.
    scores = present + np.diag(rests[0] + rests[1]) / 2
    noise = [symmetric_noise(rest, deviation=deviation) for rest in rests]
    return Trial.of_releases(scores, present, noise)


def _shared(budget: Budget, rng: Generator, state: int | None) -> Trial:
    half = Budget(epsilon_of(mu_of(budget) / math.sqrt(2), budget.delta), budget.delta)
    # Two roundings: a slightly larger ledger has room for both charges.
    ledger = Ledger(epsilon=budget.epsilon * (1 + 1e-9), delta=budget.delta)
    return two_fits(budget, rng, state, ledger=ledger, each=half)


def _torn(budget: Budget, rng: Generator, state: int | None, *, rule: str, find: bool = False) -> Trial:
    """Counts of what is there: of each column or group, or of complete rows. Everybody else is known, so a canary shows in these.

    With `find`, entries are counted with the first mean of the search for a bound, and the fit shows the same rates.
    """
    present = flip_coins(1, rng)
    settings: dict[str, Any] = {"missing": rule}
    shown, number = np.arange(_FEW), _FEW
    if rule == "groups":
        # Three groups have six pairs, with themselves and with each other, and the two columns of a group share one rate.
        settings["missing_groups"] = [[0, 1], [2], [3]]
        shown, number = np.array([0, 2, 3]), 6
    # Half of the rows lack everything, so that no rate comes near its limits. Of three columns or groups no rate is shrunk. Rows
    # are on both sides of zero, so that a search for the mean ends early.
    width, of_counts = int(shown[-1]) + 1, 1.0
    half = max(_HALF, math.ceil(_PEOPLE / mu_of(budget)))
    sides = np.where(np.arange(half) % 2 == 0, 1.0, -1.0)[:, None]
    base = np.vstack([np.broadcast_to(sides, (half, width)), np.full((half, width), np.nan)])
    counts = "count" if rule == "drop" else "observed entries"
    if find:
        settings |= {"row_bound": "private", "center": "private"}
        split = split_budget(mean=True, search=False, count=False, trace=False, bound=True, observed=True)
        counts, of_counts = f"mean and {counts}", split.observed / split.step(split.observed_at)

    def released(tosses: NDArray[np.bool_], seed: int | None) -> tuple[Array, float]:
        canary = np.where(tosses[:, None], 1e8, np.full((1, width), np.nan))
        pca = fitted(np.vstack([base, canary]), budget, seed, **settings)
        (charge,) = (entry for entry in pca.guarantee_.charges if entry.label == counts)
        if rule != "drop":
            assert pca.observed_fraction_ is not None
            return pca.observed_fraction_[shown] * (2 * half + 1), math.sqrt(number / of_counts) / charge.mu
        # A variance is a Gram eigenvalue over the number of people less one.
        return pca.singular_values_[:1] ** 2 / pca.explained_variance_[:1] + 1, 1 / charge.mu

    moved = moved_by_one(lambda tosses, seed: [np.divide(*released(tosses, seed))], present, rng)
    release, deviation = released(present, state)
    rest = release - half - present
    return Trial(scores=present + rest.mean(keepdims=True), present=present, noise=rest / deviation, moved=moved)


def _counted_less_half(budget: Budget, rng: Generator, state: int | None) -> Trial:
    """Counts of each column under add/remove, less half of the people: a canary with every entry adds a half to each."""
    present = flip_coins(1, rng)
    half = max(_HALF, math.ceil(_PEOPLE / mu_of(budget)))
    base = np.vstack([np.ones((half, _FEW)), np.full((half, _FEW), np.nan)])
    split = split_budget(mean=False, search=False, count=True, trace=False, observed=True)

    def released(tosses: NDArray[np.bool_], seed: int | None) -> tuple[Array, float]:
        rows = np.vstack([base, np.full((int(tosses[0]), _FEW), 1e8)])
        pca = fitted(rows, budget, seed, missing="counts", neighbours="add-remove")
        (charge,) = (entry for entry in pca.guarantee_.charges if entry.label == "count and observed entries")
        # A variance is a Gram eigenvalue over the number of people less one, and rates are counts over that number.
        people = pca.singular_values_[0] ** 2 / pca.explained_variance_[0] + 1
        assert pca.observed_fraction_ is not None
        deviation = math.sqrt(_FEW * split.extra / split.observed_later) / 2 / charge.mu
        return (pca.observed_fraction_ - 0.5) * people, deviation

    moved = moved_by_one(lambda tosses, seed: [np.divide(*released(tosses, seed))], present, rng)
    release, deviation = released(present, state)
    rest = release - present / 2
    return Trial(scores=present + 2 * rest.mean(keepdims=True), present=present, noise=rest / deviation, moved=moved)


def _in_found_units(budget: Budget, rng: Generator, state: int | None) -> Trial:
    """A fit that finds its units: the matrix that was released in them, and the number of people that came with the mean.

    A model has the mean and the units in which rows were clipped, so everybody else can be clipped again and subtracted. Its own
    matrix was divided by the variances that it released, and these are in its scale. A canary a thousand units out along an axis
    is clipped to a norm of the root of the number of columns.
    """
    present = flip_coins(_AXES_FOUND, rng)
    signs, count = np.array(hadamard(_AXES_FOUND), dtype=np.float64), math.ceil(_MANY_FOR_UNITS / mu_of(budget))
    # Of two lengths and both signs, so that a column has a spread.
    corners = np.vstack([signs, -signs, signs / 2, -signs / 2]) * _RAW
    base = np.repeat(corners, math.ceil(count / len(corners)), axis=0)
    rows = np.vstack([base, 1000 * np.diag(_RAW)[present]])
    settings: dict[str, Any] = {"row_bound": "private", "center": "private", "scale": "private", "neighbours": "add-remove"}
    pca = fitted(rows, budget, state, **settings)
    model = pca.model_
    assert model.scale is not None
    *_, mean, last = pca.guarantee_.charges
    require((mean.label, last.label) == ("mean and count", "covariance"), "the mean and the count come before the matrix")
    units, square = model.clipping["scale"], float(_AXES_FOUND)
    moved = (rows - model.clipping["center"]) / units
    moved *= np.minimum(1.0, math.sqrt(square) / np.linalg.norm(moved, axis=1))[:, None]
    rest = gram_of(pca.subspace_) * np.outer(model.scale / units, model.scale / units) - moved.T @ moved
    split = split_budget(mean=True, search=False, count=True, trace=False, units=True)
    people = pca.singular_values_[0] ** 2 / pca.explained_variance_[0] + 1
    of_count = (people - len(rows)) * mean.mu * math.sqrt(split.count / split.step(split.counted_at))
    noise = [symmetric_noise(rest, deviation=square / last.mu), np.array([of_count])]
    return Trial.of_releases(present + np.diag(rest) / square, present, noise)


def _many(budget: Budget, rng: Generator, state: int | None) -> Trial:
    """One fit of a wide sparse table, with a canary along every axis."""
    present = flip_coins(_MANY, rng)
    people = enough_people(_MANY, deviation=1 / mu_of(budget))
    base = sp.csr_array(sp.vstack([sp.eye_array(_MANY)] * people))
    pca = fitted(sp.csr_array(sp.vstack([base, sp.diags_array(present.astype(float))])), budget, state)
    rest = gram_of(pca.subspace_) - np.diag(people + present.astype(float))
    scores = np.diag(rest) + present
    return Trial(scores=scores, present=present, noise=symmetric_noise(rest, deviation=1 / mu_of(budget)))


_case = partial(usual_case, claim="PrivatePCA's guarantee", quick=160, full=2000)
_ALL = "all components and variances, seen by anybody"
_OF_COUNTS: Final[dict[str, Any]] = {"tests": ("noise",), "quick": 320, "full": 4000, "threshold": None}
# The square of 1e200 overflows a double: clipping must not go through it.
_HEAVY = np.where(np.arange(DIM) % 2 == 0, 1e8, 1e200)[:, None]

CASES = (
    _case(
        "curator/covariance",
        f"PrivatePCA(method='covariance'): {_ALL}",
        "a row along each axis, present or blank",
        partial(blanked, canaries=AXES, bounded=AXES),
        quick=300,
        full=3000,
    ),
    _case(
        "curator/add-remove",
        f"PrivatePCA(neighbours='add-remove'): {_ALL}, and the number of people in them",
        "a row along each axis, a thousand times the bound, in the table or not",
        partial(joined, center=None),
    ),
    _case(
        "curator/replace-one",
        f"PrivatePCA(neighbours='replace-one'): {_ALL}",
        "a row along one axis, or another along the next",
        replaced,
    ),
    _case(
        "curator/heavy-row",
        f"PrivatePCA with row_bound 1: {_ALL}",
        "a row of norm 1e8 or 1e200 along each axis, present or blank",
        partial(blanked, canaries=_HEAVY * AXES, bounded=AXES),
    ),
    _case(
        "curator/mean",
        f"PrivatePCA(center='private'): the mean, {_ALL}, and the number of people in them",
        "a row along each axis, a thousand times the bound, in the table or not",
        partial(joined, center="private"),
    ),
    _case(
        "curator/sparse",
        f"PrivatePCA of a sparse table around a public center: {_ALL}, and the number of people in them",
        "a row along each axis, a thousand times the bound, in the table or not",
        partial(joined, center="public", table=sp.csr_array),
    ),
    _case(
        "curator/person",
        f"PrivatePCA(person=...): {_ALL}",
        "a person with two to five rows along each axis, a thousand times the bound, present or blank",
        partial(blanked, canaries=1000 * AXES, bounded=AXES, rows_each=[2 + i % 4 for i in range(DIM)]),
    ),
    _case(
        "curator/column-bounds",
        f"PrivatePCA(column_bounds=(-1, 1)) and no row_bound: {_ALL}",
        "corners of the box at right angles, a million times too far out, present or blank",
        partial(blanked, canaries=1e6 * _CORNERS, bounded=_CORNERS, row_bound=None, column_bounds=(-1.0, 1.0)),
    ),
    _case(
        "curator/scale",
        f"PrivatePCA(scale=...), units from 1e-3 to 1e3: {_ALL}",
        "a row along each axis, a thousand units out, present or blank",
        partial(blanked, canaries=1000 * np.diag(_UNITS), bounded=AXES, scale=_UNITS),
    ),
    _case(
        "curator/found-units",
        f"PrivatePCA(scale='private'), units from 1e-3 to 1e3: the mean, the units, {_ALL}, and the number of people in them",
        "a row along each axis, a thousand units out, in the table or not",
        _in_found_units,
    ),
    _case(
        "curator/near-ties",
        "PrivatePCA(neighbours='replace-one'): only components, of pairs of axes that are tied",
        "a row along one axis or the other, which swaps the two components",
        _tied,
        tests=("curve",),
        quick=400,
        full=4000,
        threshold=0.0,
    ),
    _case(
        "curator/lone-direction",
        "PrivatePCA with three quarters of the components: only these, without their variances",
        "a row alone in an unused direction, present or blank",
        _alone,
        tests=("curve",),
        threshold=None,
    ),
    _case(
        "curator/power",
        f"PrivatePCA(method='power'): {_ALL}, which show the last product; the others stay with the curator",
        "a row along each axis, present or blank",
        _power,
    ),
    _case(
        "curator/trace",
        "PrivatePCA(method='power') with half of the components: the total variance, which their ratios to it show",
        "a row along each axis, a thousand times the bound, present or blank",
        _trace,
        tests=("noise",),
        quick=200,
        threshold=None,
    ),
    _case(
        "curator/shared-ledger",
        f"two fits of the same people charged to one Ledger: {_ALL}, twice",
        "a row along each axis, present or blank in both fits",
        _shared,
        claim="the ledger",
    ),
    _case(
        "curator/missing-values",
        "PrivatePCA(missing='counts'): how many people have each column, seen by anybody",
        "a row of 1e8 in every column, or one that lacks all of them",
        partial(_torn, rule="counts"),
        **_OF_COUNTS,
    ),
    _case(
        "curator/missing-add-remove",
        "PrivatePCA(missing='counts', neighbours='add-remove'): how many people have each column, seen by anybody",
        "a row of 1e8 in every column, in the table or not",
        _counted_less_half,
        **_OF_COUNTS,
    ),
    _case(
        "curator/missing-groups",
        "PrivatePCA(missing='groups'): how many people have each group of columns, seen by anybody",
        "a row of 1e8 in every column, or one that lacks all of them",
        partial(_torn, rule="groups"),
        **_OF_COUNTS,
    ),
    *(
        _case(
            f"curator/missing-{name}-bound",
            f"PrivatePCA(missing='{rule}') that finds a bound: how many people have each {what}, seen by anybody",
            "a row of 1e8 in every column, or one that lacks all of them",
            partial(_torn, rule=rule, find=True),
            **(_OF_COUNTS | {"quick": 120}),
        )
        for name, rule, what in (("values", "counts", "column"), ("groups", "groups", "group of columns"))
    ),
    _case(
        "curator/incomplete-rows",
        "PrivatePCA(missing='drop'): how many people have complete rows, seen by anybody, though the number of rows is public",
        "a complete row of 1e8, or an incomplete one",
        partial(_torn, rule="drop"),
        **_OF_COUNTS,
    ),
    _case(
        "curator/one-run",
        f"PrivatePCA of {_MANY} sparse columns, once: {_ALL}",
        f"{_MANY} people, each alone along an axis, present or blank",
        _many,
        tests=("one-run", "noise"),
        budget=_ONE_LOOK,
        quick=1,
        full=1,
    ),
)
