"""Lines of JSON objects as tables: the first line has the names, and what is no such table is refused without showing a value."""

import gzip
import json
import os
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from eigenveil.data.tables import open_source, read_table

SECRET = "8675309"
LINES = '{"a": 1.5, "b": 2, "on": true}\n{"b": -4, "a": 1e6, "on": false}\r\n\n{"a": 3, "on": null, "b": 0.5}\n'
VALUES = [[1.5, 2, 1], [1e6, -4, 0], [3, 0.5, np.nan]]


def values(path: Path, **how: Any) -> Any:
    return np.vstack([block.values for block in read_table(path, gaps=True, **how).rows.blocks(2)])


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson", "a.JSONL", "a.jsonl.gz", "a.txt"])
def test_lines_of_json_are_a_table(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(LINES.encode()) if name.endswith("gz") else b"\xef\xbb\xbf" + LINES.encode())
    how: dict[str, Any] = {"kind": "jsonl"} if name.endswith("txt") else {}
    assert read_table(path, gaps=True, **how).columns == ("a", "b", "on")
    np.testing.assert_equal(values(path, **how), VALUES)
    np.testing.assert_equal(np.vstack(list(open_source(path, **how).batches)), VALUES)
    np.testing.assert_equal(values(path, na_values=[-4, 1e6], **how), [[1.5, 2, 1], [np.nan, np.nan, 0], [3, 0.5, np.nan]])


def test_what_pandas_writes_comes_back(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": [1.0, None, 3.5], "who": ["x", "y", "007"], "n": [7, 8, 2**60]})
    frame.to_json(tmp_path / "a.jsonl", orient="records", lines=True)
    table = read_table(tmp_path / "a.jsonl", passthrough=["who", "n"], gaps=True)
    np.testing.assert_equal(np.vstack([block.values for block in table.rows.blocks(9)]), frame[["a"]].to_numpy())
    assert table.passthrough.to_pydict() == {"who": ["x", "y", "007"], "n": ["7", "8", str(2**60)]}


BAD = {
    "half a character": (
        '{"a": 1}\n{"a": 2, "b": "8675309\\ud800"}\n',
        "cannot be read after row 1: the next line is not a JSON",
    ),
    "half a character in a name": ('{"a\\udc00": 1}\n', "cannot be read after row 0: the next line is not a JSON"),
    "nothing": ("\n\n", "is empty"),
    "no keys": ("{}\n", "first line has no keys"),
    "an array": (f"[{SECRET}]\n", "after row 0: .* not a JSON object. It is JSON in one piece"),
    "an array over lines": (f"[\n{SECRET}]\n", "It is JSON in one piece: write one object per line, such as with jq"),
    "no JSON": ('{"a": 1}\n' + SECRET + "x\n", "after row 1: the next line is not a JSON object"),
    "half a line": ('{"a": 1}\n{"a": ' + SECRET, "after row 1: the next line is not a JSON object"),
    "deep lists": ('{"a": 1}\n{"a": ' + "[" * 200_000 + "\n", "after row 1: the next line is not a JSON object"),
    "a key twice": ('{"a": 1}\n{"a": 1, "a": ' + SECRET + "}\n", "after row 1: the next line has a key twice"),
    "a key twice at once": ('{"a": 1, "b": 2, "a": ' + SECRET + "}\n", "after row 0: the next line has a key twice"),
    "another key": ('{"a": 1}\n{"a": 1}\n{"a": 1, "x' + SECRET + '": 2}\n', "after row 2: .* a key that the first one lacks"),
    "text": ('{"a": 1, "b": "' + SECRET + '"}\n', r"these do not: b \(text\)"),
    "a list": ('{"a": 1, "b": [' + SECRET + "]}\n", r"these do not: b \(list or object\)"),
    "an infinite number": ('{"a": 1e999}\n', "column 'a' has infinite values"),
    "a long number": ('{"a": 1' + "0" * 400 + "}\n", "column 'a' has infinite values"),
    "a missing one": ('{"a": 1, "b": 1}\n{"a": 1}\n', "column 'b' has missing values"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_table_is_refused(tmp_path: Path, name: str) -> None:
    text, message = BAD[name]
    (tmp_path / "a.jsonl").write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        list(read_table(tmp_path / "a.jsonl").rows.blocks(9))
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_a_named_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.jsonl")
    with pytest.raises(ValueError, match="jsonl cannot be read from a pipe"):
        read_table(tmp_path / "a.jsonl")


def test_lines_that_leave_nearly_all_out_do_not_fill_the_memory(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(dict.fromkeys(map(str, range(50_000)), 1)) + "\n" + "{}\n" * 400)
    with pytest.raises(ValueError, match="fewer than one in 100 has a value"):
        read_table(tmp_path / "a.jsonl", gaps=True)


def test_json_in_one_piece_is_told_how_to_become_lines(tmp_path: Path) -> None:
    path = tmp_path / "people.json"
    path.write_text('[{"a": 1}]')
    with pytest.raises(ValueError, match=r"Write one object per line to a \.jsonl file, such as with jq -c"):
        read_table(path)
