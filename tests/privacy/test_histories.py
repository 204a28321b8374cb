"""`Histories` and what it refuses: other regions at the level of one interaction, weights, lists of columns that are none."""

import math
from dataclasses import FrozenInstanceError
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from eigenveil.core.domain import Domain
from eigenveil.core.rows import Block
from eigenveil.core.unit import Neighbours, gram_sensitivity, sum_sensitivity, trace_sensitivity
from eigenveil.data.rows import DenseRows, SparseRows, WeightedRows
from eigenveil.privacy.floating import dense
from eigenveil.privacy.floating import sparse as sparse_rows
from eigenveil.privacy.histories import (
    Histories,
    interaction_gram_sensitivity,
    interaction_products_sensitivity,
    interaction_sum_sensitivity,
    interaction_trace_sensitivity,
)
from eigenveil.privacy.sums import bounded_gram, bounded_gram_times, bounded_sum, bounded_trace

TABLE = np.array([[1.0, 0, 1, 1], [0, 0, 0, 0], [1, 1, 1, 1]])


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.int64, np.uint8, np.bool_])
@pytest.mark.parametrize("sparse", [False, True])
def test_every_type_of_number_makes_the_same_rows(kind: Any, sparse: bool) -> None:
    region = Histories(dim=4, min_degree=2)
    wanted = TABLE / np.sqrt(np.maximum(TABLE.sum(axis=1, keepdims=True), 2))
    block = Block(sp.csr_array(TABLE.astype(kind)) if sparse else TABLE.astype(kind))
    found = sparse_rows(region, block).rows.toarray() if sparse else dense(region, block)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, wanted, rtol=1e-14)


@pytest.mark.parametrize("sparse", [False, True])
def test_items_outside_of_the_columns_count_for_nothing(sparse: bool) -> None:
    region = Histories(dim=2, min_degree=1, columns=np.array([1, 2]))
    rows = SparseRows(sp.csr_array(TABLE)) if sparse else DenseRows(TABLE)
    near = Neighbours.ZERO_OUT
    found = bounded_sum(rows, domain=region, neighbours=near).value
    # Every number of a user is rounded down onto its grid: 2^-33 in sums, 2^-36 in products, 2^-32 in scores and squares.
    np.testing.assert_allclose(found, [math.sqrt(0.5), 1 + math.sqrt(0.5)], rtol=0, atol=2 * 2.0**-33)
    gram = bounded_gram(rows, domain=region, neighbours=near).value
    np.testing.assert_allclose(gram, [[0.5, 0.5], [0.5, 1.5]], rtol=0, atol=2 * 2.0**-36)
    product = bounded_gram_times(rows, basis=np.eye(2)[:, :1], domain=region, neighbours=near).value
    np.testing.assert_allclose(product, gram[:, :1], rtol=0, atol=2 * 2.0**-32)
    assert float(bounded_trace(rows, domain=region, neighbours=near).value) == pytest.approx(2.0, abs=2 * 2.0**-32)


def test_the_table_is_not_changed_and_out_is_used() -> None:
    kept, out = TABLE.copy(), np.full((5, 4), 7.0)
    found = dense(Histories(dim=4), Block(TABLE), out=out)
    assert np.shares_memory(found, out)
    assert (out[3:] == 7).all()
    assert np.array_equal(TABLE, kept)
    matrix = sp.csr_array(TABLE)
    sparse_rows(Histories(dim=4), Block(matrix))
    assert np.array_equal(matrix.toarray(), kept)


def test_no_row_is_longer_than_one() -> None:
    for degree in [*range(1, 400), 4001, 99_991]:
        entry = dense(Histories(dim=degree), Block(np.ones((1, degree))))[0, 0]
        # In fractions, because floating point has no room for what it may be too long by.
        assert degree * Fraction(float(entry)) ** 2 <= 1


def test_one_interaction_is_for_histories_alone() -> None:
    near, rows, domain = Neighbours.INTERACTION, DenseRows(np.eye(3)), Domain(dim=3, radius=1.0)
    for refused in (
        lambda: bounded_sum(rows, domain=domain, neighbours=near),
        lambda: bounded_trace(rows, domain=domain, neighbours=near),
        lambda: bounded_gram(rows, domain=domain, neighbours=near),
        lambda: bounded_gram_times(rows, basis=np.eye(3), domain=domain, neighbours=near),
        lambda: sum_sensitivity(1.0, near),
        lambda: trace_sensitivity(1.0, near),
        lambda: gram_sensitivity(1.0, near),
    ):
        with pytest.raises(ValueError, match="for `Histories` only"):
            refused()
    assert not near.protects_a_person
    assert near.count_is_public


@pytest.mark.parametrize("sparse", [False, True])
def test_users_cannot_be_weighted(sparse: bool) -> None:
    inner = SparseRows(sp.csr_array(TABLE)) if sparse else DenseRows(TABLE)
    rows = WeightedRows(inner, np.full(3, 0.5))
    for release in (bounded_sum, bounded_gram, bounded_trace):
        with pytest.raises(ValueError, match="exactly one row"):
            release(rows, domain=Histories(dim=4), neighbours=Neighbours.ZERO_OUT)


def test_weights_of_items_are_for_whole_users() -> None:
    weighted = Histories(dim=3, min_degree=2, columns=None, weights=np.array([1.0, 2.0, 4.0]))
    found = dense(weighted, Block(np.array([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])))
    # In proportion to the weights, and as long as the rows of ones were.
    wanted = np.sqrt([[0.2, 0.8, 0.0], [0.0, 0.0, 0.5], [0.0, 0.0, 0.0]])
    # Lengths are sums in floating point, so rows are kept inside the ball by 2^-44 of them.
    np.testing.assert_allclose(found, wanted, rtol=2.0**-43)
    assert (found <= wanted).all()
    for near in (Neighbours.ZERO_OUT, Neighbours.ADD_REMOVE, Neighbours.REPLACE_ONE):
        assert weighted.gram_sensitivity(near) == Histories(dim=3, min_degree=2).gram_sensitivity(near)
    rows = DenseRows(np.eye(3))
    for release in (bounded_sum, bounded_trace, bounded_gram):
        with pytest.raises(ValueError, match="item weights give user-level privacy only"):
            release(rows, domain=weighted, neighbours=Neighbours.INTERACTION)
    with pytest.raises(ValueError, match="item weights give user-level privacy only"):
        bounded_gram_times(rows, basis=np.eye(3), domain=weighted, neighbours=Neighbours.INTERACTION)


def test_a_region_is_frozen_and_has_no_center() -> None:
    region = Histories(dim=3)
    assert region.shifted_center is None
    assert region.radius == 1.0
    with pytest.raises(FrozenInstanceError):
        region.min_degree = 2  # type: ignore[misc]


def test_golden_numbers_of_one_interaction() -> None:
    """0.312 at m = 20, where one interaction costs one at m = 1."""
    assert round(interaction_gram_sensitivity(20), 3) == 0.312
    assert interaction_gram_sensitivity(1) == 1.0
    assert interaction_sum_sensitivity(4) == 0.5
    assert interaction_trace_sensitivity(4) == 0.25


@pytest.mark.parametrize("least", [1, 2, 3, 7, 20, 1000])
def test_the_bound_of_products_is_sensible(least: int) -> None:
    lengths = np.linspace(0.001, 1.0, 200)
    found = [interaction_products_sensitivity(least, largest_row_norm=rho, basis_norm=1.0) for rho in lengths]
    # It grows with the longest row, never exceeds the Gram matrix's, and for rows longer than the norm is that of the norm.
    assert (np.diff(found) > 0).all()
    assert max(found) <= interaction_gram_sensitivity(least) * (1 + 1e-12)
    beyond = interaction_products_sensitivity(least, largest_row_norm=3.0, basis_norm=1.0)
    assert beyond == interaction_gram_sensitivity(least)
    # Twice the basis is twice the product.
    half = interaction_products_sensitivity(least, largest_row_norm=0.1, basis_norm=0.5)
    assert 2 * half == pytest.approx(interaction_products_sensitivity(least, largest_row_norm=0.2, basis_norm=1.0))


@pytest.mark.parametrize("least", [1, 2, 5, 20])
def test_the_bound_on_products_is_in_proportion_to_the_rows_however_small(least: int) -> None:
    """Squares of numbers below 1e-154 lose digits, and a hub that lies may send such a basis."""
    for power in range(1, 321):
        basis = np.zeros((3, 2))
        basis[0, 0] = 10.0**-power
        try:
            stated = Histories(dim=3, min_degree=least).gram_times_sensitivity(
                Neighbours.INTERACTION, basis=basis, basis_norm=1.0
            )
        except ValueError:
            assert power > 199
            continue
        first = min(1.0, 10.0 ** (2 * min(power, 150)) / least)
        assert stated / basis[0, 0] >= np.sqrt(first + (least - 1) / least**2) * (1 - 1e-12)
