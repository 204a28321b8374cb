"""`OpenBlock`: the rows of a block that is not full yet. They are raw data, in one array that grows with them."""

from dataclasses import dataclass
from typing import Any, final

import numpy as np
import scipy.sparse as sp

from eigenveil.linalg import Array

__all__ = ["OpenBlock"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class OpenBlock:
    """`count` rows: the first ones of `room`, (b, d), or sparse `pieces` one after the other.

    Rows are added behind those that are there, in the same array. An earlier value does not look that far, so it stays
    what it was, and one may go back to it; but only one value can be gone on from.

    >>> block = OpenBlock().and_rows(np.ones((1, 2)), length=3)
    >>> block.and_rows(np.zeros((2, 2)), length=3).rows.tolist(), block.count
    ([[1.0, 1.0], [0.0, 0.0], [0.0, 0.0]], 1)
    """

    count: int = 0
    room: Array | None = None
    pieces: tuple[Any, ...] = ()

    @classmethod
    def of(cls, rows: Any) -> "OpenBlock":
        """Of rows that were kept elsewhere."""
        return cls().and_rows(rows, length=rows.shape[0]) if rows is not None else cls()

    def and_rows(self, rows: Any, *, length: int) -> "OpenBlock":
        """With more rows, copied, of a block that will have `length`."""
        count = self.count + rows.shape[0]
        if sp.issparse(rows):
            return OpenBlock(count, None, (*self.pieces, rows.copy()))
        room = self.room
        if room is None or len(room) < count:
            # Just enough for the first rows: the block before may still be in somebody's hands. Then for all of the block.
            room = np.empty((max(count, length if self.count else 0), rows.shape[1]))
            if self.room is not None:
                room[: self.count] = self.room[: self.count]
        room[self.count : count] = rows
        return OpenBlock(count, room)

    @property
    def rows(self) -> Any:
        """All of them, (count, d), None where there are none."""
        if self.count == 0:
            return None
        if self.room is not None:
            return self.room[: self.count]
        return self.pieces[0] if len(self.pieces) == 1 else sp.csr_array(sp.vstack(self.pieces))

    def __repr__(self) -> str:
        return f"OpenBlock(count={self.count})"

    def __reduce__(self) -> tuple[Any, ...]:
        # Without the part of the array that has not been written to: nobody knows what is there.
        rows = self.rows
        return OpenBlock.of, (None if rows is None else rows.copy(),)
