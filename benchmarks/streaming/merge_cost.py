"""What merging two subspaces costs by FPCA's Alg. 4, 5 and 6, and what it loses: FPCA's Fig. 5 (supplement, C.3).

Rows of Synth(1), 800 columns, in two halves; each half is tracked by FPCA at rank 100, and the two answers are merged at rank
100. `sine` (the largest) and `distance` (root mean square) compare with the offline SVD of all rows, `to Alg. 4` is the
largest sine to what Alg. 4 gives, `values` is || s - s' ||_2 / || s' ||_2 against the offline singular values and, in
brackets, against those of Alg. 4. Errors against the SVD come from the halves, which are tracked and truncated at
rank 100, not from merging. The 100th and the 101st singular value hardly differ, so the largest sine is large for
every merge.

`merge` is Alg. 6 with one more small SVD, which drops what the two spans share and makes it safe for nearly equal ones.
Times are medians of interleaved rounds on one BLAS thread. The `ratio` is the median within rounds, because on a busy
machine ratios vary less than seconds. The column `extra` is the most that Python and numpy allocate during a merge.

    python benchmarks/streaming/merge_cost.py
    python benchmarks/streaming/merge_cost.py --quick
"""

import argparse
import time
import tracemalloc
from collections.abc import Callable

import numpy as np

from benchmarks.streaming.runs import distance, fixed_spectrum, fpca, last
from eigenveil.linalg import Array, Subspace, merge
from eigenveil.linalg.blas import blas_threads
from eigenveil.papers import basic_merge, faster_merge

MERGES: dict[str, Callable[..., Subspace]] = {
    "Alg. 4, SVD of the stack": basic_merge,
    "Alg. 5, QR, small SVD": faster_merge,
    "Alg. 6, merge": merge,
}


def seconds(work: Callable[..., object], left: Subspace, right: Subspace, rank: int) -> float:
    """Wall time of one merge."""
    start = time.perf_counter()
    work(left, right, rank=rank)
    return time.perf_counter() - start


def extra(work: Callable[..., object], left: Subspace, right: Subspace, rank: int) -> int:
    """Peak bytes during one merge, beyond what was there before."""
    tracemalloc.start()
    try:
        work(left, right, rank=rank)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def table(rows: Array, rank: int, rounds: int) -> None:
    """Print one line per merge algorithm."""
    left, right = (last(fpca(rank), half) for half in np.array_split(rows, 2))
    offline = Subspace.of(rows, rank=rank)
    merged = {name: work(left, right, rank=rank) for name, work in MERGES.items()}
    first = next(iter(merged.values()))
    times = np.array([[seconds(work, left, right, rank) for work in MERGES.values()] for _ in range(rounds)])
    typical, ratios = np.median(times, axis=0), np.median(times / times[:, :1], axis=0)
    print(f"\n{rows.shape[0]} x {rows.shape[1]}, rank {rank}, median of {rounds} rounds")
    print(f"{'':26}{'ms':>8}{'ratio':>7}{'extra MiB':>11}{'sine':>8}{'distance':>10}{'to Alg. 4':>11}{'values':>21}")
    for index, (name, found) in enumerate(merged.items()):
        values = [float(np.linalg.norm(found.values - other.values) / np.linalg.norm(other.values)) for other in (offline, first)]
        print(
            f"{name:26}{typical[index] * 1e3:8.1f}{ratios[index]:7.2f}"
            f"{extra(MERGES[name], left, right, rank) / 2**20:11.2f}"
            f"{found.sines(offline).max():8.4f}{distance(found.basis, offline.basis):10.4f}"
            f"{found.sines(first).max():11.1e}{f'{values[0]:.2e} ({values[1]:.0e})':>21}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=21, help="merges per algorithm and size (default 21)")
    parser.add_argument("--quick", action="store_true", help="200 columns, two sizes, rank 25, five rounds")
    options = parser.parse_args()
    dim, rank, sizes = (200, 25, (200, 400)) if options.quick else (800, 100, (800, 1600, 2400, 3200, 4000))
    with blas_threads(1):
        for count in sizes:
            rows = fixed_spectrum(1.0, count=count, dim=dim, rng=np.random.default_rng(0))
            table(rows, rank, 5 if options.quick else options.rounds)


if __name__ == "__main__":
    main()
