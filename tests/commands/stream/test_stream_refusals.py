"""What `eigenveil stream` refuses: in one line, without a value, and leaving model and state as they were."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from commands.command_tables import COUNT, NAMES, PRIVATE, arrow_table, eigenveil, files_in, refusal, rows, written
from commands.stream.command_streams import ARROW, CSV, EXACT, as_csv, piped, refused
from eigenveil.estimators.streaming.pca import StreamingPCA


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """Where the model goes."""
    return tmp_path / "model.safetensors"


def test_lines_that_cannot_be_read_are_refused_without_showing_them(tmp_path: Path, target: Path) -> None:
    good = as_csv(rows())
    for words, data in {
        "after row 1009: the next line has 2 fields": good + b"123456.789,1\n",
        "after row 1009: not a number in column 'income'": good + b"1,123456.789x,3,4,5\n",
        "or say --no-header": b"123456.789,1,2,3,4\n" + good,
        "the stream is empty": b"",
        "the stream has no rows": b"a,b,c\n",
        "the stream has fewer rows than --components 2": b"a,b,c\n123456.789,2,3\n",
    }.items():
        line = refused(data, *CSV, *EXACT, "-o", target, "--no-state")
        assert words in line
        assert "123456" not in line
    assert files_in(tmp_path) == set()


def test_a_pipe_must_say_what_comes_through_it(target: Path) -> None:
    needed = "--components, --epsilon, --delta and --format are missing"
    everything = f"{needed}. For example: -k 5 --epsilon 1 --delta 1e-6 --format csv"
    assert everything in refused(as_csv(rows()), "-o", target)
    assert "--format is missing. A pipe" in refused(as_csv(rows()), *EXACT, "-o", target)
    assert "npy cannot be read from a pipe" in refused(b"", "--format", "npy", *EXACT, "-o", target)
    assert "cannot be read as arrow" in refused(b"a,b\n1,2\n", *ARROW, *EXACT, "-o", target)


def test_outputs_and_states_are_not_overwritten(tmp_path: Path, target: Path) -> None:
    source, state = written(tmp_path, "npy"), tmp_path / "stream.state"
    target.write_text("something else")
    assert "already exists. Overwrite it with --force" in refusal("stream", source, *EXACT, "-o", target)
    begin = ("stream", source, *EXACT, "-o", target, "--force", "--state")
    state.write_text("somebody's")
    assert "already exists. Continue from it with --resume" in refusal(*begin, state)
    assert "is also an input of this command" in refusal(*begin, target)
    assert "is also the source or the output" in refusal(*begin, source)
    assert "the folder" in refusal(*begin, tmp_path / "none" / "state")
    assert "is a folder" in refusal(*begin, tmp_path)
    state.rename(tmp_path / "stream.state.resumed")
    assert "was resumed by a program that is still running" in refusal(*begin, state)
    assert target.read_text() == "something else"


def test_what_is_no_state_is_refused(tmp_path: Path, target: Path) -> None:
    source, state = written(tmp_path, "npy"), tmp_path / "stream.state"
    assert eigenveil("stream", source, *EXACT, "-o", target, "--state", state).exit_code == 0
    broken = tmp_path / "broken.state"
    resume = ("stream", source, "--resume", "-o", tmp_path / "new.safetensors", "--state")
    for content, words in (
        (state.read_bytes()[:-9], "is not the state of an Eigenveil stream, or it is damaged"),
        (bytes([*state.read_bytes()[:-9], *range(9)]), "its contents are not those that were saved"),
        (target.read_bytes(), "is a safetensors file but not the state of an Eigenveil stream"),
        (b"", "is not the state of an Eigenveil stream"),
    ):
        broken.write_bytes(content)
        assert words in refusal(*resume, broken)
        assert broken.read_bytes() == content
    assert "does not exist" in refusal(*resume, tmp_path / "none.state")


@pytest.mark.parametrize("terms", [EXACT, ("-k", 2, *PRIVATE)], ids=["exact", "private"])
def test_rows_of_another_kind_leave_the_state_as_it_was(tmp_path: Path, target: Path, terms: tuple[object, ...]) -> None:
    state, values = tmp_path / "stream.state", rows()
    piped(as_csv(values), *CSV, *terms, "-o", target, "--state", state)
    resume = ("--resume", "-o", target, "--force", "--state", state)
    renamed = as_csv(values, (*NAMES[:4], "sugar"))
    for words, data, reading in (
        ("the rows have 4 columns and the stream in the state has 5", as_csv(values[:, :4], NAMES[:4]), CSV),
        ("has 4 features, but", as_csv(values[:, :4], None), (*CSV, "--no-header")),
        ("the columns differ from those of the stream in the state: 'sugar' where 'salt' was", renamed, CSV),
        ("the stream is empty", b"", CSV),
    ):
        line = refused(data, *reading, *resume)
        assert words in line
        assert line.endswith(f"; the state in {state} is unchanged")
        assert files_in(tmp_path) == {state.name, target.name}
    assert StreamingPCA.resume(state).n_samples_seen_ == COUNT


def test_semicolons_are_refused_without_showing_the_first_line(tmp_path: Path) -> None:
    source = tmp_path / "rows.csv"
    source.write_text("1;123456.789\n2;3\n")
    line = refusal("stream", source, "-k", 1, "--no-privacy", "-o", tmp_path / "m.safetensors")
    assert "no header line" in line and "123456" not in line


@pytest.mark.parametrize("kind", ["npy", "parquet"])
def test_a_hopeless_budget_is_said_before_it_is_spent_where_the_file_has_a_count(tmp_path: Path, kind: str) -> None:
    values = np.random.default_rng(0).standard_normal((200, 60))
    source, target = tmp_path / f"many.{kind}", tmp_path / "model.safetensors"
    if kind == "npy":
        np.save(source, values)
    else:
        pq.write_table(arrow_table(values, tuple(f"c{i}" for i in range(60))), source)
    command = ("stream", source, "-k", 2, "--epsilon", 0.2, "--delta", "1e-6", "--row-bound", 12, "-o", target)
    line = refusal(*command)
    assert "-n 200 -d 60 -k 2" in line and "Nothing was spent" in line
    assert not target.exists()
    assert eigenveil(*command, "--even-if-noise").exit_code == 0


def test_a_file_that_cannot_be_read_leaves_no_trace_in_a_ledger(tmp_path: Path, target: Path) -> None:
    source, ledger = tmp_path / "people.parquet", tmp_path / "ledger.db"
    source.write_bytes(b"PAR1 and no more")
    charged = ("--ledger", ledger, "--dataset", "people", "--lifetime-epsilon", 2)
    assert "cannot be read as parquet" in refusal("stream", source, "-k", 2, *PRIVATE, "-o", target, *charged)
    assert files_in(tmp_path) == {source.name}
