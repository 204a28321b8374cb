"""Rehearsals against real fits: what was predicted is what the estimators find, method by method."""

import math
import warnings
from typing import Any

import numpy as np
import pytest

from eigenveil import FederatedPCA, GossipPCA, PrivatePCA, StreamingPCA
from eigenveil.core.accounting import Budget
from eigenveil.core.noise import Noise
from eigenveil.core.unit import Neighbours
from eigenveil.linalg import Array, captured_variance, orthonormal, product_edge, symmetric_edge, top_eigen
from eigenveil.methods import MethodPlan
from eigenveil.methods.base import _product, leading_under_noise
from eigenveil.plan.candidates import candidate_of
from eigenveil.plan.facts import SETTINGS, Facts
from eigenveil.plan.rehearsal import forecast, found_center, found_inside, judged
from eigenveil.plan.spectrum import Spectrum

DIM, RANK, PEOPLE, SITES, EPSILON, DELTA = 40, 2, 3500, 4, 0.7, 1e-6


def table() -> Array:
    """Rows, (PEOPLE, DIM), with a 1/i spectrum, each filling 0.6 of the unit ball."""
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (PEOPLE, DIM))
    rows: Array = signs * np.sqrt(Spectrum.guessed(DIM, bound_usage=0.6).values)
    return rows


ROWS = table()
GRAM = ROWS.T @ ROWS
SPECTRUM = Spectrum(values=np.linalg.eigvalsh(GRAM)[::-1] / PEOPLE, source="given")


def facts(**changes: Any) -> Facts:
    given: dict[str, Any] = {"people": PEOPLE, "sites": SITES, "trust": SETTINGS} | changes
    return Facts(dim=DIM, rank=RANK, budget=Budget(EPSILON, DELTA), spectrum=SPECTRUM, **{"row_bound": 1.0, **given})


def fitted(method: str, *, look: bool, seed: int, **more: Any) -> Any:
    name: Any
    setting, _, name = method.partition("/")
    trust: Any = setting
    terms: dict[str, Any] = {"epsilon": EPSILON, "delta": DELTA, "row_bound": 1.0, "random_state": seed} | more
    if setting == "stream":
        horizon = PEOPLE if name == "continual" else None
        return StreamingPCA(RANK, publish=name, horizon=horizon, center="private" if look else None, **terms).fit(ROWS)
    terms["center"] = "private" if look else None
    sites = np.array_split(ROWS, SITES)
    if setting == "curator":
        return PrivatePCA(RANK, method=name, **terms).fit(ROWS)
    if setting.startswith("peers"):
        noise = "pairwise" if setting == "peers" else "independent"
        more = {"graph": "complete", "consensus": "tree", "people": PEOPLE, "noise": noise}
        return GossipPCA(RANK, method=name, **more, **terms).fit(sites)
    return FederatedPCA(RANK, method=name, trust=trust, **terms).fit(sites)


@pytest.mark.parametrize(
    ("method", "look", "fits"),
    [
        ("curator/covariance", False, 4),
        ("curator/power", False, 4),
        ("stream/sync", False, 4),
        ("stream/block", False, 12),
        ("stream/continual", False, 8),
        ("hub/krylov", False, 4),
        ("site/power", False, 10),
        ("site/fedpower", False, 10),
        ("site/merge", False, 6),
        ("masked/covariance", False, 3),
        ("peers/power", False, 4),
        ("peers/segments", False, 20),
        ("peers-independent/krylov", False, 6),
        ("curator/power", True, 4),
        ("hub/covariance", True, 4),
        ("site/krylov", True, 8),
        ("stream/block", True, 12),
    ],
)
def test_fits_find_what_was_rehearsed(method: str, look: bool, fits: int) -> None:
    predicted = forecast(facts(center="private" if look else None), method)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = np.array([captured_variance(GRAM, fitted(method, look=look, seed=seed).components_.T) for seed in range(fits)])
    error = found.std(ddof=1) / np.sqrt(fits)
    # Five deviations of the difference, where fits differ so much that 0.03 would be less; most are tenths of a per cent off.
    assert predicted.captured.value == pytest.approx(found.mean(), abs=max(0.03, 5 * np.hypot(error, 0.006)))
    assert 0.5 < found.mean() < 0.999


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("curator/covariance", {"row_bound": None}),
        ("curator/covariance", {"scale": "private"}),
        ("curator/power", {"row_bound": None, "center": None}),
        ("site/merge", {"row_bound": None}),
        ("stream/sync", {"row_bound": None}),
        ("stream/block", {"scale": "private"}),
    ],
)
def test_a_search_costs_what_was_planned(method: str, changes: dict[str, Any]) -> None:
    many = 12_000
    rows = np.random.default_rng(5).standard_normal((many, DIM)) * np.linspace(3, 1, DIM)
    plan = candidate_of(facts(people=many, neighbours=Neighbours.ZERO_OUT, **changes), method)
    kind: Any = {"curator": PrivatePCA, "stream": StreamingPCA}.get(method.partition("/")[0], FederatedPCA)
    made = kind(**vars(plan.params)).set_params(random_state=3)
    made.fit(rows if kind is not FederatedPCA else np.array_split(rows, SITES))
    charges = made.guarantee_.charges
    spent = sum(one.mu**2 for one in charges if one.label.startswith(("norms", "mean", "columns")))
    planned = sum(plan.split.mean[: plan.split.usual])
    assert spent / Budget(EPSILON, DELTA).mu ** 2 == pytest.approx(planned, rel=0.02)


def test_a_search_leaves_as_good_a_mean_as_it_can() -> None:
    shares = (0.015, 0.03, 0.02, 0.035, 0.02, 0.035)
    terms: dict[str, Any] = {"shares": shares, "steps": (1, 3, 5), "neighbours": Neighbours.ADD_REMOVE}
    entry = 4 / np.sqrt(0.035) / 10**6
    error, steps = found_inside(50, people=10**6, multiplier=4.0, far=True, rng=np.random.default_rng(0), **terms)
    assert steps == 4 and 0 < np.linalg.norm(error) < 2 * entry * np.sqrt(50)
    # Where the first ball was wide and few people are in it, the last two steps are repeated.
    wide = found_inside(50, people=1500, multiplier=4.0, far=True, rng=np.random.default_rng(0), **terms)
    assert wide[1] == 6
    near = found_inside(50, people=1500, multiplier=4.0, far=False, rng=np.random.default_rng(0), **terms)
    assert near[1] == 4
    # Noise larger than the ball leaves the mean where it was, within the bound.
    lost, _ = found_inside(50, people=10, multiplier=4.0, far=False, rng=np.random.default_rng(0), **terms)
    assert np.linalg.norm(lost) == pytest.approx(1.0)


def test_predictions_tell_half_the_people_apart() -> None:
    for method in ("curator/covariance", "curator/power", "stream/block", "hub/krylov", "site/merge", "peers/segments"):
        whole, half = (forecast(facts(people=people), method, fits=10).captured.value for people in (1200, 600))
        assert whole > half + 0.03, method


def test_looking_for_the_mean_costs_its_share() -> None:
    known, looked = (forecast(facts(people=500, center=center), "curator/covariance") for center in (None, "private"))
    # The same noise is drawn for both. The error of the mean alone costs 0.018, the shares of the budget the rest.
    assert looked.captured.value < known.captured.value - 0.024


@pytest.mark.parametrize(
    "method", ["curator/covariance", "hub/krylov", "site/covariance", "masked/covariance", "peers/covariance"]
)
def test_the_noise_that_is_stated_is_that_of_the_parties(method: str) -> None:
    pca = fitted(method, look=False, seed=0, neighbours="zero-out")
    stated = candidate_of(facts(center=None, neighbours=Neighbours.ZERO_OUT), method)
    dim = pca.n_features_in_
    expected, edge = math.sqrt(2 * dim), symmetric_edge(dim)
    if isinstance(stated.plan, MethodPlan) and stated.plan.method == "krylov":
        width = stated.plan.width
        expected, edge = math.sqrt(dim) + math.sqrt(width), product_edge(dim, width)
    # A plan states the expected norm of the noise, and a floor is its edge, in units of variance.
    assert stated.noise / expected * edge == pytest.approx(pca.noise_floor_ * PEOPLE, rel=2e-3)


def test_a_mean_is_found_as_exactly_as_noise_allows() -> None:
    rng = np.random.default_rng(0)
    terms: dict[str, Any] = {"shares": (0.06, 0.08, 0.08), "neighbours": Neighbours.ADD_REMOVE, "rng": rng}
    error, steps = found_center(50, people=10**6, multiplier=4.0, far=True, **terms)
    # The second look has noise of 4 / sqrt(0.08) / 10^6 on each of 50 entries, and is shrunk towards the first.
    assert steps == 2 and 0 < np.linalg.norm(error) < 2 * 4 / np.sqrt(0.08) / 10**6 * np.sqrt(50)
    assert found_center(50, people=10**6, multiplier=4.0, far=False, **terms)[1] == 1
    # Noise larger than the ball: the fit stays where it began, as far off as the mean is.
    lost, steps = found_center(50, people=10, multiplier=4.0, far=True, **terms)
    assert steps == 1 and np.linalg.norm(lost) == pytest.approx(0.6)
    # Noise of a third of the ball: no second look.
    assert found_center(50, people=300, multiplier=4.0, far=True, **terms)[1] == 1


def test_judging_is_by_angles_and_variance() -> None:
    values = np.array([4.0, 2.0, 1.0, 1.0])
    assert judged(np.eye(4)[:, [1, 0]], values) == (1.0, 0.0)
    rotated = np.zeros((4, 2))
    rotated[0, 0], rotated[1, 1], rotated[2, 1] = 1.0, 0.6, 0.8
    captured, sine = judged(rotated, values)
    assert captured == pytest.approx((4 + 2 * 0.36 + 0.64) / 6) and sine == pytest.approx(0.8)


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
                judged(leading_under_noise(2000 * values, None, scale=scale, rank=3, noise=Noise.seeded(s))[1], values)[0]
                for s in range(20)
            ]
        )
        for scale in (4.0, 5.0)
    ]
    assert means[0] > means[1] + 0.02
