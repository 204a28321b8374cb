"""Exact Gram matrices: of all rows, of one block of a stream, and some columns at a time.

`privacy.sums.bounded` releases them, and streams add up blocks with `add_block`.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from eigenveil.data.elsewhere import total_of
from eigenveil.data.rows import Block, Rows, block_size
from eigenveil.linalg import Array
from eigenveil.privacy.sums.domain import Domain, Region
from eigenveil.privacy.sums.whole.center import CenterSums
from eigenveil.privacy.sums.whole.grid import CACHED_ROWS, cached_rows, reach_of, sum_unit, unit_of
from eigenveil.privacy.sums.whole.rows import sparse_block_sum
from eigenveil.privacy.sums.whole.total import EXACT, Integers, Total, WholeSums
from eigenveil.privacy.sums.workers import added_up

__all__ = ["GramWork", "add_block", "add_packed", "whole_gram", "whole_gram_columns"]

# The most that a row adds to a product: those of tables have 34 bits, those of histories 36.
_PRODUCT = 1 << 36
# Rows of a matrix from which the center is subtracted at a time.
_STRIP = 512
# Rows whose products add up in float64; and sparse rows, up to 100 radii from zero, whose products add up in int64.
_DENSE_ROWS, _SPARSE_ROWS = 1 << 18, 1 << 14
# A block of at most so many rows and at least so many columns is added a strip at a time: its products take more than it does.
_FEW_ROWS, _MANY_COLUMNS = 256, 256
# Columns whose products with all others are in memory together, where a device adds them up.
_FEW_COLUMNS = 32


def whole_gram(rows: Rows, region: Region) -> Array:
    """The Gram matrix, (d, d), of the clipped rows, exactly symmetric."""
    return _finished(total_of(rows, GramWork(region)), region)


@final
@dataclass(frozen=True, slots=True, eq=False)
class GramWork:
    """The Gram matrix of the rows in `region`: the total is (d, d), in units of `Pair.unit`.

    For sparse rows with a center, `beside` and `weight` are those of `CenterSums`.
    """

    region: Region

    def of(self, rows: Rows) -> WholeSums:
        """The sum over rows that are here."""
        if rows.sparse:
            sparse = _WholeSparseGram(self.region)
            for block in rows.blocks(block_size(rows)):
                sparse.take(block)
            return sparse.sums
        size = min(block_size(rows), rows.shape[0])
        worker = added_up(rows, lambda: _WholeDenseGram(self.region, size), dim=self.region.dim)
        # The worker's product and its rows are freed on return: the matrix may be all that fits.
        return WholeSums(worker.total, worker.unit)

    def joined(self, left: WholeSums, right: WholeSums) -> WholeSums:
        """The sum over the rows of both."""
        return left.and_other(right)


def _finished(sums: WholeSums, region: Region) -> Array:
    """The matrix, (d, d), with the center of sparse rows subtracted."""
    center = region.shifted_center
    if center is None or sums.beside is None:
        return sums.total.value(sums.unit)
    shifts = CenterSums(sums.beside, sums.weight or 0)
    ends, found = shifts.ends(center / unit_of(region)), np.empty(sums.total.low.shape)
    for start in range(0, len(found), _STRIP):
        here = slice(start, min(start + _STRIP, len(found)))
        hi, lo = sums.total.pair(here)
        # The sums are symmetric, so their rows are their columns.
        found[:, here] = ends.columns((hi.T, lo.T), here) * sums.unit
    return found


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
            inside, summed = domain.whole_twice(piece, unit=unit, fine=unit_of_sum, out=rows, out_fine=fine)
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
    sparse = _WholeSparseGram(domain)
    sparse.take(block)
    if domain.shifted_center is None:
        return sparse.total.whole()
    return np.rint(_finished(sparse.sums, domain) / unit_of(domain) ** 2).astype(np.int64)


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


@final
class _WholeDenseGram:
    """One worker's share of a dense Gram matrix. Changes in place."""

    def __init__(self, region: Region, size: int) -> None:
        dim = region.dim
        self._region, self.unit = region, 1.0
        # The first rows are added up in floats, which is exact up to 2^53 and fastest. `total` reuses the memory.
        self._first, self._left = np.zeros((dim, dim)), EXACT // _PRODUCT
        self._whole: Total | None = None
        self._product, self._scratch = np.empty((dim, dim)), np.empty((max(size, 1), dim))

    @property
    def total(self) -> Total:
        """Everything added so far, in whole numbers."""
        if self._whole is None:
            low = self._first.view(np.int64)
            for start in range(0, len(low), CACHED_ROWS):
                low[start : start + CACHED_ROWS] = self._first[start : start + CACHED_ROWS].astype(np.int64)
            self._whole = Total.of(low, each=_PRODUCT, rows=EXACT // _PRODUCT - self._left)
        return self._whole

    def take(self, block: Block) -> None:
        """Add the products of a block's rows."""
        rows, size = self._scratch[: len(block)], cached_rows(self._region.dim)
        same = True
        others: list[Array] = []
        for start in range(0, len(block), size):
            pair = self._region.pair(block.piece(start, size), out=rows[start:])
            self.unit, same = pair.unit, pair.left is pair.right
            if not same:
                others.append(pair.right)
        # For the same array twice, numpy calls the symmetric product, which is half the work.
        np.matmul(rows.T, rows if same else np.vstack(others), out=self._product)
        if self._whole is None and len(block) <= self._left:
            self._first += self._product
            self._left -= len(block)
        else:
            self.total.add(self._product, len(block))

    def and_other(self, other: "_WholeDenseGram") -> None:
        """Add the products of another worker."""
        self.total.and_other(other.total)


@final
class _WholeSparseGram:
    """The Gram matrix of sparse rows. Changes in place.

    For rows R - s c^T, the center c is subtracted from the finished sums, which are exact until then (`CenterSums`).
    """

    def __init__(self, region: Region) -> None:
        self._region, self.unit = region, 1.0
        far = region.shifted_center is not None
        self.total = Total.zeros((region.dim, region.dim), each=math.ceil(reach_of(region)) ** 2 if far else _PRODUCT)
        self.shifts = CenterSums.zeros(region.dim, math.ceil(reach_of(region))) if far else None

    def take(self, block: Block) -> None:
        """Add the products of a block's rows."""
        pair = self._region.pair(block)
        self.unit = pair.unit
        # Entries far from zero have more bits than exact products of floats allow.
        kind = np.float64 if self.shifts is None else np.int64
        across, right = pair.left.astype(kind).T.tocsr(), pair.right.astype(kind)
        product = across @ right
        product.sum_duplicates()
        into, strip = self.total.room(len(block)), CACHED_ROWS
        for start in range(0, self._region.dim, strip):
            # A strip at a time, so that the indices of a full product are never all in memory.
            low, high = product.indptr[start], product.indptr[min(start + strip, self._region.dim)]
            counts = np.diff(product.indptr[start : start + strip + 1])
            lines = start + np.repeat(np.arange(len(counts)), counts)
            into[lines, product.indices[low:high]] += product.data[low:high].astype(np.int64)
        if self.shifts is not None and pair.shift is not None:
            self.shifts.take(across, pair.shift.astype(np.int64))

    @property
    def sums(self) -> WholeSums:
        """Everything added so far."""
        if self.shifts is None:
            return WholeSums(self.total, self.unit)
        return WholeSums(self.total, self.unit, self.shifts.pull, self.shifts.weight)
