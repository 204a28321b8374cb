"""The case of a followed file whose slots end by the clock: what a site sends of each slot, where rows come faster than it reads.

The real `Follower` reads a real file in simulated time. It looks a few times in each slot, so a backlog and a burst wait over
several slots. The canary is the first row of the file, which stands before all others. It is there or not. Or a row of zeros is
in its place, in a text so long that it nearly fills a read by itself, and the numbers of rows are public.
"""

import tempfile
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final, Protocol, final

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from eigenveil.audit.case import Case, Claim, Trial, mu_of
from eigenveil.audit.cases.canaries import moved_by_one, require_guarantee, symmetric_noise, tossed
from eigenveil.audit.cases.curator_seen import BUDGET
from eigenveil.core.accounting import Budget
from eigenveil.core.unit import Neighbours
from eigenveil.data.follow import ByClock, Closed, Follower, Instant, SlotEnd, follow, watcher
from eigenveil.estimators.slots.answer import slot_guarantee
from eigenveil.estimators.slots.parties import SlotParties
from eigenveil.estimators.slots.spec import slot_spec
from eigenveil.linalg import Array
from eigenveil.params import SlotStreamParams, checked
from eigenveil.privacy.packed import packed_side, unpack
from eigenveil.tasks import Question, SlotSums
from eigenveil.tasks.slots import ClosedSlot

__all__ = ["CASES", "Reader", "followed_file"]

_DIM: Final = 4
_SLOTS: Final = 6
_SITES: Final = ("site 0", "site 1")
# The squared norm of a row with its constant entry, 1/8: what one person moves a slot by.
_WIDE: Final = 1 + 2.0**-6
# Blanks before a row of zeros. A read of as many bytes as are read at most holds it, and few other rows.
_BLANKS: Final = (1 << 22) - 64
# Noise that hides the count of a slot would have this deviation: there is none, so that any other count is far away.
_NO_NOISE: Final = 1e-3
# Rows that wait at first and that come in the third slot, rows that are read at a look, and looks in each slot.
_BACKLOG, _BURST, _MOST, _LOOKS = 35, 25, 5, 2


class Reader(Protocol):
    """What a `Follower` does."""

    @property
    def over(self) -> bool:
        """Whether all slots are closed."""
        ...

    def poll(self, now: Instant, *, most: int) -> Any:
        """Rows, the end of a slot, or nothing."""
        ...


@final
class _Ends:
    """The ends of slots in simulated time."""

    def __init__(self) -> None:
        self.noted: list[SlotEnd] = []
        self.first, self.over = 0, False

    def following(self, slot: int) -> SlotEnd | None:
        return next((end for end in self.noted if end.slot >= slot), None)


def followed_file(
    budget: Budget,
    rng: Generator,
    state: int | None,
    *,
    neighbours: Neighbours = Neighbours.ADD_REMOVE,
    reader: Callable[..., Reader] = Follower,
) -> Trial:
    """All matrices that a site sends, and the counts if they are public, where a canary is the first row of its file, or there is
    none or a long row of zeros in its place, and a `reader` reads it."""
    present = tossed(1, rng)
    # By the second account: measured by the package's own numbers, a wrong calibration would confirm itself.
    deviation = _WIDE / mu_of(budget)

    def closed(parties: SlotParties, there: NDArray[np.bool_]) -> list[tuple[int, ClosedSlot]]:
        found = []
        for slot, rows in _read_by(reader, neighbours, bool(there[0])):
            filled = parties.task.open()
            filled.add(rows)
            found.append((slot, filled.close()))
        return found

    def sent(there: NDArray[np.bool_], seed: int | None) -> list[Array]:
        parties = _parties(budget, neighbours, seed)
        site = parties.member(_SITES[0])
        found: list[Array] = []
        for slot, rows in closed(parties, there):
            part = site.close(slot, rows)
            assert part is not None
            found.append(unpack(part[0], (packed_side(len(part[0])),) * 2, symmetric=True))
        require_guarantee(slot_guarantee(parties, parties.ledgers[_SITES[0]].charges, apart=True), budget)
        return found

    def exact(there: NDArray[np.bool_]) -> list[Array]:
        parties = _parties(budget, neighbours, 0)
        task = parties.task
        assert isinstance(task, SlotSums)
        return [np.asarray(task.private(Question(slot), rows).value) for slot, rows in closed(parties, there)]

    def counts(there: NDArray[np.bool_]) -> Array:
        sizes = [float(len(rows)) for _, rows in _read_by(reader, neighbours, bool(there[0]))]
        return np.array(sizes) if neighbours.count_is_public else np.zeros(0)

    def seen(there: NDArray[np.bool_], seed: int) -> list[Array]:
        return [*(one / deviation for one in sent(there, seed)), counts(there) / _NO_NOISE]

    moved = moved_by_one(seen, present, rng)
    worlds = [np.array([there]) for there in (False, True)]
    absent, whole = map(exact, worlds)
    ways = [one - other for one, other in zip(whole, absent, strict=True)]
    released = sent(present, state)
    known = whole if present[0] else absent
    noise = [symmetric_noise(one - other, deviation=deviation) for one, other in zip(released, known, strict=True)]
    # How far the answer lies on the way from the table without the canary to the one with it, over all slots.
    along = sum(float(np.vdot(way, one - other)) for way, one, other in zip(ways, released, absent, strict=True))
    score = np.array([along / sum(float(np.vdot(way, way)) for way in ways)])
    return Trial(scores=score, present=present, noise=np.concatenate(noise), parts=tuple(map(len, noise)), moved=moved)


def _parties(budget: Budget, neighbours: Neighbours, seed: int | None) -> SlotParties:
    terms: dict[str, Any] = {"slots": _SLOTS, "trust": "site", "row_bound": 1.0, "neighbours": neighbours.value}
    asked = checked(SlotStreamParams, SlotStreamParams(1, epsilon=budget.epsilon, delta=budget.delta, **terms))
    return SlotParties(slot_spec(asked, _SITES, dim=_DIM, budget=budget, seed=seed), roster={})


def _lines(first: int, count: int) -> str:
    """Rows along one axis or another by turns, so that the rows on both sides of any row differ."""
    return "".join(
        ",".join(str(float(at // 2 % 2 == axis)) for axis in range(_DIM)) + "\n" for at in range(first, first + count)
    )


@lru_cache(maxsize=8)
def _read_by(
    reader: Callable[..., Reader], neighbours: Neighbours, there: bool
) -> tuple[tuple[int, NDArray[np.float64]], ...]:
    """The rows of each slot that is closed, by a reader that looks a few times in each, and in the end until it is through."""
    with tempfile.TemporaryDirectory() as folder:
        path, ends, held, found = Path(folder) / "rows.csv", _Ends(), list[Array](), list[tuple[int, Array]]()
        blank = f"{' ' * _BLANKS}{','.join(['0.0'] * _DIM)}\n" if neighbours.count_is_public else ""
        canary = f"{','.join(['0.0'] * (_DIM - 1))},1000.0\n"
        path.write_text(f"a,b,c,d\n{canary if there else blank}{_lines(0, _BACKLOG)}")
        follower = reader(follow(path), ByClock(0.0, 1.0, _SLOTS), ends=ends)

        def look(now: float) -> None:
            event = follower.poll(Instant(now, now), most=_MOST)
            if isinstance(event, Closed):
                found.append((event.slot, np.concatenate([np.empty((0, _DIM)), *held])))
                held.clear()
            elif event is not None:
                held.append(event.rows)

        for slot in range(_SLOTS):
            if slot == 2:
                with path.open("a") as more:
                    more.write(_lines(_BACKLOG, _BURST))
            for at in range(_LOOKS):
                look(slot + (1 + at) / (_LOOKS + 1))
            ends.noted.append(SlotEnd(slot, float(slot + 1), tuple(watcher.reach(str(path)))))
        ends.over = True
        now = float(_SLOTS)
        while not follower.over:
            look(now := float(np.nextafter(now, np.inf)))
        return tuple(found)


def _claim(budget: Budget) -> Claim:
    return Claim.of(budget, "the guarantee of a study of streams")


CASES: Final = (
    Case(
        name="stream/followed",
        kind="shipped",
        about="a site that follows a file by the clock, with a backlog and a burst: every matrix that it sends, seen by the hub",
        canary="the first row of the file, a thousand times the bound, present or not",
        tests=("curve", "noise"),
        budget=BUDGET,
        claim=_claim,
        trial=partial(followed_file),
        quick=300,
        full=3000,
        threshold=0.5,
    ),
    Case(
        name="stream/followed-long",
        kind="shipped",
        about="a site that follows a file by the clock, with a backlog and a burst: every matrix that it sends and the size of "
        "every slot, seen by the hub",
        canary="the first row of the file, a thousand times the bound, or a row of zeros in four megabytes of text",
        tests=("curve", "noise"),
        budget=BUDGET,
        claim=_claim,
        trial=partial(followed_file, neighbours=Neighbours.ZERO_OUT),
        quick=300,
        full=3000,
        threshold=0.5,
    ),
)
