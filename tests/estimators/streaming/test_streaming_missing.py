"""Private streams with missing values: rates from the first block, in every way of publishing, and through a saved state."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from eigenveil import StreamingPCA
from eigenveil.linalg import Subspace

RNG = np.random.default_rng(3)
WHOLE = RNG.standard_normal((12000, 5)) * [5, 3, 2, 1, 1] @ np.linalg.qr(RNG.standard_normal((5, 5)))[0] + 1
TORN = np.where(RNG.random(WHOLE.shape) < np.linspace(0.5, 0.0, 5), np.nan, WHOLE)
BUDGET: dict[str, Any] = {"epsilon": 3.0, "delta": 1e-6, "row_bound": 15.0, "block_size": 2000, "random_state": 1}
RULES: dict[str, dict[str, Any]] = {
    "counts": {"missing": "counts"},
    "groups": {"missing": "groups", "missing_groups": "0,1;2"},
    "drop": {"missing": "drop"},
    "fill": {"missing": "fill", "missing_fill": 1.0},
}
WAYS: dict[str, dict[str, Any]] = {
    "sync": {},
    "bound found": {"row_bound": "private"},
    "units found": {"scale": "private"},
    "given units": {"scale": 2.0, "row_bound": 8.0},
    "block": {"publish": "block"},
    "continual": {"publish": "continual", "horizon": 12000},
}


def stream(rule: str, **choices: Any) -> StreamingPCA:
    return StreamingPCA(2, **(BUDGET | RULES[rule] | choices))


def captured(pca: StreamingPCA) -> float:
    moved = (WHOLE - WHOLE.mean(axis=0)) / (1.0 if pca.model_.scale is None else pca.model_.scale)
    return pca.subspace_.captured(moved) / Subspace.of(moved, rank=2).captured(moved)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rule", RULES)
def test_a_private_stream_handles_gaps(rule: str, way: str) -> None:
    if (rule, way) == ("drop", "units found"):
        # Too few complete rows for a search.
        return
    pca = stream(rule, **WAYS[way]).fit(TORN)
    least = {"counts": 0.97, "groups": 0.96, "drop": 0.85, "fill": 0.85}[rule]
    assert captured(pca) > least
    assert pca.guarantee_.epsilon == 3.0
    scores = pca.transform(TORN[:50])
    assert np.array_equal(np.isnan(scores).all(axis=1), np.isnan(TORN[:50]).any(axis=1) & (rule == "drop"))


def test_without_a_center_entries_are_counted_by_themselves() -> None:
    for rule, label in (("counts", "observed entries"), ("drop", "count")):
        pca = stream(rule, center=None, row_bound=20.0).fit(TORN)
        assert pca.guarantee_.charges[0].label == label
        expected = Subspace.of(WHOLE, rank=1)
        assert expected.sines(pca.subspace_.truncate(1)).max() < 0.3


def test_variances_are_those_of_the_whole_rows() -> None:
    pca = stream("counts", row_bound=30.0).fit(TORN)
    np.testing.assert_allclose(pca.explained_variance_, np.linalg.eigvalsh(np.cov(WHOLE.T))[::-1][:2], rtol=0.1)


def test_sparse_streams_may_store_gaps() -> None:
    rows = np.where(np.abs(TORN - 1) < 1, 0.0, TORN - 1)
    for rule in ("counts", "fill"):
        dense, sparse = (stream(rule, center=None).fit(kind) for kind in (rows, sp.csr_array(rows)))
        np.testing.assert_allclose(np.abs(dense.components_ @ sparse.components_.T), np.eye(2), atol=1e-3)


@pytest.mark.parametrize("rule", RULES)
def test_a_saved_stream_continues_with_its_rates(rule: str, tmp_path: Path) -> None:
    at_once = stream(rule).partial_fit(TORN).sync()
    first = stream(rule).partial_fit(TORN[:5000])
    first.save_state(tmp_path / "state")
    again = StreamingPCA.resume(tmp_path / "state").partial_fit(TORN[5000:]).sync()
    np.testing.assert_array_equal(again.components_, at_once.components_)


def test_what_cannot_be_meant_is_refused() -> None:
    with pytest.raises(ValueError, match="missing is for a private stream"):
        StreamingPCA(2, epsilon=None, missing="counts").fit(TORN)
    with pytest.raises(ValueError, match="a private stream takes no gaps without a rule"):
        StreamingPCA(2, **BUDGET).fit(TORN)
    rows = TORN.copy()
    rows[7, 2] = np.inf
    with pytest.raises(ValueError, match="infinity"):
        stream("counts").fit(rows)


def test_columns_that_are_hardly_ever_there_do_not_drown_the_others_in_noise() -> None:
    rng = np.random.default_rng(8)
    whole = rng.standard_normal((20000, 8)) * [5, 4, 3, 1, 1, 4, 3, 2]
    torn = whole.copy()
    torn[:, 5:][rng.random((20000, 3)) < 0.97] = np.nan
    pca = StreamingPCA(3, epsilon=1.0, delta=1e-6, row_bound=12.0, missing="counts", random_state=2).fit(torn)
    # Divided without regard to noise, products of rare columns become 2500 times as loud, and hide all others.
    assert pca.n_above_noise_ == 3
    assert pca.subspace_.captured(whole) / Subspace.of(whole, rank=3).captured(whole) > 0.75
