"""Rows as callers give them, read and checked: arrays, sparse matrices and tables, with a column that names people."""

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from eigenveil.core.rows import Rows, innermost, is_elsewhere
from eigenveil.data.columns import ColumnChoice
from eigenveil.data.engines import Engine, engine_of
from eigenveil.data.faults import ColumnFaults
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
from eigenveil.data.rows import CheckedRows, NamedRows, Symmetric, counts_people
from eigenveil.errors import ColumnsError, ParameterError, ParameterWarning, listed, require, require_param, verbatim
from eigenveil.estimators.checks import checked_array, learn_columns, with_names
from eigenveil.privacy.facts import Person
from eigenveil.tasks.fit.gaps import rule_of

__all__ = ["chosen", "column_names", "person_in", "read_rows"]


def read_rows(estimator: Any, X: Any, *, reset: bool, **least: int) -> Rows:
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
        if not is_elsewhere(X):
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
    return as_rows(checked_array(estimator, X, reset=reset, gaps=gaps, **least))


def chosen(X: Any, asked: Any, *, fitting: bool, known: Any = None, alike: bool = False) -> tuple[Any, Any]:
    """The columns of a table `X` that `asked` names, with its text as 0 and 1, and the identifiers of people, one per row.

    Only a fit needs identifiers. After it, `known` are the names it found, and a table may have its columns in any order and
    others beside them. Batches of one stream must be `alike`: where all columns are analysed, they keep their order.
    """
    engine = engine_of(X)
    if engine is not None and engine.stays:
        return _chosen_there(engine, X, asked, fitting=fitting, known=known)
    if type(X) is np.ndarray and not fitting:
        # Arrays come many thousand times into a stream.
        return X, None
    X = X if is_lazy(X) else in_memory(X)
    names = column_names(X)
    if names is None and not fitting:
        return X, None
    person = getattr(asked, "person", None)
    ids = identifiers(person) if fitting and person is not None and not isinstance(person, str) else None
    column = person if isinstance(person, str) else None
    choice = ColumnChoice.of(asked, person=column)
    if isinstance(X, NamedRows):
        # What they need was done when their file was read.
        _require_no_choice(asked, fitting=fitting, but="{X} is rows whose columns were chosen before")
        require_param(not fitting or column in (None, X.person), _NO_COLUMN, column=column)
        return X, ids
    if names is not None and not is_arrow_like(X) and not is_lazy(X) and not hasattr(X, "iloc"):
        raise ParameterError(f"{{X}} must be a table in memory, got a {type(X).__name__}. Collect or convert it first")
    if names is None or not all(isinstance(name, str) for name in names):
        _require_no_choice(asked, fitting=fitting, but="{X} has none")
        require_param(not fitting or column is None, _NO_COLUMN, column=column)
        if names is not None and not any(isinstance(name, str) for name in names):
            # In a fit too: numbered columns that it took in another order could not be transformed afterwards.
            require_places(names, None if fitting else known, "X")
        return X, ids
    if not fitting and known is not None and not (alike and choice.empty):
        one_hot, gaps = choice.one_hot, rule_of(asked) != "refuse"
        return KnownColumns(dim=len(known), names=tuple(map(str, known)), one_hot=one_hot, gaps=gaps).matched(X), None
    kinds = kinds_in(schema_of(X) if is_lazy(X) else X)
    if not fitting:
        X = in_memory(X)
        with _named_in_full(X, kinds, asked):
            if known is not None or column not in names:
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
        with _named_in_full(X, kinds, asked):
            layout = choice.laid_out("X", names, kinds)
    if layout.ids:
        _warn_of_ids(layout.ids)
    if column is not None:
        ids = person_ids(X, column)
    return without_objects(X if choice.empty and not lazy else picked(X, layout)), ids


@contextmanager
def _named_in_full(X: Any, kinds: dict[str, str], asked: Any) -> Iterator[None]:
    """Let an error about columns that are no numbers also name those with missing or infinite values."""
    try:
        yield
    except ColumnsError as error:
        # Read as text or as an id, a column may have gaps: only those that are numbers by type are looked at.
        beside = {getattr(asked, "person", None)} if isinstance(getattr(asked, "person", None), str) else set()
        choice = ColumnChoice.of(asked)
        left = set(choice.laid_out("X", list(kinds)).plain).difference(beside)
        numbers = [name for name, kind in kinds.items() if kind in ("number", "truth value") and name in left]
        found = ColumnFaults.found((name, _as_arrow_column(X, name)) for name in numbers)
        raise found.added_to(error, gaps=rule_of(asked) != "refuse", among=list(kinds)) from None


def _as_arrow_column(X: Any, name: str) -> Any:
    import pyarrow as pa

    column = column_of(X, name)
    if is_arrow_like(X):
        return column
    if str(column.dtype) == "object":
        return pa.array([as_float(value) for value in column], pa.float64())
    return pa.array(column.to_numpy(dtype="float64", na_value=math.nan))


def _chosen_there(engine: Engine, X: Any, asked: Any, *, fitting: bool, known: Any) -> tuple[Any, Any]:
    """As `chosen`, for a collection that stays where it is: columns are chosen, checked and weighted by person there."""
    assert engine.columns is not None and engine.frame is not None
    names = engine.columns(X)
    gaps = getattr(asked, "missing", "refuse") != "refuse"
    person = getattr(asked, "person", None) if fitting else None
    column = person if isinstance(person, str) else None
    # Identifiers that are there stay there.
    ids = None if person is None or column is not None else person if engine.takes(person) else identifiers(person)
    if names is None:
        _require_no_choice(asked, fitting=fitting, but="{X} has none")
        require_param(column is None, _NO_COLUMN, column=column)
        array = engine.rows(X, gaps=gaps)
        return array, _here(engine, ids, array)
    choice = ColumnChoice.of(asked, person=column)
    if not fitting:
        choice = (
            ColumnChoice()
            if known is None
            else ColumnChoice(columns=choice.sources(known), one_hot=choice.one_hot, literal=True)
        )
    require_param(column is None or column in names, _NO_COLUMN, column=column)
    rows, layout = engine.frame(X, choice, gaps=gaps)
    if fitting and layout.ids:
        _warn_of_ids(layout.ids)
    return rows, _here(engine, ids, rows)


def _here(engine: Engine, ids: Any, rows: Rows) -> Any:
    """Identifiers of a collection in this process, where its rows are read here too."""
    if engine.bring is None or not engine.takes(ids) or is_elsewhere(rows):
        return ids
    return identifiers(engine.bring(ids))


_NO_COLUMN = "{person} names the column {@column}, which {X} does not have"


def _require_no_choice(asked: Any, *, fitting: bool, but: str) -> None:
    """Refuse a choice of columns where there is nothing to choose from."""
    given = [name for name in ("columns", "drop", "one_hot") if fitting and getattr(asked, name)]
    if given:
        raise ParameterError(f"{{{given[0]}}} needs a table with column names, and {but}")


def _warn_of_ids(names: tuple[str, ...]) -> None:
    says = f"{listed(map(repr, names))} look{'s' * (len(names) == 1)} like an id by name, and an id is no measurement"
    advice = "Leave it out with {drop=}, or say whose rows they are with {person}"
    warnings.warn(ParameterWarning(f"{verbatim(says)}. {advice}", drop=names), stacklevel=5)


def person_in(rows: Rows, person: Any) -> Person:
    """Who is protected by a release of these rows. `person` is the parameter: a column, identifiers or None."""
    return Person(grouped=counts_people(rows), column=person if isinstance(person, str) else None)
