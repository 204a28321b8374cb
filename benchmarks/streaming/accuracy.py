"""Accuracy over time: FPCA against other streaming methods, after the supplement's D.1 and D.2 (Figs. 6, 7, 8 and 9d).

The error is (66), || Y_t - Y_t P ||_F^2 / t for all t rows so far and the projector P on the tracker's directions at
t. No method of rank 10 can be below the first line of its table. Those that choose their rank can, by taking more.

FPCA adaptive starts at rank 10. Its bounds are runs fixed at the lowest and the highest rank that it took. The
smallest of ten singular values is at most a tenth of their sum, so from there bounds of 1 and 10 percent can only
lower the rank. A start at rank 1, of which only the verdict is shown, tries the opposite direction.

FPCA forgets per block of 50 rows and SPIRIT per row, both by 0.9. Forgetting gives up the distant past for the
present, so (66) alone would be unfair to it. Therefore `recent` is the same error over the last 250 rows. The columns
`distance` (root mean square sine) and `sine` (the largest) are to the offline SVD of all rows at the same rank. Where
the spectrum is nearly flat they are large for every method and mean little.

    python benchmarks/streaming/accuracy.py            # both definitions of Synth(alpha), six alphas each, and motes_light
    python benchmarks/streaming/accuracy.py --quick
"""

import argparse
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.datasets import dense, skipped
from benchmarks.streaming.runs import SYNTHS, distance, fixed_rank, fpca, residual, spirit, states
from eigenveil.linalg import Array, Subspace
from eigenveil.linalg.blas import blas_threads
from eigenveil.trackers import Tracker

RANK, FORGET, RECENT, ROUNDING = 10, 0.9, 250, 1e-9
ALPHAS, CHECKPOINTS = (0.001, 0.1, 0.5, 1.0, 2.0, 3.0), (500, 1000, 2000, 4000)
ADAPTIVE, ENERGY, FADING = "FPCA, adaptive", "SPIRIT, energy", f", forget {FORGET}"


@dataclass(frozen=True)
class Trace:
    """Errors by time, the rank after every block, and the answer at the end."""

    errors: dict[int, float]
    ranks: list[int]
    space: Subspace


def trace(tracker: Tracker[Any], rows: Array, times: set[int] | None = None) -> Trace:
    """A run over all rows, with errors at `times`, or after every block."""
    errors, ranks = {}, []
    for seen, state in states(tracker, rows):
        space = tracker.subspace(state)
        ranks.append(space.rank)
        if times is None or seen in times:
            errors[seen] = residual(space.basis, rows[:seen])
    return Trace(errors, ranks, space)


def bounded(adaptive: Trace, low: Trace, high: Trace) -> str:
    """Whether the adaptive error lay between those of its bounds after every block, and by how much not."""
    ranks = f"rank {min(adaptive.ranks)}..{max(adaptive.ranks)}"
    if low is high:
        return f"the rank stayed at {low.space.rank}, so that bounds and adaptive run are the same"
    pairs = [(error, low.errors[t], high.errors[t]) for t, error in adaptive.errors.items()]
    worse = [error / max(bounds) - 1 for error, *bounds in pairs]
    better = [1 - error / min(bounds) for error, *bounds in pairs]
    words = [
        f"{what} than both after {sum(share > ROUNDING for share in shares)}, by {max(shares):.0e} at most"
        for what, shares in (("WORSE", worse), ("better", better))
        if max(shares) > ROUNDING
    ]
    return f"{ranks}, of {len(pairs)} blocks: " + (" and ".join(words) or "within the bounds after each")


def adaptive_and_bounds(rows: Array, *, start: int = RANK, forget: float = 1.0) -> tuple[dict[str, Trace], str]:
    """The adaptive run and those at its lowest, its highest and the usual rank."""
    adaptive = trace(fpca(start, forget=forget, adaptive=True), rows)
    low, high = min(adaptive.ranks), max(adaptive.ranks)
    fixed = {rank: trace(fpca(rank, forget=forget), rows) for rank in sorted({low, high, RANK})}
    more = FADING if forget < 1 else ""
    runs = {f"{ADAPTIVE}{more}": adaptive} | {f"FPCA, rank {rank}{more}": run for rank, run in fixed.items()}
    return runs, bounded(adaptive, fixed[low], fixed[high])


def table(title: str, rows: Array) -> tuple[float, dict[str, Trace]]:
    """Print all runs on one data set. Returns the least error of rank 10 at the end, and the runs."""
    count, dim = rows.shape
    times = {t for t in CHECKPOINTS if t < count} | {count}
    runs, verdict = adaptive_and_bounds(rows)
    _, verdict_rising = adaptive_and_bounds(rows, start=1)
    fading, verdict_fading = adaptive_and_bounds(rows, forget=FORGET)
    others: dict[str, Tracker[Any]] = {ENERGY: spirit(dim), **fixed_rank(RANK)}
    runs |= {name: trace(tracker, rows, times) for name, tracker in others.items() if name not in runs}
    runs |= {**fading, f"{ENERGY}{FADING}": trace(spirit(dim, forget=FORGET), rows, times)}
    parts = [rows[:t] for t in sorted(times)] + [rows[-RECENT:]]
    best = [float(np.square(np.linalg.svd(part, compute_uv=False)[RANK:]).sum()) / len(part) for part in parts]
    offline = np.linalg.svd(rows, full_matrices=False)[2].T
    print(f"\n{title}, {count} x {dim}: error (66)")
    head = "".join(f"{f't={t}':>11}" for t in sorted(times))
    print(f"{'':28}{head}{'recent':>11}{'rank (range)':>16}{'distance':>10}{'sine':>8}")
    print(f"{f'least of rank {RANK}':28}" + "".join(f"{error:11.4g}" for error in best))
    for name, run in runs.items():
        errors = "".join(f"{run.errors[t]:11.4g}" for t in sorted(times))
        recent = residual(run.space.basis, rows[-RECENT:])
        ranks = f"{run.space.rank} ({min(run.ranks)}..{max(run.ranks)})"
        same = Subspace(offline[:, : run.space.rank], np.zeros(run.space.rank))
        off, sine = distance(run.space.basis, same.basis), run.space.sines(same).max(initial=0.0)
        print(f"{name:28}{errors}{recent:11.4g}{ranks:>16}{off:10.4f}{sine:8.4f}")
    print(f"bounds: {verdict}\nbounds{FADING}: {verdict_fading}\nbounds, from rank 1: {verdict_rising}", flush=True)
    return best[-2], runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="100 columns, 1000 rows, two alphas; a part of motes_light")
    quick = parser.parse_args().quick
    alphas, count, dim = ((0.5, 2.0), 1000, 100) if quick else (ALPHAS, 4000, 400)
    found = {}
    with blas_threads(1):
        for words, synth in SYNTHS.items():
            for alpha in alphas:
                rows = synth(alpha, count=count, dim=dim, rng=np.random.default_rng(0))
                found[f"{words}, {alpha:g}"] = table(f"Synth({alpha:g}), {words}", rows)
        if not skipped("motes_light"):
            found["motes_light"] = table("motes_light", dense("motes_light")[: 2000 if quick else None])
    names = [ADAPTIVE, *fixed_rank(RANK), ENERGY]
    print(f"\nLast error over the least of rank {RANK}; in brackets the rank where the method chose it")
    print(f"{'':32}" + "".join(f"{name.replace(' step', ''):>16}" for name in names))
    for title, (best, runs) in found.items():
        cells = []
        for name in names:
            run = runs[name]
            ratio = list(run.errors.values())[-1] / best
            cells.append(f"{ratio:.3f}" + (f" ({run.space.rank})" if name in (ADAPTIVE, ENERGY) else ""))
        print(f"{title:32}" + "".join(f"{cell:>16}" for cell in cells))


if __name__ == "__main__":
    main()
