"""How far a private bound on row norms is from the true quantile: one release of all counts, against a baseline.

    EIGENVEIL_DATA=... python benchmarks/bounds/quantiles.py

Norms are around zero, so that there is one release on each side and nothing but the quantile is compared.

- `counts` is what `find_bounds` does with center=None: any number of quantiles for one charge.
- `exponential` is the exponential mechanism on the same cells (McSherry and Talwar 2007; Smith 2011). It takes a cell
  with probability proportional to exp(epsilon utility / 2), where utility is minus the distance of the rank from the
  wanted one. It runs once with the same epsilon and delta = 0, and once with what the ledger would charge it. That is
  the pure epsilon whose mu, 2 Phi^-1(e^eps / (1 + e^eps)), equals that of `counts` (Dong, Roth and Su 2022): this is
  how it would add up with a fit.
- `whole` is the search around the mean, with errors against the quantile around the true mean.

Rank errors are shares of people. Bounds are over the true quantile. Truth is read from the data, for comparison only.
"""

import argparse
import math

import numpy as np
from numpy.random import Generator
from scipy.special import ndtr

from benchmarks.datasets import dense, skipped, sparse
from eigenveil.core.accounting import Budget
from eigenveil.core.counts import Bins
from eigenveil.estimators.bounds.rows import PER_DOUBLING, find_bounds
from eigenveil.linalg import Array
from eigenveil.tasks.levels import norm_cells

NAMES = (
    "winequality_red",
    "usps",
    "motes_light",
    "exchange_rate",
    "mnist:test",
    "jester1",
    "credit_default",
    "a9a",
    "w8a",
    "cover10",
)
QUANTILE, DELTA = 0.95, 1e-6


def rows_of(name: str) -> Array:
    """Dense rows."""
    return np.asarray(sparse(name).toarray()) if name == "w8a" else dense(name)


def exponential(lengths: Array, cells: Bins, epsilon: float, rng: Generator) -> float:
    """A bound by the exponential mechanism, whose utility one person moves by at most the quantile, here taken as one."""
    beyond = np.array([(lengths > edge).sum() for edge in cells.edges])
    utility = -np.abs(beyond - (1 - QUANTILE) * len(lengths))
    weights = np.exp(epsilon / 2 * (utility - utility.max()))
    return float(cells.edges[rng.choice(len(weights), p=weights / weights.sum())])


def as_charged(mu: float) -> float:
    """The pure epsilon that the ledger would charge `mu` for: a release that is private with it is mu-Gaussian-private."""
    return math.log(ndtr(mu / 2) / ndtr(-mu / 2))


def summary(bounds: list[float], lengths: Array, truth: float) -> str:
    """The median and the worst of ten in a hundred: the error in rank, in people, and in norm."""
    if not bounds:
        return "no answer"
    ranks = [abs(float((lengths > bound).mean()) - (1 - QUANTILE)) for bound in bounds]
    ratios = np.array(bounds) / truth
    low, middle, high = np.quantile(ratios, [0.05, 0.5, 0.95])
    return f"rank {np.median(ranks):.3f} ({np.quantile(ranks, 0.9):.3f})  bound {middle:.2f} [{low:.2f}, {high:.2f}]"


def main() -> None:
    """Print a line for each data set, budget and mechanism."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    runs = parser.parse_args().runs
    cells = norm_cells(1e-9, 1e12, per_doubling=PER_DOUBLING)
    print(f"{QUANTILE} quantile, delta = {DELTA:g}, {runs} runs. rank: median (90%) error; bound over the truth: median [90%]")
    for name in NAMES:
        if skipped(name):
            continue
        rows = rows_of(name)
        for epsilon in (0.1, 0.5):
            print(f"{name}, {rows.shape[0]} x {rows.shape[1]}, epsilon = {epsilon}")
            compare(rows, epsilon, cells, runs)


def compare(rows: Array, epsilon: float, cells: Bins, runs: int) -> None:
    """Print one line for each mechanism."""
    rng = np.random.default_rng(0)
    lengths = np.linalg.norm(rows, axis=1)
    truth = float(np.quantile(lengths, QUANTILE))
    seeds = range(runs)
    one = [find_bounds(rows, epsilon=epsilon, delta=DELTA, center=None, random_state=seed) for seed in seeds]
    named = [found.row_bound for found in one if found.row_bound is not None]
    charged = as_charged(Budget(epsilon, DELTA).mu)
    print(f"  counts               {summary(named, lengths, truth)}  named {len(named)} of {runs}")
    pure = [exponential(lengths, cells, epsilon, rng) for _ in seeds]
    print(f"  exponential          {summary(pure, lengths, truth)}")
    same = [exponential(lengths, cells, charged, rng) for _ in seeds]
    print(f"  exponential, charged {summary(same, lengths, truth)}  pure epsilon {charged:.4f}")
    around = np.linalg.norm(rows - rows.mean(axis=0), axis=1)
    goal = float(np.quantile(around, QUANTILE))
    whole = [find_bounds(rows, epsilon=epsilon, delta=DELTA, random_state=seed).row_bound for seed in seeds]
    found = [bound for bound in whole if bound is not None]
    print(f"  whole, around mean   {summary(found, around, goal)}  named {len(found)} of {runs}", flush=True)


if __name__ == "__main__":
    main()
