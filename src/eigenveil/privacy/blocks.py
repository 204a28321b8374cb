"""Exact sums of one block of rows, for streams: added in place, packed, or some columns at a time."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eigenveil.core.domain import Domain, unit_of
from eigenveil.core.rows import Block
from eigenveil.core.threads import Array
from eigenveil.core.whole import (
    CACHED_ROWS,
    CenterSums,
    Integers,
    Total,
    WholeSparseGram,
    WholeSum,
    cached_rows,
    finished_gram,
    finished_sum,
    reach_of,
    sum_unit,
)

__all__ = ["add_block", "add_packed", "whole_gram_columns"]


def sparse_block_sum(block: Block, domain: Domain) -> Integers:
    """The sum of a sparse block's rows in whole numbers of `sum_unit`; around a center it is rounded."""
    part = WholeSum(domain, sparse=True)
    part.take(block)
    return (
        part.total.whole()
        if part.shifts is None
        else np.rint(finished_sum(part.sums, domain) / part.unit).astype(np.int64)
    )


# Rows whose products add up in float64; and sparse rows, up to 100 radii from zero, whose products add up in int64.
_DENSE_ROWS, _SPARSE_ROWS = 1 << 18, 1 << 14

# A block of at most so many rows and at least so many columns is added a strip at a time: its products take more than it does.
_FEW_ROWS, _MANY_COLUMNS = 256, 256

# Columns whose products with all others are in memory together, where a device adds them up.
_FEW_COLUMNS = 32


def add_block(block: Block, domain: Domain, *, gram: Integers, total: Integers | None) -> None:
    """Add a block's products to `gram`, (d, d), and its rows to `total`, (d,), unless that is None. Changes both in place.

    Streams call this, which keep the sums themselves. The products are in whole numbers of `domain.unit` squared, and the sum in
    whole numbers of `sum_unit`. A row adds at most 2^34 to an entry of either. For sparse rows around a center, each piece of the
    block is rounded to whole numbers, so it is off by less than one. Neighbours differ only in the pieces with the person's rows.
    """
    if block.sparse:
        for start in range(0, len(block), _SPARSE_ROWS):
            piece = block.piece(start, _SPARSE_ROWS)
            gram += _sparse_gram(piece, domain)
            if total is not None:
                total += sparse_block_sum(piece, domain)
        return
    if total is None and len(block) <= _FEW_ROWS and domain.dim >= _MANY_COLUMNS:
        _add_few(block, domain, gram)
        return
    for start in range(0, len(block), _DENSE_ROWS):
        _add_dense(block.piece(start, _DENSE_ROWS), domain, gram, total)


def add_packed(block: Block, domain: Domain, packed: Integers) -> None:
    """Add the products of a dense block to the upper triangle of a Gram matrix, row by row in `packed`. Changes it in place.

    For devices: it has half the numbers of the matrix, in the units of `add_block`, and nothing else of that size is made.
    """
    if domain.dim < _MANY_COLUMNS:
        # So small a matrix costs nothing, and all its rows at once are faster.
        gram = np.zeros((domain.dim, domain.dim), dtype=np.int64)
        add_block(block, domain, gram=gram, total=None)
        _add_triangle(gram, packed)
        return
    for first in range(0, len(block), _FEW_ROWS):
        rows, rest = domain.whole(block.piece(first, _FEW_ROWS), unit=unit_of(domain), squared=True), packed
        for start in range(0, domain.dim, _FEW_COLUMNS):
            # Whole numbers below 2^53, as in `_add_few`.
            rest = _add_triangle(rows[:, start : start + _FEW_COLUMNS].T @ rows[:, start:], rest)


def _add_triangle(rows: NDArray[Any], packed: Integers) -> Integers:
    """Add the upper triangle of these rows to the first numbers of `packed`, and return the others."""
    for row, line in enumerate(rows):
        packed[: len(line) - row] += line[row:].astype(np.int64)
        packed = packed[len(line) - row :]
    return packed


def _add_few(block: Block, domain: Domain, gram: Integers) -> None:
    """Add a few wide dense rows with no second matrix, for devices: the upper triangle in strips, and each strip below it."""
    rows = domain.whole(block, unit=unit_of(domain), squared=True)
    for start in range(0, domain.dim, CACHED_ROWS):
        stop = min(start + CACHED_ROWS, domain.dim)
        # All partial sums are whole numbers below 2^53, so no bit depends on how they are divided.
        strip = (rows[:, start:stop].T @ rows[:, start:]).astype(np.int64)
        gram[start:stop, start:] += strip
        gram[stop:, start:stop] += strip[:, stop - start :].T


def _add_dense(block: Block, domain: Domain, gram: Integers, total: Integers | None) -> None:
    """Add at most `_DENSE_ROWS` dense rows, some at a time: they stay in the inner cache, and no second block is needed."""
    dim, size = domain.dim, min(cached_rows(domain.dim), len(block))
    rows, fine, product = np.empty((size, dim)), np.empty((size, dim)), np.empty((dim, dim))
    # Products of that many rows, 34 bits each, add up in float64 without rounding.
    fresh, fresh_total = np.zeros((dim, dim)), np.zeros(dim)
    unit, unit_of_sum = unit_of(domain), sum_unit(domain)
    for start in range(0, len(block), size):
        piece = block.piece(start, size)
        if total is None:
            inside = domain.whole(piece, unit=unit, squared=True, out=rows)
        else:
            inside, summed = _whole_twice(domain, piece, unit=unit, fine=unit_of_sum, out=rows, out_fine=fine)
            fresh_total += np.add.reduce(summed, axis=0)
        np.matmul(inside.T, inside, out=product)
        fresh += product
    del rows, fine, product
    for start in range(0, dim, CACHED_ROWS):
        gram[start : start + CACHED_ROWS] += fresh[start : start + CACHED_ROWS].astype(np.int64)
    if total is not None:
        total += fresh_total.astype(np.int64)


def _sparse_gram(block: Block, domain: Domain) -> Integers:
    """A block's products in whole numbers; around a center they are rounded."""
    sparse = WholeSparseGram(domain)
    sparse.take(block)
    if domain.shifted_center is None:
        return sparse.total.whole()
    return np.rint(finished_gram(sparse.sums, domain) / unit_of(domain) ** 2).astype(np.int64)


def whole_gram_columns(block: Block, *, width: int, domain: Domain) -> Iterator[Array]:
    """The Gram matrix of a block's rows, at most `width` of its columns at a time: arrays (d, width), private.

    Together they are symmetric to the last bit.
    """
    unit = unit_of(domain) ** 2
    slices = [slice(start, min(start + width, domain.dim)) for start in range(0, domain.dim, width)]
    if block.sparse:
        yield from (columns * unit for columns in _sparse_columns(block, slices, domain))
        return
    rows, size = np.empty((len(block), domain.dim)), cached_rows(domain.dim)
    for start in range(0, len(block), size):
        domain.whole(block.piece(start, size), unit=unit_of(domain), squared=True, out=rows[start:])
    # From functions, so that no slice stays in memory here while the caller works on it.
    yield from (_dense_columns(rows, here) * unit for here in slices)


def _dense_columns(rows: Array, here: slice) -> Array:
    """Columns of the Gram matrix of whole rows, in units."""
    if len(rows) <= _DENSE_ROWS:
        # All partial sums are whole numbers below 2^53, so the order of addition does not matter.
        return np.asarray(rows.T @ rows[:, here])
    total = Total.zeros((rows.shape[1], here.stop - here.start), each=1 << 34)
    for start in range(0, len(rows), _DENSE_ROWS):
        piece = rows[start : start + _DENSE_ROWS]
        total.add(piece.T @ piece[:, here], len(piece))
    return total.value(1.0)


def _sparse_columns(block: Block, slices: list[slice], domain: Domain) -> Iterator[Array]:
    """The columns in these slices of the Gram matrix of sparse rows, in units."""
    center, reach = domain.shifted_center, math.ceil(reach_of(domain))
    shifts, pieces = CenterSums.zeros(domain.dim, reach), []
    for start in range(0, len(block), _SPARSE_ROWS):
        pair = domain.pair(block.piece(start, _SPARSE_ROWS))
        rows = pair.left.astype(np.int64)
        pieces.append((rows.T.tocsr(), rows.tocsc()))
        if pair.shift is not None:
            shifts.take(pieces[-1][0], pair.shift.astype(np.int64))
    for here in slices:
        total = Total.zeros((domain.dim, here.stop - here.start), each=reach**2)
        for across, by_column in pieces:
            total.add((across @ by_column[:, here]).toarray(), across.shape[1])
        if center is None:
            yield total.value(1.0)
        else:
            yield shifts.ends(center / unit_of(domain)).columns(total.pair(), here)


def _whole_twice(
    domain: Domain, block: Block, *, unit: float, fine: float, out: Array, out_fine: Array
) -> tuple[Array, Array]:
    """The clipped rows, (b, d), of a dense block, in whole numbers of `unit` for products and of `fine` for a sum.

    The two results are those of `Domain.whole`, but norms are computed once. They are written to `out` and `out_fine`.
    """
    rows, squares = domain.measured(block, out)
    rounding = np.sqrt(domain.dim) / 2
    fine_rows = out_fine[: len(block)]
    np.multiply(rows, domain.to_grid(squares, block, fine, rounding, squared=False)[:, None], out=fine_rows)
    rows *= domain.to_grid(squares, block, unit, rounding, squared=True)[:, None]
    return np.rint(rows, out=rows), np.rint(fine_rows, out=fine_rows)
