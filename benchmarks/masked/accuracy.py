"""What masks cost in accuracy: a curator's noise, masked shares and noise at every site, at one (epsilon, delta) on real data.

20 sites, top 5, delta = 1e-5, one whole row, add/remove. Rows are centred privately and clipped at the 0.95 quantile
of their norms around the mean. That bound is READ FROM THE DATA, for this comparison only and the same for every
line.

- `captured` is the variance in the directions found, of the rows centred and clipped so, over the best possible.
- `sine` is the largest to the true space. Both are means over seeds with their standard errors. In every line a seed
  has the same split into sites, but other noise.
- `noise` is `noise_floor_` over the curator's, both times the noisy number of people that they were divided by.

Where t sites must survive and c may collude, t - c shares make a curator's noise. All 20 sites do survive here, so
their noise is sqrt(20 / (t - c)) of it: 1.026 where all must survive, 1.155 where 16 must. With noise at every site
it is sqrt(20) = 4.47.

Methods: the one that the plan chooses (auto, a covariance for these) and the one that it chooses among noisy products (krylov).
About half an hour; --quick, one data set, one epsilon and three seeds, half a minute.

    python benchmarks/masked/accuracy.py [--quick] [--data a9a usps connect4] [--epsilons 0.5 1 3] [--seeds 20]
"""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from benchmarks.datasets import centred_and_clipped, dense, heading, line, skipped
from benchmarks.federated.runs import shuffled_sites
from eigenveil import FederatedPCA
from eigenveil.linalg import Array, captured_variance, sines, top_eigen
from eigenveil.linalg.blas import blas_threads

NAMES = ("a9a", "usps", "connect4")
SITES, RANK, DELTA, COLLUDERS = 20, 5, 1e-5, 1
TRUSTS: dict[str, dict[str, Any]] = {
    "hub": {"trust": "hub"},
    "masked, all must survive": {"trust": "masked", "colluders": COLLUDERS},
    "masked, 80% must survive": {"trust": "masked", "survivors": 0.8, "colluders": COLLUDERS},
    "site": {"trust": "site"},
}
# What the theory says of the noise over a curator's.
EXPECTED = {
    "hub": 1.0,
    "masked, all must survive": math.sqrt(SITES / (SITES - COLLUDERS)),
    "masked, 80% must survive": math.sqrt(SITES / (0.8 * SITES - COLLUDERS)),
    "site": math.sqrt(SITES),
}


@final
@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one fit."""

    method: str
    captured: float
    sine: float
    noise: float


def fitted(sites: Sequence[Array], gram: Array, truth: Array, **settings: Any) -> Outcome:
    """Measured against the true space, (d, k), and the Gram matrix, (d, d), of all rows."""
    pca = FederatedPCA(RANK, delta=DELTA, **settings).fit(sites)
    basis = pca.subspace_.basis
    # The floor is in units of variance; the number of people that it was divided by is itself noisy.
    people = float(pca.singular_values_[0] ** 2 / pca.explained_variance_[0])
    return Outcome(
        pca.plan_.method, captured_variance(gram, basis), float(sines(basis, truth)[0]), float(pca.noise_floor_) * people
    )


def shown(values: Sequence[float]) -> str:
    """Mean and standard error."""
    return f"{np.mean(values):.4f} ({np.std(values, ddof=1) / math.sqrt(len(values)):.4f})"


def measure(name: str, epsilons: Sequence[float], seeds: int) -> None:
    """The lines of one data set."""
    rows = dense(name)
    clipped, bound = centred_and_clipped(rows)
    gram = clipped.T @ clipped
    del clipped
    truth = top_eigen(gram, rank=RANK)[1]
    for method in ("auto", "krylov"):
        for epsilon in epsilons:
            floor = 0.0
            for words, settings in TRUSTS.items():
                terms = {"epsilon": epsilon, "row_bound": bound, "method": method, **settings}
                runs = [
                    fitted(shuffled_sites(rows, SITES, seed=seed), gram, truth, random_state=seed, **terms)
                    for seed in range(seeds)
                ]
                mean = float(np.mean([run.noise for run in runs]))
                floor = floor or mean
                line(
                    [
                        f"{name} {rows.shape[0]} x {rows.shape[1]}",
                        f"auto: {runs[0].method}" if method == "auto" else method,
                        f"{epsilon:g}",
                        words,
                        shown([run.captured for run in runs]),
                        shown([run.sine for run in runs]),
                        f"{mean / floor:.4f} ({EXPECTED[words]:.4f})",
                    ]
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="*", default=list(NAMES))
    parser.add_argument("--epsilons", nargs="*", type=float, default=[0.5, 1.0, 3.0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--quick", action="store_true", help="usps at epsilon = 1, three seeds")
    options = parser.parse_args()
    if options.quick:
        options.data, options.epsilons, options.seeds = ["usps"], [1.0], 3
    print(
        f"{SITES} sites, k = {RANK}, delta = {DELTA:g}, {options.seeds} seeds: mean (standard error). The row bound is READ FROM "
        "THE DATA, for this benchmark only.\n"
    )
    heading(["data", "method", "epsilon", "trust", "captured", "sine", "noise over curator's (expected)"])
    with blas_threads(1):
        for name in options.data:
            if not skipped(name):
                measure(name, options.epsilons, options.seeds)


if __name__ == "__main__":
    main()
