"""What each schedule of releases of a private stream costs in accuracy: captured variance of the top components over
the best.

It makes one pass over real tables in random order. Rows are centred and clipped by numbers READ FROM THE DATA, the
same for every schedule, as in utility.py. The column `PrivatePCA` sees the whole table at once (zero-out neighbours).
"sync x 1" and "x 16" release once and sixteen times; "block" releases 16 blocks on their own; "continual" has an
answer after each of 64 blocks.

    python benchmarks/streaming/privacy.py [--quick]
"""

import argparse
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.datasets import centred_and_clipped, dense, skipped
from eigenveil import PrivatePCA, StreamingPCA
from eigenveil.linalg import Array, captured_variance

NAMES = ("a9a", "connect4", "usps", "mnist", "protein_homology")
DELTA = 1e-5


def fits(count: int, epsilon: float, rank: int, bound: float) -> dict[str, Callable[[Array], Any]]:
    """Each schedule of releases, as a function from rows to something fitted."""
    budget: dict[str, Any] = {"epsilon": epsilon, "delta": DELTA, "row_bound": bound}

    def stream(**more: Any) -> StreamingPCA:
        return StreamingPCA(rank, center=None, **budget, **more)

    def synced(rows: Array, times: int) -> StreamingPCA:
        pca = stream()
        for part in np.array_split(rows, times):
            pca.partial_fit(part).sync()
        return pca

    every = math.ceil(count / 64)
    return {
        "PrivatePCA": lambda rows: PrivatePCA(rank, center=None, neighbours="zero-out", **budget).fit(rows),
        "sync x 1": lambda rows: synced(rows, 1),
        "sync x 16": lambda rows: synced(rows, 16),
        "block x 16": lambda rows: stream(publish="block", block_size=math.ceil(count / 16)).fit(rows),
        "continual": lambda rows: stream(publish="continual", horizon=count, block_size=every).fit(rows),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one data set, one run")
    parser.add_argument("--rank", type=int, default=5)
    options = parser.parse_args()
    runs = 1 if options.quick else 3
    first = True
    for name in NAMES[: 1 if options.quick else None]:
        if skipped(name):
            continue
        rows, bound = centred_and_clipped(dense(name))
        rows = np.random.default_rng(0).permutation(rows)
        gram = rows.T @ rows
        for epsilon in (0.3, 1.0, 3.0):
            found = fits(len(rows), epsilon, options.rank, bound)
            if first:
                print(f"{'':32}" + "".join(f"{words:>12}" for words in found))
                first = False
            line = f"{name} {rows.shape[0]} x {rows.shape[1]}"
            print(f"{line:25} eps {epsilon:<3g}", end="")
            for fitted in found.values():
                kept = [captured_variance(gram, fitted(rows).subspace_.basis) for _ in range(runs)]
                print(f"{np.mean(kept):>12.3f}", end="", flush=True)
            print()


if __name__ == "__main__":
    main()
