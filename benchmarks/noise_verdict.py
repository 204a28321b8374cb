"""How often a fit claims a component where there is none: at most 1.5% of fits should, at a stated level of 1%.

Two kinds of tables have nothing to find: rows that are all zero, and rows that are all the same, at 0.9 of the row bound from
the origin. The second has a mean to find, and the error of that mean is a direction of its own. Each cell is the share of fits
with a component above `noise_floor_`, and in brackets the share above the floor of version 0.1, the expected norm of the noise.

Alike rows add up to n times one of them. So the sums of the real task are worked out for one row and multiplied by n, and the
real mechanism releases them: what comes out has the law of a whole fit. Streams, sites that merge, segments between peers and
the recommender are whole fits, with fewer columns.

    python benchmarks/noise_verdict.py            # 200 fits in each cell, a minute or two
    python benchmarks/noise_verdict.py --full     # 2000 fits in each cell
"""

import argparse
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from eigenveil import FederatedPCA, GossipPCA, Ledger, PrivateRecommender, StreamingPCA
from eigenveil.data.rows import DenseRows, Rows
from eigenveil.linalg import Array
from eigenveil.privacy import Budget, Exact, Gaussian, Noise
from eigenveil.tasks.fit.task import Fit, FitResult

BUDGET = Budget(1.0, 1e-6)
GIVEN: dict[str, Any] = {"epsilon": BUDGET.epsilon, "delta": BUDGET.delta}
BOUNDED = GIVEN | {"row_bound": 1.0}
COUNTS, COLUMNS = (500, 20_000), (5, 20, 100, 300)
# Kept products take longest: each fit decomposes all of its products.
METHODS = {"covariance": (5, 20, 100, 300), "power": (5, 20, 100, 300), "krylov": (5, 20, 100)}
TABLES = {"zero": 0.0, "constant": 0.9}


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


def fits(method: Any, kind: str, count: int, dim: int, runs: int) -> Iterator[tuple[float, float, float]]:
    """The largest eigenvalue of each fit, its noise floor, and that of version 0.1."""
    rows = [np.zeros((10, dim))] * 2
    asked = FederatedPCA(min(3, dim), trust="hub", method=method, **BOUNDED)
    parties, one = asked.prepare(rows).parties, DenseRows(row_of(kind, dim))
    plan, study = parties.request.plan, parties.study
    assert isinstance(study, Fit)
    for run in range(runs):
        mechanism = Gaussian(1 / BUDGET.mu, Ledger(epsilon=math.inf, delta=0.5), Noise.seeded(run))
        found = carried(study, one, count, mechanism)
        floor = parties.noise_floor(found, sites=2, weights=(1.0, math.sqrt(2)))
        norm = math.sqrt(2 * dim) if method == "covariance" else math.sqrt(dim) + math.sqrt(plan.width)
        yield float(found.subspace.values[0] ** 2), floor, found.scale / math.sqrt(plan.shares[-1]) * norm


def whole_fits() -> dict[str, Callable[[int], Any]]:
    """Whole fits of 500 rows with nothing to find, by the number of the run."""
    found: dict[str, Callable[[int], Any]] = {}
    for kind in TABLES:
        table = np.repeat(row_of(kind, 20), 500, axis=0)
        for publish in ("sync", "block", "continual"):
            found[f"stream, {publish}, {kind}"] = partial(stream, table, publish)
        for method in ("merge", "fedpower"):
            found[f"5 sites, {method}, {kind}"] = partial(sites, table, method)
        found[f"5 peers, segments, {kind}"] = partial(peers, table)
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


def recommender(unit: Any, method: Any, run: int) -> PrivateRecommender:
    """500 users who have none of 60 items."""
    asked = PrivateRecommender(3, unit=unit, method=method, on_noise="warn", random_state=run, **GIVEN)
    return asked.fit(np.zeros((500, 60)))


def claims(values: Sequence[tuple[float, ...]], at: int) -> float:
    """The share of fits whose largest eigenvalue is above a floor."""
    return float(np.mean([one[0] > one[at] for one in values]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="2000 fits in each cell")
    parser.add_argument("--runs", type=int, default=None, help="fits in each cell")
    parser.add_argument("--columns", type=int, nargs="*", default=COLUMNS)
    options = parser.parse_args()
    runs, began = options.runs or (2000 if options.full else 200), time.monotonic()
    warnings.simplefilter("ignore")
    worst = 0.0
    print(f"{runs} fits in each cell; claims above the floor, and (above that of version 0.1)")
    for method, kind, count in product(METHODS, TABLES, COUNTS):
        cells = []
        for dim in (dim for dim in METHODS[method] if dim in options.columns):
            found = list(fits(method, kind, count, dim, runs))
            worst = max(worst, claims(found, 1))
            cells.append(f"d = {dim}: {claims(found, 1):5.2%} ({claims(found, 2):4.0%})")
        print(f"{method:10} {kind:8} n = {count:5}  {'  '.join(cells)}", flush=True)
    for name, fitted in whole_fits().items():
        share = float(np.mean([fitted(run).n_above_noise_ > 0 for run in range(runs)]))
        worst = max(worst, share)
        print(f"{name:32} {share:5.2%}", flush=True)
    # Five deviations of a share of 1.5%, because there are some fifty cells.
    allowed = 0.015 + 5 * math.sqrt(0.015 * 0.985 / runs)
    print(f"largest share: {worst:.2%}; {'more' if worst > allowed else 'no more'} than 1.5% by chance could give")
    print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
