"""Merging adds what the rows would have added: laws for `merge` and `merge_all`, with Alg. 4 and 5 as slow references."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import Generator

from eigenveil.linalg import Array, Subspace, merge, merge_all, sines
from eigenveil.papers import basic_merge, faster_merge
from linalg.bases import basis_of, defect, generators, gram_of, rows_of

MERGES = [merge, basic_merge, faster_merge]


def whole(rows: Array) -> Subspace:
    """All directions that `rows`, (n, d), have."""
    return Subspace.of(rows, rank=min(rows.shape))


@dataclass(frozen=True)
class Pair:
    """Rows on two sides, (n, d) each, and the factors they are merged with."""

    left: Array
    right: Array
    forget: float
    enhance: float

    @property
    def stacked(self) -> Array:
        """The rows that the merge stands for."""
        return np.vstack([self.forget * self.left, self.enhance * self.right])


@st.composite
def pairs(draw: st.DrawFn) -> Pair:
    """Sides of any number of rows, with or without factors; sometimes one side lies in the span of the other."""
    rng = draw(generators())
    dim = draw(st.integers(1, 7))
    left, right = (rows_of(draw(st.integers(1, 9)), dim, rng) for _ in range(2))
    if draw(st.booleans()):
        right = rng.standard_normal((len(right), len(left))) @ left
    forget, enhance = draw(st.sampled_from([(1.0, 1.0), (0.9, 1.0), (1.0, 2.5), (0.1, 1.5)]))
    return Pair(left, right, forget, enhance)


@pytest.mark.parametrize("way", MERGES)
@given(pair=pairs())
def test_a_merge_is_the_svd_of_all_rows(way: Callable[..., Subspace], pair: Pair) -> None:
    merged = way(whole(pair.left), whole(pair.right), rank=99, forget=pair.forget, enhance=pair.enhance)
    expected = np.linalg.svd(pair.stacked, compute_uv=False)
    size = expected[0]
    assert defect(merged.basis) < 1e-12
    values = np.zeros(max(len(expected), merged.rank))
    values[: len(expected)] = expected
    assert np.abs(merged.values - values[: merged.rank]).max() < 1e-12 * size
    assert values[merged.rank :].max(initial=0.0) < 1e-12 * size
    assert np.abs(gram_of(merged) - pair.stacked.T @ pair.stacked).max() < 1e-12 * size**2


@given(pairs(), st.integers(1, 7))
def test_a_merge_cut_short_keeps_the_leading_space(pair: Pair, rank: int) -> None:
    factors = {"forget": pair.forget, "enhance": pair.enhance}
    found = [way(whole(pair.left), whole(pair.right), rank=rank, **factors) for way in MERGES]
    vectors, values = np.linalg.svd(pair.stacked.T)[:2]
    values = np.append(values, np.zeros(rank + 1))
    for merged in found:
        kept = merged.rank
        assert kept <= rank
        assert np.abs(merged.values - values[:kept]).max() < 1e-12 * values[0]
        # The space is only as well defined as the gap behind it.
        gap = float(values[kept - 1] - values[kept]) / float(values[0])
        assert sines(merged.basis, vectors[:, :kept]).max() < 1e-13 / max(gap, 1e-13)


def tilted(basis: Array, angle: float, rng: Generator) -> Array:
    """A basis at about `angle` from `basis`, (d, k)."""
    return np.linalg.qr(basis + angle * rng.standard_normal(basis.shape))[0]


RNG = np.random.default_rng(5)
EIGHT = basis_of(8, 8, RNG)
THREE = EIGHT[:, :3]
SIDES = {
    "one inside the other": (EIGHT[:, :5], THREE @ basis_of(3, 2, RNG)),
    "the other inside the one": (THREE[:, :1], EIGHT[:, :5]),
    "identical": (THREE, THREE),
    "identical but turned": (THREE, THREE @ basis_of(3, 3, RNG)),
    "1e-15 apart": (THREE, tilted(THREE, 1e-15, RNG)),
    "1e-12 apart": (THREE, tilted(THREE, 1e-12, RNG)),
    "1e-10 apart": (THREE, tilted(THREE, 1e-10, RNG)),
    "1e-8 apart": (THREE, tilted(THREE, 1e-8, RNG)),
    "orthogonal": (THREE, EIGHT[:, 3:6]),
    "half shared": (EIGHT[:, :4], EIGHT[:, 2:6] @ basis_of(4, 4, RNG)),
    "left full": (EIGHT, THREE),
    "right full": (THREE, EIGHT),
    "both full": (EIGHT, basis_of(8, 8, RNG)),
    "one dimension": (np.ones((1, 1)), -np.ones((1, 1))),
    "wide together": (EIGHT[:, :6], basis_of(8, 6, RNG)),
}


@pytest.mark.parametrize("sides", SIDES.values(), ids=SIDES.keys())
@pytest.mark.parametrize("zeros", [False, True], ids=["positive", "zeros at the end"])
def test_a_merge_in_any_position_is_orthonormal_and_right(sides: tuple[Array, Array], zeros: bool) -> None:
    left, right = (Subspace(b, np.maximum(np.arange(b.shape[1], 0.0, -1) - zeros, 0.0)) for b in sides)
    merged = merge(left, right, rank=99)
    assert defect(merged.basis) < 1e-12
    assert np.abs(gram_of(merged) - gram_of(left) - gram_of(right)).max() < 2e-9
    for reference in (basic_merge(left, right, rank=99), faster_merge(left, right, rank=99)):
        assert np.abs(reference.values[: merged.rank] - merged.values).max() < 2e-9
        assert reference.values[merged.rank :].max(initial=0.0) < 2e-9


def test_directions_closer_than_rounding_add_no_rank() -> None:
    left = Subspace(THREE, np.ones(3))
    assert merge(left, Subspace(SIDES["1e-12 apart"][1], np.ones(3)), rank=99).rank == 3
    assert merge(left, Subspace(SIDES["1e-8 apart"][1], np.ones(3)), rank=99).rank == 6


def test_a_long_chain_of_merges_stays_orthonormal() -> None:
    rng = np.random.default_rng(6)
    rows = rows_of(600, 12, rng)
    parts = [whole(block) for block in np.split(rows, 150)]
    total = reduce(lambda left, right: merge(left, right, rank=12), parts)
    assert defect(total.basis) < 1e-12
    assert np.abs(gram_of(total) - rows.T @ rows).max() < 1e-10 * total.values[0] ** 2


@given(generators(), st.integers(1, 6), st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(1, 8))
def test_merge_all_knows_no_order_and_equals_repeated_merges(rng: Generator, dim: int, counts: list[int], rank: int) -> None:
    rows = [rows_of(count, dim, rng) for count in counts]
    spaces = [whole(block) for block in rows]
    shuffled = [spaces[i] for i in rng.permutation(len(spaces))]
    one, other = merge_all(spaces, rank=rank), merge_all(shuffled, rank=rank)
    stacked = np.vstack(rows)
    size = float(np.linalg.norm(stacked, 2))
    assert np.abs(one.values - other.values).max() < 1e-7 * size
    everything = merge_all(spaces, rank=99)
    assert np.abs(gram_of(everything) - stacked.T @ stacked).max() < 1e-12 * size**2
    repeated = reduce(lambda left, right: merge(left, right, rank=99), spaces)
    assert np.abs(gram_of(everything) - gram_of(repeated)).max() < 1e-12 * size**2
    # The wide branch takes roots of eigenvalues, which are good to the root of the rounding error.
    expected = np.append(np.linalg.svd(stacked, compute_uv=False), np.zeros(rank))[: one.rank]
    assert np.abs(one.values - expected).max() < 1e-7 * size


def test_merge_all_narrow_and_wide_are_one_law() -> None:
    rng = np.random.default_rng(7)
    spaces = [Subspace.of(rows_of(4, 9, rng), rank=3) for _ in range(4)]
    narrow, wide = merge_all(spaces[:3], rank=4), merge_all(spaces, rank=4)
    assert sum(s.rank for s in spaces[:3]) <= 9 < sum(s.rank for s in spaces)
    assert defect(wide.basis) < 1e-12
    # Adding the fourth to the first three must give what all four give at once.
    again = merge(merge_all(spaces[:3], rank=9), spaces[3], rank=4)
    assert np.abs(wide.values - again.values).max() < 1e-10 * wide.values[0]
    assert sines(wide.basis, again.basis).max() < 1e-9
    assert sines(wide.basis, narrow.basis).max() > 1e-3
