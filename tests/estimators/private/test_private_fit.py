"""A private fit: finite on hostile rows, as good as it says, charged line by line, and honest about what it guarantees."""

import math
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from eigenveil import BudgetExceeded, Ledger, PrivatePCA
from eigenveil.core.accounting import Budget
from eigenveil.data.rows import DenseRows
from eigenveil.errors import ParameterWarning
from eigenveil.linalg import Array, sines
from estimators.tables import NAMES, distance, private, rows, tables

METHODS = ["covariance", "power"]
MU = Budget(1.0, 1e-6).mu


def check_finite(pca: PrivatePCA) -> None:
    """Everything released is finite, ordered, and in its range."""
    for array in (pca.components_, pca.mean_, pca.explained_variance_, pca.singular_values_):
        assert np.isfinite(array).all()
    assert (pca.explained_variance_ >= 0).all() and (np.diff(pca.explained_variance_) <= 0).all()
    assert (pca.explained_variance_ratio_ >= 0).all()
    assert pca.explained_variance_ratio_.sum() <= 1 + 1e-12
    assert np.abs(pca.components_ @ pca.components_.T - np.eye(pca.n_components_)).max() < 1e-12
    assert np.allclose(pca.singular_values_, pca.subspace_.values)


def some_rows(size: float) -> Array:
    """Rows with entries of about `size`, of both signs, with a few ordinary ones and a zero one between them."""
    rng = np.random.default_rng(0)
    values: Array = rng.uniform(0.5, 1.0, (60, 6)) * rng.choice([-1.0, 1.0], (60, 6))
    values[::7] *= size
    values[3] = 0.0
    return values


HOSTILE: dict[str, Callable[[], Array]] = {
    "all zero": lambda: np.zeros((50, 6)),
    "some zero rows": lambda: rows(50) * (np.arange(50) % 2)[:, None],
    "constant columns": lambda: np.tile(np.arange(6.0), (50, 1)),
    "one constant column": lambda: rows(50) * [1, 1, 0, 1, 1, 1] + [0, 0, 7, 0, 0, 0],
    "rank one": lambda: np.outer(np.arange(50.0), np.arange(6.0)),
    "rank two": lambda: rows(50)[:, :2] @ np.ones((2, 6)),
    "one row, repeated": lambda: np.repeat(rows(1), 50, axis=0),
    "two rows": lambda: rows(2),
    "rows of 1e8": lambda: some_rows(1e8),
    "rows of 1e154": lambda: some_rows(1e154),
    "rows of 1e200": lambda: some_rows(1e200),
    "rows of 1e308": lambda: some_rows(1e308),
    "rows of 1e-200": lambda: some_rows(1e-200),
    "smallest numbers": lambda: some_rows(1.0) * 5e-324,
    "everything 1e308": lambda: np.full((50, 6), 1e308) * np.where(np.arange(6) % 2, 1, -1),
}
PLACES: dict[str, dict[str, Any]] = {
    "ball": {},
    "no center": {"center": None},
    "box": {"column_bounds": (-2.0, 3.0), "row_bound": None},
    "scale": {"scale": [1e-3, 1.0, 1e3, 1.0, 1.0, 1.0]},
}


@pytest.mark.parametrize("make", HOSTILE.values(), ids=HOSTILE.keys())
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES.keys())
@pytest.mark.parametrize("method", METHODS)
def test_hostile_rows_give_finite_answers_in_silence(make: Callable[[], Array], place: dict[str, Any], method: str) -> None:
    for store in (np.asarray, sp.csr_array):
        for wanted in (2, 0.8):
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                # Said of released numbers, and no sign of what is in a row.
                warnings.simplefilter("ignore", ParameterWarning)
                check_finite(private(wanted, method=method, **place).fit(store(make())))


@pytest.mark.parametrize("method", METHODS)
def test_a_huge_row_counts_no_more_than_its_bound(method: str) -> None:
    values = rows(4000)
    spoilt = values.copy()
    spoilt[:3] *= [[1e8], [1e200], [1e306]]
    choices: dict[str, Any] = {"method": method, "neighbours": "zero-out", "center": None}
    before, after = (private(2, **choices).fit(table) for table in (values, spoilt))
    # Three rows of length at most 12 replaced: the sum of squares moves by at most 3 * 144 in spectral norm.
    assert np.abs(before.explained_variance_ - after.explained_variance_).max() <= 3 * 144 / 3999
    assert sines(before.components_.T, after.components_.T).max() < 0.05


@pytest.mark.parametrize("method", METHODS)
def test_with_many_people_the_private_answer_is_nearly_the_exact_one(method: str) -> None:
    values = rows(100_000)
    exact = PrivatePCA(2, epsilon=None).fit(values)
    pca = private(2, method=method, row_bound=25.0).fit(values)
    # The floor exceeds the expected norm of the noise. By Gaussian concentration it is passed by t entries with probability
    # exp(-t^2 / 4), at six columns 2.6 times over with less than 1e-6. Davis and Kahan bound the sine by twice that
    # over the gap behind the second component, 9 - 4, and Weyl the change of a variance by that itself.
    noise = 2.6 * pca.noise_floor_
    assert noise < 0.7
    assert sines(pca.components_.T, exact.components_.T).max() < 2 * noise / (9 - 4)
    assert np.abs(pca.explained_variance_ - exact.explained_variance_).max() < noise + 0.01
    assert np.abs(pca.explained_variance_ratio_ - exact.explained_variance_ratio_).max() < noise / 39 + 0.01
    # One entry of the mean has a noise of 25 / (mu sqrt(0.1)) / 100_000 = 0.0033: 5.3 times that, for six entries.
    assert np.abs(pca.mean_ - exact.mean_).max() < 0.018


def test_the_noise_floor_is_where_noise_alone_ends() -> None:
    dim = 100
    pca = private(1, row_bound=1.0, neighbours="zero-out", center=None).fit(np.zeros((50, dim)))
    # The largest eigenvalue of symmetric noise is 2 + T d^(-2/3) in units of sqrt(d) entries, T Tracy-Widom: outside
    # (-7.5, 7.5) with probability about 1e-6, which at d = 100 is 0.35 of 2. The floor is at T = 2.02.
    assert pca.explained_variance_[0] == pytest.approx(pca.noise_floor_, rel=0.25)
    edge = math.sqrt(2 * dim - 1) + 2.0234 / math.sqrt(2) * dim ** (-1 / 6)
    assert pca.noise_floor_ == pytest.approx(edge / MU / 49, rel=1e-9)


def test_a_fraction_counts_what_stands_above_the_noise() -> None:
    values = rows(40_000)
    shares = np.cumsum(np.array([25.0, 9.0, 4.0, 1.0, 0.25, 0.0625]) / 39.3125)
    for wanted, count in [(0.5, 1), (0.8, 2), (0.95, 3)]:
        assert shares[count - 1] > wanted > (shares[count - 2] if count > 1 else 0.0)
        pca = private(wanted, epsilon=20.0, row_bound=30.0).fit(values)
        assert pca.n_components_ == len(pca.components_) == count
        assert pca.explained_variance_ratio_.sum() >= wanted
    noisy = private(0.9999, epsilon=0.2, row_bound=30.0).fit(values)
    assert (noisy.explained_variance_ > noisy.noise_floor_).all()
    assert noisy.n_components_ < 6


def test_none_asks_for_all_components() -> None:
    pca = private(None).fit(rows())
    assert pca.components_.shape == (6, 6)
    check_finite(pca)


@pytest.mark.parametrize("epsilon", [1e-3, 1.0])
@pytest.mark.parametrize(
    "place",
    [
        {},
        {"mean_bound": 2.0},
        {"mean_bound": 2.0, "origin": np.arange(6.0)},
        {"mean_bound": 2.0, "origin": np.arange(6.0), "scale": np.arange(1.0, 7.0)},
    ],
    ids=["row bound", "mean bound", "around an origin", "in units"],
)
def test_the_mean_stays_where_means_can_be(epsilon: float, place: dict[str, Any]) -> None:
    pca = private(2, epsilon=epsilon, neighbours="zero-out", **place).fit(rows(50))
    offset = (pca.mean_ - place.get("origin", 0.0)) / place.get("scale", 1.0)
    # Where nothing is said about the mean it is looked for in up to three steps, each of at most the bound.
    limit = place.get("mean_bound", 3 * 12.0)
    assert np.linalg.norm(offset) <= limit * (1 + 1e-12)
    if epsilon < 1:
        # Noise of over a hundred times the bound says nothing, and the mean stays where the search began.
        assert np.linalg.norm(offset) == 0


def test_a_mean_outside_the_first_ball_is_found_in_steps() -> None:
    values = rows(20_000) + 8.0
    assert np.linalg.norm(values.mean(axis=0)) > 15
    pca = private(2, row_bound=12.0).fit(values)
    assert [c.label for c in pca.guarantee_.charges] == ["mean and count", "mean, step 2", "mean, step 3", "covariance"]
    # Rows are cut at 12, so a bias remains; one step alone would stop short by more than 15 - 12.
    assert np.linalg.norm(pca.mean_ - values.mean(axis=0)) < 1.0
    one = private(2, row_bound=12.0, mean_bound=12.0).fit(values)
    assert np.linalg.norm(one.mean_ - values.mean(axis=0)) > 3.0


def test_the_mean_stays_inside_the_box() -> None:
    low, high = -np.arange(1.0, 7.0), np.arange(1.0, 7.0) / 2
    pca = private(2, epsilon=1e-3, row_bound=None, column_bounds=(low, high)).fit(rows(50))
    assert (pca.mean_ >= low).all() and (pca.mean_ <= high).all()


LABELS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "default": ({}, ["mean and count", "covariance"]),
    "zero-out": ({"neighbours": "zero-out"}, ["mean", "covariance"]),
    "replace-one": ({"neighbours": "replace-one"}, ["mean", "covariance"]),
    "no center": ({"center": None}, ["covariance", "count"]),
    "given center": ({"center": np.zeros(6)}, ["covariance", "count"]),
    "no center, zero-out": ({"center": None, "neighbours": "zero-out"}, ["covariance"]),
    "power": ({"method": "power", "rounds": 2}, ["mean and count", "power product 1 of 2", "power product 2 of 2", "trace"]),
    "power, no center": ({"method": "power", "rounds": 1, "center": None}, ["power product 1 of 1", "count and trace"]),
    "power, replace-one": (
        {"method": "power", "rounds": 1, "neighbours": "replace-one"},
        ["mean", "power product 1 of 1", "trace"],
    ),
}


@pytest.mark.parametrize(("choices", "labels"), LABELS.values(), ids=LABELS.keys())
def test_every_release_is_a_line_and_the_lines_add_up_to_the_budget(choices: dict[str, Any], labels: list[str]) -> None:
    # A mean bound that was given is not searched beyond, so that the lines are known in advance.
    pca = private(2, mean_bound=12.0, **choices).fit(rows())
    charges = pca.guarantee_.charges
    assert [charge.label for charge in charges] == labels
    assert pca.ledger_ is not None and pca.ledger_.charges == charges
    total = math.sqrt(sum(charge.mu**2 for charge in charges))
    assert total == pytest.approx(MU, rel=1e-9)
    assert pca.ledger_.epsilon() <= 1.0
    # The components get the lion's share.
    main = sum(charge.mu**2 for charge in charges if charge.label.startswith(("covariance", "power")))
    assert main >= 0.87 * total**2


@pytest.mark.parametrize("method", METHODS)
def test_a_shared_ledger_adds_fits_up(method: str) -> None:
    ledger = Ledger(epsilon=3.0, delta=1e-6)
    spent = [0.0]
    for fit in range(1, 4):
        pca = private(2, method=method, ledger=ledger).fit(rows())
        assert pca.ledger_ is ledger
        assert ledger.charges[-len(pca.guarantee_.charges) :] == pca.guarantee_.charges
        assert len(ledger.charges) == fit * len(pca.guarantee_.charges)
        assert ledger.spent_mu == pytest.approx(MU * math.sqrt(fit), rel=1e-9)
        spent.append(ledger.epsilon())
        # The guarantee of one fit is about that fit; the ledger tells the whole.
        assert pca.guarantee_.epsilon == 1.0
    assert spent[1] == pytest.approx(1.0, abs=1e-6)
    assert spent == sorted(set(spent))


@pytest.mark.parametrize("method", METHODS)
def test_a_seed_repeats_every_bit_and_takes_the_guarantee_away(method: str) -> None:
    values = rows()
    one, again, other = (private(2, method=method, random_state=seed).fit(values) for seed in (7, 7, 8))
    assert distance(one, again) == 0.0
    assert distance(one, other) > 1e-3
    assert not one.guarantee_.private
    assert one.guarantee_.headline.startswith("NOT PRIVATE (known seed)")
    assert "Reproducible, not private" in one.guarantee_.to_text()


@pytest.mark.parametrize("method", METHODS)
def test_without_a_seed_no_two_fits_are_alike(method: str) -> None:
    values = rows()
    one, other = (private(2, method=method, random_state=None).fit(values) for _ in range(2))
    assert np.abs(one.mean_ - other.mean_).min() > 0
    assert np.abs(one.components_ - other.components_).min() > 0
    assert one.guarantee_.private
    assert "NOT PRIVATE" not in one.guarantee_.to_text()


def test_generators_are_seeds_too_and_move_on() -> None:
    values = rows()
    for make in (np.random.default_rng, np.random.RandomState):
        state = make(0)
        pca = private(2, random_state=state)
        first = pca.fit(values).components_
        assert not pca.guarantee_.private
        assert not np.array_equal(pca.fit(values).components_, first)
        assert np.array_equal(private(2, random_state=make(0)).fit(values).components_, first)


@pytest.mark.parametrize("scale", [None, np.arange(1.0, 7.0)], ids=["as they are", "scaled"])
@pytest.mark.parametrize("method", METHODS)
def test_scores_are_the_formula_and_come_back(scale: Array | None, method: str) -> None:
    values = rows(100)
    units = np.ones(6) if scale is None else scale
    pca = private(3, scale=scale, method=method).fit(values)
    expected = (values - pca.mean_) / units @ pca.components_.T
    assert np.allclose(pca.transform(values), expected, atol=1e-12)
    assert np.allclose(pca.transform(sp.csr_array(values)), expected, atol=1e-12)
    assert np.allclose(pca.transform(DenseRows(values)), expected, atol=1e-12)
    back = pca.inverse_transform(expected)
    assert np.allclose((back - pca.mean_) / units, expected @ pca.components_, atol=1e-12)
    assert np.allclose(pca.transform(back), expected, atol=1e-10)
    everything = private(None, scale=scale).fit(values)
    assert np.allclose(everything.inverse_transform(everything.transform(values)), values, atol=1e-9)


def test_the_plan_is_kept_and_followed() -> None:
    pca = private(2).fit(rows())
    assert pca.plan_.chosen.method == "covariance"
    assert "it fits" in pca.plan_.reason
    # The number of people is private here, so the plan was made without it.
    assert pca.plan_.chosen.captured is None
    assert private(2, neighbours="zero-out").fit(rows()).plan_.chosen.captured is not None
    wide = private(2, method="power", oversample=1, rounds=3).fit(rows())
    assert (wide.plan_.chosen.plan.width, len(wide.plan_.chosen.plan.shares)) == (3, 3)
    assert wide.model_.settings["rounds"] == 3


def test_a_refit_forgets_the_fit_before() -> None:
    pca: Any = private(2).fit(tables(rows())["pandas"])
    again = pca.fit(DenseRows(rows()[:, :4]))
    assert again is pca
    assert pca.n_features_in_ == 4
    assert not hasattr(pca, "feature_names_in_")
    assert pca.model_.columns is None


@pytest.mark.parametrize("neighbours", ["zero-out", "replace-one"])
def test_the_public_count_says_nothing_about_group_sizes(neighbours: str) -> None:
    """A sum of weights 1/m is a whole number only up to rounding, and the rounding would tell about m."""
    floors = set()
    for m in (1, 3, 49, 120):
        ids = np.concatenate([np.zeros(m, dtype=int), np.arange(1, 21)])
        pca = private(2, person=ids, neighbours=neighbours, center=None).fit(rows(len(ids)))
        floors.add(pca.noise_floor_)
    assert len(floors) == 1


def test_all_components_of_a_short_exact_table_are_as_many_as_its_rows() -> None:
    assert PrivatePCA(None, epsilon=None).fit(rows(5)[:, :6]).n_components_ == 5


def test_a_plain_array_is_checked_without_looking_for_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scikit-learn's checks take longer than a small batch. Whatever is not plain still goes through them."""
    here, pca = rows(200), private(2)

    def asked(*_: Any, **__: Any) -> None:
        raise AssertionError("scikit-learn was asked")

    monkeypatch.setattr("sklearn.utils.validation.validate_data", asked)
    assert vars(pca.fit(here))["n_features_in_"] == here.shape[1]
    for other in (here.astype(np.float32), sp.csr_array(here), here[:1], np.where(here > 2, np.nan, here)):
        with pytest.raises(AssertionError, match="scikit-learn was asked"):
            pca.fit(other)


SECRET = "8675309"
VALUES = rows(50)


def spoiled(value: float) -> Any:
    """Rows with one entry spoiled, far down."""
    values = VALUES.copy()
    values[37, 4] = value
    return values


def sparse(values: Any) -> Any:
    """The same rows, sparse, with the spoiled entry stored."""
    return sp.csr_array(values)


def arrow(values: Any) -> Any:
    """The same rows in an Arrow table."""
    return tables(values)["pyarrow"]


def refused(pca: PrivatePCA, table: Any, message: str) -> None:
    """The fit raises a `ValueError` that matches, nothing of it quotes the secret, and nothing was charged or learned."""
    with pytest.raises(ValueError, match=message) as caught:
        pca.fit(table)
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    if isinstance(pca.ledger, Ledger):
        assert pca.ledger.charges == ()
    assert not hasattr(pca, "components_")


def with_ledger(n_components: Any = 2, **choices: Any) -> PrivatePCA:
    """An estimator with a ledger that could pay."""
    return private(n_components, **({"ledger": Ledger(epsilon=3.0, delta=1e-6)} | choices))


@pytest.mark.parametrize("table", [VALUES[:4], sparse(VALUES[:4]), arrow(VALUES[:4])], ids=["dense", "sparse", "arrow"])
def test_fewer_rows_than_components_are_refused_without_saying_how_many(table: Any) -> None:
    refused(with_ledger(5), table, "X has fewer rows than n_components=5. Ask for fewer components")
    refused(with_ledger(None), table, "X has fewer rows than n_components=6")
    assert with_ledger(4).fit(table).n_components_ == 4


def test_a_box_of_sparse_rows_must_hold_zero() -> None:
    refused(with_ledger(column_bounds=(1.0, 2.0)), sparse(VALUES), "column_bounds of sparse rows must include zero")


@pytest.mark.parametrize("kind", tables(VALUES))
def test_a_person_column_must_be_there_for_every_fit_and_name_everybody(kind: str) -> None:
    refused(with_ledger(person="who"), tables(VALUES)[kind], "person names the column 'who', which X does not have")
    missing = [None, *["x" + SECRET] * 49]
    refused(with_ledger(person="who"), tables(VALUES, who=missing)[kind], 'person column "who" has missing')
    # A second fit without the column would take every row for a person of its own.
    pca = private(2, person="who").fit(tables(VALUES, who=np.arange(50))[kind])
    with pytest.raises(ValueError, match="person names the column 'who', which X does not have"):
        pca.fit(tables(VALUES)[kind])


def test_a_ledger_that_cannot_pay_refuses_before_anything_is_read() -> None:
    class Untouched:
        """Rows that nobody may read."""

        shape = (50, 6)
        sparse = False

        def blocks(self, size: int) -> Any:
            raise AssertionError(f"somebody read {size} rows")

    small = Ledger(epsilon=0.9, delta=1e-6)
    for method in ("covariance", "power"):
        with pytest.raises(BudgetExceeded, match=r"'this fit' needs mu = 0.2367 .* nothing was released"):
            private(2, ledger=small, method=method).fit(Untouched())
    assert small.charges == ()
    enough = Ledger(epsilon=1.0, delta=1e-6)
    private(2, ledger=enough).fit(VALUES)
    spent = enough.charges
    with pytest.raises(BudgetExceeded):
        private(2, ledger=enough).fit(VALUES)
    assert enough.charges == spent


def test_a_fit_on_the_wrong_columns_is_refused_when_scores_are_asked_for() -> None:
    pca = private(2).fit(VALUES)
    with pytest.raises(ValueError, match="5 features, but PrivatePCA is expecting 6"):
        pca.transform(VALUES[:, :5])
    with pytest.raises(ValueError, match="5 features, but PrivatePCA is expecting 6"):
        pca.transform(sparse(VALUES[:, :5]))
    with pytest.raises(ValueError, match="rows must have 6 columns, as the model does, got 5"):
        pca.transform(DenseRows(VALUES[:, :5]))
    for spoilt in (spoiled(np.nan), sparse(spoiled(np.nan)), DenseRows(spoiled(np.inf))):
        with pytest.raises(ValueError, match=r"X contains (NaN|infinity)"):
            pca.transform(spoilt)
    named = private(2).fit(arrow(VALUES))
    with pytest.raises(ValueError, match=f"X lacks columns of the model: {NAMES[0]}"):
        named.transform(arrow(VALUES).select(NAMES[1:]))
    with pytest.raises(ValueError, match="has missing values"):
        named.transform(arrow(spoiled(np.nan)))
    for wrong in (np.zeros((3, 3)), np.zeros(2)):
        with pytest.raises(ValueError, match=r"scores must have shape \(n, 2\)"):
            pca.inverse_transform(wrong)


def test_sparse_rows_with_a_far_center_are_refused_before_they_cost() -> None:
    """A column of time stamps, say: centring it implicitly would lose the sensitivity to rounding."""
    stamps = sp.csr_array(np.column_stack([np.full(50, 1.7e9), np.arange(50.0), np.ones(50)]))
    ledger = Ledger(epsilon=1.0, delta=1e-6)
    choices: list[dict[str, Any]] = [
        {"center": np.array([1.7e9, 0.0, 0.0])},
        {"origin": np.array([1.7e9, 0.0, 0.0])},
        {"mean_bound": 1e9},
        {"column_bounds": (0, 2e9)},
    ]
    for choice in choices:
        with pytest.raises(ValueError, match=r"sparse rows .*100 times"):
            PrivatePCA(2, epsilon=1.0, delta=1e-6, row_bound=1000.0, ledger=ledger, **choice).fit(stamps)
        assert ledger.charges == ()


def test_identifiers_of_several_types_are_refused() -> None:
    for person in ([1, "a", 2.0], [2**53, 2**53 + 1, 0.5], (1, 1.0, True)):
        with pytest.raises(ValueError, match="identifiers of one type"):
            PrivatePCA(2, epsilon=1.0, delta=1e-6, row_bound=1.0, person=person).fit(np.eye(3))
