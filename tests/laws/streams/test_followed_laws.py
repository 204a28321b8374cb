"""Laws of rows that are followed by the clock: a row of one person is in one slot, and moves no other row to another slot.

Neighbouring worlds are replayed through the real reader and the real sums, with readers that are slow, stopped and killed at
other moments in each of the two. EIGENVEIL_PAIRS=1000 replays as many pairs of each kind.
"""

import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from eigenveil.audit.specimens import AsRead
from eigenveil.core.unit import Neighbours
from eigenveil.data.follow import ByClock, FollowedRows, Follower, Instant, SlotEnd, follow, watcher
from eigenveil.tasks.base import Question
from laws.strategies import PERSONAL
from laws.streams.followed_worlds import SECONDS, Noted, Row, Seen, World, neighbour, run, task_of, text, world

SLOTS = 8
PAIRS = int(os.environ.get("EIGENVEIL_PAIRS", "12"))


def differ(one: Seen, other: Seen) -> list[float]:
    assert (one.slots, len(one.sums)) == (other.slots, len(other.sums))
    return [float(np.linalg.norm(left - right)) for left, right in zip(one.sums, other.sums, strict=True)]


def check(one: World, other: World, folder: Path, neighbours: Neighbours, seeds: tuple[int, int]) -> list[float]:
    left, right = (
        run(made, folder / f"{at}", np.random.default_rng(seed), neighbours)
        for at, (made, seed) in enumerate(zip((one, other), seeds, strict=True))
    )
    # Slots that are skipped are those whose end nobody noted.
    assert left.slots == tuple(slot for slot, at in enumerate(one.ends) if at is not None)
    assert sum(left.counts) == len(one.rows)
    if neighbours.count_is_public:
        assert left.counts == right.counts
    apart = differ(left, right)
    assert sum(far > 0 for far in apart) <= 1
    assert max(apart) <= task_of(neighbours, len(one.ends)).sensitivity(Question(0)) * (1 + 1e-12)
    return apart


@pytest.mark.parametrize("folder", [False, True], ids=["file", "folder"])
@pytest.mark.parametrize("neighbours", PERSONAL)
def test_a_row_of_one_person_is_in_one_slot_whatever_the_reader_does(
    neighbours: Neighbours, folder: bool, tmp_path: Path
) -> None:
    apart = []
    for seed in range(PAIRS):
        rng = np.random.default_rng([seed, folder])
        made = world(rng, folder=folder, slots=SLOTS, rows=60)
        (here := tmp_path / f"{seed}").mkdir()
        apart.append(check(made, neighbour(made, rng, neighbours), here, neighbours, (2 * seed, 2 * seed + 1)))
    # The row is somewhere: otherwise nothing would have been compared.
    assert max(map(max, apart)) > 0


def test_a_reader_that_puts_rows_where_it_reads_them_breaks_these_laws(tmp_path: Path) -> None:
    rows = tuple(Row(-1.0, text(np.random.default_rng(at))) for at in range(60))
    one = World(rows, tuple(10.0 * slot + 10 for slot in range(SLOTS)))
    left, right = (
        run(made, tmp_path / f"{len(made.rows)}", np.random.default_rng(1), Neighbours.ADD_REMOVE, reader=AsRead)
        for made in (one, replace(one, rows=rows[1:]))
    )
    # It even shows in which slots are closed.
    assert left.slots != right.slots or sum(far > 0 for far in differ(left, right)) > 1


def test_the_same_world_has_the_same_slots_to_the_last_bit(tmp_path: Path) -> None:
    made = world(np.random.default_rng(3), folder=False, slots=SLOTS, rows=80)
    first, *others = (run(made, tmp_path / f"{seed}", np.random.default_rng(seed), Neighbours.ADD_REMOVE) for seed in range(8))
    for other in others:
        assert other.counts == first.counts
        assert max(differ(first, other)) == 0


@pytest.mark.parametrize("neighbours", [Neighbours.ZERO_OUT, Neighbours.REPLACE_ONE])
def test_a_text_of_five_megabytes_changes_no_count(neighbours: Neighbours, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    rows = tuple(Row(-1.0 if at < 15 else 12.0, text(rng)) for at in range(25))
    one = World(rows, (10.0, 20.0, 30.0))
    long = " " * 5_000_000 + "0,0" if neighbours is Neighbours.ZERO_OUT else text(rng, long=True)
    other = replace(one, rows=(*rows[:4], replace(rows[4], text=long), *rows[5:]))
    apart = check(one, other, tmp_path, neighbours, (1, 2))
    assert [far > 0 for far in apart] == [True, False, False]


def test_a_person_with_a_row_in_each_slot_has_one_in_each_slot_also_where_slots_are_skipped(tmp_path: Path) -> None:
    for seed in range(6):
        rng = np.random.default_rng([11, seed])
        noted = rng.random(SLOTS) < 0.7
        own = tuple(Row(10.0 * slot + 5.0, text(rng)) for slot in range(-1, SLOTS))
        others = tuple(Row(float(at), text(rng)) for at in np.sort(rng.uniform(-10.0, 10.0 * SLOTS, 60)))
        rows = tuple(sorted((*own, *others), key=lambda row: row.arrives))
        ends = tuple(10.0 * slot + 10.0 if there else None for slot, there in enumerate(noted))
        one = World(rows, ends, begin=0.0 if seed % 2 else None)
        other = replace(one, rows=tuple(row for row in rows if row not in own))
        left, right = (
            run(
                made,
                tmp_path / f"{seed}-{at}",
                np.random.default_rng([seed, at]),
                Neighbours.ADD_REMOVE,
                reader=partial(Follower, several=True),
            )
            for at, made in enumerate((one, other))
        )
        begun = (one.begin is not None, *noted)
        assert left.slots == tuple(slot for slot in range(SLOTS) if begun[slot] and noted[slot])
        most = task_of(Neighbours.ADD_REMOVE, SLOTS).sensitivity(Question(0)) * (1 + 1e-12)
        assert all(0 < far <= most for far in differ(left, right))


def test_each_end_of_a_long_backlog_closes_its_own_rows(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    rows = tuple(Row(10.0 * (at // 7) + 1.0, text(rng)) for at in range(7 * SLOTS))
    made = World(rows, tuple(10.0 * slot + 10 for slot in range(SLOTS)))
    seen = run(made, tmp_path / "rows.csv", rng, Neighbours.ADD_REMOVE, asleep=True)
    assert seen.counts == (7,) * SLOTS


@pytest.mark.parametrize("note", ['5" pipe', '"5"" pipe"', '"', '"two\nlines"', "#", ""])
def test_a_text_beside_the_numbers_moves_no_other_row(note: str, tmp_path: Path) -> None:
    """One row more, with any text in a column that is not read: no slot has other rows of others, or the row is refused."""
    found: list[list[list[list[float]]]] = []
    for more in ("", f"9,9,{note}\n"):
        source, noted = tmp_path / f"{len(found)}.csv", Noted()
        source.write_text("a,b,note\n")
        reader = follow(source, columns=("a", "b"))
        for slot in range(SLOTS):
            with source.open("a") as file:
                file.write(f"{slot},1,x\n" + more * (slot == 2) + f"{slot},2,y\n")
            noted.ends.append(SlotEnd(slot, SECONDS * (slot + 1), tuple(watcher.reach(str(source)))))
        noted.over = True
        follower = Follower(reader, ByClock(0.0, SECONDS, SLOTS), ends=noted)
        slots: list[list[list[float]]] = [[]]
        clock = SECONDS * SLOTS
        try:
            while not follower.over:
                event = follower.poll(Instant(clock, clock), max_rows=3)
                if isinstance(event, FollowedRows):
                    slots[-1] += event.rows.tolist()
                else:
                    slots.append([])
        except ValueError:
            # Nothing of the slot that was open is used.
            slots[-1] = []
        found.append([[row for row in rows if row[0] != 9] for rows in slots if rows])
    without, there = found
    assert there == without[: len(there)]
    assert len(there) == (2 if note in ('"', '"two\nlines"') else SLOTS)
