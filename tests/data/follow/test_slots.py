"""Slots closed by count and by clock: every row in one slot, resumed from any closed slot, jumps of the clock refused."""

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from eigenveil.data.follow import (
    ByClock,
    ByCount,
    Closed,
    FollowedRows,
    Follower,
    Instant,
    Left,
    Offset,
    SlotEnd,
    SlotStart,
    follow,
    watcher,
)
from eigenveil.errors import ClockJumped, SourceChanged

NOW = Instant(1000.0, 5.0)


def later(seconds: float, now: Instant = NOW) -> Instant:
    return Instant(now.wall + seconds, now.steady + seconds)


def table(path: Path, count: int) -> Path:
    path.write_text("a\n" + "".join(f"{i}\n" for i in range(count)))
    return path


def polled(follower: Follower, now: Instant = NOW, most: int = 3) -> list[FollowedRows | Closed | Left]:
    found = []
    while (event := follower.poll(now, max_rows=most)) is not None:
        found.append(event)
    return found


def slots(events: list[FollowedRows | Closed | Left], slot: int = 0) -> dict[int, list[float]]:
    """The rows of each slot, of which `slot` is the first."""
    found: dict[int, list[float]] = {}
    for event in events:
        if isinstance(event, FollowedRows):
            found.setdefault(slot, []).extend(event.rows[:, 0].tolist())
            continue
        rows = found.pop(slot, [])
        if isinstance(event, Closed):
            found[event.slot] = rows
        slot = event.then.slot
    return found


@dataclass
class Ends:
    """Ends of slots, noted by hand."""

    path: Path
    noted: list[SlotEnd] = field(default_factory=list)
    first: int = 0
    over: bool = False

    def note(self, slot: int, wall: float) -> None:
        self.noted.append(SlotEnd(slot, wall, tuple(watcher.reach(str(self.path)))))

    def following(self, slot: int) -> SlotEnd | None:
        return next((end for end in self.noted if end.slot >= slot), None)


def test_slots_by_count_and_a_restart_after_each(tmp_path: Path) -> None:
    source = follow(table(tmp_path / "x.csv", 22))
    events = polled(Follower(source, ByCount(rows=5, horizon=10)))
    whole = {slot: [float(5 * slot + i) for i in range(5)] for slot in range(4)} | {4: [20.0, 21.0]}
    assert slots(events) == whole
    closed = [event for event in events if isinstance(event, Closed)]
    assert [(one.slot, one.count) for one in closed] == [(slot, 5) for slot in range(4)]
    for one in closed:
        start = SlotStart.from_text(one.then.to_text())
        again = slots(polled(Follower(source, ByCount(rows=5, horizon=10), start=start), most=2), start.slot)
        assert again == {slot: rows for slot, rows in whole.items() if slot > one.slot}


def test_the_horizon_ends_it(tmp_path: Path) -> None:
    follower = Follower(follow(table(tmp_path / "x.csv", 22)), ByCount(rows=5, horizon=2))
    assert set(slots(polled(follower))) == {0, 1}
    assert follower.over
    ends = Ends(tmp_path / "x.csv")
    timed = Follower(follow(ends.path), ByClock(start=1000.0, seconds=10.0, horizon=2), ends=ends)
    polled(timed)
    ends.note(0, 1010.0)
    ends.note(1, 1020.0)
    assert [one.slot for one in polled(timed, later(100.0)) if isinstance(one, Closed)] == [0, 1]
    assert timed.over
    assert polled(timed, later(200.0)) == []


def grown(path: Path, text: str) -> None:
    with path.open("a") as more:
        more.write(text)


def test_slots_by_clock(tmp_path: Path) -> None:
    path = table(tmp_path / "x.csv", 2)
    rule, ends = ByClock(start=1010.0, seconds=10.0, horizon=100), Ends(path)
    follower = Follower(follow(path), rule, ends=ends)
    # Not begun yet: rows wait.
    assert polled(follower) == []
    assert slots(polled(follower, later(10.0))) == {0: [0.0, 1.0]}
    grown(path, "2\n")
    # A look first, and what it saw is read at the next.
    assert polled(follower, later(19.0)) == []
    assert slots(polled(follower, later(19.5))) == {0: [2.0]}
    # What comes before the end is noted is in the slot, and half of a row is not.
    grown(path, "3\n4")
    assert polled(follower, later(20.0)) == []
    ends.note(0, 1020.5)
    grown(path, "0\n50\n")
    rows, closed, *rest = polled(follower, later(21.0))
    assert isinstance(rows, FollowedRows)
    assert isinstance(closed, Closed)
    assert rows.rows.tolist() == [[3.0]]
    assert slots(rest, 1) == {1: [40.0, 50.0]}
    assert (closed.slot, closed.count, closed.then.slot, closed.then.wall) == (0, 4, 1, 1020.5)
    # Away for three slots and started again: nobody noted when slots 1 to 4 ended.
    grown(path, "60\n")
    again = Follower(follow(path), rule, start=closed.then, ends=ends)
    ends.first = 5
    assert again.next == 5
    assert polled(again, replace(later(62.0), steady=1.0)) == []
    ends.note(5, 1070.0)
    found = polled(again, replace(later(72.0), steady=11.0))
    assert slots(found) == {5: [40.0, 50.0, 60.0]}
    assert again.next == 6


def test_ends_that_nobody_has_read_up_to_are_closed_in_order_each_with_its_own_rows(tmp_path: Path) -> None:
    path = table(tmp_path / "x.csv", 20)
    ends = Ends(path)
    for slot in range(3):
        ends.note(slot, 1010.0 + 10 * slot)
        grown(path, "".join(f"{100 * slot + row}\n" for row in range(7)))
    follower = Follower(follow(path), ByClock(start=1000.0, seconds=10.0, horizon=100), ends=ends)
    found = polled(follower, later(31.0))
    closed = [one for one in found if isinstance(one, Closed)]
    assert [(one.slot, one.count) for one in closed] == [(0, 20), (1, 7), (2, 7)]
    assert slots(found)[2] == [100.0 + row for row in range(7)]
    # Stopped after any of them, the others are as they were.
    start = SlotStart.from_text(closed[0].then.to_text())
    rest = polled(Follower(follow(path), follower.rule, start=start, ends=ends), later(32.0), most=5)
    assert [one for one in rest if isinstance(one, Closed)] == closed[1:]


def test_where_a_person_has_rows_in_several_slots_a_slot_needs_both_of_its_ends(tmp_path: Path) -> None:
    path = table(tmp_path / "x.csv", 5)
    rule, ends = ByClock(start=1010.0, seconds=10.0, horizon=100), Ends(path)

    def begun(start: SlotStart | None = None) -> Follower:
        return Follower(follow(path), rule, start=start, ends=ends, several=True)

    ends.note(-1, 1010.0)
    for slot in (0, 1, 4, 5):
        grown(path, f"{10 * slot}\n")
        ends.note(slot, 1020.0 + 10 * slot)
    found = polled(begun(), later(80.0))
    # Nobody noted when slot 3 ended, so the rows of slots 2 to 4 may be three of one person.
    assert slots(found) == {0: [0.0], 1: [10.0], 5: [50.0]}
    assert [one.then.slot for one in found if isinstance(one, Left)] == [0, 5]
    # The same from any point at which something was stored.
    for one in found:
        if isinstance(one, Closed):
            rest = slots(polled(begun(SlotStart.from_text(one.then.to_text())), later(90.0)), one.then.slot)
            assert rest == {slot: [10.0 * slot] for slot in (1, 5) if slot > one.slot}
    # Not begun before the first slot: what was there before it cannot be told apart.
    ends.noted.pop(0)
    assert slots(polled(begun(), later(80.0))) == {1: [10.0], 5: [50.0]}


def test_a_file_that_was_left_when_a_slot_ended_stays_left(tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    one = table(folder / "a.csv", 3)
    rule, ends = ByClock(start=1000.0, seconds=10.0, horizon=100), Ends(folder)
    follower = Follower(follow(folder), rule, ends=ends)
    ends.note(0, 1010.0)
    grown(one, "3\n")
    table(folder / "b.csv", 2)
    # Nobody goes on to the next file before the end of a slot says how far this one came.
    assert slots(polled(follower, later(11.0))) == {0: [0.0, 1.0, 2.0], 1: [3.0]}
    grown(one, "4\n")
    ends.note(1, 1020.0)
    grown(one, "5\n")
    table(folder / "c.csv", 1)
    assert slots(polled(follower, later(21.0)), 1) == {1: [4.0, 0.0, 1.0]}
    ends.note(2, 1030.0)
    assert slots(polled(follower, later(31.0)), 2) == {2: [0.0]}
    # The file ends within a line, and a later one was there.
    grown(folder / "c.csv", "7")
    table(folder / "d.csv", 1)
    ends.note(3, 1040.0)
    grown(folder / "c.csv", "0\n")
    with pytest.raises(SourceChanged, match="ends within a line"):
        polled(follower, later(41.0))


@pytest.mark.parametrize("head", ["", "he"])
def test_a_late_reader_finds_no_first_line_that_was_not_there(tmp_path: Path, head: str) -> None:
    seen = []
    for late in (False, True):
        (folder := tmp_path / f"{late}").mkdir()
        (folder / "1.csv").write_text("heat\n1\n2\n")
        ends, events = Ends(folder), []
        follower = Follower(follow(folder), ByClock(0.0, 10.0, 5), ends=ends)
        (folder / "2.csv").write_text(head)
        for slot in range(3):
            ends.note(slot, 10.0 * slot + 10.0)
            events += [] if late else polled(follower, Instant(10.0 * slot + 10.1, 10.0 * slot + 10.1))
        (folder / "2.csv").write_text("heat\n3\n")
        ends.note(3, 40.0)
        seen.append(slots(events + polled(follower, Instant(40.1, 40.1))))
    assert seen[0] == seen[1] == {0: [1.0, 2.0], 1: [], 2: [], 3: [3.0]}


def test_a_pipe_is_refused_where_slots_end_by_the_clock() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"a\n1\n")
    os.close(writing)
    with os.fdopen(reading, "rb", buffering=0) as file, pytest.raises(ValueError, match="is a pipe"):
        Follower(follow(file), ByClock(start=0.0, seconds=10.0, horizon=3), ends=Ends(Path()))


def test_a_clock_that_jumps_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    path = table(tmp_path / "x.csv", 2)
    rule, ends = ByClock(start=990.0, seconds=10.0, horizon=100), Ends(path)
    follower = Follower(follow(path), rule, ends=ends)
    polled(follower, Instant(995.0, 0.0))
    grown(path, "2\n")
    with pytest.raises(ClockJumped, match="went back by 6 seconds"):
        follower.poll(Instant(995.0, 6.0))
    with pytest.raises(ClockJumped, match="jumped ahead by 3599 seconds"):
        follower.poll(Instant(4600.0, 6.0))
    # A small correction is tolerated, and never opens a slot again that was closed.
    assert slots(polled(follower, Instant(998.0, 6.0))) == {0: [0.0, 1.0, 2.0]}
    ends.note(0, 1000.0)
    closed = polled(follower, Instant(1000.0, 8.0))[-1]
    assert isinstance(closed, Closed)
    assert follower.start == closed.then
    grown(path, "3\n")
    assert polled(follower, Instant(999.0, 8.0)) == []
    assert polled(follower, Instant(999.5, 8.5)) == []
    assert follower.start.slot == 1
    again = Follower(follow(path), rule, start=closed.then, ends=ends)
    with pytest.raises(ClockJumped, match="went back"):
        again.poll(Instant(900.0, 1.0))


def test_a_source_that_changed_leaves_the_slot_open(tmp_path: Path) -> None:
    path = table(tmp_path / "x.csv", 4)
    follower = Follower(follow(path), ByCount(rows=5, horizon=2))
    polled(follower)
    before = path.read_text()
    path.write_text("a\n")
    with pytest.raises(SourceChanged, match="shorter"):
        follower.poll(NOW)
    path.write_text(before + "4\n")
    rows, closed = polled(follower)
    assert isinstance(rows, FollowedRows)
    assert isinstance(closed, Closed)
    assert (rows.rows.tolist(), closed.count) == ([[4.0]], 5)


def test_a_pipe_that_ends_with_a_slot_has_filled_it() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"a\n1\n2\n3\n4\n")
    os.close(writing)
    with os.fdopen(reading, "rb", buffering=0) as file:
        follower, closed = Follower(follow(file), ByCount(rows=2, horizon=3)), []
        while not follower.over:
            event = follower.poll(Instant.now())
            closed += [event.slot] if isinstance(event, Closed) else []
    assert closed == [0, 1]


def test_a_pipe_that_ended_cannot_fill_its_last_slot() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"a\n1\n2\n3\n")
    os.close(writer)
    with os.fdopen(reader, "rb", buffering=0) as incoming:
        follower = Follower(follow(incoming), ByCount(rows=2, horizon=5), start=SlotStart(3, Offset(rows=6)))
        events = polled(follower)
    assert slots(events, 3) == {3: [1.0, 2.0], 4: [3.0]}
    assert follower.over


@pytest.mark.parametrize("text", ["", "[]", '{"slot": -1, "offset": "{}", "wall": null}', '{"slot": 1}'])
def test_a_start_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not where a slot"):
        SlotStart.from_text(text)
