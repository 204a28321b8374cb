"""Rows end up where the domain says, whatever they were: any size, any dtype, dense or sparse."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from eigenveil.core import sums
from eigenveil.core.domain import Domain, squared_norms
from eigenveil.core.rows import Block, Rows
from eigenveil.core.unit import Neighbours
from eigenveil.data.rows import DenseRows, SparseRows
from eigenveil.linalg import Array
from eigenveil.privacy.floating import dense, sparse
from laws.strategies import SIZES, domains, person


def explicit(domain: Domain, block: Block) -> Array:
    """A sparse block's bounded rows, written out."""
    part = sparse(domain, block)
    center = domain.shifted_center
    dense: Array = part.rows.toarray()
    return dense if center is None else dense - np.outer(part.shift, center)


@settings(max_examples=200)
@given(data=st.data(), seed=st.integers(0, 2**32), size=st.sampled_from(SIZES))
def test_rows_land_in_the_ball_and_keep_their_direction(data: st.DataObject, seed: int, size: float) -> None:
    domain = data.draw(domains(4))
    raw = person(4, np.random.default_rng(seed), size, 3)
    for found in (dense(domain, Block(raw)), explicit(domain, Block(sp.csr_array(raw)))):
        assert np.isfinite(found).all()
        assert (np.linalg.norm(found, axis=1) <= domain.radius * (1 + 1e-12)).all()
    if size <= 1e8:
        moved = raw if domain.low is None else np.clip(raw, domain.low, domain.high)
        moved = moved if domain.center is None else moved - domain.center
        moved = moved if domain.scale is None else moved / domain.scale
        norms = np.linalg.norm(moved, axis=1, keepdims=True)
        expected = moved * np.minimum(1.0, domain.radius / np.maximum(norms, 1e-300))
        np.testing.assert_allclose(dense(domain, Block(raw)), expected, atol=1e-12 * domain.radius)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int16, np.uint64, np.float16, np.float32, np.bool_])
def test_small_dtypes_do_not_overflow(dtype: type) -> None:
    raw: Any = np.array([[200, 0], [255, 255]]).astype(dtype)
    domain = Domain(dim=2, radius=1e3, center=np.array([250.0, 1.0]))
    expected = raw.astype(np.float64) - [250.0, 1.0]
    np.testing.assert_allclose(dense(domain, Block(raw)), expected, rtol=1e-12)
    np.testing.assert_allclose(dense(Domain(dim=2, radius=1e3), Block(raw)), raw.astype(np.float64), rtol=1e-12)
    boxed = Domain(dim=2, radius=1e3, low=np.zeros(2), high=np.full(2, 100.0))
    np.testing.assert_allclose(dense(boxed, Block(raw)), np.clip(raw.astype(np.float64), 0, 100), rtol=1e-12)


def test_the_caller_keeps_their_rows() -> None:
    raw = np.full((3, 2), 1e9)
    stored = sp.csr_array(raw)
    domain = Domain(dim=2, radius=1.0, center=np.ones(2), low=np.full(2, -5.0), high=np.full(2, 5.0))
    dense(domain, Block(raw))
    sparse(domain, Block(stored))
    assert (raw == 1e9).all()
    assert (stored.toarray() == 1e9).all()


@pytest.mark.parametrize("ratio", [1.0, 99.0])
def test_sparse_rows_away_from_their_center_are_clipped(ratio: float) -> None:
    """The norm of x - c is found without storing zeros, and never comes out too small by cancellation."""
    rng = np.random.default_rng(0)
    center = rng.standard_normal(50)
    center *= ratio / np.linalg.norm(center)
    raw = sp.random_array((200, 50), density=0.1, rng=rng, format="csr")
    found = explicit(Domain(dim=50, radius=1.0, center=center), Block(raw))
    assert (np.linalg.norm(found, axis=1) <= 1 + 1e-9).all()


def test_sparse_rows_far_from_their_center_are_refused() -> None:
    """Their center comes off finished sums, and rounding would eat the sensitivity: dense rows have no such limit."""
    far = Domain(dim=3, radius=1.0, center=np.array([101.0, 0.0, 0.0]))
    with pytest.raises(ValueError, match="center of sparse rows is more than 100 times"):
        sparse(far, Block(sp.csr_array(np.eye(3))))
    assert np.isfinite(dense(far, Block(np.eye(3)))).all()
    sparse(Domain(dim=3, radius=np.inf, center=np.array([1e9, 0.0, 0.0])), Block(sp.csr_array(np.eye(3))))


def test_weights_average_sums_and_products() -> None:
    raw = np.array([[1.0, 0.0], [0.0, 1.0]])
    block = Block(raw, np.array([0.5, 0.5]))
    domain = Domain(dim=2, radius=5.0)
    np.testing.assert_allclose(dense(domain, block), raw / 2)
    np.testing.assert_allclose(dense(domain, block, squared=True), raw / math.sqrt(2))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"radius": 0.0}, "bound must"),
        ({"radius": -1.0}, "bound must"),
        ({"radius": math.nan}, "bound must"),
        ({"radius": 1e200}, "bound must"),
        ({"center": np.zeros(3)}, "center must have shape"),
        ({"center": np.array([np.nan, 0])}, "center must be finite"),
        ({"scale": np.array([1.0, 0.0])}, "scale must be positive"),
        ({"low": np.zeros(2)}, "go together"),
        ({"low": np.ones(2), "high": np.zeros(2)}, "at most"),
    ],
)
def test_bad_domains_are_refused(fields: dict[str, object], message: str) -> None:
    settings: dict[str, Any] = {"dim": 2, "radius": 1.0, **fields}
    with pytest.raises(ValueError, match=message):
        Domain(**settings)


@pytest.mark.parametrize("domain", [Domain(dim=2, radius=math.inf), Domain(dim=2, radius=1.0, claimed=False)])
@pytest.mark.parametrize("store", [DenseRows, lambda rows: SparseRows(sp.csr_array(rows))])
def test_the_core_has_no_sums_for_a_domain_that_claims_nothing(domain: Domain, store: Callable[[Array], Rows]) -> None:
    """A core that could add up in floating point would have to be trusted not to."""
    rows, near = store(np.eye(2)), Neighbours.ADD_REMOVE
    refused: list[Callable[[], Any]] = [
        lambda: sums.bounded_sum(rows, domain=domain, neighbours=near),
        lambda: sums.bounded_trace(rows, domain=domain, neighbours=near),
        lambda: sums.bounded_gram(rows, domain=domain, neighbours=near),
        lambda: sums.bounded_gram_times(rows, basis=np.eye(2)[:, :1], domain=domain, neighbours=near),
    ]
    for act in refused:
        with pytest.raises(ValueError, match="claims no privacy has no grid"):
            act()


@pytest.mark.parametrize("dim", [1, 2, 6, 7, 8, 9, 200])
def test_squared_norms_have_the_bits_of_each_row_summed_by_itself(dim: int) -> None:
    rows = np.exp(20 * np.random.default_rng(dim).standard_normal((500, dim)))
    found = squared_norms(rows)
    # Engines elsewhere add in this order, so that all of them clip a row to the same bits.
    assert found.tobytes() == np.add.reduce(np.square(rows), axis=1).tobytes()
    alone = np.concatenate([squared_norms(row[None]) for row in rows])
    assert found.tobytes() == alone.tobytes()
