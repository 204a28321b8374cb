"""Does the order of a stream matter? FPCA's Fig. 13 (supplement, D.6): 10000 x 100 rows of Synth(alpha) in random orders.

For each rank and tracker it shows the mean over permutations of || P - P' ||_F / sqrt(2 r), the root mean square sine
of the angles. It is 0 for equal spans and 1 for orthogonal ones.

- `own` is between the same tracker's answers for the permuted and for the original rows.
- `svd` is between the answer for the permuted rows and the offline SVD, which no order can change.

The paper states no formula. Its published program takes the mean square of |U| - |U'| entry by entry, which is not
zero for two bases of one span. It also gives FD the original order every time. Synth is that of footnote 2.

Lemma 10 says that FPCA is independent of order. That holds up to what each block truncates: `own` shows how much that
is. FPCA keeps r + 10 directions and FD between 2 r and 4 r rows, so there is also a line for FPCA at FD's smallest
size. GROUSE's step 2 depends on the scale of the rows, whose norms are small here: it hardly leaves its random start,
in any order.

    python benchmarks/streaming/permutation.py             # a quarter of an hour or more, nearly all of it SPIRIT's
    python benchmarks/streaming/permutation.py --quick
"""

import argparse

import numpy as np

from benchmarks.streaming.runs import distance, fixed_rank, fixed_spectrum, fpca, last
from eigenveil.linalg import Array, Subspace
from eigenveil.linalg.blas import blas_threads

RANKS = (5, 20, 40, 60, 80)


def table(rows: Array, rank: int, permutations: int) -> None:
    """Print one line per tracker."""
    trackers = {"FPCA, keeping 2r": fpca(rank, oversample=rank), **fixed_rank(rank)}
    offline = Subspace.of(rows, rank=rank).basis
    rng = np.random.default_rng(1)
    orders = [rng.permutation(len(rows)) for _ in range(permutations)]
    print(f"\nrank {rank}, mean (largest) of {permutations} permutations of {rows.shape[0]} x {rows.shape[1]}")
    print(f"{'':22}{'own':>18}{'svd':>18}{'svd, original order':>22}")
    for name, tracker in trackers.items():
        original = last(tracker, rows).basis
        found = [last(tracker, rows[order]).basis for order in orders]
        own, svd = ([distance(basis, other) for basis in found] for other in (original, offline))
        cells = "".join(f"{f'{np.mean(gaps):.4f} ({np.max(gaps):.4f})':>18}" for gaps in (own, svd))
        print(f"{name:22}{cells}{distance(original, offline):22.4f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--permutations", type=int, default=20, help="how many (default 20, as in the figure)")
    parser.add_argument("--alpha", type=float, default=1.0, help="of Synth(alpha) (default 1; the figure has several)")
    parser.add_argument("--quick", action="store_true", help="1000 x 50 rows, ranks 5 and 20, two permutations")
    options = parser.parse_args()
    count, dim, ranks = (1000, 50, RANKS[:2]) if options.quick else (10_000, 100, RANKS)
    rows = fixed_spectrum(options.alpha, count=count, dim=dim, rng=np.random.default_rng(0))
    with blas_threads(1):
        for rank in ranks:
            table(rows, rank, 2 if options.quick else options.permutations)


if __name__ == "__main__":
    main()
