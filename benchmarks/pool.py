"""PrivatePCA of a Parquet folder far larger than memory: one process beside several (`rows_in_processes`), time and memory.

    python benchmarks/pool.py                                  # 4 GB
    python benchmarks/pool.py --gigabytes 20 --folder /data    # the folder is deleted afterwards

Memory is the peak of the process that fits, plus that of the largest reading process times their number: an upper bound on what
all of them had at once. Processor time is that of all processes: compare it where other work on the machine makes seconds
useless. Each line is a process of its own. Files are read through the system's cache, which is not counted.
"""

import argparse
import hashlib
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

ROWS_IN_A_FILE, ROW_GROUP = 250_000, 25_000
PRIVATE: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "random_state": 1, "row_bound": 20.0}


def written(folder: Path, gigabytes: float, columns: int) -> int:
    """Parquet files of numbers that do not compress; how many rows there are."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    files = max(1, round(gigabytes * 1e9 / (8 * columns * ROWS_IN_A_FILE)))
    names = [f"x{at}" for at in range(columns)]
    spread = 10.0 / np.arange(1, columns + 1)
    for number in range(files):
        values = np.random.default_rng(number).standard_normal((ROWS_IN_A_FILE, columns)) * spread
        table = pa.table({name: values[:, at] for at, name in enumerate(names)})
        path = folder / f"part-{number:04d}.parquet"
        pq.write_table(table, path, row_group_size=ROW_GROUP, compression="none", use_dictionary=False)
    return files * ROWS_IN_A_FILE


def fitted(folder: Path, processes: int) -> dict[str, Any]:
    """One fit: seconds, memory and a digest of the components. With one process the table is read here, as `fit` does."""
    from eigenveil import PrivatePCA, rows_in_processes
    from eigenveil.data.tables import read_table

    # What this process imported counts for neither of them.
    start, before = time.perf_counter(), time.process_time()
    rows = read_table(folder).rows if processes == 1 else rows_in_processes(folder, processes=processes)
    pca = PrivatePCA(5, **PRIVATE).fit(rows)
    seconds = time.perf_counter() - start
    digest = hashlib.sha256(pca.components_.tobytes()).hexdigest()[:12]
    # Children are counted once they have ended.
    from joblib.externals.loky import get_reusable_executor

    get_reusable_executor().shutdown(wait=True)
    mine, theirs = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    used = sum(one.ru_utime + one.ru_stime for one in (mine, theirs)) - before
    peak = mine.ru_maxrss + (theirs.ru_maxrss * processes if processes > 1 else 0)
    return {"seconds": seconds, "used": used, "digest": digest, "peak": peak * 1024}


def child(folder: Path, processes: int, *more: object) -> Any:
    """What a process of its own prints."""
    line = [sys.executable, __file__, "--child", folder, processes, *more]
    done = subprocess.run([str(word) for word in line], check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--gigabytes", type=float, default=4.0)
    options.add_argument("--columns", type=int, default=100)
    options.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    options.add_argument("--folder", type=Path, default=None, help="where to write the files; a temporary folder if not given")
    options.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    asked = options.parse_args()
    if asked.child is not None:
        folder, processes = Path(asked.child[0]), int(asked.child[1])
        print(json.dumps(fitted(folder, processes) if processes else written(folder, asked.gigabytes, asked.columns)))
        return
    folder = Path(tempfile.mkdtemp(prefix="eigenveil-pool-", dir=asked.folder))
    try:
        # Written by another process: Linux counts what a parent had towards the peak of the children it starts.
        rows = child(folder, 0, "--gigabytes", asked.gigabytes, "--columns", asked.columns)
        size = sum(path.stat().st_size for path in folder.iterdir())
        print(f"{rows:,} rows of {asked.columns} columns in {size / 1e9:.1f} GB of Parquet", flush=True)
        for processes in asked.processes:
            found = child(folder, processes)
            print(
                f"{processes} processes: {found['seconds']:.1f} s, {rows / found['seconds']:,.0f} rows/s, "
                f"{found['used']:.1f} s of processor time, at most "
                f"{found['peak'] / 1e9:.2f} GB of memory, components {found['digest']}",
                flush=True,
            )
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
