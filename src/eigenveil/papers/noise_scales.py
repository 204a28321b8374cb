"""Noise scales as the papers print them, for comparison and reproduction only.

Each is the standard deviation for rows in the unit ball and sums that are not divided by n. So a bound B multiplies it by B^2.
Docstrings say what is loose or missing in each. Nothing here is a default anywhere.
"""

import math

import numpy as np

from eigenveil.core.accounting import Budget
from eigenveil.errors import require
from eigenveil.linalg import Array

__all__ = [
    "analyze_gauss_scale",
    "balcan_scale",
    "classical_multiplier",
    "fedpower_multiplier",
    "fpca_scale",
    "mod_sulq_scale",
    "ppm_multiplier",
    "ppm_scale",
    "sulq_scale",
    "zcdp_multiplier",
]


def analyze_gauss_scale(budget: Budget, *, dim: int) -> float:
    """Analyze Gauss (Dwork et al. 2014), Algorithm 1, for replace-one: entries on and above the diagonal, mirrored.

    The paper adds or removes a row of norm one, which moves the Gram matrix by one in the Frobenius norm. Replacing it moves the
    matrix by at most sqrt(2), which is the factor here. The calibration is the textbook one, which is loose. `dim` has no effect.

    >>> round(analyze_gauss_scale(Budget(0.5, 1e-5), dim=11), 3)
    13.703
    """
    return math.sqrt(2) * classical_multiplier(budget)


def fpca_scale(budget: Budget, *, dim: int) -> float:
    """FPCA (17), the streaming MOD-SuLQ of Lemma 2, times n: every entry of a non-symmetric mask, replace-one.

    (8) has sqrt(epsilon n) where (17) has sqrt(epsilon) n in the last term; (17) follows from the proof. The proof
    bounds sums of |x_i x_j| over entries and pays a factor d that the Frobenius norm does not.

    >>> round(fpca_scale(Budget(1.0, 0.05), dim=11), 1)
    164.5
    """
    # As printed, factors that cancel included: these lines are to be compared with the paper.
    spread = math.sqrt(2 * math.log(dim**2 / (budget.delta * math.sqrt(2 * math.pi))))
    return 4 * dim / budget.epsilon * spread + math.sqrt(2 / budget.epsilon)


def mod_sulq_scale(budget: Budget, *, dim: int) -> float:
    """FPCA (6), the MOD-SuLQ of Chaudhuri et al. (2012), times n: entries on and above the diagonal, mirrored.

    >>> round(mod_sulq_scale(Budget(1.0, 0.05), dim=11), 1)
    43.5
    """
    spread = math.sqrt(2 * math.log((dim**2 + dim) / (2 * budget.delta * math.sqrt(2 * math.pi))))
    return (dim + 1) / budget.epsilon * spread + 1 / math.sqrt(budget.epsilon)


def sulq_scale(budget: Budget, *, dim: int) -> float:
    """SuLQ (Blum et al. 2005) as quoted after FPCA (7), times n: omega^2 = 8 d^2 log^2(d / delta) / (n epsilon)^2.

    >>> round(sulq_scale(Budget(1.0, 0.05), dim=11), 1)
    167.8
    """
    return math.sqrt(8) * dim * math.log(dim / budget.delta) / budget.epsilon


def ppm_multiplier(budget: Budget, *, rounds: int) -> float:
    """PPM Alg. 1: sigma = sqrt(4 L log(1/delta)) / epsilon times the sensitivity, equal in all L rounds.

    Through zero-concentrated DP (PPM Theorem 3.2), which needs epsilon <= 4 log(1/delta) and is 1.3 to 2 times loose.

    >>> round(ppm_multiplier(Budget(1.0, 1e-4), rounds=3), 3)
    10.513
    """
    limit = 4 * math.log(1 / budget.delta)
    require(
        budget.epsilon <= limit,
        f"PPM's calibration holds for epsilon <= 4 log(1/delta) = {limit:.4g} only, got epsilon = {budget.epsilon}",
    )
    return math.sqrt(4 * rounds * math.log(1 / budget.delta)) / budget.epsilon


def ppm_scale(budget: Budget, *, rounds: int, basis: Array) -> float:
    """PPM Alg. 1 at its own entry-level guarantee: the multiplier times max_i ||X_i|| (PPM (8)).

    >>> round(ppm_scale(Budget(1.0, 1e-4), rounds=3, basis=np.eye(2)), 3)
    10.513
    """
    return ppm_multiplier(budget, rounds=rounds) * float(np.linalg.norm(basis, axis=1).max())


def balcan_scale(budget: Budget, *, rounds: int, basis: Array) -> float:
    """Balcan et al. (2016) and Hardt and Price (2014): sqrt(p) max |X_ij| in place of the sensitivity (PPM (3)).

    Entry level. The composition it cites has a reversed comparison sign (PPM A.2.1); the scale is the one that PPM uses.

    >>> round(balcan_scale(Budget(1.0, 1e-4), rounds=3, basis=np.eye(4)), 3)
    21.026
    """
    # What a step of the iteration changes by, if one entry of the table does.
    largest = float(np.abs(basis).max())
    return ppm_multiplier(budget, rounds=rounds) * math.sqrt(basis.shape[1]) * largest


def classical_multiplier(budget: Budget) -> float:
    """The textbook Gaussian mechanism, sqrt(2 log(1.25/delta)) / epsilon: proved for epsilon < 1 only.

    >>> round(classical_multiplier(Budget(0.5, 1e-5)), 3)
    9.69
    """
    return math.sqrt(2 * math.log(1.25 / budget.delta)) / budget.epsilon


def zcdp_multiplier(budget: Budget, *, releases: int) -> float:
    """Zero-concentrated DP (Bun and Steinke 2016), Proposition 1.3: epsilon = rho + 2 sqrt(rho log(1/delta)) for rho in all.

    Each of `releases` Gaussian releases costs 1 / (2 m^2) of rho at a multiplier m. Of the published conversions that need no
    computer this is the closest to what is needed.

    >>> round(zcdp_multiplier(Budget(1.0, 1e-6), releases=1), 3)
    5.35
    """
    logarithm = math.log(1 / budget.delta)
    root = math.sqrt(logarithm + budget.epsilon) - math.sqrt(logarithm)
    return math.sqrt(releases / 2) / root


def fedpower_multiplier(budget: Budget, *, rounds: int) -> float:
    """FedPower Alg. 2, sigma times min_i s_i: (T/p) sqrt(2 log(1.25 (T/p) / delta)) / epsilon in each of the T/p `rounds`.

    For sums instead of averages, in units of the largest entry of the basis. It splits epsilon and delta evenly over the rounds
    through `classical_multiplier`, also beyond epsilon < 1. It leaves out a factor sqrt(r) for r columns. It protects one entry
    of a Gram matrix, not a person. With more than one local step per round, no protection is known.

    >>> round(fedpower_multiplier(Budget(1.0, 1e-5), rounds=10), 2)
    52.99
    """
    require(rounds >= 1, f"rounds must be at least 1, got {rounds}")
    # Plain composition, as in the paper. Exact composition would need about the root of the rounds.
    return classical_multiplier(Budget(budget.epsilon / rounds, budget.delta / rounds))
