"""No test of one person gets past the stated mu: any graph, any colluders, and honest peers who were told different things.

The adversary's view is built from its parts, a column for each independent normal, and not from the formula. These are own
noise, and pair noise: once for both ends or, where two ends do not share it, once for each.
"""

import itertools
import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from eigenveil.linalg import Array
from eigenveil.linalg.graphs import Graph
from eigenveil.privacy.paired import Pairing

MU, SENSITIVITY = 0.7, 2.0


@st.composite
def pairings(draw: st.DrawFn) -> Pairing:
    """A random graph that stays connected without the colluders: a regular one, with any further edges."""
    colluders = draw(st.integers(1, 3))
    m = draw(st.integers(colluders + 2, 9))
    names = [f"p{i}" for i in range(m)]
    degree = colluders + 1 if (colluders + 1) * m % 2 == 0 else colluders + 2
    seed = draw(st.integers(0, 10**6))
    base = Graph.named("complete" if degree >= m - 1 else f"random-regular:{degree}", names, seed=seed)
    rng = np.random.default_rng(seed)
    more = [pair for pair in itertools.combinations(names, 2) if rng.random() < draw(st.sampled_from([0.0, 0.3]))]
    return Pairing.within(Graph.of(names, [*base.edges, *more]), colluders=colluders)


def view(pairing: Pairing, gone: set[str], unshared: set[tuple[str, str]], scales: dict[str, float]) -> tuple[list[str], Array]:
    """The honest names, and the matrix (honest, normals) by which the noise that is not known to `gone` enters what they send.

    `scales` multiplies all noise of a peer, as if it had been asked a question of another sensitivity.
    """
    honest = [name for name in pairing.graph.names if name not in gone]
    row = {name: i for i, name in enumerate(honest)}
    own, between = pairing.own(SENSITIVITY, MU), pairing.between(SENSITIVITY, MU)
    columns = [{name: own} for name in honest]
    for a, b in pairing.graph.edges:
        if a in row and b in row:
            columns += [{a: between}, {b: -between}] if (a, b) in unshared else [{a: between, b: -between}]
    noise = np.zeros((len(honest), len(columns)))
    for column, entries in enumerate(columns):
        for name, size in entries.items():
            noise[row[name], column] = size * scales[name]
    return honest, noise


def best_mu(noise: Array, row: int, sensitivity: float) -> float:
    """The mu of the best test between two tables that differ in `row`: the most a linear statistic moves, in its deviations."""
    # Least squares in the normals: the smallest combination of them that looks just like the person does.
    person = np.zeros(len(noise))
    person[row] = sensitivity
    normals, *_ = np.linalg.lstsq(noise, person, rcond=None)
    return float(np.linalg.norm(normals))


@settings(max_examples=150)
@given(pairings(), st.data())
def test_no_test_gets_past_the_stated_mu(pairing: Pairing, data: st.DataObject) -> None:
    names = pairing.graph.names
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    gone = {str(name) for name in rng.choice(names, size=rng.integers(pairing.colluders + 1), replace=False)}
    share = data.draw(st.sampled_from([0.0, 0.3, 1.0]))
    unshared = {edge for edge in pairing.graph.edges if rng.random() < share}
    different = data.draw(st.booleans())
    scales = {name: float(rng.choice([0.1, 1.0, 7.0])) if different else 1.0 for name in names}
    honest, noise = view(pairing, gone, unshared, scales)
    for row, name in enumerate(honest):
        # A peer that was asked something more sensitive takes more noise, of both kinds.
        found = best_mu(noise, row, SENSITIVITY * scales[name])
        assert found <= MU * (1 + 1e-6)
        # An observer who sees fewer parts, or sums of them, learns less.
        seen = rng.standard_normal((max(1, len(honest) - 1), len(honest))) * (rng.random(len(honest)) < 0.8)
        moved = seen[:, row] * SENSITIVITY * scales[name]
        cover = seen @ noise
        normals, *_ = np.linalg.lstsq(cover, moved, rcond=None)
        assert np.linalg.norm(normals) <= found * (1 + 1e-6)


@given(pairings())
def test_the_stated_mu_is_reached_and_no_larger_than_it_must_be(pairing: Pairing) -> None:
    """The worst colluders get to the stated mu: noise a thousandth smaller would break the guarantee."""
    worst = 0.0
    for gone in itertools.combinations(pairing.graph.names, pairing.colluders):
        honest, noise = view(pairing, set(gone), set(), dict.fromkeys(pairing.graph.names, 1.0))
        worst = max(worst, *(best_mu(noise, row, SENSITIVITY) for row in range(len(honest))))
    assert MU * (1 - 1e-6) <= worst <= MU * (1 + 1e-6)


@given(pairings(), st.integers(0, 2**32))
def test_one_colluder_more_never_tells_less(pairing: Pairing, seed: int) -> None:
    order = [str(name) for name in np.random.default_rng(seed).permutation(pairing.graph.names)]
    person, others = order[0], order[1 : pairing.colluders + 1]
    found = []
    for count in range(len(others) + 1):
        honest, noise = view(pairing, set(others[:count]), set(), dict.fromkeys(order, 1.0))
        found.append(best_mu(noise, honest.index(person), SENSITIVITY))
    assert all(fewer <= more * (1 + 1e-6) for fewer, more in itertools.pairwise(found))


def test_the_attack_finds_what_is_wrong() -> None:
    """A colluder too many, or no pairs where there should be some: the same test goes far past the stated mu."""
    ring = Pairing.within(Graph.named("ring", [f"p{i}" for i in range(8)]), colluders=1)
    ones = dict.fromkeys(ring.graph.names, 1.0)
    honest, noise = view(ring, {"p1", "p7"}, set(), ones)
    assert best_mu(noise, honest.index("p0"), SENSITIVITY) > 0.999 * MU * math.sqrt(7)
    honest, noise = view(ring, {"p4"}, set(), ones)
    independent = noise[:, : len(honest)]
    assert best_mu(independent, 0, SENSITIVITY) > 0.999 * MU * math.sqrt(7)
