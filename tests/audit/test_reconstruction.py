"""What a curious hub computes from its messages, and what an outsider computes from what is published."""

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from eigenveil.audit.membership import COLUMNS, ROW_BOUND, Demonstration, Shown, made_up_people
from eigenveil.audit.reconstruction import (
    _conclusion,
    _runs,
    curious_hub,
    entries_from_components,
    listened,
    outsider,
    relative_error,
    row_from_components,
    solved,
)
from eigenveil.estimators import FederatedPCA
from eigenveil.linalg import Array, top_eigen

DIM = len(COLUMNS)
MATRIX, ROW = "the site's matrix", "one person's row"
# Rounding moves a row by sqrt(d) / 2 units of at most 2^-16 of its bound, and a release by 2^-12 of its sensitivity, at most.
# Rows here are no shorter than this part of their bound.
SHORTEST = 0.29
ROUNDED = math.sqrt(DIM) / 2 * 2.0**-16 / SHORTEST + 2.0**-12 / SHORTEST**2
PRIVATE: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-5, "row_bound": ROW_BOUND}


@pytest.fixture(scope="module")
def hub() -> Demonstration:
    return curious_hub(seed=3)


@pytest.fixture(scope="module")
def published() -> Demonstration:
    return outsider(seed=3)


def sites_of_people(seed: int = 5) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {"a": made_up_people(60, rng=rng), "b": made_up_people(40, rng=rng)}


def gram_found(sites: dict[str, Array], *, random_state: int = 1, **settings: Any) -> Array:
    pca = FederatedPCA(3, center=None, random_state=random_state, **settings)
    return solved(listened(pca, sites, site="b"), dim=DIM)


def test_without_privacy_a_hub_has_the_matrix_and_the_rows(hub: Demonstration) -> None:
    exact = [row for row in hub.rows if row.run.startswith("no privacy")]
    assert len(exact) == 6
    for row in exact:
        assert row.value < 1e-6 < row.baseline
        assert row.succeeded


def test_a_hub_that_is_trusted_with_the_noise_has_them_too(hub: Demonstration) -> None:
    for row in hub.rows:
        if "trusted" in row.run:
            # All but what rows and parts are rounded by, a part in some ten thousands.
            assert row.value < ROUNDED
            assert row.succeeded


def test_noise_that_the_hub_does_not_know_hides_people(hub: Demonstration) -> None:
    # Of twelve columns, noise comes so close to both rows with a chance of less than 1e-6.
    private = [row for row in hub.of(ROW) if "at the sites" in row.run or "masks" in row.run]
    assert len(private) == 3
    for row in private:
        assert row.value > 0.6
        assert not row.succeeded


def test_an_attack_has_succeeded_where_it_halves_the_error_of_a_guess(hub: Demonstration, published: Demonstration) -> None:
    for row in hub.rows + published.rows:
        assert row.succeeded == (row.value < row.baseline / 2)
        assert 0 <= row.value <= 1 + 1e-12
    assert not all(row.succeeded for row in hub.of(MATRIX))


def test_a_hub_says_what_it_measured(hub: Demonstration) -> None:
    assert "hid nothing" in hub.conclusion
    assert "people's rows no better than a guess" in hub.conclusion or "but not by half" in hub.conclusion
    assert all(sentence.endswith(".") for sentence in hub.story)


def test_a_conclusion_follows_from_the_numbers_and_not_from_what_was_hoped(hub: Demonstration) -> None:
    runs = _runs(1.0)
    shown: dict[str, tuple[Shown, Shown]] = {}
    for run in runs:
        matrix, row = (one for one in hub.rows if one.run == run.name)
        # What is told of an attack that fails where it should not and works where it should not.
        worked = run.kind == "private"
        value = 0.01 if worked else 0.9
        shown[run.name] = (matrix, replace(row, value=value, succeeded=worked))
    told = _conclusion(runs, shown)
    assert "Without privacy the attack did not succeed everywhere" in told
    assert "hid nothing" not in told
    assert "it still got people's rows in" in told


@pytest.mark.parametrize("method", ["power", "fedpower"])
def test_as_many_rounds_are_enough_as_bases_fill_the_space(method: str) -> None:
    sites = sites_of_people()
    gram = sites["b"].T @ sites["b"]
    settings: dict[str, Any] = {"epsilon": None, "method": method, "oversample": 1}
    assert relative_error(gram_found(sites, rounds=3, **settings), gram) < 1e-9
    assert relative_error(gram_found(sites, rounds=2, **settings), gram) > 1e-3


def test_krylov_rounds_are_read_as_well() -> None:
    sites = sites_of_people()
    found = gram_found(sites, epsilon=None, method="krylov")
    assert relative_error(found, sites["b"].T @ sites["b"]) < 1e-9


@pytest.mark.parametrize("trust", ["site", "masked"])
def test_the_attack_finds_a_person_where_noise_is_used_twice(trust: Any) -> None:
    sites = sites_of_people()
    person = sites["b"][0]
    without = sites | {"b": sites["b"][1:]}
    settings = PRIVATE | {"method": "covariance", "trust": trust}
    same = gram_found(sites, **settings) - gram_found(without, **settings)
    fresh = gram_found(sites, **settings) - gram_found(without, random_state=2, **settings)
    # What noise is added to is rounded to whole steps, and under masks to coarser ones.
    assert relative_error(top_eigen(same, rank=1)[1].ravel(), person) < (ROUNDED if trust == "site" else 1e-2)
    assert relative_error(top_eigen(fresh, rank=1)[1].ravel(), person) > 0.4


def test_under_masks_a_hub_hears_the_total_and_no_parts() -> None:
    sites = sites_of_people()
    settings = PRIVATE | {"epsilon": 10.0, "method": "covariance", "trust": "masked"}
    heard = listened(FederatedPCA(3, center=None, random_state=1, **settings), sites, site="b")
    assert heard.parts == ()
    together = sum(rows.T @ rows for rows in sites.values())
    assert relative_error(solved(heard, dim=DIM), np.asarray(together)) < 0.5


def test_the_same_seed_gives_the_same_numbers_under_masks_too() -> None:
    sites = sites_of_people()
    settings = PRIVATE | {"method": "covariance", "trust": "masked"}
    np.testing.assert_array_equal(gram_found(sites, **settings), gram_found(sites, **settings))


def test_relative_error_grants_the_factor_and_nothing_else() -> None:
    rng = np.random.default_rng(0)
    truth, other = rng.standard_normal((2, 5, 5))
    assert relative_error(-7 * truth, truth) < 1e-15
    assert 0 < relative_error(truth + 0.1 * other, truth) < relative_error(truth + other, truth) <= 1
    assert relative_error(np.zeros((5, 5)), truth) == 1


def test_without_privacy_an_outsider_has_the_row_of_the_last_person(published: Demonstration) -> None:
    exact, *private = published.of(ROW)
    assert exact.value < 1e-6
    assert exact.succeeded
    assert [row.run for row in private] == ["epsilon = 1", "epsilon = 0.1"]
    for row in private:
        # An average over fifty people, of whom no noise points at all.
        assert row.value > 0.7
        assert not row.succeeded


def test_what_columns_have_in_common_is_no_secret_of_a_person(published: Demonstration) -> None:
    # At epsilon = 1 the weights of components come out well enough from few entries in most studies, and from variances in all.
    for target, at_one in (("covariances, some known", False), ("covariances, none known", True)):
        exact, one, tenth = published.of(target)
        assert exact.succeeded
        assert one.succeeded or not at_one
        assert not tenth.succeeded
    assert "published on purpose" in published.conclusion


def test_a_demonstration_can_be_written_down(published: Demonstration) -> None:
    plain = json.loads(json.dumps(published.to_json()))
    assert set(plain) == {"title", "story", "measure", "guess", "rows", "conclusion"}
    assert [row["value"] for row in plain["rows"]] == [row.value for row in published.rows]


def test_entries_are_exact_where_components_say_everything() -> None:
    rng = np.random.default_rng(1)
    basis = np.linalg.qr(rng.standard_normal((DIM, 3)))[0]
    matrix = (basis * [5.0, 2.0, 1.0]) @ basis.T
    known = (1, 4, 7, 9)
    found = entries_from_components(basis.T, matrix[known, known], columns=known)
    assert np.abs(found - matrix).max() < 1e-9
    with pytest.raises(ValueError, match="at least as many columns as components, 3, got 2"):
        entries_from_components(basis.T, matrix[(0, 1), (0, 1)], columns=(0, 1))


def test_a_row_is_exact_from_two_components_of_a_whole_matrix() -> None:
    rows = made_up_people(30, rng=np.random.default_rng(2))
    _, values, directions = np.linalg.svd(rows, full_matrices=False)
    others = rows[1:].T @ rows[1:]
    assert relative_error(row_from_components(directions[:2], values[:2], others), rows[0]) < 1e-9
    # Of somebody who is among the others there is nothing left to find.
    assert relative_error(row_from_components(directions[:2], values[:2], others), rows[1]) > 0.1
