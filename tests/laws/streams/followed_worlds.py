"""Worlds in which a source grows, slots end by the clock, and a reader is slow, stopped and started again. Time is simulated.

What happens by the clock, that is when bytes arrive and when ends are noted, is one list of events. What the reader does in
between is drawn from another generator: how often it reads, how many rows at most, how long it stalls and where it is killed.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from eigenveil.audit.specimens import AsRead
from eigenveil.core.domain import Domain
from eigenveil.core.unit import Neighbours
from eigenveil.data.follow import ByClock, Closed, FollowedRows, Follower, Instant, Left, SlotEnd, SlotStart, follow, watcher
from eigenveil.linalg import Array
from eigenveil.tasks.base import Question
from eigenveil.tasks.slot_sums import SlotSums

SECONDS = 10.0
DIM = 2


@dataclass
class Noted:
    """Ends that were noted, as they would be on disk: they survive the reader. A reader sees each a little later."""

    written: list[SlotEnd] = field(default_factory=list)
    ends: list[SlotEnd] = field(default_factory=list)
    first: int = 0
    over: bool = False

    def following(self, slot: int) -> SlotEnd | None:
        return next((end for end in self.ends if end.slot >= slot), None)


@dataclass(frozen=True)
class Row:
    """A row's `text`, when all of it is in the source, and in which file. Half of a `torn` one comes so many seconds before."""

    arrives: float
    text: str
    file: str = ""
    torn: float = 0.0


@dataclass(frozen=True)
class World:
    """Rows in the order of their arrival, and when each slot's end is noted; None where nobody was there to note it.

    A reader sees a note `late` seconds after that. Where the first slot begins is noted at `begin`. The `files` are made at
    their first times and have a whole line of column names at their second ones, whatever rows come.
    """

    rows: tuple[Row, ...]
    ends: tuple[float | None, ...]
    files: tuple[tuple[str, float, float], ...] = (("", -100.0, -100.0),)
    late: float = 0.0
    begin: float | None = None

    def events(self) -> list[tuple[float, str, str, int]]:
        """What happens by the clock: appended text and noted ends, in order."""
        found: list[tuple[float, str, str, int]] = []
        for file, made, named in self.files:
            found += [(made, file, "a", -1), (named, file, ",b\n", -1)] if named > made else [(made, file, "a,b\n", -1)]
        for row in self.rows:
            half = len(row.text) // 2
            found += [
                (row.arrives - row.torn, row.file, row.text[:half], -1),
                (row.arrives, row.file, f"{row.text[half:]}\n", -1),
            ]
        for slot, at in enumerate((self.begin, *self.ends), start=-1):
            # A second event of no slot: what was noted is seen.
            found += [] if at is None else [(at, "", "", slot), (at + self.late, "", "", len(self.ends))]
        # Stable: the halves of a row stay in their order.
        return sorted(found, key=lambda event: event[0])


def world(rng: np.random.Generator, *, folder: bool, slots: int, rows: int) -> World:
    """A backlog before the first slot, bursts, a slow trickle, ends that are noted late, and times at which nobody was there."""
    backlog = np.full(int(rng.integers(rows // 2)), -5.0)
    bursts = np.repeat(rng.uniform(0, slots * SECONDS, 3), rng.integers(1, rows // 4, 3))
    trickle = rng.uniform(-SECONDS, slots * SECONDS, rows // 3)
    # Some arrive in the very moment of an end, on either side of it.
    close = SECONDS * rng.integers(1, slots, 6) + rng.choice([-1e-6, 1e-6, 1e-4], 6)
    arrivals = np.sort(np.concatenate([backlog, bursts, trickle, close]))
    names = [f"{at:03d}.csv" for at in range(4)]
    files = np.sort(rng.integers(len(names), size=len(arrivals))) if folder else np.zeros(len(arrivals), dtype=int)
    parts = [
        Row(float(at), text(rng), names[file] if folder else "", float(rng.choice([0.0, 1e-7, 4.0])) if alone else 0.0)
        for at, file, alone in zip(arrivals, files, _alone(arrivals, files), strict=True)
    ]
    ends = [SECONDS * (slot + 1) + float(rng.choice([0.0, 5e-5, 3.0])) for slot in range(slots)]
    # The last end is noted: otherwise the rows behind it are in no slot, which is right and shows nothing.
    away = rng.random(slots) < 0.2
    away[-1] = False
    begun = {row.file: row.arrives for row in reversed(parts)}
    left = {row.file: row.arrives for row in parts}
    # The reader needs one file to begin with. Others are made when the one before is left, and some get their names later.
    made = [(min(begun), -100.0, -100.0)]
    for before, name in itertools.pairwise(sorted(begun)):
        made.append((name, float(rng.choice([left[before], begun[name]])), begun[name]))
    noted = tuple(None if gone else at for at, gone in zip(ends, away, strict=True))
    return World(tuple(parts), noted, tuple(made), float(rng.choice([0.0, 1.0, 4.0])))


def _alone(arrivals: Array, files: NDArray[np.int64]) -> list[bool]:
    """Rows of which half may come first: no other row comes between, and no later file is there yet."""
    gaps = np.diff(arrivals, prepend=arrivals[0] - 100.0)
    return [bool(gap > 4.0) and (at == 0 or files[at] == files[at - 1]) for at, gap in enumerate(gaps)]


def text(rng: np.random.Generator, *, long: bool = False) -> str:
    """A row of two numbers, sometimes far outside the ball, sometimes in a text that fills a whole read by itself."""
    one, other = (rng.standard_normal(2) * rng.choice([0.1, 1.0, 1e8])).tolist()
    blank = " " * (5_000_000 if long else int(rng.choice([0, 0, 0, 20, 3000])))
    return f"{blank}{one!r},{other!r}"


@dataclass(frozen=True)
class Seen:
    """What the slots of a run were: their sums before noise, how many rows each had, and in which order they were closed."""

    slots: tuple[int, ...]
    counts: tuple[int, ...]
    sums: tuple[Array, ...]


def task_of(neighbours: Neighbours, slots: int) -> SlotSums:
    return SlotSums(domain=Domain(dim=DIM, radius=1.0), neighbours=neighbours, slots=slots)


Reader = Callable[..., Follower | AsRead]


def run(
    made: World, path: Path, rng: np.random.Generator, neighbours: Neighbours, *, reader: Reader = Follower, asleep: bool = False
) -> Seen:
    """Let the world happen in `path`, and a reader do what it likes in between. If `asleep`, it looks when all is over."""
    slots = len(made.ends)
    task, rule, noted = task_of(neighbours, slots), ByClock(0.0, SECONDS, slots), Noted()
    if made.files[0][0]:
        path.mkdir()
    for _, file, head, _ in made.events()[:1]:
        (path / file if file else path).write_text(head)
    start, filled = SlotStart(), task.open()
    follower = reader(follow(path), rule, start=start, ends=noted)
    closed: list[Closed] = []
    sums: list[Array] = []
    clock = -20.0
    last = ""
    # A reader that is busy for a long time looks seldom.
    laziness = 1.0 if asleep else rng.choice([0.0, 0.7, 0.97])

    def look() -> bool:
        nonlocal clock, start, filled, follower
        clock = np.nextafter(clock, np.inf)
        event = follower.poll(Instant(float(clock), float(clock)), max_rows=int(rng.integers(1, 9)))
        if isinstance(event, FollowedRows):
            filled.add(event.rows)
        elif event is not None:
            # What is stored in one step, after which the next slot begins.
            # With rows that may be several of one person nothing is stored.
            if isinstance(event, Left):
                filled = task.open()
                return True
            sums.append(np.asarray(task.private(Question(event.slot), filled.close()).value))
            closed.append(event)
            start, filled = SlotStart.from_text(event.then.to_text()), task.open()
        if rng.random() < 0.05:
            # Killed: what was not stored is gone.
            filled, follower = task.open(), reader(follow(path), rule, start=start, ends=noted)
        return event is not None

    for at, file, more, slot in made.events()[1:]:
        for _ in range(int(rng.integers(1, 12)) if rng.random() > laziness else 0):
            look()
        clock = max(clock, at)
        if slot == slots:
            noted.ends.append(noted.written.pop(0))
            continue
        if not more:
            files = watcher.reach(str(path), last)
            last = files[-1][0] if files else last
            noted.written.append(SlotEnd(slot, float(clock), tuple(files)))
            continue
        with (path / file if file else path).open("a") as source:
            source.write(more)
    noted.over = True
    while not follower.over:
        look()
    return Seen(tuple(one.slot for one in closed), tuple(one.count for one in closed), tuple(sums))


def neighbour(made: World, rng: np.random.Generator, neighbours: Neighbours) -> World:
    """The same without one row, or with another text in its place: of zeros, or of any numbers."""
    at = int(rng.integers(len(made.rows)))
    rows: Sequence[Row] = made.rows
    if neighbours is Neighbours.ADD_REMOVE:
        return replace(made, rows=(*rows[:at], *rows[at + 1 :]))
    # A field is read up to 131072 characters, and blanks before it are none.
    zero = f"{' ' * int(rng.choice([0, 400_000]))}{'0' * int(rng.choice([1, 100_000]))},0"
    other = zero if neighbours is Neighbours.ZERO_OUT else text(rng)
    return replace(made, rows=(*rows[:at], replace(rows[at], text=other), *rows[at + 1 :]))
