"""How much memory a stream takes: the question of FPCA's Table 1 (supplement, D.5), on motes_light and on Synth(1) of D.1.

All figures are per block of 50 rows:

- `held` is what the arrays of the state take between blocks.
- `peak` is the most that was in use within a step, the state included.
- `read` is what asking for the answer takes on top, once, with the release where one was held back.

The block itself belongs to the caller and is not counted. Allocations of Python and numpy are seen, the workspace
inside LAPACK is not. Table 1 gives what MATLAB's profiler saw, average and median. Its GROUSE copied the whole data
set and its PM waited for a block of d rows; neither is needed.

    python benchmarks/streaming/memory.py
    python benchmarks/streaming/memory.py --quick
"""

import argparse
import tracemalloc
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from benchmarks.datasets import dense, skipped
from benchmarks.streaming.runs import BLOCK, fixed_rank, gaussian_rows, spirit, states
from eigenveil.core.accounting import Budget
from eigenveil.core.domain import Domain
from eigenveil.core.ledger import Ledger
from eigenveil.core.mechanism import Gaussian, Mechanism
from eigenveil.core.noise import Noise
from eigenveil.linalg import Array
from eigenveil.linalg.blas import blas_threads
from eigenveil.trackers import NOTHING_ASKED, GramTracker, SketchTracker, SlicedTracker, SumTerms, Tracker

RANK, KIB = 10, 1024
BUDGET = Budget(1.0, 1e-5)
# FPCA, supplement, Table 1, Light: average and median in Kb.
PUBLISHED = {
    "FPCA, masked": "172.00 / 99.17",
    f"FPCA, rank {RANK}": "104.00 / 76.03",
    "PM, block d": "685.48 / 685.44",
    "GROUSE, greedy step": "2896.84 / 2896.62",
    "FD, sketch 2r": "170.48 / 127.91",
    "SPIRIT, energy": "1009.03 / 508.11",
}


def private() -> Mechanism:
    """Noise for (1, 1e-5), from a ledger of its own. The amount has no effect on memory."""
    ledger = Ledger(epsilon=BUDGET.epsilon, delta=BUDGET.delta)
    return Gaussian(multiplier=1.0 / BUDGET.mu, ledger=ledger, noise=Noise.seeded(0))


def trackers(dim: int, radius: float) -> dict[str, tuple[Tracker[Any], Mechanism]]:
    """The private ones with noise, the others without. Slices of r columns trade speed for memory."""
    terms = SumTerms(domain=Domain(dim=dim, radius=radius), center=False)
    plain: dict[str, Tracker[Any]] = {**fixed_rank(RANK), "SPIRIT, energy": spirit(dim)}
    return {
        "FPCA, masked": (SlicedTracker(rank=RANK, terms=terms), private()),
        "FPCA, masked, by r": (SlicedTracker(rank=RANK, terms=terms, columns=RANK), private()),
        "masked, d x d sum": (GramTracker(RANK, terms), private()),
        **{name: (tracker, NOTHING_ASKED) for name, tracker in plain.items() if name != "GROUSE, step 2"},
    }


def read(tracker: Tracker[Any], state: Any, mechanism: Mechanism) -> object:
    """Ask for the answer."""
    if isinstance(tracker, SketchTracker):
        state = tracker.sync(state, mechanism)
    return tracker.subspace(state)


def arrays(value: Any) -> dict[int, int]:
    """Bytes of all arrays in a state, each counted once, and whole where only a part of it is looked at."""
    if isinstance(value, np.ndarray):
        whole = value if value.base is None else value.base
        return {id(whole): whole.nbytes}
    parts = [getattr(value, field.name) for field in fields(value)] if is_dataclass(value) else []
    return {key: size for part in parts for key, size in arrays(part).items()}


def measured(tracker: Tracker[Any], mechanism: Mechanism, rows: Array) -> tuple[Array, Array, float]:
    """Bytes held after each block, bytes at the peak of each, and bytes for reading the answer at the end."""
    steps = -(-len(rows) // BLOCK)
    held, peak = np.zeros(steps), np.zeros(steps)
    stream, before = states(tracker, rows, mechanism=mechanism), 0
    tracemalloc.start()
    try:
        for step in range(steps):
            # What Python itself piles up in small objects over time is no part of the state.
            now = tracemalloc.get_traced_memory()[0] - before
            tracemalloc.reset_peak()
            _, state = next(stream)
            peak[step] = tracemalloc.get_traced_memory()[1] - now
            held[step] = before = sum(arrays(state).values())
        now = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        read(tracker, state, mechanism)
        return held, peak, tracemalloc.get_traced_memory()[1] - now
    finally:
        tracemalloc.stop()


def table(title: str, rows: Array, radius: float, published: dict[str, str]) -> None:
    """Print one line per tracker."""
    count, dim = rows.shape
    print(f"\n{title}, {count} x {dim}, rank {RANK}, KiB; for scale: a basis {dim * RANK * 8 / KIB:.1f}, ", end="")
    print(f"a block of {BLOCK} rows {BLOCK * dim * 8 / KIB:.1f}, a d x d matrix {dim * dim * 8 / KIB:.1f}")
    paper = "Table 1, avg / median" if published else ""
    print(f"{'':22}{'held':>9}{'peak mean':>12}{'median':>9}{'largest':>9}{'read':>9}{paper:>24}")
    for name, (tracker, mechanism) in trackers(dim, radius).items():
        # Once before, so that what is loaded or cached on first use is not counted.
        measured(tracker, mechanism, rows[: 3 * BLOCK])
        fresh = private() if mechanism is not NOTHING_ASKED else mechanism
        held, peak, asked = measured(tracker, fresh, rows)
        sizes = (float(np.median(held)), float(peak.mean()), float(np.median(peak)), float(peak.max()), asked)
        cells = "".join(f"{size / KIB:{width}.1f}" for size, width in zip(sizes, (9, 12, 9, 9, 9), strict=True))
        print(f"{name:22}{cells}{published.get(name, ''):>24}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a part of motes_light, and 100 columns instead of 400")
    quick = parser.parse_args().quick
    count, dim = (500, 100) if quick else (4000, 400)
    with blas_threads(1):
        if not skipped("motes_light"):
            rows = dense("motes_light")[: 1000 if quick else None]
            # No reading of these sensors is above 2000.
            table("motes_light", rows, 2000.0 * float(np.sqrt(rows.shape[1])), PUBLISHED)
        table("Synth(1)", gaussian_rows(1.0, count=count, dim=dim, rng=np.random.default_rng(0)), 5.0, {})


if __name__ == "__main__":
    main()
