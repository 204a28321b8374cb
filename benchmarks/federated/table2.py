"""FedPower's Table 2: how close each method comes once it has converged, without noise. Published figures beside ours.

Features are in [-1, 1] (`datasets.within_one`), rows are not centred, and k = 5. There are max(n // 1000, 3) sites of
equal size. Rows and starts are drawn anew in each of ten repeats. FedPower takes p = 4 local steps until it moves no
more.

Ours is the largest sine, which the paper defines as its projection distance (2.6); one of its figures (DR-SVD on
ijcnn1, 1.21) cannot be one. The paper does not say how wide its iteration was, and no one width fits all of its
figures. OPT on connect4 fits r = k, on a9a and housing r = k + 2. Here r = k; --oversample tries others. Nor does one
scaling fit all of w8a: the one-shot figures fit indicators as they are, those of FedPower --affine. Our "none" makes
the diagonal of every QR positive, which aligns signs as a side effect. With a plain QR it is several times worse:
near the paper's vanilla on a9a, and far from it on connect4 and w8a.

Skipped: acoustic, aloi, combined and ijcnn1 are not available. As a part of covtype, cover10 stands in (10 numeric
columns of two classes). The paper does not have usps and protein_homology.

    python benchmarks/federated/table2.py [--repeats 10] [--data a9a ...] [--affine]
"""

import argparse
from typing import Any

from benchmarks.datasets import heading, line, skipped, within_one
from benchmarks.federated.runs import PAPER, cell, follow, shuffled_sites, site_count, top
from eigenveil.linalg.blas import blas_threads

RANK, STEPS, ROUNDS = 5, 4, 150
# Means, then standard deviations: OPT, sign-fixing, vanilla, DR-SVD, UDA, WDA. cover10 stands beside covtype.
PUBLISHED = {
    "a9a": (
        (4.09e-3, 5.82e-3, 8.13e-2, 4.63e-2, 2.64e-2, 2.40e-2),
        (4.2e-4, 1.41e-3, 3.44e-2, 9.24e-3, 1.58e-2, 1.50e-2),
    ),
    "connect4": (
        (1.27e-2, 1.81e-2, 1.70e-2, 1.61e-2, 1.65e-1, 1.56e-1),
        (4.52e-3, 3.79e-3, 4.35e-3, 2.96e-3, 3.48e-2, 3.26e-2),
    ),
    "w8a": (
        (1.90e-2, 1.75e-2, 1.68e-2, 7.13e-2, 1.52e-1, 1.51e-1),
        (2.46e-3, 1.76e-3, 1.29e-3, 2.06e-2, 4.37e-2, 4.11e-2),
    ),
    "mnist:train": ((2.62e-3, 4.85e-3, 5.08e-3, 5e-5, 1.08e-2, 8.91e-3), (3.4e-4, 8e-4, 7.9e-4, 0.0, 3.00e-3, 2.53e-3)),
    "housing": (
        (1.18e-2, 2.76e-2, 3.84e-2, 5.66e-1, 9.16e-2, 5.89e-2),
        (5.45e-3, 1.14e-2, 5.11e-2, 2.62e-1, 5.09e-2, 3.25e-2),
    ),
    "cover10": (
        (7.38e-3, 6.23e-3, 1.28e-2, 1.82e-1, 6.09e-2, 5.60e-2),
        (8.5e-4, 3.3e-4, 1.88e-3, 8.73e-2, 9.70e-3, 9.41e-3),
    ),
}


def methods(oversample: int) -> dict[str, dict[str, Any]]:
    """Each column of the table as settings."""
    fedpower = {
        "method": "fedpower",
        "local_steps": STEPS,
        "oversample": oversample,
        "rounds": ROUNDS,
        "tolerance": 1e-7,
    }
    return {
        "fedpower OPT": {**fedpower, "align": "procrustes"},
        "sign": {**fedpower, "align": "sign"},
        "none": {**fedpower, "align": "none"},
        "dr-svd": {"method": "dr-svd"},
        "uda": {"method": "uda"},
        "wda": {"method": "wda"},
        "krylov": {"method": "krylov"},
    }


def measure(name: str, options: argparse.Namespace) -> None:
    """Two lines of the table: ours, and the paper's."""
    rows = within_one(name, affine=options.affine)
    sites = site_count(rows)
    truth, values = top(rows, rank=RANK)
    cells, rounds = [], []
    for settings in methods(min(options.oversample, rows.shape[1] - RANK)).values():
        runs = [
            follow(
                shuffled_sites(rows, sites, seed=seed), truth, epsilon=None, center=None, random_state=seed, **settings
            )
            for seed in range(options.repeats)
        ]
        cells.append(cell(run.errors[-1] for run in runs))
        rounds.append(max(run.products for run in runs))
    shape = f"{rows.shape[0]} x {rows.shape[1]}"
    line([name, shape, str(sites), f"{values[RANK] / values[RANK - 1]:.3f}", *cells, ", ".join(map(str, rounds))])
    if name in PUBLISHED:
        found = [f"{mean:.2e} ({std:.2e})" for mean, std in zip(*PUBLISHED[name], strict=True)]
        line(["", "published for covtype" if name == "cover10" else "published", "", "", *found, "", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="*", default=[*PAPER, "cover10", "usps", "protein_homology"])
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--oversample", type=int, default=0, help="directions FedPower carries beyond k")
    parser.add_argument("--affine", action="store_true", help="map every column to [-1, 1], indicators and pixels too")
    options = parser.parse_args()
    print(
        "largest sine to the top 5 of all rows, mean (std); l6/l5 is the ratio of eigenvalues; rounds: the most taken\n"
    )
    heading(["data", "n x d", "sites", "l6/l5", *methods(0), "rounds"])
    # Products of this size do not gain from a second thread, and two processes would fight over it.
    with blas_threads(1):
        for name in options.data:
            if not skipped(name):
                measure(name, options)
    print("\nskipped: acoustic, aloi, combined, ijcnn1, covtype (all 54 columns): not at hand")


if __name__ == "__main__":
    main()
