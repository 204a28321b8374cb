"""A federated fit without privacy is the pooled fit: whatever the method, the storage, and how rows are spread over sites."""

import math
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.decomposition import PCA

from eigenveil import FederatedPCA
from eigenveil.errors import QuorumLost
from eigenveil.linalg import Array, sines
from eigenveil.runtimes.local import Faults
from estimators.sites_of_rows import (
    COLUMNS,
    DIM,
    KINDS,
    component_rounds,
    cut,
    federated,
    grouped_answer,
    off,
    pooled_answer,
    pooled_rows,
    same_bits,
    stored,
)

ROWS = pooled_rows()
EVEN = np.array_split(ROWS, 5)
EXACT = ["krylov", "power", "covariance"]
# How far from the pooled directions the others may be, as a sine, on sites whose rows are alike.
ABOUT = {"dr-svd": 0.2, "merge": 1e-6, "uda": 0.35, "wda": 0.35, "fedpower": 1e-6}
METHODS = EXACT + list(ABOUT)
SUMS = [*EXACT, "fedpower", "dr-svd"]


@pytest.mark.parametrize("rank", [1, 3, 5])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_finds_the_pooled_directions(method: str, rank: int) -> None:
    pca = federated(rank, method=method).fit(EVEN)
    basis, _ = pooled_answer(ROWS, rank)
    assert off(pca, basis) < ABOUT.get(method, 1e-6)
    assert np.abs(pca.components_ @ pca.components_.T - np.eye(rank)).max() < 1e-12
    assert np.allclose(pca.mean_, ROWS.mean(axis=0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_variances_are_those_of_the_rows(method: str) -> None:
    values = pooled_rows(6000)
    pca = federated(method=method).fit(np.array_split(values, 6))
    reference = PCA(3).fit(values)
    close = 1e-6 if method in (*EXACT, "merge") else 0.03
    assert pca.explained_variance_ == pytest.approx(reference.explained_variance_, rel=close)
    assert pca.explained_variance_ratio_ == pytest.approx(reference.explained_variance_ratio_, rel=close)
    assert pca.singular_values_ == pytest.approx(reference.singular_values_, rel=close)


UNEVEN: dict[str, list[Array]] = {
    "uneven": cut(ROWS, 7, 300, 50),
    "an empty one": [*cut(ROWS, 200), ROWS[:0]],
    "an empty one first": [ROWS[:0], *cut(ROWS, 200)],
    "one row": cut(ROWS, 1, 300),
    "fewer rows than components": cut(ROWS, 2, 1, 300),
    "one site": [ROWS],
    "rows one by one": cut(ROWS[:30], *[1] * 29),
}


@pytest.mark.parametrize("sites", UNEVEN.values(), ids=UNEVEN.keys())
@pytest.mark.parametrize("method", [*EXACT, "merge", "fedpower", "dr-svd", "uda", "wda"])
def test_rows_may_lie_anyhow(method: str, sites: list[Array]) -> None:
    values = np.vstack(sites)
    pca = federated(method=method).fit(sites)
    assert np.allclose(pca.mean_, values.mean(axis=0), rtol=0, atol=1e-12)
    assert np.isfinite(pca.components_).all()
    if method in (*EXACT, "merge", "fedpower") or (len(sites) == 1 and method != "dr-svd"):
        assert off(pca, pooled_answer(values, 3)[0]) < 1e-6
    assert pca.sites_ == tuple(f"site {i}" for i in range(len(sites)))


@pytest.mark.parametrize("count", [1, 2, 9, 40])
@pytest.mark.parametrize("topology", ["star", "tree"])
def test_any_number_of_sites(count: int, topology: str) -> None:
    pca = federated(topology=topology, fanout=3).fit(np.array_split(ROWS, count))
    assert off(pca, pooled_answer(ROWS, 3)[0]) < 1e-6
    assert len(pca.sites_) == count


# Every method and every storage, in pairs.
@pytest.mark.parametrize(
    ("kind", "method"), [(kind, METHODS[(at + more) % 8]) for at, kind in enumerate(KINDS) for more in (0, 4)]
)
def test_storage_does_not_matter(kind: str, method: str) -> None:
    plain = federated(method=method).fit(EVEN)
    pca = federated(method=method).fit([stored(rows, kind) for rows in EVEN])
    assert sines(pca.components_.T, plain.components_.T).max() < 1e-9
    assert pca.mean_ == pytest.approx(plain.mean_, abs=1e-12)


def far_apart() -> list[Array]:
    """Sites whose own means lie far from each other, and whose rows spread in directions of their own."""
    rng = np.random.default_rng(5)
    return [
        rng.standard_normal((40 + 30 * i, DIM)) * rng.permutation(np.linspace(0.5, 3, DIM)) + 50 * np.eye(DIM)[i] * i
        for i in range(5)
    ]


@pytest.mark.parametrize("method", [*EXACT, "fedpower", "merge"])
def test_the_center_is_the_mean_over_all_sites(method: str) -> None:
    sites = far_apart()
    values = np.vstack(sites)
    pca = federated(method=method, center="private").fit(sites)
    basis, variances = pooled_answer(values, 3)
    assert np.allclose(pca.mean_, values.mean(axis=0), rtol=0, atol=1e-10)
    assert off(pca, basis) < 1e-6
    assert pca.explained_variance_ == pytest.approx(variances, rel=1e-6)
    # With a mean of its own at each site nothing of what sets the sites apart would be left.
    own = np.vstack([site - site.mean(axis=0) for site in sites])
    assert off(pca, pooled_answer(own, 3, center=np.zeros(DIM))[0]) > 0.5


@pytest.mark.parametrize("method", METHODS)
def test_a_center_may_be_none_or_given(method: str) -> None:
    for center in (None, np.arange(DIM) / 4):
        given = np.zeros(DIM) if center is None else center
        pca = federated(2, method=method, center=center).fit(EVEN)
        assert np.array_equal(pca.mean_, given)
        assert off(pca, pooled_answer(ROWS, 2, center=given)[0]) < ABOUT.get(method, 1e-6)


@pytest.mark.parametrize("method", [*EXACT, "merge", "fedpower"])
@pytest.mark.parametrize("kind", ["pandas", "polars", "pyarrow"])
def test_a_persons_rows_at_a_site_count_as_one(kind: str, method: str) -> None:
    rng = np.random.default_rng(3)
    ids = [rng.integers(0, 30, len(rows)) for rows in EVEN]
    tables: list[Any] = []
    for rows, who in zip(EVEN, ids, strict=True):
        table = pd.DataFrame(rows, columns=COLUMNS)
        table.insert(4, "who", [f"p{i}" for i in who])
        if kind == "polars":
            import polars as pl

            tables.append(pl.from_pandas(table))
        elif kind == "pyarrow":
            import pyarrow as pa

            tables.append(pa.Table.from_pandas(table, preserve_index=False))
        else:
            tables.append(table)
    pca = federated(method=method, person="who").fit(tables)
    mean, basis = grouped_answer(list(zip(EVEN, ids, strict=True)), 3)
    assert np.allclose(pca.mean_, mean, rtol=0, atol=1e-10)
    assert off(pca, basis) < 1e-6
    assert pca.scores(tables[0]).shape == (len(EVEN[0]), 3)
    assert np.array_equal(pca.scores(tables[0]), pca.transform(pd.DataFrame(EVEN[0], columns=COLUMNS)))


@pytest.mark.parametrize("method", [*EXACT, "fedpower"])
def test_units_and_bounds_are_applied_before_anything_is_added(method: str) -> None:
    scale = np.linspace(0.5, 2, DIM)
    pca = federated(method=method, scale=scale).fit(EVEN)
    assert off(pca, pooled_answer(ROWS / scale, 3)[0]) < 1e-6
    assert pca.mean_ == pytest.approx(ROWS.mean(axis=0))
    boxed = np.clip(ROWS, -2.0, 3.0)
    pca = federated(method=method, column_bounds=(-2.0, 3.0)).fit(EVEN)
    assert off(pca, pooled_answer(boxed, 3)[0]) < 1e-6
    assert pca.mean_ == pytest.approx(boxed.mean(axis=0))
    lengths = np.linalg.norm(ROWS, axis=1)
    short = ROWS * np.minimum(1.0, 5.0 / lengths)[:, None]
    pca = federated(method=method, center=None, row_bound=5.0).fit(EVEN)
    assert off(pca, pooled_answer(short, 3, center=np.zeros(DIM))[0]) < 1e-6


@pytest.mark.parametrize(
    ("method", "fanout"), [*zip([*SUMS, "merge"], (2, 3, 4, 8, 40, 2), strict=True), ("krylov", 8), ("merge", 3)]
)
def test_a_tree_is_a_star_up_to_rounding(method: str, fanout: int) -> None:
    sites = np.array_split(ROWS, 13)
    star = federated(method=method).fit(sites)
    tree = federated(method=method, topology="tree", fanout=fanout).fit(sites)
    assert sines(star.components_.T, tree.components_.T).max() < 1e-7
    assert star.explained_variance_ == pytest.approx(tree.explained_variance_, rel=1e-9)
    assert star.mean_ == pytest.approx(tree.mean_, rel=1e-12)
    assert star.sites_ == tree.sites_


@pytest.mark.parametrize("method", ["krylov", "power", "fedpower"])
def test_rounds_and_tolerance_end_a_fit(method: str) -> None:
    for rounds in (1, 2, 5):
        pca = federated(1, method=method, rounds=rounds, tolerance=0.0, oversample=0).fit(EVEN)
        assert component_rounds(pca) == rounds
    loose, tight = (federated(1, method=method, tolerance=t, oversample=0).fit(EVEN) for t in (1e-1, 1e-6))
    assert 1 < component_rounds(loose) < component_rounds(tight)
    basis, _ = pooled_answer(ROWS, 1)
    # The last movement is below the tolerance; the error is that over one minus the factor it shrinks by, about a half.
    assert off(tight, basis) < 1e-5
    assert off(loose, basis) < 0.3


@pytest.mark.parametrize(
    ("local_steps", "steps"),
    [(4, (4, 4, 4, 4, 4)), ([5, 3, 1], (5, 3, 1, 1, 1)), (("decay", 3), (3, 2, 1, 1, 1)), ([1, 2, 3, 4, 5, 6], (1, 2, 3, 4, 5))],
)
@pytest.mark.parametrize("align", ["procrustes", "sign", "none"])
def test_local_steps_and_alignment(local_steps: Any, steps: tuple[int, ...], align: Any) -> None:
    values = pooled_rows(4000)
    sites = np.array_split(values, 4)
    choices = {"method": "fedpower", "rounds": 5, "tolerance": 0.0, "oversample": 0, "align": align}
    pca = federated(2, local_steps=local_steps, **choices).fit(sites)
    assert pca.plan_.steps == steps
    # Sites of a thousand rows that are alike: their own directions are off by a few hundredths, and so may this be. Without
    # alignment directions of opposite signs cancel, so the average may be anything.
    assert align == "none" or off(pca, pooled_answer(values, 2)[0]) < 0.1
    residuals = [round_.residual for round_ in pca.transcript_ if round_.stage.startswith("fedpower")]
    for residual, count in zip(residuals[:-1], steps[:-1], strict=True):
        assert residual is not None
        assert 0 <= residual <= 2 + 1e-9
        assert (residual == 0) == (count == 1)


@pytest.mark.parametrize("method", ["power", "fedpower"])
def test_drawing_every_site_once_is_full_participation(method: str) -> None:
    choices: dict[str, Any] = {"method": method, "rounds": 6, "tolerance": 0.0}
    full = federated(**choices).fit(EVEN)
    drawn = federated(participation=("without-replacement", 5), **choices).fit(EVEN)
    assert same_bits(full, drawn)


@pytest.mark.parametrize("scheme", ["with-replacement", "without-replacement"])
def test_a_few_drawn_sites_stand_for_all_of_them_on_average(scheme: str) -> None:
    """One product with a basis of the whole space gives away the sum that the hub made; over seeds it is that of all sites."""
    dim = 3
    values = ROWS[:90, :dim]
    sites = cut(values, 50, 30)
    found = []
    for seed in range(200):
        pca = federated(dim, method="power", rounds=1, center=None, participation=(scheme, 2), random_state=seed)
        pca.fit(sites)
        gram = pca.components_.T @ np.diag(np.square(pca.singular_values_)) @ pca.components_
        found.append(gram[np.triu_indices(dim)])
    expected = (values.T @ values)[np.triu_indices(dim)]
    error = np.std(found, axis=0) / math.sqrt(len(found))
    assert (np.abs(np.mean(found, axis=0) - expected) < 4.9 * error).all()
    # A tenth too much would be caught.
    assert (np.abs(1.1 * np.mean(found, axis=0) - expected) > 4.9 * error).any()


def test_only_some_sites_answer_where_only_some_are_drawn() -> None:
    pca = federated(method="power", rounds=4, tolerance=0.0, participation=("without-replacement", 2)).fit(EVEN)
    for round_ in pca.transcript_:
        assert len(round_.answered) == (2 if round_.stage.startswith("power") else 5)
    pca = federated(method="fedpower", rounds=4, tolerance=0.0, participation=("with-replacement", 3)).fit(EVEN)
    assert all(1 <= len(round_.answered) <= 3 for round_ in pca.transcript_ if round_.stage.startswith("fedpower"))
    assert off(pca, pooled_answer(ROWS, 3)[0]) < 0.5


@pytest.mark.parametrize("quorum", [3, 0.6, np.int64(3), np.float64(0.6), 0.41])
def test_a_quorum_goes_on_without_the_dead(quorum: Any) -> None:
    faults = Faults(dies={"site 1": 0, "site 3": 0})
    pca = federated(quorum=quorum, faults=faults).fit(EVEN)
    left = np.vstack([EVEN[0], EVEN[2], EVEN[4]])
    assert pca.sites_ == ("site 0", "site 2", "site 4")
    assert off(pca, pooled_answer(left, 3)[0]) < 1e-6
    assert pca.mean_ == pytest.approx(left.mean(axis=0))


@pytest.mark.parametrize("quorum", [None, 4, 5, 0.8, 1.0])
def test_a_lost_quorum_names_the_missing_and_can_be_resumed(quorum: Any) -> None:
    faults = Faults(dies={"site 1": 2, "site 3": 2})
    pca = federated(quorum=quorum, faults=faults)
    with pytest.raises(QuorumLost, match="site 1, site 3") as lost:
        pca.fit(EVEN)
    assert lost.value.missing == ("site 1", "site 3")
    assert not hasattr(pca, "components_")
    pca.faults = None
    pca.resume()
    assert off(pca, pooled_answer(ROWS, 3)[0]) < 1e-6
    with pytest.raises(ValueError, match="nothing to resume"):
        pca.resume()


@pytest.mark.parametrize("count", [25, 50, 100])
def test_a_share_of_the_sites_is_that_share(count: int) -> None:
    """0.28 of 25 is 7, though the product of the two as binary fractions is a little more."""
    sites = np.array_split(pooled_rows(4 * count), count)
    for share in (0.28, 0.56):
        alive = round(share * count)
        faults = Faults(dies={f"site {i}": 0 for i in range(alive, count)})
        assert len(federated(1, quorum=share, faults=faults, method="covariance").fit(sites).sites_) == alive


@pytest.mark.parametrize("method", ["krylov", "covariance"])
def test_a_tie_is_said(method: str) -> None:
    """Six directions of equal variance: whichever two are found, others would do as well."""
    sites = [np.vstack([np.eye(6), -np.eye(6)])] * 3
    with pytest.warns(UserWarning, match="components 2 and 3 cannot be told apart"):
        pca = federated(2, method=method).fit(sites)
    assert pca.tied_ is True
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert federated(2, method=method).fit(EVEN).tied_ is False
        assert federated(6, method=method).fit(sites).tied_ is False


@pytest.mark.parametrize("method", METHODS)
def test_the_transcript_says_what_happened(method: str) -> None:
    seen: list[Any] = []
    pca = federated(method=method).fit(EVEN, watch=seen.append)
    assert len(seen) == len(pca.transcript_)
    names = tuple(f"site {i}" for i in range(5))
    for number, round_ in enumerate(pca.transcript_):
        assert round_.number == number
        assert round_.answered == names
        assert round_.missing == ()
        assert round_.bytes_down > 0
        assert round_.bytes_up > 0
        assert round_.movement is None or 0 <= round_.movement <= 1
        assert round_.residual is None or method == "fedpower"
        assert round_.charges == ()
        assert not round_.restarted
    stages = [round_.stage for round_ in pca.transcript_]
    assert stages[0] == "mean"
    assert stages[1 : 1 + component_rounds(pca)] == [f"{method} {i + 1}" for i in range(component_rounds(pca))]
    assert stages[1 + component_rounds(pca) :] == ([] if method == "covariance" else ["totals"])
    # The scree so far is nothing before the components, and at the end that of the result.
    assert pca.transcript_[0].variances == ()
    np.testing.assert_allclose(pca.transcript_[-1].variances, pca.singular_values_**2)
    settings = pca.model_.settings
    assert settings["rounds"] == len(pca.transcript_)
    assert settings["bytes"] == sum(round_.bytes_down + round_.bytes_up for round_ in pca.transcript_)
    assert settings["sites"] == 5
    assert pca.refused_ == ()
    assert pca.ledgers_ == {}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("trust", ["none", "hub", "site"])
def test_the_order_of_arrival_changes_no_bit(method: str, trust: Any) -> None:
    choices: dict[str, Any] = {"method": method}
    if trust != "none":
        if method == "dr-svd":
            return
        choices |= {"epsilon": 1.0, "delta": 1e-6, "row_bound": 12.0, "trust": trust}
    quiet = federated(**choices).fit(EVEN)
    for faults in (Faults(delay=1.0), Faults(delay=1.0, duplicate=0.3), Faults(loss=0.2)):
        assert same_bits(quiet, federated(faults=faults, **choices).fit(EVEN))


def test_a_site_that_comes_back_with_other_rows_is_counted_with_those_alone() -> None:
    """Rows that were counted before have become others, so a fit without noise begins again."""
    rng = np.random.default_rng(8)
    sites = [rng.standard_normal((40, 6)) * [6, 5, 4, 1, 1, 1] for _ in range(3)]
    other = rng.standard_normal((40, 6)) * [1, 1, 1, 9, 1, 1]
    pca = FederatedPCA(2, epsilon=None, faults=Faults(dies={"site 2": 2}), random_state=0)
    with pytest.raises(QuorumLost):
        pca.fit(sites)
    pca.faults = None
    pca.resume({"site 2": other})
    rows = np.vstack([*sites[:2], other])
    exact = np.linalg.svd(rows - rows.mean(axis=0))[2][:2].T
    assert sines(pca.components_.T, exact).max() < 1e-7


def test_an_answer_is_at_rest_or_not_whatever_ended_it() -> None:
    """The verdict is the method's own: not the number of rounds, and not whether a restart came before."""
    needed = len([r for r in federated(2).fit(EVEN).transcript_ if r.stage.startswith("krylov")])
    for rounds in (needed, needed + 1):
        assert federated(2, rounds=rounds).fit(EVEN).converged_ is True
    assert federated(2, rounds=1, oversample=0).fit(EVEN).converged_ is False
    assert federated(2, method="power", rounds=2, oversample=0).fit(EVEN).converged_ is False


def test_variances_of_very_different_size_are_not_called_a_tie_and_found_as_well_as_can_be() -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((2000, 60)) * np.r_[2e3, 1.0, 0.5, np.full(57, 0.3)]
    pca = federated(2, center=None).fit(np.array_split(rows, 4))
    exact = np.linalg.svd(rows, full_matrices=False)[2][:2].T
    assert pca.tied_ is False
    assert sines(pca.components_.T, exact).max() < 1e-8


def test_a_far_constant_column_costs_no_digits() -> None:
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((600, 20)) * 2.0 ** -np.arange(20.0)
    rows[:, 7] = 1e12
    exact = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)[2][:3].T
    for method in ("krylov", "power"):
        found = federated(3, method=method).fit(np.array_split(rows, 4))
        assert sines(found.components_.T, exact).max() < 1e-7


def test_draws_are_not_taken_for_an_answer_at_rest() -> None:
    with pytest.raises(ValueError, match="tolerance needs participation='full'"):
        federated(2, method="power", participation=("without-replacement", 1), tolerance=1e-4).fit(EVEN)
    drawn = federated(2, method="power", participation=("without-replacement", 1), rounds=5).fit(EVEN)
    assert drawn.converged_ is None


@pytest.mark.parametrize("neighbours", ["zero-out", "replace-one"])
def test_without_a_budget_it_makes_no_difference_what_would_be_protected(neighbours: str) -> None:
    sites = cut(pooled_rows(), 100, 200)
    assert same_bits(federated(neighbours=neighbours).fit(sites), federated().fit(sites))
