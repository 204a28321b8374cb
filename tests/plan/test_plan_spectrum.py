"""What is known of a spectrum: guesses hit what they are told, tables are clipped as in a fit, doubt has the stated size."""

import json
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from eigenveil.linalg import expected_captured_variance
from eigenveil.plan.spectrum import Spectrum, condensed


@given(st.integers(2, 300), st.data())
def test_a_guess_explains_what_it_was_told(dim: int, data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, dim - 1))
    explained = data.draw(st.floats(rank / dim, 0.999))
    bound_usage = data.draw(st.floats(0.01, 1.0))
    guess = Spectrum.guessed(dim, rank=rank, explained=explained, bound_usage=bound_usage)
    # Nobody knows a share closer to one than to half a percent.
    assert guess.explained(rank) == pytest.approx(min(explained, max(0.995, rank / dim)), abs=1e-9)
    assert guess.bound_usage == pytest.approx(bound_usage)
    assert guess.spread == 0.5 and "a guess" in guess.source


def test_a_guess_without_numbers_falls_like_one_over_i() -> None:
    np.testing.assert_allclose(Spectrum.guessed(4).values, 0.5 / np.arange(1, 5) / (1 + 1 / 2 + 1 / 3 + 1 / 4))
    np.testing.assert_allclose(Spectrum.guessed(4, decay=0.0, bound_usage=1.0).values, 0.25)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("center", [None, "private"])
@pytest.mark.parametrize("row_bound", [None, 2.0])
def test_the_spectrum_of_a_public_table_is_that_of_its_rows_as_cut(wide: bool, center: Any, row_bound: float | None) -> None:
    rng = np.random.default_rng(0)
    shape = (8, 30) if wide else (40, 6)
    rows = rng.standard_normal(shape) * (rng.random(shape) < 0.5) * (0.6 if wide else 1.0)
    moved = rows - rows.mean(axis=0) if center else rows
    if row_bound is not None:
        norms = np.maximum(np.linalg.norm(moved, axis=1, keepdims=True), 1e-300)
        assert (norms > row_bound).any() and (norms < row_bound).any()
        moved = moved * np.minimum(1, row_bound / norms)
    values = np.maximum(np.linalg.eigvalsh(moved.T @ moved)[::-1], 0) / len(rows)
    expected = values / row_bound**2 if row_bound is not None else 0.3 * values / values.sum()
    for table in (rows, sp.csr_array(rows)):
        found = Spectrum.of_rows(table, row_bound=row_bound, bound_usage=0.3, center=center)
        np.testing.assert_allclose(found.values, expected, atol=1e-12)
        assert found.spread == 0.2 and "public" in found.source


def test_variances_come_in_any_order_and_units() -> None:
    np.testing.assert_allclose(Spectrum.of_variances([1.0, 3.0]).values, [0.375, 0.125])
    np.testing.assert_allclose(Spectrum.of_variances([1.0, 3.0], dim=3, row_bound=4.0).values, [3 / 16, 1 / 16, 0.0])


def test_a_spectrum_survives_being_plain() -> None:
    spectrum = Spectrum(values=np.array([0.25, 0.125]), source="released", spread=0.1, error=0.01)
    again = Spectrum.from_json(json.loads(json.dumps(spectrum.to_json())))
    assert (again.source, again.spread, again.error) == ("released", 0.1, 0.01)
    assert again.values.tolist() == [0.25, 0.125]


def test_doubt_is_of_the_stated_size_and_stays_a_spectrum() -> None:
    spectrum = Spectrum(values=Spectrum.guessed(50, bound_usage=0.1).values, source="", spread=0.3)
    rng = np.random.default_rng(0)
    drawn = np.array([spectrum.drawn(rng) for _ in range(4000)])
    assert (np.diff(drawn, axis=1) <= 0).all() and (drawn >= 0).all() and (drawn.sum(axis=1) <= 1 + 1e-12).all()
    # The deviation of 4000 logarithms is known to 0.3 / sqrt(8000) = 0.0034, of which five are a level of 1e-6. The first value
    # is above the others so often that sorting changes little, and the total is far below one.
    off = np.log(drawn[:, 0] / spectrum.values[0])
    assert off.std() == pytest.approx(0.3, abs=0.03)
    # Neighbours are off together, those far apart hardly.
    near, far = (np.corrcoef(off, np.log(drawn[:, at] / spectrum.values[at]))[0, 1] for at in (1, 49))
    assert near > 0.55 and far < near - 0.2


def test_an_error_is_added_to_every_value() -> None:
    spectrum = Spectrum(values=np.array([0.5, 1e-9, 0.0]), source="", error=0.01)
    rng = np.random.default_rng(0)
    drawn = np.array([spectrum.drawn(rng) for _ in range(4000)])
    assert (drawn[:, 0] - 0.5).std() == pytest.approx(0.01, rel=0.06)
    assert (drawn[:, 1:] > 0).any()
    assert np.array_equal(Spectrum(values=np.array([0.5]), source="").drawn(rng), [0.5])


def test_what_somebody_knows_of_all_rows_is_doubted_of_clipped_ones() -> None:
    # In one table two of 22 components had 79% of the variance, and 30% once long rows were clipped. Bounds were filled to 0.15.
    rng = np.random.default_rng(0)
    guess = Spectrum.guessed(22, rank=2, explained=0.95)
    drawn = [Spectrum(values=guess.drawn(rng), source="") for _ in range(800)]
    assert 0.1 < np.mean([spectrum.explained(2) < 0.65 for spectrum in drawn]) < 0.3
    assert 0.03 < np.mean([spectrum.bound_usage < 0.16 for spectrum in drawn]) < 0.15
    # Numbers about clipped rows are taken as they are told.
    told = Spectrum.of_variances([9.0, 1.0], dim=5, row_bound=4.0)
    assert np.array_equal(told.drawn(rng), told.values)


@pytest.mark.parametrize("dim", [20, 100])
def test_a_condensed_spectrum_keeps_the_top_and_the_average_of_the_rest(dim: int) -> None:
    values = Spectrum.guessed(1000, decay=0.7).values
    fewer = condensed(values, dim, rank=3)
    assert len(fewer) == dim
    np.testing.assert_array_equal(fewer[: dim // 2], values[: dim // 2])
    assert (np.diff(fewer) <= 0).all()
    assert fewer[dim // 2 :].mean() == pytest.approx(values[dim // 2 :].mean(), rel=0.1)


def test_found_shares_run_from_none_to_all() -> None:
    top = np.array([4.0, 2.0])
    assert expected_captured_variance(top, entry=0.0, dim=10) == 1.0
    assert expected_captured_variance(top, entry=4.0, dim=1) == 0.0
    # 1 - 4 / 16 of the first and 1 - 4 / 4 of the second.
    assert expected_captured_variance(top, entry=1.0, dim=4) == pytest.approx(0.75 * 4 / 6)
    assert expected_captured_variance(np.array([1.0, 0.0]), entry=0.5, dim=1) == pytest.approx(0.75)


def test_directions_at_random_have_the_average_variance() -> None:
    assert Spectrum(values=np.array([0.3, 0.1]), source="").at_random(2) == 1.0
    assert Spectrum(values=np.array([0.3, 0.1, 0.0, 0.0]), source="").at_random(1) == pytest.approx(1 / 3)
