"""Cases of what is found privately before a fit: bounds on the rows, and the spectrum."""

import math
from typing import Final

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.linalg import solve_triangular, toeplitz

from eigenveil.audit.case import Case, Claim, Trial, mu_of
from eigenveil.audit.cases.canaries import moved_by_one, require_guarantee, tossed
from eigenveil.audit.cases.curator_seen import BUDGET
from eigenveil.errors import require
from eigenveil.estimators.bounds.rows import find_bounds
from eigenveil.estimators.bounds.spectrum import released_spectrum
from eigenveil.linalg import Array
from eigenveil.privacy import Budget

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


def _lengths(budget: Budget, rng: Generator, state: int | None) -> Trial:
    """How many people are beyond each norm, as far as candidates and the number of people show it.

    A h is released with noise of deviation ||A e_0|| / mu. Here h are the counts from the largest norm down and A is the root of
    the triangle of ones; A times the release is shown. The canary, larger than all others, moves each of the sums by one.
    """
    present = tossed(1, rng)
    # The square root of the triangle of ones: coefficients of (1 - x)^(-1/2).
    root = toeplitz([1.0, 1 / 2, 3 / 8, 5 / 16], np.zeros(4))
    deviation = float(np.linalg.norm(root[:, 0])) / mu_of(budget)
    # So many people that the noise of a count is small beside every cell.
    counts = [math.ceil(share * 500 * deviation) for share in _SHARES]
    longest = np.full(int(present[0]), 1e8)
    lengths = np.concatenate([longest, np.repeat(_INSIDE, counts)])
    found = find_bounds(
        lengths[:, None] * [0.6, 0.8],
        epsilon=budget.epsilon,
        delta=budget.delta,
        quantile=0.75,
        center=None,
        within=_RANGE,
        neighbours="add-remove",
        random_state=state,
    )
    require_guarantee(found.guarantee, budget)
    require(len(found.candidates) == 2, "find_bounds must show two candidates here")
    near, far = found.candidates
    seen = np.array([far.clipped * found.people, near.clipped * found.people, found.people])
    rest = (seen - np.cumsum(counts)[list(_SHOWN)] - present) / deviation
    # The rest has the covariance of rows of A. In these coordinates it is independent normals.
    factor = np.linalg.cholesky(root[list(_SHOWN)] @ root[list(_SHOWN)].T)
    noise = solve_triangular(factor, rest, lower=True)
    shift = solve_triangular(factor, np.ones(3), lower=True) / deviation
    return Trial(present + (noise @ shift) / (shift @ shift), present, noise)


def _spectrum(budget: Budget, rng: Generator, state: int | None) -> Trial:
    """Eigenvalues that lie far apart, and their sum in agreement with them: the maximum likelihood of both, which loses nothing.

    With variances s^2 on each eigenvalue and t^2 on the sum, the result has the information I / s^2 + 1 1^T / t^2 about them. A
    canary moves one of them by one.
    """
    present = tossed(_COLUMNS, rng)
    variance, of_sum = (1 / (mu_of(budget) ** 2 * share) for share in (1 - _SUM_SHARE, _SUM_SHARE))
    # Rows of norm 0.7, so that no eigenvalue is reduced to what the bound allows; steps far larger than the noise.
    length, step = 0.7, math.ceil(2 * (16 * math.sqrt(variance) + 1))
    base = np.repeat(length * np.eye(_COLUMNS), step * np.arange(_COLUMNS, 0, -1), axis=0)
    information = np.eye(_COLUMNS) / variance + np.ones((_COLUMNS, _COLUMNS)) / of_sum
    root = np.linalg.cholesky(information).T

    def released(there: NDArray[np.bool_], seed: int | None) -> Array:
        found = released_spectrum(
            np.vstack([base, np.where(there[:, None], 1000 * np.eye(_COLUMNS), 0.0)]),
            epsilon=budget.epsilon,
            delta=budget.delta,
            row_bound=1.0,
            center=None,
            neighbours="zero-out",
            random_state=seed,
        )
        require_guarantee(found.guarantee, budget)
        require(found.spectrum is not None, "eigenvalues this large must be told from noise")
        assert found.spectrum is not None
        return found.spectrum.values * found.people

    moved = moved_by_one(lambda there, seed: [root @ released(there, seed)], present, rng)
    rest = released(present, state) - np.square(base).sum(axis=0) - present
    return Trial(present + information @ rest / mu_of(budget) ** 2, present, root @ rest, moved=moved)


CASES = (
    Case(
        name="bounds/norms",
        kind="shipped",
        about="find_bounds: how many people have rows beyond each candidate, and how many people there are, seen by anybody",
        canary="a row of norm 1e8, in the table or not",
        tests=("curve", "noise"),
        budget=BUDGET,
        claim=lambda budget: Claim.of(budget, "the guarantee of find_bounds"),
        trial=_lengths,
        quick=400,
        full=4000,
        threshold=0.5,
    ),
    Case(
        name="bounds/spectrum",
        kind="shipped",
        about="released_spectrum: all eigenvalues, seen by anybody",
        canary="a row along each axis, a thousand times the bound, present or blank",
        tests=("curve", "noise"),
        budget=BUDGET,
        claim=lambda budget: Claim.of(budget, "the guarantee of released_spectrum"),
        trial=_spectrum,
        quick=200,
        full=2000,
        threshold=0.5,
    ),
)
