"""How long a fit of many items takes, and how much memory, beside the exact decomposition of the same matrix by peers.

On gowalla, with all of its 41 thousand items and p = 32, it compares `PrivateRecommender` by noisy products, at one
place and at 10 sites, at item and user level. The baselines are scikit-learn's `TruncatedSVD` and scipy's `svds` on
histories of norm one, which add no noise and guarantee nothing. Then it uses an artificial table, at whole-user
level: a million users with about 20 of ten thousand items each. Noise comes from the operating system, as on real
runs.

Every fit has its own process, so that its peak of memory is its own. Methods alternate. Seconds are of the fit alone,
medians over --times rounds, with ratios within rounds. The column `before` is the memory of the process after reading
the data and all libraries. The column `peak` is the most ever, including the reading.

To reach: one fit of gowalla in under 60 seconds on 2 cores, and never a dense matrix of items by items.

About three minutes on an idle machine; --quick, one round of gowalla, one minute. On a busy machine --threads 1 is
faster: BLAS threads wait for each other.

    python benchmarks/recommend/speed.py [--quick] [--times 3] [--threads 2]
"""

import argparse
import os
import resource
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final, Literal, final

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import svds
from sklearn.decomposition import TruncatedSVD

from benchmarks import datasets
from benchmarks.datasets import heading, line
from eigenveil.linalg.blas import blas_threads
from eigenveil.recommend import PrivateRecommender

RANK, SITES, LIMIT = 32, 10, 60.0
MIB, GIB = 2.0**20, 2.0**30
# The artificial table.
USERS, ITEMS, EACH, GROUPS = 1_000_000, 10_000, 20, 32
PEER: Final = "TruncatedSVD, 5 iterations"


@final
@dataclass(frozen=True, slots=True)
class Spent:
    """What one fit took: seconds, and bytes before it and at the peak."""

    seconds: float
    before: float
    peak: float


def gowalla() -> Any:
    """The binary matrix."""
    return datasets.sparse("gowalla")


def made_up() -> Any:
    """Half of a user's items are from those of the user's group, half from all, of which some are more popular than others."""
    rng = np.random.default_rng(0)
    half, width = EACH // 2, ITEMS // GROUPS
    popular = (ITEMS * rng.random((USERS, half)) ** 2).astype(np.int32)
    own = rng.integers(GROUPS, size=(USERS, 1)) * width + (width * rng.random((USERS, half)) ** 2).astype(np.int32)
    indices = np.hstack([popular, own]).astype(np.int32)
    del popular, own
    indices.sort(axis=1)
    starts = np.arange(0, USERS * EACH + 1, EACH, dtype=np.int64)
    return sp.csr_array((np.ones(indices.size, dtype=np.int8), indices.ravel(), starts), shape=(USERS, ITEMS))


def at_sites(rows: Any) -> list[Any]:
    """Users in their order, evenly over the sites."""
    return [rows[part] for part in np.array_split(np.arange(rows.shape[0]), SITES)]


def private(held: Any, *, unit: Literal["user", "item"]) -> object:
    """Ours, with noise added by a curator."""
    return PrivateRecommender(RANK, epsilon=1.0, unit=unit, method="power", on_noise="warn").fit(held)


def of_norm_one(rows: Any) -> Any:
    """The matrix whose right singular vectors a fit looks for."""
    return sp.csr_array(sp.diags_array(1 / np.sqrt(np.maximum(rows.sum(axis=1), 1))) @ rows)


def truncated(rows: Any, *, iterations: int) -> object:
    """scikit-learn's."""
    return TruncatedSVD(RANK, algorithm="randomized", n_iter=iterations, random_state=0).fit(of_norm_one(rows))


def lanczos(rows: Any) -> object:
    """scipy's, to machine precision."""
    return svds(of_norm_one(rows), k=RANK, rng=np.random.default_rng(0))


# What is fitted, made of the matrix before the clock starts, and how.
Method = tuple[Callable[[Any], Any], Callable[[Any], object]]
METHODS: Final[dict[str, Method]] = {
    "ours, item level": (sp.csr_array, partial(private, unit="item")),
    "ours, user level": (sp.csr_array, partial(private, unit="user")),
    f"ours, item level, {SITES} sites": (at_sites, partial(private, unit="item")),
    f"ours, user level, {SITES} sites": (at_sites, partial(private, unit="user")),
    "TruncatedSVD, 3 iterations": (sp.csr_array, partial(truncated, iterations=3)),
    PEER: (sp.csr_array, partial(truncated, iterations=5)),
    "svds": (sp.csr_array, lanczos),
}
TABLES: Final[dict[str, Callable[[], Any]]] = {"gowalla": gowalla, "made up": made_up}


def fit_once(table: str, method: str, threads: int) -> Spent:
    """One fit in this process."""
    warnings.simplefilter("ignore")
    prepare, fit = METHODS[method]
    rows = prepare(TABLES[table]())
    before = _held()
    with blas_threads(threads):
        began = time.perf_counter()
        fit(rows)
        seconds = time.perf_counter() - began
    return Spent(seconds, before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0)


def _held() -> float:
    """Bytes in memory now."""
    return float(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def alone(table: str, method: str, threads: int) -> Spent:
    """One fit in its own process. This process does no work itself: a child's peak starts at the size of its parent."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(fit_once, table, method, threads).result()


def compare(table: str, methods: Sequence[str], times: int, threads: int) -> dict[str, list[Spent]]:
    """Print what each method took; everything measured."""
    found: dict[str, list[Spent]] = {method: [] for method in methods}
    for _ in range(times):
        for method in methods:
            found[method].append(alone(table, method, threads))
    heading(["method", "seconds", f"of {PEER}", "before, MiB", "peak, MiB"])
    for method, spent in found.items():
        ratio = statistics.median(one.seconds / other.seconds for one, other in zip(spent, found[PEER], strict=True))
        seconds = statistics.median(one.seconds for one in spent)
        sizes = (max(one.before for one in spent) / MIB, max(one.peak for one in spent) / MIB)
        line([method, f"{seconds:.1f}", f"{ratio:.2f}", *(f"{size:.0f}" for size in sizes)])
    return found


def judge(found: dict[str, list[Spent]], items: int) -> list[str]:
    """Whether the slowest of our fits is fast enough, and whether the largest had room for a matrix of items by items."""
    ours = [one for method, spent in found.items() if method.startswith("ours") for one in spent]
    slowest, peak, dense = max(one.seconds for one in ours), max(one.peak for one in ours), 8.0 * items * items
    return [
        f"target {'reached' if slowest < LIMIT else 'NOT REACHED'}: slowest fit {slowest:.1f} s, allowed {LIMIT:g} s",
        f"target {'reached' if peak < dense else 'NOT REACHED'}: peak {peak / GIB:.2f} GiB, a dense matrix of items by items "
        f"{dense / GIB:.1f} GiB ({peak / dense:.1%})",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2, help="BLAS threads")
    parser.add_argument("--quick", action="store_true", help="one round, and nothing made up")
    options = parser.parse_args()
    times = 1 if options.quick else options.times
    print(f"p = {RANK}, {options.threads} threads, {os.cpu_count()} cores, load {os.getloadavg()[0]:.2f} at the start")
    said = []
    if not datasets.skipped("gowalla"):
        users, items = gowalla().shape
        print(f"\ngowalla, {users} x {items}, {times} round(s)\n")
        said = judge(compare("gowalla", list(METHODS), times, options.threads), items)
    if not options.quick:
        print(f"\nmade up, {USERS} x {ITEMS}, at most {EACH} items each, 1 round\n")
        compare("made up", ["ours, item level", "ours, user level", PEER], 1, options.threads)
    print("", *said, f"load {os.getloadavg()[0]:.2f} at the end", sep="\n")


if __name__ == "__main__":
    main()
