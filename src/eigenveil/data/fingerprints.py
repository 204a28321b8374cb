"""Digests by which whoever has a table knows it again, under another name or with other columns.

A site's ledger and `fit --ledger` call it. The digests are raw data: others could check a guess of the rows with them.
"""

import hashlib
from typing import Final

import numpy as np

from eigenveil.data.rows import Rows, block_size
from eigenveil.linalg import Array

__all__ = ["fingerprints"]

# Rows and columns by which a table is known again under another name, and the fewest rows that can tell tables apart.
_COMPARED_ROWS: Final = 200
_COMPARED_COLUMNS: Final = 256
_TELLING_ROWS: Final = 16


def fingerprints(rows: Rows) -> tuple[bytes, ...]:
    """The first is of all rows: it shows when a name stands for other rows than before.

    Of the others one in common is enough to know a table again that another study reads with other columns, or by person: the
    numbers alone, and single columns of the first rows.
    """
    # The shape goes in first: the same numbers in rows of another length are another table.
    shape = repr(rows.shape).encode()
    state, numbers, first = hashlib.sha256(shape), hashlib.sha256(shape), np.empty((0, rows.shape[1]))
    # Block by block: the table may be larger than memory. Fixed byte order, so that machines agree.
    for block in rows.blocks(block_size(rows)):
        values = np.ascontiguousarray(block.values.toarray() if block.sparse else block.values, dtype="<f8")
        state.update(values.data)
        numbers.update(values.data)
        if block.weights is not None:
            state.update(np.ascontiguousarray(block.weights, dtype="<f8").data)
        if not rows.sparse and len(first) < _COMPARED_ROWS:
            first = np.concatenate([first, values[: _COMPARED_ROWS - len(first)]])
    return tuple(dict.fromkeys([state.digest(), numbers.digest(), *_columns_of(first)]))


def _columns_of(rows: Array) -> list[bytes]:
    """Digests of the columns, without their names. Those that are much alike in many tables are left out."""
    telling = [column for column in rows.T if len(column) >= _TELLING_ROWS and _varied(column)]
    found = {hashlib.sha256(b"column" + np.ascontiguousarray(column, dtype="<f8").data).digest() for column in telling}
    # Of a wide table the smallest, whichever columns a study has: two studies that share most columns share some of these.
    return sorted(found)[:_COMPARED_COLUMNS]


def _varied(column: Array) -> bool:
    """Whether no value makes up more than half of a column: flags that are mostly 0 look alike in unrelated tables."""
    return int(np.unique(column, return_counts=True)[1].max()) * 2 <= len(column)
