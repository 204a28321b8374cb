"""A file that was written whole is on disk under its name before anybody is told: what it was made from may be wiped then."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from eigenveil import PrivatePCA, StreamingPCA
from eigenveil.data.archive import whole_file
from eigenveil.data.follow import ByClock, WatchedEnds
from eigenveil.ledger.durable import DurableLedger
from eigenveil.ledger.store import note_head
from eigenveil.network.authority import write_new


def plain(path: Path) -> None:
    with whole_file(path) as temporary:
        temporary.write_text("numbers")


def model(path: Path) -> None:
    rows = np.random.default_rng(1).standard_normal((50, 3))
    PrivatePCA(1, epsilon=1.0, delta=1e-6, row_bound=3.0).fit(rows).model_.save(path)


def head(path: Path) -> None:
    with DurableLedger.open(path.with_name("ledger.db")) as ledger:
        note_head(ledger, path)


def new_ledger(path: Path) -> None:
    DurableLedger.open(path).close()


def notes(path: Path) -> None:
    (source := path.with_name("rows.csv")).write_text("a\n1\n")
    with WatchedEnds(source, path, ByClock(0.0, 1e10, 2), slot=0):
        pass


@pytest.fixture
def happened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was put on the disk and renamed, in order."""
    happened: list[str] = []
    sync, replace = os.fsync, Path.replace

    def synced(handle: int) -> None:
        happened.append(str(Path(f"/proc/self/fd/{handle}").readlink()))
        sync(handle)

    def replaced(self: Path, other: Path) -> Path:
        happened.append(f"{self} becomes {other}")
        return replace(self, other)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    return happened


@pytest.mark.parametrize("write", [plain, model, head, new_ledger, notes])
def test_the_file_then_its_name_then_its_folder(tmp_path: Path, happened: list[str], write: Callable[[Path], None]) -> None:
    target = tmp_path / "target"
    write(target)
    (at,) = [place for place, words in enumerate(happened) if words.endswith(f"becomes {target}")]
    assert happened[at - 1] == happened[at].split(" becomes ")[0]
    assert happened[at + 1] == str(tmp_path)


def test_keys_are_on_disk_under_their_names(tmp_path: Path, happened: list[str]) -> None:
    write_new(private={tmp_path / "key.pem": b"key"})
    assert happened == [str(tmp_path / "key.pem"), str(tmp_path)]


def test_a_stream_that_is_claimed_stays_claimed_through_a_power_cut(tmp_path: Path, happened: list[str]) -> None:
    stream = StreamingPCA(1, epsilon=1.0, delta=1e-6, row_bound=3.0)
    stream.partial_fit(np.random.default_rng(1).standard_normal((50, 3))).save_state(tmp_path / "s.state")
    happened.clear()
    StreamingPCA.resume(tmp_path / "s.state")
    assert [words.rpartition(" becomes ")[0] for words in happened] == [str(tmp_path / "s.state"), ""]
    assert happened[1] == str(tmp_path)


def test_a_folder_that_cannot_be_synchronised_is_an_error_unless_it_never_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = os.fsync

    def refuse(number: int) -> None:
        def refused(handle: int) -> None:
            if Path(f"/proc/self/fd/{handle}").readlink() == tmp_path:
                raise OSError(number, os.strerror(number))
            sync(handle)

        monkeypatch.setattr(os, "fsync", refused)

    refuse(5)
    with pytest.raises(OSError, match="Input/output"):
        plain(tmp_path / "a")
    refuse(22)
    plain(tmp_path / "b")
    assert (tmp_path / "b").read_text() == "numbers"
