"""Every release keeps its stated sensitivity, on neighbours chosen to break it; and wrong code is caught doing so."""

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from eigenveil.core.domain import Domain, MissingPolicy
from eigenveil.core.mechanism import Bounded
from eigenveil.core.rows import Block, Rows
from eigenveil.core.unit import Neighbours, gram_sensitivity
from eigenveil.data.rows import DenseRows, SparseRows, WeightedRows
from eigenveil.linalg import Array
from eigenveil.privacy.sums import (
    bounded_count,
    bounded_gram,
    bounded_gram_times,
    bounded_kept,
    bounded_observed,
    bounded_scores,
    bounded_sum,
    bounded_trace,
)
from eigenveil.tasks.slot_sums import SlotSums
from eigenveil.tasks.totals import Totals
from laws.strategies import PERSONAL, Case, all_tasks, cases, search_task, table
from laws.sums.exact_rows import exact_gram, exact_sum, exact_trace, gone, moved, rounded, squared, table_of
from laws.sums.exact_rows import given as given_entries

TOLERANCE = 1 + 1e-9
Release = Callable[[Rows, Domain, Neighbours], Bounded]

RELEASES: dict[str, Release] = {
    "sum": lambda rows, domain, near: bounded_sum(rows, domain=domain, neighbours=near),
    "count": lambda rows, domain, near: bounded_count(rows, neighbours=near),
    "trace": lambda rows, domain, near: bounded_trace(rows, domain=domain, neighbours=near),
    "gram": lambda rows, domain, near: bounded_gram(rows, domain=domain, neighbours=near),
    "gram times basis": lambda rows, domain, near: bounded_gram_times(
        rows, basis=np.eye(domain.dim)[:, :2], domain=domain, neighbours=near
    ),
}
# These are of rows with gaps only.
OF_GAPS: dict[str, Callable[[Rows, MissingPolicy], Bounded]] = {
    "kept": lambda rows, gaps: bounded_kept(rows, gaps=gaps),
    "observed": lambda rows, gaps: bounded_observed(rows, gaps=gaps),
}


def gap(one: Bounded, other: Bounded) -> float:
    """How far the released value moved."""
    assert np.isfinite(one.value).all()
    assert np.isfinite(other.value).all()
    return float(np.linalg.norm(one.value - other.value))


def check(release: Release, case: Case) -> None:
    """The law: neighbours move a release by at most its stated sensitivity."""
    one, other = (release(rows, case.domain, case.neighbours) for rows in (case.one, case.other))
    assert one.sensitivity == other.sensitivity
    assert gap(one, other) <= one.sensitivity * TOLERANCE


@pytest.mark.parametrize("name", RELEASES)
@settings(max_examples=150)
@given(case=cases())
def test_every_bounded_sum_keeps_its_sensitivity(name: str, case: Case) -> None:
    if name == "count" and case.neighbours.count_is_public:
        # Sensitivity zero is the claim that the number is the same on both sides, true of replace-one alone.
        # Zero-out keeps the blanked person in the count, which is public and not taken from these rows.
        return
    check(RELEASES[name], case)


@settings(max_examples=300)
@given(case=cases())
def test_counts_of_entries_that_are_there_keep_their_sensitivity(case: Case) -> None:
    gaps = case.domain.gaps
    if gaps is None or gaps.values is not None:
        return
    # Under zero-out too: a person who is blanked has no entries.
    release = OF_GAPS["kept" if gaps.drops else "observed"]
    check(lambda rows, _domain, _near: release(rows, gaps), case)


@settings(max_examples=100)
@given(case=cases())
def test_counts_of_entries_are_those_of_one_row_after_the_other(case: Case) -> None:
    gaps = case.domain.gaps
    if gaps is None or gaps.values is not None:
        return
    values, weights = table_of(case.one)
    each = [Fraction(1)] * len(values) if weights is None else [Fraction(float(weight)) for weight in weights]
    units = 2**45 if gaps.drops else 2**34
    each = [Fraction(math.floor(weight * units), units) for weight in each]
    there = [[not lost for lost in gone(row, case.domain)] for row in values]
    firsts = [int(np.flatnonzero(gaps.group == group)[0]) for group in range(gaps.groups)]
    pairs = [(a, b) for at, a in enumerate(firsts) for b in firsts[at:]]
    wanted = [(a, a) for a in firsts] if gaps.rule in ("counts", "drop") else pairs
    exact = [sum((weight for row, weight in zip(there, each, strict=True) if row[a] and row[b]), Fraction(0)) for a, b in wanted]
    if gaps.less_half:
        exact = [one - sum(each, Fraction(0)) / 2 for one in exact]
    found = OF_GAPS["kept" if gaps.drops else "observed"](case.one, gaps).value
    assert np.array_equal(np.atleast_1d(found), rounded(exact))


def test_counts_of_entries_reach_their_sensitivity() -> None:
    there, nobody = DenseRows(np.ones((1, 9))), DenseRows(np.full((1, 9), np.nan))
    for gaps in (MissingPolicy.counted(9), MissingPolicy.grouped(np.arange(9) // 3)):
        one, other = (bounded_observed(rows, gaps=gaps) for rows in (there, nobody))
        assert gap(one, other) == pytest.approx(one.sensitivity, rel=1e-12)
        # Less half of the people, somebody with every entry moves them as far as somebody with none: half as far.
        less = gaps.under(Neighbours.ADD_REMOVE)
        empty = bounded_observed(DenseRows(np.empty((0, 9))), gaps=less)
        for rows in (there, nobody):
            assert gap(bounded_observed(rows, gaps=less), empty) == pytest.approx(one.sensitivity / 2, rel=1e-12)


@pytest.mark.parametrize("near", [Neighbours.ZERO_OUT, Neighbours.REPLACE_ONE])
def test_counts_less_half_of_the_people_are_refused_where_they_would_be_worth_less(near: Neighbours) -> None:
    domain = Domain(dim=9, radius=1.0, gaps=MissingPolicy.counted(9).under(Neighbours.ADD_REMOVE))
    with pytest.raises(ValueError, match="for add/remove"):
        Totals(domain=domain, neighbours=near, observed_weight=1.0)
    with pytest.raises(ValueError, match="plain counts"):
        SlotSums(domain=domain, neighbours=near, slots=2)


@settings(max_examples=200)
@given(
    seed=st.integers(0, 2**32),
    near=st.sampled_from([Neighbours.ZERO_OUT, Neighbours.REPLACE_ONE]),
    sizes=st.tuples(*[st.sampled_from([0.0, 1.0, 1e8, 1e200, 1e308])] * 2),
    sparse=st.booleans(),
)
def test_scores_of_one_person_move_by_no_more_than_they_say(
    seed: int, near: Neighbours, sizes: tuple[float, float], sparse: bool
) -> None:
    rng = np.random.default_rng(seed)
    center = None if rng.random() < 0.5 else rng.standard_normal(4)
    domain, basis = Domain(dim=4, radius=2.0, center=center), np.linalg.qr(rng.standard_normal((4, 2)))[0]
    rows = rng.standard_normal((5, 4))
    one, other = rows.copy(), rows.copy()
    one[2] = np.clip(rng.standard_normal(4), -1, 1) * sizes[0]
    other[2] = np.clip(rng.standard_normal(4), -1, 1) * sizes[1]
    if near is Neighbours.ZERO_OUT:
        # A blanked row is at the center, where it has no scores.
        other[2] = 0.0 if center is None else center
    kinds = [SparseRows(sp.csr_array(held)) if sparse else DenseRows(held) for held in (one, other)]
    here, there = (bounded_scores(held, basis=basis, domain=domain, neighbours=near) for held in kinds)
    assert here.value.shape == (5, 2)
    assert gap(here, there) <= here.sensitivity * TOLERANCE


def test_scores_reach_their_sensitivity_and_are_refused_where_they_would_count_people() -> None:
    domain, basis = Domain(dim=2, radius=3.0), np.eye(2)
    one, other = (DenseRows(np.array([[sign * 9.0, 0.0]])) for sign in (1, -1))
    sides = [bounded_scores(side, basis=basis, domain=domain, neighbours=Neighbours.REPLACE_ONE) for side in (one, other)]
    # On their grid rows stay inside of their ball by up to sqrt(d) of at most 2^-16 of its radius.
    assert (1 - 2.0**-15) * sides[0].sensitivity <= gap(*sides) <= sides[0].sensitivity
    with pytest.raises(ValueError, match="reveals how many there are"):
        bounded_scores(one, basis=basis, domain=domain, neighbours=Neighbours.ADD_REMOVE)


@settings(max_examples=150)
@given(case=cases(), seed=st.integers(0, 2**32))
def test_every_task_keeps_its_sensitivity(case: Case, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for task, question in (*all_tasks(case.domain, case.neighbours, rng), search_task(case.domain, case.neighbours, rng)):
        task.require_question(question)
        one, other = (task.private(question, rows) for rows in (case.one, case.other))
        assert one.sensitivity == other.sensitivity == task.sensitivity(question)
        assert one.symmetric == task.symmetric
        assert gap(one, other) <= one.sensitivity * TOLERANCE


@pytest.mark.parametrize("neighbours", PERSONAL)
@pytest.mark.parametrize("name", ["sum", "gram", "trace"])
def test_sensitivities_are_tight(name: str, neighbours: Neighbours) -> None:
    """One row on the sphere, or two orthogonal or opposite ones, reach the bound: it cannot be smaller.

    But for the grid: a row keeps sqrt(d) / 2 units away from the sphere and is rounded by less than one. There are 2^16 units to
    this radius for products and 2^33 for a sum; squares of lengths are rounded down to one of 2^32.
    """
    domain = Domain(dim=3, radius=2.0)
    near = np.array([[2.0, 0.0, 0.0]])
    far = {"sum": -near, "gram": np.array([[0.0, 2.0, 0.0]]), "trace": np.zeros((1, 3))}[name]
    other = DenseRows(far if neighbours is Neighbours.REPLACE_ONE else np.zeros((0, 3)))
    one, two = (RELEASES[name](rows, domain, neighbours) for rows in (DenseRows(near), other))
    off = {"sum": 2 * 2.0**-33, "gram": 4 * 2.0**-16, "trace": 2.0**-32}[name]
    assert (1 - off) * one.sensitivity <= gap(one, two) <= one.sensitivity


@settings(max_examples=100)
@given(case=cases())
def test_dense_and_sparse_rows_give_the_same_sums(case: Case) -> None:
    """Where nothing is claimed, to rounding; on the grid, to what brings a row onto it."""
    if case.domain.gaps is not None and case.domain.gaps.rule == "groups":
        # Sparse rows refuse gaps by groups of columns.
        return
    stacked, weights = table_of(case.one)
    sides: list[Rows] = [DenseRows(stacked), SparseRows(sp.csr_array(stacked))]
    if weights is not None:
        sides = [WeightedRows(side, weights) for side in sides]
    domain = case.domain
    center = domain.shifted_center
    scale = max(1.0, domain.radius**2, 0.0 if center is None else float(center @ center))
    plain = replace(domain, claimed=False)
    on_grid = grid_tolerances(stacked, domain)
    for name, release in RELEASES.items():
        dense, sparse = (release(side, plain, case.neighbours).value for side in sides)
        np.testing.assert_allclose(dense, sparse, atol=1e-9 * scale * max(1, len(stacked)))
        dense, sparse = (release(side, domain, case.neighbours).value for side in sides)
        np.testing.assert_allclose(dense, sparse, rtol=0, atol=on_grid[name])


def grid_tolerances(rows: Array, domain: Domain) -> dict[str, float]:
    """How far sums of dense and of sparse rows on the grid may be apart, and from those of rows off it.

    A row is off by up to 2 sqrt(d) units for each of the two: clipped to less, and rounded. Around a center a sparse row is
    multiplied by a multiple of 2^-24, so that it is also off by 2^-24 times the length that it had before the ball.
    """
    assert domain.unit is not None
    lengths = [math.sqrt(squared(moved(row, domain))) for row in rows]
    shifted = 0.0 if domain.center is None else 2.0**-24
    radius, unit, dim = domain.radius, domain.unit, domain.dim
    off = [min(2 * radius, 2 * math.sqrt(dim) * unit + shifted * length) for length in lengths]
    products = sum(2 * radius * each + each**2 for each in off)
    # Scores are whole numbers of 2^-10 units; squares are rounded down to whole units, and those of sparse rows up before that.
    scores = len(rows) * radius * math.sqrt(dim) * unit * 2.0**-10
    center = domain.shifted_center
    hidden = 0.0 if center is None else 1e-14 * dim * float(center @ center)
    return {
        "sum": sum(off),
        "count": 0.0,
        "trace": len(rows) * (unit**2 + hidden + 1e-12 * radius**2),
        "gram": products,
        "gram times basis": products + scores,
    }


@settings(max_examples=150)
@given(case=cases())
def test_sums_are_those_of_the_rows_on_their_grid_to_the_last_bit(case: Case) -> None:
    """Against whole numbers of Python's, added up one after the other: the float is the exact sum, rounded once."""
    for rows in (case.one, case.other):
        found = {name: release(rows, case.domain, case.neighbours).value for name, release in RELEASES.items()}
        assert np.array_equal(found["sum"], rounded(exact_sum(rows, case.domain)))
        assert np.array_equal(found["gram"], rounded(exact_gram(rows, case.domain)))
        if not rows.sparse:
            assert float(found["trace"]) == float(exact_trace(rows, case.domain))


def naive_gram(rows: Array, domain: Domain) -> Array:
    """The slow, obvious version: clip each row, then add outer products."""
    total = np.zeros((domain.dim, domain.dim))
    for row in rows:
        lost = np.array(gone(row, domain))
        row = np.array(given_entries(row, domain))
        row = row if domain.low is None else np.clip(row, domain.low, domain.high)
        row = row if domain.center is None else row - domain.center
        row = row if domain.scale is None else row / domain.scale
        row = np.where(lost, 0.0, row)
        norm = np.linalg.norm(row)
        row = row * min(1.0, domain.radius / norm) if norm > 0 else row
        total += np.outer(row, row)
    return total


@settings(max_examples=60)
@given(case=cases())
def test_gram_matches_the_obvious_version(case: Case) -> None:
    inner: Any = getattr(case.one, "inner", case.one)
    stacked = inner.values.toarray() if inner.sparse else inner.values
    gaps = case.domain.gaps
    filled = 0.0 if gaps is None or gaps.values is None else float(np.abs(gaps.values).max())
    if max(filled, float(np.nanmax(np.abs(stacked), initial=0.0))) > 1e100:
        return
    plain = replace(case.domain, claimed=False)
    found = bounded_gram(inner, domain=plain, neighbours=case.neighbours).value
    slow = naive_gram(stacked, case.domain)
    np.testing.assert_allclose(found, slow, atol=1e-8 * max(1.0, case.domain.radius**2))
    found = bounded_gram(inner, domain=case.domain, neighbours=case.neighbours).value
    np.testing.assert_allclose(found, slow, rtol=0, atol=grid_tolerances(stacked, case.domain)["gram"])


# What follows shows that the laws above can fail: each mutant is a mistake somebody could make.


def huge_row_case(size: float = 1e8) -> Case:
    """A thousand ordinary rows, and one row of 1e8 that is there or not."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((1000, 5)) * 0.3
    return Case(
        table([rows, np.full((1, 5), size)], 5, sparse=False, grouped=False),
        table([rows], 5, sparse=False, grouped=False),
        Domain(dim=5, radius=1.0),
        Neighbours.ADD_REMOVE,
    )


def test_the_law_convicts_a_wrong_sensitivity() -> None:
    def too_small(rows: Rows, domain: Domain, near: Neighbours) -> Bounded:
        right = bounded_gram(rows, domain=domain, neighbours=near)
        return Bounded(right.value, 0.9 * right.sensitivity)

    check(RELEASES["gram"], huge_row_case())
    with pytest.raises(AssertionError):
        check(too_small, huge_row_case())


def test_the_law_convicts_clipping_after_the_product() -> None:
    def excess_removed_afterwards(rows: Rows, domain: Domain, near: Neighbours) -> Bounded:
        total = np.zeros((domain.dim, domain.dim))
        for block in rows.blocks(10_000):
            raw = np.asarray(block.values)
            norms = np.linalg.norm(raw, axis=1)
            keep = np.minimum(1.0, domain.radius / norms) ** 2
            total = raw.T @ raw - (raw * (1 - keep)[:, None]).T @ raw
        return Bounded(total, gram_sensitivity(domain.radius, near))

    with pytest.raises(AssertionError):
        check(excess_removed_afterwards, huge_row_case())


def test_the_law_convicts_no_clipping(monkeypatch: pytest.MonkeyPatch) -> None:
    # A row that whole numbers of 64 bits still hold once it is squared.
    case = huge_row_case(9.0)
    check(RELEASES["gram"], case)
    monkeypatch.setattr(Domain, "to_grid", lambda self, squares, block, unit, *more: np.full(len(squares), 1 / unit))
    with pytest.raises(AssertionError):
        check(RELEASES["gram"], case)


def test_the_law_convicts_a_person_who_is_not_averaged(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.eye(3)[[0, 0, 0, 0]]
    case = Case(
        table([rows], 3, sparse=False, grouped=True),
        table([], 3, sparse=False, grouped=True),
        Domain(dim=3, radius=1.0),
        Neighbours.ADD_REMOVE,
    )
    check(RELEASES["gram"], case)
    whole = Domain.whole
    monkeypatch.setattr(Domain, "whole", lambda self, block, **more: whole(self, Block(block.values), **more))
    with pytest.raises(AssertionError):
        check(RELEASES["gram"], case)


def test_a_basis_that_would_stretch_is_refused() -> None:
    rows, domain = DenseRows(np.eye(3)), Domain(dim=3, radius=1.0)
    for basis in (np.eye(3) * 1.001, np.ones((3, 3)), np.full((3, 1), np.nan), np.zeros((2, 1)), np.zeros((3, 0))):
        with pytest.raises(ValueError, match="basis must"):
            bounded_gram_times(rows, basis=basis, domain=domain, neighbours=Neighbours.ADD_REMOVE)
