"""What fits with a budget really find in real tables: the truth that grid.py compares the planner's predictions
with.

Every cell is one table, one epsilon and one method, fitted by the public estimators with several seeds. It has
`captured`, the variance along the directions found over that along the best ones, and `sine`, the largest to the best
space. Tables are scaled into the unit ball by numbers READ FROM THE DATA: their own means, their own deviations where
units differ, and the 0.95 quantile of their own norms. That is for this comparison only, and no figure here is a
private release.

All cells take about two hours on one core, so results are appended to a file. A second run continues where the first
one stopped, and one with more --seconds repeats fits where they disagree. Left out: masks and peers beyond 500
columns for all but covariances, nearly everything beyond 1000, and what already captures more than 0.99 with less
epsilon.

    python benchmarks/plan/truth.py --cache FILE [--data wine usps ...] [--seconds 2] [--error 0.006]
"""

import argparse
import json
import tempfile
import time
import warnings
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, final

import numpy as np
from sklearn import datasets as shipped

from benchmarks.datasets import centred_and_clipped, dense, skipped
from eigenveil import FederatedPCA, GossipPCA, PrivatePCA, StreamingPCA
from eigenveil.estimators.bounds.spectrum import released_spectrum
from eigenveil.linalg import Array, sines, top_eigen
from eigenveil.linalg.blas import blas_threads
from eigenveil.plan.facts import METHODS as COMPARED
from eigenveil.plan.facts import parts_of
from eigenveil.trackers import published_as

__all__ = ["CACHE", "DATA", "DELTA", "EPSILONS", "METHODS", "RELEASED", "SITES", "Cell", "Table", "Truths", "cells_of", "measure"]

DELTA: Final = 1e-5
EPSILONS: Final = (0.1, 0.3, 1.0, 3.0, 10.0)
SITES: Final = 5
# What a spectrum is released for beside the fit, where one is.
RELEASED: Final = 0.1
CACHE: Final = Path(tempfile.gettempdir()) / "eigenveil-plan" / "truth.json"
# Columns of these come in units of their own, and are divided by their own deviations.
_MIXED: Final = (
    *("wine", "breast_cancer", "diabetes", "housing", "winequality_red", "cover10", "credit_default"),
    *("exchange_rate", "protein_homology"),
)
_SHIPPED: Final = ("wine", "breast_cancer", "diabetes", "digits")
DATA: Final = (
    *("wine", "diabetes", "housing", "breast_cancer", "winequality_red", "exchange_rate", "cover10", "credit_default"),
    *("motes_light", "digits", "protein_homology", "jester1", "a9a", "connect4", "usps", "w8a"),
    *("pbmc68k_reduced", "mnist:test", "ml100k"),
)
# Tables for which the mean is found privately as well, and the methods that do so.
CENTRED: Final = ("breast_cancer", "winequality_red", "digits", "jester1", "a9a", "usps")
_CENTRED_METHODS: Final = (
    *("curator/covariance", "curator/power", "hub/covariance", "hub/krylov", "site/covariance", "masked/covariance"),
)
_MOST_ROWS: Final = 30_000
_MANY_COLUMNS, _TOO_MANY_COLUMNS = 500, 1000
# Fits of a cell: the most, and by columns the fewest, as fits of few columns differ more.
_MOST: Final = 200
_FEWEST: Final = ((30, 24), (100, 8), (10_000, 4))
_FEWEST_QUICK: Final = 8
# Cells beyond these, after the first fits, are not worth more of them: they are not scored.
_NOTHING, _EVERYTHING = 0.15, 0.99


@final
@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Rows in the unit ball around their mean, (n, d), in a random order, with the eigenvalues of their average product, (d,)."""

    name: str
    rows: Array
    rank: int
    gram: Array
    values: Array
    best: Array

    @classmethod
    def load(cls, name: str) -> "Table":
        """One of `DATA`. Its mean, deviations and norm are READ FROM THE DATA."""
        if name in _SHIPPED:
            more = {"scaled": False} if name == "diabetes" else {}
            rows = np.asarray(getattr(shipped, f"load_{name}")(**more).data, dtype=np.float64)
        else:
            rows = dense(name)
        rows = np.random.default_rng(0).permutation(rows)[:_MOST_ROWS]
        if name in _MIXED:
            spread = rows.std(axis=0)
            rows = rows / np.where(spread > 0, spread, 1.0)
        rows, bound = centred_and_clipped(rows)
        return cls.of(name, rows / bound)

    @classmethod
    def of(cls, name: str, rows: Array) -> "Table":
        """Rows that are in the unit ball already."""
        rank = 5 if rows.shape[1] >= 8 else 2
        gram = rows.T @ rows / len(rows)
        values, vectors = top_eigen(gram, rank=rows.shape[1])
        return cls(name, rows, rank, gram, np.maximum(values, 0.0), vectors[:, :rank])

    @property
    def sites(self) -> list[Array]:
        """The rows at `SITES` places, as evenly as possible."""
        return list(np.array_split(self.rows, SITES))

    def facts(self) -> dict[str, Any]:
        """What a prediction starts from: the true spectrum, and the one that a small release shows, None if that is noise."""
        people, dim = self.rows.shape
        known = {"people": people, "dim": dim, "rank": self.rank, "values": self.values.tolist()}
        spectrum = released_spectrum(self.rows, center=None, **_terms(RELEASED, 0)).spectrum
        return {**known, "released": None if spectrum is None else spectrum.to_json()}

    def judge(self, basis: Array) -> tuple[float, float]:
        """The captured variance of a `basis`, (d, k), over the best possible, and its largest sine to the best space."""
        captured = float(np.einsum("ij,ij->", basis, self.gram @ basis) / self.values[: self.rank].sum())
        return captured, float(sines(basis, self.best)[0])


Fit = Callable[[Table, float, int, bool], Any]


def _terms(epsilon: float, seed: int) -> dict[str, Any]:
    return {"epsilon": epsilon, "delta": DELTA, "row_bound": 1.0, "random_state": seed}


def _mean(look: bool) -> dict[str, Any]:
    return {"center": "private" if look else None}


def _curator(method: Any) -> Fit:
    def fit(table: Table, epsilon: float, seed: int, look: bool) -> Any:
        return PrivatePCA(table.rank, method=method, **_mean(look), **_terms(epsilon, seed)).fit(table.rows)

    return fit


def _stream(publish: Any) -> Fit:
    def fit(table: Table, epsilon: float, seed: int, look: bool) -> Any:
        horizon = len(table.rows) if published_as(publish).needs_horizon else None
        terms: dict[str, Any] = {"center": "private" if look else None, **_terms(epsilon, seed)}
        return StreamingPCA(table.rank, publish=publish, horizon=horizon, **terms).fit(table.rows)

    return fit


def _federated(trust: Any, method: Any) -> Fit:
    def fit(table: Table, epsilon: float, seed: int, look: bool) -> Any:
        terms = {**_mean(look), **_terms(epsilon, seed)}
        return FederatedPCA(table.rank, trust=trust, method=method, **terms).fit(table.sites)

    return fit


def _peers(noise: Any, method: Any) -> Fit:
    def fit(table: Table, epsilon: float, seed: int, look: bool) -> Any:
        # Sums come out the same on every graph that is connected, and soonest where all talk to all.
        terms = {**_mean(look), **_terms(epsilon, seed), "people": len(table.rows)}
        return GossipPCA(table.rank, graph="complete", noise=noise, method=method, **terms).fit(table.sites)

    return fit


_FITS: Final[dict[str, Callable[[Any], Fit]]] = {
    "curator": _curator,
    "stream": _stream,
    "hub": partial(_federated, "hub"),
    "site": partial(_federated, "site"),
    "masked": partial(_federated, "masked"),
    "peers": partial(_peers, "pairwise"),
    "peers-independent": partial(_peers, "independent"),
}
# All that plans compare.
METHODS: Final[dict[str, Fit]] = {
    name: _FITS[setting](method) for name, (setting, method) in zip(COMPARED, map(parts_of, COMPARED), strict=True)
}


@final
@dataclass(frozen=True, slots=True)
class Cell:
    """One table, one method and one epsilon. `look`: the mean is found privately."""

    name: str
    candidate: str
    epsilon: float
    look: bool = False

    @property
    def key(self) -> str:
        """As the cache has it."""
        return f"{self.name}|{'private' if self.look else 'known'}|{self.candidate}|{self.epsilon:g}"

    def seed(self, number: int) -> int:
        """Of its fit of this number. No two cells share noise, or they would all be off together."""
        return (zlib.crc32(self.key.encode()) << 16) + number

    @classmethod
    def read(cls, key: str) -> "Cell":
        """The cell of a key."""
        name, center, candidate, epsilon = key.split("|")
        return cls(name, candidate, float(epsilon), center == "private")


@final
@dataclass(slots=True)
class Truths:
    """All that was measured: facts by table, and by key the captured variance and the sine of each fit. Changes in place."""

    path: Path | None
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    cells: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    quick: bool = False

    @classmethod
    def open(cls, path: Path) -> "Truths":
        """What is in a file, or nothing yet."""
        if not path.is_file():
            return cls(path)
        found = json.loads(path.read_text())
        return cls(path, found["facts"], found["cells"])

    def keep(self) -> None:
        """Write the file anew; without one, nothing is kept."""
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            beside = self.path.with_suffix(".new")
            beside.write_text(json.dumps({"facts": self.facts, "cells": self.cells}))
            beside.replace(self.path)

    def fewest(self, cell: Cell) -> int:
        """Fewer fits than this say little of how far they differ."""
        return _FEWEST_QUICK if self.quick else next(count for most, count in _FEWEST if self.facts[cell.name]["dim"] <= most)

    def settled(self, cell: Cell) -> bool:
        """Whether less epsilon was enough already, so that more would show nothing."""
        less = (found for key, found in self.cells.items() if _less(Cell.read(key), cell))
        return any(found["captured"] and float(np.mean(found["captured"])) > _EVERYTHING for found in less)

    def enough(self, cell: Cell, error: float) -> bool:
        """Whether the mean of a cell is known to about `error`, or is not one that is scored."""
        captured = self.cells.get(cell.key, {}).get("captured", [])
        if len(captured) < self.fewest(cell):
            return False
        mean = float(np.mean(captured))
        # Few fits may be close to each other by chance, so they are taken to differ a little more.
        known = (1 + 2 / len(captured)) * np.std(captured, ddof=1) / np.sqrt(len(captured)) <= error
        return bool(known or not _NOTHING <= mean <= _EVERYTHING or len(captured) >= _MOST)


def _less(one: Cell, other: Cell) -> bool:
    return (one.name, one.candidate, one.look) == (other.name, other.candidate, other.look) and one.epsilon < other.epsilon


def cells_of(name: str, dim: int, *, candidates: Sequence[str], epsilons: Sequence[float]) -> list[Cell]:
    """The cells of one table: all methods, without those that take too long at this many columns."""
    kept = [candidate for candidate in candidates if not _too_slow(candidate, dim)]
    found = [Cell(name, candidate, epsilon) for epsilon in epsilons for candidate in kept]
    if name in CENTRED:
        found += [
            Cell(name, candidate, epsilon, look=True)
            for epsilon in epsilons
            for candidate in kept
            if candidate in _CENTRED_METHODS
        ]
    return found


def _too_slow(candidate: str, dim: int) -> bool:
    setting, _, method = candidate.partition("/")
    if dim > _TOO_MANY_COLUMNS:
        return candidate not in ("curator/covariance", "curator/power", "hub/krylov", "site/covariance")
    return dim > _MANY_COLUMNS and setting in ("masked", "peers", "peers-independent") and method != "covariance"


def measure(truths: Truths, table: Table, cells: Sequence[Cell], *, error: float, seconds: float) -> None:
    """Fit each cell with further seeds until its mean is known to `error`, or for about `seconds`."""
    truths.facts[table.name] = table.facts()
    for cell in cells:
        if truths.settled(cell):
            continue
        found = truths.cells.setdefault(cell.key, {"captured": [], "sine": []})
        begun = time.perf_counter()
        while not truths.enough(cell, error):
            count = len(found["captured"])
            if count >= truths.fewest(cell) and time.perf_counter() - begun > seconds:
                break
            with warnings.catch_warnings():
                # How much room a masked sum has, and that nothing can be told from noise, is no news here.
                warnings.simplefilter("ignore", UserWarning)
                fitted = METHODS[cell.candidate](table, cell.epsilon, cell.seed(count), cell.look)
            captured, sine = table.judge(np.asarray(fitted.subspace_.basis))
            found["captured"].append(captured)
            found["sine"].append(sine)
    truths.keep()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=CACHE)
    parser.add_argument("--data", nargs="*", default=list(DATA))
    parser.add_argument("--epsilons", nargs="*", type=float, default=list(EPSILONS))
    parser.add_argument("--error", type=float, default=0.006, help="the standard error that is good enough")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each cell, beyond its first fits")
    options = parser.parse_args()
    truths = Truths.open(options.cache)
    for name in options.data:
        if name not in _SHIPPED and skipped(name):
            continue
        begun = time.perf_counter()
        table = Table.load(name)
        cells = cells_of(name, table.rows.shape[1], candidates=list(METHODS), epsilons=options.epsilons)
        with blas_threads(1):
            for epsilon in options.epsilons:
                some = [cell for cell in cells if cell.epsilon == epsilon]
                measure(truths, table, some, error=options.error, seconds=options.seconds)
        size = f"{table.rows.shape[0]} x {table.rows.shape[1]}"
        print(f"{name} {size}: {len(cells)} cells in {time.perf_counter() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    main()
