"""How whoever has a table knows it again, under another name or with other columns: by digests, and by where it is.

A site's ledger and `fit --ledger` call it. The digests are raw data: others could check a guess of the rows with them, and what
is decided by them shows whether rows are equal. Where a table is, is known without looking into it.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import numpy as np

from eigenveil.core.rows import Block, Rows, block_size, total_of
from eigenveil.linalg import Array

__all__ = ["FingerprintWork", "fingerprints", "source_of"]

# Rows and columns by which a table is known again under another name, and the fewest rows that can tell tables apart.
_COMPARED_ROWS: Final = 200
_COMPARED_COLUMNS: Final = 256
_TELLING_ROWS: Final = 16


def fingerprints(rows: Rows) -> tuple[bytes, ...]:
    """The first is of all rows: it shows when a name stands for other rows than before.

    The others are of the numbers alone, and of single columns of the first rows. Another study may read the table with other
    columns, or by person. One of these in common is then enough to recognise it.
    """
    found = total_of(rows, FingerprintWork())
    return tuple(dict.fromkeys([_as_one(found.whole), _as_one(found.numbers), *found.columns]))


@final
@dataclass(frozen=True, slots=True)
class TableMarks:
    """Digests of pieces of a table, one after the other: of all that counts, and of the numbers alone; and of first columns."""

    whole: tuple[bytes, ...]
    numbers: tuple[bytes, ...]
    columns: tuple[bytes, ...]


@final
@dataclass(frozen=True, slots=True)
class FingerprintWork:
    """Digests of a table, worked out where its rows are. No row comes back; the digests are as private as the rows."""

    def of(self, rows: Rows) -> TableMarks:
        """Those of rows that are here."""
        # The shape goes in first: the same numbers in rows of another length are another table.
        shape = repr(rows.shape).encode()
        state, numbers, first = hashlib.sha256(shape), hashlib.sha256(shape), np.empty((0, rows.shape[1]))
        # Block by block: the table may be larger than memory.
        for block in rows.blocks(block_size(rows)):
            for part in _bytes_of(block):
                state.update(part)
                numbers.update(part)
            if block.weights is not None:
                state.update(np.ascontiguousarray(block.weights, dtype="<f8").data)
            if not rows.sparse and len(first) < _COMPARED_ROWS:
                first = np.concatenate([first, np.asarray(block.values[: _COMPARED_ROWS - len(first)], dtype="<f8")])
        return TableMarks((state.digest(),), (numbers.digest(),), tuple(_columns_of(first)))

    def joined(self, left: TableMarks, right: TableMarks) -> TableMarks:
        """Those of a table whose first rows are those of `left`."""
        return TableMarks(left.whole + right.whole, left.numbers + right.numbers, left.columns or right.columns)


def source_of(path: Path, sheet: str | None = None) -> str:
    """Where a table is: its path in full, and the sheet of a workbook. The same whatever rows are in it."""
    # Links are followed, so that a second name of a file does not hide it.
    return str(path.resolve()) + ("" if sheet is None else f", sheet {sheet}")


def _as_one(digests: tuple[bytes, ...]) -> bytes:
    """One digest for all pieces. A table in one piece, as it is in memory, has its own."""
    return digests[0] if len(digests) == 1 else hashlib.sha256(b"".join(digests)).digest()


def _bytes_of(block: Block) -> Iterator[Any]:
    """The numbers of a block, in a fixed byte order, so that machines agree. Sparse rows stay sparse: zeros are not written."""
    if not block.sparse:
        yield np.ascontiguousarray(block.values, dtype="<f8").data
        return
    matrix = block.values
    if not bool((matrix.data != 0).all()):
        # A zero that is stored is a zero like any other.
        matrix = matrix.copy()
        matrix.eliminate_zeros()
    yield np.diff(matrix.indptr).astype("<i8").data
    yield matrix.indices.astype("<i8").data
    yield matrix.data.astype("<f8").data


def _columns_of(rows: Array) -> list[bytes]:
    """Digests of the columns, without their names. Those that are much alike in many tables are left out."""
    telling = [column for column in rows.T if len(column) >= _TELLING_ROWS and _varied(column)]
    found = {hashlib.sha256(b"column" + np.ascontiguousarray(column, dtype="<f8").data).digest() for column in telling}
    # Of a wide table the smallest, whichever columns a study has: two studies that share most columns share some of these.
    return sorted(found)[:_COMPARED_COLUMNS]


def _varied(column: Array) -> bool:
    """Whether no value makes up more than half of a column: flags that are mostly 0 look alike in unrelated tables."""
    return int(np.unique(column, return_counts=True)[1].max()) * 2 <= len(column)
