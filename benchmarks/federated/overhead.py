"""What hub and sites cost over the same products in a bare loop: krylov in a star, without noise. Target: at most 5%.

- `parties` is a hub and its sites in one process, from the first question to the answer.
- `bare` is A.T @ (A @ Z) for the same blocks Z, sites and rounds, summed. Rows are centred beforehand where the run
  is centred. Both are the best of five, interleaved, after one of each.
- `fit` is all of `FederatedPCA.fit`: also the checks of the input, mean, count and trace, with its own number of
  products.

--profile shows where the time of the parties goes.

    python benchmarks/federated/overhead.py [--quick] [--threads 1] [--cpu] [--profile]
"""

import argparse
import cProfile
import math
import pstats
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from benchmarks.datasets import dense, heading, line, skipped
from benchmarks.federated.runs import shuffled_sites, site_count
from eigenveil import FederatedPCA
from eigenveil.core.domain import Domain
from eigenveil.core.mechanism import Exact
from eigenveil.core.unit import Neighbours
from eigenveil.data.rows import DenseRows
from eigenveil.linalg import Array, Subspace, orthonormal
from eigenveil.linalg.blas import blas_threads
from eigenveil.methods.krylov import KrylovSum
from eigenveil.protocols.star.hub import Hub
from eigenveil.protocols.star.rounds import Terms, star
from eigenveil.protocols.star.site import Member
from eigenveil.runtimes.local import LocalStar

RANK, WIDTH, ROUNDS, TIMES, LIMIT = 10, 15, 10, 5, 1.05


def parties(sites: list[Array], center: Array | None, blocks: list[Array] | None = None) -> Subspace:
    """A whole run of exactly `ROUNDS` products; the blocks that were multiplied go to `blocks`."""
    dim = sites[0].shape[1]
    begin = orthonormal(np.random.default_rng(0).standard_normal((dim, WIDTH)))
    task = KrylovSum(
        domain=Domain(dim=dim, radius=math.inf, center=center),
        neighbours=Neighbours.ADD_REMOVE,
        begin=begin,
        rounds=ROUNDS,
        rank=RANK,
    )
    exact, layout = Exact(because="benchmark"), star([f"site {number}" for number in range(len(sites))])
    hub = Hub(
        task,
        layout.below["hub"],
        exact,
        terms=Terms(),
        watch=None if blocks is None else lambda _: blocks.append(hub.state.span[:, len(blocks) * WIDTH :]),
    )
    members = [
        Member(name, hub="hub", task=task, rows=DenseRows(rows), mechanism=exact)
        for name, rows in zip(layout.above(), sites, strict=True)
    ]
    found = LocalStar(hub, members).run()
    assert isinstance(found, Subspace)
    return found


def bare(sites: list[Array], blocks: list[Array]) -> None:
    """The same products."""
    for block in blocks:
        total = np.zeros(block.shape)
        for rows in sites:
            total += rows.T @ (rows @ block)


def seconds(work: Callable[[], object], clock: Callable[[], float]) -> float:
    """Time of one call."""
    start = clock()
    work()
    return clock() - start


def timed(sites: list[Array], center: Array | None, clock: Callable[[], float]) -> tuple[float, float]:
    """The best seconds of the parties and of the bare loop."""
    moved = sites if center is None else [rows - center for rows in sites]
    blocks: list[Array] = []
    parties(sites, center, blocks)
    bare(moved, blocks)
    pairs = [(seconds(lambda: parties(sites, center), clock), seconds(lambda: bare(moved, blocks), clock)) for _ in range(TIMES)]
    return min(ours for ours, _ in pairs), min(theirs for _, theirs in pairs)


def measure(name: str, sites: list[Array], clock: Callable[[], float], *, profile: bool) -> list[str]:
    """Two lines of the table, and what misses the target."""
    misses = []
    mean = sum(rows.sum(axis=0) for rows in sites) / sum(map(len, sites))
    for words, center in (("uncentred", None), ("centred", mean)):
        ours, theirs = timed(sites, center, clock)
        pca = FederatedPCA(RANK, epsilon=None, center=None if center is None else "private", random_state=0)
        whole = min(seconds(partial(pca.fit, sites), clock) for _ in range(2))
        rounds = sum(round_.stage.startswith("krylov") for round_ in pca.transcript_)
        verdict = "reached" if ours <= LIMIT * theirs else "MISSED"
        shape = f"{len(sites)} x {len(sites[0])} x {sites[0].shape[1]}"
        cells = [f"{ours:.3f}", f"{theirs:.3f}", f"{ours / theirs:.3f} {verdict}", f"{whole:.3f} ({rounds} products)"]
        line([f"{name}, {words}", shape, *cells])
        misses += [f"{name}, {words} ({ours / theirs:.2f})"] if verdict == "MISSED" else []
        if profile:
            watched = cProfile.Profile()
            watched.runcall(parties, sites, center)
            pstats.Stats(watched).sort_stats("tottime").print_stats(12)
    return misses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a9a alone")
    parser.add_argument("--threads", type=int, default=2, help="BLAS threads")
    parser.add_argument("--cpu", action="store_true", help="CPU time on one thread, for a machine that is not idle")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    clock = time.process_time if options.cpu else time.perf_counter
    options.threads = 1 if options.cpu else options.threads
    print(f"k = {RANK}, width {WIDTH}, {ROUNDS} products, {options.threads} BLAS thread(s), {'CPU ' * options.cpu}seconds\n")
    heading(["data", "sites x rows x columns", "parties", "bare", f"ratio (at most {LIMIT:g})", "fit"])
    misses = []
    with blas_threads(options.threads):
        for name in ("a9a",) if options.quick else ("mnist", "a9a"):
            if not skipped(name):
                rows = dense(name)
                misses += measure(name, shuffled_sites(rows, site_count(rows), seed=0), clock, profile=options.profile)
        if not options.quick:
            drawn = np.random.default_rng(0).standard_normal((100_000, 500)) / np.sqrt(np.arange(1.0, 501.0))
            misses += measure("synthetic", shuffled_sites(drawn, 20, seed=0), clock, profile=options.profile)
    print(f"\ntargets missed: {', '.join(misses) or 'none'}")


if __name__ == "__main__":
    main()
