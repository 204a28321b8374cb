"""Lines without pyarrow, against the reader with it: the same numbers, the same refusals, never a value in an error."""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from each import each
from eigenveil.data.formats import FileParams
from eigenveil.data.formats.csv import CsvHeader, TextRows, preamble, whole_records
from eigenveil.data.tables import open_source
from eigenveil.errors import ColumnsError
from eigenveil.linalg import Array
from eigenveil.params.declare import validate_params

FIELDS = (
    *("1", "+1", "-1", " 1 ", "1.", ".", ".5", "1e5", "1E+5", "1_000", "inf", "-Infinity", "nan", "NAN", "-nan", "na"),
    *("NA", "n/a", "true", "TRUE", " False ", "", " ", "0x10", "1.5.2", "١", "1e400", "1d5", "null", "None", "none"),
    *("<NA>", "++1", "1e", "0001", "- 1", "\t1", "1.234", "1\x0b", "é", '"7"', '"x"'),
)
LINES = (
    *(b"a,b\n1,2\n\n3,4\n", b"a,b\n1,2\n,\n", b'a,b\n"1","2"\n', b"a,b\r\n1,2\r\n3,4\r\n", b"a;b\n1;2\n", b"a\n1\n\n2\n"),
    *(b'a,b\n1,"2\n3"\n', b'a,b\n"1,5",2\n', b"a,b\n1,2,\n", b"a,b\n1\n"),
)


def read_plainly(data: bytes, how: FileParams, columns: tuple[str, ...] | None = None) -> Array:
    at, separator = preamble(data, how) or (0, None)
    how = how if separator is None or how.separator is not None else replace(how, separator=separator)
    head, _, rest = data[at:].partition(b"\n")
    text = TextRows.of(CsvHeader.of(head, Path("the stream"), how), columns)
    records, _ = whole_records(rest if how.header else data[at:], max_rows=10**6, comment=text.comment)
    rows = text.rows(records, n_read=0)
    # Good rows before a bad one are given out first, and the next look refuses it.
    return rows if len(rows) == len(records) else text.rows(records[len(rows) :], n_read=len(rows))


def both(data: bytes, **how: Any) -> tuple[list[list[float]] | None, list[list[float]] | None]:
    """What the two readers find in a csv, None where they refuse it."""
    found: list[list[list[float]] | None] = []
    for read in (
        lambda: read_plainly(data, FileParams(**how)),
        lambda: [row for batch in open_source(io.BytesIO(data), kind="csv", **how).batches for row in batch.tolist()],
    ):
        try:
            found.append(np.asarray(read()).tolist())
        except ValueError:
            found.append(None)
    return found[0], found[1]


@each("field", FIELDS)
def test_a_field_is_what_pyarrow_says(field: str) -> None:
    plain, arrow = both(f"a,b\n2,{field}\n".encode())
    np.testing.assert_equal(plain, arrow)


# A field, and what it is with a decimal comma alone, and with points between thousands as well; None is a refusal.
COMMAS: dict[str, tuple[float | None, float | None]] = {
    "1,5": (1.5, 1.5),
    "-,5": (-0.5, -0.5),
    "7": (7, 7),
    "1,5e-3": (0.0015, 0.0015),
    "1,2,3": (None, None),
    # Not 1.243: the number would shrink a thousandfold without a word.
    "1.243": (None, 1243),
    "-1.243": (None, -1243),
    "1.234,5": (None, 1234.5),
    "12.345.678,25": (None, 12345678.25),
    "1.243e2": (None, 124300),
    "1.24.3": (None, None),
    "12.34,5": (None, None),
    "1234.567": (None, None),
    "0.123": (None, None),
    ".123": (None, None),
    "1.243.": (None, None),
    "1,234.5": (None, None),
    "1 243": (None, None),
}


@pytest.mark.parametrize("field", COMMAS)
def test_a_point_is_no_decimal_mark_where_a_comma_is(field: str) -> None:
    for thousands, value in zip((None, "."), COMMAS[field], strict=True):
        for text in (field, f'"{field}"', f" {field} "):
            plain, arrow = both(f"a;b\n2;{text}\n".encode(), decimal=",", thousands=thousands)
            assert plain == arrow == (None if value is None else [[2, value]])
    # Quotes keep a comma inside a field, also where commas separate fields.
    plain, arrow = both(f'a,b\n2,"{field}"\n'.encode(), decimal=",")
    assert plain == arrow == (None if COMMAS[field][0] is None else [[2, COMMAS[field][0]]])


@pytest.mark.parametrize(
    ("field", "thousands"),
    [
        *(("1,243.5", ","), ("1 243.5", " "), ("1\u202f243.5", "space"), ("1\xa0243.5", " "), ("1'243.5", "'")),
        *(("1\u2019243.5", "'"), ("+1,243.5", ","), ("1243.5", ",")),
    ],
)
def test_thousands_have_the_marks_of_several_languages(field: str, thousands: str) -> None:
    how = validate_params(FileParams, FileParams(thousands=thousands))
    plain, arrow = both(f"a;b\n2;{field}\n".encode(), thousands=how.thousands)
    assert plain == arrow == [[2, 1243.5]]
    if field != "1243.5":
        assert both(f"a;b\n2;{field}\n".encode()) == (None, None)


@each("word", ["-9999", "-9999.0", "-9.999e3"])
@each("field", ["-9999", "-9999.0", "-9999.00", "-9999.", "-9.999e3", '"-9999"', " -9999 ", "?", "unknown"])
def test_what_stands_for_a_missing_value_is_compared_as_a_number(word: str, field: str) -> None:
    plain, arrow = both(f"a,b\n2,{field}\n3,-9998\n".encode(), na_values=(word, "?", "unknown"))
    np.testing.assert_equal(plain, [[2, np.nan], [3, -9998]])
    np.testing.assert_equal(plain, arrow)


def test_what_stands_for_a_missing_value_may_have_marks_in_the_file() -> None:
    plain, arrow = both(b"a;b\n-9.999;-99,5\n", decimal=",", thousands=".", na_values=("-9999", "-99.5"))
    np.testing.assert_equal(plain, [[np.nan, np.nan]])
    np.testing.assert_equal(plain, arrow)


ABOVE: dict[str, tuple[bytes, dict[str, Any]]] = {
    "comments": (b"# it's a \"sensor\n#\na,b\n1,2\n# 'x\n3,4\n", {"comment": "#"}),
    "a mark and comments": (b"\xef\xbb\xbf# x\na,b\n1,2\n3,4\n#", {"comment": "#"}),
    "skipped lines": (b'a title\n"\na,b\n1,2\n3,4\n', {"skip_rows": 2}),
    "a skipped line and comments": (b"x;y\n#\na,b\n#\n1,2\n3,4\n", {"skip_rows": 1, "comment": "#"}),
    "a stated separator": (b"sep=;\r\na;b\r\n1;2\r\n3;4\r\n", {}),
    "a stated tab": (b"\xef\xbb\xbfsep=\t\na\tb\n1\t2\n3\t4\n", {}),
    "a stated separator in quotes": (b'"sep=|"\na|b\n1|2\n3|4\n', {}),
    "a stated separator that is skipped": (b"sep=;\na,b\n1,2\n3,4\n", {"skip_rows": 1}),
    "no header": (b"#\n1,2\n#\n3,4\n", {"comment": "#", "header": False}),
    "no header below a separator": (b"sep=;\n1;2\n3;4\n", {"header": False}),
}


@pytest.mark.parametrize("name", ABOVE)
def test_lines_above_the_header_are_left_out(name: str) -> None:
    data, how = ABOVE[name]
    assert both(data, **how) == ([[1, 2], [3, 4]], [[1, 2], [3, 4]])


@pytest.mark.parametrize("note", ['"x\n# y"', '"x\ny"', '"', '"a"b"'])
def test_a_row_is_one_line_and_an_open_quote_takes_no_other_row(note: str) -> None:
    data = f"a,b,note\n1,2,x\n3,4,{note}\n5,6,z\n".encode()
    with pytest.raises(ValueError, match=r"after row 1: the next line has an open quote.*must be one line"):
        read_plainly(data, FileParams(comment="#"), ("a", "b"))


def test_a_quote_within_a_field_is_a_letter() -> None:
    data = b'a,b,note\n1,2,5" pipe\n3,4,"6"" pipe"\n5,6,z\n'
    assert read_plainly(data, FileParams(), ("a", "b")).tolist() == [[1, 2], [3, 4], [5, 6]]


MARKS = st.sampled_from([".", ",", " ", "'", "\u202f"])
DIGITS = st.text("0123456789", min_size=1, max_size=4)


@st.composite
def written_numbers(draw: st.DrawFn) -> str:
    """Numbers with marks, well formed or not."""
    groups = draw(st.lists(st.one_of(DIGITS, st.sampled_from(["000", "243", "999"])), min_size=1, max_size=4))
    text = draw(st.sampled_from(["", "-", "+"])) + groups[0] + "".join(draw(MARKS) + group for group in groups[1:])
    return text + draw(st.sampled_from(["", "", "", "e3", "E-2", ",", "."]))


@given(
    st.integers(-(10**12), 10**12),
    st.text("0123456789", max_size=6),
    st.sampled_from([(".", ","), (",", "."), (",", " "), (",", "\u202f"), (".", "'"), (",", "'"), (".", None), (",", None)]),
)
def test_numbers_of_every_language_come_back(whole: int, fraction: str, marks: tuple[str, str | None]) -> None:
    decimal, thousands = marks
    text = f"{whole:,}".replace(",", thousands or "") + decimal * bool(fraction) + fraction
    how = validate_params(FileParams, FileParams(decimal=decimal, thousands=thousands))
    plain, arrow = both(f"a;b\n{text};1\n".encode(), decimal=how.decimal, thousands=how.thousands)
    assert plain == arrow == [[float(f"{whole}.{fraction or 0}"), 1]]


WORDS = st.sampled_from(["", "NA", "nan", "true", "FALSE", "-9999", "-9999,0", "-9.999", "?", "x", "# 1", "inf"])


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_both_readers_agree_however_numbers_are_written(data: st.DataObject) -> None:
    """Marks, quotes, comments and gaps in any combination: the same numbers, or a refusal from both."""
    separator = data.draw(st.sampled_from([",", ";", "\t", "|"]))
    decimal = data.draw(st.sampled_from([".", ","]))
    thousands = data.draw(st.sampled_from([None, ".", ",", " ", "'"]).filter(lambda mark: mark != decimal))
    comment = data.draw(st.sampled_from([None, "#"]))
    marked = data.draw(st.sampled_from([None, ("-9999",), ("-9999", "?")]))
    lines = [separator.join(("a", "b"))]
    for _ in range(data.draw(st.integers(1, 3))):
        fields = [data.draw(st.one_of(written_numbers(), written_numbers(), WORDS)) for _ in range(2)]
        quoted = [f'"{one}"' if separator in one or data.draw(st.booleans()) else one for one in fields]
        lines += ["# it's \""] * (comment is not None and data.draw(st.booleans())) + [separator.join(quoted)]
    text = "\n".join([*lines, ""]).encode()
    how = {"separator": separator, "decimal": decimal, "thousands": thousands, "comment": comment, "na_values": marked}
    plain, arrow = both(text, **how)
    np.testing.assert_equal(plain, arrow)


@pytest.mark.parametrize("data", LINES)
def test_lines_are_what_pyarrow_says(data: bytes) -> None:
    plain, arrow = both(data)
    np.testing.assert_equal(plain, arrow)


@given(st.lists(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=3, max_size=3), min_size=1, max_size=5))
def test_numbers_come_back_to_the_last_bit(rows: list[list[float]]) -> None:
    text = "a,b,c\n" + "".join(",".join(map(repr, row)) + "\n" for row in rows)
    assert read_plainly(text.encode(), FileParams()).tolist() == rows


def test_columns_are_found_by_name_and_others_may_hold_anything() -> None:
    data = b'who,b,a\n\xff\xfe,2,1\n"x,y",4,3\n'
    assert read_plainly(data, FileParams(), ("a", "b")).tolist() == [[1, 2], [3, 4]]
    with pytest.raises(ValueError, match="has no column 'c'"):
        read_plainly(data, FileParams(), ("a", "c"))


def test_unnamed_columns_are_taken_in_order() -> None:
    text = TextRows.of(CsvHeader.of(b"1,2", Path("x.csv"), FileParams(header=False)), ("a", "b"))
    assert text.names == ("a", "b")
    assert text.rows([b"1,2\n"], n_read=0).tolist() == [[1, 2]]
    with pytest.raises(ValueError, match="2 unnamed columns, and 3"):
        TextRows.of(CsvHeader.of(b"1,2", Path("x.csv"), FileParams(header=False)), ("a", "b", "c"))


def test_good_rows_before_a_bad_one_are_given_out_and_no_value_is_shown() -> None:
    text = TextRows.of(CsvHeader.of(b"a,b", Path("x.csv"), FileParams()), None)
    records = [b"1,2\n", b"secret,3\n"]
    assert text.rows(records, n_read=5).tolist() == [[1, 2]]
    with pytest.raises(ColumnsError, match=r"x\.csv cannot be read after row 6: not a number in column 'a'") as caught:
        text.rows(records[1:], n_read=6)
    assert "secret" not in str(caught.value)
    with pytest.raises(ValueError, match="3 fields and the header has 2"):
        text.rows([b"1,2,3\n"], n_read=6)


def test_another_encoding_is_decoded() -> None:
    how = FileParams(encoding="latin-1")
    text = TextRows.of(CsvHeader.of("größe,b".encode(), Path("x.csv"), how), ("größe",))
    assert text.rows(["1,é\n".encode("latin-1")], n_read=0).tolist() == [[1.0]]


def test_records_are_lines() -> None:
    data = b'"' + b"1,2\n" * 3
    assert whole_records(data, max_rows=10) == ([b'"1,2\n', b"1,2\n", b"1,2\n"], [5, 9, 13])
    assert whole_records(data, max_rows=1) == ([b'"1,2\n'], [5])
