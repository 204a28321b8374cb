"""The sensitivities of `Segments`, attacked: neighbouring tables with hidden starts coupled, rows up to 1e308, every relation."""

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from eigenveil.core.domain import SHIFT, Domain
from eigenveil.core.mechanism import Bounded
from eigenveil.core.noise import steps_of
from eigenveil.core.rows import Block, Rows
from eigenveil.core.unit import Neighbours
from eigenveil.data.rows import DenseRows, SparseRows, WeightedRows
from eigenveil.linalg import Array, orthonormal
from eigenveil.methods.segments import Segments
from eigenveil.tasks.base import Question
from laws.strategies import PERSONAL, SIZES, Case, cases, domains, person, table

RANK, ROUNDS = 2, 3


class Fixed:
    """Stands in for a `Noise`, giving each row the score that is listed for it. Changes in place."""

    def __init__(self, scores: Array) -> None:
        self.scores = scores

    def next(self, count: int) -> Array:
        drawn, self.scores = self.scores[:count], self.scores[count:]
        return drawn


@pytest.fixture(autouse=True, scope="module")
def listed() -> Iterator[None]:
    """Scores as they are listed, in whole numbers, are cut and used as those that are drawn."""

    def drawn(task: Segments, count: int) -> NDArray[np.int64]:
        noise: Any = task.noise
        return steps_of(noise.next(count), task._score_unit)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Segments, "_drawn", drawn)
        yield


def segments(domain: Domain, neighbours: Neighbours, seed: int, *, clip: float = 0.7) -> Segments:
    """The first scores are the same for the same seed, however many are drawn: that couples those of neighbouring tables."""
    return hidden(domain, neighbours, np.random.default_rng(seed).standard_normal(64), clip=clip)


def hidden(domain: Domain, neighbours: Neighbours, scores: Array, *, clip: float = 0.7) -> Segments:
    noise: Any = Fixed(scores)
    shares = (1 / (RANK * ROUNDS),) * (RANK * ROUNDS)
    return Segments(
        domain=domain, neighbours=neighbours, rank=RANK, rounds=ROUNDS, shares=shares, noise=noise, deviation=1.0, clip=clip
    )


def questions(dim: int, rng: np.random.Generator) -> list[Question]:
    """A start and a product of either component, the product with a direction that leans into what was found."""
    nothing, one = np.zeros((dim, 0)), orthonormal(rng.standard_normal((dim, 1)))
    found = orthonormal(rng.standard_normal((dim, 1)))
    return [
        Question(0, (nothing, nothing)),
        Question(1, (nothing, one)),
        Question(ROUNDS, (found, nothing)),
        Question(ROUNDS + 2, (found, one)),
    ]


def apart(one: Bounded, other: Bounded) -> float:
    return float(np.linalg.norm(one.value - other.value))


@settings(max_examples=300, deadline=None)
@given(case=cases(), seed=st.integers(0, 2**32))
def test_products_and_starts_keep_their_sensitivity(case: Case, seed: int) -> None:
    """The person who differs is last, so equal seeds give all others equal scores."""
    rng = np.random.default_rng(seed)
    for question in questions(case.domain.dim, rng):
        one, other = (segments(case.domain, case.neighbours, seed).private(question, rows) for rows in (case.one, case.other))
        assert one.sensitivity == other.sensitivity
        assert apart(one, other) <= one.sensitivity * (1 + 1e-9)


@settings(max_examples=200, deadline=None)
@given(data=st.data(), seed=st.integers(0, 2**32), place=st.integers(0, 4), sparse=st.booleans())
def test_a_start_is_no_further_apart_whatever_the_scores(data: st.DataObject, seed: int, place: int, sparse: bool) -> None:
    """One person anywhere in the table, with any scores in either table, huge ones among them; the others' are coupled."""
    rng = np.random.default_rng(seed)
    neighbours = data.draw(st.sampled_from(PERSONAL))
    domain = data.draw(domains(4))
    people = [person(4, rng, data.draw(st.sampled_from(SIZES)), int(rng.integers(1, 4))) for _ in range(5)]
    scores = [rng.standard_normal(len(rows)) * 10.0 ** rng.integers(-3, 9) for rows in people]
    changed, drawn = list(people), list(scores)
    if neighbours is Neighbours.REPLACE_ONE:
        changed[place] = -people[place]
        drawn[place] = scores[place] if data.draw(st.booleans()) else -scores[place]
    else:
        del changed[place], drawn[place]
    for question in questions(4, rng)[::2]:
        values = []
        for rows, own in ((people, scores), (changed, drawn)):
            task = hidden(domain, neighbours, np.concatenate(own))
            values.append(task.private(question, table(rows, 4, sparse=sparse, grouped=True)))
        assert apart(*values) <= values[0].sensitivity * (1 + 1e-9)


@pytest.mark.parametrize("size", [1.0, 1e8, 1e200])
@pytest.mark.parametrize("sparse", [False, True])
def test_the_bounds_are_reached(size: float, sparse: bool) -> None:
    """A bound ten percent smaller would be broken: by a row on the sphere whose score is at the clip, and by its opposite."""
    row = np.array([[size, 0.0, 0.0]])
    nothing = np.zeros((3, 0))
    start, product = Question(0, (nothing, nothing)), Question(1, (nothing, np.eye(3)[:, :1]))
    for neighbours, factor in ((Neighbours.ADD_REMOVE, 1.0), (Neighbours.REPLACE_ONE, 2.0)):
        other = -row if neighbours is Neighbours.REPLACE_ONE else np.zeros((0, 3))
        task = segments(Domain(dim=3, radius=1.0), neighbours, 0, clip=1e-9)
        # The sign of a hidden score is the same in both tables where the seed is.
        pair = [segments(task.domain, neighbours, 0, clip=1e-9).private(start, _rows(v, sparse)) for v in (row, other)]
        assert apart(*pair) >= 0.999 * task.sensitivity(start)
        assert task.sensitivity(start) == pytest.approx(factor * 1e-9)
    task = segments(Domain(dim=3, radius=1.0), Neighbours.ADD_REMOVE, 0)
    pair = [task.private(product, _rows(v, sparse)) for v in (row, np.zeros((0, 3)))]
    assert apart(*pair) >= 0.999 * task.sensitivity(product)


def _rows(values: Array, sparse: bool) -> Rows:
    return SparseRows(sp.csr_array(values)) if sparse else DenseRows(values)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), seed=st.integers(0, 2**32), cut=st.integers(0, 6), sparse=st.booleans())
def test_parts_of_peers_add_up_to_the_whole(data: st.DataObject, seed: int, cut: int, sparse: bool) -> None:
    """For starts too, where the peers' scores are those of the whole."""
    rng = np.random.default_rng(seed)
    domain = data.draw(domains(4))
    people, scores = [person(4, rng, 1.0, 1) for _ in range(6)], rng.standard_normal(6)
    for question in questions(4, rng):
        parts = []
        for part in (slice(None), slice(None, cut), slice(cut, None)):
            task = hidden(domain, Neighbours.ADD_REMOVE, scores[part])
            parts.append(task.private(question, table(people[part], 4, sparse=sparse, grouped=False)).value)
        size = max(1.0, float(np.abs(parts[0]).max()), domain.radius**2)
        np.testing.assert_allclose(parts[1] + parts[2], parts[0], atol=1e-9 * size)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_sparse_and_dense_rows_start_alike(data: st.DataObject, seed: int) -> None:
    rng = np.random.default_rng(seed)
    domain = data.draw(domains(4))
    people = [person(4, rng, 1.0, 2) for _ in range(4)]
    for question in questions(4, rng):
        dense, sparse = (
            segments(domain, Neighbours.ADD_REMOVE, seed).private(question, table(people, 4, sparse=kind, grouped=True))
            for kind in (False, True)
        )
        # Eight rows, each on a grid of its own: off by sqrt(d) units, and the factor of sparse ones by 2^-24; scores by as much.
        moved = np.vstack(people) - (0.0 if domain.center is None else domain.center)
        moved /= 1.0 if domain.scale is None else domain.scale
        shifted, start = 2.0**-24 * float(np.linalg.norm(moved, axis=1).max()), question.arrays[1].shape[1] == 0
        row = 2 * domain.radius * 2.0**-16 * (2.0**-10 if start else 1.0) + shifted
        np.testing.assert_allclose(dense.value, sparse.value, rtol=0, atol=8 * row * (0.7 if start else 2 * domain.radius))


def test_a_person_with_many_rows_counts_as_one() -> None:
    rows = WeightedRows.by_person(DenseRows(np.tile([[9.0, 0.0]], (50, 1))), np.zeros(50))
    nothing = np.zeros((2, 0))
    task = hidden(Domain(dim=2, radius=1.0), Neighbours.ADD_REMOVE, np.full(50, 1e3), clip=0.25)
    # Never more, and less by what keeps fifty rounded rows inside the ball.
    assert 0.25 * (1 - 50 * 2.0**-26) <= float(task.private(Question(0, (nothing, nothing)), rows).value[0, 0]) <= 0.25


@settings(max_examples=80, deadline=None)
@given(data=st.data(), seed=st.integers(0, 2**32), sparse=st.booleans())
def test_a_start_is_an_exact_sum(data: st.DataObject, seed: int, sparse: bool) -> None:
    """Any order and any partition of the rows, with their scores, gives the same bits."""
    rng = np.random.default_rng(seed)
    domain = data.draw(domains(4))
    count = 40
    rows, scores = rng.standard_normal((count, 4)) * domain.radius, rng.standard_normal(count)
    question = questions(4, rng)[0]

    def started(places: NDArray[np.int64]) -> Array:
        task = hidden(domain, Neighbours.ADD_REMOVE, scores[places])
        return task.private(question, table(list(rows[places, None, :]), 4, sparse=sparse, grouped=False)).value

    places = rng.permutation(count)
    whole = started(np.arange(count))
    assert np.array_equal(whole, started(places))
    if sparse and domain.shifted_center is not None:
        # A center is taken off once, at the end, with twice the digits: parts are rounded once each.
        np.testing.assert_allclose(started(places[:13]) + started(places[13:]), whole, rtol=0, atol=1e-14 * domain.radius * count)
        return
    assert np.array_equal(started(places[:13]) + started(places[13:]), whole)
    # In whole numbers of rows' units times scores' units.
    assert domain.unit is not None
    unit = domain.unit * 2.0**-10 * hidden(domain, Neighbours.ADD_REMOVE, scores)._score_unit
    assert np.array_equal(whole / unit, np.rint(whole / unit))


@pytest.mark.parametrize("far", [None, 30.0, 99.0])
def test_an_exact_start_of_very_many_rows_is_right(far: float | None) -> None:
    """Sums of whole numbers that no float64 holds, and centers far out, against rational numbers."""
    rng = np.random.default_rng(5)
    count = 30_000
    center = None if far is None else np.full(3, far / math.sqrt(3))
    domain = Domain(dim=3, radius=1.0, center=center)
    rows = sp.csr_array((0.0 if center is None else center) + rng.uniform(0.1, 0.3, (count, 3)))
    task = hidden(domain, Neighbours.ADD_REMOVE, np.full(count, 9.0))
    nothing = np.zeros((3, 0))
    found = task.private(Question(0, (nothing, nothing)), SparseRows(rows)).value[:, 0]
    unit = 2.0**-16 * 2.0**-10
    part = domain.to_grid_sparse(Block(rows), unit=unit)
    score = Fraction(math.floor(0.7 / task._score_unit)) * Fraction(task._score_unit)
    for column in range(3):
        stored = sum(int(entry) for entry in part.rows[:, [column]].toarray().ravel()) * Fraction(unit)
        taken = sum(map(int, part.shift)) * Fraction(SHIFT)
        exact = (stored - (0 if center is None else taken * Fraction(float(center[column])))) * score
        assert abs(Fraction(float(found[column])) - exact) <= abs(exact) * Fraction(2.0**-52)
