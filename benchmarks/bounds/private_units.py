"""Standardising privately: how much a fit with scale="private" captures of the variance of exactly standardised columns.

Synthetic tables have columns in different units, far from zero; `ratio` is mean over spread. Real tables are those in
EIGENVEIL_DATA. `given` is the same fit with the exact means and spreads as public numbers, which nobody has.

    EIGENVEIL_DATA=... python benchmarks/bounds/private_units.py
"""

import argparse
import warnings

import numpy as np

from benchmarks.datasets import dense, skipped
from eigenveil import PrivatePCA
from eigenveil.linalg import Array

RANK = 5
REAL = ["winequality_red", "credit_default", "jester1", "motes_light", "protein_homology", "cover10", "a9a"]


def synthetic(people: int, columns: int, ratio: float, seed: int) -> Array:
    """Correlated columns in units from 1e-3 to 1e3, each `ratio` of its spreads away from zero."""
    rng = np.random.default_rng(seed)
    rank = max(3, columns // 5)
    loadings = rng.standard_normal((columns, rank)) * np.linspace(2, 0.5, rank)
    rows = rng.standard_normal((people, rank)) @ loadings.T + rng.standard_normal((people, columns))
    units = 10 ** rng.uniform(-3, 3, columns)
    return np.asarray((rows / rows.std(axis=0) + ratio * rng.choice([-1, 1], columns)) * units)


def captured(components: Array, rows: Array) -> float:
    spread = rows.std(axis=0)
    correlation = np.cov(((rows - rows.mean(axis=0)) / np.where(spread > 0, spread, 1.0)).T)
    best = np.linalg.eigvalsh(correlation)[-len(components) :].sum()
    return float(np.einsum("ij,jk,ik->", components, correlation, components) / best)


def line(name: str, rows: Array, runs: int, epsilon: float) -> None:
    spread = rows.std(axis=0)
    bound = float(np.sqrt(rows.shape[1]))
    known = {"scale": np.where(spread > 0, spread, 1.0), "origin": rows.mean(axis=0), "mean_bound": bound, "row_bound": bound}
    found = []
    for choices in ({"scale": "private"}, known):
        try:
            fits = [PrivatePCA(RANK, epsilon=epsilon, delta=1e-6, random_state=run, **choices).fit(rows) for run in range(runs)]
        except ValueError as error:
            found.append(f"refused: {str(error)[:60]}...")
            continue
        flat = max(len(pca.model_.settings.get("flat_columns", [])) for pca in fits)
        found.append(f"{np.mean([captured(pca.components_, rows) for pca in fits]):.3f} ({flat} flat)")
    print(f"{name:34} {rows.shape[0]:6} x {rows.shape[1]:<4} private {found[0]}, given {found[1]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--epsilon", type=float, default=1.0)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    for people, columns, ratio in ((5000, 11, 333.0), (5000, 11, 1e5), (5000, 100, 30.0), (50_000, 100, 30.0)):
        rows = synthetic(people, columns, ratio, seed=1)
        line(f"synthetic, mean / spread {ratio:g}", rows, options.runs, options.epsilon)
    for name in REAL:
        if not skipped(name):
            line(name, dense(name), options.runs, options.epsilon)


if __name__ == "__main__":
    main()
