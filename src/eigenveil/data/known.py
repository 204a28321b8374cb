"""`KnownColumns`: the columns of a fit, found again in another table: by name where both have names, otherwise by their number.

Estimators, `Model` and `eigenveil transform` all ask this one place, so the same table has the same scores everywhere.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from eigenveil.core.rows import Rows, is_sparse, require_real
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
from eigenveil.errors import ColumnsError, listed, require

__all__ = ["KnownColumns", "require_places"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class KnownColumns:
    """The `dim` columns that a fit has analysed, and their `names`, None if its table had none.

    Those of text were made by `one_hot`, the public levels of each. With `gaps`, entries may be missing.
    """

    dim: int
    names: tuple[str, ...] | None = None
    one_hot: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    gaps: bool = False

    def laid_out(
        self,
        source: Any,
        names: Sequence[str],
        kinds: Mapping[str, str] | None,
        *,
        offered: frozenset[str] | None = None,
    ) -> ColumnLayout:
        """Where a table with these column `names` has them, in their order; a `ValueError` names those that it lacks.

        Other columns of the table are left out. Only those in `offered` may be used, None for all.
        """
        assert self.names is not None
        choice = ColumnChoice(one_hot=self.one_hot)
        there = frozenset(names) if offered is None else offered
        missing = [name for name in choice.sources(self.names) if name not in there]
        require(
            not missing,
            f"{source} lacks columns of the model: {listed(missing)}. Use a table with the columns the model was fitted on, or "
            "another model",
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
        require(
            rows.shape[1] == self.dim,
            f"{source} must have {self.dim} columns, as the model does, got {rows.shape[1]}",
        )
        for block in rows.blocks(size):
            self._require_entries(block.values)
            yield block.values

    def _rows(self, X: Any, source: str) -> Rows:
        require(
            not isinstance(X, Symmetric),
            f"{source} must be rows, got a Symmetric, which is a sum over people and has no scores",
        )
        # What is lazy is collected after its columns are known.
        X = in_memory(self.matched(X if is_lazy(X) else in_memory(X), source="the table"))
        if isinstance(X, np.ndarray) or is_arrow_like(X) or not isinstance(X, Rows):
            # Gaps are looked for below, in every kind of rows alike.
            return as_rows(X if is_arrow_like(X) or is_sparse(X) else _as_array(X, source), gaps=True)
        rows: Rows = X
        return rows

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
        where = "" if self.names is None else f" in {listed(self.names[column] for column in columns)}"
        what = "infinite" if self.gaps else "NaN or infinite"
        raise ValueError(f"some rows have {what} entries{where}. Fill in or remove such rows first")


def require_places(names: Sequence[Any], known: Sequence[str] | None, source: str) -> None:
    """Refuse a table whose names are no text, such as numbers or pairs, and say that its columns lie in another order.

    Such names are not learned, so columns are taken by their place, as those of an array are. Where the `known` columns have
    names, a table needs the same ones, or none: pandas numbers columns from 0 that have none.
    """
    if list(names) == list(range(len(names))):
        return
    require(
        known is None,
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
        not isinstance(X, np.ma.MaskedArray),
        f"{source} is a masked array, whose hidden entries would be used. Fill them first",
    )
    try:
        found = X.to_numpy(dtype=np.float64, na_value=np.nan) if hasattr(X, "iloc") else np.asarray(X)
        if found.dtype == object and found.ndim == 2:
            found = np.array([[as_float(value) for value in row] for row in found])
    except Exception:
        # A foreign table may raise anything, in words that quote its values.
        raise ValueError(f"{source} must be an array or a sparse matrix of real numbers") from None
    require(found.ndim == 2, f"{source} must have two dimensions, rows and columns, got {found.ndim}")
    return found
