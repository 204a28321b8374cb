"""Real data for benchmarks, from the folder in EIGENVEIL_DATA (default ../shared/data). Missing files are skipped and
named.

Nothing here is needed to install, use or test the project.
"""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from eigenveil.linalg import Array

__all__ = ["FOLDER", "centred_and_clipped", "dense", "heading", "line", "skipped", "sparse", "within_one"]

FOLDER = Path(os.environ.get("EIGENVEIL_DATA", Path(__file__).resolve().parents[1] / ".." / "shared" / "data"))


def skipped(name: str) -> bool:
    """Whether the data set is not there; says so."""
    missing = not (FOLDER / f"{name.partition(':')[0]}.npz").is_file()
    if missing:
        print(f"skipped {name}: no {name.partition(':')[0]}.npz in {FOLDER} (set EIGENVEIL_DATA)")
    return missing


def dense(name: str) -> Array:
    """A data set as float64 rows. `mnist:train` and `mnist:test` are MNIST's two sets; codes for missing entries become zero."""
    base = name.partition(":")[0]
    with np.load(FOLDER / f"{base}.npz", allow_pickle=False) as archive:
        rows = archive["X"].astype(np.float64) if "X" in archive else sparse(base).toarray()
    if name == "mnist:train":
        rows = rows[:60_000]
    if name == "mnist:test":
        rows = rows[60_000:]
    if base == "jester1":
        rows[rows == 99] = 0.0
    if base in {"hapmap3", "kg1_phase1"}:
        rows[rows < 0] = 0.0
    return np.asarray(rows, dtype=np.float64)


def sparse(name: str) -> Any:
    """A sparse data set in CSR form, float64; gowalla as the binary matrix it is."""
    matrix = sp.csr_array(sp.load_npz(FOLDER / f"{name}.npz")).astype(np.float64)
    if name == "gowalla":
        matrix.data[:] = 1.0
    return matrix


def centred_and_clipped(rows: Array, *, quantile: float = 0.95) -> tuple[Array, float]:
    """Rows around their own mean, clipped at the given quantile of their own norms, and that norm.

    Both are read from the data: fine for a benchmark that compares mechanisms on equal terms, never for a release.
    """
    rows = rows - rows.mean(axis=0)
    norms = np.linalg.norm(rows, axis=1)
    bound = float(np.quantile(norms, quantile))
    rows *= np.minimum(1.0, bound / np.maximum(norms, 1e-300))[:, None]
    return rows, bound


def within_one(name: str, *, affine: bool = False) -> Array:
    """A data set with every entry in [-1, 1], as the LIBSVM site gives it. Extremes are READ FROM THE DATA.

    Tables that lie in [-1, 1] already (indicators, usps) stay as they are, and MNIST is divided by 255. In all others, or with
    `affine` in these too, each column is mapped by x -> 2 (x - min) / (max - min) - 1, which is svm-scale -l -1 -u 1. Columns
    that never vary become zero.
    """
    rows = dense(name)
    if not affine and name.partition(":")[0] == "mnist":
        rows /= 255.0
    low, high = rows.min(axis=0), rows.max(axis=0)
    if not affine and low.min() >= -1.0 and high.max() <= 1.0:
        return rows
    rows -= low
    rows *= 2.0 / np.where(high > low, high - low, 1.0)
    rows -= np.where(high > low, 1.0, 0.0)
    return rows


def heading(columns: Sequence[str]) -> None:
    """The first two lines of a markdown table."""
    line(columns)
    line(["---"] * len(columns))


def line(cells: Iterable[str]) -> None:
    """One line of a markdown table, as soon as it is there."""
    print("| " + " | ".join(cells) + " |", flush=True)
