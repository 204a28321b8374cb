"""Ends of slots by the clock: noted by a process of its own, on disk before they are used, and the same after a restart."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from eigenveil.data.follow import ByClock, SlotEnd, WatchedEnds, watcher
from eigenveil.errors import ClockJumped, ProtocolError


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "sensor.csv"
    path.write_text("a\n1\n2\n")
    return path


def rule(seconds: float = 0.5, horizon: int = 3) -> ByClock:
    return ByClock(time.time() + 0.5, seconds, horizon)


def awaited(ends: WatchedEnds, slot: int) -> SlotEnd:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if (end := ends.following(slot)) is not None:
            return end
        time.sleep(0.01)
    raise AssertionError(f"nobody noted the end of slot {slot}")


def pid_of(ends: WatchedEnds) -> int:
    assert ends._process is not None
    return ends._process.pid


def test_ends_are_noted_while_nobody_asks_and_found_again_after_a_restart(source: Path, tmp_path: Path) -> None:
    notes, clock = tmp_path / "ledger.ends", rule()
    with WatchedEnds(source, notes, clock, slot=0) as ends:
        first = awaited(ends, 0)
        last = awaited(ends, 2)
        until = time.monotonic() + 60
        while not ends.over and time.monotonic() < until:
            time.sleep(0.01)
        assert ends.over
        assert ends.following(3) is None
    assert (first.slot, last.slot, first.reach) == (0, 2, (("", 6),))
    assert notes.stat().st_mode & 0o777 == 0o600
    with source.open("a") as more:
        more.write("3\n")
    # Nothing of it is noted again, and what is not needed is dropped.
    with WatchedEnds(source, notes, clock, slot=2) as again:
        assert awaited(again, 2) == last
        assert again.first == 3
    assert [SlotEnd.from_line(line).slot for line in notes.read_bytes().splitlines()] == [1, 2]


def test_a_note_that_was_torn_by_a_loss_of_power_is_none(source: Path, tmp_path: Path) -> None:
    notes = tmp_path / "ledger.ends"
    whole = SlotEnd(4, 1000.0, (("", 4),)).to_line()
    for torn in (b'{"slot": 5, "wall"', b"\0" * 40, SlotEnd(5, 1010.0, (("", 4),)).to_line()[:-1]):
        notes.write_bytes(whole + torn)
        with WatchedEnds(source, notes, ByClock(0.0, 1e9, 10), slot=4) as ends:
            end = ends.following(0)
            assert end == SlotEnd(4, 1000.0, (("", 4),))
            assert ends.following(5) is None
        assert notes.read_bytes() == whole


def test_a_clock_that_is_behind_the_last_note_is_refused(source: Path, tmp_path: Path) -> None:
    notes = tmp_path / "ledger.ends"
    notes.write_bytes(SlotEnd(0, time.time() + 500, (("", 4),)).to_line())
    with pytest.raises(ClockJumped, match="went back"), WatchedEnds(source, notes, rule(60.0), slot=1):
        pass


def test_a_site_whose_notes_stop_ends_at_once_whatever_waits_to_be_read(source: Path, tmp_path: Path) -> None:
    notes, clock = tmp_path / "ledger.ends", ByClock(time.time() - 1e6, 1e6 + 0.5, 3)
    with WatchedEnds(source, notes, clock, slot=0) as ends:
        # Rows up to here may take any time.
        first = awaited(ends, 0)
        os.kill(pid_of(ends), signal.SIGKILL)
        until = time.monotonic() + 60
        with pytest.raises(ProtocolError, match="Start the site again"):
            while time.monotonic() < until:
                ends.following(0)
    with WatchedEnds(source, notes, clock, slot=0) as again:
        assert again.following(0) == first


SITE = """
import sys, time
from pathlib import Path
from eigenveil.data.follow import ByClock, WatchedEnds
with WatchedEnds(Path(sys.argv[1]), Path(sys.argv[2]), ByClock(time.time(), 1e6, 3), slot=0) as ends:
    print(ends._process.pid, flush=True)
    time.sleep(600)
"""


def test_it_ends_with_a_site_that_is_killed(source: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", SITE, str(source), str(tmp_path / "ledger.ends")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as site:
        assert site.stdout is not None
        noting = int(site.stdout.readline())
        site.kill()
    until = time.monotonic() + 60
    # It belongs to nobody now, so it may stay as a process that has ended: such a one has no command line.
    while (command_of := Path(f"/proc/{noting}/cmdline")).exists() and command_of.read_bytes():
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[float, float]]]:
    """What the two clocks say at each look. Between two looks it sleeps, and the site goes on."""
    told: list[tuple[float, float]] = []
    monkeypatch.setattr(watcher, "instant", lambda: told.pop(0))
    monkeypatch.setattr(select, "select", lambda *waiting: ([], [], []))
    yield told
    assert told == []


def watched(source: Path, notes: Path, slot: int = 0, last: tuple[str, int] | None = None) -> tuple[float, list[int]]:
    notes.touch()
    ahead = watcher.watch(str(source), str(notes), start=100.0, seconds=10.0, horizon=5, slot=slot, last=last)
    return ahead, [SlotEnd.from_line(line).slot for line in notes.read_bytes().splitlines()]


def test_slots_that_ended_while_a_device_slept_are_skipped_but_for_the_last(
    source: Path, tmp_path: Path, looks: list[tuple[float, float]]
) -> None:
    # Begun in the second slot, and asleep from the third to the fifth.
    looks += [(wall, wall) for wall in (112.0, 119.0, 120.0, 125.0, 141.0, 152.0)]
    assert watched(source, tmp_path / "notes") == (0.0, [1, 3, 4])


def test_a_clock_that_is_set_ends_it_before_it_notes_anything(
    source: Path, tmp_path: Path, looks: list[tuple[float, float]]
) -> None:
    looks += [(101.0, 1.0), (109.0, 9.0), (131.0, 10.0)]
    assert watched(source, tmp_path / "notes") == (21.0, [])
    looks += [(101.0, 1.0), (110.0, 10.0), (104.0, 11.0)]
    assert watched(source, tmp_path / "notes") == (-7.0, [0])


def test_a_source_that_is_gone_or_shorter_has_no_end(
    source: Path, tmp_path: Path, looks: list[tuple[float, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    grown: list[list[tuple[str, int]] | None] = [[("", 6)], None, [("", 5)], [("", 6)], [("", 9)]]

    def reach(path: str, first: str) -> list[tuple[str, int]]:
        size = grown.pop(0)
        if size is None:
            raise FileNotFoundError
        return size

    monkeypatch.setattr(watcher, "reach", reach)
    looks += [(100.0, 100.0), *((wall, wall) for wall in (110.0, 120.0, 130.0, 140.0, 150.0))]
    assert watched(source, tmp_path / "notes") == (0.0, [0, 3, 4])


def test_of_a_folder_files_that_were_left_are_not_looked_at(tmp_path: Path) -> None:
    for name in ("b.csv", "a.csv", "C.CSV", ".d.csv", "_e.csv", "f.txt"):
        (tmp_path / name).write_text(f"{name}\n")
    (tmp_path / "folder.csv").mkdir()
    assert watcher.reach(str(tmp_path)) == [("C.CSV", 6), ("a.csv", 6), ("b.csv", 6)]
    assert watcher.reach(str(tmp_path), "b.csv") == [("b.csv", 6)]


@pytest.mark.parametrize(
    "line",
    [b"", b"[]", b'{"slot": 1}', b'{"slot": -2, "wall": 1.0, "files": []}', b'{"slot": 1, "wall": 1.0, "files": [["", true]]}'],
)
def test_what_is_no_note_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"not the end of a slot|Expecting"):
        SlotEnd.from_line(line)
