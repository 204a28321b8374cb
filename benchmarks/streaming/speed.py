"""Rows per second, extra memory and accuracy of `StreamingPCA` without privacy, against IncrementalPCA and the covariance.

IncrementalPCA runs with its default batch (5 d rows). "covariance" adds up the products of blocks and decomposes them once at
the end: exact, in d^2 numbers. Rows reach us a block at a time, as on a device. Times are medians over interleaved runs, and
ratios are within a run. Sines are of the largest angle to the exact components. The memory allowed is
8 d (k + oversample) + 2 d b doubles. The last table follows a long stream of 64 columns whose rows are generated on
the fly, with and without privacy, each case in its own process.

    python benchmarks/streaming/speed.py [--quick]
"""

import argparse
import resource
import statistics
import time
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.decomposition import IncrementalPCA

from eigenveil import StreamingPCA
from eigenveil.linalg import Array, sines, top_eigen

BLOCK = 512
OVERSAMPLE = {10: 10, 20: 20}
# (rows, columns, components) and the decay of the standard deviations, i^-decay.
CASES = [
    (50_000, 1000, 10, 1.0),
    (50_000, 1000, 10, 0.5),
    (200_000, 100, 10, 1.0),
    (200_000, 100, 10, 0.5),
    (40_000, 4000, 20, 1.0),
]


def rows_of(count: int, dim: int, decay: float) -> Array:
    """Normal rows with standard deviations i^-decay along random directions, around a mean that is not zero."""
    rng = np.random.default_rng(0)
    round_ = np.linalg.qr(rng.standard_normal((dim, dim)))[0]
    rows = rng.standard_normal((count, dim)) * np.arange(1, dim + 1) ** -decay
    return np.asarray(rows @ round_.T + 0.5 * rng.standard_normal(dim))


def accumulated(rows: Array, rank: int) -> Array:
    """Components, (d, k), from the covariance added up in blocks."""
    count, dim = rows.shape
    gram, total = np.zeros((dim, dim)), np.zeros(dim)
    for start in range(0, count, BLOCK):
        block = rows[start : start + BLOCK]
        gram += block.T @ block
        total += block.sum(axis=0)
    gram -= np.outer(total, total) / count
    return top_eigen(gram, rank=rank)[1]


def streaming(rows: Array, rank: int) -> Array:
    """Components, (d, k), by StreamingPCA, a block at a time, as a device would see them."""
    pca = StreamingPCA(rank, epsilon=None, block_size=BLOCK, oversample=OVERSAMPLE[rank])
    for start in range(0, len(rows), BLOCK):
        pca.partial_fit(rows[start : start + BLOCK])
    return pca.subspace_.basis


def incremental(rows: Array, rank: int) -> Array:
    """Components, (d, k), by scikit-learn's IncrementalPCA."""
    return np.asarray(IncrementalPCA(rank).fit(rows).components_.T)


def timed(method: Callable[[Array, int], Array], rows: Array, rank: int) -> tuple[float, Array]:
    """Seconds and components."""
    start = time.perf_counter()
    found = method(rows, rank)
    return time.perf_counter() - start, found


def peak(method: Callable[[Array, int], Array], rows: Array, rank: int) -> int:
    """The most numbers (doubles) held beyond the rows."""
    tracemalloc.start()
    method(rows, rank)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most // 8


def compare(count: int, dim: int, rank: int, decay: float, repeats: int) -> None:
    """One case: medians of ratios over interleaved runs."""
    rows = rows_of(count, dim, decay)
    exact = top_eigen(np.cov(rows.T), rank=rank)[1]
    methods = {"IncrementalPCA": incremental, "covariance": accumulated, "StreamingPCA": streaming}
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    sine = {}
    for _ in range(repeats):
        for name, method in methods.items():
            elapsed, found = timed(method, rows, rank)
            seconds[name].append(elapsed)
            sine[name] = float(sines(found, exact)[0])
    ours = seconds["StreamingPCA"]
    print(f"\n{count} x {dim}, k = {rank}, standard deviations i^-{decay:g}, blocks of {BLOCK}")
    for name, method in methods.items():
        ratio = statistics.median(theirs / mine for theirs, mine in zip(seconds[name], ours, strict=True))
        rate = count / statistics.median(seconds[name])
        held = peak(method, rows[: 20 * BLOCK], rank)
        print(f"  {name:15} {rate:>11,.0f} rows/s   {ratio:>6.2f} x our time   sine {sine[name]:.5f}   {held:>11,} doubles")
    allowed = 8 * dim * (rank + OVERSAMPLE[rank]) + 2 * dim * BLOCK
    print(f"  {'allowed':15} {'':58} {allowed:>11,} doubles")


def made(count: int, dim: int) -> Iterator[Array]:
    """Batches of a stream that is never held as a whole, of norm at most about 12."""
    rng = np.random.default_rng(1)
    spread = 4.0 * np.arange(1, dim + 1) ** -0.7
    pool = rng.standard_normal((1 << 14, dim)) * spread
    for start in range(0, count, 4096):
        shift = int(rng.integers(len(pool) - 4096))
        yield pool[shift : shift + 4096][: count - start]


PRIVATE: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-8, "row_bound": 12.0}
WAYS: dict[str, dict[str, Any]] = {
    "no privacy": {"epsilon": None},
    "no privacy, adapting (sketch)": {"epsilon": None, "adapt": (0.01, 0.1)},
    "private, sync at the end": PRIVATE,
    "private, every block": PRIVATE | {"publish": "block", "block_size": 8192},
    "private, continual": PRIVATE | {"publish": "continual", "block_size": 8192},
}


def follow(name: str, count: int, dim: int) -> str:
    """Follow `count` rows in a process of its own, and say how fast, and how far its memory rose after the first tenth."""
    horizon: dict[str, Any] = {"horizon": count} if WAYS[name].get("publish") == "continual" else {}
    pca = StreamingPCA(5, **WAYS[name], **horizon)
    seen, busy, early = 0, 0.0, 0
    for batch in made(count, dim):
        start = time.perf_counter()
        pca.partial_fit(batch)
        busy += time.perf_counter() - start
        seen += len(batch)
        if not early and seen >= count // 10:
            early = most_memory()
    start = time.perf_counter()
    pca.sync()
    busy += time.perf_counter() - start
    most = most_memory()
    return (
        f"  {name:31} {pca.n_samples_seen_ / busy:>11,.0f} rows/s   {most / 1024:>5,.0f} MiB at most, "
        f"{(most - early) / 1024:.1f} more than after a tenth   {pca.n_components_} components, "
        f"{len(pca.guarantee_.charges)} charges"
    )


def long_stream(count: int, dim: int) -> None:
    """Every method of following a stream, one after the other."""
    print(f"\na stream of {count:,} rows, {dim} columns, k = 5 (an idle process with these libraries: ", end="", flush=True)
    spawn = get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        print(f"{pool.submit(idle).result() / 1024:.0f} MiB)")
    for name in WAYS:
        with ProcessPoolExecutor(1, mp_context=spawn) as pool:
            print(pool.submit(follow, name, count, dim).result(), flush=True)


def idle() -> int:
    """Memory of a process that has only imported what `follow` uses, and made its rows, in KiB."""
    next(made(4096, 64))
    return most_memory()


def most_memory() -> int:
    """The most this process has held so far, in KiB. What it was started from counts in getrusage, so Linux is asked itself."""
    status = Path("/proc/self/status")
    if status.exists():
        return int(next(line for line in status.read_text().splitlines() if line.startswith("VmHWM")).split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small cases, for a look")
    parser.add_argument("--repeats", type=int, default=3, help="interleaved runs of each case (default 3)")
    parser.add_argument("--only-long", action="store_true", help="the long stream alone")
    parser.add_argument("--long", type=int, default=10_000_000, help="rows of the long stream (default 10 million)")
    options = parser.parse_args()
    cases = [(5_000, 200, 10, 1.0), (20_000, 100, 10, 1.0)] if options.quick else CASES
    for case in [] if options.only_long else cases:
        # The widest case takes IncrementalPCA minutes, and once is enough.
        compare(*case, repeats=1 if options.quick or case[1] > 1000 else options.repeats)
    long_stream(100_000 if options.quick else options.long, 64)


if __name__ == "__main__":
    main()
