"""Distances between subspaces: exact where angles are known, and blind to signs and rotations."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import Generator
from scipy.linalg import subspace_angles

from eigenveil.linalg import align_procrustes, align_signs, captured_variance, sines
from linalg.bases import basis_of, defect, generators

ranks = st.integers(1, 5)


@pytest.mark.parametrize("angle", [1e-12, 1e-10, 1e-8, 1e-4, 0.5, np.pi / 2])
def test_sines_see_small_angles_as_they_are(angle: float) -> None:
    whole = basis_of(9, 4, np.random.default_rng(0))
    left = whole[:, :2]
    right = np.column_stack([left[:, 0] * np.cos(angle) + whole[:, 2] * np.sin(angle), whole[:, 1]])
    found = sines(left, right)
    # What is left of the rounding in the inputs is absolute.
    assert found[0] == pytest.approx(np.sin(angle), rel=1e-9, abs=1e-15)
    assert found[1] < 1e-15


@given(generators(), ranks, ranks)
def test_sines_are_symmetric_and_forget_rotations(rng: Generator, left_rank: int, right_rank: int) -> None:
    left, right = basis_of(7, left_rank, rng), basis_of(7, right_rank, rng)
    found = sines(left, right)
    assert len(found) == min(left_rank, right_rank)
    assert (np.diff(found) <= 0).all() and found[-1] >= 0 and found[0] <= 1
    round_ = basis_of(7, 7, rng)
    for other in (
        sines(right, left),
        sines(left @ basis_of(left_rank, left_rank, rng), -right @ basis_of(right_rank, right_rank, rng)),
        sines(round_ @ left, round_ @ right),
    ):
        assert np.abs(found - other).max() < 1e-12
    # Scipy's angles are good to the root of the rounding error only.
    assert np.abs(found - np.sin(subspace_angles(left, right))).max() < 1e-7


@given(generators(), ranks)
def test_captured_variance_is_a_share_of_the_best(rng: Generator, rank: int) -> None:
    rows = rng.standard_normal((20, 6))
    gram = rows.T @ rows
    values, vectors = np.linalg.eigh(gram)
    basis = basis_of(6, rank, rng)
    explicit = np.trace(basis.T @ gram @ basis) / np.sort(values)[::-1][:rank].sum()
    assert captured_variance(gram, basis) == pytest.approx(explicit, rel=1e-12)
    assert captured_variance(gram, vectors[:, -rank:] @ basis_of(rank, rank, rng)) == pytest.approx(1.0, rel=1e-12)
    assert captured_variance(gram, basis) < 1


@given(generators(), ranks)
def test_procrustes_comes_closer_than_any_other_rotation(rng: Generator, rank: int) -> None:
    basis, target = basis_of(8, rank, rng), basis_of(8, rank, rng)
    turned = align_procrustes(basis, target)
    assert sines(turned, basis).max() < 1e-14
    assert defect(turned) < 1e-14
    best = np.linalg.norm(turned - target)
    for _ in range(20):
        assert best <= np.linalg.norm(basis @ basis_of(rank, rank, rng) - target) + 1e-12
    # Small rotations away from the answer find no better one nearby either.
    nearby = np.linalg.qr(np.eye(rank) + 1e-3 * rng.standard_normal((rank, rank)))[0]
    assert best <= np.linalg.norm(turned @ (nearby * np.sign(np.diag(nearby))) - target) + 1e-12
    assert np.abs(align_procrustes(target @ basis_of(rank, rank, rng), target) - target).max() < 1e-13


@given(generators(), ranks)
def test_align_signs_rounds_columns_and_nothing_else(rng: Generator, rank: int) -> None:
    basis, target = basis_of(8, rank, rng), basis_of(8, rank, rng)
    turned = align_signs(basis, target)
    assert np.array_equal(np.abs(turned), np.abs(basis))
    assert ((turned * target).sum(axis=0) >= 0).all()
    assert np.array_equal(align_signs(basis * rng.choice([-1.0, 1.0], rank), target), turned)
