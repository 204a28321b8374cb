"""A `Symmetric` keeps the stated sensitivities, whatever persons of bounded trace are in it; and no more than those."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eigenveil.core.domain import Domain
from eigenveil.core.mechanism import Bounded
from eigenveil.core.noise import CAPACITY, step_of
from eigenveil.core.rows import Rows
from eigenveil.core.unit import Neighbours
from eigenveil.data.rows import DenseRows, Symmetric, WeightedRows
from eigenveil.linalg import Array
from eigenveil.methods.fedpower import LocalPower, constant_steps
from eigenveil.privacy.sums import bounded_count, bounded_gram, bounded_gram_times, bounded_sum, bounded_trace
from eigenveil.tasks.slot_sums import SlotSums
from eigenveil.tasks.totals import Totals
from laws.strategies import PERSONAL, all_tasks

TOLERANCE = 1 + 1e-9


@dataclass(frozen=True)
class Case:
    """Two neighbouring matrices and the bound that is vouched for."""

    one: Symmetric
    other: Symmetric
    domain: Domain
    neighbours: Neighbours


def person(dim: int, rank: int, trace: float, rng: np.random.Generator) -> Array:
    """A positive semi-definite matrix, (dim, dim), of at most this rank and of this trace."""
    root = rng.standard_normal((dim, rank)) * 10.0 ** rng.uniform(-4, 0, rank)
    found: Array = root @ root.T
    found *= trace / np.trace(found)
    return found


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A matrix of any signature, and persons of every rank, on the bound or below it, in scaled units or not."""
    dim = draw(st.integers(2, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    neighbours = draw(st.sampled_from(PERSONAL))
    radius = draw(st.sampled_from([0.5, 1.0, 37.0]))
    scale = rng.uniform(0.2, 5.0, dim) if draw(st.booleans()) else None
    base = rng.standard_normal((dim, dim)) * radius**2 * draw(st.sampled_from([0.0, 1.0, 1e4]))
    sizes = st.sampled_from([0.0, 0.3, 1.0])
    one = person(dim, draw(st.integers(1, dim)), draw(sizes) * radius**2, rng)
    other = person(dim, draw(st.integers(1, dim)), draw(sizes) * radius**2, rng)
    if neighbours is not Neighbours.REPLACE_ONE:
        other = np.zeros((dim, dim))
    elif draw(st.booleans()):
        # The worst replacement: two single directions at right angles.
        one, other = (np.outer(axis, axis) * radius**2 for axis in np.linalg.qr(rng.standard_normal((dim, 2)))[0].T)
    units = np.ones((dim, dim)) if scale is None else np.outer(scale, scale)
    left, right = ((base + base.T + extra) * units for extra in (one, other))
    fewer = int(neighbours is Neighbours.ADD_REMOVE)
    return Case(
        Symmetric(left, people=9), Symmetric(right, people=9 - fewer), Domain(dim=dim, radius=radius, scale=scale), neighbours
    )


def releases(rows: Rows, case: Case, basis: Array) -> list[Bounded]:
    """All that is released of a matrix."""
    place: dict[str, Any] = {"domain": case.domain, "neighbours": case.neighbours}
    return [
        bounded_count(rows, neighbours=case.neighbours),
        bounded_trace(rows, **place),
        bounded_gram(rows, **place),
        bounded_gram_times(rows, basis=basis, **place),
    ]


def gap(one: Bounded, other: Bounded) -> float:
    """How far the value moved."""
    assert one.sensitivity == other.sensitivity
    return float(np.linalg.norm(one.value - other.value))


@settings(max_examples=300)
@given(case=cases(), seed=st.integers(0, 2**32))
def test_persons_of_bounded_trace_keep_every_sensitivity(case: Case, seed: int) -> None:
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.standard_normal((case.domain.dim, int(rng.integers(1, case.domain.dim + 1)))))[0]
    for one, other in zip(releases(case.one, case, basis), releases(case.other, case, basis), strict=True):
        assert gap(one, other) <= one.sensitivity * TOLERANCE


@settings(max_examples=150)
@given(case=cases(), seed=st.integers(0, 2**32))
def test_every_task_keeps_its_sensitivity(case: Case, seed: int) -> None:
    rng = np.random.default_rng(seed)
    tasks = all_tasks(case.domain, case.neighbours, rng)
    for task, question in tasks:
        if isinstance(task, SlotSums):
            with pytest.raises(ValueError, match="has no rows to read"):
                task.private(question, case.one)
            continue
        if isinstance(task, Totals) and task.sum_weight > 0:
            with pytest.raises(ValueError, match="their mean cannot be computed"):
                task.private(question, case.one)
            continue
        one, other = (task.private(question, rows) for rows in (case.one, case.other))
        assert one.sensitivity == task.sensitivity(question)
        assert one.symmetric == task.symmetric
        assert gap(one, other) <= one.sensitivity * TOLERANCE
    begin = np.linalg.qr(rng.standard_normal((case.domain.dim, 2)))[0]
    local = LocalPower(
        domain=case.domain, neighbours=case.neighbours, begin=begin, steps=constant_steps(1, 1), shares=(1.0,), rank=1
    )
    parts = [local._product(rows, begin) for rows in (case.one, case.other)]
    assert gap(*parts) <= local.sensitivity(local.ask(local.start())) * TOLERANCE


@pytest.mark.parametrize("neighbours", PERSONAL)
@pytest.mark.parametrize("trace", [1.0, 1.01])
def test_bounds_are_reached_and_a_larger_trace_breaks_them(neighbours: Neighbours, trace: float) -> None:
    """The attack finds it where a holder vouched for too much: nothing here clips a matrix to size."""
    first, second = (np.outer(axis, axis) * 4.0 * trace for axis in np.eye(3)[:2])
    replaced = neighbours is Neighbours.REPLACE_ONE
    other = Symmetric(second if replaced else np.zeros((3, 3)), people=1)
    case = Case(Symmetric(first, people=1), other, Domain(dim=3, radius=2.0), neighbours)
    gram, product = (
        gap(one, two) / one.sensitivity
        for one, two in zip(releases(case.one, case, np.eye(3))[2:], releases(case.other, case, np.eye(3))[2:], strict=True)
    )
    assert gram == pytest.approx(trace, rel=1e-12)
    # What is stated of products has room for a basis and a matrix that are rounded onto their lattices: 2^-18 of it. It
    # is more where one person may take the place of another: scores of many rows may be rounded then, which a matrix has not.
    room = Domain(dim=3, radius=2.0).gram_times_sensitivity(neighbours, basis=np.eye(3), basis_norm=1.0)
    assert product == pytest.approx(trace * Domain(dim=3, radius=2.0).gram_sensitivity(neighbours) / room, rel=2.0**-18)
    assert product <= trace


@settings(max_examples=100)
@given(seed=st.integers(0, 2**32), dim=st.integers(2, 6), grouped=st.booleans(), scaled=st.booleans())
def test_the_matrix_of_some_rows_gives_what_the_rows_give(seed: int, dim: int, grouped: bool, scaled: bool) -> None:
    """Value and sensitivity, where rows are within their bound; persons with several rows are averages."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((20, dim))
    ids = rng.integers(7, size=20) if grouped else np.arange(20)
    rows = WeightedRows.by_person(DenseRows(values), ids)
    made = Symmetric(values.T @ (values * rows.weights[:, None]), people=len(set(ids.tolist())))
    domain = Domain(dim=dim, radius=99.0, scale=rng.uniform(0.2, 5.0, dim) if scaled else None)
    basis = np.linalg.qr(rng.standard_normal((dim, 2)))[0]
    lengths = np.linalg.norm(values / (1.0 if domain.scale is None else domain.scale), axis=1)
    # On the grid of 2^-10 of this radius a row is off by up to sqrt(d) / 2 units, and its products by twice its length as much.
    unit = 2.0**-10
    off = float((lengths * math.sqrt(dim) * unit + dim * unit**2).sum())
    for place, close in ((replace(domain, claimed=False), 1e-9), (domain, off)):
        case = Case(made, made, place, Neighbours.ADD_REMOVE)
        for one, other in zip(releases(rows, case, basis), releases(made, case, basis), strict=True):
            assert one.sensitivity == other.sensitivity
            assert one.symmetric == other.symmetric
            np.testing.assert_allclose(one.value, other.value, rtol=1e-10, atol=close)


def test_domains_that_need_rows_are_refused() -> None:
    rows, near = Symmetric(np.eye(2), people=2), Neighbours.ADD_REMOVE
    moved, boxed = (Domain(dim=2, radius=1.0, center=np.zeros(2)), Domain(dim=2, radius=1.0, low=-np.ones(2), high=np.ones(2)))
    for domain in (moved, boxed):
        for release in (bounded_trace, bounded_gram):
            with pytest.raises(ValueError, match="cannot be centered or clipped to column bounds"):
                release(rows, domain=domain, neighbours=near)
        with pytest.raises(ValueError, match="cannot be centered or clipped to column bounds"):
            bounded_gram_times(rows, basis=np.eye(2), domain=domain, neighbours=near)
    with pytest.raises(ValueError, match="their mean cannot be computed"):
        bounded_sum(rows, domain=Domain(dim=2, radius=1.0), neighbours=near)
    with pytest.raises(ValueError, match="must be finite, with no entry beyond"):
        bounded_gram_times(rows, basis=np.eye(2), domain=Domain(dim=2, radius=1.0, scale=np.full(2, 1e-100)), neighbours=near)
    with pytest.raises(ValueError, match="must have 3 columns, got 2"):
        bounded_gram(rows, domain=Domain(dim=3, radius=1.0), neighbours=near)
    assert not np.shares_memory(bounded_gram(rows, domain=Domain(dim=2, radius=1.0), neighbours=near).value, rows.matrix)


@pytest.mark.parametrize("dim", [3, 600])
def test_products_hold_as_many_people_as_their_release_does(dim: int) -> None:
    # Half of what fits into one entry of a release of the matrix itself, which holds fewer than one of the product.
    room = CAPACITY * step_of(1.0, dim * dim) / 2
    matrix = np.zeros((dim, dim))
    matrix[0, 0], matrix[1, 1] = room, -room
    found = bounded_gram_times(
        Symmetric(matrix, people=9),
        basis=np.eye(dim)[:, :2],
        domain=Domain(dim=dim, radius=1.0),
        neighbours=Neighbours.ADD_REMOVE,
    )
    np.testing.assert_array_equal(found.value[:2], [[room, 0.0], [0.0, -room]])


@pytest.mark.parametrize("dim", [2, 50])
def test_rounding_a_matrix_before_its_product_stays_within_the_sensitivity(dim: int) -> None:
    rng = np.random.default_rng(dim)
    step = step_of(1.0, dim * dim)
    # Half steps on either side, of any lattice that is a little finer, and a person as heavy as may be beside them.
    base = (rng.integers(-8, 8, (dim, dim)) + 0.5) * step * 2.0 ** -rng.integers(0, 20, (dim, dim))
    base, one = (base + base.T) / 2, rng.standard_normal(dim)
    person = np.outer(one, one) / float(one @ one)
    near, domain, basis = Neighbours.ADD_REMOVE, Domain(dim=dim, radius=1.0), (one / np.linalg.norm(one))[:, None]
    with_, without = (
        bounded_gram_times(Symmetric(matrix, people=9), basis=basis, domain=domain, neighbours=near)
        for matrix in (base + person, base)
    )
    assert float(np.linalg.norm(with_.value - without.value)) <= with_.sensitivity
