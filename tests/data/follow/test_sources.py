"""Files that grow, folders and pipes: every row once, from any offset; what has changed is refused and changes nothing."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from eigenveil.data.follow import Followed, FollowedFile, FollowedFolder, FollowedPipe, Offset, follow
from eigenveil.data.formats import FileParams
from eigenveil.errors import ColumnsError, ParameterError, SourceChanged

PLAIN = FileParams()


def all_rows(source: Followed, offset: Offset | None = None, *, most: int = 3) -> tuple[list[list[float]], Offset]:
    """Read in blocks until nothing is left; offsets go through text in between, as they do over a restart."""
    found: list[list[float]] = []
    at = Offset() if offset is None else offset
    while True:
        rows, at = source.read(Offset.from_text(at.to_text()), max_rows=most)
        assert len(rows) <= most
        if not len(rows):
            return found, at
        found += rows.tolist()


def numbered(start: int, stop: int) -> str:
    return "".join(f"{i},{-i}\n" for i in range(start, stop))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "sensor.csv"
    path.write_text("a,b\n" + numbered(0, 7))
    return path


def test_a_file_is_followed_as_it_grows(file: Path) -> None:
    first, offset = all_rows(follow(file))
    assert first == [[i, -i] for i in range(7)]
    with file.open("a") as more:
        more.write("7,-7\n\n8,-")
    second, offset = all_rows(follow(file), offset)
    # The last line has no end yet: it could be -8 or -80.
    assert second == [[7, -7]]
    with file.open("a") as more:
        more.write("80\n")
    assert all_rows(follow(file), offset)[0] == [[8, -80]]


def test_long_lines_and_many_rows_are_read_whole(tmp_path: Path) -> None:
    names = ",".join(f"c{i}" for i in range(3000))
    rows = [",".join(f"{i + j / 8:.17g}" for j in range(3000)) for i in range(60)]
    path = tmp_path / "wide.csv"
    path.write_text("\n".join([names, *rows, ""]))
    found, _ = all_rows(follow(path), most=1000)
    assert [row[8] for row in found] == [i + 1 for i in range(60)]


def test_another_process_that_replaces_the_file_with_a_longer_copy_is_followed(file: Path) -> None:
    _, offset = all_rows(follow(file))
    # rsync and editors write a new file and rename it. Its rows are the same.
    other = file.with_suffix(".new")
    other.write_text(file.read_text() + "7,-7\n")
    other.rename(file)
    assert all_rows(follow(file), offset)[0] == [[7, -7]]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("a,b\n0,0\n", "has become shorter"),
        ("", "has become shorter"),
        ("a,b\n" + numbered(50, 90), "was replaced or rotated"),
        ("b,a\n" + numbered(0, 9), "another first line"),
    ],
)
def test_a_file_that_is_not_what_it_was_is_refused(file: Path, content: str, why: str) -> None:
    source = follow(file)
    _, offset = all_rows(source)
    before = file.read_text()
    file.write_text(content)
    with pytest.raises(SourceChanged, match=why):
        source.read(offset, max_rows=3)
    # Nothing was taken: with the old file back it goes on.
    file.write_text(before + "7,-7\n")
    assert all_rows(source, offset)[0] == [[7, -7]]


def test_a_new_process_refuses_another_header_too(file: Path) -> None:
    _, offset = all_rows(follow(file))
    file.write_text("b,a\n" + numbered(0, 9))
    with pytest.raises(SourceChanged, match="another first line"):
        follow(file).read(offset, max_rows=3)


def test_a_file_that_is_gone_is_refused(file: Path) -> None:
    source = follow(file)
    file.unlink()
    with pytest.raises(SourceChanged, match="is gone"):
        source.read(Offset(), max_rows=3)


def test_a_bad_row_stops_the_file_and_names_no_value(file: Path) -> None:
    with file.open("a") as more:
        more.write("7,-7\nsecret,1\n9,-9\n")
    source = follow(file)
    rows, offset = source.read(Offset(), max_rows=100)
    assert len(rows) == 8
    with pytest.raises(ColumnsError, match=r"after row 8: not a number in column 'a'") as caught:
        source.read(offset, max_rows=100)
    assert "secret" not in str(caught.value)
    file.write_text(file.read_text().replace("secret", "8"))
    assert all_rows(source, offset)[0] == [[8, 1], [9, -9]]


def test_a_pipe_without_a_size_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reading, writing = os.pipe()
    # Nothing is written into either, and nobody waits for it.
    with os.fdopen(reading, "rb", buffering=0) as stream:
        for source in (stream, tmp_path / "pipe"):
            with pytest.raises(ValueError, match="Append the rows to a file"):
                follow(source, sized=True)
    os.close(writing)


@pytest.mark.parametrize("name", ["sensor.jsonl", "sensor.parquet"])
def test_a_file_of_another_kind_is_refused_and_not_quoted(tmp_path: Path, name: str) -> None:
    (path := tmp_path / name).write_text('{"a": 71}\n')
    with pytest.raises(ValueError, match="only csv can be followed") as refused:
        follow(path, columns=("a",))
    # The folder of the test may have the number in its name.
    assert "71" not in str(refused.value).replace(str(tmp_path), "")


def test_what_cannot_be_followed_is_said(tmp_path: Path, file: Path) -> None:
    (tmp_path / "empty.csv").write_text("a,b")
    with pytest.raises(ValueError, match="no complete first line yet"):
        follow(tmp_path / "empty.csv")
    packed = tmp_path / "x.csv.gz"
    packed.write_bytes(b"")
    with pytest.raises(ValueError, match="is compressed"):
        follow(packed)
    with pytest.raises(ParameterError, match="only csv can be followed"):
        follow(file, how=FileParams(kind="parquet"))
    with pytest.raises(ParameterError, match="cannot be followed line by line"):
        follow(file, how=FileParams(encoding="utf-16"))
    with pytest.raises(ValueError, match="not an offset"):
        Offset.from_text('{"byte": 3}')


def test_a_file_without_names_and_with_a_mark(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(b"\xef\xbb\xbf1,2\n3,4\n")
    source = follow(path, columns=("a", "b"), how=FileParams(header=False))
    found, offset = all_rows(source)
    assert (found, source.named, offset.header) == ([[1, 2], [3, 4]], False, "")
    path.write_bytes(b"\xef\xbb\xbfa,b\n5,6\n")
    assert all_rows(follow(path, columns=("b", "a")))[0] == [[6, 5]]


def test_a_folder_is_read_in_the_order_of_names(tmp_path: Path) -> None:
    for name, start in (("02.csv", 3), ("01.csv", 0), ("10.csv", 6)):
        (tmp_path / name).write_text("a,b\n" + numbered(start, start + 3))
    (tmp_path / "_tmp.csv").write_text("x\n")
    (tmp_path / "notes.txt").write_text("x\n")
    source = follow(tmp_path)
    assert isinstance(source, FollowedFolder)
    found, offset = all_rows(source, most=4)
    assert found == [[i, -i] for i in range(9)]
    # The last file grows, and then another comes.
    with (tmp_path / "10.csv").open("a") as more:
        more.write("9,-9\n")
    (tmp_path / "11.csv").write_text("a,b\n" + numbered(10, 12))
    assert all_rows(follow(tmp_path), offset)[0] == [[9, -9], [10, -10], [11, -11]]
    # A file whose first line is not written yet is waited for.
    _, offset = all_rows(source, offset)
    (tmp_path / "12.csv").write_text("a")
    assert all_rows(source, offset)[0] == []


def test_old_files_of_a_folder_may_be_cleared_away(tmp_path: Path) -> None:
    for name, start in (("1.csv", 0), ("2.csv", 3)):
        (tmp_path / name).write_text("a,b\n" + numbered(start, start + 3))
    _, offset = all_rows(follow(tmp_path))
    (tmp_path / "1.csv").unlink()
    (tmp_path / "3.csv").write_text("a,b\n" + numbered(6, 8))
    assert all_rows(follow(tmp_path), offset)[0] == [[6, -6], [7, -7]]


def test_a_folder_that_is_not_what_it_was_is_refused(tmp_path: Path) -> None:
    for name, start in (("1.csv", 0), ("3.csv", 3)):
        (tmp_path / name).write_text("a,b\n" + numbered(start, start + 3))
    source = follow(tmp_path)
    _, offset = all_rows(source)
    (tmp_path / "2.csv").write_text("a,b\n1,1\n")
    with pytest.raises(SourceChanged, match=r"new file that comes before 3\.csv"):
        source.read(offset, max_rows=3)
    (tmp_path / "2.csv").unlink()
    (tmp_path / "4.csv").write_text("b,a\n1,1\n")
    with pytest.raises(SourceChanged, match=r"4\.csv has another first line than 1\.csv"):
        source.read(offset, max_rows=3)
    (tmp_path / "4.csv").unlink()
    (tmp_path / "3.csv").rename(tmp_path / "9.csv")
    with pytest.raises(SourceChanged, match=r"3\.csv is gone"):
        source.read(offset, max_rows=3)


@pytest.mark.parametrize("blank", [0, 5000])
def test_a_file_that_ends_within_a_line_holds_up_the_next(tmp_path: Path, blank: int) -> None:
    (tmp_path / "1.csv").write_text("a,b\n1,2\n" + "\n" * blank + "3,")
    (tmp_path / "2.csv").write_text("a,b\n5,6\n")
    _, offset = follow(tmp_path).read(Offset(), max_rows=1)
    with pytest.raises(SourceChanged, match=r"1\.csv ends within a line, and 2\.csv has come"):
        follow(tmp_path).read(offset, max_rows=5)
    with (tmp_path / "1.csv").open("a") as more:
        more.write("4\n")
    assert all_rows(follow(tmp_path), offset)[0] == [[3, 4], [5, 6]]
    (tmp_path / "sub").mkdir()
    with pytest.raises(ValueError, match="no csv files yet"):
        follow(tmp_path / "sub")


@pytest.fixture
def pipe() -> Iterator[tuple[BinaryIO, BinaryIO]]:
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb", buffering=0) as incoming, os.fdopen(writer, "wb", buffering=0) as outgoing:
        yield incoming, outgoing


def test_a_pipe_is_read_as_it_comes(pipe: tuple[BinaryIO, BinaryIO]) -> None:
    incoming, outgoing = pipe
    outgoing.write(b"a,b\n1,2\n3,")
    source = follow(incoming, columns=("b",))
    assert isinstance(source, FollowedPipe)
    found, offset = all_rows(source)
    assert (found, source.ended) == ([[2]], False)
    outgoing.write(b"4\n5,6\n")
    rows, offset = source.read(offset, max_rows=1)
    assert rows.tolist() == [[4]]
    outgoing.close()
    assert all_rows(source, offset)[0] == [[6]]
    assert source.ended
    with pytest.raises(SourceChanged, match="cannot be read again"):
        source.read(Offset(), max_rows=1)


def test_a_pipe_that_ends_within_a_line_is_refused(pipe: tuple[BinaryIO, BinaryIO]) -> None:
    incoming, outgoing = pipe
    outgoing.write(b"a,b\n1,2\n3,4")
    outgoing.close()
    source = follow(incoming)
    rows, offset = source.read(Offset(), max_rows=5)
    assert rows.tolist() == [[1, 2]]
    with pytest.raises(SourceChanged, match="ended within a line"):
        source.read(offset, max_rows=5)
    assert not source.ended


def test_a_named_pipe_is_followed_and_an_empty_one_refused(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    # Opened for both, so that neither end waits for the other.
    both_ends = os.open(path, os.O_RDWR)
    os.write(both_ends, b"a,b\n1,2\n")
    source = follow(path)
    assert all_rows(source)[0] == [[1, 2]]
    os.close(both_ends)
    reader, writer = os.pipe()
    os.close(writer)
    with os.fdopen(reader, "rb", buffering=0) as incoming, pytest.raises(ValueError, match="ended before a complete first"):
        follow(incoming)


def test_a_file_is_followed_by_its_own_class(file: Path) -> None:
    assert isinstance(follow(file), FollowedFile)
    assert follow(file, how=PLAIN).columns == ("a", "b")


SAID: dict[str, tuple[str, FileParams]] = {
    "comments": ("# a \"title\n#\na,b\n0,0\n# it's\n1,-1\n", FileParams(comment="#")),
    "a mark and skipped lines": ('\ufeffa title\n"\na,b\n0,0\n1,-1\n', FileParams(skip_rows=2)),
    "a stated separator": ("sep=;\r\na;b\r\n0;0\r\n1;-1\r\n", FileParams()),
    "marks in numbers": ("a;b\n0;0\n1;-1,0\n", FileParams(decimal=",", thousands=".")),
    "no header": ("#\n0,0\n#\n1,-1\n", FileParams(comment="#", header=False)),
}


@pytest.mark.parametrize("name", SAID)
def test_what_is_said_of_a_file_holds_as_it_grows(tmp_path: Path, name: str) -> None:
    text, how = SAID[name]
    path = tmp_path / "sensor.csv"
    path.write_text(text)
    found, offset = all_rows(follow(path, how=how), most=1)
    assert found == [[0, 0], [1, -1]]
    line = text.splitlines()[-1]
    with path.open("a") as more:
        more.write((line + "\n") * 3 + ("# end\n" if how.comment else ""))
    assert all_rows(follow(path, how=how), offset)[0] == [[1, -1]] * 3
    read, write = os.pipe()
    with os.fdopen(read, "rb", buffering=0) as end:
        os.write(write, text.encode())
        os.close(write)
        assert all_rows(follow(end, how=how))[0] == [[0, 0], [1, -1]]


def test_files_of_a_folder_may_have_other_comments(tmp_path: Path) -> None:
    how = FileParams(comment="#", na_values=("-9999",))
    (tmp_path / "a.csv").write_text("# of Monday\na,b\n1,-9999.0\n# end of Monday\n")
    (tmp_path / "b.csv").write_text("# of Tuesday\n#\na,b\n2,-2\n")
    found, offset = all_rows(follow(tmp_path, how=how))
    assert found[0][0] == 1 and found[0][1] != found[0][1] and found[1] == [2, -2]
    (tmp_path / "c.csv").write_text("a,c\n3,-3\n")
    with pytest.raises(SourceChanged, match="another first line"):
        all_rows(follow(tmp_path, how=how), offset)
    (tmp_path / "b.csv").write_text("# of Wednesday\n#\na,b\n2,-2\n")
    with pytest.raises(SourceChanged, match=r"shorter|other rows|another"):
        all_rows(follow(tmp_path, how=how), offset)


def test_lines_above_a_header_that_never_comes_are_not_read_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "sensor.csv"
    path.write_text("# x\n" * 300_000)
    with pytest.raises(ValueError, match="no complete first line yet"):
        follow(path, how=FileParams(comment="#"))


@pytest.mark.parametrize("filler", [b"\r" * 4000 + b"\n", b"# nothing" * 400 + b"\n"], ids=["blank", "comments"])
def test_any_number_of_blank_lines_and_comments_is_followed(filler: bytes, tmp_path: Path) -> None:
    how, path = FileParams(comment="#"), tmp_path / "a.csv"
    blank = filler * ((34 << 20) // len(filler))
    path.write_bytes(b"x,y\n1,2\n" + blank + b"3,4\n" + blank + b"5,")
    rows, at = all_rows(FollowedFile.open(path, how))
    assert rows == [[1.0, 2.0], [3.0, 4.0]]
    with path.open("ab") as file:
        file.write(b"6\n")
    # From any offset, and up to any size.
    assert all_rows(FollowedFile.open(path, how), at)[0] == [[5.0, 6.0]]
    until, found, at = (("", path.stat().st_size - 1),), list[list[float]](), Offset()
    for _ in range(4):
        read, at = FollowedFile.open(path, how).read(at, max_rows=9, until=until)
        found += read.tolist()
    assert found == [[1.0, 2.0], [3.0, 4.0]]


def test_blank_lines_do_not_stop_a_pipe() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        os.write(writing, b"x,y\n" + b"\n" * 1000 + b"1,2\n")
        os.close(writing)
        source = FollowedPipe(pipe, Path("pipe"), PLAIN)
        assert all_rows(source)[0] == [[1.0, 2.0]]
        assert source.ended
