"""`scale` of a stream: public units, or units that the first block finds; in states, merges, models and guarantees."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from eigenveil import Model, StreamingPCA
from eigenveil.core.mechanism import Gaussian
from eigenveil.errors import TooFewPeople
from eigenveil.estimators.streaming.buffer import in_units
from eigenveil.linalg import Array
from estimators.streaming.streams_of_rows import WAYS, exact, private

RNG = np.random.default_rng(8)
UNITS = np.array([1e-3, 1.0, 50.0, 1e4, 0.02, 7.0])
PLAIN = RNG.standard_normal((9000, 2)) @ RNG.standard_normal((2, 6)) * 2 + RNG.standard_normal((9000, 6))
# Each column is far from zero compared with its spread.
ROWS = (PLAIN / PLAIN.std(axis=0) + [333, -30, 5, 1000, 0, 1e5]) * UNITS
FOUND: dict[str, Any] = {"scale": "private", "row_bound": "private", "epsilon": 3.0, "block_size": 1500}


def captured(components: Array, rows: Array = ROWS) -> float:
    correlation = np.corrcoef(rows.T)
    best = np.linalg.eigvalsh(correlation)[-len(components) :].sum()
    return float(np.trace(components @ correlation @ components.T) / best)


def ways(name: str) -> dict[str, Any]:
    return WAYS[name] | ({"horizon": len(ROWS)} if name == "tree" else {})


@pytest.mark.parametrize("way", WAYS)
def test_public_units_are_those_of_rows_that_were_divided_before(way: str) -> None:
    near = ROWS / UNITS - [333, -30, 5, 1000, 0, 1e5]
    there = private(scale=UNITS, row_bound=5.0, **ways(way)).fit(near * UNITS)
    divided = private(row_bound=5.0, **ways(way)).fit(near)
    np.testing.assert_allclose(there.components_, divided.components_, atol=1e-9)
    np.testing.assert_allclose(there.explained_variance_, divided.explained_variance_, rtol=1e-9)
    np.testing.assert_allclose(there.mean_, divided.mean_ * UNITS, atol=1e-9 * UNITS.max())
    assert there.noise_floor_ == divided.noise_floor_
    np.testing.assert_allclose(there.transform(near * UNITS), divided.transform(near), atol=1e-8)
    back = there.inverse_transform(there.transform(near[:50] * UNITS))
    np.testing.assert_allclose(back / UNITS, divided.inverse_transform(divided.transform(near[:50])), atol=1e-8)


@pytest.mark.parametrize("way", WAYS)
def test_units_are_found_in_the_first_block(way: str) -> None:
    pca = private(**FOUND, **ways(way)).fit(ROWS)
    assert captured(pca.components_) > 0.97
    model = pca.model_
    assert model.scale is not None
    ratio = model.scale / ROWS.std(axis=0)
    assert ratio.min() > 0.5 and ratio.max() < 2
    assert np.abs((model.mean - ROWS.mean(axis=0)) / ROWS.std(axis=0)).max() < 0.3
    assert model.settings["row_bound"] == pytest.approx(np.sqrt(6))
    assert model.settings["scale_from"] == "found privately"
    labels = [charge.label for charge in pca.guarantee_.charges]
    assert labels[:5] == [*(f"columns, round {step}" for step in range(1, 5)), "mean"]
    assert pca.ledger_ is not None
    assert pca.ledger_.spent_mu == pytest.approx(pca.ledger_.budget.mu)


def test_sparse_rows_have_units_too() -> None:
    rows = (RNG.random((6000, 8)) < 0.4) * RNG.gamma(3.0, size=(6000, 8)) * np.array([1, 50, 1, 1, 0.01, 1, 1, 9])
    whole, thin = (private(**FOUND).fit(given) for given in (rows, sp.csr_array(rows)))
    assert captured(thin.components_, rows) > 0.8
    np.testing.assert_allclose(thin.components_, whole.components_, atol=0.05)
    given = exact(scale=[1.0, 50, 1, 1, 0.01, 1, 1, 9])
    np.testing.assert_allclose(given.fit(sp.csr_array(rows)).components_, exact().fit(rows / given.scale).components_, atol=1e-6)


def test_without_privacy_units_are_given_and_gaps_are_filled_in_them() -> None:
    torn = np.where(RNG.random(ROWS.shape) < 0.1, np.nan, ROWS)
    there, divided = exact(scale=UNITS).fit(torn), exact().fit(torn / UNITS)
    np.testing.assert_allclose(there.components_, divided.components_, atol=1e-6)
    np.testing.assert_allclose(there.transform(torn[:40]), divided.transform(torn[:40] / UNITS), atol=1e-5)
    first = exact(scale="private").partial_fit(ROWS[:50])
    np.testing.assert_allclose(np.asarray(first.model_.scale), ROWS[:50].std(axis=0), rtol=1e-9)
    units = np.asarray(first.partial_fit(torn[50:]).model_.scale)
    assert 0.5 < (units / ROWS.std(axis=0)).min() <= (units / ROWS.std(axis=0)).max() < 2
    np.testing.assert_allclose(exact(scale="private").fit(ROWS).components_, exact(scale=units).fit(ROWS).components_, atol=0.2)
    with pytest.raises(ValueError, match="scale='private' needs center='private'"):
        private(**FOUND, center=None).fit(ROWS)


@pytest.mark.parametrize("seen", [700, 4000])
def test_a_resumed_stream_keeps_its_units(tmp_path: Path, seen: int) -> None:
    path = tmp_path / "stream.state"
    private(**FOUND).partial_fit(ROWS[:seen]).save_state(path)
    went_on = StreamingPCA.resume(path).partial_fit(ROWS[seen:]).sync()
    whole = private(**FOUND).fit(ROWS)
    np.testing.assert_array_equal(went_on.components_, whole.components_)
    assert went_on.model_.scale is not None
    np.testing.assert_array_equal(went_on.model_.scale, np.asarray(whole.model_.scale))
    model = tmp_path / "model.safetensors"
    went_on.save(model)
    np.testing.assert_array_equal(Model.load(model).transform(ROWS[:9]), whole.transform(ROWS[:9]))


def test_streams_in_different_units_do_not_merge() -> None:
    half, rest = np.split(ROWS, 2)
    one, other = private(scale=UNITS).fit(half), private(scale=UNITS, random_state=1).fit(rest)
    assert one.merge(other).n_samples_seen_ == len(ROWS)
    for scale in (None, 2 * UNITS):
        with pytest.raises(ValueError, match="different units"):
            private(scale=scale).fit(half).merge(other)
    found, apart = (private(**FOUND, random_state=seed).fit(part) for seed, part in enumerate((half, rest)))
    before = found.n_samples_seen_
    with pytest.raises(ValueError, match="different units"):
        found.merge(apart)
    with pytest.raises(ValueError, match="not full yet"):
        private(**FOUND).partial_fit(half[:10]).merge(apart)
    assert found.n_samples_seen_ == before
    # A unit of one is the same as none.
    private(scale=1.0).fit(half).merge(private(random_state=2).fit(rest))


def test_a_first_block_that_is_too_short_costs_nothing() -> None:
    pca = private(**FOUND)
    pca.partial_fit(ROWS[:100])
    assert pca.plan_.first_block >= 135 * np.sqrt(6) / 1.0
    with pytest.raises(TooFewPeople, match="Nothing was released"):
        pca.sync()
    assert pca.ledger_ is not None and pca.ledger_.charges == ()
    assert captured(pca.partial_fit(ROWS[100:]).sync().components_) > 0.9


def test_flat_columns_are_named() -> None:
    rows = np.column_stack([ROWS, np.full(len(ROWS), 7.0)])
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        pca = private(**FOUND).fit(rows)
    assert pca.model_.settings["flat_columns"] == [6]
    assert any("1 of 7 columns hardly vary" in str(one.message) for one in said)


def test_entries_keep_their_sign_where_a_unit_makes_them_too_large() -> None:
    rows, units = np.array([[1e200, -1e200, 1.0]]), np.array([1e-200, 1e-100, 4.0])
    dense = in_units(rows, units, private=True)
    assert np.isfinite(np.square(dense)).all() and dense[0, 0] > 0 > dense[0, 1] and dense[0, 2] == 0.25
    np.testing.assert_array_equal(in_units(sp.csr_array(rows), units, private=True).toarray(), dense)
    assert in_units(rows, None, private=True) is rows


@pytest.mark.parametrize("scale", ["private", UNITS], ids=["found", "given"])
@pytest.mark.parametrize("row", [1e200, -1e8, 1e-200, 333.0])
def test_no_row_moves_a_release_by_more_than_was_said(monkeypatch: pytest.MonkeyPatch, scale: Any, row: float) -> None:
    """Two neighbouring streams with the same transcript: every private number differs by at most its sensitivity."""
    seen: list[tuple[Any, float]] = []
    public: list[Any] = []
    plain = Gaussian.release

    def release(self: Gaussian, value: Any, **more: Any) -> Any:
        found = plain(self, value, **more)
        seen.append((np.array(value.value, dtype=np.float64), value.sensitivity))
        if len(public) < len(seen):
            public.append(found)
        return np.array(public[len(seen) - 1])

    monkeypatch.setattr(Gaussian, "release", release)
    rows = ROWS[:3000].copy()
    runs = []
    for change in (ROWS[700], np.full(6, row)):
        seen.clear()
        rows[700] = change
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            private(**FOUND | {"scale": scale, "row_bound": 3.0}, neighbours="replace-one").fit(rows)
        runs.append(list(seen))
    first, second = runs
    assert len(first) == len(second) >= 3
    for (one, said), (other, again) in zip(first, second, strict=True):
        assert said == again
        assert np.linalg.norm(one - other) <= said
    assert any(np.linalg.norm(one - other) > 0.1 * said for (one, said), (other, _) in zip(first, second, strict=True))
