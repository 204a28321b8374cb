"""How often a fit claims a component where there is none: at most 1.5% of fits should, at a stated level of 1%.

Two kinds of tables have nothing to find: rows that are all zero, and rows that are all the same, at 0.9 of the row bound from
the origin. The second has a mean to find, and the error of that mean is a direction of its own. Each cell is the share of fits
with a component above `noise_floor_`, and in brackets the share above the expected norm of the noise.

Alike rows add up to n times one of them. So the sums of the real task are worked out for one row and multiplied by n, and the
real mechanism releases them. What comes out has the law of a whole fit. Streams, sites that merge, segments between peers and
the recommender are whole fits, with fewer columns.

    python benchmarks/noise_verdict.py            # 200 fits in each cell, a minute or two
    python benchmarks/noise_verdict.py --full     # 2000 fits in each cell, an hour or two on one core: --jobs uses several
    python benchmarks/noise_verdict.py --full --only "bound found"
"""

import argparse
import math
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from eigenveil import FederatedPCA, GossipPCA, Ledger, PrivatePCA, PrivateRecommender, StreamingPCA
from eigenveil.core.accounting import Budget
from eigenveil.core.mechanism import Exact, Gaussian
from eigenveil.core.noise import Noise
from eigenveil.core.rows import Rows
from eigenveil.data.rows import DenseRows
from eigenveil.errors import TooFewPeople
from eigenveil.linalg import Array
from eigenveil.tasks.fit.task import Fit, FitResult

BUDGET = Budget(1.0, 1e-6)
GIVEN: dict[str, Any] = {"epsilon": BUDGET.epsilon, "delta": BUDGET.delta}
BOUNDED = GIVEN | {"row_bound": 1.0}
COUNTS, COLUMNS = (500, 20_000), (5, 20, 100, 300)
# Kept products take longest: each fit decomposes all of its products.
METHODS = {"covariance": (5, 20, 100, 300), "power": (5, 20, 100, 300), "krylov": (5, 20, 100)}
TABLES = {"zero": 0.0, "constant": 0.9}
# Fits that one job does at a time, so that slow cells are shared out too.
AT_A_TIME = 50


def row_of(kind: str, dim: int) -> Array:
    """One row of a table with nothing to find."""
    return np.full((1, dim), TABLES[kind] / math.sqrt(dim))


def carried(study: Fit, one: Rows, count: int, mechanism: Gaussian) -> FitResult:
    """The fit of `count` rows alike: the sums of one of them, times their number, released by the mechanism."""
    exact, state = Exact(because="a benchmark of rows that nobody has"), study.start()
    while (found := study.result(state)) is None:
        part = study.work(study.ask(state), one, exact)
        state = study.advance(state, count * part, mechanism)
    return found


def fits(method: Any, kind: str, count: int, dim: int, runs: range) -> Iterator[tuple[float, float, float]]:
    """The largest eigenvalue of each fit, its noise floor, and the expected norm of its noise."""
    rows = [np.zeros((10, dim))] * 2
    asked = FederatedPCA(min(3, dim), trust="hub", method=method, **BOUNDED)
    parties, one = asked.prepare(rows).parties, DenseRows(row_of(kind, dim))
    plan, study = parties.request.fit.plan, parties.study
    assert isinstance(study, Fit)
    for run in runs:
        mechanism = Gaussian(multiplier=1 / BUDGET.mu, ledger=Ledger(epsilon=math.inf, delta=0.5), noise=Noise.seeded(run))
        found = carried(study, one, count, mechanism)
        floor = parties.noise_floor(found, sites=2, weights=(1.0, math.sqrt(2)))
        norm = math.sqrt(2 * dim) if method == "covariance" else math.sqrt(dim) + math.sqrt(plan.width)
        yield float(found.subspace.values[0] ** 2), floor, found.scale / math.sqrt(plan.shares[-1]) * norm


def whole_fits() -> dict[str, Callable[[int], Any]]:
    """Whole fits of rows with nothing to find, 500 if not said otherwise, by the number of the run."""
    found: dict[str, Callable[[int], Any]] = {}
    for kind in TABLES:
        table = np.repeat(row_of(kind, 20), 500, axis=0)
        for publish in ("sync", "block", "continual"):
            found[f"stream, {publish}, {kind}"] = partial(stream, table, publish)
        for method in ("merge", "fedpower"):
            found[f"5 sites, {method}, {kind}"] = partial(sites, table, method)
        found[f"5 peers, segments, {kind}"] = partial(peers, table)
        for count, scale in ((500, None), (20_000, None), (20_000, "private")):
            what = "units found" if scale else "bound found"
            alike = np.repeat(row_of(kind, 20), count, axis=0)
            found[f"{what}, n = {count}, {kind}"] = partial(unknown, alike, scale)
        many = np.repeat(row_of(kind, 20), 5000, axis=0)
        found[f"bound found, stream, {kind}"] = partial(unknown_stream, many)
        found[f"bound found, 5 sites, {kind}"] = partial(unknown_sites, many)
    for unit, method in product(("user", "item"), ("covariance", "power")):
        found[f"recommender, {unit}, {method}"] = partial(recommender, unit, method)
    return found


def stream(table: Array, publish: Any, run: int) -> StreamingPCA:
    """A whole stream."""
    more: dict[str, Any] = {"horizon": len(table)} if publish == "continual" else {}
    return StreamingPCA(3, publish=publish, random_state=run, **more, **BOUNDED).fit(table)


def sites(table: Array, method: Any, run: int) -> FederatedPCA:
    """Five sites that add their own noise."""
    asked = FederatedPCA(3, trust="site", method=method, random_state=run, **BOUNDED)
    return asked.fit(np.array_split(table, 5))


def peers(table: Array, run: int) -> GossipPCA:
    """Five peers that find one component after another."""
    return GossipPCA(3, graph="complete", method="segments", random_state=run, **BOUNDED).fit(np.array_split(table, 5))


def unknown(table: Array, scale: Any, run: int) -> PrivatePCA:
    """One table whose bound, or units, are found privately on the way."""
    return PrivatePCA(3, scale=scale, random_state=run, **GIVEN).fit(table)


def unknown_stream(table: Array, run: int) -> StreamingPCA:
    """A stream whose bound is found in its first block."""
    return StreamingPCA(3, random_state=run, **GIVEN).fit(table)


def unknown_sites(table: Array, run: int) -> FederatedPCA:
    """Five sites that add their own noise, also to what finds the bound."""
    return FederatedPCA(3, trust="site", random_state=run, **GIVEN).fit(np.array_split(table, 5))


def recommender(unit: Any, method: Any, run: int) -> PrivateRecommender:
    """500 users who have none of 60 items."""
    asked = PrivateRecommender(3, unit=unit, method=method, on_noise="warn", random_state=run, **GIVEN)
    return asked.fit(np.zeros((500, 60)))


def cell_claims(cell: tuple[str, str, int, int], runs: range) -> tuple[int, int]:
    """In how many fits of a cell the largest eigenvalue is above the floor, and above the expected norm of the noise."""
    found = list(fits(*cell, runs))
    return sum(largest > floor for largest, floor, _ in found), sum(largest > norm for largest, _, norm in found)


def whole_claims(name: str, runs: range) -> tuple[int, int]:
    """In how many whole fits anything is above the floor; the norm of the noise is not compared."""
    warnings.simplefilter("ignore")
    fitted = whole_fits()[name]
    return sum(claimed(partial(fitted, run)) for run in runs), 0


def claimed(fitted: Callable[[], Any]) -> bool:
    """Whether a fit claims anything. One that refuses, because its noisy count says too few people, does not."""
    try:
        return bool(fitted().n_above_noise_ > 0)
    except TooFewPeople:
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="2000 fits in each cell")
    parser.add_argument("--runs", type=int, default=None, help="fits in each cell")
    parser.add_argument("--columns", type=int, nargs="*", default=COLUMNS)
    parser.add_argument("--only", default="", help="lines that begin with this")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the fits")
    options = parser.parse_args()
    runs, began = options.runs or (2000 if options.full else 200), time.monotonic()
    pieces = [range(start, min(start + AT_A_TIME, runs)) for start in range(0, runs, AT_A_TIME)]
    worst = 0.0
    print(f"{runs} fits in each cell; claims above the floor, and (above the expected norm of the noise)")
    with ProcessPoolExecutor(options.jobs) as pool:
        lines = {
            f"{method:10} {kind:8} n = {count:5}": {
                f"d = {dim}": [pool.submit(cell_claims, (method, kind, count, dim), piece) for piece in pieces]
                for dim in METHODS[method]
                if dim in options.columns
            }
            for method, kind, count in product(METHODS, TABLES, COUNTS)
            if method.startswith(options.only)
        }
        lines |= {
            f"{name:32}": {"": [pool.submit(whole_claims, name, piece) for piece in pieces]}
            for name in whole_fits()
            if name.startswith(options.only)
        }
        for line, cells in lines.items():
            shown = []
            for cell, waiting in cells.items():
                now, before = (sum(counts) / runs for counts in zip(*(one.result() for one in waiting), strict=True))
                worst = max(worst, now)
                shown.append(f"{cell}: {now:5.2%} ({before:4.0%})" if cell else f"{now:5.2%}")
            print(line, "  ".join(shown), flush=True)
    # Five deviations of a share of 1.5%, because there are some fifty cells.
    allowed = 0.015 + 5 * math.sqrt(0.015 * 0.985 / runs)
    print(f"largest share: {worst:.2%}; {'more' if worst > allowed else 'no more'} than 1.5% by chance could give")
    print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
