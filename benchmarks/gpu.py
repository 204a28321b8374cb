"""Rows on a GPU: the clipped Gram matrix, products with a basis, and rows that come from memory, against what the device can do.

Each figure is a ratio to something measured in the same run on the same device. That is the rate of a plain float64 product,
the time of one read of the rows, or that of a plain copy to the device. The first rows are computed in memory too, and must
agree bit for bit.

    python benchmarks/gpu.py                       # a million rows, 4096 columns: 33 GB on the device
    python benchmarks/gpu.py --rows 100000 --columns 1000
    python benchmarks/gpu.py --tiles               # tries other tiles of the kernels, for another GPU or another torch
"""

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import product as every
from typing import Any

import numpy as np

from eigenveil.core.domain import Domain
from eigenveil.core.unit import Neighbours
from eigenveil.data.engines.gpu import fused, rows_on_device
from eigenveil.data.rows import DenseRows
from eigenveil.linalg.blas import orthonormal
from eigenveil.privacy.sums import bounded_gram, bounded_gram_times, bounded_sum

ADD = Neighbours.ADD_REMOVE


def seconds(act: Callable[[], Any], torch: Any, repeats: int = 3) -> float:
    """The least time of a few calls, after one that compiles what there is to compile."""
    act()
    found = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        began = time.perf_counter()
        act()
        torch.cuda.synchronize()
        found.append(time.perf_counter() - began)
    return min(found)


def tried(act: Callable[[], Any], torch: Any, read: float) -> None:
    """Times of a product with tiles other than those of `fused.py`, one kernel at a time, the fastest first."""
    choices: dict[str, list[Any]] = {
        "_SCORE_TILE": list(every((64, 128), (16, 32), (4, 8), (2, 3, 4))),
        "_BACK_TILE": list(every((64, 128), (16, 32), (2, 4, 8), (2, 3, 4))),
        "_PARTS": [4, 8, 16, 32, 64],
    }
    for name, values in choices.items():
        before, found = getattr(fused, name), []
        for value in values:
            setattr(fused, name, value)
            try:
                found.append((seconds(act, torch), value))
            except Exception as error:
                # A tile may need more shared memory or registers than a processor has.
                print(f"{name} {value}: {type(error).__name__}")
        found.sort(key=lambda one: one[0])
        for taken, value in found[:6]:
            print(f"{name} {value}: {1e3 * taken:.2f} ms, {taken / read:.2f} reads", flush=True)
        # The next kernel is tried beside the best tile of this one.
        setattr(fused, name, found[0][1] if found else before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=4096)
    parser.add_argument("--width", type=int, default=64, help="vectors of the basis")
    parser.add_argument("--tiles", action="store_true", help="only try tiles of the kernels for products")
    options = parser.parse_args()
    try:
        import torch
    except ModuleNotFoundError:
        sys.exit("skipped: torch is not installed")
    if not torch.cuda.is_available():
        sys.exit("skipped: torch sees no GPU here")
    count, dim, width = options.rows, options.columns, options.width
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {count} rows, {dim} columns, float64")

    side = min(8192, 2 * dim)
    square = torch.randn(side, side, dtype=torch.float64, device="cuda")
    rate = 2 * side**3 / seconds(lambda: square @ square, torch)
    print(f"plain product of {side} x {side}: {rate / 1e12:.1f} TFLOP/s")
    values = torch.empty(count, dim, dtype=torch.float64, device="cuda")
    for start in range(0, count, 50_000):
        values[start : start + 50_000].normal_()
    read = seconds(values.sum, torch)
    print(f"one read of the rows: {1e3 * read:.2f} ms, {values.nbytes / read / 1e12:.2f} TB/s")

    rng = np.random.default_rng(0)
    domain = Domain(dim=dim, radius=0.9 * dim**0.5, center=rng.normal(0, 0.1, dim))
    basis = orthonormal(rng.standard_normal((dim, width)))
    there = rows_on_device(values)

    def product(rows: Any) -> Any:
        return bounded_gram_times(rows, basis=basis, domain=domain, neighbours=ADD).value

    def gram(rows: Any) -> Any:
        return bounded_gram(rows, domain=domain, neighbours=ADD).value

    if options.tiles:
        tried(lambda: product(there), torch, read)
        return

    taken = seconds(lambda: gram(there), torch, 1)
    print(f"clipped Gram matrix: {taken:.3f} s, {2 * count * dim**2 / taken / rate:.0%} of the plain product's rate")

    again = seconds(lambda: product(there), torch)
    print(f"product of width {width}, norms known: {1e3 * again:.1f} ms, {again / read:.2f} reads of the rows")
    first = seconds(lambda: product(replace(there, _kept={})), torch)
    print(f"product of width {width}, the first around a center: {1e3 * first:.1f} ms, {first / read:.2f} reads")
    total = seconds(lambda: bounded_sum(there, domain=domain, neighbours=ADD), torch)
    print(f"sum of rows: {1e3 * total:.1f} ms, {total / read:.2f} reads")

    few = slice(0, 5000)
    here, part = DenseRows(values[few].cpu().numpy()), rows_on_device(values[few])
    same = [np.array_equal(product(here), product(part)), np.array_equal(gram(here), gram(part))]
    print(f"5000 rows in memory give the same bits: products {same[0]}, Gram matrix {same[1]}")

    host = values[: count // 4].cpu().numpy()
    pinned = torch.empty(host.shape[0] // 8, dim, dtype=torch.float64, pin_memory=True)
    copy = seconds(lambda: pinned.to("cuda"), torch) * 8
    streamed = rows_on_device(host, device="cuda")
    taken = seconds(lambda: gram(streamed), torch, 1)
    resident = seconds(lambda: gram(rows_on_device(values[: count // 4])), torch, 1)
    print(
        f"a quarter of the rows from memory, Gram matrix: {taken:.3f} s; on the device already {resident:.3f} s, "
        f"a plain copy from pinned memory {copy:.3f} s"
    )


if __name__ == "__main__":
    main()
