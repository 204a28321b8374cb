"""A private stream is in one place: copies hold no row, saving moves it, and what was paid for is not released again."""

import copy
import os
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from eigenveil import EigenveilError, StateFileError, StreamingPCA
from eigenveil.core.mechanism import Gaussian
from eigenveil.linalg import Array
from estimators.streaming.streams_of_rows import WAYS, fed, real, shown
from estimators.tables import rows

VALUES = rows(480)
each_way = pytest.mark.parametrize("way", WAYS)


def sentinel_rows() -> tuple[Array, list[bytes]]:
    """Rows with some that are easy to find again, and the bytes to look for."""
    values = VALUES.copy()
    marked = np.arange(6) * 1.1 + 987654.321
    values[[3, 70, 130, 470]] = marked
    return values, [np.float64(number).tobytes() for number in marked]


def test_a_copy_can_be_merged_as_what_was_released_of_the_original() -> None:
    left, right = (real().fit(half) for half in np.split(VALUES, 2))
    sent = pickle.loads(pickle.dumps(right.partial_fit(VALUES[:7])))  # noqa: S301
    shown_before = shown(right)
    merged = left.merge(sent)
    assert "No person is in two of the 2 streams" in str(merged.guarantee_)
    assert shown(right) == shown_before
    after = shown(merged)
    for again in (sent, right, merged):
        with pytest.raises(ValueError, match=r"merged before|with itself|not released yet"):
            merged.merge(again)
    assert shown(merged) == after


@pytest.mark.parametrize("epsilon", [None, 1.0])
def test_rows_are_not_merged_twice_not_even_through_a_third_stream(epsilon: float | None) -> None:
    budget: dict[str, Any] = {} if epsilon is None else {"delta": 1e-5, "row_bound": 3.0}
    one, two, three = (StreamingPCA(2, epsilon=epsilon, **budget).fit(part) for part in np.split(VALUES, 3))
    two.merge(three)
    one.merge(two)
    for stream, other in ((one, three), (three, two), (one, two)):
        with pytest.raises(ValueError, match="merged before, and rows would count twice"):
            stream.merge(other)


@each_way
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("synced", [True, False])
def test_copies_hold_no_row_and_cannot_go_on(way: str, sparse: bool, synced: bool, tmp_path: Path) -> None:
    values, marks = sentinel_rows()
    choices = WAYS[way] | ({"horizon": 600} if way == "tree" else {})
    pca = fed(real(**choices), sp.csr_array(values[:475]) if sparse else values[:475], [100])
    if synced:
        pca.sync().partial_fit(values[475:])
    held = pickle.dumps(pca._stream.pending)
    assert synced or any(mark in held for mark in marks)
    data = pickle.dumps(pca)
    assert not any(mark in data for mark in marks)
    for other in (pickle.loads(data), copy.deepcopy(pca)):  # noqa: S301
        assert hasattr(other, "components_") == hasattr(pca, "components_")
        if hasattr(pca, "components_"):
            assert shown(other) == shown(pca)
        for act in (other.sync, lambda other=other: other.partial_fit(values[:5]), lambda other=other: other.merge(pca)):
            with pytest.raises(EigenveilError, match="this is a copy of a private stream"):
                act()
        with pytest.raises(EigenveilError, match="this is a copy of a private stream"):
            other.save_state(tmp_path / "state")
        assert not (tmp_path / "state").exists()
    # The original goes on.
    assert pca.sync().model_.settings["rows"] == (480 if synced else 475)


@each_way
def test_a_saved_stream_moves_and_is_never_in_two_places(way: str, tmp_path: Path) -> None:
    values, marks = sentinel_rows()
    pca = real(**WAYS[way]).partial_fit(values[:100])
    path, second = tmp_path / "state", tmp_path / "second"
    pca.save_state(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert any(mark in path.read_bytes() for mark in marks)
    acts: list[Callable[[], Any]] = [pca.sync, lambda: pca.partial_fit(values[100:]), lambda: pca.save_state(second)]
    for act in acts:
        with pytest.raises(EigenveilError, match=r"was saved to .* and continues from there"):
            act()
    assert not second.exists()
    moved = StreamingPCA.resume(path)
    assert not path.exists() and (tmp_path / "state.resumed").stat().st_mode & 0o777 == 0o600
    for again, message in ((path, "was resumed before"), (tmp_path / "state.resumed", "was resumed before")):
        with pytest.raises(StateFileError, match=message):
            StreamingPCA.resume(again)
    moved.partial_fit(values[100:]).sync()
    assert moved.ledger_ is not None and 0.4 < moved.ledger_.epsilon() <= 1 + 1e-9
    moved.save_state(path)
    # What it was resumed from is out of date, and gone.
    assert not (tmp_path / "state.resumed").exists()
    assert StreamingPCA.resume(path).model_.settings["rows"] == 480


def test_an_interrupted_release_cannot_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was paid for may have been seen: the stream ends there, with what was released before."""
    pca = real().partial_fit(VALUES[:200]).sync().partial_fit(VALUES[200:])
    before = shown(pca)
    real_release = Gaussian.release

    def release(mechanism: Gaussian, private_value: Any, **more: Any) -> Any:
        real_release(mechanism, private_value, **more)
        raise KeyboardInterrupt

    monkeypatch.setattr(Gaussian, "release", release)
    with pytest.raises(KeyboardInterrupt):
        pca.sync()
    monkeypatch.undo()
    for act in (pca.sync, lambda: pca.partial_fit(VALUES), lambda: pca.save_state(tmp_path / "state")):
        with pytest.raises(EigenveilError, match="was interrupted"):
            act()
    assert shown(pca)[:-1] == before[:-1]


def test_links_lead_to_one_stream(tmp_path: Path) -> None:
    state, link, hard = tmp_path / "real.state", tmp_path / "link.state", tmp_path / "hard.state"
    real().partial_fit(VALUES).save_state(state)
    hard.hardlink_to(state)
    with pytest.raises(StateFileError, match="more than one name"):
        StreamingPCA.resume(state)
    hard.unlink()
    link.symlink_to(state)
    assert StreamingPCA.resume(link).n_samples_seen_ == len(VALUES)
    for path in (state, link):
        with pytest.raises(StateFileError):
            StreamingPCA.resume(path)


def test_no_state_is_written_over_another_private_stream(tmp_path: Path) -> None:
    state = tmp_path / "state"
    real().partial_fit(VALUES[:5]).save_state(state)
    other = real().partial_fit(VALUES)
    with pytest.raises(StateFileError, match="another private stream"):
        other.save_state(state)
    assert other.sync().n_samples_seen_ == len(VALUES)
    assert StreamingPCA.resume(state).n_samples_seen_ == 5


def test_a_forked_stream_does_not_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pca = real().partial_fit(VALUES)
    here = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: here + 1)
    for act in (pca.sync, lambda: pca.partial_fit(VALUES), lambda: pca.save_state(tmp_path / "s")):
        with pytest.raises(EigenveilError, match="forked copy"):
            act()


def test_calls_from_several_threads_run_one_at_a_time() -> None:
    pca = real(block_size=10)
    pca.partial_fit(VALUES[:1])

    def feed(part: Array) -> None:
        for row in part:
            pca.partial_fit(row[None])

    threads = [threading.Thread(target=feed, args=(part,)) for part in np.array_split(VALUES[1:], 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert pca.sync().n_samples_seen_ == len(VALUES)
    assert pca._stream.view().sketch.weight == len(VALUES)


def test_too_few_rows_spend_nothing_more() -> None:
    pca = real(n_components=5, block_size=50)
    with pytest.raises(ValueError, match="fewer rows than n_components"):
        pca.fit(VALUES[:3])
    assert pca.ledger_ is not None and pca.ledger_.charges == ()
