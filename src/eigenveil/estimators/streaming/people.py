"""Who has had a row in a private stream: `PeopleSeen` leaves out rows beyond those that the guarantee covers."""

from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from eigenveil.data.people import MARK_BYTES, Marks
from eigenveil.errors import require
from eigenveil.plan import StreamPlan

__all__ = ["PeopleSeen"]


@final
class PeopleSeen:
    """Admits the first row of a person in a block, in at most `most` blocks. Changes in place, and is raw data.

    Blocks are counted in admitted rows. So in what is admitted no person has two rows in a block, or rows in more than `most`
    blocks, which is all that the trackers' sensitivities need (`SumTerms`). Who is admitted depends on identifiers alone.
    Neighbouring streams have the same ones, so they admit the same places.

    >>> from eigenveil.data.people import marks_of
    >>> seen = PeopleSeen(most=2)
    >>> plan = StreamPlan(tracker="products", block=2, first_block=2, horizon_blocks=0, memory=0, reason="")
    >>> [seen.admitted(marks_of(["ann", "bob", "ann", "ann"]), rows=rows, plan=plan).tolist() for rows in (0, 3)]
    [[True, True, True, False], [False, True, False, False]]
    """

    def __init__(self, most: int) -> None:
        self.most = most
        # For each person in how many blocks they have a row, and the last of these.
        self._blocks: dict[bytes, tuple[int, int]] = {}
        self._kind: str | None = None

    def admitted(self, marks: Marks, *, rows: int, plan: StreamPlan) -> NDArray[np.bool_]:
        """Which of the rows with these marks, (n,), are taken, in a stream that has `rows` rows."""
        require(
            self._kind in (None, marks.kind),
            f"{marks.what} has identifiers of another type than in earlier rows. Give all of them as text",
        )
        self._kind = marks.kind
        taken = np.zeros(len(marks.each), dtype=bool)
        for place, mark in enumerate(marks.each):
            block = plan.block_of(rows)
            blocks, last = self._blocks.get(mark, (0, -1))
            # The block before a synchronisation and the rest of it after that are one block.
            if last == block or blocks == self.most:
                continue
            self._blocks[mark] = (blocks + 1, block)
            taken[place] = True
            rows += 1
        return taken

    def arrays(self) -> dict[str, Any]:
        """Everything but the kind of identifiers, for a state file."""
        marks = np.frombuffer(b"".join(self._blocks), dtype=np.uint8).reshape(-1, MARK_BYTES)
        return {"people": marks, "people.blocks": np.array(list(self._blocks.values()), dtype=np.int64).reshape(-1, 2)}

    @property
    def kind(self) -> str | None:
        """The type of identifiers so far."""
        return self._kind

    @classmethod
    def restored(cls, most: int, arrays: Any, kind: str | None) -> "PeopleSeen":
        """From the arrays of a state file."""
        marks, blocks = arrays["people"], arrays["people.blocks"]
        good = marks.shape == (len(blocks), MARK_BYTES) and blocks.shape == (len(marks), 2)
        require(good and marks.dtype == np.uint8, "its people are not those that were saved")
        found = cls(most)
        found._kind = kind
        pairs = ((int(count), int(last)) for count, last in blocks)
        found._blocks = {mark.tobytes(): pair for mark, pair in zip(marks, pairs, strict=True)}
        return found

    def __repr__(self) -> str:
        # Neither people nor their number: a log may print this.
        return f"PeopleSeen(most={self.most})"
