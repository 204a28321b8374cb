"""What exact noise costs: draws a second, the size of the noise, and whole fits beside a tree that came before it.

- `draws` compares `RoundedGaussian` with `Noise.normal`, whose floating-point normals it replaces. It uses one thread and
  several scales (the standard deviation in whole steps), and also small draws, whose sampler is made anew each time.
- `noise` is the standard deviation of what a release adds, over sensitivity times multiplier: as computed, and as
  found in sixteen million draws, to within 4e-4.
- `fits` times whole fits in this tree and in the git worktree that --before names. Each tree has its own process, and
  they alternate. The figures are medians of the ratios within pairs, without the first pair. Without --before only
  this tree is timed.

Seconds depend on the machine and on what else runs there, so compare ratios measured in one run. On a busy machine
use --cpu, which counts processor seconds, and --threads 1: BLAS threads that wait for a core make wall time useless.

Targets: 80 million draws a second, 1.001 times the noise, 1.1 times the time of a fit from 100 columns and 1.3 times below.

    git worktree add --detach ../before 31e9cf8

    About fifteen minutes:

        python benchmarks/exact_noise.py --before ../before
    python benchmarks/exact_noise.py draws noise
    python benchmarks/exact_noise.py fits --before ../before --quick --columns 30 100 --kinds covariance masked
"""

import argparse
import importlib.util
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np

# Workers load this file with the code of older trees, so only what those have is imported here.
from eigenveil import FederatedPCA, PrivatePCA, StreamingPCA
from eigenveil.linalg import Array

# (rows, columns), with rows so that a fit takes some tenths of a second at least.
SHAPES = [(400_000, 10), (200_000, 30), (100_000, 100), (40_000, 500), (20_000, 2000)]
RANK, SITES, DRAWS, SCALES = 5, 5, 1 << 22, (1.0, 2.0**10, 2.0**20, 2.0**30, 2.0**40, 2.0**42, 2.0**45)
TARGET_DRAWS, TARGET_NOISE, TARGET_WIDE, TARGET_NARROW, WIDE = 80e6, 1.001, 1.1, 1.3, 100
PRIVATE: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "row_bound": 3.0}


def seconds(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Time of one call."""
    start = clock()
    work()
    return clock() - start


def verdict(found: float, limit: float, *, least: bool = False) -> str:
    return f"{'reached' if (found >= limit if least else found <= limit) else 'MISSED'} ({limit:g})"


# --- Draws. ---


def draws(repeats: int, clock: Callable[[], float]) -> None:
    """Draws a second on one thread, interleaved with floating-point normals."""
    from eigenveil.core.noise import Noise, RoundedGaussian
    from eigenveil.linalg.sketch import normals

    print(f"\n{'scale':>10}{'exact, M/s':>14}{'normals, M/s':>14}{'ratio':>8}")
    noise = Noise.seeded(1)
    for scale in SCALES:
        sampler = RoundedGaussian(scale)
        exact: Callable[[], object] = partial(sampler.draw, noise, DRAWS)
        pairs = _pairs(exact, lambda: normals(noise, (DRAWS,)), repeats, clock)
        rate = DRAWS / statistics.median(ours for ours, _ in pairs)
        peer = DRAWS / statistics.median(theirs for _, theirs in pairs)
        ratio = statistics.median(ours / theirs for ours, theirs in pairs)
        judged = verdict(rate / 1e6, TARGET_DRAWS / 1e6, least=True)
        print(f"2^{math.log2(scale):<8.0f}{rate / 1e6:14.1f}{peer / 1e6:14.1f}{ratio:8.2f}  {judged}", flush=True)
    print(f"\n{'count':>10}{'exact, us':>14}{'normals, us':>14}{'ratio':>8}")
    for count in (1, 10, 1000, 10_000):
        pairs = _pairs(
            lambda count=count: [RoundedGaussian(1e6).draw(noise, count) for _ in range(200)],  # type: ignore[misc]
            lambda count=count: [normals(noise, (count,)) for _ in range(200)],  # type: ignore[misc]
            repeats,
            clock,
        )
        ours, theirs = (statistics.median(each) / 200 * 1e6 for each in zip(*pairs, strict=True))
        print(f"{count:10}{ours:14.1f}{theirs:14.1f}{ours / theirs:8.2f}", flush=True)


def _pairs(
    ours: Callable[[], object], theirs: Callable[[], object], repeats: int, clock: Callable[[], float]
) -> list[tuple[float, float]]:
    """Seconds of both, alternating, after one uncounted run of each."""
    ours(), theirs()
    return [(seconds(ours, clock), seconds(theirs, clock)) for _ in range(repeats)]


# --- The size of the noise. ---


def noise() -> None:
    """Standard deviation over sensitivity times multiplier, for releases of several sizes."""
    from eigenveil.core.noise import distance_in_steps, step_of

    print(f"\n{'size':>10}{'computed':>12}{'found':>10}")
    for side in (1, 10, 100, 1000, 4000):
        step = step_of(1.0, side * side)
        # The variance of rounding is a twelfth of a squared step.
        deviation = math.hypot(distance_in_steps(1.0, side * side, step) * 4.0 * step, step / math.sqrt(12)) / 4.0
        times = max(1, 4000 * 4000 // (side * side)) if side >= 100 else 0
        found = math.sqrt(statistics.fmean(_square(side, seed) for seed in range(times))) if times else math.nan
        judged = verdict(deviation, TARGET_NOISE)
        print(f"{side * side:10}{deviation:12.6f}{found:10.5f}  {judged}", flush=True)


def _square(side: int, seed: int) -> float:
    """The mean square of the noise on zeros, over the squared multiplier."""
    from eigenveil.core.ledger import Ledger
    from eigenveil.core.mechanism import Bounded, Gaussian
    from eigenveil.core.noise import Noise

    ledger = Ledger(epsilon=math.inf, delta=1e-6)
    found = Gaussian(multiplier=4.0, ledger=ledger, noise=Noise.seeded(seed)).release(
        Bounded(np.zeros((side, side)), 1.0), label="zeros"
    )
    return float(np.mean(np.square(found)) / 16)


# --- Whole fits. ---


def _private(method: Any) -> Callable[[Array], object]:
    return lambda rows: PrivatePCA(RANK, method=method, **PRIVATE).fit(rows)


def _federated(trust: str) -> Callable[[Array], object]:
    def fit(rows: Array) -> object:
        sites = {f"site {number}": part for number, part in enumerate(np.array_split(rows, SITES))}
        return FederatedPCA(RANK, trust=trust, **PRIVATE).fit(sites)  # type: ignore[arg-type]

    return fit


KINDS: dict[str, Callable[[Array], object]] = {
    "covariance": _private("covariance"),
    "power": _private("power"),
    "stream": lambda rows: StreamingPCA(RANK, **PRIVATE).fit(rows),
    "hub": _federated("hub"),
    "site": _federated("site"),
    "masked": _federated("masked"),
}


def rows_of(count: int, dim: int) -> Array:
    """Normal rows with falling standard deviations, of norm about one and a half."""
    rows = np.random.default_rng(0).standard_normal((count, dim)) * np.arange(1, dim + 1) ** -0.5
    return np.asarray(rows * (1.5 / math.sqrt(np.square(rows[:1000]).sum(axis=1).mean())))


def answer(clock: Callable[[], float]) -> None:
    """A worker: answer each question on standard input, a kind and a shape, with the seconds of a fit."""
    shape, rows = (0, 0), np.zeros((0, 0))
    import eigenveil

    # Trees from before the core have it elsewhere.
    where = "core" if importlib.util.find_spec("eigenveil.core") else "privacy"
    accounting = importlib.import_module(f"eigenveil.{where}.accounting")
    print(json.dumps(str(Path(eigenveil.__file__).parent)), flush=True)
    for line in sys.stdin:
        kind, count, dim = json.loads(line)
        if shape != (count, dim):
            del rows
            shape, rows = (count, dim), rows_of(count, dim)
        # A process fits once, as a rule: what one fit remembers of budgets is not to speed up the next.
        for remembered in (accounting.mu_for, accounting.epsilon_of):
            getattr(remembered, "cache_clear", lambda: None)()
        try:
            found = seconds(lambda rows=rows, kind=kind: KINDS[kind](rows), clock)  # type: ignore[misc]
        except Exception as error:
            print(json.dumps(f"{type(error).__name__}: {error}"), flush=True)
        else:
            print(json.dumps(found), flush=True)


@final
class Tree:
    """A process that fits with the code of one tree. Changes in place: it holds rows, and a pipe."""

    def __init__(self, root: Path, *, cpu: bool, threads: int | None) -> None:
        source, several = (str((root / "src").resolve()), {} if threads is None else {"OPENBLAS_NUM_THREADS": str(threads)})
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(Path(__file__).resolve()), "--worker", *(["--cpu"] if cpu else [])],
            env={**os.environ, **several, "PYTHONPATH": source},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        used = str(self._read())
        if not used.startswith(source):
            raise SystemExit(f"the code of {root} was to be timed, and {used} was loaded")

    def seconds(self, kind: str, shape: tuple[int, int]) -> float | str:
        """Of one fit, or what went wrong."""
        assert self._process.stdin is not None
        print(json.dumps([kind, *shape]), file=self._process.stdin, flush=True)
        found = self._read()
        return found if isinstance(found, str) else float(found)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


def fits(trees: Sequence[Tree], kinds: Sequence[str], shapes: Sequence[tuple[int, int]], repeats: int) -> None:
    """Whole fits in both trees, alternating."""
    print(f"\n{'fit':<12}{'rows':>8}{'columns':>9}{'now, s':>10}{'before, s':>11}{'ratio':>8}")
    for shape in shapes:
        for kind in kinds:
            _compare(trees, kind, shape, repeats)


def _compare(trees: Sequence[Tree], kind: str, shape: tuple[int, int], repeats: int) -> None:
    head = f"{kind:<12}{shape[0]:8}{shape[1]:9}"
    runs = [[tree.seconds(kind, shape) for tree in trees] for _ in range(repeats + 1)][1:]
    if failed := next((found for run in runs for found in run if isinstance(found, str)), None):
        print(f"{head}  not fitted: {failed}", flush=True)
        return
    times = [[float(found) for found in run] for run in runs]
    medians = "".join(f"{statistics.median(each):10.3f} " for each in zip(*times, strict=True))
    if len(trees) == 1:
        print(head + medians, flush=True)
        return
    ratio = statistics.median(now / then for now, then in times)
    limit = TARGET_WIDE if shape[1] >= WIDE else TARGET_NARROW
    print(f"{head}{medians}{ratio:7.2f}  {verdict(ratio, limit)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="part", help="of draws, noise, fits; all if none is named")
    parser.add_argument("--before", type=Path, help="a worktree of the tree to compare whole fits with")
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--columns", nargs="+", type=int, choices=[dim for _, dim in SHAPES], help="all if not given")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="three repetitions, a tenth of the rows")
    parser.add_argument("--cpu", action="store_true", help="time the processor, not the clock on the wall")
    parser.add_argument("--threads", type=int, help="BLAS threads of a fit")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    clock = time.process_time if chosen.cpu else time.perf_counter
    if chosen.worker:
        answer(clock)
        return
    if unknown := set(chosen.parts) - {"draws", "noise", "fits"}:
        parser.error(f"unknown part {', '.join(sorted(unknown))}; there are draws, noise, fits")
    repeats, parts = 3 if chosen.quick else chosen.repeats, chosen.parts or ["draws", "noise", "fits"]
    shapes = [(n // 10 if chosen.quick else n, d) for n, d in SHAPES if chosen.columns is None or d in chosen.columns]
    if "draws" in parts:
        draws(repeats, clock)
    if "noise" in parts:
        noise()
    if "fits" in parts:
        roots = [root for root in (Path(__file__).parents[1], chosen.before) if root is not None]
        trees = [Tree(root, cpu=chosen.cpu, threads=chosen.threads) for root in roots]
        fits(trees, chosen.kinds, shapes, repeats)
        for tree in trees:
            tree.close()


if __name__ == "__main__":
    main()
