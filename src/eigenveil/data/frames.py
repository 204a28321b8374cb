"""Tables in memory, of pandas, polars and Arrow alike: their names, kinds and single columns.

What is lazy or belongs to another library becomes a plain table here: a LazyFrame of polars and a relation of DuckDB are
collected, and tensors of torch in memory become arrays.
"""

import contextlib
import math
import numbers
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, ClassVar, final

import numpy as np

from eigenveil.core.rows import Block, Rows, is_sparse
from eigenveil.data.columns import ColumnFaults, ColumnLayout, as_numbers, kinds_of, one_hot_columns, require_numbers
from eigenveil.data.people import Marks, identifiers, marks_of, require_ids
from eigenveil.data.rows import DenseRows, NamedRows, SparseRows
from eigenveil.errors import ColumnsError, require

__all__ = [
    "ArrowRows",
    "as_arrow",
    "as_float",
    "as_rows",
    "collected",
    "column_names",
    "column_of",
    "distinct_ids",
    "in_memory",
    "is_arrow_like",
    "is_lazy",
    "is_tensor",
    "kinds_in",
    "person_ids",
    "person_marks",
    "picked",
    "schema_of",
    "tensor_in_memory",
    "without_objects",
]

_NAMES_AT_ONCE = 1 << 16


def is_lazy(X: Any) -> bool:
    """Whether `X` is a query that has names and types but no rows yet: a LazyFrame of polars, or a relation of DuckDB.

    >>> is_lazy([1, 2])
    False
    """
    # By name, because neither library need be installed.
    module, name = type(X).__module__.partition(".")[0], type(X).__name__
    return (module == "polars" and name == "LazyFrame") or (module in ("duckdb", "_duckdb") and name == "DuckDBPyRelation")


def schema_of(X: Any) -> Any:
    """A lazy table without rows: an Arrow table with its names and types."""
    with _foreign():
        return X.head(0).collect().to_arrow() if type(X).__name__ == "LazyFrame" else X.limit(0).to_arrow_table()


def collected(X: Any, columns: Sequence[str] | None = None) -> Any:
    """A lazy table as an Arrow table, read once. Only these `columns` are ever in memory, None for all.

    It is held, and not run again for each pass: a query may give its rows in another order, and a person's rows would then get
    the weights of others.
    """
    wanted = None if columns is None else list(dict.fromkeys(columns))
    with _foreign():
        if type(X).__name__ == "LazyFrame":
            return (X if wanted is None else X.select(wanted)).collect().to_arrow()
        quoted = None if wanted is None else ", ".join('"' + name.replace('"', '""') + '"' for name in wanted)
        return (X if quoted is None else X.project(quoted)).to_arrow_table()


@contextlib.contextmanager
def _foreign() -> Iterator[None]:
    """Errors of a query in our words. The query is the caller's, and errors of its libraries quote values."""
    try:
        yield
    except Exception as error:
        raise ValueError(
            f"X could not be collected ({type(error).__name__}). The message is not shown, because it may quote the data. "
            "Collect it yourself to see it, with its connection open"
        ) from None


def is_tensor(X: Any) -> bool:
    """Whether `X` is a tensor of torch.

    >>> is_tensor([1, 2])
    False
    """
    return type(X).__module__.partition(".")[0] == "torch" and hasattr(X, "detach")


def tensor_in_memory(X: Any) -> Any:
    """A torch tensor in this machine's memory as a numpy array or a scipy sparse matrix, mostly without a copy."""
    import torch

    require(
        not (X.is_complex() or X.is_quantized or X.is_nested),
        f"X must hold real numbers, got a tensor of dtype {X.dtype}. Pass one of float64 or float32",
    )
    # Gradients play no part in a fit.
    values = X.detach()
    names = "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 float32 float64"
    if values.dtype not in [getattr(torch, name, None) for name in names.split()]:
        # bfloat16 and floats of 8 bits: numpy has none, and float32 holds each of their numbers.
        values = values.to(torch.float32)
    if values.layout == torch.strided:
        return values.resolve_conj().resolve_neg().numpy()
    require(
        values.layout in (torch.sparse_csr, torch.sparse_coo, torch.sparse_csc) and values.ndim == 2,
        f"X is a tensor of layout {values.layout}. Pass X.to_dense(), or X.to_sparse_csr()",
    )
    import scipy.sparse as sp

    shape = tuple(values.shape)
    if values.layout == torch.sparse_coo:
        values = values.coalesce()
        return sp.csr_array((values.values().numpy(), values.indices().numpy()), shape=shape)
    if values.layout == torch.sparse_csr:
        indices, starts, kind = values.col_indices(), values.crow_indices(), sp.csr_array
    else:
        indices, starts, kind = values.row_indices(), values.ccol_indices(), sp.csc_array
    return sp.csr_array(kind((values.values().numpy(), indices.numpy(), starts.numpy()), shape=shape))


def in_memory(X: Any) -> Any:
    """`X`, or the plain table or array that a tensor in memory or a lazy table holds."""
    if is_tensor(X) and X.device.type == "cpu":
        return tensor_in_memory(X)
    return collected(X) if is_lazy(X) else X


def column_names(X: Any) -> list[Any] | None:
    """The names of a table's columns, None if it has none."""
    if isinstance(X, NamedRows):
        return None if X.names is None else list(X.names)
    # In pyarrow `columns` is the data, and names are in the schema. In polars and pandas `columns` is the names.
    if is_arrow_like(X) and type(X).__module__.startswith("pyarrow"):
        return list(X.schema.names)
    if is_lazy(X):
        return list(schema_of(X).schema.names)
    names = getattr(X, "columns", None)
    return None if names is None else list(names)


def picked(X: Any, layout: ColumnLayout) -> Any:
    """The analysed columns of a table in memory, in the order of the layout."""
    made = {
        f"{name}_{level}": column
        for name, levels in layout.one_hot.items()
        for level, column in zip(levels, one_hot_columns(column_of(X, name), name, levels), strict=True)
    }
    if not is_arrow_like(X):
        return X.assign(**made)[list(layout.names)] if made else X[list(layout.names)]
    table = as_arrow(X)
    if not made:
        return table.select(list(layout.names))
    import pyarrow as pa

    arrays = [pa.array(made[name]) if name in made else table.column(name) for name in layout.names]
    return pa.table(arrays, names=list(layout.names))


def column_of(X: Any, name: str) -> Any:
    """One column of a table."""
    return as_arrow(X).column(name) if is_arrow_like(X) else X[name]


def kinds_in(X: Any) -> dict[str, str]:
    """The kind of each column of a table in memory, in the same words for pandas, polars and Arrow."""
    import pyarrow as pa

    if is_arrow_like(X):
        return kinds_of(as_arrow(X).schema)
    kinds: dict[str, str] = {}
    for index, (name, dtype) in enumerate(zip(X.columns, X.dtypes, strict=True)):
        if getattr(dtype, "kind", "O") in "biuf":
            kinds[name] = "number"
            continue
        column = X.iloc[:, index]
        try:
            # A column of objects may hold numbers. What kind of thing it holds is a declared type in every other table.
            kinds |= kinds_of(pa.schema([(name, pa.array(column, from_pandas=True).type)]))
        except (pa.ArrowException, ArithmeticError, TypeError, ValueError):
            # Arrow has no type for them. They may be numbers all the same, such as whole ones beyond 64 bits.
            kinds[name] = "number" if all(map(_is_number, column)) else str(dtype)
    return kinds


def _is_number(value: Any) -> bool:
    """Whether an object is a number that float64 can hold or round, or says that there is none."""
    return value is None or isinstance(value, numbers.Real | Decimal) or type(value).__name__ in ("NAType", "NaTType")


def without_objects(X: Any) -> Any:
    """A pandas table whose columns of objects, which are numbers by their kind, are float64. Any other table as it is."""
    # Scikit-learn would raise Python's own errors about single values, such as whole numbers beyond float64 or pandas' NA.
    if is_arrow_like(X) or not any(str(dtype) == "object" for dtype in X.dtypes):
        return X
    made = {
        name: [as_float(value) for value in X[name]]
        for name, dtype in zip(X.columns, X.dtypes, strict=True)
        if str(dtype) == "object"
    }
    # Not in place: the table is the caller's. The columns that stay are not copied.
    table = X.copy(deep=False)
    for name, values in made.items():
        table[name] = values
    return table.astype(dict.fromkeys(made, "float64"))


def as_float(value: Any) -> float:
    """An object as a number: NaN where there is none, and infinity where float64 has no room for it."""
    if not isinstance(value, numbers.Real | Decimal):
        return math.nan if value is None or not hasattr(value, "__float__") else float(value)
    try:
        return float(value)
    except OverflowError:
        # Too large for float64, and then refused like infinity, with the name of its column.
        return math.inf
    except ValueError:
        # A signalling NaN of the decimal module.
        return math.nan


@final
@dataclass(frozen=True, slots=True, eq=False)
class ArrowRows:
    """Rows of a pyarrow table, converted to numbers a block at a time. Nulls are refused like NaN, or NaN if `gaps` are allowed.

    >>> import pyarrow as pa
    >>> [block.values.tolist() for block in ArrowRows(pa.table({"a": [1, 2], "b": [0.5, 1.5]})).blocks(9)]
    [[[1.0, 0.5], [2.0, 1.5]]]
    """

    unweighted: ClassVar = True
    sparse: ClassVar = False
    table: Any
    gaps: bool = False

    def __post_init__(self) -> None:
        require_numbers(self.table.schema)

    @property
    def shape(self) -> tuple[int, int]:
        return int(self.table.num_rows), int(self.table.num_columns)

    def blocks(self, size: int) -> Iterator[Block]:
        try:
            for start in range(0, self.table.num_rows, size):
                yield Block(as_numbers(self.table.slice(start, size), gaps=self.gaps))
        except ColumnsError as error:
            names = self.table.schema.names
            faults = ColumnFaults.of_batches([self.table], names)
            raise faults.added_to(error, gaps=self.gaps, among=names) from None


def is_arrow_like(data: Any) -> bool:
    """Whether `data` is a pyarrow table or record batch, or a polars frame, all of which become Arrow without a copy.

    >>> is_arrow_like(np.zeros(2))
    False
    """
    # The type is recognised by its name, because polars need not be installed.
    kind = type(data)
    module = kind.__module__.partition(".")[0]
    return (module == "pyarrow" and kind.__name__ in {"Table", "RecordBatch"}) or (
        module == "polars" and kind.__name__ == "DataFrame"
    )


def as_arrow(data: Any) -> Any:
    """An Arrow-like table as a pyarrow table or record batch."""
    import pyarrow as pa

    return data if isinstance(data, pa.Table | pa.RecordBatch) else data.to_arrow()


def as_rows(data: Any, *, gaps: bool = False) -> Rows:
    """Rows from a checked array, a sparse matrix, an Arrow-like table, or rows as they are. With `gaps`, nulls become NaN.

    >>> as_rows(np.zeros((2, 3))).shape
    (2, 3)
    """
    if is_arrow_like(data):
        return ArrowRows(as_arrow(data), gaps)
    if is_sparse(data):
        import scipy.sparse as sp

        return SparseRows(sp.csr_array(data))
    if isinstance(data, np.ndarray):
        return DenseRows(data)
    require(isinstance(data, Rows), f"rows must be an array, a sparse matrix or a table, got {type(data).__name__}")
    rows: Rows = data
    return rows


def person_ids(table: Any, person: str) -> Any:
    """The people in column `person` of an Arrow-like or pandas table as whole numbers from 0, (n,), one per row.

    Identifiers that name no one are refused, as in `eigenveil.data.people.identifiers`.

    >>> import pyarrow as pa
    >>> person_ids(pa.table({"who": ["a", "b"]}), "who").tolist()
    [0, 1]
    """
    return _people(table, person)[1]


def person_marks(table: Any, person: str) -> Marks:
    """The same people by marks that they have in every table, for a stream of tables."""
    names, places = _people(table, person)
    return marks_of(names.tolist(), places, what=f'person column "{person}"')


def distinct_ids(table: Any, person: str) -> tuple[list[Any], Any]:
    """The distinct people in column `person`, and which of them each row has, (n,), checked like those of `person_ids`.

    >>> import pyarrow as pa
    >>> names, codes = distinct_ids(pa.table({"who": ["a", "b", "a"]}), "who")
    >>> names, codes.tolist()
    (['a', 'b'], [0, 1, 0])
    """
    names, codes = _people(table, person)
    return names.tolist(), codes


def _people(table: Any, person: str) -> tuple[Any, Any]:
    """The people in a column, each once, as an array, and for each row the place of its person among them, (n,)."""
    import pyarrow as pa
    import pyarrow.types as types

    column = table[person] if not isinstance(table, pa.RecordBatch) else table.column(person)
    what = f'person column "{person}"'
    try:
        whole = column if isinstance(column, pa.Array | pa.ChunkedArray) else pa.array(column)
        whole = whole.combine_chunks() if isinstance(whole, pa.ChunkedArray) else whole
        if isinstance(whole, pa.DictionaryArray):
            # A dictionary may list one person twice, or a missing value, so the decoded values count.
            whole = whole.dictionary_decode()
        if isinstance(whole, pa.ExtensionArray):
            whole = whole.storage
        # Nulls get the same error as any identifier that names no one.
        require_ids([None] * bool(whole.null_count), what=what)
        if types.is_floating(whole.type):
            numbers = identifiers(whole.to_numpy(zero_copy_only=False), what=what)
            each, places = np.unique(numbers, return_inverse=True)
            return each, places
        codes = whole.dictionary_encode()
    except (pa.ArrowException, ArithmeticError, TypeError):
        raise ValueError(f"{what} must have values of one type, and whole numbers of at most 64 bits") from None
    names = codes.dictionary
    # Each distinct identifier is checked once, however many rows it has. Numbers and dates can only be missing as
    # nulls, which were refused above.
    if not (types.is_primitive(names.type) or types.is_decimal(names.type)):
        for start in range(0, len(names), _NAMES_AT_ONCE):
            require_ids(names.slice(start, _NAMES_AT_ONCE).to_numpy(zero_copy_only=False), what=what)
    return names, codes.indices.to_numpy(zero_copy_only=False)
