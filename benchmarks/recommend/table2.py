"""PPM's Table 2 on stand-ins: how far the eigenvectors of P are spread out, and what each sensitivity makes of it.

Let P = sum_u r_u r_u^T / deg_u over users, d x d over items (the paper's n), with eigenvectors U. Let mu_0 = max
|U_ij| and mu_1 = max_i ||U_i:||. The earlier bound on the sensitivity is mu_0 sqrt(log d) sqrt(p), and PPM's is mu_1
(Theorem 4.1).

Over all d eigenvectors U is square and orthogonal, so that mu_1 = 1 whatever the data are. Where P has no full rank,
mu_0 over all of them depends on the basis that a solver picks in the null space. So both are also shown over
eigenvectors of non-zero eigenvalue, where ||U_i:||^2 is the leverage of item i among users' rows. And they are shown
over the leading 32, which is what a good run ends at.

The items by items matrix of gowalla is never formed. There the leading --leading are shown, which bound both numbers
from below. For mu_1 over non-zero eigenvalues there is least squares at the most popular items: 1 - ||e_i - R^T y||^2
is at most the leverage for every y.

Then it shows rho, the largest row norm in PPM's real runs as published (p = 32, L = 3, delta = 1e-4), the bound that
depends on the run. Last is what one interaction may change. It changes P Z by sqrt(2) rho (Lemma 6.1) or
sqrt(min(rho^2, 1/m) + (m-1) rho^2 / m^2) (ours, rho itself for m = 1). It changes P by sqrt(2m-1) / m, where a user's
degree counts as at least m. A whole user changes both by at most 1. For P Z an m above 1 only helps where rho exceeds
about 1 / sqrt(m): below, one interaction of a user with m items moves the most.

About two minutes.

    python benchmarks/recommend/table2.py [--data jester1 ml100k gowalla] [--runs 10] [--leading 128]
"""

import argparse
import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from scipy.sparse.linalg import lsqr

from benchmarks.datasets import heading, line, skipped
from benchmarks.recommend.runs import DELTA, LEAST_DEGREE, STAND_INS, Scale, Table, noisy_power, published_scales, start
from eigenveil.core.accounting import Budget
from eigenveil.linalg import Array
from eigenveil.linalg.blas import blas_threads
from eigenveil.privacy.histories import interaction_gram_sensitivity, interaction_products_sensitivity

# Users, items, interactions, mu_0, mu_1 and the bounds, as the paper prints them.
PAPER: Final = {
    "Amazon-book": ("52643", "91599", "2984108", "0.33", "0.99", "1.12 sqrt(p)", "0.99"),
    "MovieLens": ("71567", "10677", "7972582", "0.39", "1.00", "1.19 sqrt(p)", "1.00"),
    "EachMovie": ("74425", "1649", "2216887", "0.49", "1.00", "1.33 sqrt(p)", "1.00"),
    "Jester": ("54906", "151", "1450010", "0.73", "1.00", "1.64 sqrt(p)", "1.00"),
}
RANK: Final = 32
EPSILONS: Final = (1.0, 3.0, 10.0)
# How many popular items are tried by least squares, and how long each.
_POPULAR, _STEPS = 10, 300


def spreads(data: Table, leading: int) -> dict[str, Array]:
    """Eigenvectors, (d, k), by the words that say which."""
    if data.covariance is None:
        vectors = data.leading(leading)[1]
        return {f"leading {RANK}": vectors[:, :RANK], f"leading {leading}": vectors}
    values, vectors = data.leading(data.items)
    alive = int((values > values[0] * data.items * np.finfo(float).eps).sum())
    found = {f"leading {RANK}": vectors[:, :RANK], f"non-zero, {alive}": vectors[:, :alive]}
    if alive < data.items:
        found[f"all {data.items}"] = vectors
    return found


def coherences(vectors: Array) -> tuple[float, float]:
    """mu_0 and mu_1 of eigenvectors, (d, k)."""
    return float(np.abs(vectors).max()), float(np.linalg.norm(vectors, axis=1).max())


def leverage_from_below(data: Table) -> float:
    """A number that mu_1 over non-zero eigenvalues is at least, by least squares at the most popular items."""
    turned, best = data.unit.T.tocsr(), 0.0
    for item in np.argsort(-data.degrees)[:_POPULAR]:
        target = np.zeros(data.items)
        target[item] = 1.0
        rest = target - turned @ lsqr(turned, target, iter_lim=_STEPS)[0]
        best = max(best, 1 - float(rest @ rest))
    return math.sqrt(best)


def describe(data: Table, leading: int) -> None:
    """The lines of one data set in Table 2."""
    facts = [str(data.users), str(data.items), str(int(data.rows.sum()))]
    for words, vectors in spreads(data, leading).items():
        largest, longest = coherences(vectors)
        prior = f"{largest * math.sqrt(math.log(data.items)):.2f} sqrt(p)"
        line([data.name, words, *facts, f"{largest:.3f}", f"{longest:.3f}", prior, f"{longest:.3f}"])
    if data.covariance is None:
        least = f"{leverage_from_below(data):.4f} to 1"
        line([data.name, "non-zero", *facts, "at least the above", least, "at least the above", least])


def largest_row_norms(data: Table, runs: int) -> dict[str, float]:
    """rho over runs and iterations of PPM as published, at each epsilon and without noise."""
    scales: dict[str, Scale] = {
        f"epsilon = {epsilon:g}": published_scales(Budget(epsilon, DELTA), users=data.users)["PPM"] for epsilon in EPSILONS
    }
    scales["no noise"] = lambda _: 0.0
    found = {}
    for words, scale in scales.items():
        done = [noisy_power(data, start(data.items, RANK, seed=seed), scale=scale, seed=seed).row_norms for seed in range(runs)]
        found[words] = float(np.max(done))
    return found


def sensitivities(data: Table, runs: int) -> None:
    """What one interaction may change, by the row norms of real runs."""
    least = LEAST_DEGREE[data.name]
    for words, norm in largest_row_norms(data, runs).items():
        both = [interaction_products_sensitivity(count, largest_row_norm=norm, basis_norm=1.0) for count in (1, least)]
        cells = [norm, math.sqrt(2) * norm, *both, *(interaction_gram_sensitivity(count) for count in (1, least))]
        line([data.name, words, str(least), *(f"{value:.3f}" for value in cells), "1"])


def show(names: Sequence[str], runs: int, leading: int) -> None:
    """Both tables."""
    present = [Table.load(name) for name in names if not skipped(name)]
    print("\nTable 2\n")
    facts = ["users", "items", "interactions", "mu_0", "mu_1"]
    heading(["data", "eigenvectors", *facts, "earlier bound", "PPM's bound"])
    for name, cells in PAPER.items():
        line([f"{name}, as printed", "", *cells])
    for data in present:
        describe(data, leading)
    print(f"\nsensitivities to one interaction, p = {RANK}, {runs} runs\n")
    products = ["P Z: sqrt(2) rho (paper)", "P Z: ours, m = 1", "P Z: ours, m", "P: ours, m = 1", "P: ours, m"]
    heading(["data", "PPM's run", "m", "rho", *products, "whole user"])
    for data in present:
        sensitivities(data, runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="*", default=list(STAND_INS), choices=list(STAND_INS))
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--leading", type=int, default=128, help="eigenvectors where all of them are too many")
    options = parser.parse_args()
    for name in options.data:
        print(f"{name} stands in for {STAND_INS[name]}")
    with blas_threads(1):
        show(options.data, options.runs, options.leading)


if __name__ == "__main__":
    main()
