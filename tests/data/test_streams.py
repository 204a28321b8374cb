"""Rows of files and pipes: the same numbers however the bytes arrive, as soon as they do, and no value in an error."""

import io
import os
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import dump_svmlight_file

from each import each
from eigenveil.data.formats import text as sources
from eigenveil.data.tables import Source, open_source
from eigenveil.linalg import Array

SECRET = "987654.321"
VALUES = np.array([[1.0, 2.5, -3.0], [0.0, 1e-7, 4e20], [7.0, -0.5, 9.0], [3.0, 3.0, 3.0]])
NAMES = ("age", "dose", "mass")
TEXT = b"age,dose,mass\n1,2.5,-3\n0,1e-7,4e20\n7,-0.5,9\n3,3,3\n"


class Dripping(io.RawIOBase):
    """An open file that gives a few bytes at a time, as a slow pipe does."""

    def __init__(self, data: bytes, size: int) -> None:
        self.inner, self.size = io.BytesIO(data), size

    def readable(self) -> bool:
        """Always."""
        return True

    def read(self, size: int = -1) -> bytes:
        """A few bytes, whatever was asked for."""
        return self.inner.read(self.size if size < 0 else min(size, self.size))


def all_of(source: Source) -> Array:
    """All rows, in one array."""
    batches = [batch.toarray() if sp.issparse(batch) else batch for batch in source.batches]
    return np.vstack([np.asarray(batch, dtype=np.float64) for batch in batches])


def csv(data: bytes, **more: Any) -> Source:
    """A csv stream of these bytes."""
    return open_source(io.BytesIO(data), kind="csv", **more)


def refused(act: Callable[[], Any], message: str) -> None:
    """The act raises a `ValueError` for this reason that quotes no value."""
    with pytest.raises(ValueError, match=message) as caught:
        act()
    assert SECRET not in "".join(traceback.format_exception(caught.value))


WRITTEN: dict[str, bytes] = {
    "as usual": TEXT,
    "no final newline": TEXT[:-1],
    "CRLF": TEXT.replace(b"\n", b"\r\n"),
    "CRLF, no final newline": TEXT[:-1].replace(b"\n", b"\r\n"),
    "byte order mark": b"\xef\xbb\xbf" + TEXT,
    "byte order mark, CRLF": b"\xef\xbb\xbf" + TEXT.replace(b"\n", b"\r\n"),
    "quotes": TEXT.replace(b"age,dose", b'"age","dose"').replace(b"7,-0.5", b'"7","-0.5"'),
    "spaces": TEXT.replace(b",", b" , "),
    "blank lines": TEXT.replace(b"\n", b"\n\n\n") + b"\n\n",
    "blank lines at the start": b"\n\n" + TEXT,
    "blank CRLF lines at the start": b"\r\n\r\n" + TEXT.replace(b"\n", b"\r\n"),
    "quotes around spaces": TEXT.replace(b"age,dose,", b'"age", "dose",'),
}


@each("size", [1, 2, 7, 13, 1000])
@each("data", WRITTEN.values())
def test_csv_gives_the_same_rows_however_its_bytes_arrive(data: bytes, size: int) -> None:
    source = open_source(Dripping(data, size), kind="csv")
    assert source.columns == NAMES
    assert np.array_equal(all_of(source), VALUES)


@given(
    st.lists(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=3, max_size=3), min_size=1, max_size=9),
    st.integers(1, 40),
)
@settings(max_examples=40)
def test_every_number_comes_through_as_it_was_written(values: list[list[float]], size: int) -> None:
    data = "\n".join(["a,b,c", *(",".join(map(repr, line)) for line in values)]).encode()
    assert np.array_equal(all_of(open_source(Dripping(data, size), kind="csv")), np.array(values))


def test_names_may_hold_commas_and_quotes() -> None:
    source = csv(b'"dose, mg","the ""real"" one",\xc3\xa9t\xc3\xa9\n1,2,3\n')
    assert source.columns == ("dose, mg", 'the "real" one', "été")
    assert all_of(source).tolist() == [[1.0, 2.0, 3.0]]


def test_gaps_become_nan() -> None:
    found = all_of(csv(b"a,b\n1,\n,2\nNA,3\n4,NaN\n5,null\n"))
    nan = np.nan
    assert np.array_equal(found, [[1, nan], [nan, 2], [nan, 3], [4, nan], [5, nan]], equal_nan=True)


def test_columns_can_be_dropped_whatever_they_hold() -> None:
    data = b'a,who,b\n1,ann,2\n3,"bob, jr",4\n'
    source = csv(data, drop=["who"])
    assert source.columns == ("a", "b") and all_of(source).tolist() == [[1, 2], [3, 4]]
    refused(lambda: csv(data, drop=["who", "mass"]), "has no column 'mass'; it has a, who, b")
    refused(lambda: csv(data, drop=["who", "a", "b"]), "has no columns left to analyse")


def test_a_first_line_of_numbers_is_no_header() -> None:
    data = b"987654.321,2\n3,4\n"
    refused(lambda: csv(data), "seems to have no header line: its first line has numbers")
    source = csv(data, header=False)
    assert source.columns is None and all_of(source).tolist() == [[987654.321, 2.0], [3.0, 4.0]]
    for size in (1, 5):
        dripped = open_source(Dripping(b"\xef\xbb\xbf\n" + data, size), kind="csv", header=False)
        assert np.array_equal(all_of(dripped), [[987654.321, 2.0], [3.0, 4.0]])
    # Names may be numbers that count.
    assert csv(b"0,1,2\n987654.321,2,3\n").columns == ("0", "1", "2")
    assert csv(b"1999,2000\n1,2\n").columns == ("1999", "2000")


BROKEN: dict[str, tuple[bytes, str]] = {
    "text": (b"a,b\n1,2\n3,x987654.321\n", "cannot be read after row 1: not a number in column 'b'"),
    "one field more": (b"a,b\n1,2,987654.321\n", "cannot be read after row 0: the next line has 3 fields and the header has 2"),
    "decimal commas between commas": (
        b"a,b\n1,5,2,987654\n",
        "4 fields and the header has 2. Correct that line. If its numbers have decimal commas, quote them, or put semicolons",
    ),
    "one field less": (b"a,b\n987654.321\n", "cannot be read after row 0: the next line has 1 fields and the header has 2"),
    "another separator": (b"a%b\n1;987654.321,3\n", "the next line has 2 fields and the header has 1"),
    "a newline in a number": (b'a,b\n1,"987654.321\n2"\n', "cannot be read after row 0"),
    "an open quote in the header": (b'a,"b\n1,987654.321\n', "first line that is not separated values"),
    "not UTF-8": (b"\xff\xfea,b\n1,987654.321\n", "is not UTF-8 text"),
    "not UTF-8 in a number": (b"a,b\n1,\xff987654.321\n", "cannot be read after row 0"),
    "the same name twice": (b"a,b,a\n1,2,987654.321\n", "more than one column called 'a'"),
    "nothing": (b"", "the stream is empty"),
    "blank lines only": (b"\n\r\n\n", "the stream is empty"),
}


@pytest.mark.parametrize(("data", "message"), BROKEN.values(), ids=BROKEN.keys())
def test_broken_csv_is_refused_without_quoting_it(data: bytes, message: str) -> None:
    refused(lambda: all_of(csv(data)), message)
    refused(lambda: all_of(open_source(Dripping(data, 1), kind="csv")), message.replace("row 0", r"row \d"))


def test_rows_before_a_broken_one_are_delivered_and_counted() -> None:
    source = open_source(Dripping(b"a,b\n1,2\n3,4\n5,x987654.321\n", 4), kind="csv")
    batches = source.batches
    assert [next(batches).tolist(), next(batches).tolist()] == [[[1, 2]], [[3, 4]]]
    refused(lambda: next(batches), "the stream cannot be read after row 2")


def test_a_header_alone_is_an_empty_stream() -> None:
    for data in (b"a,b\n", b"a,b", b"a,b\r\n\r\n"):
        source = csv(data)
        assert source.columns == ("a", "b") and list(source.batches) == []


def test_a_line_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "LONGEST_LINE", 1000)
    refused(lambda: csv(b"a," * 600), "has a line longer than 1000 bytes")
    refused(lambda: all_of(open_source(Dripping(b"a,b\n" + b"1" * 1200, 100), kind="csv")), "line longer than 1000")


def test_files_must_be_open_for_bytes_and_wait_for_them() -> None:
    class Hasty(Dripping):
        """A file that does not wait: None says that nothing has come yet, which is not the end."""

        def read(self, size: int = -1) -> Any:
            """Nothing yet."""
            return None

    refused(lambda: open_source(io.StringIO(f"a,b\n1,{SECRET}\n"), kind="csv"), "binary mode.* a read gave str")
    refused(lambda: open_source(Hasty(b"", 1), kind="csv"), "a read gave NoneType")


def test_a_row_is_delivered_before_the_next_one_is_written() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as file, os.fdopen(writing, "wb", buffering=0) as out:
        out.write(b"a,b\n1,2\n")
        source = open_source(file, kind="csv")
        batches = source.batches
        assert next(batches).tolist() == [[1.0, 2.0]]
        for number in range(5):
            out.write(f"{number},".encode())
            out.write(b"7\n")
            assert next(batches).tolist() == [[number, 7.0]]
        out.write(b"8,9")
        out.close()
        assert [batch.tolist() for batch in batches] == [[[8.0, 9.0]]]


@pytest.mark.parametrize("kind", ["csv", "arrow"])
def test_a_named_pipe_is_read_while_it_is_written(kind: Any, tmp_path: Path) -> None:
    path = tmp_path / f"pipe.{kind}"
    os.mkfifo(path)
    data = TEXT if kind == "csv" else arrow_bytes(TABLE, stream=True)

    def write() -> None:
        with path.open("wb", buffering=0) as out:
            for start in range(0, len(data), 50):
                out.write(data[start : start + 50])

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    source = open_source(path)
    assert source.columns == NAMES and np.array_equal(all_of(source), VALUES)
    writer.join(timeout=10)
    assert not writer.is_alive()


TABLE = pa.table(dict(zip(NAMES, VALUES.T, strict=True)))


def arrow_bytes(table: Any, *, stream: bool) -> bytes:
    """A table in one of Arrow's two formats, two rows at a time."""
    out = io.BytesIO()
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(out, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    return out.getvalue()


def written(table: Any, kind: str, folder: Path) -> Any:
    """A table as a file of one kind, or as an open one."""
    path = folder / ("x.parquet" if kind == "parquet" else "x.arrow")
    if kind == "parquet":
        pq.write_table(table, path)
    else:
        path.write_bytes(arrow_bytes(table, stream="stream" in kind))
    return io.BytesIO(path.read_bytes()) if "open" in kind else path


KINDS = ["parquet", "arrow file", "arrow stream", "open arrow file", "open arrow stream"]


@pytest.mark.parametrize("kind", KINDS)
def test_arrow_and_parquet_are_read_by_batch(kind: str, tmp_path: Path) -> None:
    def opened(table: Any, **more: Any) -> Source:
        return open_source(written(table, kind, tmp_path), kind="parquet" if kind == "parquet" else "arrow", **more)

    source = opened(TABLE)
    assert source.columns == NAMES and np.array_equal(all_of(source), VALUES)
    mixed = TABLE.append_column("who", pa.array(["x" + SECRET] * 4)).append_column("on", pa.array([True, None] * 2))
    source = opened(mixed, drop=["who"])
    assert source.columns == (*NAMES, "on")
    assert np.array_equal(all_of(source)[:, 3], [1, np.nan, 1, np.nan], equal_nan=True)
    refused(lambda: opened(mixed), r"columns must hold numbers; these do not: who \(text\)")
    refused(lambda: opened(mixed, drop=["nobody"]), "has no column 'nobody'")
    refused(lambda: opened(TABLE, header=False), "header is for csv and xlsx files")
    # Whole numbers too large for a double are rounded, with and without gaps beside them.
    large = pa.table({"a": [2**53 + 1, None], "b": [2**53 + 1, 2**60 + 1]})
    assert np.array_equal(all_of(opened(large)), [[2.0**53, 2.0**53], [np.nan, 2.0**60]], equal_nan=True)
    # The row numbers that pandas writes are no feature.
    frame = pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0]}, index=[5, 9])
    assert opened(pa.Table.from_pandas(frame)).columns == ("a", "b")


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_arrow_and_parquet_are_refused(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    whole = written(TABLE, kind, tmp_path)
    data = whole.getvalue() if isinstance(whole, io.BytesIO) else whole.read_bytes()
    for bad in (b"", b"ARROW1", b"PAR1" + SECRET.encode(), data[: len(data) // 2], data[:-30]):
        path.write_bytes(bad)
        given_as = io.BytesIO(bad) if "open" in kind else path
        refused(
            lambda given_as=given_as: all_of(  # type: ignore[misc]
                open_source(given_as, kind="parquet" if kind == "parquet" else "arrow")
            ),
            "cannot be read as (arrow|parquet)",
        )


def test_other_files_are_read_as_tables_are(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", VALUES)
    np.savez(tmp_path / "x.npz", X=VALUES)
    sp.save_npz(tmp_path / "s.npz", sp.csr_array(VALUES))
    with (tmp_path / "x.svm").open("wb") as file:
        dump_svmlight_file(VALUES, np.zeros(4), file)
    (tmp_path / "x.csv").write_bytes(TEXT)
    (tmp_path / "readings.txt").write_bytes(TEXT)
    for name in ("x.npy", "x.npz", "s.npz", "x.svm", "x.csv"):
        assert np.allclose(all_of(open_source(tmp_path / name)), VALUES)
        assert np.allclose(all_of(open_source(str(tmp_path / name))), VALUES)
    assert np.array_equal(all_of(open_source(tmp_path / "readings.txt", kind="csv")), VALUES)
    assert next(iter(open_source(tmp_path / "x.svm", features=5).batches)).shape == (4, 5)
    refused(lambda: open_source(tmp_path / "readings.txt"), "has the unknown ending '.txt'; use one of .*or give its format")
    refused(lambda: open_source(tmp_path), "is a folder without Parquet files")
    refused(lambda: open_source(tmp_path / "missing.csv"), "missing.csv does not exist")
    refused(lambda: open_source(tmp_path / "x.npy", drop=["a"]), "is npy and has no column names. Leave out drop")
    refused(lambda: open_source(tmp_path / "x.csv", kind="xls"), "kind must be one of csv, .*, got 'xls'")
    refused(lambda: open_source(io.BytesIO(TEXT)), "the format of a pipe must be given: kind csv or arrow")
    for kind in ("parquet", "npy", "npz", "svm"):
        refused(lambda kind=kind: open_source(io.BytesIO(b""), kind=kind), "cannot be read from a pipe")  # type: ignore[misc]


@pytest.mark.parametrize("kind", ["npy", "svm"])
def test_a_kind_goes_before_the_ending(kind: Any, tmp_path: Path) -> None:
    path = tmp_path / "x.dat"
    with path.open("wb") as file:
        np.save(file, VALUES) if kind == "npy" else dump_svmlight_file(VALUES, np.zeros(4), file)
    assert np.allclose(all_of(open_source(path, kind=kind)), VALUES)


def test_all_lines_before_a_bad_one_are_given_out() -> None:
    lines = [b"a,b"] + [b"%d,%d" % (i, i) for i in range(5000)]
    lines[3211] = b"1,oops"
    source = open_source(io.BytesIO(b"\n".join(lines) + b"\n"), kind="csv")
    seen = 0
    with pytest.raises(ValueError, match="cannot be read after row 3210"):
        for batch in source.batches:
            seen += len(batch)
    assert seen == 3210
