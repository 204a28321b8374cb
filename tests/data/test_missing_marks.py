"""Values such as -9999 that stand for missing ones: the same gaps from every format, and nothing else is touched."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.feather as pf
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp

from eigenveil.data.engines.pool import rows_in_processes
from eigenveil.data.number_texts import MissingMarks
from eigenveil.data.rows import CheckedRows
from eigenveil.data.tables import open_source, read_table
from eigenveil.errors import ColumnsError

# The last row has numbers that are near the marks and are none.
VALUES = np.array([[1.0, -9999.0, 3.0], [-9999.0, 5.0, -1.0], [-9998.0, -99999.0, 9999.0]])
GAPS = np.array([[1.0, np.nan, 3.0], [np.nan, 5.0, np.nan], [-9998.0, -99999.0, 9999.0]])
TABLE = pa.table(dict(zip("abc", VALUES.T, strict=True)))
TYPED = pa.table(
    {"a": TABLE["a"].cast(pa.int32()), "b": TABLE["b"].cast(pa.float32()), "c": TABLE["c"].cast(pa.decimal128(9, 2))}
)


WRITERS: dict[str, Callable[[Path], Any]] = {
    "ints.csv": lambda path: pc.write_csv(TYPED, path),
    "a.parquet": lambda path: pq.write_table(TABLE, path),
    "typed.parquet": lambda path: pq.write_table(TYPED, path),
    "a.feather": lambda path: pf.write_feather(TYPED, path),
    "a.npy": lambda path: np.save(path, VALUES),
    "ints.npy": lambda path: np.save(path, VALUES.astype(np.int64)),
}


def dense(values: Any) -> Any:
    return values.toarray() if sp.issparse(values) else np.asarray(values)


@pytest.mark.parametrize("name", WRITERS)
def test_columns_of_every_type_have_the_same_gaps(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    WRITERS[name](path)
    for marks in (["-9999", "-1"], [-9999, -1.0], ["-9999.0", "-1e0", "unknown"]):
        rows = read_table(path, na_values=marks, gaps=True).rows
        np.testing.assert_equal(np.vstack([dense(block.values) for block in rows.blocks(2)]), GAPS)
        streamed = [dense(batch) for batch in open_source(path, na_values=marks).batches]
        np.testing.assert_equal(np.vstack(streamed), GAPS)
        assert rows.shape == VALUES.shape
    # Where nothing may be missing, they are refused like any gap, with all their columns.
    with pytest.raises((ColumnsError, ValueError), match=r"missing|NaN") as caught:
        list(CheckedRows(read_table(path, na_values=["-9999", "-1"]).rows).blocks(9))
    assert "9999" not in str(caught.value)
    if isinstance(caught.value, ColumnsError):
        assert caught.value.columns == ("a", "b", "c")
    np.testing.assert_equal(np.vstack([dense(block.values) for block in read_table(path).rows.blocks(2)]), VALUES)


@pytest.mark.parametrize("name", ["a.parquet", "a.npy"])
def test_several_processes_have_the_same_gaps(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / name)
    rows: Any = rows_in_processes(tmp_path / name, processes=2, gaps=True, na_values=["-9999", "-1"]).inner
    found = [block.values for piece in rows.pieces for block in piece.rows(gaps=True).blocks(9)]
    np.testing.assert_equal(np.vstack(found), GAPS)


def test_single_precision_has_numbers_of_its_own() -> None:
    marks = MissingMarks(("-99.9",))
    narrow = np.array([-99.9, 1], np.float32)
    np.testing.assert_equal(marks.without(narrow), [np.nan, 1])
    assert marks.taken_out(pa.table({"a": narrow}))["a"].null_count == 1
    # A double that is only near is a number.
    assert marks.taken_out(pa.table({"a": narrow.astype(float)}))["a"].null_count == 0


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_people_and_levels_that_are_missing(tmp_path: Path, kind: str) -> None:
    """A person's id of -9999 would make one person of all whose id is missing."""
    table = pa.table({"who": ["x", "-9999.0", "y"], "sex": ["f", "?", "m"], "a": [1.0, 2.0, 3.0]})
    path = tmp_path / f"a.{kind}"
    pc.write_csv(table, path) if kind == "csv" else pq.write_table(table, path)
    asked: dict[str, Any] = {"columns": ["sex", "a"], "one_hot": {"sex": ["f", "m", "?"]}, "na_values": ["-9999", "?"]}
    found = read_table(path, **asked)
    assert np.vstack([block.values for block in found.rows.blocks(9)]).tolist() == [[1, 0, 0, 1], [0, 0, 0, 2], [0, 1, 0, 3]]
    with pytest.raises(ValueError, match='person column "who"'):
        read_table(path, person="who", **asked)
