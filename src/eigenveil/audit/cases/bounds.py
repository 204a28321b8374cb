"""Cases of what is found privately before a fit: bounds on the rows, and the spectrum."""

import math
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.linalg import solve_triangular, toeplitz

from eigenveil.audit.case import Trial, mu_of, usual_case
from eigenveil.audit.cases.seen import flip_coins, moved_by_one, require_guarantee
from eigenveil.core.accounting import Budget
from eigenveil.errors import require
from eigenveil.estimators.bounds.columns import find_column_bounds
from eigenveil.estimators.bounds.rows import find_bounds
from eigenveil.estimators.bounds.spectrum import released_spectrum
from eigenveil.linalg import Array

__all__ = ["CASES"]

# Four cells: norms up to 1, two steps of a sixteenth of a doubling above it, and all larger norms.
_RANGE: Final = (1.0, 1.08)
_INSIDE: Final = (5.0, 1.07, 1.02, 0.5)
# Shares of people in them, from the largest norm down, far enough from all released quantiles for noise not to matter.
_SHARES: Final = (0.15, 0.22, 0.28, 0.35)
# The released sums, from the largest norm down, that the result shows: all but the count beyond the first cell.
_SHOWN: Final = (0, 1, 3)
# The share of the budget of a spectrum that its sum takes; the rest is for the eigenvalues.
_SUM_SHARE: Final = 0.05
_COLUMNS: Final = 8
_FEW: Final = 3  # Columns whose ranges are found together.
_PER_DOUBLING: Final = 8  # Cells of a factor of two.
# Where entries may be missing, their counts take this share first.
_COUNTS_SHARE: Final = 0.04
# An entry of the spectrum's matrix is multiplied by at most this, and its noise with it.
_NOISE_INFLATION: Final = 4.0
_PAIRS: Final = [[first, first + 1] for first in range(0, _COLUMNS, 2)]
_RULES: Final = {"counts": "missing='counts'", "groups": "missing='groups'"}


def _lengths(budget: Budget, rng: Generator, state: int | None, *, rule: str | None = None) -> Trial:
    """How many people are beyond each norm, as far as candidates and the number of people show it.

    A h is released with noise of deviation ||A e_0|| / mu. Here h are the counts from the largest norm down and A is the root of
    the triangle of ones; A times the release is shown. The canary, larger than all others, moves each of the sums by one.
    """
    present = flip_coins(1, rng)
    # The square root of the triangle of ones: coefficients of (1 - x)^(-1/2).
    root = toeplitz([1.0, 1 / 2, 3 / 8, 5 / 16], np.zeros(4))
    deviation = float(np.linalg.norm(root[:, 0])) / mu_of(budget)
    # So many people that the noise of a count is small beside every cell.
    counts = [math.ceil(share * 500 * deviation) for share in _SHARES]
    longest = np.full(int(present[0]), 1e8)
    lengths = np.concatenate([longest, np.repeat(_INSIDE, counts)])
    rows, gaps = lengths[:, None] * [0.6, 0.8], _gaps(rule, [[0, 1], [2, 3]])
    if rule is not None:
        # A third column that would be beyond every norm goes with a fourth that nobody has, and counts as missing with it.
        third = 1e8 if rule == "groups" else np.nan
        rows = np.hstack([rows, np.broadcast_to([third, np.nan], rows.shape)])
    bounds = find_bounds(
        rows,
        epsilon=budget.epsilon,
        delta=budget.delta,
        quantile=0.75,
        center=None,
        search_range=_RANGE,
        neighbours="add-remove",
        random_state=state,
        **gaps,
    )
    require_guarantee(bounds.guarantee, budget)
    require(len(bounds.candidates) == 2, "find_bounds must show two candidates here")
    near, far = bounds.candidates
    sums = np.array([far.clipped * bounds.people, near.clipped * bounds.people, bounds.people])
    rest = (sums - np.cumsum(counts)[list(_SHOWN)] - present) / deviation
    # The rest has the covariance of rows of A. In these coordinates it is independent normals.
    factor = np.linalg.cholesky(root[list(_SHOWN)] @ root[list(_SHOWN)].T)
    noise = solve_triangular(factor, rest, lower=True)
    shift = solve_triangular(factor, np.ones(3), lower=True) / deviation
    return Trial(scores=present + (noise @ shift) / (shift @ shift), present=present, noise=noise)


def _columns(budget: Budget, rng: Generator, state: int | None, *, rule: str | None = None) -> Trial:
    """The number of people that ranges of columns come with, which is the sum over the cells of each column, averaged.

    A h is released for each of d columns with noise of deviation sqrt(d) ||A e_0|| / mu, and A times that has ||A e_0|| times
    as much in its last entry. The average of d of them has ||A e_0||^2 / mu. A canary far out in every column adds one. Where
    entries may be missing, each column is read by itself: then there is one.
    """
    present, columns = flip_coins(1, rng), _FEW if rule is None else 1
    # Edges of one sign: sixteenths of a doubling from the one below the lowest to the one above the highest. One more cell is
    # between the signs.
    low, high = (_PER_DOUBLING * math.log2(end) for end in _RANGE)
    cells = 2 * (math.ceil(high) + 1 - math.floor(low)) + 1
    root = toeplitz(np.cumprod([1.0, *((2 * at - 1) / (2 * at) for at in range(1, cells))]), np.zeros(cells))
    deviation = float(np.square(root[:, 0]).sum()) / mu_of(budget)
    people = math.ceil(500 * deviation * math.sqrt(columns))
    spread = np.linspace(-1.07, 1.07, people)[:, None] * np.ones(columns)
    bounds = find_column_bounds(
        np.vstack([spread, np.full((int(present[0]), columns), 1e8), np.full((0 if rule is None else 9, columns), np.nan)]),
        epsilon=budget.epsilon,
        delta=budget.delta,
        search_range=_RANGE,
        quantile=0.5,
        neighbours="add-remove",
        random_state=state,
        **_gaps(rule, [[0]]),
    )
    require_guarantee(bounds.guarantee, budget)
    require(bounds.low is not None, "ranges this clear must be found")
    rest = np.array([bounds.people - people - float(present[0])])
    return Trial(scores=present + rest, present=present, noise=rest / deviation)


def _spectrum(budget: Budget, rng: Generator, state: int | None, *, rule: str | None = None) -> Trial:
    """Eigenvalues that lie far apart, and their sum in agreement with them: the maximum likelihood of both, which loses nothing.

    With variances s^2 on each eigenvalue and t^2 on the sum, the result has the information I / s^2 + 1 1^T / t^2 about them. A
    canary moves one of them by one.

    Where entries may be missing, nearly all are. Every rate is then below the least that anything is divided by, so the
    matrix and its noise are `_NOISE_INFLATION` times as large, whatever the noise on the counts was.
    """
    present = flip_coins(_COLUMNS, rng)
    left = 1.0 if rule is None else 1 - _COUNTS_SHARE
    variance, of_sum = (1 / (mu_of(budget) ** 2 * left * share) for share in (1 - _SUM_SHARE, _SUM_SHARE))
    # Rows of norm 0.7, so that no eigenvalue is reduced to what the bound allows; steps far larger than the noise.
    length, step = 0.7, math.ceil(2 * (16 * math.sqrt(variance) + 1))
    base = np.repeat(length * np.eye(_COLUMNS), step * np.arange(_COLUMNS, 0, -1), axis=0)
    information = np.eye(_COLUMNS) / variance + np.ones((_COLUMNS, _COLUMNS)) / of_sum
    root = np.linalg.cholesky(information).T
    # Twice as many people have nothing at all.
    nobody = np.full((0 if rule is None else 2 * len(base), _COLUMNS), np.nan)

    def released(tosses: NDArray[np.bool_], seed: int | None) -> Array:
        canaries = np.where(tosses[:, None], 1000 * np.eye(_COLUMNS), 0.0)
        result = released_spectrum(
            np.vstack([_torn(base, rule), _torn(canaries, rule), nobody]),
            epsilon=budget.epsilon,
            delta=budget.delta,
            row_bound=1.0,
            center=None,
            neighbours="zero-out",
            random_state=seed,
            **_gaps(rule, _PAIRS),
        )
        require_guarantee(result.guarantee, budget)
        require(result.spectrum is not None, "eigenvalues this large must be told from noise")
        assert result.spectrum is not None
        return result.spectrum.values * result.people / (1.0 if rule is None else _NOISE_INFLATION)

    moved = moved_by_one(lambda tosses, seed: [root @ released(tosses, seed)], present, rng)
    rest = released(present, state) - np.square(base).sum(axis=0) - present
    return Trial(scores=present + information @ rest / mu_of(budget) ** 2, present=present, noise=root @ rest, moved=moved)


def _gaps(rule: str | None, groups: list[list[int]]) -> dict[str, Any]:
    """The parameters that declare which entries may be missing."""
    return {} if rule is None else {"missing": rule} | ({"missing_groups": groups} if rule == "groups" else {})


def _torn(rows: Array, rule: str | None) -> Array:
    """Rows along axes, (n, d), each with nothing but the column of its axis, or with the group of that column."""
    if rule is None:
        return rows
    observed = rows != 0
    if rule == "groups":
        observed = np.repeat(observed[:, ::2] | observed[:, 1::2], 2, axis=1)
    return np.where(observed, rows, np.nan)


CASES = (
    usual_case(
        name="bounds/norms",
        about="find_bounds: how many people have rows beyond each candidate, and how many people there are, seen by anybody",
        canary="a row of norm 1e8, in the table or not",
        claim="the guarantee of find_bounds",
        trial=_lengths,
        quick=400,
        full=4000,
    ),
    *(
        usual_case(
            name="bounds/columns" if rule is None else f"bounds/columns-{rule}",
            about=f"find_column_bounds({'' if rule is None else _RULES[rule]}): the number of people that its counts add up to, "
            "seen by anybody",
            canary="a row with 1e8 in every column, in the table or not",
            claim="the guarantee of find_column_bounds",
            trial=partial(_columns, rule=rule),
            quick=200,
            full=4000,
        )
        for rule in (None, *_RULES)
    ),
    usual_case(
        name="bounds/spectrum",
        about="released_spectrum: all eigenvalues, seen by anybody",
        canary="a row along each axis, a thousand times the bound, present or blank",
        claim="the guarantee of released_spectrum",
        trial=_spectrum,
        quick=200,
        full=2000,
    ),
    *(
        usual_case(
            name=f"bounds/norms-{rule}",
            about=f"find_bounds({arguments}): how many people have rows beyond each candidate, seen by anybody",
            canary="a row of norm 1e8 that lacks the other columns, in the table or not",
            claim="the guarantee of find_bounds",
            trial=partial(_lengths, rule=rule),
            quick=200,
            full=4000,
        )
        for rule, arguments in _RULES.items()
    ),
    *(
        usual_case(
            name=f"bounds/spectrum-{rule}",
            about=f"released_spectrum({arguments}): all eigenvalues of the divided matrix, seen by anybody",
            canary="a row along each axis, a thousand times the bound and without other entries, or with no entry at all",
            claim="the guarantee of released_spectrum",
            trial=partial(_spectrum, rule=rule),
            quick=100,
            full=2000,
        )
        for rule, arguments in _RULES.items()
    ),
)
