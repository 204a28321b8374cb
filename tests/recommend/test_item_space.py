"""`ItemSpace`: the filter against its formula, what it refuses to be, and its file, whole or refused."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from eigenveil.core.ledger import Charge
from eigenveil.errors import ModelFileError
from eigenveil.linalg import Array, orthonormal
from eigenveil.privacy.guarantee import Guarantee
from eigenveil.recommend import ItemSpace

DIM = 7
COLUMNS = np.array([0, 2, 3, 6])
DEGREES = np.array([1.0, 2.0, 3.0, 4.0])
GUARANTEE = Guarantee(epsilon=1.0, delta=1e-6, unit="each user", charges=(Charge("covariance", 0.2),))


def space(*, columns: Any = None, degrees: Any = None, seed: int = 0, **more: Any) -> ItemSpace:
    """Two directions of seven items, or of four of them."""
    count = DIM if columns is None else len(columns)
    basis = orthonormal(np.random.default_rng(seed).standard_normal((count, 2)))
    return ItemSpace(
        components=basis.T, values=np.array([3.0, 1.0]), dim=DIM, guarantee=GUARANTEE, columns=columns, degrees=degrees, **more
    )


def slow_scores(held: ItemSpace, row: Array) -> Array:
    """The filter, one item after the other."""
    columns = range(DIM) if held.columns is None else held.columns.tolist()
    degrees = np.ones(len(columns)) if held.degrees is None else held.degrees
    found = np.zeros(len(columns))
    for to in range(len(columns)):
        for at, column in enumerate(columns):
            link = sum(direction[at] * direction[to] for direction in held.components)
            found[to] += row[column] / np.sqrt(degrees[at]) * link * np.sqrt(degrees[to])
    return found


@given(
    seed=st.integers(0, 2**32),
    some=st.booleans(),
    weighed=st.booleans(),
    row=st.lists(st.sampled_from([0.0, 1.0]), min_size=DIM, max_size=DIM),
)
def test_scores_are_the_filtered_history(seed: int, some: bool, weighed: bool, row: list[float]) -> None:
    columns = COLUMNS if some else None
    count = len(COLUMNS) if some else DIM
    degrees = np.random.default_rng(seed).uniform(0.5, 9, count) if weighed else None
    held, history = space(columns=columns, degrees=degrees, seed=seed), np.array(row)
    kept = history if columns is None else history[columns]
    if kept.any():
        np.testing.assert_allclose(held.scores(history)[0], slow_scores(held, history), atol=1e-12)
    found = held.top(history, n=DIM)
    used = set(range(DIM) if columns is None else COLUMNS.tolist())
    assert set(found.tolist()) == used - set(np.flatnonzero(history).tolist())
    # Best first.
    scores = dict(zip(sorted(used), held.scores(history)[0], strict=True))
    assert all(scores[a] >= scores[b] for a, b in pairwise(found))


def test_many_rows_are_as_each_alone() -> None:
    rows = (np.random.default_rng(0).random((600, DIM)) < 0.3).astype(float)
    held = space(columns=COLUMNS, degrees=DEGREES)
    together = held.top(sp.csr_array(rows), n=3)
    for at in (0, 255, 256, 257, 511, 512, 599):
        alone = held.top(rows[at], n=3)
        assert together[at][together[at] >= 0].tolist() == alone.tolist()


def test_who_has_none_of_the_items_gets_popular_ones() -> None:
    held = space(columns=COLUMNS, degrees=DEGREES)
    other = np.zeros(DIM)
    other[1] = 1.0
    for row in (np.zeros(DIM), other):
        assert held.top(row, n=4).tolist() == [6, 3, 2, 0]
    # Without degrees, the leading direction, whatever its sign.
    for sign in (1.0, -1.0):
        basis = sign * np.array([[0.1, 0.7, 0.5, 0.5]])
        lone = ItemSpace(components=basis / np.linalg.norm(basis), values=np.array([1.0]), dim=4, guarantee=GUARANTEE)
        assert lone.top(np.zeros(4), n=2).tolist() == [1, 2]


BASIS = np.eye(4)[:2]
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "one dimension": ({"components": np.ones(4)}, "two dimensions"),
    "other width": ({"dim": 5}, "must have 5 columns"),
    "not orthonormal": ({"components": 2 * BASIS}, "orthonormal"),
    "not a number": ({"components": np.full((2, 4), np.nan)}, "orthonormal|finite"),
    "rising values": ({"values": np.array([1.0, 2.0])}, "values|order|decreas|descend"),
    "other values": ({"values": np.ones(3)}, "values|shape"),
    "columns too far": ({"dim": 9, "columns": np.array([0, 1, 2, 9])}, "columns must be"),
    "columns below zero": ({"dim": 9, "columns": np.array([-1, 1, 2, 3])}, "columns must be"),
    "columns twice": ({"dim": 9, "columns": np.array([0, 1, 1, 3])}, "columns must be"),
    "columns falling": ({"dim": 9, "columns": np.array([3, 2, 1, 0])}, "columns must be"),
    "too few columns": ({"dim": 9, "columns": np.array([0, 1])}, "columns must have shape"),
    "zero degrees": ({"degrees": np.array([1.0, 1.0, 0.0, 1.0])}, "degrees must be positive"),
    "infinite degrees": ({"degrees": np.array([1.0, 1.0, np.inf, 1.0])}, "degrees must be positive"),
    "too many degrees": ({"degrees": np.ones(5)}, "degrees must have shape"),
    "too few names": ({"items": ("a", "b")}, "4 names"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_space_that_is_none_is_refused(name: str) -> None:
    changes, message = WRONG[name]
    sound: dict[str, Any] = {"components": BASIS, "values": np.array([2.0, 1.0]), "dim": 4, "guarantee": GUARANTEE}
    ItemSpace(**sound)
    with pytest.raises(ValueError, match=message):
        ItemSpace(**(sound | changes))


# Files.


def spaces() -> list[ItemSpace]:
    return [
        space(),
        space(columns=COLUMNS, degrees=DEGREES),
        space(items=tuple("äbcdefg"), settings={"method": "covariance", "rounds": 3}),
    ]


@pytest.mark.parametrize("at", range(3))
def test_a_file_says_all_of_it(at: int, tmp_path: Path) -> None:
    held, path = spaces()[at], tmp_path / "space.safetensors"
    held.save(path)
    again = ItemSpace.load(path)
    for name in ("components", "values", "columns", "degrees"):
        one, other = getattr(held, name), getattr(again, name)
        assert (one is None) == (other is None)
        assert one is None or (np.array_equal(one, other) and one.dtype == other.dtype)
    assert (again.dim, again.items, again.guarantee) == (held.dim, held.items, held.guarantee)
    assert dict(again.settings) == dict(held.settings)
    rows = np.eye(DIM)
    assert np.array_equal(again.top(rows, n=3), held.top(rows, n=3))


def test_a_file_says_in_words_what_it_guarantees_and_for_whom_recommendations_are(tmp_path: Path) -> None:
    path = tmp_path / "space.safetensors"
    space().save(path)
    raw = path.read_bytes()
    assert b"joint differential privacy" in raw
    assert b"(1, 1e-06)-differential privacy for each user" in raw


def header_of(path: Path) -> dict[str, Any]:
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    found: dict[str, Any] = json.loads(json.loads(raw[8 : 8 + length])["__metadata__"]["eigenveil"])
    return found


def rewritten(path: Path, *, arrays: dict[str, Any] | None = None, **header: Any) -> Path:
    """The file with other arrays or another header."""
    now = header_of(path) | header
    save_file(load_file(path) if arrays is None else arrays, path, metadata={"eigenveil": json.dumps(now)})
    return path


DAMAGE: dict[str, Any] = {
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:-9]),
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("no space"),
    "gone": lambda path: path.unlink(),
    "another version": lambda path: rewritten(path, version=99),
    "another kind": lambda path: rewritten(path, format="eigenveil-model"),
    "another dim": lambda path: rewritten(path, dim=DIM + 1),
    "dim in words": lambda path: rewritten(path, dim="seven"),
    "dim is true": lambda path: rewritten(path, dim=True),
    "items of numbers": lambda path: rewritten(path, items=[1, 2, 3, 4, 5, 6, 7]),
    "too few items": lambda path: rewritten(path, items=["a"]),
    "settings in a list": lambda path: rewritten(path, settings=[1]),
    "no guarantee": lambda path: rewritten(path, guarantee=None),
    "half a guarantee": lambda path: rewritten(path, guarantee={"epsilon": 1.0}),
    "a guarantee of nothing": lambda path: rewritten(path, guarantee=header_of(path)["guarantee"] | {"epsilon": -1.0}),
    "no arrays": lambda path: rewritten(path, arrays={"values": np.ones(2)}),
    "one array more": lambda path: rewritten(path, arrays=load_file(path) | {"histories": np.ones(3)}),
    "small numbers": lambda path: rewritten(
        path, arrays={name: array.astype(np.float32) for name, array in load_file(path).items()}
    ),
    "stretched": lambda path: rewritten(path, arrays=load_file(path) | {"components": 2 * np.eye(DIM)[:2]}),
    "not numbers": lambda path: rewritten(path, arrays=load_file(path) | {"values": np.full(2, np.nan)}),
    "columns as floats": lambda path: rewritten(path, arrays=load_file(path) | {"columns": np.arange(7.0)}),
    "columns out of range": lambda path: rewritten(path, arrays=load_file(path) | {"columns": np.arange(1, 8, dtype=np.int64)}),
    "degrees below zero": lambda path: rewritten(path, arrays=load_file(path) | {"degrees": -np.ones(DIM)}),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_file_is_refused_by_name(name: str, tmp_path: Path) -> None:
    path = tmp_path / "space.safetensors"
    space().save(path)
    ItemSpace.load(path)
    DAMAGE[name](path)
    with pytest.raises(ModelFileError, match=r"space\.safetensors"):
        ItemSpace.load(path)


def test_every_byte_of_the_header_may_be_lost_without_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "space.safetensors"
    space().save(path)
    raw = path.read_bytes()
    for at in range(0, len(raw), 7):
        broken = bytearray(raw)
        broken[at] ^= 0x20
        path.write_bytes(bytes(broken))
        try:
            ItemSpace.load(path)
        except ModelFileError:
            continue
