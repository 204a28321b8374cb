"""How long a private fit takes beside scikit-learn's exact one, and how much memory it adds: medians of interleaved pairs.

    python benchmarks/speed.py                 # all four parts
    python benchmarks/speed.py noise covariance power ledger

Seconds depend on the machine and on what else runs there, so compare ratios measured in one run.
"""

import argparse
import os
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
from sklearn.decomposition import PCA, TruncatedSVD

from benchmarks.datasets import skipped, sparse
from eigenveil import Ledger, PrivatePCA
from eigenveil.core.noise import Noise
from eigenveil.core.rows import block_size
from eigenveil.data.rows import DenseRows
from eigenveil.linalg.sketch import normals

PAIRS = 5
# Fits with a ledger in a file and in memory, in turns; and seconds that the file may add to one.
LEDGER_PAIRS = 31
MOST_EXTRA = 0.040
PRIVATE: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6}


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def interleaved(ours: Callable[[], object], theirs: Callable[[], object]) -> tuple[float, float, float]:
    """Median seconds of both, and the median of the ratios within pairs, after one warm-up each."""
    ours(), theirs()
    pairs = [(seconds(ours), seconds(theirs)) for _ in range(PAIRS)]
    return (
        statistics.median(a for a, _ in pairs),
        statistics.median(b for _, b in pairs),
        statistics.median(a / b for a, b in pairs),
    )


def extra_memory(work: Callable[[], object]) -> int:
    """Peak bytes that numpy and Python allocate during one call, beyond what was there before."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def report(title: str, figures: tuple[float, float, float], limit: float) -> None:
    ours, theirs, ratio = figures
    verdict = "reached" if ratio <= limit else "MISSED"
    print(f"{title}: {ours:.2f} s against {theirs:.2f} s, ratio {ratio:.2f} (target {limit}: {verdict})")


def memory(title: str, found: int, allowed: int, words: str) -> None:
    verdict = "reached" if found <= allowed else "MISSED"
    print(f"{title}: {found / 2**20:.1f} MiB extra, allowed {allowed / 2**20:.1f} MiB = {words} ({verdict})")


def noise() -> None:
    """Normals per second from the cryptographic stream."""
    source, count = Noise.fresh(), 4_000_000
    normals(source, (count,))
    rate = count / statistics.median(seconds(lambda: normals(source, (count,))) for _ in range(PAIRS))
    print(f"noise: {rate / 1e6:.0f} million normals per second (target 25: {'reached' if rate >= 25e6 else 'MISSED'})")


def covariance() -> None:
    """100000 x 1000 dense against PCA(svd_solver="covariance_eigh")."""
    rows = np.random.default_rng(0).standard_normal((100_000, 1000)) / np.arange(1, 1001) ** 0.3
    dim, rank = rows.shape[1], 10

    def ours() -> object:
        return PrivatePCA(rank, row_bound=10.0, method="covariance", **PRIVATE).fit(rows)

    def theirs() -> object:
        return PCA(rank, svd_solver="covariance_eigh").fit(rows)

    report("covariance, 100000 x 1000, private mean included", interleaved(ours, theirs), 1.25)
    block = 2 * block_size(DenseRows(rows)) * dim * 8
    memory(
        "covariance",
        extra_memory(ours),
        4 * dim * dim * 8 + block + 2**20,
        "4 d^2 doubles, a block for each of two workers, 1 MiB",
    )


def power() -> None:
    """gowalla, 29858 x 40981 sparse, k = 32, three products of width 64, against TruncatedSVD(32)."""
    if skipped("gowalla"):
        return
    matrix = sparse("gowalla")
    dim, rank = matrix.shape[1], 32
    width = 2 * rank

    def fit(center: Literal["private"] | None) -> Callable[[], object]:
        settings: dict[str, Any] = {"method": "power", "oversample": width - rank, "rounds": 3, "row_bound": 10.0, **PRIVATE}
        return lambda: PrivatePCA(rank, center=center, **settings).fit(matrix)

    def theirs() -> object:
        return TruncatedSVD(rank).fit(matrix)

    report("power, gowalla, not centred, as TruncatedSVD", interleaved(fit(None), theirs), 1.3)
    report("power, gowalla, private mean included", interleaved(fit("private"), theirs), 1.3)
    nonzeros = matrix.nnz * 16
    found = extra_memory(fit("private"))
    memory("power", found, 6 * dim * width * 8 + nonzeros, "6 d width doubles and one block (of at most nnz entries)")


def ledger() -> None:
    """What a ledger in a file adds to a fit, beside the same fit with one in memory, by how many releases it has."""
    rows = np.random.default_rng(0).standard_normal((20_000, 6)) * [6, 3, 1, 1, 1, 1]
    fits: dict[str, dict[str, Any]] = {
        "a row bound": {"row_bound": 15.0},
        "a private bound": {},
        "a private bound and scale": {"scale": "private"},
    }
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        print(f"this disk confirms a write in {1000 * _confirmed(Path(folder, 'bytes')):.1f} ms, and a charge waits for five")
        kept = Ledger.open(Path(folder, "people.ledger"), "people", epsilon=1e4, delta=1e-5)
        for name, given in fits.items():
            book = Ledger(epsilon=1e4, delta=1e-5)

            def fit(spends: Ledger, given: dict[str, Any] = given) -> PrivatePCA:
                return PrivatePCA(2, ledger=spends, **PRIVATE, **given).fit(rows)

            releases = len(fit(book).guarantee_.charges)
            fit(kept)
            pairs = [(seconds(lambda: fit(kept)), seconds(lambda: fit(book))) for _ in range(LEDGER_PAIRS)]  # noqa: B023
            extra = statistics.median(file - memory for file, memory in pairs)
            shown = f"{1000 * extra:.0f} ms more than {1000 * statistics.median(m for _, m in pairs):.0f} ms"
            verdict = "reached" if extra <= MOST_EXTRA else "MISSED"
            print(f"ledger in a file, {name}, {releases} releases: {shown} (target {1000 * MOST_EXTRA:.0f} ms: {verdict})")


def _confirmed(path: Path) -> float:
    """Median seconds that the disk takes to confirm a page at the end of a file."""
    with path.open("wb", buffering=0) as file:

        def write() -> None:
            file.write(bytes(16384))
            os.fsync(file.fileno())

        return statistics.median(seconds(write) for _ in range(LEDGER_PAIRS))


def main() -> None:
    parts = {"noise": noise, "covariance": covariance, "power": power, "ledger": ledger}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(parts)}; all if none is named")
    chosen = parser.parse_args().parts or list(parts)
    if unknown := set(chosen) - set(parts):
        parser.error(f"unknown part {', '.join(sorted(unknown))}; there are {', '.join(parts)}")
    for name in chosen:
        parts[name]()


if __name__ == "__main__":
    main()
