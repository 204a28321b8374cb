"""Files as people have them: dialects, folders and damage. What cannot be read is refused by name, and no value is shown."""

import io
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import pandas as pd
import pyarrow as pa
import pyarrow.feather as pf
import pyarrow.parquet as pq
import pytest

from eigenveil.data.columns import looks_like_id
from eigenveil.data.formats import FileParams
from eigenveil.data.formats.registry import open_named
from eigenveil.data.tables import open_source, read_table
from eigenveil.errors import ParameterError

SECRET = "8675309"
VALUES = np.array([[1.5, 2.0, 1.0], [-0.25, 1e6, 0.0], [3.0, 4.5, 1.0]])
PLAIN = "größe,dose,on\n1.5,2,true\n-0.25,1e6,False\n3,4.5,TRUE\n"


def values(source: Any, **how: Any) -> Any:
    """All rows of a source, read as a table and as a stream; both must agree."""
    table = read_table(source, **how)
    found = np.vstack([block.values for block in table.rows.blocks(2)])
    streamed = np.vstack([np.asarray(batch) for batch in open_source(source, **how).batches])
    assert np.array_equal(found, streamed)
    return found


def refused(message: str, source: Any, **how: Any) -> None:
    """Both readers refuse the source for this reason, and nothing in the traceback shows the secret."""
    for act in (lambda: [list(read_table(source, **how).rows.blocks(100))], lambda: list(open_source(source, **how).batches)):
        with pytest.raises(ValueError, match=message) as caught:
            act()
        assert SECRET not in "".join(traceback.format_exception(caught.value))


DIALECTS: dict[str, tuple[Callable[[str], str], dict[str, Any]]] = {
    "commas": (lambda text: text, {}),
    "semicolons": (lambda text: text.replace(",", ";"), {}),
    "tabs": (lambda text: text.replace(",", "\t"), {}),
    "bars": (lambda text: text.replace(",", "|"), {}),
    "decimal commas": (lambda text: text.replace(",", ";").replace(".", ","), {"decimal": ","}),
    "said": (lambda text: text.replace(",", "/"), {"separator": "/"}),
    "tab, said": (lambda text: text.replace(",", "\t"), {"separator": "tab"}),
    "other quotes": (lambda text: text.replace("dose", "'dose'").replace(",2,", ",'2',"), {"quote": "'"}),
    "no quotes": (lambda text: text, {"quote": None}),
    "latin": (lambda text: text, {"encoding": "latin-1"}),
    "wide characters": (lambda text: text, {"encoding": "utf-16"}),
    "mark": (lambda text: "\ufeff" + text, {}),
}


@pytest.mark.parametrize("name", DIALECTS)
def test_dialects_of_csv_are_read(name: str, tmp_path: Path) -> None:
    change, how = DIALECTS[name]
    path = tmp_path / "a.csv"
    path.write_bytes(change(PLAIN).encode(how.get("encoding", "utf-8")))
    assert np.array_equal(values(path, **how), VALUES)
    assert read_table(path, **how).columns == ("größe", "dose", "on")
    with path.open("rb") as file:
        rows = read_table(file, kind="csv", **how).rows
    assert np.array_equal(np.vstack([block.values for block in rows.blocks(9)]), VALUES)


def test_notes_may_have_lines_and_separators_between_quotes(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('a,note,b\n1,"one, two\nthree ""quoted""",2\n3,"\n\n",4\n')
    assert values(path, drop=["note"]).tolist() == [[1, 2], [3, 4]]
    refused("after row 0: not a number in column 'note'", path)
    assert read_table(path, passthrough=["note"]).passthrough["note"].to_pylist() == ['one, two\nthree "quoted"', "\n\n"]


def test_truth_values_are_numbers_in_every_block(tmp_path: Path) -> None:
    """A word far down gives the same number as one at the top: no block decides how another is read."""
    count = 60_000
    path = tmp_path / "a.csv"
    path.write_text("a,b\n" + "1,0\n" * count + "true,FALSE\n" + "0,1\n" * count)
    found = values(path)
    assert len(found) == 2 * count + 1 and found[count].tolist() == [1, 0] and found.sum() == 2 * count + 1


BAD_CSV: dict[str, tuple[bytes, str, dict[str, Any]]] = {
    "numbers for a header": (f"{SECRET},2\n3,4\n".encode(), "seems to have no header line", {}),
    "numbers with decimal commas": (f"{SECRET},5;2,5\n3;4\n".encode(), "seems to have no header line", {}),
    "semicolons read with commas": (f"a;b\n1;{SECRET}\n".encode(), "another character between its columns", {"separator": ","}),
    "as many commas as semicolons": (b"a,b;c\n1,2;3\n", "a comma and a semicolon equally often", {}),
    "decimal comma between commas": (
        b"a,b\n1,2\n",
        "commas between its columns and as decimal mark",
        {"decimal": ",", "quote": None},
    ),
    "one mark for two": (b"a;b\n1;2\n", "thousands and decimal are the same character", {"decimal": ",", "thousands": ","}),
    "mixed encodings": (
        f"a,b,note\n1,2,x\n3,4,\xfc{SECRET}\n".encode("latin-1"),
        "after row 1: the next line is not UTF-8",
        {"passthrough": ["note"]},
    ),
    "another encoding": (b"a,b\n1,\x81\n", "is not cp1252 text. Give its encoding", {"encoding": "cp1252"}),
    "another type halfway": (
        b"a,b\n" + b"1,2\n" * 5000 + f"x{SECRET},2\n".encode() + b"1,2\n" * 5000,
        "after row 5000: not a number in column 'a'",
        {},
    ),
    "text in two columns": (f"a,b,c,d\n1,x{SECRET},2,2020-01-01\n".encode(), "after row 0: not a number in columns 'b', 'd'", {}),
    "a second header": (b"a,b\n1,2\na,b\n", "after row 1: the next line is the header once more. Remove it", {}),
    "a longer header": (b"a,b\n1,2\na,b,c\n3,4,5\n", "is another header, with 3 names where the first has 2", {}),
    "another header": (b"a,b\n1,2\nx,b\n3,4\n", "after row 1: the next line has no number in any column", {}),
    "units below the header": (b"a;b\nmg;kg\n1,5;2,5\n", "after row 0: .* a line of units. Remove .* decimal", {}),
    "the same name twice": (f"a,b,a\n1,2,{SECRET}\n".encode(), "more than one column called 'a'", {}),
    "a line too short": (f"a,b\n1,2\n{SECRET}\n".encode(), "after row 1: the next line has 1 fields and the header has 2", {}),
    "nothing": (b"\n\n", "is empty", {}),
}


@pytest.mark.parametrize("name", BAD_CSV)
def test_csv_that_is_not_what_was_said_is_refused(name: str, tmp_path: Path) -> None:
    content, message, how = BAD_CSV[name]
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    if "passthrough" in how:
        with pytest.raises(ValueError, match=message) as caught:
            read_table(path, **how)
        assert SECRET not in str(caught.value)
    else:
        refused(message, path, **how)


def test_a_file_without_a_header_says_so(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("1;2\n3;4\n")
    assert values(path, header=False, separator=";").tolist() == [[1, 2], [3, 4]]
    assert read_table(path, header=False, separator=";").columns is None
    # A separator is never read from rows.
    refused("another character between its columns", path, header=False)


def test_row_numbers_of_pandas_look_like_an_id(tmp_path: Path) -> None:
    pd.DataFrame({"a": [1.0], "b": [2.0]}).to_csv(tmp_path / "a.csv")
    assert read_table(tmp_path / "a.csv").columns == ("Unnamed: 0", "a", "b")
    assert values(tmp_path / "a.csv", drop=["Unnamed: 0"]).tolist() == [[1, 2]]
    assert looks_like_id("Unnamed: 0")


def test_options_that_say_nothing_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1.0], "b": [2.0]}), tmp_path / "a.parquet")
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({"kind": "doc"}, "kind must be one of"),
        ({"separator": "ab"}, "separator must be one character"),
        ({"decimal": ";"}, "decimal must be a point or a comma"),
        ({"encoding": "hex"}, "encoding must be the name of an encoding of text"),
        ({"encoding": "klingon"}, "encoding must be the name of an encoding"),
    )
    for how, message in wrong:
        with pytest.raises(ParameterError, match=message):
            read_table(tmp_path / "a.parquet", **how)


def folder(path: Path, *tables: Any) -> Path:
    """A folder of Parquet files, with what Spark leaves beside them."""
    path.mkdir(exist_ok=True)
    for place, table in enumerate(tables):
        pq.write_table(table, path / f"part-{place:03}.parquet")
    (path / "_SUCCESS").touch()
    return path


def test_a_folder_of_parquet_files_is_one_table(tmp_path: Path) -> None:
    first, second = pa.table({"a": [1.0, 2.0], "b": [3, 4]}), pa.table({"b": [6], "a": [5.0]})
    path = folder(tmp_path / "t", first, second)
    assert values(path).tolist() == [[1, 3], [2, 4], [5, 6]]
    assert read_table(path).rows.shape == (3, 2)


FOLDERS: dict[str, tuple[dict[str, Any], str]] = {
    "a column less": ({"a": [1.0]}, "part-001.parquet lacks columns that part-000.parquet has: b"),
    "a column more": ({"a": [1.0], "b": [2.0], "c": [3.0]}, "part-001.parquet has columns that part-000.parquet lacks: c"),
    "another type": ({"a": [1.0], "b": [SECRET]}, r"part-001.parquet has columns of another type .*: b \(text, there number\)"),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_parts_that_differ_are_refused_before_any_is_read(name: str, tmp_path: Path) -> None:
    other, message = FOLDERS[name]
    refused(message, folder(tmp_path / "t", pa.table({"a": [1.0], "b": [2.0]}), pa.table(other)))


def test_folders_that_are_no_table_are_refused(tmp_path: Path) -> None:
    refused("folder without Parquet files", folder(tmp_path / "empty"))
    nested = folder(tmp_path / "nested", pa.table({"a": [1.0]}))
    folder(nested / "year=2020", pa.table({"a": [1.0]}))
    refused("has folders in it: year=2020", nested)
    twice = pa.Table.from_arrays([pa.array([1.0]), pa.array([2.0])], names=["a", "a"])
    refused("more than one column called 'a'", folder(tmp_path / "twice", twice))


def test_truncated_files_are_refused(tmp_path: Path) -> None:
    table = pa.table({"a": np.arange(5000.0), "b": np.arange(5000.0)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=500)
    pf.write_feather(table, tmp_path / "a.feather", chunksize=500)
    with pa.output_stream(str(tmp_path / "a.csv.gz"), compression="gzip") as file:
        file.write(b"a,b\n" + b"1,2\n" * 100_000)
    for name in ("a.parquet", "a.feather", "a.csv.gz"):
        content = (tmp_path / name).read_bytes()
        for size in (0, 10, len(content) // 2, len(content) - 5):
            (tmp_path / name).write_bytes(content[:size])
            refused("cannot be read as|is empty", tmp_path / name)
    # The index at the end is whole, and the rows before it are not.
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=500, compression="snappy")
    content = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "a.parquet").write_bytes(content[:100] + bytes(3900) + content[4000:])
    refused("a.parquet cannot be read as parquet after row", tmp_path / "a.parquet")


def test_a_file_that_may_not_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.csv"
    path.write_text(PLAIN)
    path.chmod(0)
    if os.geteuid() == 0:
        # The administrator may read everything.
        monkeypatch.setattr(os, "access", lambda *_: False)
    refused("a.csv: you may not read it", path)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8])
def test_no_row_of_a_sheet_is_lost_between_blocks(tmp_path: Path, size: int) -> None:
    pd.DataFrame({"a": range(7)}).to_excel(tmp_path / "a.xlsx", index=False)
    batches = open_named(tmp_path / "a.xlsx", FileParams()).batches(["a"], [], size)
    assert [value for batch in batches for value in batch["a"].to_pylist()] == list(range(7))


def test_sheets_are_read_by_name(tmp_path: Path) -> None:
    path = tmp_path / "a.xlsx"
    with pd.ExcelWriter(path) as book:
        pd.DataFrame({"a": [1, 2], "b": [True, False], "who": ["x", "y"]}).to_excel(book, sheet_name="one", index=False)
        pd.DataFrame({"a": [1.0], "when": [pd.Timestamp("2020-01-01")]}).to_excel(book, sheet_name="two", index=False)
    assert values(path, sheet="one", drop=["who"]).tolist() == [[1, 1], [2, 0]]
    refused("has several sheets: one, two. Say which with sheet", path)
    refused("has no sheet 'three'; it has one, two", path, sheet="three")
    refused(r"these do not: when \(date\)", path, sheet="two")
    refused(r"these do not: who \(text\)", path, sheet="one")
    book = openpyxl.Workbook()
    book.active.append(["a", int(SECRET)])
    book.save(path)
    refused("cell B1 has a number where a column name must be", path)
    path.write_bytes(b"PK\x03\x04" + SECRET.encode())
    refused("a.xlsx cannot be read as xlsx", path)


@pytest.mark.parametrize("kind", ["csv", "arrow"])
def test_a_pipe_is_read_once_into_memory(kind: Any) -> None:
    out = io.BytesIO()
    if kind == "csv":
        out.write(b"a,b\n1,2\n3,4\n")
    else:
        with pa.ipc.new_stream(out, pa.schema({"a": pa.float64(), "b": pa.int8()})) as writer:
            writer.write_table(pa.table({"a": [1.0, 3.0], "b": pa.array([2, 4], pa.int8())}))
    table = read_table(io.BytesIO(out.getvalue()), kind=kind)
    for _ in range(2):
        assert np.vstack([block.values for block in table.rows.blocks(1)]).tolist() == [[1, 2], [3, 4]]
    with pytest.raises(ValueError, match="parquet cannot be read from a pipe"):
        read_table(io.BytesIO(b""), kind="parquet")


def test_very_wide_files_are_read(tmp_path: Path) -> None:
    dim = 30_000
    path = tmp_path / "wide.csv"
    path.write_text("\n".join([",".join(f"g{i}" for i in range(dim)), *[",".join(["1"] * dim)] * 2]) + "\n")
    table = read_table(path, drop=["g1*"])
    assert table.rows.shape == (2, sum(not f"g{i}".startswith("g1") for i in range(dim)))
