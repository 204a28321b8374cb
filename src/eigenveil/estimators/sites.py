"""Reads and checks what a caller gives as sites: each a table or a matrix, all with the same columns."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from eigenveil.core.rows import Rows
from eigenveil.core.unit import Neighbours
from eigenveil.data.elsewhere import by_person
from eigenveil.data.rows import Symmetric, counts_people
from eigenveil.errors import ParameterError, require, require_param
from eigenveil.estimators.reading import chosen, column_names, read_rows
from eigenveil.methods import METHODS
from eigenveil.privacy import bounded_count
from eigenveil.tasks.fit.gaps import rule_of

__all__ = ["Columns", "SiteInfo", "people_at", "read_site", "read_sites"]


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Columns:
    """The columns of all sites: how many, which site came `first`, and their `names` if any site gives names.

    `shown` is scikit-learn's feature_names_in_.
    """

    count: int
    first: str
    names: list[Any] | None = None
    shown: Any = None


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SiteInfo:
    """What is known of the sites before a fit: their names, their columns, and their numbers of people if declared.

    `rows` are those of all sites if one process has them, and None over a network. `columns` are the names of their columns.
    """

    names: tuple[str, ...]
    dim: int
    sparse: bool
    grouped: bool
    rows: Mapping[str, Rows] | None = None
    people: Mapping[str, float] | None = None
    columns: tuple[str, ...] | None = None

    @classmethod
    def of(cls, rows: Mapping[str, Rows], columns: Columns | None = None) -> "SiteInfo":
        """From rows in this process."""
        first = next(iter(rows.values()))
        sparse, grouped = (any(map(what, rows.values())) for what in (lambda one: one.sparse, counts_people))
        names = None if columns is None or columns.names is None else tuple(map(str, columns.names))
        return cls(names=tuple(rows), dim=first.shape[1], sparse=sparse, grouped=grouped, rows=rows, columns=names)

    @classmethod
    def declared(
        cls,
        dim: int,
        names: Sequence[str],
        *,
        sizes: Mapping[str, float] | None,
        grouped: bool,
        columns: Sequence[str] | None = None,
    ) -> "SiteInfo":
        """From what the sites agreed on, without their rows."""
        require(dim >= 1, f"dim must be at least 1, got {dim}")
        require(len(names) > 0, "there must be at least one site, got none")
        require(sizes is None or set(sizes) == set(names), "sizes must name every site and nobody else")
        known = None if columns is None else tuple(columns)
        return cls(names=tuple(names), dim=dim, sparse=False, grouped=grouped, people=sizes, columns=known)

    def sizes(self) -> dict[str, float] | None:
        """How many people each site has. None over a network if nobody declared it. Call it only if sizes are public."""
        if self.rows is not None:
            return {name: people_at(rows) for name, rows in self.rows.items()}
        return None if self.people is None else {name: float(self.people[name]) for name in self.names}


def read_sites(estimator: Any, sites: Any, *, word: str = "site") -> tuple[dict[str, Rows], Columns]:
    """The rows of each site by name, and their columns. Errors name the site and show no value. `word` is "site" or "peer"."""
    require(
        isinstance(sites, Mapping | Sequence) and not isinstance(sites, str | bytes),
        f"{word}s must be a list, or a mapping of names, of tables with the same columns, got {type(sites).__name__}",
    )
    named = dict(sites) if isinstance(sites, Mapping) else {f"{word} {i}": X for i, X in enumerate(sites)}
    require(len(named) > 0, f"there must be at least one {word}, got none")
    require(all(isinstance(name, str) for name in named), f"names of {word}s must be text")
    rows: dict[str, Rows] = {}
    columns: Columns | None = None
    for name, X in named.items():
        rows[name], columns = read_site(estimator, name, X, columns)
    assert columns is not None
    return rows, columns


def read_site(estimator: Any, name: str, X: Any, columns: Columns | None) -> tuple[Rows, Columns]:
    """One site's rows, and what is known of the columns after it. The estimator itself learns nothing from them."""
    # A copy learns the columns: a site that is refused must leave no trace on the estimator.
    reader = copy.copy(estimator)
    for learnt in ("n_features_in_", "feature_names_in_"):
        reader.__dict__.pop(learnt, None)
    try:
        X, ids = (X, None) if isinstance(X, Symmetric) else chosen(X, reader, fitting=True)
        names = None if isinstance(X, Symmetric) else column_names(X)
        if names is not None and columns is not None and columns.names is not None:
            _require_columns(names, columns.first, columns.names)
        rows = _matrix(estimator, X) if isinstance(X, Symmetric) else _table(reader, X)
        count = rows.shape[1]
        if columns is not None and count != columns.count:
            # In a later slot of a stream it may be that site itself.
            other = f"had {columns.count} before" if name == columns.first else f"{columns.first} has {columns.count}"
            raise ValueError(f"it has {count} columns, and {other}")
        if ids is not None:
            rows = by_person(rows, ids)
    # Before the other errors, of which it is one kind: it keeps its template, so that each surface can word it.
    except ParameterError as error:
        raise error.within(name) from None
    except (ValueError, TypeError) as error:
        # The first line only: scikit-learn goes on to recommend other estimators.
        raise ValueError(f"{name}: {str(error).splitlines()[0]}") from None
    if columns is None or (columns.names is None and names is not None):
        # The first site with names decides for all, also after sites without names.
        columns = Columns(count=count, first=name, names=names, shown=getattr(reader, "feature_names_in_", None))
    return rows, columns


def _table(reader: Any, X: Any) -> Rows:
    # A site may have no rows. Whether there are enough is asked of all sites together, and only if that is public.
    return read_rows(reader, X, reset=True, ensure_min_samples=0, ensure_min_features=1)


def _matrix(estimator: Any, X: Symmetric) -> Rows:
    """A matrix in place of rows. Refused, naming the parameter, if the fit needs the rows themselves."""
    require_param(
        estimator.center is None,
        "{center=None} is required if a site gives a Symmetric: it does not say where the mean is, and its rows cannot be moved. "
        "Subtract a public point from the rows before you multiply them",
    )
    require_param(
        estimator.column_bounds is None,
        "{column_bounds} must be left out if a site gives a Symmetric, which has no rows to clip. Use {row_bound}",
    )
    # Noise as published rests on no bound.
    claimed = estimator.epsilon is not None and getattr(estimator, "calibration", "exact") == "exact"
    require_param(
        not claimed or not isinstance(estimator.row_bound, str),
        "{row_bound} must be a number if a site gives a Symmetric, which has no norms to count. The site vouches for it",
    )
    require_param(
        rule_of(estimator) == "refuse",
        "{missing} must be left out if a site gives a Symmetric, which has no entries that could be missing",
    )
    require_param(
        estimator.person is None,
        "{person} must be left out if a site gives a Symmetric, which has no rows to name. Its `people` says how many there are",
    )
    require_param(
        # The root of a site's matrix is taken. A matrix with negative eigenvalues has none.
        estimator.method not in METHODS or not METHODS[estimator.method].averages_subspaces,
        "{method=} needs the rows of a site, or a root of its matrix, which a Symmetric may not have. Use auto, krylov, "
        "covariance, power, fedpower or dr-svd",
        method=estimator.method,
    )
    return X


def people_at(rows: Rows) -> float:
    """The number of people. Call it only if that number is public."""
    if not counts_people(rows):
        return float(rows.shape[0])
    # Rounded to a whole number: the last digits of a sum of weights 1/m would reveal m.
    return float(round(float(bounded_count(rows, neighbours=Neighbours.ZERO_OUT).value)))


def _require_columns(columns: list[Any], first: str, expected: list[Any]) -> None:
    if columns == expected:
        return
    if sorted(map(str, columns)) == sorted(map(str, expected)):
        raise ValueError(f"the columns are those of {first} in another order. Put them in the same order")
    extra = [str(column) for column in columns if column not in expected]
    lacking = [str(column) for column in expected if column not in columns]
    raise ValueError(f"the columns are not those of {first}. Missing: {lacking[:5]}. Unexpected: {extra[:5]}")
