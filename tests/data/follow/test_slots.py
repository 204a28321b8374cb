"""Slots closed by count and by clock: every row in one slot, resumed from any closed slot, jumps of the clock refused."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from eigenveil.data.follow import ByClock, ByCount, Closed, FollowedRows, Follower, Instant, Offset, SlotStart, follow
from eigenveil.errors import ClockJumped, SourceChanged

NOW = Instant(1000.0, 5.0)


def later(seconds: float, now: Instant = NOW) -> Instant:
    return Instant(now.wall + seconds, now.steady + seconds)


def table(path: Path, count: int) -> Path:
    path.write_text("a\n" + "".join(f"{i}\n" for i in range(count)))
    return path


def polled(follower: Follower, now: Instant = NOW, most: int = 3) -> list[FollowedRows | Closed]:
    found = []
    while (event := follower.poll(now, most=most)) is not None:
        found.append(event)
    return found


def slots(events: list[FollowedRows | Closed]) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    for event in events:
        if isinstance(event, FollowedRows):
            found.setdefault(event.slot, []).extend(event.rows[:, 0].tolist())
    return found


def test_slots_by_count_and_a_restart_after_each(tmp_path: Path) -> None:
    source = follow(table(tmp_path / "x.csv", 22))
    events = polled(Follower(source, ByCount(rows=5, horizon=10)))
    whole = {slot: [float(5 * slot + i) for i in range(5)] for slot in range(4)} | {4: [20.0, 21.0]}
    assert slots(events) == whole
    closed = [event for event in events if isinstance(event, Closed)]
    assert [(one.slot, one.count) for one in closed] == [(slot, 5) for slot in range(4)]
    for one in closed:
        start = SlotStart.from_text(one.then.to_text())
        again = slots(polled(Follower(source, ByCount(rows=5, horizon=10), start=start), most=2))
        assert again == {slot: rows for slot, rows in whole.items() if slot > one.slot}


def test_the_horizon_ends_it(tmp_path: Path) -> None:
    follower = Follower(follow(table(tmp_path / "x.csv", 22)), ByCount(rows=5, horizon=2))
    assert set(slots(polled(follower))) == {0, 1}
    assert follower.over
    timed = Follower(follow(tmp_path / "x.csv"), ByClock(start=1000.0, seconds=10.0, horizon=2))
    polled(timed)
    assert isinstance(polled(timed, later(100.0))[-1], Closed)
    assert timed.over
    assert polled(timed, later(200.0)) == []


def test_slots_by_clock(tmp_path: Path) -> None:
    path = table(tmp_path / "x.csv", 2)
    follower = Follower(follow(path), ByClock(start=1010.0, seconds=10.0, horizon=100))
    # Not begun yet: rows wait.
    assert polled(follower) == []
    assert slots(polled(follower, later(10.0))) == {0: [0.0, 1.0]}
    with path.open("a") as more:
        more.write("2\n")
    assert slots(polled(follower, later(19.0))) == {0: [2.0]}
    with path.open("a") as more:
        more.write("3\n")
    closed, *rest = polled(follower, later(20.0))
    assert isinstance(closed, Closed)
    assert (closed.slot, closed.count, closed.then.slot) == (0, 3, 1)
    assert slots(rest) == {1: [3.0]}
    # Away for three slots and started again: slots 2 to 4 were never open here.
    with path.open("a") as more:
        more.write("4\n")
    again = Follower(follow(path), ByClock(start=1010.0, seconds=10.0, horizon=100), start=closed.then)
    first, *rest = polled(again, replace(later(62.0), steady=1.0))
    assert isinstance(first, Closed)
    assert (first.slot, first.count) == (1, 0)
    assert slots(rest) == {5: [3.0, 4.0]}


def test_a_clock_that_jumps_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    path = table(tmp_path / "x.csv", 2)
    follower = Follower(follow(path), ByClock(start=990.0, seconds=10.0, horizon=100))
    polled(follower, Instant(995.0, 0.0))
    with path.open("a") as more:
        more.write("2\n")
    with pytest.raises(ClockJumped, match="went back by 6 seconds"):
        follower.poll(Instant(995.0, 6.0))
    with pytest.raises(ClockJumped, match="jumped ahead by 3599 seconds"):
        follower.poll(Instant(4600.0, 6.0))
    # A small correction is tolerated, and never opens a slot again that was closed.
    assert slots(polled(follower, Instant(998.0, 6.0))) == {0: [2.0]}
    closed = polled(follower, Instant(1000.0, 8.0))[0]
    assert isinstance(closed, Closed)
    assert follower.start == closed.then
    assert polled(follower, Instant(999.0, 8.0)) == []
    assert follower.start.slot == 1
    again = Follower(follow(path), ByClock(start=990.0, seconds=10.0, horizon=100), start=closed.then)
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
    assert slots(events) == {3: [1.0, 2.0], 4: [3.0]}
    assert follower.over


@pytest.mark.parametrize("text", ["", "[]", '{"slot": -1, "offset": "{}", "wall": null}', '{"slot": 1}'])
def test_a_start_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not where a slot"):
        SlotStart.from_text(text)


def test_rules_are_checked() -> None:
    for make in (
        lambda: ByCount(0, 1),
        lambda: ByCount(1, 0),
        lambda: ByClock(0.0, 0.0, 1),
        lambda: ByClock(float("nan"), 1.0, 1),
    ):
        with pytest.raises(ValueError, match="must"):
            make()


def test_this_moment_goes_on() -> None:
    first, second = Instant.now(), Instant.now()
    assert second.steady >= first.steady
