"""Rows as callers give them, read and checked: arrays, sparse matrices and tables, with a column that names people."""

import copy
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from eigenveil.core.rows import Rows, innermost, is_remote
from eigenveil.core.unit import Neighbours
from eigenveil.data.columns import ColumnChoice, ColumnFaults
from eigenveil.data.engines import Engine, engine_of
from eigenveil.data.frames import (
    as_float,
    as_rows,
    collected,
    column_names,
    column_of,
    in_memory,
    is_arrow_like,
    is_lazy,
    kinds_in,
    person_ids,
    picked,
    schema_of,
    without_objects,
)
from eigenveil.data.known import KnownColumns, require_places
from eigenveil.data.people import identifiers
from eigenveil.data.rows import CheckedRows, NamedRows, Symmetric, by_person, counts_people
from eigenveil.errors import ColumnsError, ParameterError, ParameterWarning, join_names, require, require_param, verbatim
from eigenveil.estimators.checks import checked_array, learn_columns, with_names
from eigenveil.methods import METHODS
from eigenveil.privacy.sums import bounded_count
from eigenveil.tasks.fit.gaps import rule_of

__all__ = ["Columns", "SiteInfo", "column_names", "people_at", "read_rows", "read_site", "read_sites", "select_columns"]


def read_rows(estimator: Any, X: Any, *, reset: bool, **checks: int) -> Rows:
    """Checked rows. Arrays are neither copied nor converted: blocks are, one at a time."""
    require(
        not isinstance(X, Symmetric),
        "X must be rows, got a Symmetric, which is a sum over people: only a site of FederatedPCA can be one",
    )
    # What the caller declares decides, never the rows: whether a table may have gaps is public.
    gaps = rule_of(estimator) != "refuse"
    if (engine := engine_of(X)) is not None and not engine.stays:
        X = engine.rows(X, gaps=gaps)
    # Arrays come often, and asking whether one is `Rows` takes longer than checking it.
    if not isinstance(X, np.ndarray) and isinstance(X, Rows) and not is_arrow_like(X):
        if reset:
            learn_columns(estimator, X)
        if not is_remote(X):
            return CheckedRows(X, gaps)
        # Rows that are elsewhere check their values there, so both must agree on whether any may be missing.
        allowed = bool(getattr(innermost(X), "gaps", False))
        require_param(
            allowed == gaps,
            "{missing} and {X} contradict each other. Rows that are elsewhere, such as on a GPU, have missing values only if "
            "they were opened with gaps=True, and then need a rule for them",
        )
        return X
    if is_arrow_like(X):
        return CheckedRows(as_rows(with_names(estimator, X, reset=reset), gaps=gaps), gaps)
    return as_rows(checked_array(estimator, X, reset=reset, gaps=gaps, **checks))


def select_columns(X: Any, params: Any, *, fitting: bool, labels: Any = None, alike: bool = False) -> tuple[Any, Any]:
    """The columns of a table `X` that `params` names, with its text as 0 and 1, and the identifiers of people, one per row.

    Only a fit needs identifiers. After it, `labels` are the names it found, and a table may have its columns in any order and
    others beside them. Batches of one stream must be `alike`: where all columns are analysed, they keep their order.
    """
    engine = engine_of(X)
    if engine is not None and engine.stays:
        return _chosen_there(engine, X, params, fitting=fitting, labels=labels)
    if type(X) is np.ndarray and not fitting:
        # Arrays come many thousand times into a stream.
        return X, None
    X = X if is_lazy(X) else in_memory(X)
    names = column_names(X)
    if names is None and not fitting:
        return X, None
    person = getattr(params, "person", None)
    ids = identifiers(person) if fitting and person is not None and not isinstance(person, str) else None
    column = person if isinstance(person, str) else None
    choice = ColumnChoice.of(params, person=column)
    if isinstance(X, NamedRows):
        # What they need was done when their file was read.
        _require_no_choice(params, fitting=fitting, but="{X} is rows whose columns were chosen before")
        require_param(not fitting or column in (None, X.person), _NO_COLUMN, column=column)
        return X, ids
    if names is not None and not is_arrow_like(X) and not is_lazy(X) and not hasattr(X, "iloc"):
        raise ParameterError(f"{{X}} must be a table in memory, got a {type(X).__name__}. Collect or convert it first")
    if names is None or not all(isinstance(name, str) for name in names):
        _require_no_choice(params, fitting=fitting, but="{X} has none")
        require_param(not fitting or column is None, _NO_COLUMN, column=column)
        if names is not None and not any(isinstance(name, str) for name in names):
            # In a fit too: numbered columns that it took in another order could not be transformed afterwards.
            require_places(names, None if fitting else labels, "X")
        return X, ids
    if not fitting and labels is not None and not (alike and choice.empty):
        one_hot, gaps = choice.one_hot, rule_of(params) != "refuse"
        return KnownColumns(dim=len(labels), names=tuple(map(str, labels)), one_hot=one_hot, gaps=gaps).matched(X), None
    kinds = kinds_in(schema_of(X) if is_lazy(X) else X)
    if not fitting:
        X = in_memory(X)
        with _named_in_full(X, kinds, params):
            if labels is not None or column not in names:
                ColumnChoice().laid_out("X", names, kinds)
                return without_objects(X), None
            wanted = [name for name in names if name != column]
            return without_objects(picked(X, choice.again(names, wanted, kinds=kinds))), None
    require_param(column is None or column in names, _NO_COLUMN, column=column)
    lazy = is_lazy(X)
    if lazy:
        # From names and types alone, so that what is not analysed is never collected.
        layout = choice.laid_out("X", names, kinds)
        X = collected(X, [*layout.read, *([] if column is None else [column])])
    else:
        with _named_in_full(X, kinds, params):
            layout = choice.laid_out("X", names, kinds)
    if layout.ids:
        _warn_of_ids(layout.ids)
    if column is not None:
        ids = person_ids(X, column)
    return without_objects(X if choice.empty and not lazy else picked(X, layout)), ids


@contextmanager
def _named_in_full(X: Any, kinds: dict[str, str], params: Any) -> Iterator[None]:
    """Let an error about columns that are no numbers also name those with missing or infinite values."""
    try:
        yield
    except ColumnsError as error:
        # Read as text or as an id, a column may have gaps: only those that are numbers by type are looked at.
        beside = {getattr(params, "person", None)} if isinstance(getattr(params, "person", None), str) else set()
        choice = ColumnChoice.of(params)
        left = set(choice.laid_out("X", list(kinds)).plain).difference(beside)
        numbers = [name for name, kind in kinds.items() if kind in ("number", "truth value") and name in left]
        faults = ColumnFaults.found((name, _as_arrow_column(X, name)) for name in numbers)
        raise faults.added_to(error, gaps=rule_of(params) != "refuse", among=list(kinds)) from None


def _as_arrow_column(X: Any, name: str) -> Any:
    import pyarrow as pa

    column = column_of(X, name)
    if is_arrow_like(X):
        return column
    if str(column.dtype) == "object":
        return pa.array([as_float(value) for value in column], pa.float64())
    return pa.array(column.to_numpy(dtype="float64", na_value=math.nan))


def _chosen_there(engine: Engine, X: Any, params: Any, *, fitting: bool, labels: Any) -> tuple[Any, Any]:
    """As `select_columns`, for a collection that stays where it is: columns are chosen, checked and weighted by person there."""
    assert engine.columns is not None and engine.frame is not None
    names = engine.columns(X)
    gaps = getattr(params, "missing", "refuse") != "refuse"
    person = getattr(params, "person", None) if fitting else None
    column = person if isinstance(person, str) else None
    # Identifiers that are there stay there.
    ids = None if person is None or column is not None else person if engine.takes(person) else identifiers(person)
    if names is None:
        _require_no_choice(params, fitting=fitting, but="{X} has none")
        require_param(column is None, _NO_COLUMN, column=column)
        array = engine.rows(X, gaps=gaps)
        return array, _here(engine, ids, array)
    choice = ColumnChoice.of(params, person=column)
    if not fitting and labels is None:
        choice = ColumnChoice()
    elif not fitting:
        choice = ColumnChoice(columns=choice.sources(labels), one_hot=choice.one_hot, literal=True)
    require_param(column is None or column in names, _NO_COLUMN, column=column)
    rows, layout = engine.frame(X, choice, gaps=gaps)
    if fitting and layout.ids:
        _warn_of_ids(layout.ids)
    return rows, _here(engine, ids, rows)


def _here(engine: Engine, ids: Any, rows: Rows) -> Any:
    """Identifiers of a collection in this process, where its rows are read here too."""
    if engine.bring is None or not engine.takes(ids) or is_remote(rows):
        return ids
    return identifiers(engine.bring(ids))


_NO_COLUMN = "{person} names the column {@column}, which {X} does not have"


def _require_no_choice(params: Any, *, fitting: bool, but: str) -> None:
    """Refuse a choice of columns where there is nothing to choose from."""
    explicit = [name for name in ("columns", "drop", "one_hot") if fitting and getattr(params, name)]
    if explicit:
        raise ParameterError(f"{{{explicit[0]}}} needs a table with column names, and {but}")


def _warn_of_ids(names: tuple[str, ...]) -> None:
    says = f"{join_names(map(repr, names))} look{'s' * (len(names) == 1)} like an id by name, and an id is no measurement"
    advice = "Leave it out with {drop=}, or say whose rows they are with {person}"
    warnings.warn(ParameterWarning(f"{verbatim(says)}. {advice}", drop=names), stacklevel=5)


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Columns:
    """The columns of all sites."""

    count: int
    first: str  # The site that came first.
    names: list[Any] | None = None  # None if no site gives names.
    shown: Any = None  # Scikit-learn's feature_names_in_.


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SiteInfo:
    """What is known of the sites before a fit."""

    names: tuple[str, ...]
    dim: int
    sparse: bool
    grouped: bool  # People may have several rows.
    rows: Mapping[str, Rows] | None = None  # None over a network.
    people: Mapping[str, float] | None = None  # How many each site has, if declared.
    columns: tuple[str, ...] | None = None  # Their names.

    @classmethod
    def of(cls, rows: Mapping[str, Rows], columns: Columns | None = None) -> "SiteInfo":
        """From rows in this process."""
        first = next(iter(rows.values()))
        sparse, grouped = any(part.sparse for part in rows.values()), any(map(counts_people, rows.values()))
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
        require(sizes is None or set(sizes) == set(names), "sizes must name every site, and no others")
        labels = None if columns is None else tuple(columns)
        return cls(names=tuple(names), dim=dim, sparse=False, grouped=grouped, people=sizes, columns=labels)

    def sizes(self) -> dict[str, float] | None:
        """How many people each site has. None over a network if it was not declared. Call it only if sizes are public."""
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
        X, ids = (X, None) if isinstance(X, Symmetric) else select_columns(X, reader, fitting=True)
        names = None if isinstance(X, Symmetric) else column_names(X)
        if names is not None and columns is not None and columns.names is not None:
            _require_columns(names, columns.first, columns.names)
        # A site may have no rows. Whether there are enough is asked of all sites together, and only if that is public.
        few = {"ensure_min_samples": 0, "ensure_min_features": 1}
        rows = _matrix(estimator, X) if isinstance(X, Symmetric) else read_rows(reader, X, reset=True, **few)
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
        # The first line only: scikit-learn continues to recommend other estimators.
        raise ValueError(f"{name}: {str(error).splitlines()[0]}") from None
    if columns is None or (columns.names is None and names is not None):
        # The first site with names decides for all, also after sites without names.
        columns = Columns(count=count, first=name, names=names, shown=getattr(reader, "feature_names_in_", None))
    return rows, columns


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
    require_param(
        estimator.epsilon is None or not isinstance(estimator.row_bound, str),
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
