"""Sheets as programs and attackers write them: every row is read or the file refused, in bounded memory. No cell is shown."""

import re
import traceback
import zipfile
from collections.abc import Callable
from datetime import date, datetime, time
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eigenveil.data.formats.xlsx import SheetWriter, Workbook, cell_name
from eigenveil.data.tables import open_source, read_table
from eigenveil.errors import ParameterError
from eigenveil.linalg import Array

SECRET = "8675309"
MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"


def values(path: Path, **how: Any) -> Array:
    found = np.vstack([block.values for block in read_table(path, **how).rows.blocks(1000)])
    streamed = np.vstack(list(open_source(path, **{name: one for name, one in how.items() if name != "gaps"}).batches))
    np.testing.assert_equal(found, streamed)
    return found


def refused(message: str, path: Path, **how: Any) -> str:
    with pytest.raises(ValueError, match=message) as caught:
        read_table(path, **how)
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    return caught.value.said(_words) if isinstance(caught.value, ParameterError) else str(caught.value)


def _words(name: str, value: Any) -> str:
    return f"--{name.replace('_', '-')}" + ("" if value is ... else f" {value}")


def saved(path: Path, *rows: list[Any], sheet: str = "one") -> Path:
    book = openpyxl.Workbook()
    book.active.title = sheet
    for row in rows:
        book.active.append(row)
    book.save(path)
    return path


def changed(path: Path, part: str, change: Callable[[bytes], bytes]) -> Path:
    """The same archive with one part of it changed."""
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    parts[part] = change(parts[part])
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return path


def with_cells(path: Path, rows: str, *, before: str = "") -> Path:
    """A file whose sheet is these elements."""
    text = f'{before}<worksheet xmlns="{MAIN}"><sheetData>{rows}</sheetData></worksheet>'
    return changed(saved(path, ["a"]), "xl/worksheets/sheet1.xml", lambda _: text.encode())


@pytest.mark.parametrize("range_", ["A1:B51", "A1", "C9:D10", "A1:XFD1048576", "nonsense", ""])
def test_a_range_that_a_sheet_states_loses_no_row(tmp_path: Path, range_: str) -> None:
    rows = [[i / 8, i * 2.0, i - 0.5] for i in range(300)]
    path = saved(tmp_path / "a.xlsx", ["a", "b", "c"], *rows)
    said = f'<dimension ref="{range_}"/>'.encode()
    changed(path, "xl/worksheets/sheet1.xml", lambda xml: xml.replace(b'<dimension ref="A1:C301"/>', said))
    assert values(path).tolist() == rows


def test_cells_are_what_programs_write(tmp_path: Path) -> None:
    """Without references, with prefixes and strict names, out of order, with texts in runs, and formulas with their results."""
    rows = (
        '<row><c t="inlineStr"><is><r><t>a</t></r><rPh><t>x</t></rPh><r><t>ge</t></r></is></c>'
        '<c t="str"><f>1</f><v>b</v></c></row>'
        '<row r="3"><c r="B3" t="b"><v>1</v></c><c r="A3"><f>1+1</f><v>2</v></c></row>'
        '<row r="4"/><row r="7"><c r="A7"><v>1e-3</v></c><c r="B7" s="0" t="n"><v>-4</v></c></row>'
        '<row r="8"><c r="A8" s="1"/><c r="B8"/></row>'
    )
    path = with_cells(tmp_path / "a.xlsx", rows)
    assert read_table(path).columns == ("age", "b")
    assert values(path).tolist() == [[2, 1], [0.001, -4]]
    prefixed = rows.replace("</", "</x:").replace("<", "<x:").replace("<x:/x:", "</x:")
    text = f'<x:worksheet xmlns:x="http://purl.oclc.org/ooxml/spreadsheetml/main"><x:sheetData>{prefixed}</x:sheetData></x:worksheet>'
    changed(path, "xl/worksheets/sheet1.xml", lambda _: text.encode("utf-16"))
    assert values(path).tolist() == [[2, 1], [0.001, -4]]


def test_gaps_dates_and_errors_are_told_apart(tmp_path: Path) -> None:
    header = ["n", "on", "when", "at", "word", "wrong"]
    path = saved(
        *(tmp_path / "a.xlsx", header),
        [1, True, datetime(2020, 1, 2, 3, 4, 5), time(6, 30), "x", "#DIV/0!"],
        ["NA", False, date(1999, 12, 31), None, " ", "#N/A"],
        [None, None, None, None, None, None],
        ["", 0, None, None, "y", 5],
    )
    table = read_table(path, columns=["n", "on"], passthrough=["when", "at", "word", "wrong"], gaps=True)
    np.testing.assert_equal(np.vstack([block.values for block in table.rows.blocks(9)]), [[1, 1], [np.nan, 0], [np.nan, 0]])
    assert table.passthrough["when"].to_pylist() == ["2020-01-02 03:04:05", "1999-12-31 00:00:00", None]
    assert table.passthrough["at"].to_pylist() == ["06:30:00", None, None]
    assert table.passthrough["wrong"].to_pylist() == ["#DIV/0!", "#N/A", "5"]
    refused(r"when \(date\)", path, columns=["when"])
    refused(r"at \(date\)", path, columns=["at"])
    refused(r"wrong \(error of a formula\)", path, columns=["wrong"])
    refused("Missing values are in: 'n'|column 'n' has missing values", path, columns=["n"])
    # A program that does not calculate saves formulas alone. A gap in their place would be a silent loss.
    refused(r"n \(formula saved without its result\)", saved(path, ["n"], ["=1+1"], [2]))


def test_the_same_sheet_in_the_other_calendar(tmp_path: Path) -> None:
    path = tmp_path / "a.xlsx"
    book = openpyxl.Workbook()
    book.epoch = openpyxl.utils.datetime.CALENDAR_MAC_1904
    book.active.append(["a", "when"])
    book.active.append([1, datetime(2020, 1, 2)])
    book.save(path)
    assert read_table(path, columns=["a"], passthrough=["when"]).passthrough["when"].to_pylist() == ["2020-01-02 00:00:00"]


def test_number_formats_of_people_are_told_from_dates(tmp_path: Path) -> None:
    path = tmp_path / "a.xlsx"
    book = openpyxl.Workbook()
    formats = {"euro": '#,##0.00 "day"', "red": "[Red]0.0;\\d-0.0", "yes": "General", "day": "dd/mm/yyyy", "long": "[h]:mm"}
    book.active.append(list(formats))
    book.active.append([43831.5] * len(formats))
    for cell, number_format in zip(book.active[2], formats.values(), strict=True):
        cell.number_format = number_format
    book.save(path)
    assert values(path, columns=["euro", "red", "yes"]).tolist() == [[43831.5] * 3]
    for name in ("day", "long"):
        refused(rf"{name} \(date\)", path, columns=[name])


def test_merged_cells_and_hidden_sheets(tmp_path: Path) -> None:
    path = tmp_path / "a.xlsx"
    book = openpyxl.Workbook()
    for row in (["a", "b"], [1, 2], [3, 4], [5, 6]):
        book.active.append(row)
    book.active.merge_cells("A2:A3")
    book.active.row_dimensions[4].hidden = True
    other = book.create_sheet("notes")
    other.sheet_state = "hidden"
    book.save(path)
    refused("has several sheets: Sheet, notes", path)
    np.testing.assert_equal(values(path, sheet="Sheet", gaps=True), [[1, 2], [np.nan, 4], [5, 6]])
    refused("sheet 'notes' is empty", path, sheet="notes")


def test_an_error_about_the_header_says_what_to_type(tmp_path: Path) -> None:
    path = tmp_path / "a.xlsx"
    frame = pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0]})
    # An index column has no name, as in a csv.
    frame.to_excel(path)
    assert read_table(path).columns == ("Unnamed: 0", "a", "b")
    frame.to_excel(path, startrow=3, index=False)
    assert values(path).tolist() == frame.to_numpy().tolist()
    book = openpyxl.load_workbook(path)
    book.active["A1"] = f"Patients of {SECRET}"
    book.save(path)
    assert "names are in row 4, give --skip-rows 3" in refused("first row with a value is row 1. It has 1 column, and", path)
    assert values(path, skip_rows=3).tolist() == values(path, skip_rows=1).tolist() == frame.to_numpy().tolist()
    refused("cell B1 must be a column name, and holds a date", saved(path, ["a", date(2020, 1, 1)], [1, 2]))
    message = refused("cell A1 has a number where a column name must be", saved(path, [int(SECRET), "b"], [1, 2]))
    assert "--header False" in message
    assert values(saved(path, [1.5, 2.5], [3, 4]), header=False).tolist() == [[1.5, 2.5], [3, 4]]
    assert read_table(saved(path, [2019, 2020], [3, 4])).columns == ("2019", "2020")
    # A value without a name above it is no row to be cut off.
    rows = [[1, 2]] * 50
    refused("cell C52 or one to its right has a value", saved(path, ["a", "b"], *rows, [3, 4, int(SECRET)]))
    refused("sheet 'one' is empty below row 90", path, skip_rows=90)
    refused("must be stored as numbers first", saved(path, ["a"], ["1" + SECRET]))


BOMB = '<!DOCTYPE z [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>'


def test_hostile_files_are_refused_in_words(tmp_path: Path) -> None:
    path, row = tmp_path / "a.xlsx", '<row><c t="inlineStr"><is><t>a</t></is></c></row>'
    for declared in (BOMB, "<!DOCTYPE worksheet>", '<!DOCTYPE w SYSTEM "file:///etc/passwd">'):
        refused("has a document type declaration", with_cells(path, row + "<row><c><v>1</v></c></row>", before=declared))
    for part in ("xl/workbook.xml", "xl/styles.xml", "_rels/.rels", "xl/_rels/workbook.xml.rels"):
        saved(path, ["a"], [1])
        changed(path, part, lambda xml: BOMB.encode() + xml.partition(b"?>")[2])
        refused("has a document type declaration", path)
    for cells in (
        *('<c r="XFE1"><v>1</v></c>', '<c r="9"><v>1</v></c>', '<c r="é9"><v>1</v></c>', '<c t="s"><v>99</v></c>'),
        *(f"<c><v>{SECRET}x</v></c>", "<c><v>1</v>", '<c t="s"><v>-1</v></c>'),
        # Two values are not the number that their digits make together, and no other word is false.
        *(f"<c><v>1</v><v>{SECRET}</v></c>", f'<c t="b"><v>{SECRET}</v></c>', '<c t="b"><v>TRUE</v></c>'),
    ):
        refused("cannot be read as xlsx", with_cells(path, f"{row}<row>{cells}</row>"))
    for number in ("1048577", "0", "-1", SECRET + "x"):
        refused("cannot be read as xlsx", with_cells(path, f'{row}<row r="{number}"><c><v>1</v></c></row>'))
    # Rows in another order, or twice, could be lost, and so could cells.
    for rows in (f'<row r="3">{row[5:]}<row r="2"><c><v>1</v></c></row>', f'{row}<row r="1"><c><v>1</v></c></row>'):
        refused("cannot be read as xlsx", with_cells(path, rows))
    refused("cannot be read as xlsx", with_cells(path, f'{row}<row><c r="A2"><v>1</v></c><c r="A2"><v>2</v></c></row>'))
    saved(path, ["a"], [1])
    refused("cannot be read as xlsx", changed(path, "_rels/.rels", lambda xml: re.sub(rb"<Relationship [^>]*/>", b"", xml)))
    saved(path, ["a"], [1])
    refused("cannot be read as xlsx", changed(path, "xl/workbook.xml", lambda xml: re.sub(rb' r:id="[^"]*"', b"", xml)))
    path.write_bytes(bytes.fromhex("d0cf11e0a1b11ae1") + b"x" * 600)
    refused("is an old .xls file, or protected by a password", path)
    (tmp_path / "a.ods").write_bytes(b"PK")
    refused("has the unknown ending '.ods'. Save the sheet as .xlsx or .csv", tmp_path / "a.ods")


def test_a_small_file_does_not_fill_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.xlsx"
    # A member that unpacks to much more than its size, whatever it is.
    saved(path, ["a"], [1])
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive, archive.open("xl/media/x.xml", "w") as member:
        for _ in range(70):
            member.write(bytes(1 << 20))
    refused("unpacks to more than 64 MiB, over 100 times its size", path)
    # Rows of one cell each, under a header of 16,384 columns: a thousand times the memory of the file.
    header = "".join(f'<c t="inlineStr"><is><t>c{place}</t></is></c>' for place in range(1 << 14))
    with_cells(path, f"<row>{header}</row>" + "<row><c><v>1</v></c></row>" * 300)
    refused("fewer than one in 100 has a value", path, gaps=True)
    # Cells without values, which take no room in the file and a second for every million.
    refused("has millions of cells without a value", with_cells(path, "<row>" + '<c r="A1"/>' * (1 << 22) + "</row>"))
    # Nor do styles or texts that no cell has.
    saved(path, ["a"], [1])
    changed(path, "xl/styles.xml", lambda xml: xml.replace(b"</fonts>", b"<font/>" * (1 << 21) + b"</fonts>"))
    refused("has millions of elements that belong to no cell", path)
    # A long tag or comment, which the parser would begin anew with each piece: a minute for 60 MB.
    for long in (f'<row x="{" " * (1 << 21)}"><c><v>1</v></c></row>', f"<!--{' ' * (1 << 21)}-->"):
        refused("has a tag or comment of over 1 MiB", with_cells(path, long))
    # A long text is neither.
    rows = f"<row><c t='inlineStr'><is><t>a</t></is></c></row><row><c><v>{' ' * (1 << 21)}7</v></c></row>"
    assert values(with_cells(path, rows)).tolist() == [[7]]
    # Two cells at opposite corners make a table of one row, and not one of seventeen thousand million cells.
    far = '<row r="1"><c r="A1" t="inlineStr"><is><t>a</t></is></c></row><row r="1048576"><c r="A1048576"><v>7</v></c></row>'
    assert values(with_cells(path, far)).tolist() == [[7]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A file, written once: each writing has another time in it."""
    return saved(tmp_path_factory.mktemp("sheets") / "a.xlsx", ["a", "b"], *([i, i / 8] for i in range(20))).read_bytes()


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_damaged_sheet_is_read_or_refused_and_never_anything_else(data: st.DataObject, tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "a.xlsx"
    path.write_bytes(whole)
    part = data.draw(st.sampled_from(["", "xl/worksheets/sheet1.xml", "xl/workbook.xml", "xl/styles.xml"]))

    def damage(content: bytes) -> bytes:
        found = bytearray(content)
        for _ in range(data.draw(st.integers(1, 3))):
            found[data.draw(st.integers(0, len(found) - 1))] ^= data.draw(st.integers(1, 255))
        return bytes(found)

    if part:
        changed(path, part, damage)
    else:
        path.write_bytes(damage(path.read_bytes()))
    try:
        found = np.vstack([block.values for block in read_table(path, gaps=True).rows.blocks(100)])
    except ValueError:
        return
    assert found.dtype == np.float64 and found.ndim == 2


def test_what_is_written_is_read_by_others(tmp_path: Path) -> None:
    path = tmp_path / "a.xlsx"
    rows = [
        ["=1+1", -2.5, True, None],
        ["a & <b>\t'\"", 1e-300, False, 7],
        ["+x", float("nan"), None, 10**17],
        [" lead", 0.1, None, -3],
    ]
    with zipfile.ZipFile(path, "w") as archive, SheetWriter(archive) as sheet:
        sheet.write([["text", "number", "truth", "whole"]])
        sheet.write(rows)
    book = openpyxl.load_workbook(path)
    cells = [[cell.value for cell in row] for row in book.active.iter_rows(min_row=2)]
    assert cells == [rows[0], rows[1], ["+x", None, None, str(10**17)], rows[3]]
    # Marked as text, so that no program takes it for a formula.
    assert book.active["A2"].data_type != "f" and book.active["A2"].quotePrefix
    ours = [row for _, row in Workbook.open(path).rows("scores")]
    assert ours[1] == rows[0][:3] and ours[4] == rows[3]
    with (
        pytest.raises(ValueError, match="at most 32767 characters"),
        zipfile.ZipFile(path, "w") as archive,
        SheetWriter(archive) as sheet,
    ):
        sheet.write([["x" * 40_000]])


@given(st.integers(1, 1 << 20), st.integers(0, (1 << 14) - 1))
def test_cells_have_the_names_of_spreadsheets(row: int, column: int) -> None:
    assert cell_name(row, column) == f"{openpyxl.utils.get_column_letter(column + 1)}{row}"
