"""`KnownColumns`: the columns of a fit, found again in another table: by name where both have names, otherwise by their number.

Estimators, `Model` and `eigenveil transform` all ask this one place, so the same table has the same scores everywhere.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, final

import numpy as np

from eigenveil.core.rows import Block, Rows, block_size, is_sparse, require_real, total_of
from eigenveil.data.columns import ColumnChoice, ColumnLayout
from eigenveil.data.frames import (
    as_float,
    as_rows,
    collected,
    column_names,
    in_memory,
    is_arrow_like,
    is_lazy,
    kinds_in,
    picked,
    schema_of,
    without_objects,
)
from eigenveil.data.rows import Symmetric
from eigenveil.errors import ColumnsError, join_names, require
from eigenveil.linalg import Array

__all__ = ["FingerprintWork", "KnownColumns", "fingerprints", "require_places", "source_of"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class KnownColumns:
    """The columns that a fit has analysed."""

    dim: int  # How many.
    names: tuple[str, ...] | None = None  # None if its table had none.
    one_hot: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # The public levels of those made of text.
    gaps: bool = False  # Entries may be missing.

    def laid_out(
        self, source: Any, names: Sequence[str], kinds: Mapping[str, str] | None, *, offered: frozenset[str] | None = None
    ) -> ColumnLayout:
        """Where a table with these column `names` has them, in their order; a `ValueError` names those that it lacks.

        Other columns of the table are left out. Only those in `offered` may be used, None for all.
        """
        assert self.names is not None
        choice = ColumnChoice(one_hot=self.one_hot)
        available = frozenset(names) if offered is None else offered
        missing = [name for name in choice.sources(self.names) if name not in available]
        require(
            not missing,
            f"{source} lacks columns of the model: {join_names(missing)}. Use a table with the columns the model was fitted on, "
            "or another model",
        )
        try:
            layout = choice.again(names, self.names, source=source, kinds=kinds)
        except ColumnsError as error:
            raise ValueError(f"{source}: {error.happened}. The model was fitted on numbers there") from None
        # Made columns of one source lie side by side in every fit. A file from elsewhere may say otherwise.
        require(layout.names == self.names, "the columns of the model are not those that its levels of text make")
        return layout

    def matched(self, X: Any, *, source: str = "X") -> Any:
        """A table in memory with these columns alone, in their order. What has no names, on either side, stays as it is."""
        names = column_names(X)
        text = [isinstance(name, str) for name in names or ()]
        if names is not None and not any(text):
            require_places(names, self.names, source)
        if self.names is None or names is None or not any(text):
            return X
        require(all(text), f"{source} has column names of several types, and they must all be text to be matched")
        if is_lazy(X):
            empty = schema_of(X)
            layout = self.laid_out(source, names, kinds_in(empty))
            return picked(collected(X, layout.read), layout)
        needed = set(ColumnChoice(one_hot=self.one_hot).sources(self.names))
        # Only the columns that are needed are looked at: another may hold anything.
        kinds = kinds_in(X if is_arrow_like(X) else X[[name for name in names if name in needed]])
        return without_objects(picked(X, self.laid_out(source, names, kinds)))

    def blocks(self, X: Any, size: int, *, source: str = "rows") -> Iterator[Any]:
        """Checked rows of a table, an array, a sparse matrix or `Rows`, with these columns: at most `size` at a time."""
        rows = self._rows(X, source)
        require(rows.shape[1] == self.dim, f"{source} must have {self.dim} columns, as the model does, got {rows.shape[1]}")
        for block in rows.blocks(size):
            self._require_entries(block.values)
            yield block.values

    def _rows(self, X: Any, source: str) -> Rows:
        require(
            not isinstance(X, Symmetric), f"{source} must be rows, got a Symmetric, which is a sum over people and has no scores"
        )
        # What is lazy is collected after its columns are known.
        X = in_memory(self.matched(X if is_lazy(X) else in_memory(X), source="the table"))
        plain = isinstance(X, np.ndarray) or not (is_arrow_like(X) or is_sparse(X) or isinstance(X, Rows))
        # Gaps are looked for below, in every kind of rows alike.
        return as_rows(_as_array(X, source) if plain else X, gaps=True)

    def _require_entries(self, values: Any) -> None:
        """Refuse infinite entries, and missing ones unless there may be gaps, and name the columns that have any."""
        require_real(values.dtype, "rows")
        stored = values.data if is_sparse(values) else values
        with np.errstate(all="ignore"):
            if stored.dtype.kind != "f" or np.isfinite(stored.sum()):
                return
        bad = np.isinf(stored) if self.gaps else ~np.isfinite(stored)
        if not bad.any():
            return
        columns = np.unique(values.indices[bad]) if is_sparse(values) else np.flatnonzero(bad.any(axis=0))
        where = "" if self.names is None else f" in {join_names(self.names[column] for column in columns)}"
        what = "infinite" if self.gaps else "NaN or infinite"
        raise ValueError(f"some rows have {what} entries{where}. Fill in or remove such rows first")


def require_places(names: Sequence[Any], fit_names: Sequence[str] | None, source: str) -> None:
    """Refuse a table whose names are no text, such as numbers or pairs, and say that its columns lie in another order.

    Such names are not learned, so columns are taken by their place, as those of an array are. Where the `fit_names` columns have
    names, a table needs the same ones, or none: pandas numbers columns from 0 that have none.
    """
    if list(names) == list(range(len(names))):
        return
    require(
        fit_names is None,
        f"{source} has column names that are not text, and cannot be matched with those of the model. Name its columns as they "
        "were in the fit, or pass an array with the columns in that order",
    )
    numbered = all(isinstance(name, int | np.integer) for name in names)
    require(
        not (numbered and sorted(names) == list(range(len(names)))),
        f"{source} has numbered columns in another order than 0, 1, 2, and numbers are not matched. Sort them, or pass an array "
        "with the columns in the order of the fit",
    )


def _as_array(X: Any, source: str) -> Any:
    """Rows of a list, of a pandas table, or of any table that numpy can read, as an array of two dimensions."""
    require(
        not isinstance(X, np.ma.MaskedArray), f"{source} is a masked array, whose hidden entries would be used. Fill them first"
    )
    try:
        array = X.to_numpy(dtype=np.float64, na_value=np.nan) if hasattr(X, "iloc") else np.asarray(X)
        if array.dtype == object and array.ndim == 2:
            array = np.array([[as_float(value) for value in row] for row in array])
    except Exception:
        # A foreign table may raise anything, in words that quote its values.
        raise ValueError(f"{source} must be an array or a sparse matrix of real numbers") from None
    require(array.ndim == 2, f"{source} must have two dimensions, rows and columns, got {array.ndim}")
    return array


# Rows and columns by which a table is known again under another name, and the fewest rows that can tell tables apart.
_COMPARED_ROWS: Final = 200
_COMPARED_COLUMNS: Final = 256
_TELLING_ROWS: Final = 16


def fingerprints(rows: Rows) -> tuple[bytes, ...]:
    """The first is of all rows: it shows when a name stands for other rows than before.

    The others are of the numbers alone, and of single columns of the first rows. Another study may read the table with other
    columns, or by person. One of these in common is then enough to recognise it.
    """
    digests = total_of(rows, FingerprintWork())
    # A table in one piece, as it is in memory, has its own digest. Several pieces have one of theirs.
    pieces = (digests.whole, digests.numbers)
    joined = [each[0] if len(each) == 1 else hashlib.sha256(b"".join(each)).digest() for each in pieces]
    return tuple(dict.fromkeys([*joined, *digests.columns]))


@final
@dataclass(frozen=True, slots=True)
class TableMarks:
    """Digests of pieces of a table, one after the other."""

    whole: tuple[bytes, ...]  # Of all that counts.
    numbers: tuple[bytes, ...]  # Of the numbers alone.
    columns: tuple[bytes, ...]  # Of single columns of the first rows.


@final
@dataclass(frozen=True, slots=True)
class FingerprintWork:
    """Digests of a table, worked out where its rows are. No row comes back; the digests are as private as the rows."""

    def of(self, rows: Rows) -> TableMarks:
        """The digests of rows that are here."""
        # The shape goes in first: the same numbers in rows of another length are another table.
        shape = repr(rows.shape).encode()
        state, numbers, first = hashlib.sha256(shape), hashlib.sha256(shape), np.empty((0, rows.shape[1]))
        # Block by block: the table may be larger than memory.
        for block in rows.blocks(block_size(rows)):
            for part in _bytes_of(block):
                state.update(part)
                numbers.update(part)
            if block.weights is not None:
                state.update(np.ascontiguousarray(block.weights, dtype="<f8").data)
            if not rows.sparse and len(first) < _COMPARED_ROWS:
                first = np.concatenate([first, np.asarray(block.values[: _COMPARED_ROWS - len(first)], dtype="<f8")])
        return TableMarks((state.digest(),), (numbers.digest(),), tuple(_columns_of(first)))

    def joined(self, left: TableMarks, right: TableMarks) -> TableMarks:
        """The digests of a table that begins with the rows of `left`."""
        return TableMarks(left.whole + right.whole, left.numbers + right.numbers, left.columns or right.columns)


def source_of(path: Path, sheet: str | None = None) -> str:
    """Where a table is: its path in full, and the sheet of a workbook. The same whatever rows are in it."""
    # Links are followed, so that a second name of a file does not hide it.
    return str(path.resolve()) + ("" if sheet is None else f", sheet {sheet}")


def _bytes_of(block: Block) -> Iterator[Any]:
    """The numbers of a block, in a fixed byte order, so that machines agree. Sparse rows stay sparse: zeros are not written."""
    if not block.sparse:
        yield np.ascontiguousarray(block.values, dtype="<f8").data
        return
    matrix = block.values
    if not bool((matrix.data != 0).all()):
        # A zero that is stored is a zero like any other.
        matrix = matrix.copy()
        matrix.eliminate_zeros()
    yield np.diff(matrix.indptr).astype("<i8").data
    yield matrix.indices.astype("<i8").data
    yield matrix.data.astype("<f8").data


def _columns_of(rows: Array) -> list[bytes]:
    """Digests of the columns, without their names. Those that are much alike in many tables are left out."""
    digests = set()
    for column in rows.T if len(rows) >= _TELLING_ROWS else ():
        # A value may make up no more than half of a column: flags that are mostly 0 look alike in unrelated tables.
        if int(np.unique(column, return_counts=True)[1].max()) * 2 <= len(column):
            digests.add(hashlib.sha256(b"column" + np.ascontiguousarray(column, dtype="<f8").data).digest())
    # Of a wide table the smallest, whichever columns a study has: two studies that share most columns share some of these.
    return sorted(digests)[:_COMPARED_COLUMNS]
