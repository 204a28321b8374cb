"""How peers without a hub come to agree, without noise: what mixing leaves, what theory says, and what it costs them.

1. Contraction. Peers start from the vector that mixes worst. What is left of their differences after c steps,
  relative to the start, is compared with lambda^c (Metropolis weights) and with 1 / T_c (Chebyshev). Here lambda is
  the largest size of an eigenvalue other than that of the mean. To reach: within 1%, or both below 1e-13, where
  doubles end.
2. Direction. D-PM on the diabetes table, T rounds of c steps, beside what (40) of D-DP-PM bounds its squared sine by:
   2 (n_i m lambda^c / (lambda_1 - lambda_2) + (n - 1) rho (mu_2 / mu_1)^(2T)), rho = 1 without noise. Its third term, for starts
   that are nearly orthogonal to the answer, is left out: medians over starts. "Alg. 1" is what (40) is about; "segments" is
   `GossipPCA`, each peer's own direction on its own rows; "right" the largest sine at any peer. To reach: both squared sines
   below the bound.
3. Agreement. `GossipPCA` with its default steps: to reach is a `disagreement_` below 1e-8. Where Metropolis weights are refused
   or would take more messages than --messages, Chebyshev's are taken, and then a tree.
4. Traffic. The most bytes that a peer sends in 8 steps where peers have few neighbours. To reach: the same for every m, within
   5%, with names of one length, since longer ones take more bytes. Beside it the steps that sums do take.

Real parties with real messages, so large graphs take long: about 10 minutes; --quick, up to 16 peers, half a minute.

    python benchmarks/gossip/convergence.py [--quick] [--peers 4 8 16 32 64 128 256] [--messages 400000]
"""

import argparse
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, Final

import numpy as np

from benchmarks.datasets import heading, line
from benchmarks.gossip.runs import Table, Tuned, run_published, sine
from eigenveil import GossipPCA
from eigenveil.core.domain import Domain
from eigenveil.core.mechanism import Exact
from eigenveil.core.unit import Neighbours
from eigenveil.data.rows import DenseRows
from eigenveil.linalg.blas import blas_threads
from eigenveil.linalg.graphs import Graph
from eigenveil.methods.covariance import CovarianceSum
from eigenveil.protocols.gossip.averaging import Plain
from eigenveil.protocols.gossip.peer import Peer
from eigenveil.protocols.gossip.terms import Consensus, GossipTerms, Mixing, metropolis
from eigenveil.runtimes.local import LocalPeers

KINDS: Final = ("ring", "grid", "random-regular:4", "star", "complete")
CONSENSUS: Final[tuple[Consensus, ...]] = ("metropolis", "chebyshev", "tree")
ROUNDS: Final = 5  # A fit of three products has about so many rounds.


def graphs(peers: Sequence[int], kinds: Sequence[str] = KINDS) -> Iterator[tuple[str, Graph]]:
    """Each kind with each number of peers, but for those that do not exist."""
    for kind in kinds:
        for count in peers:
            if kind == "random-regular:4" and count < 5:
                print(f"skipped {kind} of {count} peers: there is none")
            else:
                yield kind, Graph.named(kind, [f"peer {number:03d}" for number in range(count)])


def left_over(graph: Graph, consensus: Consensus, steps: int) -> tuple[float, float]:
    """What is left of the worst differences between peers after so many steps: predicted, and measured by peers adding up."""
    values, vectors = np.linalg.eigh(metropolis(graph))
    worst = vectors[:, 0 if consensus == "metropolis" and -values[0] > values[-2] else -2]
    parts = 1 + 0.5 * worst / np.abs(worst).max()
    terms, out = GossipTerms(graph=graph, consensus=consensus, steps=steps), Plain(Exact(because="a benchmark of sums"))
    task = CovarianceSum(Domain(dim=1, radius=np.inf), Neighbours.ADD_REMOVE)  # A row of one number adds its square.
    rows = [DenseRows(np.array([[np.sqrt(part)]])) for part in parts]
    peers = [Peer(n, terms=terms, task=task, rows=r, outgoing=out) for n, r in zip(graph.names, rows, strict=True)]
    sums = np.array([float(peer.result[0, 0]) for peer in LocalPeers(peers).run()])
    there = len(parts) * float(np.linalg.norm(parts - parts.mean()))
    return Mixing.over(graph, consensus, steps=steps).left, float(np.linalg.norm(sums - parts.sum())) / there


def contraction(peers: Sequence[int], messages: int, steps: Sequence[int]) -> bool:
    """The first table."""
    heading(
        ["graph", "m", "lambda", *(f"{consensus}, c = {c}: predicted, measured" for consensus in CONSENSUS[:2] for c in steps)]
    )
    good = True
    for kind, graph in graphs(peers):
        slowest, cells = Mixing.over(graph, "metropolis", steps=1).left, []
        for consensus, count in product(CONSENSUS[:2], steps):
            if 2 * len(graph.edges) * count > messages:
                cells.append("skipped: too many messages")
                continue
            predicted, measured = left_over(graph, consensus, count)
            good &= abs(measured - predicted) <= max(0.01 * predicted, 1e-13)
            cells.append(f"{predicted:.2e}, {measured:.2e}")
        line([kind, str(len(graph.names)), f"{slowest:.6f}", *cells])
    return good


def directions(table: Table, graph: Graph, steps: int, rounds: int, seed: int) -> tuple[float, float, float]:
    """Squared sines of Alg. 1 and of segments, and the largest right sine of a peer, from one start, signs made alike."""
    weights, tuned = metropolis(graph), Tuned.by_corollary(table, rounds=rounds, scale=0.0)
    printed = sine(run_published(table.parts, tuned, seed=seed, weights=weights, steps=steps), table.left) ** 2
    settings: dict[str, Any] = {"epsilon": None, "center": None, "random_state": seed, "rounds": rounds}
    gossip = GossipPCA(1, graph=weights, method="segments", steps=steps, **settings).prepare(list(table.parts))
    gossip.run()
    own = [peer.result.subspace.basis[:, 0] for peer in gossip.done]
    own = [direction * np.sign(direction @ own[0]) for direction in own]
    scores = np.concatenate([part @ direction for part, direction in zip(table.parts, own, strict=True)])
    return printed, sine(scores, table.left) ** 2, max(sine(direction, table.right) for direction in own)


def terms_of(table: Table, graph: Graph, steps: int, rounds: int) -> tuple[float, float]:
    """The two terms of (40) that are not for the start, doubled as there."""
    left = Mixing.over(graph, "metropolis", steps=steps).left
    place = np.repeat(np.arange(len(table.parts)), [len(part) for part in table.parts])
    mixed = len(graph.names) * np.linalg.matrix_power(metropolis(graph), steps)[np.ix_(place, place)]
    mu = np.linalg.eigvalsh(mixed * (table.rows @ table.rows.T))[::-1]
    apart = len(table.left) * left / float(table.eigenvalues[0] - table.eigenvalues[1])
    return 2 * apart, 2 * (len(table.left) - 1) * float(mu[1] / mu[0]) ** (2 * rounds)


def bound(peers: Sequence[int], messages: int, *, starts: int) -> bool:
    """The second table."""
    heading(["graph", "m", "c", "T", "Alg. 1: sine^2", "segments: sine^2", "right", "(40), W", "(40), T", "says"])
    good, whole = True, Table.load("diabetes")
    for kind, graph in graphs(peers, ("ring", "random-regular:4", "complete")):
        table = replace(whole, parts=tuple(np.array_split(whole.rows, len(graph.names))))
        for steps, rounds in product((1, 8, 64), (2, 8)):
            shown = [kind, str(len(graph.names)), str(steps), str(rounds)]
            if 2 * len(graph.edges) * steps * rounds * starts > messages:
                line([*shown, *["skipped"] * 5, "too many messages"])
                continue
            found = np.median([directions(table, graph, steps, rounds, seed) for seed in range(starts)], axis=0)
            terms = terms_of(table, graph, steps, rounds)
            good &= (fine := bool(found[:2].max() <= sum(terms)))
            said = f"below{', and the bound says something' if sum(terms) < 1 else ''}" if fine else "ABOVE"
            line([*shown, *(f"{value:.2e}" for value in (*found, *terms)), said])
    return good


def steps_of(graph: Graph) -> dict[Consensus, int]:
    """How many steps a sum takes by default, without those that are refused."""
    found: dict[Consensus, int] = {}
    for consensus in CONSENSUS:
        with contextlib.suppress(ValueError):
            found[consensus] = GossipTerms(graph=graph, consensus=consensus).among(()).mixing.steps
    return found


def agreement(peers: Sequence[int], messages: int) -> bool:
    """The third table."""
    heading(["graph", "m", *(f"{consensus} steps" for consensus in CONSENSUS), "taken", "disagreement_", "seconds"])
    good, rng = True, np.random.default_rng(0)
    for kind, graph in graphs(peers):
        steps, began = steps_of(graph), time.perf_counter()
        most = messages / (2 * len(graph.edges) * ROUNDS)
        consensus: Any = next((one for one in CONSENSUS[:2] if steps.get(one, np.inf) <= most), "tree")
        rows = {name: rng.standard_normal((20, 8)) * np.linspace(3, 1, 8) for name in graph.names}
        pca = GossipPCA(2, graph=graph, epsilon=None, consensus=consensus, center=None, rounds=3, random_state=0).fit(rows)
        good &= pca.disagreement_ < 1e-8
        shown = [*_shown(steps), consensus, f"{pca.disagreement_:.1e}", f"{time.perf_counter() - began:.1f}"]
        line([kind, str(len(graph.names)), *shown])
    return good


def traffic(peers: Sequence[int], *, steps: int = 8) -> bool:
    """The fourth table."""
    heading(
        ["graph", "m", f"bytes of a peer in {steps} steps, the most", *(f"{consensus} steps needed" for consensus in CONSENSUS)]
    )
    good, rng = True, np.random.default_rng(0)
    for kind in ("ring", "random-regular:4"):
        most = []
        for _, graph in graphs(peers, [kind]):
            rows = {name: rng.standard_normal((20, 8)) for name in graph.names}
            settings: dict[str, Any] = {"epsilon": None, "center": None, "method": "covariance", "steps": steps}
            gossip = GossipPCA(1, graph=graph, consensus="chebyshev", **settings).prepare(rows)
            gossip.run()
            most.append(max(gossip.sent.values()))
            line([kind, str(len(rows)), str(most[-1]), *_shown(steps_of(graph))])
        good &= max(most) <= 1.05 * min(most)
    return good


def _shown(steps: dict[Consensus, int]) -> list[str]:
    return [str(steps.get(consensus, "refused")) for consensus in CONSENSUS]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", nargs="*", type=int, default=[4, 8, 16, 32, 64, 128, 256])
    parser.add_argument("--messages", type=int, default=400_000, help="the most in one run")
    parser.add_argument("--quick", action="store_true", help="up to 16 peers")
    options = parser.parse_args()
    if options.quick:
        options.peers, options.messages = [4, 8, 16], 40_000
    few, many = [count for count in options.peers if count <= 64][::2], options.messages
    tables: dict[str, Callable[[], bool]] = {
        "differences shrink as predicted": lambda: contraction(options.peers, many, (1, 4, 16, 64)),
        "sines within (40)": lambda: bound(few, 2 * many, starts=3 if options.quick else 5),
        "disagreement_ below 1e-8": lambda: agreement(options.peers, many),
        "bytes of a peer independent of m": lambda: traffic(options.peers),
    }
    with blas_threads(1):
        for target, table in tables.items():
            print(f"\ntarget {'reached' if table() else 'NOT REACHED'}: {target}\n")


if __name__ == "__main__":
    main()
