"""The specimen of followed files: a reader that puts a row into the slot in which it is read, as followers did at first.

While more rows wait than it reads in a slot, one row more pushes the last row of every later slot into the next one. A long text
ends a read early, and the slot has fewer rows.
"""

from functools import partial
from typing import Final, final

from eigenveil.audit.case import Case, Claim
from eigenveil.audit.cases.curator_seen import BUDGET
from eigenveil.audit.cases.followed import followed_file
from eigenveil.core.accounting import Budget
from eigenveil.core.unit import Neighbours
from eigenveil.data.follow import ByClock, Closed, Followed, FollowedRows, Instant, SlotEnds, SlotStart

__all__ = ["CASES", "AsRead"]


@final
class AsRead:
    """Closes a slot when its time is over, with the rows that were read by then. Changes in place."""

    def __init__(
        self, source: Followed, rule: ByClock, *, start: SlotStart | None = None, ends: SlotEnds | None = None
    ) -> None:
        self._source, self._rule, self.start = source, rule, SlotStart() if start is None else start
        self._offset, self._count = self.start.offset, 0

    @property
    def over(self) -> bool:
        """Whether all slots are closed."""
        return self.start.slot >= self._rule.horizon

    def poll(self, now: Instant, *, most: int) -> FollowedRows | Closed | None:
        """The next rows, whichever slot they came in, or the end of the slot that was open."""
        slot = self._rule.slot_at(now.wall)
        if slot > self.start.slot:
            closed = Closed(self.start.slot, self._count, SlotStart(slot, self._offset, now.wall))
            self.start, self._count = closed.then, 0
            return closed
        rows, self._offset = self._source.read(self._offset, most=most)
        self._count += len(rows)
        return FollowedRows(rows) if len(rows) else None


def _claim(budget: Budget) -> Claim:
    return Claim.of(budget, "the guarantee of a study of streams, where a row is in the slot in which it arrives")


CASES: Final = (
    Case(
        name="wrong/slots-as-read",
        kind="specimen",
        about="a site that puts a row into the slot in which it reads it, with a backlog and a burst: every matrix that it "
        "sends, seen by the hub",
        canary="the first row of the file, a thousand times the bound, present or not",
        tests=("curve", "noise"),
        budget=BUDGET,
        claim=_claim,
        trial=partial(followed_file, reader=AsRead),
        quick=120,
        full=1500,
        threshold=0.5,
    ),
    Case(
        name="wrong/slots-as-read-long",
        kind="specimen",
        about="the same site, where the number of rows of every slot is public: every matrix and every number, seen by the hub",
        canary="the first row of the file, a thousand times the bound, or a row of zeros in four megabytes of text",
        tests=("curve", "noise"),
        budget=BUDGET,
        claim=_claim,
        trial=partial(followed_file, reader=AsRead, neighbours=Neighbours.ZERO_OUT),
        quick=120,
        full=1500,
        threshold=0.5,
    ),
)
