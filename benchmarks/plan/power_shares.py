"""How the power method should divide its budget: growing shares against equal ones, at the same rounds, width and total.

Each cell is the mean captured variance of `runs` private fits on the prepared rows (centred and clipped by numbers READ FROM
THE DATA, for this comparison only). The last lines say how often, and by how much, each growth beats equal shares.

    python benchmarks/plan/power_shares.py
"""

import argparse
from itertools import product

import numpy as np

from benchmarks.datasets import centred_and_clipped, dense, skipped
from eigenveil.core.accounting import Budget
from eigenveil.core.noise import Noise
from eigenveil.linalg import Array, orthonormal, top_eigen
from eigenveil.linalg.sketch import normals
from eigenveil.methods.base import ProductMethod, geometric_shares, ritz

GROWTHS = (1.0, ProductMethod.growth, 2.5)
DATA = ["a9a", "w8a", "usps", "connect4", "jester1", "mnist:test"]


def captured(gram: Array, best: float, rank: int, width: int, shares: tuple[float, ...], mu: float, seed: int) -> float:
    """One private run: noisy products with the Gram matrix of rows in the unit ball, then Ritz vectors."""
    noise = Noise.seeded(seed)
    basis = orthonormal(np.random.default_rng(seed).standard_normal((len(gram), width)))
    for round_, share in enumerate(shares):
        noisy = gram @ basis + normals(noise, basis.shape) / (mu * np.sqrt(share))
        if round_ + 1 < len(shares):
            basis = orthonormal(noisy)
    found = ritz(basis, noisy, rank=rank).basis
    return float(np.einsum("ij,ij->", found, gram @ found) / best)


def cells(name: str, runs: int) -> list[tuple[float, ...]]:
    """Mean captured variance for each growth, by rank, epsilon, width and rounds, where the answer is neither lost nor
    trivial."""
    rows, bound = centred_and_clipped(dense(name))
    gram = rows.T @ rows / bound**2
    found = []
    for rank, epsilon, wider, rounds in product((5, 20), (0.1, 0.3, 1.0, 3.0), (2, 4), (2, 3, 4)):
        width = rank * wider
        if 2 * width > len(gram):
            continue
        best = float(top_eigen(gram, rank=rank)[0].sum())
        mu = Budget(epsilon, 1e-5).mu
        means = tuple(
            float(
                np.mean(
                    [captured(gram, best, rank, width, geometric_shares(rounds, growth=growth), mu, seed) for seed in range(runs)]
                )
            )
            for growth in GROWTHS
        )
        if 0.15 < max(means) < 0.995:
            found.append(means)
            figures = "  ".join(f"{mean:.3f}" for mean in means)
            print(f"{name:12} {len(gram):4} {rank:3} {epsilon:5g} {width:4} {rounds:3}    {figures}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="*", default=DATA)
    parser.add_argument("--runs", type=int, default=4)
    options = parser.parse_args()
    print("data            d   k   eps    p   L    " + "  ".join(f"x{growth:<4g}" for growth in GROWTHS))
    found = np.array([cell for name in options.data if not skipped(name) for cell in cells(name, options.runs)])
    if len(found) == 0:
        return
    print(f"{len(found)} cells; mean " + "  ".join(f"x{g:g}: {m:.4f}" for g, m in zip(GROWTHS, found.mean(axis=0), strict=True)))
    for index, growth in enumerate(GROWTHS[1:], start=1):
        gain = found[:, index] - found[:, 0]
        print(
            f"x{growth:g} against equal shares: better in {np.mean(gain > 0):.0%} of cells, "
            f"mean gain {gain.mean():+.4f}, best {gain.max():+.3f}, worst {gain.min():+.3f}"
        )


if __name__ == "__main__":
    main()
