"""Pair noise: the gain against all sets of colluders, bounds that hold, noise of the stated law, and refusals before it costs."""

import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from core.test_noise import LEVEL, scale_statistic
from eigenveil.core.ledger import Ledger
from eigenveil.core.mechanism import Bounded
from eigenveil.core.noise import CAPACITY, LARGEST_SCALE, REACH, Noise, distance_in_steps, step_of, steps_of
from eigenveil.errors import BudgetExceeded
from eigenveil.linalg import Array
from eigenveil.linalg.graphs import Graph
from eigenveil.privacy.paired import PairedPart, PairedSteps, Pairing, _bound, _connectivity, _largest
from eigenveil.privacy.released import pack, unpack


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
    [("ring", 4, 1, 1.15), ("ring", 8, 1, 1.07), ("random-regular:3", 8, 2, 1.16), ("random-regular:4", 8, 3, 1.27)],
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


@pytest.mark.parametrize(("kind", "m", "colluders"), [("random-regular:6", 40, 2), ("random-regular:4", 20, 3), ("ring", 30, 1)])
def test_large_graphs_get_a_bound_that_is_as_close(kind: str, m: int, colluders: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way taken by graphs too large to try all sets, on ones where they can be tried after all."""
    monkeypatch.setattr("eigenveil.privacy.paired._ENUMERATED", 0.0)
    pairing = Pairing.within(Graph.named(kind, named(m)), colluders=colluders)
    assert not pairing.exact
    assert slow_gain(pairing.graph, colluders, pairing.ratio) <= pairing.gain <= 1.001 / (m - colluders)


@pytest.mark.parametrize(
    ("kind", "m", "colluders"),
    [("ring", 256, 1), ("random-regular:4", 256, 3), ("random-regular:8", 256, 3), ("complete", 256, 3), ("ring", 1000, 1)],
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
        ("ring", 8, 2, "removing p1, p7 leaves the others in 2 separate groups, one of them p0. Use a denser"),
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
        name: PairedPart(
            pairing=pairing, name=name, ledger=Ledger(epsilon=math.inf, delta=1e-6), noise=keyed(900 + i), multiplier=multiplier
        )
        for i, name in enumerate(pairing.graph.names)
    }


SIZE, SENSITIVITY, SHARE, MU = 100_000, 3.0, 0.25, 0.25


def in_steps(pairing: Pairing) -> PairedSteps:
    return pairing.in_steps(SENSITIVITY, MU, (SIZE,), symmetric=False)


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
    steps = in_steps(pairing)
    own, between = steps.own * steps.step, steps.between * steps.step
    honest = [name for name in graph.names if name not in gone]
    noise = np.empty((len(honest), SIZE))
    for row, name in enumerate(honest):
        noise[row] = sent[name] - graph.names.index(name)
        for other, source in sources(graph, name).items():
            if other in gone:
                # The colluder knows this noise, and takes it off.
                sign = 1 if graph.names.index(name) < graph.names.index(other) else -1
                noise[row] -= sign * steps.step * steps.draw_between(source)
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
    steps = in_steps(pairing)
    own = steps.own * steps.step
    assert abs(scale_statistic(noise / (math.sqrt(8) * own))) < LEVEL
    assert abs(scale_statistic(noise / (1.1 * math.sqrt(8) * own))) > 5 * LEVEL
    # Rounding to the lattice and to a number that machines agree on adds this much and no more.
    assert 1 <= math.sqrt(8) * own / (pairing.excess * SENSITIVITY / MU) <= (1 + 2.0**-12) * (1 + 2.0**-13)
    # Pair noise cancels to the last bit: what is left is the own noise of everybody, drawn again, and nothing else.
    alone = sum(steps.draw_own(keyed(900 + i)) for i in range(8))
    values = sum(int(steps_of(np.array([float(i)]), steps.step)[0]) for i in range(8))
    whole = sum((part / steps.step).astype(np.int64) for part in parts(pairing).values())
    assert np.array_equal(whole, values + np.asarray(alone))
    # With one peer missing it does not.
    some = parts(pairing)
    del some["p3"]
    assert np.std(sum(some.values())) > steps.between * steps.step


def test_symmetric_values_go_as_triangles() -> None:
    pairing = Pairing.within(Graph.named("complete", named(3)), colluders=1)
    value = np.array([[1.0, 2.0], [2.0, 5.0]])
    sent = [
        peer.of(Bounded(value, 1e-9, symmetric=True), label="g", share=1.0, pairs=sources(pairing.graph, name))
        for name, peer in peers(pairing).items()
    ]
    assert sent[0].shape == (3,)
    assert np.allclose(unpack(np.sum(sent, axis=0), (2, 2), symmetric=True), 3 * value, rtol=0, atol=1e-6)
    assert np.array_equal(value, [[1.0, 2.0], [2.0, 5.0]])


def test_symmetric_noise_is_less_off_the_diagonal() -> None:
    """Own noise s on the diagonal and s / sqrt(2) off it, and the same of pair noise: 10% more of either is seen."""
    dim = 700
    pairing = Pairing.within(Graph.named("complete", named(3)), colluders=1)
    private = Bounded(np.zeros((dim, dim)), SENSITIVITY, symmetric=True)
    sent = [peer.of(private, label="g", share=SHARE, pairs=sources(pairing.graph, name)) for name, peer in peers(pairing).items()]
    steps = pairing.in_steps(SENSITIVITY, MU, (dim, dim), symmetric=True)
    own, between = steps.own * steps.step, steps.between * steps.step
    for noise, scale in ((sum(sent), math.sqrt(3) * own), (sent[1], math.hypot(own, math.sqrt(2) * between))):
        whole = unpack(np.asarray(noise), (dim, dim), symmetric=True)
        for entries, size in ((np.diagonal(whole), scale), (whole[np.triu_indices(dim, 1)], scale / math.sqrt(2))):
            assert abs(scale_statistic(entries / size)) < LEVEL
            # The diagonal has few entries: a quarter more is seen there, and a tenth off it.
            assert abs(scale_statistic(entries / (1.1 * size))) > LEVEL or len(entries) == dim
            assert abs(scale_statistic(entries / (1.25 * size))) > LEVEL


HOSTILE = [0.0, 1.0, -0.3, 1e-300, 1e200, -1e308, math.inf, -math.inf, math.nan, 2.0**40 + 0.1]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(HOSTILE), min_size=1, max_size=6),
    st.floats(1e-100, 1e100),
    st.sampled_from([1e-3, 0.3, 1.0]),
    st.integers(0, 5),
)
def test_what_is_sent_is_whole_steps_whatever_the_value(value: list[float], sensitivity: float, share: float, place: int) -> None:
    """The lattice is public. And what is sent less what is sent of zeros is the value in whole steps, with nothing else in it."""
    pairing = Pairing.within(Graph.named("ring", named(6)), colluders=1)
    name = named(6)[place]
    sent, nothing = (
        peers(pairing)[name].of(
            Bounded(np.array(numbers), sensitivity), label="x", share=share, pairs=sources(pairing.graph, name)
        )
        for numbers in (value, [0.0] * len(value))
    )
    mu = math.sqrt(share) / 2.0
    step = pairing.in_steps(sensitivity, mu, (len(value),), symmetric=False).step
    for numbers in (sent, nothing):
        whole = numbers / step
        assert np.isfinite(whole).all()
        assert np.array_equal(whole, np.rint(whole))
        assert np.abs(whole).max() <= 2 * CAPACITY
    assert np.array_equal((sent - nothing) / step, steps_of(np.array(value), step))
    # Any whole number of steps can be the noise on any value: no value rules out a number that another one allows.
    assert np.abs(steps_of(np.array(value), step)).max() <= CAPACITY


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.sampled_from(HOSTILE[:5] + HOSTILE[-1:]), min_size=4, max_size=4),
    st.integers(0, 2**32),
    st.floats(0.0, 1.0),
    st.floats(1e-100, 1e100),
    st.booleans(),
)
def test_neighbours_are_no_further_apart_than_their_noise_is_for(
    start: list[float], seed: int, along: float, sensitivity: float, symmetric: bool
) -> None:
    """Values that one person moves by up to the sensitivity, huge ones too: in steps, with entries off the diagonal twice."""
    rng = np.random.default_rng(seed)
    value = np.array(start).reshape(2, 2) * sensitivity if symmetric else np.array(start) * sensitivity
    move = rng.standard_normal(value.shape)
    if symmetric:
        value, move = np.triu(value) + np.triu(value, 1).T, move + move.T
    move *= along * sensitivity / np.linalg.norm(move)
    pairing = Pairing.within(Graph.named("complete", named(3)), colluders=1)
    steps = pairing.in_steps(sensitivity, 0.5, value.shape, symmetric=symmetric)
    with np.errstate(over="ignore"):
        pair = [steps_of(pack(v, symmetric=symmetric), steps.step) for v in (value, value + move)]
    gap = unpack((pair[0] - pair[1]).astype(float), value.shape, symmetric=symmetric)
    assert np.linalg.norm(gap) * math.sqrt(pairing.gain) <= 0.5 * steps.own


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("mu", [1e-3, 0.3, 10.0, 1e4])
@pytest.mark.parametrize(("kind", "m"), [("ring", 4), ("ring", 64), ("complete", 40), ("random-regular:4", 256)])
def test_noise_in_steps_is_what_the_proof_needs(kind: str, m: int, mu: float, symmetric: bool) -> None:
    pairing = Pairing.within(Graph.named(kind, named(m)), colluders=1)
    steps = pairing.in_steps(SENSITIVITY, mu, (9, 9), symmetric=symmetric)
    degree = max(pairing.graph.degree(name) for name in pairing.graph.names)
    least, finer = (steps.own / math.sqrt(2) if symmetric else steps.own), step_of(SENSITIVITY, 81) / steps.step
    assert steps.own >= 2048
    # Own noise can be split into t = 4 for every pair and a rest, and t smooths rounded pair noise: 2 exp(-2 pi^2 k^2) < 2^-450.
    split = (least**2) / (2 * degree)
    assert split >= 16 * (1 - 1e-12)
    k_square = 16 * (between := (steps.between / math.sqrt(2)) ** 2) / (16 + between)
    assert 2 * math.pi**2 * k_square / math.log(2) > 451
    assert finer == 1 or steps.own < 2 * 2 * 2048, "the lattice is no finer than it must be"
    assert math.log2(finer).is_integer()
    # The noise for the distance in these steps, within what machines round it up by; and pair noise by the ratio, exactly.
    needed = distance_in_steps(SENSITIVITY, 81, steps.step) * math.sqrt(pairing.gain) / mu
    assert needed <= steps.own <= needed * (1 + 2.0**-13)
    assert steps.between == pairing.ratio * steps.own
    assert steps.between <= LARGEST_SCALE and CAPACITY + REACH * (steps.own + degree * steps.between) < 2**62


def test_noise_that_cannot_be_exact_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pairing = Pairing.within(Graph.named("ring", named(64)), colluders=1)
    # Any budget, however large, has noise of many steps.
    assert pairing.in_steps(1.0, 1e9, (4,), symmetric=False).own >= 2048
    with pytest.raises(ValueError, match="too large to be drawn exactly: a deviation of"):
        pairing.in_steps(1.0, 1e-9, (10**6,), symmetric=False)
    # The last scale that is taken: eight times smaller a mu, and it is not.
    assert pairing.in_steps(1.0, 2.0**-21, (4,), symmetric=False).between > LARGEST_SCALE / 8
    with pytest.raises(ValueError, match="too large to be drawn exactly"):
        pairing.in_steps(1.0, 2.0**-24, (4,), symmetric=False)
    # With a hundred thousand neighbours own noise cannot be shared out among all; as if these two were so many.
    monkeypatch.setattr("eigenveil.privacy.paired._SMOOTH", 4 * math.sqrt(50_000))
    assert pairing.in_steps(1.0, 0.5, (2, 2), symmetric=True).own > 2048
    with pytest.raises(ValueError, match="where a peer has 2 neighbours"):
        pairing.in_steps(1.0, 16.0, (2, 2), symmetric=True)


def test_two_machines_agree_on_the_scale() -> None:
    """Inverses and roots that differ in the last digits lead to the same whole numbers, so that pair noise still cancels."""
    pairing = Pairing.within(Graph.named("ring", named(21)), colluders=1)
    other = replace(pairing, gain=pairing.gain * (1 + 3e-13))
    assert other.gain != pairing.gain
    assert other.in_steps(3.0, 0.25, (5,), symmetric=False) == pairing.in_steps(3.0, 0.25, (5,), symmetric=False)


def test_what_both_ends_must_agree_on_is_in_the_words() -> None:
    steps = PairedSteps(shape=(2, 2), symmetric=True, step=0.5, own=3.0, between=48.0)
    others = [
        replace(steps, shape=(4,)),
        replace(steps, symmetric=False),
        replace(steps, step=0.25),
        replace(steps, own=math.nextafter(3.0, 4.0)),
        replace(steps, between=math.nextafter(48.0, 0.0)),
    ]
    assert len({steps.words, *(other.words for other in others)}) == 6


def test_the_ledger_is_charged_before_anything_is_drawn_and_a_refusal_draws_nothing() -> None:
    pairing = Pairing.within(Graph.named("complete", named(3)), colluders=1)
    ledger = Ledger(epsilon=1.0, delta=1e-6)
    seen: list[int] = []

    class Watching:
        @contextmanager
        def batch(self) -> Iterator[Callable[[int], NDArray[np.uint64]]]:
            yield self.words

        def words(self, count: int) -> NDArray[np.uint64]:
            seen.append(len(ledger.charges))
            # The middle of a layer, twice: the first word is enough.
            return np.full(count, 512, dtype=np.uint64)

    part = PairedPart(pairing=pairing, name="p0", ledger=ledger, noise=Watching(), multiplier=1 / ledger.budget.mu)  # type: ignore[arg-type]
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
        ({"p1": good["p1"]}, r"lacks \['p3'\]"),
        ({**good, "p2": keyed(5)}, r"also has \['p2'\]"),
        ({"p1": same, "p3": same}, "two are the same"),
        ({"p1": same, "p3": part.noise}, "two are the same"),
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
    for ratio in (0.0, 15.9, math.inf):
        with pytest.raises(ValueError, match="ratio"):
            replace(pairing, ratio=ratio)
    for mu in (0.0, math.inf):
        with pytest.raises(ValueError, match="mu"):
            pairing.own(1.0, mu)
    for sensitivity in (0.0, math.inf):
        with pytest.raises(ValueError, match="sensitivity"):
            pairing.between(sensitivity, 1.0)
