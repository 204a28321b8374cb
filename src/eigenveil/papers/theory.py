"""Noise scales as the papers print them, and quantities that their theorems let a user compute: pure functions.

Every constant of an O(.) is taken as one. A noise scale is the standard deviation for rows in the unit ball and sums that are not
divided by n; a bound B multiplies it by B^2. Docstrings say what is loose or missing in each. Nothing here is a default anywhere.

Those marked DIAGNOSTIC read private data. Their values are private too and must not be published.
"""

import math
from collections.abc import Sequence

import numpy as np

from eigenveil.core.accounting import Budget
from eigenveil.errors import require
from eigenveil.linalg import Array

__all__ = [
    "analyze_gauss_scale",
    "balcan_scale",
    "classical_multiplier",
    "ddppm_bound",
    "ddppm_corollary",
    "ddppm_rho",
    "ddppm_rounds",
    "fedpower_eta",
    "fedpower_full",
    "fedpower_multiplier",
    "fedpower_rows",
    "fedpower_scheme_1",
    "fedpower_scheme_2",
    "fpca_ceiling",
    "fpca_eta",
    "fpca_growth",
    "fpca_rows",
    "fpca_sample_size",
    "fpca_scale",
    "fpca_tree_factor",
    "mod_sulq_scale",
    "ppm_eta_after",
    "ppm_eta_before",
    "ppm_multiplier",
    "ppm_ratio",
    "ppm_rounds",
    "ppm_scale",
    "sulq_scale",
    "zcdp_multiplier",
]


def fedpower_eta(grams: Sequence[Array], sizes: Sequence[float]) -> float:
    """FedPower Assumption 1: the least eta with ||M_i - M||_2 <= eta ||M||_2 for all devices. DIAGNOSTIC.

    `grams` are A_i^T A_i, (d, d), and `sizes` their numbers of rows s_i, so M_i = A_i^T A_i / s_i and M is of all rows.
    """
    whole = np.sum(grams, axis=0) / sum(sizes)
    apart = max(float(np.linalg.norm(gram / size - whole, 2)) for gram, size in zip(grams, sizes, strict=True))
    return apart / float(np.linalg.norm(whole, 2))


def fedpower_rows(eta: float, *, coherence: float, rank: int, devices: int, failure: float) -> float:
    """FedPower Lemma 24: s_i >= 3 mu rho / eta^2 log(rho m / zeta) rows at every device give Assumption 1 with this eta.

    `coherence` is the row coherence mu and `rank` the rank rho of all rows. It holds with probability 1 - `failure`.
    """
    require(0 < eta < 1 and 0 < failure < 1, f"eta and failure must lie between 0 and 1, got {eta} and {failure}")
    return 3 * coherence * rank / eta**2 * math.log(rank * devices / failure)


def fedpower_full(
    values: Sequence[float],
    *,
    k: int,
    width: int,
    dim: int,
    weights: Sequence[float],
    sigma: float,
    communications: int,
    eta: float,
    rho: float,
) -> tuple[float, float]:
    """FedPower Theorem 5: I_1 (3.4), of noise, and I_2 (3.5), of local steps, for singular `values` of M, largest first.

    `sigma` is the devices' noise and `rho` the largest residual (3.3). (3.5) prints (1 - rho_1) where (3.4) and the proof have
    (1 - p_1), which is taken here.
    """
    gap = _gap(values, k) * (1 - (1 - max(weights)) * rho)
    noise = sigma * math.sqrt(math.fsum(p * p for p in weights)) * math.sqrt(width)
    return noise * _tail(dim, communications) / gap, values[0] * (eta + (2 + eta) * rho) / gap


def fedpower_scheme_1(
    values: Sequence[float],
    *,
    k: int,
    width: int,
    dim: int,
    weights: Sequence[float],
    sigma: float,
    communications: int,
    eta: float,
    rho: float,
    participants: int,
) -> tuple[float, float, float]:
    """FedPower Theorem 8: I_1 to I_3, (3.8) to (3.10), for K devices drawn by size with replacement."""
    gap = _gap(values, k) * (1 - rho)
    squares = math.fsum(p * p for p in weights)
    phi = (1 - squares) / participants + squares + 1 / participants
    spread = math.log(dim + width) + math.log(communications)
    return (
        sigma * math.sqrt(width / participants) * _tail(dim, communications) / gap,
        values[0] * (eta + (2 + eta) * rho) / gap,
        values[0] * phi * spread / gap,
    )


def fedpower_scheme_2(
    values: Sequence[float],
    *,
    k: int,
    width: int,
    dim: int,
    weights: Sequence[float],
    sigma: float,
    communications: int,
    eta: float,
    rho: float,
    participants: int,
) -> tuple[float, float, float, float]:
    """FedPower Theorem 9: I_1 to I_4, (3.11) to (3.14), for K devices drawn evenly without replacement."""
    ordered, share = sorted(weights), len(weights) / participants
    largest, smallest = math.fsum(ordered[-participants:]), math.fsum(ordered[:participants])
    largest_squares = math.fsum(p * p for p in ordered[-participants:])
    squares = math.fsum(p * p for p in weights)
    gap = _gap(values, k) * share * (smallest - largest * rho)
    require(gap > 0, "the smallest K devices must weigh more than rho times the largest K")
    psi = (1 - squares) / participants + squares + share * squares
    factor = max(share * largest, 1.0)
    spread = math.log(dim + width) + math.log(communications)
    return (
        factor * math.sqrt(largest_squares) * share * sigma * math.sqrt(width) * _tail(dim, communications) / gap,
        factor * share * largest * values[0] * (eta + (2 + eta) * rho) / gap,
        factor * values[0] * psi * spread / gap,
        largest * values[0] * share * abs(share * largest - 1) / gap,
    )


def _gap(values: Sequence[float], k: int) -> float:
    require(1 <= k < len(values), f"k must be from 1 to {len(values) - 1}, one less than the singular values, got {k}")
    require(values[k - 1] > values[k], "the singular values k and k + 1 are equal: no bound is known")
    return values[k - 1] - values[k]


def _tail(dim: int, communications: int) -> float:
    """sqrt(d) + sqrt(log T/p): how large a Gaussian d x r matrix gets in some communication."""
    return math.sqrt(dim) + math.sqrt(math.log(communications))


def fpca_eta(eigenvalues: Sequence[float], *, rank: int, alpha: float = 1.0, p: float = 2.0) -> float:
    """FPCA (11): eta_r = lambda_1 / lambda_r + sqrt(2 alpha rho_r^2 / (p^(1/3) lambda_r)), rho_r^2 the sum beyond r.

    Theorem 1 then holds with probability at least one minus the printed sum, which the text calls "at most".
    """
    require(1 <= rank <= len(eigenvalues), f"rank must be from 1 to {len(eigenvalues)}, got {rank}")
    first, last, rest = eigenvalues[0], eigenvalues[rank - 1], math.fsum(eigenvalues[rank:])
    return first / last + math.sqrt(2 * alpha * rest / (p ** (1 / 3) * last))


def fpca_growth(eta: float, *, rows: int, block: int, p: float = 2.0) -> float:
    """FPCA (12): how much the residual may exceed that of offline PCA, (tau / b)^(p eta_r^2 - 1)."""
    return float((rows / block) ** (p * eta**2 - 1))


def fpca_ceiling(omega: float, *, dim: int) -> float:
    """FPCA (37): no mask of deviation `omega` finds E|<v1, v1^>| above this for all data sets; 1 where the bound says nothing.

    (38) has no upper end, which is 1. Before (48) K stands for log K; the bracket is positive from there on.
    """
    need = 1 / omega**2 + math.log(2)
    low = max(
        1 / math.sqrt(2 * math.pi * dim),
        math.sqrt(1 - math.exp(-2 * math.log(8 * dim) / (dim - 1))),
        math.sqrt(1 - math.exp(-(2 / omega**2 + math.log(256)) / (dim - 1))),
    )
    if low >= 1:
        return 1.0
    phi = np.linspace(low, 1, 20_001)[:-1]
    entropy = -0.5 * (dim - 1) * np.log1p(-np.square(phi)) - math.log(8)
    bracket = 1 - np.divide(need, entropy, out=np.ones_like(entropy), where=entropy > need)
    return float(np.min(1 - (1 - phi) / 4 * np.square(bracket)))


def fpca_rows(budget: Budget, *, dim: int, omega: float) -> float:
    """FPCA Lemma 2.2: the rows T_eps from which the mask of (17) is at most `omega`. The printed bracket must not be inverted."""
    return fpca_scale(budget, dim=dim) / omega


def fpca_sample_size(budget: Budget, *, dim: int) -> float:
    """FPCA (51) up to its constants: d^(3/2) sqrt(log(d / delta)) / epsilon rows for a given correlation."""
    return math.sqrt(dim**3 * math.log(dim / budget.delta)) / budget.epsilon


def fpca_tree_factor(levels: int) -> float:
    """FPCA Theorem 3: a tree of q levels loses at most (1 + sqrt 2)^(q+1) - 1 times the best residual of rank r."""
    return float((1 + math.sqrt(2)) ** (levels + 1) - 1)


def ppm_rounds(eigenvalues: Sequence[float], *, k: int, q: int, dim: int) -> float:
    """PPM Theorem 3.3: L = lambda_k / (lambda_k - lambda_(q+1)) log n, with k <= q, up to a constant."""
    return float(eigenvalues[k - 1] / (eigenvalues[k - 1] - eigenvalues[q]) * math.log(dim))


def ppm_eta_after(budget: Budget, *, largest_row: float, rounds: int, dim: int, gap: float) -> float:
    """PPM (10): the error known after a run whose bases had rows up to `largest_row`; `gap` is lambda_k - lambda_(q+1)."""
    spread = math.sqrt(rounds * dim * math.log(1 / budget.delta) * math.log(rounds))
    return largest_row * spread / (budget.epsilon * gap)


def ppm_eta_before(budget: Budget, *, mu0: float, width: int, rounds: int, dim: int, gap: float, mu1: float = 1.0) -> float:
    """PPM (12): the error known before a run, with min(mu_0 sqrt(p log n), mu_1) in place of a row's length.

    mu_1 is 1 for every matrix, because all eigenvectors form an orthogonal matrix.
    """
    row = min(mu0 * math.sqrt(width * math.log(dim)), mu1)
    return ppm_eta_after(budget, largest_row=row, rounds=rounds, dim=dim, gap=gap)


def ppm_ratio(k: int, n: int) -> float:
    """PPM (13): the ratio of the two sensitivities at a random start, by Gaussian approximations of heavy-tailed squares.

    >>> round(ppm_ratio(64, 8000), 2), round(ppm_ratio(4000, 8000), 2)
    (2.17, 2.92)
    """
    mean, variance = n / (n - 2), 2 * n**2 * (n - 1) / ((n - 2) ** 2 * (n - 4))
    prior = math.sqrt(2 * variance * math.log(k * n) * k**2 / n**2) + k * mean / n
    ours = math.sqrt(2 * variance * math.log(n) * k / n**2) + k * mean / n
    return math.sqrt(prior / ours)


def ddppm_rho(eigenvalues: Sequence[float], *, alpha: float, sigma_q: float, sigma_p: Sequence[float]) -> float:
    """D-DP-PM (39): how noise weighs the second direction against the first, for `eigenvalues` mu of the mixed Gram matrix."""
    sums = [
        sigma_q**2 + math.fsum((alpha * mu) ** (-2 * step) * sigma**2 for step, sigma in enumerate(sigma_p, 1))
        for mu in (eigenvalues[1], eigenvalues[0])
    ]
    return sums[0] / sums[1]


def ddppm_bound(
    eigenvalues: Sequence[float], *, rows: int, agents: int, per_agent: int, second: float, c: int, rounds: int, rho: float,
    mixed: Sequence[float] | None = None,
) -> float:  # fmt: skip
    """D-DP-PM (40) without its concentration terms: 2 (n_i m lambda_2^c / (lambda_1 - lambda_2) + (n - 1) rho (mu_2/mu_1)^(2T)).

    `second` is lambda_2 of the mixing matrix, `eigenvalues` lambda of X X^T and `mixed` mu, which are the same for exact sums.
    Theta and Delta of Theorem 3 refer to each other, so they are left out. DIAGNOSTIC.
    """
    mu = eigenvalues if mixed is None else mixed
    apart = per_agent * agents * second**c / (eigenvalues[0] - eigenvalues[1])
    return 2 * (apart + (rows - 1) * rho * (mu[1] / mu[0]) ** (2 * rounds))


def ddppm_corollary(eigenvalues: Sequence[float], *, alpha: float, sigma_q: float) -> float:
    """D-DP-PM Corollary 1, (41): rho <= 1 + 1 / (sigma_q^2 (1 - (alpha mu_1)^-2)) for sigma_p(t) <= (mu_2 / mu_1)^t."""
    require(1 / eigenvalues[0] < alpha < 1 / eigenvalues[1], "alpha must lie between 1 / mu_1 and 1 / mu_2")
    return 1 + 1 / (sigma_q**2 * (1 - (alpha * eigenvalues[0]) ** -2))


def ddppm_rounds(rows: Array, *, error: float = 1e-3, starts: int = 5, max_rounds: int = 10_000) -> int:
    """D-DP-PM's T*: the fewest iterations without noise whose mean sine over random starts is at most `error`. DIAGNOSTIC."""
    values = np.linalg.svd(rows, compute_uv=False)
    scores = np.random.default_rng(0).standard_normal((starts, len(values)))
    for step in range(1, max_rounds + 1):
        grown = scores * (values / values[0]) ** (2 * step)
        first = np.abs(grown[:, 0]) / np.linalg.norm(grown, axis=1)
        if float(np.mean(np.sqrt(np.maximum(0.0, 1 - first**2)))) <= error:
            return step
    raise ValueError(f"not within {max_rounds} iterations: the two largest singular values hardly differ")


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
