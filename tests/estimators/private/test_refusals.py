"""Bad input is refused with the reason, quotes nobody's data, and costs nothing on the ledger."""

import traceback
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from eigenveil import BudgetExceeded, Ledger, PrivatePCA
from eigenveil.data.rows import DenseRows, WeightedRows
from estimators.tables import NAMES, private, rows, tables

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


def test_weights_above_one_are_refused() -> None:
    with pytest.raises(ValueError, match=r"every weight must lie in \(0, 1\]"):
        WeightedRows(DenseRows(np.eye(3)), np.array([1.0, 1e6, 1.0]))


def test_identifiers_of_several_types_are_refused() -> None:
    for person in ([1, "a", 2.0], [2**53, 2**53 + 1, 0.5], (1, 1.0, True)):
        with pytest.raises(ValueError, match="identifiers of one type"):
            PrivatePCA(2, epsilon=1.0, delta=1e-6, row_bound=1.0, person=person).fit(np.eye(3))
