"""Laws of file formats, run over the registry: a new format is attacked as soon as it is listed there.

A format that writes scores is written by itself. `WRITERS` has those that are only read, and other ways of writing a file.
"""

import io
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eigenveil.data.follow import Offset, follow
from eigenveil.data.formats import FORMATS, OUTPUTS, FileParams, Format, known_format, require_passthrough, write_scores
from eigenveil.data.formats.registry import by_ending
from eigenveil.data.rows import CheckedRows, DenseRows, WeightedRows
from eigenveil.data.tables import open_source, read_table
from eigenveil.errors import ColumnsError, ParameterError
from eigenveil.linalg import Array
from eigenveil.params.declare import declared

NAMES = ["age", "dose", "weight"]
# A cell that no message may quote, among numbers of every size, whole ones and fractions.
SECRET = 8675309.125
VALUES: Any = np.random.default_rng(0).normal(size=(23, 3)) * np.logspace(-3, 3, 23)[:, None]
VALUES[3:9] = [[0.0, -1.0, 2.0], [1e300, -1e-300, 5e-324], [SECRET] * 3, [1 / 3, 1e15, -0.125], [7, 8, 9], [1, 2, 3]]
WHO = [f"p{place % 5}" for place in range(len(VALUES))]


def pairs(path: Path, values: Array) -> None:
    """svmlight text, with labels, which are left out."""
    rows = (" ".join(f"{place}:{value!r}" for place, value in enumerate(row)) for row in values.tolist())
    path.write_text("".join(f"1 {row}\n" for row in rows))


def streamed(path: Path, values: Array) -> None:
    """An Arrow stream, as a pipe carries it."""
    table = pa.table(dict(zip(NAMES, values.T, strict=True)))
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write(table)


def packed(path: Path, values: Array) -> None:
    """Compressed csv."""
    with pa.output_stream(str(path), compression="detect") as file:
        pc.write_csv(pa.table(dict(zip(NAMES, values.T, strict=True))), file)


WRITERS: dict[str, Callable[[Path, Array], Any]] = {
    "a.npz": lambda path, values: np.savez_compressed(path, X=values, y=np.zeros(3)),
    "sparse.npz": lambda path, values: sp.save_npz(path, sp.csc_array(values)),
    "a.svm": pairs,
    "a.svmlight": pairs,
    "a.libsvm": pairs,
    "a.arrows": streamed,
    "a.csv.gz": packed,
    "a.tsv.zst": packed,
    "fortran.npy": lambda path, values: np.save(path, np.asfortranarray(values)),
    "groups.parquet": lambda path, values: pq.write_table(
        pa.table(dict(zip(NAMES, values.T, strict=True))), path, row_group_size=4
    ),
}
FILES = [*(f"A{ending.upper()}" for ending in OUTPUTS), *(f"a{ending}" for ending in OUTPUTS), *WRITERS]
NAMED = [name for name in FILES if by_ending(Path(name)).has_names]


def write(path: Path, values: Array = VALUES, *, who: bool = False) -> Path:
    """A file with these rows, and with a column for the person of each."""
    if path.name in WRITERS:
        WRITERS[path.name](path, values)
        return path
    carried = pa.table({"who": WHO}) if who else None
    halves = [(values[:9], None if carried is None else carried[:9]), (values[9:], None if carried is None else carried[9:])]
    write_scores(path, path.suffix.lower(), NAMES, iter(halves))
    return path


def dense(rows: Any, size: int = 100) -> Array:
    """All rows, read in blocks of this size."""
    blocks = [block.values for block in rows.blocks(size)]
    return np.vstack([block.toarray() if sp.issparse(block) else block for block in blocks])


def refused(act: Callable[[], Any]) -> str:
    """The words of a refusal, which quote no cell. Nothing but a `ValueError` may come."""
    with pytest.raises(ValueError) as caught:
        act()
    said = str(caught.value)
    assert "8675309" not in said and said.strip() and "\n" not in said, said
    return said


def test_every_format_has_words_and_endings_of_its_own() -> None:
    words = [format_.word for format_ in FORMATS]
    endings = [ending for format_ in FORMATS for ending in (*format_.suffixes, *format_.advice)]
    assert len(set(words)) == len(words) and len(set(endings)) == len(endings)
    for format_ in FORMATS:
        assert all(ending == ending.lower() and ending.startswith(".") for ending in format_.suffixes)
        assert all(known_format(Path(f"x{ending.upper()}")) is format_ for ending in format_.suffixes)
        assert {*format_.outputs} <= {*format_.suffixes} and format_.options <= set(declared(FileParams))
        written = {*format_.outputs} | {f".{name.partition('.')[2]}" for name in WRITERS}
        assert written & {*format_.suffixes}, f"no file of {format_.word} is tested: add one to WRITERS"
        for ending, advice in format_.advice.items():
            assert advice in refused(lambda ending=ending: by_ending(Path(f"x{ending}")))  # type: ignore[misc]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("size", [1, 2, 7, 100])
def test_every_format_reads_back_what_was_written_in_blocks_of_any_size(name: str, size: int, tmp_path: Path) -> None:
    table = read_table(write(tmp_path / name))
    # To the last bit, and the same however many rows are read at once.
    assert table.rows.shape == VALUES.shape and np.array_equal(dense(table.rows, size), VALUES)
    assert table.columns == (tuple(NAMES) if by_ending(tmp_path / name).has_names else None)
    assert table.rows.sparse == (name == "sparse.npz" or WRITERS.get(name) is pairs)
    if table.columns is not None:
        opened = open_source(tmp_path / name)
        assert opened.columns == table.columns and np.array_equal(np.vstack(list(opened.batches)), VALUES)


@pytest.mark.parametrize("name", FILES)
def test_a_file_cut_anywhere_is_refused_or_gives_the_rows_before_the_cut(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / name)
    whole = path.read_bytes()
    is_text = whole.isascii()
    for cut in sorted({*range(0, len(whole) - 1, 1 + len(whole) // 40), len(whole) - 1}):
        path.write_bytes(whole[:cut])
        try:
            found = dense(read_table(path).rows)
        except ValueError:
            refused(lambda: dense(read_table(path).rows))
            continue
        # Only lines of text can end early and be whole, and then no row but the last may be another.
        assert is_text, f"{cut} of {len(whole)} bytes were taken for a whole file"
        assert np.array_equal(found[:-1], VALUES[: len(found) - 1, : found.shape[1]])


@pytest.mark.parametrize("name", FILES)
@given(data=st.data())
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
def test_a_damaged_file_is_read_or_refused_in_words_that_quote_nothing(name: str, data: st.DataObject, tmp_path: Path) -> None:
    path = write(tmp_path / name)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(bytes(content))
    try:
        found = dense(read_table(path, gaps=True).rows)
    except ValueError as error:
        assert "8675309" not in str(error) and "\n" not in str(error)
        return
    assert found.dtype == np.float64 and found.ndim == 2


@pytest.mark.parametrize("name", FILES)
def test_what_is_no_file_of_a_format_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    noise = np.random.default_rng(1).bytes(4096)
    for content in (b"", b"\0" * 100, noise, f"{SECRET} {SECRET}\n".encode() * 9, b"PK\x03\x04" + noise, b"\x1f\x8b" + noise):
        path.write_bytes(content)
        refused(lambda: dense(read_table(path).rows))
    path.unlink()
    assert "does not exist" in refused(lambda: read_table(path))
    path.mkdir()
    refused(lambda: read_table(path))


# A value of each option that is not its default.
SAID: dict[str, Any] = {
    "header": False,
    "skip_rows": 1,
    "comment": "#",
    "separator": ";",
    "decimal": ",",
    "thousands": "'",
    "quote": "'",
    "encoding": "latin-1",
    "sheet": "one",
    "features": 3,
    "one_based": True,
}


@pytest.mark.parametrize("name", FILES)
def test_options_of_other_formats_are_refused(name: str, tmp_path: Path) -> None:
    format_ = by_ending(write(tmp_path / name))
    assert {*SAID} == set().union(*(each.options for each in FORMATS))
    for option in {*SAID} - format_.options:
        said = refused(lambda option=option: read_table(tmp_path / name, **{option: SAID[option]}))  # type: ignore[misc]
        assert f"{option} is for " in said and f"is {format_.word}" in said


@pytest.mark.parametrize("name", NAMED)
def test_columns_are_chosen_alike_in_every_format(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / name)
    chosen: dict[str, tuple[dict[str, Any], list[int]]] = {
        "some, in this order": ({"columns": ["weight", "age"]}, [2, 0]),
        "a pattern": ({"columns": ["*e*"]}, [0, 1, 2]),
        "all but one": ({"drop": ["dose"]}, [0, 2]),
    }
    for choice, places in chosen.values():
        table = read_table(path, **choice)
        assert table.columns == tuple(NAMES[place] for place in places) and table.available == 3
        assert np.array_equal(dense(table.rows), VALUES[:, places])
    for wrong in ({"columns": ["height"]}, {"drop": ["height"]}, {"person": "height"}):
        assert "height" in refused(lambda wrong=wrong: read_table(path, **wrong))  # type: ignore[misc]


@pytest.mark.parametrize("name", [name for name in FILES if name not in NAMED])
def test_columns_without_names_cannot_be_chosen(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / name)
    for option, value in {"columns": ["a"], "drop": ["a"], "person": "a", "one_hot": {"a": ["x"]}, "passthrough": ["a"]}.items():
        assert "has no column names" in refused(lambda option=option, value=value: read_table(path, **{option: value}))  # type: ignore[misc]


@pytest.mark.parametrize("ending", OUTPUTS)
def test_a_person_has_one_row_or_several_and_counts_once(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"a{ending}"
    if not OUTPUTS[ending].has_text:
        assert f"{ending} has numbers only" in refused(lambda: require_passthrough(ending, option="--output"))
        return
    table = read_table(write(path, who=True), person="who")
    assert isinstance(table.rows, WeightedRows) and table.columns == tuple(NAMES)
    assert table.rows.weights.tolist() == [1 / WHO.count(who) for who in WHO]
    assert np.array_equal(dense(table.rows), VALUES)
    # Text is carried and encoded as it was written, and is no number.
    carried = read_table(path, passthrough=["who"], one_hot={}, columns=["age"]).passthrough
    assert carried.column("who").to_pylist() == WHO
    encoded = read_table(path, one_hot={"who": ["p1", "nobody"]}, columns=["who"])
    assert dense(encoded.rows)[:, 0].tolist() == [float(who == "p1") for who in WHO]
    with pytest.raises(ColumnsError, match="who"):
        read_table(path)


@pytest.mark.parametrize("ending", OUTPUTS)
def test_cells_for_lists_are_only_where_a_format_has_them(ending: str, tmp_path: Path) -> None:
    schema = pa.schema([("notes", pa.list_(pa.string()))])
    if OUTPUTS[ending].has_nested:
        require_passthrough(ending, schema, option="--output")
    else:
        refused(lambda: require_passthrough(ending, schema, option="--output"))


@pytest.mark.parametrize("name", FILES)
def test_what_stands_for_a_missing_value_does_so_in_every_format(name: str, tmp_path: Path) -> None:
    # The last row has numbers that are near the marks and are none.
    values = np.array([[1.0, -9999.0, 3.0], [-9999.0, 5.0, -1.0], [-9998.0, -99999.0, 9999.0]])
    gaps = np.array([[1.0, np.nan, 3.0], [np.nan, 5.0, np.nan], [-9998.0, -99999.0, 9999.0]])
    path = write(tmp_path / name, values)
    for marks in (["-9999", "-1"], [-9999, -1.0], ["-9999.0", "-1e0", "unknown"]):
        np.testing.assert_equal(dense(read_table(path, na_values=marks, gaps=True).rows, 2), gaps)
        batches = [batch.toarray() if sp.issparse(batch) else batch for batch in open_source(path, na_values=marks).batches]
        np.testing.assert_equal(np.vstack(batches), gaps)
    # Where nothing may be missing, they are refused like any gap.
    with pytest.raises(ValueError, match=r"missing|NaN") as caught:
        list(CheckedRows(read_table(path, na_values=["-9999", "-1"]).rows).blocks(9))
    assert "9999" not in str(caught.value)
    assert not isinstance(caught.value, ColumnsError) or caught.value.columns == tuple(NAMES)
    np.testing.assert_equal(dense(read_table(path).rows), values)


@pytest.mark.parametrize("format_", FORMATS, ids=lambda format_: format_.word)
def test_a_pipe_carries_what_a_format_says(format_: Format, tmp_path: Path) -> None:
    name = next((name for name in FILES if by_ending(Path(name)) is format_ and name in ("a.csv", "a.arrows")), "a")
    if not format_.comes_through_pipe:
        said = refused(lambda: open_source(io.BytesIO(b"x"), kind=format_.word))
        assert f"{format_.word} cannot be read from a pipe" in said
        return
    content = write(tmp_path / name).read_bytes()
    # In pieces, and once: a pipe neither seeks nor says how long it is.
    end, begin = os.pipe()

    def feed() -> None:
        with os.fdopen(begin, "wb") as file:
            for start in range(0, len(content), 100):
                file.write(content[start : start + 100])

    thread = threading.Thread(target=feed)
    thread.start()
    with os.fdopen(end, "rb") as file:
        table = read_table(file, kind=format_.word)
        thread.join()
    assert table.columns == tuple(NAMES) and np.array_equal(dense(table.rows, 5), VALUES)


@pytest.mark.parametrize("name", FILES)
def test_rows_that_are_appended_are_those_of_the_whole_file(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / name)
    format_, whole = by_ending(path), path.read_bytes()
    if format_.follow is None:
        assert "can be followed" in refused(lambda: follow(path))
        return
    if not whole.isascii():
        assert "compressed" in refused(lambda: follow(path))
        return
    offset, found = Offset(), []
    cuts = [*range(whole.index(b"\n") + 1, len(whole), 97), len(whole)]
    path.write_bytes(whole[: cuts[0]])
    source = follow(path)
    for cut in cuts:
        path.write_bytes(whole[:cut])
        rows, offset = source.read(offset, max_rows=10**6)
        found.append(rows)
    assert source.columns == tuple(NAMES) and np.array_equal(np.vstack(found), VALUES)


@pytest.mark.parametrize("name", FILES)
def test_pieces_of_a_shared_table_are_its_rows(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / name)
    format_ = by_ending(path)
    if format_.rows is not None and format_.is_shared:
        # Any range of it is there without reading the rest.
        rows = format_.rows(path, FileParams())
        assert isinstance(rows, DenseRows) and isinstance(rows.values, np.memmap)
    elif format_.open is not None and format_.is_shared:
        table: Any = format_.open(path, path, FileParams())
        for most in (1, 4, 9, 100):
            pieces = table.pieces(most)
            assert sum(piece.count for piece in pieces) == len(VALUES)
            batches = [batch for piece in pieces for batch in piece.batches(NAMES, (), 3)]
            read = pa.Table.from_batches(batches)
            assert np.array_equal(np.column_stack([read.column(column) for column in NAMES]), VALUES)


def test_help_lists_formats_without_loading_numpy_or_pyarrow() -> None:
    code = """
import sys
from typer.testing import CliRunner
from eigenveil.commands import app
import eigenveil.data.formats
done = CliRunner().invoke(app, ["transform", "--help"])
assert done.exit_code == 0 and ".tsv" in done.output, done.output
heavy = {"numpy", "pyarrow", "scipy", "pandas", "sklearn"} & {*sys.modules}
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_format_that_leaves_a_question_open_cannot_be_made() -> None:
    with pytest.raises(TypeError, match="missing"):
        Format(word="x", title="x", suffixes=(".x",))  # type: ignore[call-arg]
    with pytest.raises(ParameterError, match="kind must be one of"):
        read_table("a.x", kind="x")
