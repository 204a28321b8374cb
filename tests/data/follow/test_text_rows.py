"""Lines without pyarrow, against the reader with it: the same numbers, the same refusals, never a value in an error."""

import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eigenveil.data.follow.text_rows import TextRows, whole_records
from eigenveil.data.streams import open_source
from eigenveil.data.text_files import CsvHeader
from eigenveil.errors import ColumnsError
from eigenveil.linalg import Array
from eigenveil.params.declarations.reading import FileParams

FIELDS = (
    *("1", "+1", "-1", " 1 ", "1.", ".", ".5", "1e5", "1E+5", "1_000", "inf", "-Infinity", "nan", "NAN", "-nan", "na"),
    *("NA", "n/a", "true", "TRUE", " False ", "", " ", "0x10", "1.5.2", "١", "1e400", "1d5", "null", "None", "none"),
    *("<NA>", "++1", "1e", "0001", "- 1", "\t1", "1.234", "1\x0b", "é", '"7"', '"x"'),
)
LINES = (
    *(
        b"a,b\n1,2\n\n3,4\n",
        b"a,b\n1,2\n,\n",
        b'a,b\n"1","2"\n',
        b"a,b\r\n1,2\r\n3,4\r\n",
        b"a;b\n1;2\n",
        b"a\n1\n\n2\n",
    ),
    *(b'a,b\n1,"2\n3"\n', b'a,b\n"1,5",2\n', b"a,b\n1,2,\n", b"a,b\n1\n"),
)


def read_plainly(data: bytes, how: FileParams, columns: tuple[str, ...] | None = None) -> Array:
    head, _, rest = data.partition(b"\n")
    text = TextRows.of(CsvHeader.of(head, Path("the stream"), how), columns)
    records, _ = whole_records(rest, quote=text.quote, most=10**6)
    return text.rows(records, seen=0)


def both(data: bytes, decimal: str = ".") -> tuple[list[list[float]] | None, list[list[float]] | None]:
    """What the two readers find in a csv, None where they refuse it."""
    found: list[list[list[float]] | None] = []
    for read in (
        lambda: read_plainly(data, FileParams(decimal=decimal)),
        lambda: np.concatenate(list(open_source(io.BytesIO(data), kind="csv", decimal=decimal).batches)),
    ):
        try:
            found.append(np.asarray(read()).tolist())
        except ValueError:
            found.append(None)
    return found[0], found[1]


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_is_what_pyarrow_says(field: str) -> None:
    plain, arrow = both(f"a,b\n2,{field}\n".encode())
    np.testing.assert_equal(plain, arrow)


@pytest.mark.parametrize("field", ["1,5", "1.5", "1.234,5", "1,2,3", "-,5"])
def test_a_decimal_comma_is_an_option(field: str) -> None:
    plain, arrow = both(f"a;b\n2;{field}\n".encode(), decimal=",")
    assert plain == arrow


@pytest.mark.parametrize("data", LINES)
def test_lines_are_what_pyarrow_says(data: bytes) -> None:
    plain, arrow = both(data)
    np.testing.assert_equal(plain, arrow)


@given(
    st.lists(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=3, max_size=3), min_size=1, max_size=5)
)
def test_numbers_come_back_to_the_last_bit(rows: list[list[float]]) -> None:
    text = "a,b,c\n" + "".join(",".join(map(repr, row)) + "\n" for row in rows)
    assert read_plainly(text.encode(), FileParams()).tolist() == rows


def test_columns_are_found_by_name_and_others_may_hold_anything() -> None:
    data = b'who,b,a\n\xff\xfe,2,1\n"x,\ny",4,3\n'
    assert read_plainly(data, FileParams(), ("a", "b")).tolist() == [[1, 2], [3, 4]]
    with pytest.raises(ValueError, match="has no column 'c'"):
        read_plainly(data, FileParams(), ("a", "c"))


def test_unnamed_columns_are_taken_in_order() -> None:
    text = TextRows.of(CsvHeader.of(b"1,2", Path("x.csv"), FileParams(header=False)), ("a", "b"))
    assert text.names == ("a", "b")
    assert text.rows([b"1,2\n"], seen=0).tolist() == [[1, 2]]
    with pytest.raises(ValueError, match="2 unnamed columns, and 3"):
        TextRows.of(CsvHeader.of(b"1,2", Path("x.csv"), FileParams(header=False)), ("a", "b", "c"))


def test_good_rows_before_a_bad_one_are_given_out_and_no_value_is_shown() -> None:
    text = TextRows.of(CsvHeader.of(b"a,b", Path("x.csv"), FileParams()), None)
    records = [b"1,2\n", b"secret,3\n"]
    assert text.rows(records, seen=5).tolist() == [[1, 2]]
    with pytest.raises(ColumnsError, match=r"x\.csv cannot be read after row 6: not a number in column 'a'") as caught:
        text.rows(records[1:], seen=6)
    assert "secret" not in str(caught.value)
    with pytest.raises(ValueError, match="3 fields and the header has 2"):
        text.rows([b"1,2,3\n"], seen=6)


def test_another_encoding_is_decoded() -> None:
    how = FileParams(encoding="latin-1")
    text = TextRows.of(CsvHeader.of("größe,b".encode(), Path("x.csv"), how), ("größe",))
    assert text.rows(["1,é\n".encode("latin-1")], seen=0).tolist() == [[1.0]]


def test_an_open_quote_costs_one_pass() -> None:
    data = b'"' + b"1,2\n" * 100_000
    assert whole_records(data, quote=b'"', most=10) == ([], [])
    assert whole_records(data, quote=None, most=1) == ([b'"1,2\n'], [5])
