"""Rows on a Dask cluster of processes on this machine, beside the same rows in memory: time, rows per second, driver memory.

    python benchmarks/cluster.py                       # 1 GB, one and two workers
    python benchmarks/cluster.py --gigabytes 0.2 --columns 50 --workers 1 2 4

Each line is a process of its own, so that its peak memory is its own. The rows are made on the workers, chunk by chunk, and the
driver never has one. Both sides fit with the same seed, and the last column says whether their components have the same bits.
Seconds depend on the machine and on what else runs there, so compare ratios measured in one run. Processor time, of this process
and of the workers, depends on it less. A fit in memory uses all cores.
"""

import argparse
import hashlib
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

# Chunks of 50 MB at 100 columns.
CHUNK = 62_500
PRIVATE: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "random_state": 1}


def chunk_of(columns: int, number: int) -> Any:
    """Rows of one chunk, (CHUNK, columns)."""
    spread = 10.0 / np.arange(1, columns + 1)
    return np.random.default_rng(number).standard_normal((CHUNK, columns)) * spread + 1.0


def _made(columns: int, block_info: Any = None) -> Any:
    return chunk_of(columns, block_info[None]["chunk-location"][0])


def timed(X: Any, used: Callable[[], float]) -> dict[str, Any]:
    """Seconds of two fits, and processor time by the clock `used`; peak memory of this process; a digest of the components."""
    from eigenveil import PrivatePCA

    found: dict[str, Any] = {"seconds": [], "used": []}
    for _ in range(2):
        start, before = time.perf_counter(), used()
        pca = PrivatePCA(5, **PRIVATE).fit(X)
        found["seconds"].append(time.perf_counter() - start)
        found["used"].append(used() - before)
    found["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    found["digest"] = hashlib.sha256(pca.components_.tobytes()).hexdigest()[:12]
    return found


def in_memory(chunks: int, columns: int) -> dict[str, Any]:
    """All rows in one array."""
    return timed(np.vstack([chunk_of(columns, number) for number in range(chunks)]), time.process_time)


def on_cluster(chunks: int, columns: int, workers: int) -> dict[str, Any]:
    """The same rows on worker processes. They are checked and held there once, before the clock starts."""
    import dask.array as da
    from distributed import Client, LocalCluster

    from eigenveil.data.engines.dask_rows import array_rows

    with (
        LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None, host="127.0.0.1") as cluster,
        Client(cluster) as client,
    ):
        sizes = ((CHUNK,) * chunks, (columns,))
        start = time.perf_counter()
        rows = array_rows(da.map_blocks(_made, columns, chunks=sizes, dtype=float, meta=np.empty((0, 0))))
        opened = time.perf_counter() - start

        def used() -> float:
            return float(time.process_time() + sum(client.run(time.process_time).values()))

        return {**timed(rows, used), "opened": opened}


def measured(*arguments: object) -> dict[str, Any]:
    """One line, in a process of its own."""
    done = subprocess.run([sys.executable, __file__, "--child", *map(str, arguments)], check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def show(name: str, found: dict[str, Any], rows: int, beside: dict[str, Any]) -> None:
    seconds = min(found["seconds"])
    same = "same bits" if found["digest"] == beside["digest"] else "OTHER BITS"
    opened = f", read and checked in {found['opened']:.1f} s" if "opened" in found else ""
    print(
        f"{name:>10}: fit {seconds:.2f} s ({seconds / min(beside['seconds']):.2f} of memory), {rows / seconds:,.0f} rows/s, "
        f"{min(found['used']):.2f} s of processor time, this "
        f"process {found['peak'] / 1e6:.0f} MB, {same}{opened}",
        flush=True,
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--gigabytes", type=float, default=1.0)
    options.add_argument("--columns", type=int, default=100)
    options.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    options.add_argument("--child", nargs=3, type=int, help=argparse.SUPPRESS)
    asked = options.parse_args()
    if asked.child is not None:
        chunks, columns, workers = asked.child
        print(json.dumps(on_cluster(chunks, columns, workers) if workers else in_memory(chunks, columns)))
        return
    chunks = max(1, round(asked.gigabytes * 1e9 / (8 * asked.columns * CHUNK)))
    rows = chunks * CHUNK
    print(f"{rows:,} rows of {asked.columns} columns, {rows * asked.columns * 8 / 1e9:.2f} GB, bound found privately")
    here = measured(chunks, asked.columns, 0)
    show("in memory", here, rows, here)
    for workers in asked.workers:
        show(f"{workers} workers", measured(chunks, asked.columns, workers), rows, here)


if __name__ == "__main__":
    main()
