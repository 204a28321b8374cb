"""Missing values: dividing by privately counted entries, against filling with the mean, which nobody could know for free.

Values are taken out of real tables that have none. Each cell is the variance of the *whole* rows along five private
components, over that along exact ones, averaged over `runs` fits. On tables of fewer than 2000 rows there are five times as
many. It is shown as a difference from that after filling with the mean, with the standard error of that difference. The mean
of the entries that are left is READ FROM THE DATA and free, and so are the units of the columns. Everything else is found
privately and paid for by each fit: bound, mean, and the counts of entries.

Patterns of what is missing:
  - 20% of all values.
  - A share of each column, from 0 to 60%.
  - 30% of a tenth of the columns.
  - Whole blocks of columns, as of questionnaires: each of four lacks all of its values in 10 to 70% of the rows.
  - Nothing.

    EIGENVEIL_DATA=... python benchmarks/missing.py --runs 5
"""

import argparse
import warnings
from typing import Any

import numpy as np
from numpy.random import Generator

from benchmarks.clip_level import table
from eigenveil import PrivatePCA
from eigenveil.linalg import Array

TABLES = [
    "winequality_red",
    "credit_default",
    "housing",
    "protein_homology",
    "jester1",
    "cover10",
    "usps",
    "sklearn:digits",
    "sklearn:breast_cancer",
]
PATTERNS = ("uniform", "uneven", "few columns", "blocks", "nothing")
BLOCKS = 4
# Below this a fit finds no bound. Larger tables show less of a difference, and take longer.
LEAST, MOST = 400, 20_000
SMALL, MORE = 2000, 5
RANK, EPSILON, DELTA = 5, 1.0, 1e-5


def torn(rows: Array, pattern: str, rng: Generator) -> Array:
    """The rows with values taken out."""
    count, dim = rows.shape
    draws = rng.random((count, dim))
    match pattern:
        case "uniform":
            lost = draws < 0.2
        case "uneven":
            lost = draws < rng.uniform(0.0, 0.6, dim)
        case "few columns":
            lost = draws < np.where(np.arange(dim) < max(1, dim // 10), 0.3, 0.0)
        case "blocks":
            lost = (rng.random((count, BLOCKS)) < rng.uniform(0.1, 0.7, BLOCKS))[:, block_of(dim)]
        case _:
            lost = np.zeros(rows.shape, dtype=bool)
    return np.where(lost, np.nan, rows)


def block_of(dim: int) -> Any:
    """The block of each column."""
    return np.arange(dim) * BLOCKS // dim


def captured(rows: Array, whole: Array, values: Array, seed: int, **choices: Any) -> float:
    """The variance of whole rows along the components of a fit, over the best."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pca = PrivatePCA(RANK, epsilon=EPSILON, delta=DELTA, random_state=seed, **choices).fit(rows)
    return float(np.square(whole @ pca.components_.T).sum() / values[-RANK:].sum())


def compared(name: str, pattern: str, runs: int) -> dict[str, Array] | None:
    """What each way captured in each run, None where the table is not there or too small for this budget."""
    given = table(name)
    if given is None or len(given) < LEAST:
        return None
    found: dict[str, list[float]] = {}
    # Noise spreads runs on a small table more, and its fits take less time, so it gets more of them.
    for seed in range(runs * (MORE if len(given) < SMALL else 1)):
        rng = np.random.default_rng(seed)
        rows = given[rng.permutation(len(given))[:MOST]]
        rows = rows[:, rows.std(axis=0) > 0]
        whole = (rows - rows.mean(axis=0)) / rows.std(axis=0)
        values = np.linalg.eigvalsh(whole.T @ whole)
        lacking = torn(whole, pattern, rng)
        filled = np.where(np.isnan(lacking), np.nanmean(lacking, axis=0), lacking)
        blocks = [list(np.flatnonzero(block_of(whole.shape[1]) == block)) for block in range(BLOCKS)]
        ways: dict[str, tuple[Array, dict[str, Any]]] = {"mean": (filled, {}), "counts": (lacking, {"missing": "counts"})}
        if pattern == "blocks":
            ways["groups"] = (lacking, {"missing": "groups", "missing_groups": blocks})
        for way, (data, choices) in ways.items():
            found.setdefault(way, []).append(captured(data, whole, values, seed, **choices))
    return {way: np.array(each) for way, each in found.items()}


def main() -> None:
    """Print a table, and the worst and the average difference of each pattern."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--patterns", default=",".join(PATTERNS))
    asked = parser.parse_args()
    print(f"captured at ({EPSILON:g}, {DELTA:g}), k = {RANK}, filled with the mean, and differences")
    for pattern in asked.patterns.split(","):
        gains: dict[str, list[float]] = {}
        for name in asked.tables.split(","):
            cell = compared(name, pattern, asked.runs)
            if cell is None:
                continue
            # Both ways see the same rows with the same gaps, so the differences of runs say how far chance reaches.
            others = {way: value - cell["mean"] for way, value in cell.items() if way != "mean"}
            runs = len(cell["mean"])
            error = {way: each.std(ddof=1) / np.sqrt(runs) if runs > 1 else np.nan for way, each in others.items()}
            shown = "  ".join(f"{way} {each.mean():+.4f} +- {error[way]:.4f}" for way, each in others.items())
            print(f"{pattern:12} {name:24} {runs:4} runs  mean {cell['mean'].mean():.4f}  {shown}", flush=True)
            for way, each in others.items():
                gains.setdefault(way, []).append(float(each.mean()))
        for way, found in gains.items():
            print(f"{pattern:12} {way}: average {np.mean(found):+.4f}, worst {min(found):+.4f}", flush=True)


if __name__ == "__main__":
    main()
