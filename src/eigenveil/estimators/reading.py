"""Rows as callers give them, read and checked: arrays, sparse matrices and tables, with a column that names people."""

from typing import Any

from eigenveil.data.people import identifiers
from eigenveil.data.rows import CheckedRows, Rows, Symmetric, counts_people
from eigenveil.data.tables import as_rows, is_arrow_like, person_ids
from eigenveil.errors import require, require_param
from eigenveil.estimators.checks import checked_array, with_names
from eigenveil.privacy.facts import Person

__all__ = ["column_names", "person_in", "read_rows", "without_person"]


def read_rows(estimator: Any, X: Any, *, reset: bool, **least: int) -> Rows:
    """Checked rows. Arrays are neither copied nor converted: blocks are, one at a time."""
    require(
        not isinstance(X, Symmetric),
        "X must be rows, got a Symmetric, which is a sum over people: only a site of FederatedPCA can be one",
    )
    if isinstance(X, Rows) and not is_arrow_like(X):
        if reset:
            # A `Rows` is not an array, so scikit-learn does not learn its columns.
            estimator.n_features_in_ = X.shape[1]
            # Names of an earlier fit do not belong to these rows.
            estimator.__dict__.pop("feature_names_in_", None)
        return CheckedRows(X)
    if is_arrow_like(X):
        return CheckedRows(as_rows(with_names(estimator, X, reset=reset)))
    return as_rows(checked_array(estimator, X, reset=reset, **least))


def without_person(X: Any, person: Any, *, fitting: bool) -> tuple[Any, Any]:
    """`X` without the column that names people, and the identifiers, one per row. Only a fit needs the column."""
    if person is None:
        return X, None
    if not isinstance(person, str):
        return X, identifiers(person) if fitting else None
    names = column_names(X) or []
    if person not in names:
        require_param(not fitting, "{person} names the column {@column}, which {X} does not have", column=person)
        return X, None
    ids = person_ids(X, person)
    rest = [name for name in names if name != person]
    return (X.select(rest) if is_arrow_like(X) else X[rest]), ids


def person_in(rows: Rows, person: Any) -> Person:
    """Who is protected by a release of these rows. `person` is the parameter: a column, identifiers or None."""
    return Person(grouped=counts_people(rows), column=person if isinstance(person, str) else None)


def column_names(X: Any) -> list[Any] | None:
    """The names of a table's columns, None if it has none."""
    # In pyarrow `columns` is the data, and names are in the schema. In polars and pandas `columns` is the names.
    if is_arrow_like(X) and type(X).__module__.startswith("pyarrow"):
        return list(X.schema.names)
    names = getattr(X, "columns", None)
    return None if names is None else list(names)
