"""Many small sites in one process: 1000, 3000 and 10000 of them, 100 rows each, 100 columns, k = 10, without noise.

It measures seconds of `fit`, in all and per site, and memory, each case in its own process:

- `rows` is the memory of the process when all rows are there.
- `peak` is the most until the fit is over (VmHWM of /proc/self/status).
- `more` is the difference, also per site.

Without /proc there are no figures for memory.

    python benchmarks/federated/many_sites.py [--quick] [--sites 1000 3000 10000]
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.datasets import heading, line
from eigenveil import FederatedPCA
from eigenveil.linalg.blas import blas_threads

ROWS, DIM, RANK = 100, 100, 10
STATUS = Path("/proc/self/status")


def memory(key: str) -> float:
    """MiB from the status of this process, not a number where there is none."""
    if not STATUS.exists():
        return float("nan")
    found = next(text for text in STATUS.read_text().splitlines() if text.startswith(f"{key}:"))
    return int(found.split()[1]) / 1024


def case(method: str, topology: str, count: int) -> None:
    """One fit in this process; prints seconds, rounds, MiB with all rows there, MiB at the peak and bytes for `main`."""
    rng = np.random.default_rng(0)
    scale = 1.0 / np.sqrt(np.arange(1.0, DIM + 1.0))
    sites = [rng.standard_normal((ROWS, DIM)) * scale for _ in range(count)]
    pca = FederatedPCA(RANK, epsilon=None, method=method, topology=topology, random_state=0)  # type: ignore[arg-type]
    held = memory("VmRSS")
    start = time.perf_counter()
    with blas_threads(1):
        pca.fit(sites)
    took = time.perf_counter() - start
    traffic = sum(round_.bytes_up + round_.bytes_down for round_ in pca.transcript_)
    print(took, len(pca.transcript_), held, memory("VmHWM"), traffic)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", nargs="*", type=int, default=[1000, 3000, 10_000])
    parser.add_argument("--quick", action="store_true", help="300 and 1000 sites")
    parser.add_argument("--case", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        method, topology, count = options.case
        case(method, topology, int(count))
        return
    counts = [300, 1000] if options.quick else options.sites
    columns = ["method", "topology", "sites", "seconds", "ms per site", "ms per site and round", "rounds"]
    heading([*columns, "rows MiB", "peak MiB", "more MiB", "KiB per site", "bytes per site"])
    for method in ("krylov", "covariance"):
        for topology in ("star", "tree"):
            for count in counts:
                command = [sys.executable, __file__, "--case", method, topology, str(count)]
                output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                took, rounds, held, peak, traffic = map(float, output.split())
                cells = [f"{took:.2f}", f"{1e3 * took / count:.3f}", f"{1e3 * took / count / rounds:.3f}", f"{rounds:.0f}"]
                cells += [f"{held:.0f}", f"{peak:.0f}", f"{peak - held:.0f}", f"{1024 * (peak - held) / count:.1f}"]
                line([method, topology, str(count), *cells, f"{traffic / count:.0f}"])


if __name__ == "__main__":
    main()
