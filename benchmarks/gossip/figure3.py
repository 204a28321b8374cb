"""D-DP-PM's Figure 3: error and delta at epsilon = 5 against the number of iterations T, and what delta is if nothing is dropped.

The data, the ring and the tuning are those of figure2.py; its docstring says what is READ FROM THE DATA. The noise
schedule is the one tuned there for epsilon = 5, fixed for all T. Errors are sines to the first left singular vector, means
(standard deviations) over seeds.

delta is an instance estimate against a few rows set to zero. As printed, (42)-(43), it is for the view that the paper
writes down with r directions kept. Those have at least a given share of the largest variance; the paper does not say
which. "all" drops nothing of that view, and "seen" nothing of what a peer really receives. None of them is a
guarantee, and over all tables the worst is infinite. Below each table is what it becomes once one person alone has
something in one more column.

Segments and the power method with pairwise noise, c = 1, are shown at the same T, with (5, 1 / (10 n)) for every
possible table. There more iterations do not cost privacy: each gets a smaller part of the budget, and more noise.

About 15 minutes; --quick, one data set, three T and few seeds, 20 seconds.

    python benchmarks/gossip/figure3.py [--quick] [--data diabetes "breast cancer" wine] [--seeds 20] [--rounds 1 2 3 4 5 6 8 10]
"""

import argparse
import time
from collections.abc import Sequence
from typing import Final

import numpy as np

from benchmarks.datasets import heading, line
from benchmarks.gossip.figure2 import ours, tune
from benchmarks.gossip.runs import LIMITS, Table, Tuned, delta_of, leaks, run_published, sine
from eigenveil.linalg import Array
from eigenveil.linalg.blas import blas_threads

EPSILON: Final = 5.0
TUNED_AT: Final = (1e-6, 1e-4)  # The first that leaves any parameters within the paper's limit.
SHARES: Final = (1e-2, 1e-4, 1e-6, 1e-8)


def deltas(table: Table, tuned: Tuned) -> list[float]:
    """delta at epsilon = 5: as printed with less and less dropped, as printed with nothing dropped, and of all that is seen."""
    dropped = [leaks(table, tuned, share=share) for share in SHARES]
    whole = [leaks(table, tuned, share=None), leaks(table, tuned, share=None, as_printed=False, rows=1)]
    return [delta_of(found, EPSILON) for found in (*dropped, *whole)]


def with_a_column_of_one(table: Table) -> Table:
    """The same people with one more column, in which the row of most leverage at peer 1 has a tenth, and all others zero."""
    rows = np.hstack([table.rows, np.zeros((len(table.left), 1))])
    first, part = len(table.parts[0]), table.parts[1]
    place = first + int(np.einsum("ij,ji->i", part, np.linalg.pinv(part)).argmax())
    rows[place] *= 0.99
    rows[place, -1] = 0.1
    return Table.of(table.name, rows)


def infinite(table: Table, tuned: Tuned, *, share: float) -> str:
    """What there is to say of a table in which one person is alone in a direction, without and with dropping."""
    alone = with_a_column_of_one(table)
    (leak,) = leaks(alone, tuned, share=None, as_printed=False, rows=1)
    hidden = delta_of(leaks(alone, tuned, share=share, rows=1), EPSILON)
    certain = "infinite divergence, delta = 1 at every epsilon" if leak.infinite else f"delta = {leak.delta(EPSILON):.2g}"
    return f"with one person alone in a column: {certain}; as printed and dropping as tuned: {hidden:.1g}"


def tuned_for(table: Table) -> tuple[float, Tuned | None]:
    """What is kept of the view and the parameters of least error with a delta in the paper's limit, if there are any."""
    for share in TUNED_AT:
        chosen = tune(table, [EPSILON], share=share)
        if chosen:
            return share, chosen[EPSILON][0]
    return share, None


def shown(errors: Sequence[float]) -> str:
    """Mean and standard deviation."""
    return f"{np.mean(errors):.3f} ({np.std(errors):.3f})"


def published_errors(table: Table, tuned: Tuned, seeds: int) -> list[float]:
    """Sines to the first left singular vector, one a run."""
    runs: list[Array] = [run_published(table.parts, tuned, seed=seed) for seed in range(seeds)]
    return [sine(run, table.left) for run in runs]


def measure(name: str, rounds: Sequence[int], seeds: int) -> None:
    """The lines of one data set."""
    table, began = Table.load(name), time.perf_counter()
    share, best = tuned_for(table)
    if best is None:
        print(f"skipped {name}: no parameters in the grid are within the paper's limit on delta")
        return
    print(f"\n{name}, {table.rows.shape}: tuned to T = {best.rounds} and scale {best.scale:g}, so that delta with what is kept")
    print(f"from {share:g} is within the paper's limit, {LIMITS[name][2]:g}\n")
    methods = ("segments", "power")
    views = [*(f"delta, kept from {share:g}" for share in SHARES), "delta, all", "delta, seen"]
    heading(["T", "published error", *views, *(f"pairwise {method}, (5, {table.delta:.1g})" for method in methods)])
    for count in rounds:
        tuned = Tuned.by_corollary(table, rounds=count, scale=best.scale)
        guaranteed = []
        for method in methods:
            run = ours(table, noise="pairwise", method=method, rounds=count)
            guaranteed.append(shown([run(seed, EPSILON)[0] for seed in range(seeds)]))
        estimates = [f"{delta:.2g}" for delta in deltas(table, tuned)]
        line([str(count), shown(published_errors(table, tuned, seeds)), *estimates, *guaranteed])
    print(f"\n{infinite(table, best, share=share)} ({time.perf_counter() - began:.0f} s)", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="*", default=list(LIMITS), choices=list(LIMITS))
    parser.add_argument("--rounds", nargs="*", type=int, default=[1, 2, 3, 4, 5, 6, 8, 10])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--quick", action="store_true", help="wine, T = 1, 3 and 6, three seeds")
    options = parser.parse_args()
    if options.quick:
        options.data, options.rounds, options.seeds = ["wine"], [1, 3, 6], 3
    print("skipped: the paper's AMI data, which are not public")
    with blas_threads(1):
        for name in options.data:
            measure(name, options.rounds, options.seeds)


if __name__ == "__main__":
    main()
