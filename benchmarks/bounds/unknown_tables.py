"""Tables that nobody knows anything about: how much of the variance a fit captures that is given a budget and nothing else.

Six kinds of tables: columns in different units, heavy tails, means far from zero, sparse, wide, and small; made up, and real ones
from EIGENVEIL_DATA. Each is fitted as one table, at five sites that mask their sums, and as a stream. The captured variance is
that of the unclipped rows, over what exact components capture. Where units differ, columns are also standardised privately, with
scale="private", and the variance is that of exactly standardised columns. Prints one Markdown table.

    EIGENVEIL_DATA=... python benchmarks/bounds/unknown_tables.py
"""

import argparse
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp

from benchmarks.datasets import dense, skipped, sparse
from eigenveil import FederatedPCA, PrivatePCA, StreamingPCA
from eigenveil.errors import TooFewPeople
from eigenveil.linalg import Array

RANK, SITES = 5, 5

FITS: dict[str, Callable[..., Any]] = {
    "one table": lambda rows, **more: PrivatePCA(RANK, **more).fit(rows),
    "5 masked sites": lambda rows, **more: FederatedPCA(RANK, trust="masked", **more).fit(
        [rows[site::SITES] for site in range(SITES)]
    ),
    "stream": lambda rows, **more: StreamingPCA(RANK, **more).fit(rows),
}
# A stream standardises on its own terms, so units are compared for the first two.
STANDARDISED = ("one table", "5 masked sites")


def factors(people: int, columns: int, seed: int) -> Array:
    """Correlated columns of about the same spread: ten factors, of falling variance, and noise."""
    rng = np.random.default_rng(seed)
    loadings = rng.standard_normal((columns, 10)) * 2 * 0.8 ** np.arange(10)
    return np.asarray(rng.standard_normal((people, 10)) @ loadings.T + rng.standard_normal((people, columns)))


def made_up(people: int) -> Iterator[tuple[str, Any, bool]]:
    """Name, rows, and whether columns have units of their own."""
    rng = np.random.default_rng(1)
    alike = factors(people, 20, seed=2)
    yield "different units", (alike + rng.uniform(-20, 20, 20)) * 10 ** rng.uniform(-3, 3, 20), True
    yield "heavy tails, t with 3 degrees", alike / np.sqrt(rng.chisquare(3, (people, 1)) / 3), False
    yield "far means, 1e6 from zero", alike + 1e6 * rng.choice([-1, 1], 20), True
    topics = rng.choice(6, size=(people, 1), p=np.array([8, 4, 2, 2, 1, 1]) / 18)
    often = np.where(np.arange(300) % 6 == topics, 0.15, 0.006)
    yield "sparse, 3% of entries", sp.csr_array((rng.random((people, 300)) < often).astype(float)), False
    yield "wide", factors(people, 800, seed=3), False
    yield "small", factors(500, 20, seed=4), False


def real() -> Iterator[tuple[str, Any, bool]]:
    """The same kinds among real tables."""
    for kind, name, units in (
        ("different units", "winequality_red", True),
        ("different units", "credit_default", True),
        ("heavy tails", "protein_homology", True),
        ("far means", "cover10", True),
        ("sparse", "w8a", False),
        ("wide", "mnist:test", False),
        ("small", "housing", True),
    ):
        if not skipped(name):
            yield f"{kind}, {name}", sparse(name) if name == "w8a" else dense(name), units


def captured(components: Array, rows: Any, *, standardised: bool) -> float:
    """The variance along `components`, (k, d), over that along the exact ones."""
    whole = rows.toarray() if sp.issparse(rows) else rows
    moved = whole - whole.mean(axis=0)
    if standardised:
        spread = moved.std(axis=0)
        moved = moved / np.where(spread > 0, spread, 1.0)
    covariance = moved.T @ moved
    best = np.linalg.eigvalsh(covariance)[-len(components) :].sum()
    return float(np.einsum("ij,jk,ik->", components, covariance, components) / best)


def cell(fit: Callable[..., Any], rows: Any, runs: int, **choices: Any) -> str:
    """The mean over the runs. Among few people some may be refused: that depends on a noisy count."""
    found = []
    for run in range(runs):
        try:
            pca = fit(rows, epsilon=1.0, delta=1e-6, random_state=run, **choices)
        except TooFewPeople:
            continue
        found.append(captured(pca.components_, rows, standardised="scale" in choices))
    if not found:
        return "refused"
    return f"{np.mean(found):.3f}" + (f", {runs - len(found)} of {runs} refused" if len(found) < runs else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one run, 2000 people, and no real tables")
    options = parser.parse_args()
    # What a fit says of itself is not the point here.
    warnings.simplefilter("ignore")
    runs = 1 if options.quick else options.runs
    tables = list(made_up(2000 if options.quick else 5000))
    if not options.quick:
        tables += real()
    units = [f"{name}, standardised" for name in STANDARDISED]
    print(f"| table | rows x columns | {' | '.join([*FITS, *units])} |")
    print("|" + "---|" * (2 + len(FITS) + len(units)))
    for name, given, differ in tables:
        # Files may be sorted, and sites and streams are to be alike.
        rows = given[np.random.default_rng(0).permutation(given.shape[0])]
        cells = [cell(fit, rows, runs) for fit in FITS.values()]
        cells += [cell(FITS[one], rows, runs, scale="private") if differ else "" for one in STANDARDISED]
        print(f"| {name} | {rows.shape[0]} x {rows.shape[1]} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
