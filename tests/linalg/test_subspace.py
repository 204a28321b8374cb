"""`Subspace`: a built one is always valid, and its methods do what projectors would."""

import math
from collections.abc import Callable
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import Generator

from eigenveil.linalg import Array, Subspace, orthonormal
from linalg.bases import basis_of, defect, generators, gram_of, rows_of

AXES = np.eye(4)[:, :2]
ONES = np.ones(2)


@pytest.mark.parametrize(
    ("basis", "values", "message"),
    [
        (np.ones(3), ONES, r"two dimensions, got shape \(3,\)"),
        (AXES, np.ones(3), r"values must have shape \(2,\) to go with the basis, got \(3,\)"),
        (AXES, np.ones((2, 1)), r"values must have shape \(2,\)"),
        (np.eye(3)[:2], np.ones(3), "rank must be at most dim = 2, got 3"),
        (AXES * 1.001, ONES, "basis must be orthonormal"),
        (AXES[:, [0, 0]], ONES, "basis must be orthonormal"),
        (AXES * 1e200, ONES, "basis must be orthonormal"),
        (AXES, np.array([1.0, -0.5]), "values must be non-negative"),
        (AXES, np.array([1.0, 2.0]), "values must not increase"),
        (AXES, np.array([np.nan, 1.0]), "must be finite"),
        (AXES, np.array([np.inf, 1.0]), "must be finite"),
        (AXES * [1.0, np.nan], ONES, "must be finite"),
    ],
)
def test_what_is_no_subspace_is_refused(basis: Array, values: Array, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Subspace(basis, values)


def test_nobody_can_change_a_subspace() -> None:
    basis, values = AXES.copy(), ONES.copy()
    space = Subspace(basis, values)
    basis[0, 0] = values[0] = 7.0
    assert space.basis[0, 0] == 1.0 and space.values[0] == 1.0
    for array in (space.basis, space.values):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 7.0
    with pytest.raises(FrozenInstanceError):
        setattr(space, "values", values)  # noqa: B010  mypy knows that it must not be set.


def test_equal_values_and_zeros_and_no_directions_are_fine() -> None:
    assert Subspace(AXES, np.zeros(2)).rank == 2
    assert (Subspace(np.zeros((4, 0)), np.zeros(0)).rank, Subspace(AXES, ONES).dim) == (0, 4)


@given(generators(), st.integers(1, 8), st.integers(1, 8), st.data())
def test_of_rows_and_of_their_gram_are_one_thing(rng: Generator, count: int, dim: int, data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, min(count, dim)))
    rows = rng.standard_normal((count, dim))
    from_rows, from_gram = Subspace.of(rows, rank=rank), Subspace.of_gram(rows.T @ rows, rank=rank)
    # Roots of eigenvalues are good to the root of the rounding error.
    assert np.abs(from_rows.values - from_gram.values).max() < 1e-6
    assert np.abs(gram_of(from_rows) - gram_of(from_gram)).max() < 1e-11
    if rank == min(count, dim):
        assert np.abs(gram_of(from_rows) - rows.T @ rows).max() < 1e-11


def test_a_noisy_gram_gives_no_negative_value() -> None:
    assert Subspace.of_gram(np.diag([4.0, -1.0, -9.0]), rank=3).values.tolist() == [2.0, 0.0, 0.0]


@given(generators(), st.integers(1, 6), st.data())
def test_project_and_captured_are_the_projector(rng: Generator, dim: int, data: st.DataObject) -> None:
    space = Subspace.random(dim, rank=data.draw(st.integers(1, dim)), rng=rng)
    rows = rows_of(9, dim, rng)
    projector = space.basis @ space.basis.T
    assert np.allclose(space.project(rows) @ space.basis.T, rows @ projector, atol=1e-9)
    share = np.linalg.norm(rows @ projector) ** 2 / np.linalg.norm(rows) ** 2
    assert space.captured(rows) == pytest.approx(share, rel=1e-9)


def test_captured_runs_from_none_to_all() -> None:
    space = Subspace(AXES, ONES)
    assert space.captured(np.eye(4)[:2]) == 1.0
    assert space.captured(np.eye(4)[2:]) == 0.0
    assert space.captured(np.zeros((3, 4))) == 0.0


def test_truncate_keeps_the_first_directions() -> None:
    space = Subspace.of(np.diag([3.0, 2.0, 1.0]), rank=3)
    cut = space.truncate(2)
    assert cut.values.tolist() == [3.0, 2.0]
    assert cut.sines(space).max() < 1e-15
    assert cut.sines(Subspace(np.eye(3)[:, 2:], np.ones(1))).tolist() == [1.0]
    for rank in (0, 4):
        with pytest.raises(ValueError, match=f"rank must lie in 1..3, got {rank}"):
            space.truncate(rank)


def test_random_subspaces_are_orthonormal_and_weigh_nothing() -> None:
    space = Subspace.random(30, rank=7, rng=np.random.default_rng(0))
    assert defect(space.basis) < 1e-13
    assert space.values.tolist() == [0.0] * 7
    again = Subspace.random(30, rank=7, rng=np.random.default_rng(0))
    assert np.array_equal(space.basis, again.basis)
    with pytest.raises(ValueError, match="at most as many columns as rows"):
        Subspace.random(3, rank=4, rng=np.random.default_rng(0))


def test_random_subspaces_point_everywhere_alike() -> None:
    draws, dim, rank = 4000, 4, 2
    # Each of the 16 entries of a projector lies in an interval of length one, and the truth is rank / dim on the diagonal
    # and zero off it. By Hoeffding their means stray from it by more than this with probability 1e-6.
    limit = math.sqrt(math.log(2 * dim**2 / 1e-6) / (2 * draws))

    def strays(draw: Callable[[Generator], Array]) -> float:
        rng = np.random.default_rng(0)
        mean = sum(np.asarray(basis @ basis.T) for basis in (draw(rng) for _ in range(draws))) / draws
        return float(np.abs(mean - np.eye(dim) * rank / dim).max())

    assert strays(lambda rng: Subspace.random(dim, rank=rank, rng=rng).basis) < limit
    # A start basis from uniform entries would lean towards the diagonal, and this test would see it.
    assert strays(lambda rng: orthonormal(rng.random((dim, rank)))) > limit


@given(generators())
def test_sines_to_another_subspace_are_those_of_the_bases(rng: Generator) -> None:
    one, other = basis_of(6, 2, rng), basis_of(6, 3, rng)
    cosines = np.linalg.svd(one.T @ other, compute_uv=False)
    found = Subspace(one, ONES).sines(Subspace(other, np.ones(3)))
    assert np.allclose(np.sort(np.square(found)), np.sort(1 - np.square(cosines)), atol=1e-12)
