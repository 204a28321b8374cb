"""A study file may come from an attacker: whatever is in it, the answer is a study or a `ValueError`, and soon."""

import copy
import datetime
import math
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from each import each
from eigenveil.network.study import StudyFile
from eigenveil.params.tables import LARGEST
from eigenveil.show.agreement import words_of
from network.study_parties import document, gossip_document, tree_document

ODD: list[Any] = [
    True,
    0,
    -1,
    3,
    10**400,
    0.5,
    1e-320,
    1e300,
    math.inf,
    math.nan,
    "",
    "none",
    "\x1b[2J",
    "\u202ea",
    "é" * 3000,
    [],
    [1, 2],
    [[1, 2], [3, 4]],
    [["peer 0", "peer 1"]],
    [[[[[[]]]]]] * 3,
    {},
    {"seed": 1},
    datetime.date(2020, 1, 1),
    ["decay", 2],
    [math.nan] * 4,
    [1e308] * 4,
]
EXACT = {"epsilon": None, "delta": None, "no_privacy": True}
MORE = {"rounds": 3, "tolerance": 0.1, "oversample": 2, "scale": [1.0] * 4, "origin": 1.0, "mean_bound": 2.0, "person": "who"}
BASES = {
    "star": document(
        task=MORE | {"method": "krylov", "column_bounds": [-1.0, [1.0] * 4], "center": [0.0] * 4},
        privacy={"survivors": 3, "colluders": 1, "person_sites": 2},
        rehearsal={"seed": 3},
    ),
    "fedpower": document(task={"method": "fedpower", "local_steps": [2, 1], "align": "sign"}, privacy={"trust": "site"}),
    "exact": document(privacy=EXACT),
    "sizes": document(
        task={"neighbours": "zero-out"},
        sizes={f"site {at}": 9 for at in range(3)},
        privacy={"trust": "both", "epsilon": [1.0, 0.5]},
        network={"quorum": 0.9, "max_message_bytes": 1 << 20},
    ),
    "tree": tree_document(3),
    "gossip": gossip_document(3, privacy={"restarts": 1}, graph={"kind": "complete", "consensus": "chebyshev"}),
}


def as_lists(value: Any) -> Any:
    match value:
        case dict():
            return {key: as_lists(item) for key, item in value.items()}
        case list() | tuple():
            return [as_lists(item) for item in value]
        case _:
            return value


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value, tables and lists among them."""
    if path:
        yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield from leaves(item, (*path, key))


def with_odd(tables: Any, path: tuple[Any, ...], odd: Any) -> Any:
    """The tables with another value there; all else is shared with the original, which nobody changes."""
    if not path:
        return odd
    found = copy.copy(tables)
    found[path[0]] = with_odd(tables[path[0]], path[1:], odd)
    return found


@pytest.mark.parametrize("base", BASES)
def test_odd_values_anywhere_are_refused_or_mean_something(base: str) -> None:
    tables = as_lists(StudyFile.of(BASES[base]).document())
    taken = 0
    for path in leaves(tables):
        for odd in ODD:
            changed = with_odd(tables, path, odd)
            try:
                study = StudyFile.of(changed)
            except ValueError as error:
                assert str(error) and str(error).isprintable() and len(str(error)) < 1200
                continue
            taken += 1
            assert StudyFile.parse(study.text()) == study
            assert words_of(study) and study.fewest >= 1 and study.parameters()
    # Some of them mean something: an epsilon of 3, say.
    assert taken > 5


@pytest.mark.parametrize("base", BASES)
def test_a_key_that_is_taken_away_is_missed_or_has_a_default(base: str) -> None:
    tables = as_lists(StudyFile.of(BASES[base]).document())
    for path in leaves(tables):
        found = copy.deepcopy(tables)
        at = found
        for key in path[:-1]:
            at = at[key]
        del at[path[-1]]
        try:
            StudyFile.of(found)
        except ValueError as error:
            assert str(error).isprintable()


HOSTILE = {
    "deep lists": "x = " + "[" * 100_000,
    "deep tables": "x = " + "{a = " * 50_000,
    "a long chain of keys": ".".join(["a"] * 100_000) + " = 1",
    "a long chain in a header": "[" + " . ".join(["a"] * 100_000) + "]",
    "a long chain of quoted keys": ".".join(['"a"'] * 100_000) + " = 1",
    "a long chain in a table": "x = {" + ".".join(["'a'"] * 100_000) + " = 1}",
    "a huge number": "eigenveil_study = " + "9" * 100_000,
    "a huge binary number": "eigenveil_study = 0b" + "1" * 1_000_000,
    "one long word": "a" * 3_000_000,
    "many quotes": '"' * 1_000_000,
    "a key twice": "eigenveil_study = 1\neigenveil_study = 1",
    "a section twice": "[task]\n[task]",
    "control characters": 'x = "\x00"',
    "half a letter": 'x = "\\ud800"',
    "nothing": "",
    "not TOML": "<html>",
    "a long unknown key": f"{'k' * 1_000_000} = 1\neigenveil_study = 1",
    "many unknown keys": "eigenveil_study = 1\n" + "".join(f"k{at} = 1\n" for at in range(100_000)),
    "many columns alike": StudyFile.of(document()).text().replace('"mood"', ", ".join(['"mood"'] * 100_000)),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_text_is_refused_soon(kind: str) -> None:
    began = time.process_time()
    with pytest.raises(ValueError, match=r".") as caught:
        StudyFile.parse(HOSTILE[kind])
    assert time.process_time() - began < 10
    assert str(caught.value).isprintable() and len(str(caught.value)) < 1200


def test_ordinary_dots_are_no_chain() -> None:
    columns = [f"a.b.{at}" for at in range(50)]
    study = StudyFile.of(document(task={"columns": columns, "scale": [0.1] * 50}, study={"purpose": "e.g. this... or that."}))
    assert StudyFile.parse(study.text()) == study


def test_a_large_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_bytes(b"#" * (LARGEST + 1))
    path.chmod(0o600)
    with pytest.raises(ValueError, match=f"larger than {LARGEST} bytes"):
        StudyFile.read(path)
    with pytest.raises(ValueError, match="may have"):
        StudyFile.parse("#" * (LARGEST + 1))


def test_a_file_that_is_no_text_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_bytes(b"\xff\xfe")
    path.chmod(0o600)
    with pytest.raises(ValueError, match="must be text in UTF-8"):
        StudyFile.read(path)


@each("at", range(40))
def test_a_truncated_text_is_never_another_study(at: int) -> None:
    text = StudyFile.of(document()).text()
    cut = text[: len(text) * at // 40]
    try:
        study = StudyFile.parse(cut)
    except ValueError:
        return
    # Only sites at the end can be lacking without a trace, and then it is another study and says so.
    assert study.digest != StudyFile.parse(text).digest
    assert tomllib.loads(cut)["site"] != tomllib.loads(text)["site"]
