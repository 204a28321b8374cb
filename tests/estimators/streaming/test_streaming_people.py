"""`person`, `column_bounds` and `clipped_fraction_` of a stream: whose rows count, and what a state keeps."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from eigenveil import PrivatePCA, StreamingPCA
from eigenveil.estimators.streaming.buffer import PeopleSeen
from estimators.streaming.streams_of_rows import WAYS, private
from estimators.tables import rows

VALUES = rows(480)
NAMES = [f"c{i}" for i in range(VALUES.shape[1])]
# Three rows of each person, one after the other.
TABLE = pd.DataFrame(VALUES, columns=NAMES).assign(who=[f"p{i // 3}" for i in range(480)])


@pytest.mark.parametrize("way", WAYS)
def test_the_first_row_of_each_person_counts(way: str) -> None:
    named = private(block_size=30, person="who", **WAYS[way]).fit(TABLE)
    plain = private(block_size=30, **WAYS[way]).fit(TABLE[NAMES][::3])
    assert named.n_samples_seen_ == 160
    assert np.array_equal(named.components_, plain.components_)
    assert named.guarantee_.protects is not None
    assert (named.guarantee_.protects.kind, named.guarantee_.protects.column) == ("person", "who")
    assert named.transform(TABLE[:5]).shape == (5, named.n_components_)


def test_a_person_counts_once_in_a_block_and_in_so_many_blocks() -> None:
    one = pd.DataFrame(VALUES, columns=NAMES).assign(who="ann")
    pca = private(block_size=30, person="who", person_blocks=2).partial_fit(one)
    # Blocks are counted in rows that count, so with one person the first block never ends.
    assert pca.n_samples_seen_ == 1
    others = pd.DataFrame(VALUES, columns=NAMES).assign(who=[f"p{i}" for i in range(480)])
    for start in range(0, 480, 60):
        # The end of a block may come in the middle of these. A synchronisation begins no new one.
        pca.partial_fit(others[start : start + 60]).sync().partial_fit(one[:5])
    assert pca.n_samples_seen_ == 480 + 2


@pytest.mark.parametrize("kind", [lambda t: t, pl.from_pandas, pa.Table.from_pandas], ids=["pandas", "polars", "arrow"])
def test_every_kind_of_table_names_the_same_people(kind: Any, tmp_path: Path) -> None:
    number = TABLE.assign(who=np.arange(480) // 3)
    pca = private(block_size=30, person="who").partial_fit(kind(number[:100]))
    # Floats, as after a join in pandas, are the same people.
    pca.partial_fit(number[:100].assign(who=number["who"][:100].astype(float)))
    assert pca.n_samples_seen_ == 34
    state = tmp_path / "state"
    pca.save_state(state)
    again = StreamingPCA.resume(state).partial_fit(kind(number))
    assert again.n_samples_seen_ == 160
    with pytest.raises(ValueError, match="identifiers of another type than in earlier rows"):
        again.partial_fit(TABLE)
    assert again.n_samples_seen_ == 160


def test_a_column_that_is_not_there_or_names_nobody_is_refused() -> None:
    with pytest.raises(ValueError, match="person='whom' names no column of X"):
        private(person="whom").fit(TABLE)
    with pytest.raises(ValueError, match="names no column"):
        private(person="who").fit(VALUES)
    with pytest.raises(ValueError, match="missing, blank or placeholder"):
        private(person="who").fit(TABLE.assign(who=["", *TABLE["who"][1:]]))
    with pytest.raises(ValueError, match="person is for a private stream"):
        StreamingPCA(2, epsilon=None, person="who").fit(TABLE)


def test_people_are_not_shown() -> None:
    pca = private(person="who").fit(TABLE)
    assert repr(pca._stream.people) == "PeopleSeen(max_blocks=1)"
    assert isinstance(pca._stream.people, PeopleSeen)
    assert b"p7" not in pca._stream.people.arrays()["people"].tobytes()


@pytest.mark.parametrize("way", WAYS)
def test_column_bounds_are_those_of_a_fit(way: str) -> None:
    low, high = np.quantile(VALUES, [0.2, 0.8], axis=0)
    choices: dict[str, Any] = {"epsilon": 1e6, "delta": 1e-6, "column_bounds": (low, high), "random_state": 0}
    stream = StreamingPCA(2, **choices, **WAYS[way]).fit(VALUES)
    whole = PrivatePCA(2, neighbours="zero-out", **choices).fit(VALUES)
    # Hardly any noise: entries are clipped the same way.
    assert np.abs(np.abs(stream.components_ @ whole.components_.T) - np.eye(2)).max() < 1e-3
    exact = StreamingPCA(2, epsilon=None, column_bounds=(low, high)).fit(VALUES)
    clipped = StreamingPCA(2, epsilon=None).fit(np.clip(VALUES, low, high))
    assert np.allclose(exact.explained_variance_, clipped.explained_variance_)


def test_the_share_that_the_found_bound_clips_is_told_and_kept(tmp_path: Path) -> None:
    values = rows(4000)
    # A long first block and a large budget, so that noise hardly matters.
    pca = StreamingPCA(2, epsilon=20.0, delta=1e-6, block_size=3000, random_state=0).partial_fit(values).sync()
    assert pca.clipped_fraction_ is not None and 0 <= pca.clipped_fraction_ <= 1
    assert pca.model_.settings["clipped_fraction"] == pca.clipped_fraction_
    first = pca._stream.terms.plan.first_block
    norms = np.linalg.norm(values[:first] - values[:first].mean(axis=0), axis=1)
    assert pca.clipped_fraction_ == pytest.approx(np.mean(norms > pca._stream.place.bound), abs=0.1)
    found, seen = pca.clipped_fraction_, pca.model_.settings["norms"]
    assert seen
    pca.save_state(tmp_path / "state")
    resumed = StreamingPCA.resume(tmp_path / "state")
    assert resumed.clipped_fraction_ == found and resumed.model_.settings["norms"] == seen
    assert private().fit(VALUES).clipped_fraction_ is None
