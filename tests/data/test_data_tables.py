"""Tables and files as rows: every type and format gives the same numbers, and what cannot is refused without quoting it."""

import pickle
import traceback
from collections.abc import Callable
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp

from each import each
from eigenveil.core.rows import Rows
from eigenveil.data.frames import as_rows, is_arrow_like, person_ids
from eigenveil.data.rows import DenseRows
from eigenveil.data.tables import read_table
from eigenveil.linalg import Array

# Numbers that every dtype below can hold, with a zero row and column-wise variety.
SMALL = np.array([[1, 0, 3], [0, 0, 0], [7, 5, 0], [2, 2, 100], [0, 9, 1]])
SECRET = "8675309"
NAMES = ["age", "dose", "weight"]


def numbers(rows: Rows, size: int = 2) -> Array:
    """All rows as one array, read `size` at a time."""
    parts = [block.values.toarray() if block.sparse else block.values for block in rows.blocks(size)]
    return np.vstack([np.asarray(part, dtype=np.float64) for part in parts])


def columns(values: Any = SMALL) -> dict[str, Any]:
    """The columns of `values` by name."""
    return dict(zip(NAMES, np.asarray(values).T, strict=True))


DTYPES = ["bool", "uint8", "int8", "int16", "uint16", "int32", "int64", "uint64", "float16", "float32", "float64", ">f8"]


SPARSE = [sp.csr_array, sp.csr_matrix, sp.csc_array, sp.csc_matrix, sp.coo_array, sp.coo_matrix]
# What scipy's sparse matrices and polars can hold.
COMMON = [dtype for dtype in DTYPES if dtype not in ("float16", ">f8")]


@each(("store", "dtype"), [*product([np.asarray, np.asfortranarray], DTYPES), *product(SPARSE, COMMON)])
def test_arrays_and_sparse_matrices_become_their_rows(store: Callable[[Any], Any], dtype: str) -> None:
    values = SMALL.astype(dtype)
    rows = as_rows(store(values))
    assert rows.shape == values.shape
    assert rows.sparse == sp.issparse(store(values))
    assert np.array_equal(numbers(rows), values.astype(np.float64))


ARROW_LIKE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "pyarrow table": pa.table,
    "pyarrow batch": pa.RecordBatch.from_pydict,
    "pyarrow chunks": lambda data: pa.concat_tables([pa.table(data).slice(0, 1), pa.table(data).slice(1)]),
    "polars": pl.DataFrame,
}


@each("make", ARROW_LIKE.values())
@each("dtype", COMMON)
def test_arrow_like_tables_become_their_rows(make: Callable[[dict[str, Any]], Any], dtype: str) -> None:
    values = SMALL.astype(dtype)
    table = make(columns(values))
    assert is_arrow_like(table)
    assert np.array_equal(numbers(as_rows(table)), values.astype(np.float64))


def test_decimals_half_floats_and_mixed_columns_become_numbers() -> None:
    table = pa.table(
        {
            "exact": pa.array([Decimal("1.25"), Decimal("-3.50")]),
            "half": pa.array(np.array([0.5, 2.0], dtype=np.float16)),
            "flag": pa.array([True, False]),
        }
    )
    assert numbers(as_rows(table)).tolist() == [[1.25, 0.5, 1.0], [-3.5, 2.0, 0.0]]


def test_rows_pass_as_they_are_and_other_things_do_not() -> None:
    rows = DenseRows(np.zeros((2, 3)))
    assert as_rows(rows) is rows
    for wrong in ([[1.0]], "text", None, pd.DataFrame({"a": [1.0]})):
        assert not is_arrow_like(wrong)
        with pytest.raises(ValueError, match=f"must be an array, a sparse matrix or a table, got {type(wrong).__name__}"):
            as_rows(wrong)
    with pytest.raises(ValueError, match=r"two dimensions, got shape \(4,\)"):
        as_rows(np.zeros(4))


@pytest.mark.parametrize(
    "column", [["a", SECRET], pd.to_datetime(["2020-01-01", "2020-01-02"]), [[1.0], [2.0]]], ids=["text", "dates", "lists"]
)
def test_columns_without_numbers_are_named_and_not_quoted(column: Any) -> None:
    with pytest.raises(ValueError, match=r"columns must hold numbers; these do not: note \(") as caught:
        as_rows(pa.table({"age": [1, 2], "note": pa.array(column)}))
    assert SECRET not in str(caught.value)


def test_a_column_of_nothing_is_one_of_numbers_that_are_all_missing() -> None:
    rows = as_rows(pa.table({"age": [1, 2], "note": pa.array([None, None])}))
    with pytest.raises(ValueError, match="column 'note' has missing values"):
        numbers(rows)


@pytest.mark.parametrize("make", ARROW_LIKE.values(), ids=ARROW_LIKE.keys())
def test_nulls_are_refused_when_they_are_read(make: Callable[[dict[str, Any]], Any]) -> None:
    rows = as_rows(make({"age": [1, 2, int(SECRET)], "dose": [0.5, None, 1.5]}))
    with pytest.raises(ValueError, match="column 'dose' has missing values") as caught:
        numbers(rows)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("dtype", DTYPES)
def test_npy_files_of_any_real_type_are_mapped(dtype: str, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.asfortranarray(SMALL.astype(dtype)))
    rows = read_table(str(tmp_path / "a.npy")).rows
    assert isinstance(rows, DenseRows) and isinstance(rows.values, np.memmap)
    assert np.array_equal(numbers(rows), SMALL.astype(dtype).astype(np.float64))


def test_an_npz_archive_of_one_array_needs_no_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", whatever=SMALL)
    assert np.array_equal(numbers(read_table(tmp_path / "a.npz").rows), SMALL)


def test_a_dropped_column_whose_name_starts_like_another_stays_dropped(tmp_path: Path) -> None:
    pq.write_table(pa.table({"age": [1.0, 2.0], "age.raw": [9.0, 9.0], "dose": [3.0, 4.0]}), tmp_path / "a.parquet")
    assert numbers(read_table(tmp_path / "a.parquet", drop=["age.raw"]).rows).tolist() == [[1.0, 3.0], [2.0, 4.0]]


def refuses(path: Path, message: str, **how: Any) -> None:
    """Reading all of `path` raises a `ValueError` that matches, and nothing of its traceback quotes the secret."""
    with pytest.raises(ValueError, match=message) as caught:
        numbers(read_table(path, **how).rows)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


CSV = {
    "empty": ("", "is empty. It needs a line of column names"),
    "header only": ("a,b\n", "has a header and no rows"),
    "text": (f"a,b\n1,2\n3,x{SECRET}\n", "cannot be read after row 1: not a number in column 'b'"),
    "ragged": (f"a,b\n1,2\n3,4,{SECRET}\n", "cannot be read after row 1: the next line has 3 fields and the header has 2"),
    "null": (f"a,b\n{SECRET},2\n3,\n", "column 'b' has missing values"),
    "NaN as text": (f"a,b\n{SECRET},2\n3,NaN\n", "column 'b' has missing values"),
    "date": (f"a,b\n{SECRET},2020-01-01\n", "not a number in column 'b'"),
    "duplicates": (f"a,b,a,b\n1,2,3,{SECRET}\n", "more than one column called 'a', 'b'"),
    "not text": (b"a,b\n\xff\xfe\x00,1\n", "after row 0: the next line is not UTF-8 text"),
    "quote left open": (f'a,b\n"{SECRET},1\n', "after row 0: the next line has an open quote"),
}


@pytest.mark.parametrize(("content", "message"), CSV.values(), ids=CSV.keys())
def test_csv_that_is_no_table_of_numbers_is_refused(content: str | bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    refuses(tmp_path / "a.csv", message)


def test_text_far_down_a_long_csv_is_not_quoted(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n" + "1,2\n" * 300_000 + f"7,x{SECRET}\n")
    refuses(tmp_path / "a.csv", "after row 300000: not a number in column 'b'")


_BELOW = "".join(f"{number},1,x\n" for number in range(4))


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ('9,9,"\n' + _BELOW, None),
        ('9,9,"\n' + _BELOW + '5,5,"z\n', None),
        ('9,9,"\n' + _BELOW + '5,5,5" pipe\n', None),
        ('9,9,"two\nlines"\n' + _BELOW + '5,5,5" pipe\n7,7,"\n8,8,z\n', 10),
        # Below this one there is nothing.
        ('9,9,"two\nlines"\n' + _BELOW + '5,5,5" pipe\n7,7,"\n', 9),
        ('9,9,5" pipe\n' + _BELOW, 7),
        ('9,9,"two\n\nlines"\n\n' + _BELOW, 7),
        ('9,9,"a ""b"" c"\n' + _BELOW, 7),
    ],
)
def test_the_text_of_a_row_swallows_no_rows_below_it(text: str, rows: int | None, tmp_path: Path) -> None:
    """Also in a column that is left out. One row would otherwise decide whether others are in the table."""
    path = tmp_path / "a.csv"
    path.write_text("a,b,note\n1,2,x\n3,4,y\n" + text)
    if rows is None:
        refuses(path, "the next line has an open quote", drop=["note"])
    else:
        assert read_table(path, drop=["note"]).rows.shape == (rows, 2)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_columns_that_are_not_there_are_named(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{ending}"
    frame = pd.DataFrame(columns())
    frame.to_csv(path, index=False) if ending == "csv" else frame.to_parquet(path, index=False)
    refuses(path, "has no column 'who'; it has age, dose, weight", person="who")
    refuses(path, "has no column 'x', 'y'; it has age", drop=["x", "age", "y"])
    refuses(path, "has no columns left to analyse", drop=["age", "dose"], person="weight")


def test_parquet_columns_without_numbers_or_with_nulls_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"age": [1, 2], "note": ["x", SECRET]}), path)
    refuses(path, r"these do not: note \(text\)")
    pq.write_table(pa.table({"age": [1, None, int(SECRET)], "dose": [1, 2, 3]}), path)
    refuses(path, "column 'age' has missing values")
    pq.write_table(pa.table({"age": [1, 2], "who": [SECRET, None]}), path)
    refuses(path, 'person column "who" has missing, blank or placeholder ids', person="who")


ARRAYS: dict[str, tuple[Any, str]] = {
    "one dimension": (np.arange(3.0), "must contain a two-dimensional array, got 1 dimensions"),
    "three dimensions": (np.zeros((2, 2, 2)), "must contain a two-dimensional array, got 3 dimensions"),
    "complex": (SMALL * 1j, "must hold real numbers, got dtype complex128"),
    "text": (np.array([["a", SECRET]]), "must hold real numbers, got dtype <U"),
    "dates": (np.array([["2020-01-01"]], dtype="M8[D]"), "must hold real numbers, got dtype datetime64"),
    "records": (np.zeros((2, 2), dtype=[("a", "f8")]), "must hold real numbers, got dtype"),
}


@pytest.mark.parametrize(("array", "message"), ARRAYS.values(), ids=ARRAYS.keys())
def test_arrays_on_disk_that_are_no_tables_of_numbers_are_refused(array: Any, message: str, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", array)
    np.savez(tmp_path / "a.npz", X=array)
    refuses(tmp_path / "a.npy", f"a.npy cannot be read as npy: it {message}")
    refuses(tmp_path / "a.npz", f"a.npz cannot be read as npz: it {message}")


class Trap:
    """Touches a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_nothing_is_ever_unpickled(tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    bait = np.empty((1, 1), dtype=object)
    bait[0, 0] = Trap(sprung)
    np.save(tmp_path / "a.npy", bait, allow_pickle=True)
    np.savez(tmp_path / "a.npz", X=bait)
    np.savez(tmp_path / "sparse.npz", format="csr", shape=bait, data=bait, indices=bait, indptr=bait)
    (tmp_path / "b.npy").write_bytes(pickle.dumps(Trap(sprung)))
    (tmp_path / "b.npz").write_bytes(pickle.dumps(Trap(sprung)))
    for path in tmp_path.glob("*.np*"):
        refuses(path, "cannot be read as np")
    assert not sprung.exists()
    np.load(tmp_path / "a.npy", allow_pickle=True)
    assert sprung.exists()


def test_archives_that_hold_something_else_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, a=SMALL, b=SMALL)
    refuses(path, "it contains several arrays and none is called X: a, b")
    np.savez(path)
    refuses(path, "it contains no array")
    np.save(tmp_path / "b.npy", SMALL)
    refuses((tmp_path / "b.npy").rename(path), "it is a single npy array")
    np.savez_compressed(path, X=SMALL)
    refuses(path.rename(tmp_path / "c.npy"), "it is an npz archive, not an npy array")


INDICES: dict[str, dict[str, Any]] = {
    "index beyond the columns": {"indices": np.array([0, 3])},
    "negative index": {"indices": np.array([0, -1])},
    "rows that run past the data": {"indptr": np.array([0, 2, 9])},
    "rows that run backwards": {"indptr": np.array([0, 2, 1])},
    "complex": {"data": np.array([1j, 2j])},
    "text": {"data": np.array(["a", SECRET])},
    "unknown format": {"format": np.array("dok")},
    "shape of one": {"shape": np.array([2])},
    "no indices": {"indices": None},
}


@pytest.mark.parametrize("change", INDICES.values(), ids=INDICES.keys())
def test_sparse_files_that_lie_about_themselves_are_refused(change: dict[str, Any], tmp_path: Path) -> None:
    honest: dict[str, Any] = {
        "format": np.array("csr"),
        "shape": np.array([2, 3]),
        "data": np.array([1.0, 2.0]),
        "indices": np.array([0, 1]),
        "indptr": np.array([0, 1, 2]),
    }
    np.savez(tmp_path / "a.npz", **honest)
    assert numbers(read_table(tmp_path / "a.npz").rows).tolist() == [[1.0, 0.0, 0.0], [0.0, 2.0, 0.0]]
    np.savez(tmp_path / "a.npz", **{name: array for name, array in (honest | change).items() if array is not None})
    refuses(tmp_path / "a.npz", "a.npz cannot be read as npz: ")


@pytest.mark.parametrize("content", [f"1 1:2 2:x{SECRET}\n", f"1 2:{SECRET} 1:3\n", f"x{SECRET} 1:2\n", "1 1:2 junk\n"])
def test_svmlight_text_that_is_none_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "a.svm").write_text(content)
    refuses(tmp_path / "a.svm", "a.svm cannot be read as svmlight text")


def test_paths_that_lead_to_no_table_are_refused(tmp_path: Path) -> None:
    refuses(tmp_path / "none.csv", "none.csv does not exist")
    (tmp_path / "folder.csv").mkdir()
    refuses(tmp_path / "folder.csv", "folder.csv is a folder without Parquet files")
    for name in ("a.doc", "a", "a.csv.zip"):
        (tmp_path / name).write_text("a,b\n1,2\n")
        refuses(tmp_path / name, f"{name} has the unknown ending .*; use one of .arrow, .*or give its format with kind")


IDS = ["b", "a", "b", "c", "b"]
ID_COLUMNS: dict[str, Any] = {
    "pyarrow": pa.table({"who": IDS}),
    "pyarrow chunks": pa.concat_tables([pa.table({"who": IDS[:2]}), pa.table({"who": IDS[2:]})]),
    "pyarrow batch": pa.RecordBatch.from_pydict({"who": IDS}),
    "polars": pl.DataFrame({"who": IDS}),
    "polars categories": pl.DataFrame({"who": pl.Series(IDS, dtype=pl.Categorical)}),
    "pandas": pd.DataFrame({"who": IDS}),
    "pandas objects": pd.DataFrame({"who": pd.Series(IDS, dtype=object)}),
    "pandas categories": pd.DataFrame({"who": pd.Categorical(IDS, categories=["c", "b", "a", "nobody"])}),
    "pandas numbers": pd.DataFrame({"who": [7, 3, 7, 1, 7]}),
    "pandas index from elsewhere": pd.DataFrame({"who": IDS}, index=[9, 8, 7, 6, 5]),
    "dates": pa.table({"who": pd.to_datetime(["2020-01-02", "2020-01-01", "2020-01-02", "2020-01-03", "2020-01-02"])}),
    # One person twice in the dictionary is still one person.
    "dictionary with a person twice": pa.table({"who": pa.DictionaryArray.from_arrays([0, 1, 2, 3, 0], ["b", "a", "b", "c"])}),
    "chunks with dictionaries of their own": pa.table(
        {"who": pa.chunked_array([pa.array(IDS[:2]).dictionary_encode(), pa.array(IDS[2:]).dictionary_encode()])}
    ),
}


@pytest.mark.parametrize("table", ID_COLUMNS.values(), ids=ID_COLUMNS.keys())
def test_the_same_people_are_found_in_any_table(table: Any) -> None:
    found = person_ids(table, "who")
    assert len(found) == 5
    assert [[a == b for b in found] for a in found] == [[a == b for b in IDS] for a in IDS]


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"who": ["a", None]}),
        pa.table({"who": [1.0, np.nan]}),
        pa.table({"who": pa.DictionaryArray.from_arrays([0, 1], pa.array(["a", None]))}),
        pa.table({"who": pa.DictionaryArray.from_arrays(pa.array([0, None]), pa.array(["a"]))}),
        pd.DataFrame({"who": ["a", None]}),
        pd.DataFrame({"who": [1.0, np.nan]}),
        pd.DataFrame({"who": pd.Categorical(["a", None], categories=["a"])}),
        pl.DataFrame({"who": ["a", None]}),
        pl.DataFrame({"who": [1.0, np.nan]}),
    ],
    ids=lambda table: type(table).__module__,
)
def test_rows_of_nobody_are_refused(table: Any) -> None:
    with pytest.raises(ValueError, match='person column "who" has missing, blank or placeholder ids'):
        person_ids(table, "who")


def test_people_named_in_two_types_are_refused_without_being_named() -> None:
    with pytest.raises(ValueError, match='person column "who" must have values of one type') as caught:
        person_ids(pd.DataFrame({"who": pd.Series([1, f"x{SECRET}"], dtype=object)}), "who")
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_where_svmlight_columns_count_from_is_said_and_never_guessed(tmp_path: Path) -> None:
    """A row with index zero must not move anybody else's columns."""
    (tmp_path / "a.svm").write_text("0 1:5 2:7\n0 2:1\n")
    (tmp_path / "b.svm").write_text("0 1:5 2:7\n0 0:1\n")
    one, other = (numbers(read_table(tmp_path / name, features=3).rows) for name in ("a.svm", "b.svm"))
    assert one[0].tolist() == other[0].tolist() == [0, 5, 7]
    assert numbers(read_table(tmp_path / "a.svm", features=2, one_based=True).rows)[0].tolist() == [5, 7]
    for name, more in (("b.svm", {"one_based": True}), ("a.svm", {"features": 2})):
        with pytest.raises(ValueError, match="cannot be read as svmlight text") as caught:
            read_table(tmp_path / name, **more)
        assert "index" not in str(caught.value) and "features" not in str(caught.value)
