"""Pair noise: the gain against all sets of colluders, bounds that hold, noise of the stated law, and refusals before it costs."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from eigenveil.errors import BudgetExceeded
from eigenveil.graphs import Graph
from eigenveil.linalg import Array
from eigenveil.privacy import Bounded, Ledger, Noise
from eigenveil.privacy.paired import PairedPart, Pairing, _bound, _connectivity, _largest
from eigenveil.privacy.steps import pack
from privacy.test_noise import LEVEL, scale_statistic


def named(m: int) -> tuple[str, ...]:
    return tuple(f"p{i}" for i in range(m))


def gains(graph: Graph, gone: tuple[str, ...], own: float, between: float) -> Array:
    """[(own^2 I + between^2 L_H)^-1]_ii for all i in H, by eigenvalues: the slow, obvious version."""
    values, vectors = np.linalg.eigh(graph.without(gone).laplacian())
    # Rounding alone is no connection.
    values[values < 1e-9] = 0
    entries: Array = np.square(vectors) @ (1 / (own**2 + between**2 * values))
    return entries


def slow_gain(graph: Graph, colluders: int, ratio: float) -> float:
    return max(float(gains(graph, gone, 1.0, ratio).max()) for gone in itertools.combinations(graph.names, colluders))


CASES = [
    ("ring", 4, 1),
    ("ring", 8, 1),
    ("ring", 21, 1),
    ("grid", 9, 1),
    ("random-regular:3", 8, 2),
    ("random-regular:4", 8, 3),
    ("random-regular:4", 12, 2),
    ("complete", 3, 1),
    ("complete", 9, 3),
]


@pytest.mark.parametrize(("kind", "m", "colluders"), CASES)
def test_the_gain_is_the_largest_over_all_sets(kind: str, m: int, colluders: int) -> None:
    pairing = Pairing.within(Graph.named(kind, named(m)), colluders=colluders)
    exact = slow_gain(pairing.graph, colluders, pairing.ratio)
    assert pairing.exact
    assert exact <= pairing.gain <= exact * (1 + 1e-8)
    limit = 1 / (m - colluders)
    assert limit < pairing.gain <= 1.001 * limit
    # Half of it would not be enough, unless it is the least that is ever taken.
    assert pairing.ratio == 16 or slow_gain(pairing.graph, colluders, pairing.ratio / 2) > 1.001 * limit
    assert math.log2(pairing.ratio).is_integer()
    assert pairing.excess == pytest.approx(math.sqrt(m / (m - colluders)), rel=5e-4)


@pytest.mark.parametrize(
    ("kind", "m", "colluders", "excess"),
    [
        ("ring", 4, 1, 1.15),
        ("ring", 8, 1, 1.07),
        ("random-regular:3", 8, 2, 1.16),
        ("random-regular:4", 8, 3, 1.27),
    ],
)
def test_what_was_measured_before(kind: str, m: int, colluders: int, excess: float) -> None:
    """The figures of the study that this was chosen by, to the two digits that it gives."""
    found = Pairing.within(Graph.named(kind, named(m)), colluders=colluders).excess
    assert found == pytest.approx(excess, abs=0.0056)


def test_a_ring_of_64_leaks_nearly_three_times_as_much_with_little_pair_noise() -> None:
    """Own noise as in the limit: mu is 2.7 times a curator's at s_D = the curator's noise, and 1.001 times at 100 times that."""
    graph = Graph.named("ring", named(64))
    own = 1 / math.sqrt(63)
    assert math.sqrt(gains(graph, ("p0",), own, 1.0).max()) == pytest.approx(2.73, abs=0.005)
    assert math.sqrt(gains(graph, ("p0",), own, 100.0).max()) == pytest.approx(1.001, abs=0.0005)
    # To reach the same mu by more own noise, the sum needs 5.6 times the noise in place of 2.7: s_eta^2 = 1/2 at s_D = 1.
    assert gains(graph, ("p0",), math.sqrt(0.5), 1.0).max() == pytest.approx(1.0)


@pytest.mark.parametrize(("kind", "m", "colluders"), [*CASES, ("random-regular:8", 14, 2), ("random-regular:9", 12, 3)])
@pytest.mark.parametrize("ratio", [0.1, 1.0, 16.0, 1024.0])
def test_bounds_are_bounds(kind: str, m: int, colluders: int, ratio: float) -> None:
    graph = Graph.named(kind, named(m), seed=4)
    exact = slow_gain(graph, colluders, ratio)
    by_value = _bound(m - colluders, _connectivity(graph, colluders), ratio)
    by_tree = _bound(m - colluders, 0.0, ratio)
    assert exact <= min(by_value, by_tree) * (1 + 1e-9)
    assert _largest(graph, colluders, ratio, math.inf) == pytest.approx(exact, rel=1e-8)
    # Each is nearly reached somewhere, so neither could be made smaller: complete graphs, and the ends of paths.
    if kind == "complete":
        assert by_value == pytest.approx(exact, rel=1e-9)
    if kind == "ring" and ratio == 1024:
        assert by_tree == pytest.approx(exact, rel=1e-4)
        assert 1 / (m - 1) + 0.9 * (by_tree - 1 / (m - 1)) < exact


@pytest.mark.parametrize(
    ("kind", "m", "colluders"), [("random-regular:6", 40, 2), ("random-regular:4", 20, 3), ("ring", 30, 1)]
)
def test_large_graphs_get_a_bound_that_is_as_close(
    kind: str, m: int, colluders: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way taken by graphs too large to try all sets, on ones where they can be tried after all."""
    monkeypatch.setattr("eigenveil.privacy.paired._ENUMERATED", 0.0)
    pairing = Pairing.within(Graph.named(kind, named(m)), colluders=colluders)
    assert not pairing.exact
    assert slow_gain(pairing.graph, colluders, pairing.ratio) <= pairing.gain <= 1.001 / (m - colluders)


@pytest.mark.parametrize(
    ("kind", "m", "colluders"),
    [
        ("ring", 256, 1),
        ("random-regular:4", 256, 3),
        ("random-regular:8", 256, 3),
        ("complete", 256, 3),
        ("ring", 1000, 1),
    ],
)
def test_graphs_of_hundreds_are_within_the_limit_too(kind: str, m: int, colluders: int) -> None:
    pairing = Pairing.within(Graph.named(kind, named(m)), colluders=colluders)
    assert 1 <= pairing.gain * (m - colluders) <= 1.001
    some = pairing.graph.names[:colluders]
    assert gains(pairing.graph, some, 1.0, pairing.ratio).max() <= pairing.gain


def test_noise_graphs_that_colluders_can_take_apart_are_refused() -> None:
    for kind, m, colluders, match in [
        ("star", 6, 1, "removing p0 leaves the others in 5 separate"),
        ("path", 5, 1, "removing p1 leaves the others in 2 separate groups, one of them p0"),
        ("ring", 8, 2, "removing p1, p7 leaves the others in 2 separate groups, one of them p0; take a denser"),
        ("grid", 9, 2, "removing p1, p3 leaves"),
        ("random-regular:3", 8, 3, "at least 4 neighbours"),
    ]:
        with pytest.raises(ValueError, match=match):
            Pairing.within(Graph.named(kind, named(m)), colluders=colluders)
    with pytest.raises(ValueError, match="it is in 2 separate groups"):
        Pairing.within(Graph.of(named(4), [("p0", "p1"), ("p2", "p3")]), colluders=1)
    ring = Graph.named("ring", named(3))
    for colluders in (0, -1):
        with pytest.raises(ValueError, match="at least 1"):
            Pairing.within(ring, colluders=colluders)
    with pytest.raises(ValueError, match="3 peers are too few against 2"):
        Pairing.within(ring, colluders=2)


def test_why_they_are_refused() -> None:
    """Two colluders in a ring of 8 leave somebody alone, who has no noise but their own: as if there were no pairs."""
    ring = Graph.named("ring", named(8))
    assert gains(ring, ("p1", "p7"), 1.0, 1e4).max() == pytest.approx(1.0)
    # Groups of 2 and 4: the smaller one counts.
    assert gains(ring, ("p0", "p3"), 1.0, 1e4).max() == pytest.approx(1 / 2, rel=1e-6)


def keyed(number: int) -> Noise:
    return Noise.seeded(number)


def sources(graph: Graph, name: str, seed: int = 0) -> dict[str, Noise]:
    """Equal streams for both ends of a pair, and another one for each pair."""
    place = {other: i for i, other in enumerate(graph.names)}
    pairs = {other: sorted((place[name], place[other])) for other in graph.neighbours(name)}
    return {other: keyed(seed + 1000 * (a + 1) + b) for other, (a, b) in pairs.items()}


def peers(pairing: Pairing, multiplier: float = 2.0) -> dict[str, PairedPart]:
    return {
        name: PairedPart(pairing, name, Ledger(epsilon=math.inf, delta=1e-6), keyed(900 + i), multiplier)
        for i, name in enumerate(pairing.graph.names)
    }


SIZE, SENSITIVITY, SHARE, MU = 100_000, 3.0, 0.25, 0.25


def parts(pairing: Pairing) -> dict[str, Array]:
    """What every peer sends for the value i * (1, 1, ..)."""
    private = {name: Bounded(np.full(SIZE, float(i)), SENSITIVITY) for i, name in enumerate(pairing.graph.names)}
    return {
        name: peer.of(private[name], label="x", share=SHARE, pairs=sources(pairing.graph, name))
        for name, peer in peers(pairing).items()
    }


@pytest.mark.parametrize(
    ("kind", "m", "gone"), [("ring", 6, ("p2",)), ("random-regular:4", 8, ("p1", "p5")), ("complete", 4, ("p3",))]
)
def test_honest_parts_have_noise_of_the_stated_law(kind: str, m: int, gone: tuple[str, ...]) -> None:
    """Whitened by the stated covariance they are standard normals: along the constants (own noise) and beside them (pairs)."""
    pairing = Pairing.within(Graph.named(kind, named(m)), colluders=len(gone))
    graph, sent = pairing.graph, parts(pairing)
    own, between = pairing.own(SENSITIVITY, MU), pairing.between(SENSITIVITY, MU)
    honest = [name for name in graph.names if name not in gone]
    noise = np.empty((len(honest), SIZE))
    for row, name in enumerate(honest):
        noise[row] = sent[name] - graph.names.index(name)
        for other, source in sources(graph, name).items():
            if other in gone:
                # The colluder knows this noise, and takes it off.
                sign = 1 if graph.names.index(name) < graph.names.index(other) else -1
                noise[row] -= sign * between * source.normal((SIZE,))
    values, vectors = np.linalg.eigh(graph.without(gone).laplacian())

    def statistics(own: float, between: float) -> tuple[float, float]:
        white = (vectors.T @ noise) / np.sqrt(own**2 + between**2 * np.maximum(values, 0))[:, None]
        products = (white @ white.T / math.sqrt(SIZE))[np.triu_indices(len(white), 1)]
        assert np.abs(products).max() < LEVEL + 1
        return abs(scale_statistic(white[0])), abs(scale_statistic(white[1:]))

    assert max(statistics(own, between)) < LEVEL
    for wrong in (0.9, 1.1):
        assert statistics(wrong * own, between)[0] > 5 * LEVEL
        assert statistics(own, wrong * between)[1] > 5 * LEVEL


@pytest.mark.parametrize("kind", ["ring", "random-regular:4", "complete"])
def test_only_own_noise_is_left_in_the_sum(kind: str) -> None:
    pairing = Pairing.within(Graph.named(kind, named(8)), colluders=1)
    noise = np.add.reduce(list(parts(pairing).values())) - sum(range(8))
    own = pairing.own(SENSITIVITY, MU)
    assert abs(scale_statistic(noise / (math.sqrt(8) * own))) < LEVEL
    assert abs(scale_statistic(noise / (1.1 * math.sqrt(8) * own))) > 5 * LEVEL
    assert math.sqrt(8) * own == pytest.approx(pairing.excess * SENSITIVITY / MU)
    # Pair noise cancels to the rounding of numbers of its size: what is left is the own noise of everybody, drawn again.
    alone = own * sum(keyed(900 + i).normal((SIZE,)) for i in range(8))
    assert np.abs(noise - alone).max() < 1e-12 * pairing.between(SENSITIVITY, MU) * 8
    # With one peer missing it does not.
    some = parts(pairing)
    del some["p3"]
    assert np.std(sum(some.values())) > pairing.between(SENSITIVITY, MU)


def test_symmetric_values_go_as_triangles() -> None:
    pairing = Pairing.within(Graph.named("complete", named(3)), colluders=1)
    value = np.array([[1.0, 2.0], [2.0, 5.0]])
    sent = [
        peer.of(Bounded(value, 1e-9, symmetric=True), label="g", share=1.0, pairs=sources(pairing.graph, name))
        for name, peer in peers(pairing).items()
    ]
    assert sent[0].shape == (3,)
    assert np.allclose(sum(sent), 3 * pack(value, symmetric=True), rtol=0, atol=1e-6)
    assert np.array_equal(value, [[1.0, 2.0], [2.0, 5.0]])


def test_the_ledger_is_charged_before_anything_is_drawn_and_a_refusal_draws_nothing() -> None:
    pairing = Pairing.within(Graph.named("complete", named(3)), colluders=1)
    ledger = Ledger(epsilon=1.0, delta=1e-6)
    seen: list[int] = []

    class Watching:
        def normal(self, shape: tuple[int, ...]) -> Array:
            seen.append(len(ledger.charges))
            return np.zeros(shape)

    part = PairedPart(pairing, "p0", ledger, Watching(), 1 / ledger.budget.mu)  # type: ignore[arg-type]
    pairs: dict[str, Noise] = {"p1": Watching(), "p2": Watching()}  # type: ignore[dict-item]
    part.of(Bounded(np.zeros(2), 1.0), label="x", share=0.75, pairs=pairs)
    assert seen == [1, 1, 1]
    assert ledger.charges[0].mu == pytest.approx(ledger.budget.mu * math.sqrt(0.75))
    with pytest.raises(BudgetExceeded):
        part.of(Bounded(np.zeros(2), 1.0), label="y", share=0.5, pairs=pairs)
    assert seen == [1, 1, 1]
    # The value is looked at after the charge: a part that breaks has been paid for.
    with pytest.raises(ValueError, match="convert"):
        part.of(Bounded(np.array(["a"]), 1.0), label="z", share=0.25, pairs=pairs)
    assert [charge.label for charge in ledger.charges] == ["x", "z"]


def test_values_that_are_no_numbers_are_sent_as_they_are() -> None:
    pairing = Pairing.within(Graph.named("complete", named(3)), colluders=1)
    value = np.array([np.inf, -np.inf, np.nan, 1e308, 1.0])
    sent = peers(pairing)["p1"].of(Bounded(value, 1.0), label="x", share=1.0, pairs=sources(pairing.graph, "p1"))
    assert np.isnan(sent).tolist() == [False, False, True, False, False]
    assert np.isfinite(sent).tolist() == [False, False, False, True, True]


def test_bad_settings_are_refused_before_they_cost() -> None:
    pairing = Pairing.within(Graph.named("ring", named(4)), colluders=1)
    part = peers(pairing)["p0"]
    good = sources(pairing.graph, "p0")
    value = Bounded(np.zeros(2), 1.0)
    for share in (0.0, 1.5, -0.1, math.nan):
        with pytest.raises(ValueError, match="share"):
            part.of(value, label="x", share=share, pairs=good)
    for sensitivity in (0.0, math.inf, 1e308, 5e-324):
        with pytest.raises(ValueError, match="sensitivity"):
            part.of(Bounded(np.zeros(2), sensitivity), label="x", share=1e-9, pairs=good)
    same = keyed(3)
    for pairs, match in [
        ({"p1": good["p1"]}, r"none for \['p3'\]"),
        ({**good, "p2": keyed(5)}, r"some for \['p2'\]"),
        ({"p1": same, "p3": same}, "one for two"),
        ({"p1": same, "p3": part.noise}, "one for two"),
    ]:
        with pytest.raises(ValueError, match=match):
            part.of(value, label="x", share=1.0, pairs=pairs)
    assert part.ledger.charges == ()
    with pytest.raises(ValueError, match="'zoe' is not in"):
        replace(part, name="zoe")
    for multiplier in (0.0, math.inf):
        with pytest.raises(ValueError, match="multiplier"):
            replace(part, multiplier=multiplier)
    for gain in (0.2, 1.5, math.nan):
        with pytest.raises(ValueError, match="gain"):
            replace(pairing, gain=gain)
    for ratio in (0.0, math.inf):
        with pytest.raises(ValueError, match="ratio"):
            replace(pairing, ratio=ratio)
    for mu in (0.0, math.inf):
        with pytest.raises(ValueError, match="mu"):
            pairing.own(1.0, mu)
    for sensitivity in (0.0, math.inf):
        with pytest.raises(ValueError, match="sensitivity"):
            pairing.between(sensitivity, 1.0)
