"""What a caller gives as sites, read and checked: each a table or matrix of its own, all with the same columns."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from eigenveil.data.rows import Rows, Symmetric, WeightedRows, counts_people
from eigenveil.errors import ParameterError, require, require_param
from eigenveil.estimators.fitted import column_names, read_rows, without_person
from eigenveil.privacy import Neighbours, bounded_count

__all__ = ["Columns", "SiteInfo", "people_at", "read_site", "read_sites"]

# They take the root of what each site has, and of a matrix with negative eigenvalues there is none.
_ROOTS = ("merge", "uda", "wda")


@final
@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """The columns that all sites have: how many, as the site `first` has them, and their `names` where any site gives names.

    `shown` is what scikit-learn would call feature_names_in_.
    """

    count: int
    first: str
    names: list[Any] | None = None
    shown: Any = None


@final
@dataclass(frozen=True, slots=True, eq=False)
class SiteInfo:
    """What is known of what sites hold before a fit: their names, columns, and how many people where that is said.

    `rows` are those of all of them, where one process has them; None where sites are apart.
    """

    names: tuple[str, ...]
    dim: int
    sparse: bool
    grouped: bool
    rows: Mapping[str, Rows] | None = None
    people: Mapping[str, float] | None = None

    @classmethod
    def of(cls, rows: Mapping[str, Rows]) -> "SiteInfo":
        """By rows that are here."""
        first = next(iter(rows.values()))
        sparse, grouped = (any(map(what, rows.values())) for what in (lambda one: one.sparse, counts_people))
        return cls(tuple(rows), first.shape[1], sparse, grouped, rows)

    @classmethod
    def declared(
        cls, dim: int, names: Sequence[str], *, sizes: Mapping[str, float] | None, grouped: bool
    ) -> "SiteInfo":
        """By what was agreed on."""
        require(dim >= 1, f"dim must be at least 1, got {dim}")
        require(len(names) > 0, "there must be at least one site, got none")
        require(sizes is None or set(sizes) == set(names), "sizes must be given for every site and for nobody else")
        return cls(tuple(names), dim, sparse=False, grouped=grouped, people=sizes)

    def sizes(self) -> dict[str, float] | None:
        """How many people each site has, where that is public; None where sites are apart and nobody has said it."""
        if self.rows is not None:
            return {name: people_at(rows) for name, rows in self.rows.items()}
        return None if self.people is None else {name: float(self.people[name]) for name in self.names}


def read_sites(estimator: Any, sites: Any, *, word: str = "site") -> tuple[dict[str, Rows], Columns]:
    """The rows of each site by name, and their columns; the error names the site and no value. `word` is what they are called."""
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
    """One site's rows, and what is known of all columns after it. The estimator itself learns nothing of them."""
    names = column_names(X)
    names = None if names is None else [column for column in names if column != estimator.person]
    if names is not None and columns is not None and columns.names is not None:
        _require_columns(name, names, columns.first, columns.names)
    reader = copy.copy(estimator)
    for learnt in ("n_features_in_", "feature_names_in_"):
        reader.__dict__.pop(learnt, None)
    try:
        rows, ids = _matrix(estimator, X) if isinstance(X, Symmetric) else _table(reader, X)
        count = rows.shape[1]
        if columns is not None and count != columns.count:
            raise ValueError(f"it has {count} columns, and {columns.first} has {columns.count}")
        if ids is not None:
            rows = WeightedRows.by_person(rows, ids)
    except ParameterError as error:
        raise error.within(name) from None
    except (ValueError, TypeError) as error:
        # Scikit-learn goes on to recommend other estimators.
        raise ValueError(f"{name}: {str(error).splitlines()[0]}") from None
    if columns is None or (columns.names is None and names is not None):
        columns = Columns(count, name, names, getattr(reader, "feature_names_in_", None))
    return rows, columns


def _table(reader: Any, X: Any) -> tuple[Rows, Any]:
    """The rows of a table, and whose they are where the caller asked for that."""
    X, ids = without_person(X, reader.person, fitting=True)
    return read_rows(reader, X, reset=True, ensure_min_samples=0, ensure_min_features=1), ids


def _matrix(estimator: Any, X: Symmetric) -> tuple[Rows, None]:
    """A matrix in place of rows, or a `ValueError` that says which choice of the caller's needs the rows."""
    require_param(
        estimator.center is None,
        "{center=None} must be given where a site gives a Symmetric: its people cannot be moved to a center, nor does it say "
        "where their mean is. Move rows to a public point before you multiply them",
    )
    require_param(
        estimator.column_bounds is None,
        "{column_bounds} must be left out where a site gives a Symmetric, which has no rows to clip; give {row_bound}",
    )
    require_param(
        estimator.person is None,
        "{person} must be left out where a site gives a Symmetric, which has no rows that name anybody; its people says how many",
    )
    require_param(
        estimator.method not in _ROOTS,
        "{method=} needs the rows of a site, or a root of its matrix, which a Symmetric may not have; take auto, krylov, "
        "covariance, power, fedpower or dr-svd",
        method=estimator.method,
    )
    return X, None


def people_at(rows: Rows) -> float:
    """The number of people, where that is public."""
    if not counts_people(rows):
        return float(rows.shape[0])
    # Rounded to the whole number that it is: a sum of weights 1/m would tell about m in its last digits.
    return float(round(float(bounded_count(rows, neighbours=Neighbours.ZERO_OUT).value)))


def _require_columns(name: str, columns: list[Any], first: str, expected: list[Any]) -> None:
    if columns == expected:
        return
    if sorted(map(str, columns)) == sorted(map(str, expected)):
        raise ValueError(f"{name}: the columns are those of {first} in another order; bring them into the same order")
    extra = [str(column) for column in columns if column not in expected]
    lacking = [str(column) for column in expected if column not in columns]
    raise ValueError(
        f"{name}: the columns are not those of {first}: it lacks {lacking[:5]} and has {extra[:5]} in addition"
    )
