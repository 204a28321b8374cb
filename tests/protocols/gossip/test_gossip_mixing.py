"""Sums between neighbours: exact to rounding on every graph, as fast as stated, and the same to the last bit in any order."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from eigenveil.linalg import Array
from eigenveil.linalg.graphs import Graph
from eigenveil.protocols.gossip.averaging import averaging
from eigenveil.protocols.gossip.terms import Consensus, Mixing, contraction, metropolis, require_weights
from eigenveil.runtimes.local import Faults
from protocols.gossip.gossip_circles import CONSENSUS, circle, names_of, run

KINDS = ("ring", "path", "grid", "star", "complete", "random-regular:4")
MIXED: tuple[Consensus, ...] = ("metropolis", "chebyshev")


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """A named graph, or a random tree with any further edges."""
    count = draw(st.integers(2, 10))
    names = names_of(count)
    kind = draw(st.sampled_from((*KINDS, "random")))
    if kind == "random" or (kind.startswith("random-") and count < 5):
        tree = [(names[draw(st.integers(0, place - 1))], names[place]) for place in range(1, count)]
        more = draw(st.lists(st.sampled_from(list(itertools.combinations(names, 2))), max_size=6))
        return Graph.of(names, [*tree, *more])
    return Graph.named(kind, names, seed=draw(st.integers(0, 99)))


def lazy(graph: Graph, rng: np.random.Generator) -> Array:
    """Weights of another kind: random on the edges, small enough that everybody keeps some."""
    weights = np.triu(graph.adjacency() * rng.uniform(0.2, 1.0, size=(len(graph.names),) * 2), 1)
    weights = (weights + weights.T) / (1.5 * (weights + weights.T).sum(axis=1).max())
    weights[np.diag_indices(len(weights))] = 1 - weights.sum(axis=1)
    return require_weights(weights)


def summed(mixing: Mixing, parts: dict[str, Array]) -> dict[str, Array]:
    """All totals, messages being carried in the order in which it was sent."""
    sums = {name: averaging(mixing, name, part) for name, part in parts.items()}
    message = [(name, *send) for name, now in sums.items() for send in now.start()]
    while message:
        sender, receiver, step, values = message.pop(0)
        message += [(receiver, *send) for send in sums[receiver].take(sender, step, values)]
    totals: dict[str, Array] = {}
    for name, now in sums.items():
        assert now.total is not None
        assert now.missing == ()
        totals[name] = now.total
    return totals


def random_parts(graph: Graph, seed: int, size: int = 3) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(size) * 10.0 ** rng.integers(-3, 4) for name in graph.names}


@settings(max_examples=80)
@given(graphs(), st.sampled_from((*CONSENSUS, "given metropolis", "given chebyshev")), st.integers(0, 2**32))
def test_every_sum_is_exact_to_rounding_on_every_graph(graph: Graph, how: str, seed: int) -> None:
    # Regression: see the next test, which has the smallest case.
    given_weights = lazy(graph, np.random.default_rng(seed)) if how.startswith("given") else None
    consensus: Any = how.removeprefix("given ")
    mixing = Mixing.over(graph, consensus, weights=given_weights, left=1e-16 / len(graph.names))
    parts = random_parts(graph, seed)
    exact, size = sum(parts.values()), np.sqrt(sum(float(part @ part) for part in parts.values()))
    for total in summed(mixing, parts).values():
        assert np.abs(total - exact).max() <= 1e-13 * len(graph.names) * max(1, mixing.steps) ** 0.5 * size


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("steps", [None, 1, 3])
def test_chebyshev_is_exact_where_all_differences_shrink_alike(count: int, steps: int | None) -> None:
    # Regression: equal weights other than 1/m have one eigenvalue beside that of the mean. One step is planned, and `left`
    # is said to be 0, but the step that is taken is the plain one, which leaves that eigenvalue's share of the differences.
    graph = Graph.named("complete", names_of(count))
    weights = np.full((count, count), 0.4 / (count - 1)) + np.diag(np.full(count, 0.6 - 0.4 / (count - 1)))
    mixing = Mixing.over(graph, "chebyshev", weights=require_weights(weights), steps=steps)
    parts = random_parts(graph, count)
    for total in summed(mixing, parts).values():
        np.testing.assert_allclose(total, sum(parts.values()), rtol=1e-12, atol=1e-12)


def worst(weights: Array) -> Array:
    """The unit vector of differences that mixing shrinks least."""
    values, vectors = np.linalg.eigh(weights)
    place = int(np.argmax(np.abs(values[:-1])))
    found: Array = vectors[:, place]
    return found


@settings(max_examples=40)
@given(graphs(), st.integers(1, 8))
def test_metropolis_leaves_the_second_eigenvalue_to_the_power_of_the_steps_and_no_less(graph: Graph, steps: int) -> None:
    weights = metropolis(graph)
    mixing = Mixing.over(graph, "metropolis", steps=steps)
    vector = worst(weights)
    parts = {name: np.array([vector[place]]) for place, name in enumerate(graph.names)}
    left = np.concatenate(list(summed(mixing, parts).values())) / len(graph.names)
    second = np.sort(np.abs(np.linalg.eigvalsh(weights)))[-2]
    assert mixing.left == pytest.approx(second**steps, rel=1e-9, abs=1e-14)
    assert np.linalg.norm(left) == pytest.approx(mixing.left, rel=1e-9, abs=1e-14)


@settings(max_examples=40)
@given(graphs(), st.integers(1, 8))
def test_chebyshev_leaves_one_over_its_polynomial_for_the_worst_vector_and_no_less(graph: Graph, steps: int) -> None:
    weights = metropolis(graph)
    mixing = Mixing.over(graph, "chebyshev", steps=steps)
    values, vectors = np.linalg.eigh(weights)
    low, high = values[0], values[-2]
    if high - low < 1e-9:
        assert mixing.left == 0
        return
    stated = 1 / np.polynomial.chebyshev.Chebyshev.basis(steps)((2 - high - low) / (high - low))
    assert mixing.left == pytest.approx(stated, rel=1e-9)
    # Both ends of the interval are where the polynomial is largest.
    for place in (0, len(values) - 2):
        parts = {name: vectors[row : row + 1, place] for row, name in enumerate(graph.names)}
        left = np.concatenate(list(summed(mixing, parts).values())) / len(graph.names)
        assert np.linalg.norm(left) == pytest.approx(stated, rel=1e-8, abs=1e-14)
    for place in range(len(values) - 1):
        parts = {name: vectors[row : row + 1, place] for row, name in enumerate(graph.names)}
        left = np.concatenate(list(summed(mixing, parts).values())) / len(graph.names)
        assert np.linalg.norm(left) <= stated * (1 + 1e-8) + 1e-14


@given(graphs(), st.sampled_from(MIXED), st.sampled_from([1e-3, 1e-9, 1e-16]))
@example(Graph.named("complete", ("a", "b", "c")), "metropolis", 1e-16)
def test_the_steps_are_the_fewest_that_leave_no_more(graph: Graph, consensus: Consensus, left: float) -> None:
    mixing = Mixing.over(graph, consensus, left=left)
    assert mixing.left <= left * (1 + 1e-9) + 1e-300
    if mixing.steps > 1:
        assert contraction(consensus, mixing.low, mixing.high, mixing.steps - 1) > left * (1 - 1e-9)


@settings(max_examples=40)
@given(graphs(), st.sampled_from(CONSENSUS), st.integers(0, 2**32))
def test_any_order_of_message_gives_the_same_bits(graph: Graph, consensus: Consensus, seed: int) -> None:
    mixing = Mixing.over(graph, consensus, left=1e-3) if consensus != "tree" else Mixing.over(graph, consensus)
    parts = random_parts(graph, seed)
    plain = summed(mixing, parts)
    sums = {name: averaging(mixing, name, part) for name, part in parts.items()}
    order = np.random.default_rng(seed)
    messages = [(name, *send) for name, now in sums.items() for send in now.start()]
    seen = []
    while messages:
        message = messages.pop(int(order.integers(len(messages))))
        sender, receiver, step, values = message
        messages += [(receiver, *send) for send in sums[receiver].take(sender, step, values)]
        seen.append(message)
        late_sender, late_receiver, late_step, late = seen[int(order.integers(len(seen)))]
        assert sums[late_receiver].take(late_sender, late_step, late) == []
    for name, now in sums.items():
        assert now.total is not None
        assert now.total.tobytes() == plain[name].tobytes()


@pytest.mark.parametrize("consensus", CONSENSUS)
@pytest.mark.parametrize("kind", ["ring", "grid", "star", "complete", "random-regular:4"])
def test_the_network_makes_no_difference_to_the_last_bit(kind: str, consensus: str) -> None:
    plain = run(circle(kind, 6, consensus=consensus, task="study", retries=30))
    assert len(plain.done) == 6
    bits = [peer.result.subspace.basis.tobytes() for peer in plain.done]
    for faults in (Faults(), Faults(duplicate=0.5, delay=20.0), Faults(loss=0.2, duplicate=0.3, delay=12.0)):
        other = run(circle(kind, 6, consensus=consensus, task="study", retries=30), faults, seed=3, most=90_000)
        assert [peer.result.subspace.basis.tobytes() for peer in other.done] == bits
        assert not other.refused
        assert all(not round_.restarted for peer in other.done for round_ in peer.rounds)


@pytest.mark.parametrize("consensus", CONSENSUS)
def test_with_a_tree_all_peers_have_the_same_bits_and_with_mixing_nearly(consensus: str) -> None:
    these = circle("grid", 9, consensus=consensus)
    ending = run(these)
    exact = these.gram(these.peers)
    for peer in ending.done:
        assert np.abs(peer.result - exact).max() <= 1e-12 * np.abs(exact).max()
        if consensus == "tree":
            assert peer.result.tobytes() == ending.done[0].result.tobytes()


@pytest.mark.parametrize("consensus", CONSENSUS)
def test_a_peer_alone_has_its_own_sum(consensus: str) -> None:
    # Regression: mixing with nobody never takes a step, and the peer waits for nobody for ever.
    these = circle("path", 1, consensus=consensus, quorum=1)
    ending = run(these, most=500)
    assert np.allclose(ending.done[0].result, these.gram(["p0"]))


WRONG: dict[str, tuple[Any, str]] = {
    "not symmetric": ([[0.5, 0.5], [0.4, 0.6]], "weights must be symmetric, but row 0, column 1 has 0.5"),
    "rows that do not add up": ([[0.5, 0.4], [0.4, 0.6]], "every row of weights must add up to 1, but row 0 adds up to 0.9"),
    "negative": ([[1.5, -0.5], [-0.5, 1.5]], "weights must not be negative, got -0.5"),
    "not square": ([[0.5, 0.5]], "weights must be a square matrix"),
    "not finite": ([[np.nan, 0.5], [0.5, 0.5]], "weights must be finite"),
}
