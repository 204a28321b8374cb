"""PPM's Figure 2: how many times the earlier sensitivity exceeds PPM's at a random start, against Approximation 6.2.

For a random orthonormal Q, (n, k), the earlier bound is sqrt(k) max |Q_ij| and PPM's is max_i ||Q_i:||. The ratio of
their means over t = 5 draws is r(k, n), for n = 8000 and 12000, k = 64, 128, .., 4000. It is compared with (13), and
with the same formula for exact laws in place of Gaussian ones. Those are Q_ij^2 ~ Beta(1/2, (n-1)/2) and ||Q_i:||^2 ~
Beta(k/2, (n-k)/2). The mean of the largest of N is near their quantile 1 - exp(-0.577) / N (Gumbel). Tails of the
first are far heavier than Gaussian ones, and (13) misses that.

Two savings change no law. First, the Q of a Gaussian matrix G is G R^{-1} with R^T R = G^T G by Cholesky, at half the
work of reflections. G has a condition below 6 here, so no digits are lost. Second, the first k columns of Q are the Q
of the first k columns of G, so one factorisation per draw serves every k. So the points of one draw depend on each
other; draws do not.

To check: the paper's claim that (13) is conservative, r never below it.

One to three minutes and 1.5 GB; --quick, n = 2000, seconds. Every k is computed and every eighth shown.

    python benchmarks/recommend/figure2.py [--quick] [--sizes 8000 12000] [--every 8] [--draws 5]
"""

import argparse
import math
import time
from collections.abc import Sequence

import numpy as np
from scipy.linalg import cholesky, solve_triangular
from scipy.stats import beta

from benchmarks.datasets import heading, line
from eigenveil.linalg import Array
from eigenveil.linalg.blas import blas_threads


def random_orthonormal(rows: int, columns: int, *, rng: np.random.Generator) -> Array:
    """Q, (n, k), of the QR factorisation of a Gaussian matrix."""
    draw = rng.standard_normal((rows, columns))
    upper = cholesky(draw.T @ draw, overwrite_a=True, check_finite=False)
    return np.asarray(solve_triangular(upper, draw.T, trans="T", overwrite_b=True, check_finite=False).T)


def bounds(basis: Array, counts: Sequence[int]) -> Array:
    """The earlier bound and PPM's, (2, len(counts)), of the first k columns for every k in `counts`, which grow."""
    largest, lengths = 0.0, np.zeros(len(basis))
    found = []
    for begin, end in zip((0, *counts[:-1]), counts, strict=True):
        block = basis[:, begin:end]
        largest = max(largest, float(np.abs(block).max()))
        lengths += np.einsum("ij,ij->i", block, block)
        found.append((math.sqrt(end) * largest, math.sqrt(float(lengths.max()))))
    return np.array(found).T


def approximation(columns: int, rows: int) -> tuple[float, float]:
    """(13): both bounds, each the square root of a mean plus sqrt(2 log N) deviations of a Gaussian variable."""
    mean = rows / (rows - 2)
    spread = math.sqrt(2 * rows**2 * (rows - 1) / ((rows - 2) ** 2 * (rows - 4)))
    prior = columns / rows * (spread * math.sqrt(2 * math.log(columns * rows)) + mean)
    ppm = spread * math.sqrt(2 * math.log(rows) * columns) / rows + columns * mean / rows
    return math.sqrt(prior), math.sqrt(ppm)


def by_exact_laws(columns: int, rows: int) -> tuple[float, float]:
    """Both bounds, with the squares' own laws, which are Beta, as if all entries, and all rows, were independent."""
    share = math.exp(-np.euler_gamma)
    entry = float(beta.isf(share / (rows * columns), 0.5, (rows - 1) / 2))
    row = float(beta.isf(share / rows, columns / 2, (rows - columns) / 2))
    return math.sqrt(columns * entry), math.sqrt(row)


def measure(rows: int, counts: Sequence[int], draws: int, shown: int) -> bool:
    """Print one panel; whether r is nowhere below (13)."""
    began = time.perf_counter()
    found = np.zeros((2, len(counts)))
    for draw in range(draws):
        rng = np.random.default_rng((rows, draw))
        found += bounds(random_orthonormal(rows, counts[-1], rng=rng), counts) / draws
    print(f"\nn = {rows}, {draws} draws, {len(counts)} values of k ({time.perf_counter() - began:.0f} s)\n")
    heading(["k", "earlier", "PPM's", "r(k, n)", "(13)", "over r", "exact laws", "over r"])
    shares = []
    for place, count in enumerate(counts):
        ratio = found[0, place] / found[1, place]
        guesses = [one / two for one, two in (approximation(count, rows), by_exact_laws(count, rows))]
        shares.append([guess / ratio for guess in guesses])
        if (place + 1) % shown == 0 or place in (0, len(counts) - 1):
            cells = [f"{value:.3f}" for value in (*found[:, place], ratio)]
            for guess in guesses:
                cells += [f"{guess:.3f}", f"{guess / ratio - 1:+.1%}"]
            line([str(count), *cells])
    printed, exact = np.array(shares).T
    print(f"\n(13) is {printed.min():.3f} to {printed.max():.3f} of r, exact laws {exact.min():.3f} to {exact.max():.3f}")
    return bool(printed.max() <= 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="*", type=int, default=[8000, 12000])
    parser.add_argument("--most", type=int, default=4000)
    parser.add_argument("--step", type=int, default=64, help="between values of k, as the paper's")
    parser.add_argument("--every", type=int, default=8, help="show every eighth of them; 1 for all")
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="n = 2000, k up to 1000")
    options = parser.parse_args()
    if options.quick:
        options.sizes, options.most = [2000], 1000
    counts = range(options.step, options.most + 1, options.step)
    # numpy's and scipy's threads alternate here and would wait for each other.
    with blas_threads(1):
        said = {rows: measure(rows, counts, options.draws, options.every) for rows in options.sizes}
    print()
    for rows, good in said.items():
        print(f"target {'reached' if good else 'NOT REACHED'}: n = {rows}, Approximation 6.2 is nowhere above the ratio")


if __name__ == "__main__":
    main()
