"""Rounds and bytes to come within 1e-2, 1e-4 and 1e-6 of the exact answer, for every method without noise.

The error is the largest sine to the top k of all rows together. A cell is taken at the first round below that error,
the worst of several splits and starts. It shows product rounds / all rounds with the mean's / MB up and down over all
links. "-" means never reached: within 300 rounds, or before the method stops moving.

There are max(n // 1000, 3) sites, and rows are shuffled. Widths are k + 5 unless named; one-shot methods have none to
choose. Features are as in the tables of FedPower (`datasets.within_one`); --raw takes them as they are.

    python benchmarks/federated/rounds.py [--quick] [--data a9a ...] [--ranks 5 10] [--raw]
"""

import argparse
from typing import Any

import numpy as np

from benchmarks.datasets import dense, heading, line, skipped, within_one
from benchmarks.federated.runs import Followed, follow, shuffled_sites, site_count, top
from eigenveil.linalg import Array
from eigenveil.linalg.blas import blas_threads

NAMES = ("a9a", "connect4", "w8a", "mnist", "usps", "protein_homology")
ERRORS = (1e-2, 1e-4, 1e-6)
MOST, TARGET, MORE = 300, 15, 5


def methods(*, quick: bool) -> dict[str, dict[str, Any]]:
    """Each line of the table as settings. A method that moves no more than 1e-9 is at its floor."""
    iterated: dict[str, Any] = {"rounds": MOST, "tolerance": 1e-9}
    local: dict[str, Any] = {"method": "fedpower", **iterated}
    found: dict[str, dict[str, Any]] = {
        "krylov": {"method": "krylov", "rounds": MOST, "tolerance": 0.0},
        "krylov, width k": {"method": "krylov", "rounds": MOST, "tolerance": 0.0, "oversample": 0},
        "power": {"method": "power", "oversample": MORE, **iterated},
        "power, width k": {"method": "power", "oversample": 0, **iterated},
        "fedpower p=4": {"local_steps": 4, "oversample": MORE, **local, "tolerance": 1e-7},
        "fedpower decay 4": {"local_steps": ("decay", 4), "oversample": MORE, **local},
        "fedpower decay 4, width k": {"local_steps": ("decay", 4), "oversample": 0, **local},
        "dr-svd": {"method": "dr-svd"},
        "uda": {"method": "uda"},
        "wda": {"method": "wda"},
        "merge": {"method": "merge"},
        "covariance": {"method": "covariance"},
    }
    return {name: found[name] for name in ("krylov", "power", "dr-svd", "covariance")} if quick else found


def cell(runs: list[Followed], error: float) -> str:
    """The worst of the runs, or a dash where one of them does not get there."""
    found = [(run, run.reached(error)) for run in runs]
    if any(number is None for _, number in found):
        return "-"
    there = [(run.products_of(number), number, run.traffic[number - 1]) for run, number in found if number is not None]
    products, number, size = (max(column) for column in zip(*there, strict=True))
    return f"{products} / {number} / {size / 1e6:.3g}"


def products(runs: list[Followed], error: float) -> float:
    """Product rounds to this error, the worst of the runs; infinite where one does not get there."""
    numbers = [(run, run.reached(error)) for run in runs]
    return max((np.inf if number is None else run.products_of(number)) for run, number in numbers)


def ratio(found: dict[str, list[Followed]], slow: str, quick: str) -> str:
    """How many times as many rounds `slow` takes to the smallest error."""
    ours, theirs = products(found[quick], ERRORS[-1]), products(found[slow], ERRORS[-1])
    return f"{theirs / ours:.1f}" if np.isfinite(theirs) else f"> {MOST / ours:.0f}"


def measure(name: str, rows: Array, rank: int, center: str | None, options: argparse.Namespace) -> list[str]:
    """The lines of one setting; what misses its target, and a line of ratios at the end."""
    moved = rows if center is None else rows - rows.mean(axis=0)
    truth, values = top(moved, rank=rank)
    del moved
    setting = f"{name}, {'centred' if center else 'uncentred'}, k={rank}"
    found: dict[str, list[Followed]] = {}
    for label, settings in methods(quick=options.quick).items():
        if rank > 10 and not label.startswith("krylov"):
            continue
        found[label] = [
            follow(
                shuffled_sites(rows, site_count(rows), seed=seed),
                truth,
                enough=ERRORS[-1],
                epsilon=None,
                center=center,
                random_state=seed,
                **settings,
            )
            for seed in range(options.starts)
        ]
        most = max(run.products for run in found[label])
        floor = max(min(run.errors) for run in found[label])
        line([setting, label, *(cell(found[label], error) for error in ERRORS), f"{floor:.0e} in {most}"])
    pairs = [
        ("power", "krylov"),
        ("power, width k", "krylov, width k"),
        ("fedpower decay 4", "krylov"),
        ("fedpower decay 4, width k", "krylov, width k"),
    ]
    words = "; ".join(f"{slow} {ratio(found, slow, quick)}" for slow, quick in pairs if {slow, quick} <= found.keys())
    gap = f"l(k+1)/l(k) = {values[-1] / values[-2]:.3f}"
    line([setting, f"{gap}; rounds over krylov's of that width: {words or 'not run'}", "", "", "", ""])
    needed = products(found["krylov"], ERRORS[-1])
    return [f"{setting}: {needed:g}"] if rank <= 10 and needed > TARGET else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="*", default=list(NAMES))
    parser.add_argument("--ranks", nargs="*", type=int, default=[5, 10, 20], help="above 10 for krylov alone")
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--raw", action="store_true", help="features as they are")
    parser.add_argument("--quick", action="store_true", help="four methods")
    options = parser.parse_args()
    heading(["setting", "method", *(f"to {error:g}" for error in ERRORS), "smallest error, in products"])
    misses = []
    with blas_threads(1):
        for name in options.data:
            if skipped(name):
                continue
            rows = dense(name) if options.raw else within_one(name)
            for center in (None, "private"):
                for rank in options.ranks:
                    misses += measure(name, rows, rank, center, options)
    print(f"\nkrylov to {ERRORS[-1]:g} in at most {TARGET} products, k <= 10: missed by {', '.join(misses) or 'none'}")


if __name__ == "__main__":
    main()
