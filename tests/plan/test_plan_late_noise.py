"""Noise drawn only where Lanczos needs it has the law of a stored noise matrix: symmetric, of the right size, same result."""

import numpy as np
import pytest

from eigenveil.core.noise import Noise
from eigenveil.linalg import orthonormal, top_eigen
from eigenveil.methods.base import _product, leading_under_noise
from eigenveil.plan.rehearsal import judged
from eigenveil.plan.spectrum import Spectrum


def whole_noise(dim: int, width: int, scale: float, noise: Noise) -> np.ndarray:
    """N itself, from products with bases that depend on the products before."""
    span, known = np.empty((dim, 0)), np.empty((dim, 0))
    while span.shape[1] < dim:
        fresh = known[:, -width:] if known.shape[1] else np.eye(dim, width)
        block = fresh - span @ (span.T @ fresh)
        block = orthonormal(block)[:, : dim - span.shape[1]]
        block = orthonormal(block - span @ (span.T @ block))
        drawn = _product(span, known, block, scale, noise)
        span, known = np.hstack([span, block]), np.hstack([known, drawn])
    return np.asarray(known @ span.T)


def test_products_add_up_to_symmetric_noise_of_the_right_sizes() -> None:
    noise, dim, scale = Noise.seeded(1), 12, 2.0
    drawn = np.array([whole_noise(dim, 4, scale, noise) for _ in range(600)])
    np.testing.assert_allclose(drawn, drawn.transpose(0, 2, 1), atol=1e-9)
    # Variances of 7200 and 39600 normals deviate by sqrt(2 / count), of which five are a level of 1e-6.
    diagonal = drawn[:, np.arange(dim), np.arange(dim)]
    above = drawn[:, *np.triu_indices(dim, 1)]
    assert np.square(diagonal).mean() == pytest.approx(scale**2, rel=5 * np.sqrt(2 / diagonal.size))
    assert np.square(above).mean() == pytest.approx(scale**2 / 2, rel=5 * np.sqrt(2 / above.size))
    # Entries are not correlated: the largest of 3003 correlations over 600 draws is below 5.5 / sqrt(600).
    entries = np.hstack([diagonal, above])
    apart = np.corrcoef(entries.T) - np.eye(entries.shape[1])
    assert np.abs(apart).max() < 5.5 / np.sqrt(600)


@pytest.mark.parametrize("people", [400, 2000, 20_000])
def test_it_ends_where_the_whole_matrix_ends(people: int) -> None:
    values, scale, rng = Spectrum.guessed(120).values, 4.0, np.random.default_rng(0)
    shift = 2.0 * rng.standard_normal(120)
    late, whole = [], []
    for seed in range(40):
        vectors = leading_under_noise(people * values, shift, scale=scale, rank=3, noise=Noise.seeded(seed))[1]
        np.testing.assert_allclose(vectors.T @ vectors, np.eye(3), atol=1e-9)
        late.append(judged(vectors, values)[0])
        square = scale * rng.standard_normal((120, 120))
        matrix = np.diag(people * values) + np.outer(shift, shift) + (square + square.T) / 2
        whole.append(judged(top_eigen(matrix, rank=3)[1], values)[0])
    apart = np.hypot(np.std(late), np.std(whole)) / np.sqrt(40)
    # Five deviations of the difference of the means, and what stopping early may leave.
    assert np.mean(late) == pytest.approx(np.mean(whole), abs=5 * apart + 0.002)


def test_a_quarter_more_noise_would_be_seen() -> None:
    values = Spectrum.guessed(120).values
    means = [
        np.mean(
            [
                judged(leading_under_noise(2000 * values, None, scale=scale, rank=3, noise=Noise.seeded(s))[1], values)[
                    0
                ]
                for s in range(20)
            ]
        )
        for scale in (4.0, 5.0)
    ]
    assert means[0] > means[1] + 0.02
