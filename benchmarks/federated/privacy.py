"""What a budget buys by trust and method: captured variance of the top 5 over the best possible, mean of five runs.

Rows are centred privately and clipped at the 0.95 quantile of their norms around the mean. That bound is READ FROM
THE DATA, for this comparison only and the same for every line. The best possible is that of the rows centred and
clipped so. delta = 1e-5, one whole row, add/remove. "both" guarantees 3 epsilon against the hub and epsilon against
everybody else. `PrivatePCA` has all rows in one place. In uda, wda and merge the sites add noise. With noise at m
sites there is about sqrt(m) times a curator's noise.

    python benchmarks/federated/privacy.py [--quick] [--data a9a ...] [--epsilons 0.3 1 3]
"""

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.datasets import centred_and_clipped, dense, heading, line, skipped
from benchmarks.federated.runs import shuffled_sites
from eigenveil import FederatedPCA, PrivatePCA
from eigenveil.linalg import Array, captured_variance
from eigenveil.linalg.blas import blas_threads

NAMES = ("a9a", "usps", "connect4", "mnist")
RANK, DELTA, LESS = 5, 1e-5, 3.0

Fit = Callable[[Sequence[Array], dict[str, Any]], Array]


def federated(**settings: Any) -> Fit:
    """The directions, (d, k), that a federation finds."""

    def run(sites: Sequence[Array], terms: dict[str, Any]) -> Array:
        epsilon = terms["epsilon"]
        asked = {**terms, "epsilon": (LESS * epsilon, epsilon)} if settings["trust"] == "both" else terms
        return FederatedPCA(RANK, **asked, **settings).fit(sites).subspace_.basis

    return run


def pooled(sites: Sequence[Array], terms: dict[str, Any]) -> Array:
    """All rows in one place."""
    return PrivatePCA(RANK, **terms).fit(np.concatenate(sites)).subspace_.basis


def fits() -> dict[str, Fit]:
    """Each line of the table."""
    found: dict[str, Fit] = {"PrivatePCA": pooled}
    for trust in ("hub", "site", "both"):
        for method in ("covariance", "power", "krylov"):
            found[f"{trust}, {method}"] = federated(trust=trust, method=method)
    found["site, fedpower p=2"] = federated(trust="site", method="fedpower", local_steps=2)
    for method in ("merge", "uda", "wda"):
        found[f"site, {method}"] = federated(trust="site", method=method)
    return found


def measure(name: str, counts: Sequence[int], epsilons: Sequence[float], runs: int) -> None:
    """The lines of one data set."""
    rows = dense(name)
    clipped, bound = centred_and_clipped(rows)
    gram = clipped.T @ clipped
    del clipped
    for count in counts:
        for words, fit in fits().items():
            if words == "PrivatePCA" and count != counts[0]:
                continue
            cells = []
            for epsilon in epsilons:
                kept = [
                    captured_variance(
                        gram,
                        fit(
                            shuffled_sites(rows, count, seed=seed),
                            {"epsilon": epsilon, "delta": DELTA, "row_bound": bound, "random_state": seed},
                        ),
                    )
                    for seed in range(runs)
                ]
                cells.append(f"{np.mean(kept):.4f} ({min(kept):.3f}-{max(kept):.3f})")
            where = "1" if words == "PrivatePCA" else str(count)
            line([f"{name} {rows.shape[0]} x {rows.shape[1]}", where, words, *cells])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="*", default=list(NAMES))
    parser.add_argument("--epsilons", nargs="*", type=float, default=[0.3, 1.0, 3.0])
    parser.add_argument("--sites", nargs="*", type=int, default=[5, 20])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="a9a and 5 sites, one run each")
    options = parser.parse_args()
    if options.quick:
        options.data, options.sites, options.runs = ["a9a"], [5], 1
    print(f"delta = {DELTA:g}; the row bound is READ FROM THE DATA for this benchmark only; mean (range)\n")
    heading(["data", "sites", "trust, method", *(f"epsilon = {epsilon:g}" for epsilon in options.epsilons)])
    with blas_threads(1):
        for name in options.data:
            if not skipped(name):
                measure(name, options.sites, options.epsilons, options.runs)


if __name__ == "__main__":
    main()
