"""What one user, or one interaction of one, can do to sums of histories; and wrong code is caught doing more."""

import math
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from eigenveil.core.mechanism import Bounded
from eigenveil.core.rows import Block, Rows
from eigenveil.core.unit import Neighbours
from eigenveil.data.rows import DenseRows, SparseRows
from eigenveil.linalg import Array
from eigenveil.privacy.floating import dense, sparse
from eigenveil.privacy.histories import Histories
from eigenveil.privacy.sums import bounded_gram, bounded_gram_times, bounded_sum, bounded_trace
from laws.parties.test_masked_laws import lattice, length, sent
from laws.strategies import all_tasks
from laws.sums.exact_rows import exact_history_sums, rounded
from laws.sums.histories_cases import LEASTS, HistoryCase, contractions, history_cases, obvious_rows

TOLERANCE = 1 + 1e-9
Release = Callable[[Rows, Histories, Neighbours], Bounded]

RELEASES: dict[str, Release] = {
    "sum": lambda rows, region, near: bounded_sum(rows, domain=region, neighbours=near),
    "trace": lambda rows, region, near: bounded_trace(rows, domain=region, neighbours=near),
    "gram": lambda rows, region, near: bounded_gram(rows, domain=region, neighbours=near),
}


def gap(one: Bounded, other: Bounded) -> float:
    """How far the released value moved."""
    assert np.isfinite(one.value).all() and np.isfinite(other.value).all()
    return float(np.linalg.norm(one.value - other.value))


def check(release: Release, case: HistoryCase) -> None:
    """The law: neighbours move a release by at most its stated sensitivity."""
    one, other = (release(rows, case.region, case.neighbours) for rows in (case.one, case.other))
    assert one.sensitivity == other.sensitivity
    assert gap(one, other) <= one.sensitivity * TOLERANCE


def product_with(basis: Array) -> Release:
    return lambda rows, region, near: bounded_gram_times(rows, basis=basis, domain=region, neighbours=near)


@pytest.mark.parametrize("name", RELEASES)
@settings(max_examples=200)
@given(case=history_cases())
def test_every_sum_of_histories_keeps_its_sensitivity(name: str, case: HistoryCase) -> None:
    check(RELEASES[name], case)


@settings(max_examples=250)
@given(case=history_cases(), seed=st.integers(0, 2**32))
def test_products_with_every_basis_keep_their_sensitivity(case: HistoryCase, seed: int) -> None:
    for basis in contractions(case.region.dim, np.random.default_rng(seed)):
        check(product_with(basis), case)


@settings(max_examples=100)
@given(case=history_cases(), seed=st.integers(0, 2**32))
def test_every_task_on_histories_keeps_its_sensitivity(case: HistoryCase, seed: int) -> None:
    for task, question in all_tasks(cast(Any, case.region), case.neighbours, np.random.default_rng(seed)):
        one, other = (task.private(question, rows) for rows in (case.one, case.other))
        assert one.sensitivity == other.sensitivity == task.sensitivity(question)
        assert one.symmetric == task.symmetric
        assert gap(one, other) <= one.sensitivity * TOLERANCE


@settings(max_examples=50)
@given(case=history_cases(), seed=st.integers(0, 2**32))
def test_every_masked_release_of_histories_keeps_the_mu_it_was_charged(case: HistoryCase, seed: int) -> None:
    terms = lattice()
    for task, question in all_tasks(cast(Any, case.region), case.neighbours, np.random.default_rng(seed)):
        pair = (sent(task, question, rows, terms, 1, seed % 1000) for rows in (case.one, case.other))
        (one, allowed), (other, _) = pair
        assert length(task, one - other) <= allowed


@settings(max_examples=150)
@given(case=history_cases())
def test_rows_of_every_storage_are_the_obvious_ones(case: HistoryCase) -> None:
    region = case.region
    for table, rows in zip(case.tables, (case.one, case.other), strict=True):
        wanted = obvious_rows(table, region)
        # With as many rows as there are, because a block of none is not one.
        blocks = list(rows.blocks(max(1, len(table))))
        found = [sparse(region, b).rows.toarray() if b.sparse else dense(region, b) for b in blocks]
        np.testing.assert_allclose(np.vstack([wanted[:0], *found]), wanted, rtol=1e-13)
        assert (np.linalg.norm(wanted, axis=1) <= region.radius * TOLERANCE).all()
        near = Neighbours.ZERO_OUT
        sums: list[tuple[Array, Any]] = [
            (bounded_sum(rows, domain=region, neighbours=near).value, wanted.sum(axis=0)),
            (bounded_gram(rows, domain=region, neighbours=near).value, wanted.T @ wanted),
            (bounded_trace(rows, domain=region, neighbours=near).value, np.square(wanted).sum()),
        ]
        # Rounded down: rows for a sum to multiples of 2^-33, for products to 2^-36 or, with weights of items, to 2^-16.
        grids = [2.0**-33, 2.0**-36, 2.0**-32] if region.weights is None else [2.0**-33, 2 * 2.0**-16, 2.0**-32]
        for (fast, slow), grid in zip(sums, grids, strict=True):
            np.testing.assert_allclose(fast, slow, rtol=0, atol=len(table) * grid + 1e-12)
            assert (fast <= np.asarray(slow) + 1e-12).all()
        if region.weights is None:
            for (fast, _), exact in zip(sums, exact_history_sums(table, region), strict=True):
                assert np.array_equal(fast, rounded(exact))


# The bounds are reached, so none of them could be smaller.


def one_item_less(items: int, least: int, dim: int) -> HistoryCase:
    """A user with `items` items, the first ones, and the same without the very first."""
    table = np.zeros((1, dim))
    table[0, :items] = 1.0
    fewer = table.copy()
    fewer[0, 0] = 0.0
    region = Histories(dim=dim, min_degree=least)
    return HistoryCase((table, fewer), DenseRows(table), DenseRows(fewer), region, Neighbours.INTERACTION)


@pytest.mark.parametrize("least", LEASTS)
@pytest.mark.parametrize("name", RELEASES)
def test_the_bounds_of_one_interaction_are_reached_by_a_user_with_as_many_items(name: str, least: int) -> None:
    case = one_item_less(least, least, 25)
    one, other = (RELEASES[name](rows, case.region, case.neighbours) for rows in (case.one, case.other))
    closed = {"sum": 1 / math.sqrt(least), "trace": 1 / least, "gram": math.sqrt(2 * least - 1) / least}[name]
    # What is stated has room for entries that are rounded down on either side: `histories` says how much.
    more = {"sum": math.sqrt(25) * 2.0**-32, "trace": 2.0**-32, "gram": 25 * 2.0**-35}[name]
    assert one.sensitivity == pytest.approx(closed + more, rel=1e-14)
    assert closed - more <= gap(one, other) <= one.sensitivity


@pytest.mark.parametrize("least", LEASTS)
@pytest.mark.parametrize("localised", [0.0, 0.3, 0.9, 1.0])
def test_the_bound_of_products_is_reached(least: int, localised: float) -> None:
    """By a basis that holds the user's direction and, the more `localised` it is, also the item that is lost."""
    dim = 60
    case = one_item_less(least, least, dim)
    ones = case.tables[0][0] / math.sqrt(least)
    lost = np.eye(dim)[0] - ones[0] * ones
    columns = [ones]
    if least > 1 and localised > 0:
        # Off the user's direction; what is not on the lost item is spread over items that the user does not have.
        lost /= np.linalg.norm(lost)
        away = (case.tables[0][0] == 0) / math.sqrt(dim - least)
        columns.append(math.sqrt(localised) * lost + math.sqrt(1 - localised) * away)
    basis = np.array(columns).T
    one, other = (
        bounded_gram_times(rows, basis=basis, domain=case.region, neighbours=case.neighbours) for rows in (case.one, case.other)
    )
    # The norm is stated as 1 + 1e-8.
    assert gap(one, other) == pytest.approx(one.sensitivity, rel=3e-8)


@pytest.mark.parametrize("rho", [0.05, 0.2, 1.0])
def test_for_single_items_one_interaction_moves_products_by_the_row_of_that_item(rho: float) -> None:
    """PPM Lemma 6.1 has sqrt(2) times as much."""
    basis = np.zeros((500, 1))
    basis[: round(1 / rho**2)] = rho
    case = one_item_less(1, 1, 500)
    one, other = (
        bounded_gram_times(rows, basis=basis, domain=case.region, neighbours=case.neighbours) for rows in (case.one, case.other)
    )
    # The basis and the scores are on grids of 2^-35 and 2^-32, and what is stated has room for either side.
    assert gap(one, other) == pytest.approx(rho, abs=2.0**-32 + 2.0**-36)
    assert gap(one, other) <= one.sensitivity
    assert one.sensitivity == pytest.approx(rho + 2.0**-36 + 2 * math.sqrt(500) * 2.0**-32, rel=1e-12)


@pytest.mark.parametrize("name", RELEASES)
def test_the_bounds_of_a_whole_user_are_reached(name: str) -> None:
    full, none = np.ones((1, 4)), np.zeros((1, 4))
    for near in (Neighbours.ZERO_OUT, Neighbours.ADD_REMOVE):
        other = DenseRows(none if near is Neighbours.ZERO_OUT else none[:0])
        sides = [RELEASES[name](rows, Histories(dim=4, min_degree=3), near) for rows in (DenseRows(full), other)]
        # Rows are rounded down to multiples of 2^-33 for a sum, of 2^-36 for products, and squares to 2^-32.
        assert 1 - 2.0**-31 <= gap(*sides) <= sides[0].sensitivity == 1.0


# What follows shows that the laws above can fail: each mutant is a mistake somebody could make.


def test_a_divisor_below_the_least_is_convicted(monkeypatch: pytest.MonkeyPatch) -> None:
    case = one_item_less(1, 5, 8)
    check(RELEASES["gram"], case)
    monkeypatch.setattr(Histories, "_factors", lambda self, degrees, *more: 1 / np.sqrt(np.maximum(degrees, 1)))
    monkeypatch.setattr(Histories, "_shares", lambda self, degrees: 1 / np.maximum(degrees, 1))
    for release in RELEASES.values():
        with pytest.raises(AssertionError):
            check(release, case)


@pytest.mark.parametrize("name", RELEASES)
@pytest.mark.parametrize("least", LEASTS)
def test_a_tenth_less_is_convicted(name: str, least: int) -> None:
    def too_small(rows: Rows, region: Histories, near: Neighbours) -> Bounded:
        right = RELEASES[name](rows, region, near)
        return Bounded(right.value, 0.9 * right.sensitivity)

    with pytest.raises(AssertionError):
        check(too_small, one_item_less(least, least, 25))


def test_values_in_place_of_ones_are_convicted(monkeypatch: pytest.MonkeyPatch) -> None:
    def items(self: Histories, block: Block) -> tuple[Array, Array]:
        return block.values.astype(np.float64), (block.values != 0).sum(axis=1).astype(np.float64)

    table = np.array([[1.0, 4.0, 0.0]])
    fewer = np.array([[1.0, 0.0, 0.0]])
    for near, other in ((Neighbours.INTERACTION, fewer), (Neighbours.ZERO_OUT, 0 * table)):
        case = HistoryCase((table, other), DenseRows(table), DenseRows(other), Histories(dim=3, min_degree=2), near)
        check(RELEASES["gram"], case)
        with monkeypatch.context() as patch, pytest.raises(AssertionError):
            patch.setattr(Histories, "_items", items)
            check(RELEASES["gram"], case)


def test_counting_stored_zeros_is_convicted(monkeypatch: pytest.MonkeyPatch) -> None:
    def items(self: Histories, block: Block) -> tuple[Any, Array]:
        held = block.values if self.columns is None else block.values[:, self.columns]
        ones = sp.csr_array((np.ones(len(held.data)), held.indices, held.indptr), shape=held.shape)
        return ones, np.diff(held.indptr).astype(np.float64)

    # Blanked by writing zeros over the entries, as a careful holder of the data may do it.
    full = sp.csr_array(np.ones((1, 4)))
    blank = full.copy()
    blank.data[:] = 0.0
    rows = SparseRows(blank)
    right = bounded_gram(rows, domain=Histories(dim=4), neighbours=Neighbours.ZERO_OUT)
    assert not right.value.any()
    honest = Histories._items
    monkeypatch.setattr(Histories, "_items", lambda self, block: (items if block.sparse else honest)(self, block))
    wrong = bounded_gram(rows, domain=Histories(dim=4), neighbours=Neighbours.ZERO_OUT)
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(wrong.value, right.value)
    # Several examples fail in several ways, which Hypothesis raises as a group.
    with pytest.raises((AssertionError, ExceptionGroup)):
        test_rows_of_every_storage_are_the_obvious_ones()


@settings(max_examples=150)
@given(case=history_cases(), seed=st.integers(0, 2**32))
def test_degrees_over_all_items_where_some_are_used_would_be_no_more_sensitive(case: HistoryCase, seed: int) -> None:
    """Rows of all items, of which some columns are left out, move as part of what moves: no mistake, only other rows."""
    region = case.region
    columns = np.arange(region.dim) if region.columns is None else region.columns
    if region.weights is not None:
        return
    whole = Histories(dim=case.tables[0].shape[1], min_degree=region.min_degree)
    grams, sums = [], []
    for table in case.tables:
        rows = obvious_rows(table, whole)[:, columns]
        grams.append(rows.T @ rows)
        sums.append(rows.sum(axis=0))
    assert np.linalg.norm(grams[0] - grams[1]) <= region.gram_sensitivity(case.neighbours) * TOLERANCE
    assert np.linalg.norm(sums[0] - sums[1]) <= region.sum_sensitivity(case.neighbours) * TOLERANCE
    for basis in contractions(region.dim, np.random.default_rng(seed)):
        stated = region.gram_times_sensitivity(case.neighbours, basis=basis, basis_norm=1.0)
        assert np.linalg.norm((grams[0] - grams[1]) @ basis) <= stated * TOLERANCE


@pytest.mark.parametrize("least", [1, 2, 5])
def test_a_hub_cannot_hide_the_length_of_rows_in_squares_too_small_for_a_number(least: int) -> None:
    """Whoever asks chooses the basis. Entries of 1.5e-162 have squares that are rounded to zero, and many of them a length."""
    dim, width = 16, 32
    basis = np.full((dim, width), 1.5e-162)
    # A single square that is not lost, so that the longest row seems to be this one.
    basis[-1] = 0.0
    basis[-1, 0] = 1.6e-162
    case = one_item_less(least, least, dim)
    try:
        one, other = (
            bounded_gram_times(rows, basis=basis, domain=case.region, neighbours=case.neighbours)
            for rows in (case.one, case.other)
        )
    except ValueError:
        # To refuse such a basis would do as well.
        return
    moved = float(np.linalg.norm((one.value - other.value) * 1e162))
    assert moved <= one.sensitivity * 1e162 * TOLERANCE
