"""Edges of noise: how often noise alone exceeds them. Fixed seeds, and a level of 1e-6 for every count."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import binom

from eigenveil.linalg import Array, merged_edge, norm_edge, product_edge, singular_edge, spiked_edge, symmetric_edge
from eigenveil.methods.base import ritz

MANY = 4000


def limits(draws: int, *, at_most: float = 0.01, at_least: float = 0.0) -> tuple[int, int]:
    """The counts that a probability between these two leaves only once in a million tests."""
    return int(binom.ppf(5e-7, draws, at_least)), int(binom.ppf(1 - 5e-7, draws, at_most))


def symmetric(dim: int, count: int, seed: int) -> Array:
    whole = np.random.default_rng(seed).standard_normal((count, dim, dim))
    return np.asarray((whole + whole.transpose(0, 2, 1)) / 2)


@pytest.mark.parametrize("dim", [2, 8, 24])
def test_symmetric_noise_exceeds_its_edge_once_in_a_hundred(dim: int) -> None:
    largest = np.linalg.eigvalsh(symmetric(dim, MANY, dim))[:, -1]
    low, high = limits(MANY, at_most=0.013, at_least=0.006)
    assert low <= (largest > symmetric_edge(dim)).sum() <= high
    # The expected norm, which was the floor before, is exceeded ten times as often, and is refuted.
    assert (largest > math.sqrt(2 * dim)).sum() > 4 * high


@pytest.mark.parametrize(("dim", "width"), [(5, 1), (12, 5), (40, 8)])
def test_products_of_noise_exceed_their_edge_at_most_once_in_a_hundred(dim: int, width: int) -> None:
    rng, basis, draws = np.random.default_rng(dim), np.eye(dim)[:, :width], 2000
    largest = np.array([ritz(basis, rng.standard_normal((dim, width)), rank=1).values[0] ** 2 for _ in range(draws)])
    low, high = limits(draws, at_least=0.0005)
    assert low <= (largest > product_edge(dim, width)).sum() <= high


def test_a_product_with_everything_is_a_covariance() -> None:
    assert product_edge(30, 30) == symmetric_edge(30)


def test_singular_values_and_norms_exceed_their_edges_at_most_once_in_a_hundred() -> None:
    rng = np.random.default_rng(0)
    high = limits(MANY)[1]
    noise = rng.standard_normal((MANY, 30, 6))
    assert (np.linalg.svd(noise, compute_uv=False)[:, 0] > singular_edge(30, 6)).sum() <= high
    norms = np.linalg.norm(noise, axis=1)
    assert limits(MANY, at_least=0.008)[0] <= (norms.max(axis=1) > norm_edge(30, tries=6)).sum() <= high


@pytest.mark.parametrize(("dim", "width", "parts"), [(6, 3, 2), (6, 6, 9), (20, 5, 5)])
def test_what_sites_keep_of_their_noise_exceeds_its_edge_about_once_in_a_hundred(dim: int, width: int, parts: int) -> None:
    draws = 1000
    values, vectors = np.linalg.eigh(symmetric(dim, draws * parts, 3))
    kept, along = np.maximum(values[:, -width:], 0.0), vectors[:, :, -width:]
    sums = ((along * kept[:, None, :]) @ along.transpose(0, 2, 1)).reshape(draws, parts, dim, dim).sum(axis=1)
    largest = np.linalg.eigvalsh(sums)[:, -1]
    assert (largest > merged_edge(dim, width, parts=parts)).sum() <= limits(draws, at_most=0.02)[1]
    # Without negative parts noise does not cancel: the edge of a plain sum of many is too low.
    assert parts < 5 or (largest > math.sqrt(parts) * symmetric_edge(dim)).mean() > 0.04


@pytest.mark.parametrize("size", [0.5, 0.8, 1.0, 1.1, 1.5, 5.0])
def test_a_spike_that_is_no_signal_stays_below_its_edge(size: float) -> None:
    dim = 24
    spike = size * math.sqrt(dim / 2)
    noise = symmetric(dim, MANY, 7)
    noise[:, 0, 0] += spike
    largest = np.linalg.eigvalsh(noise)[:, -1]
    edge = spiked_edge(symmetric_edge(dim), spike=spike, row=dim / 2)
    assert (largest > edge).sum() <= limits(MANY, at_most=0.015)[1]
    # The edge of noise alone is too low for it.
    assert size < 1 or (largest > symmetric_edge(dim)).sum() > limits(MANY, at_most=0.03)[1]


@pytest.mark.parametrize("edge", [symmetric_edge, lambda dim: product_edge(dim, 7), norm_edge])
def test_edges_grow_with_the_columns(edge: Callable[[int], float]) -> None:
    found = [edge(dim) for dim in (7, 10, 30, 100, 1000, 30_000)]
    assert found == sorted(found)
