"""Releases of symmetric matrices that are never whole in memory: packed, or some columns at a time.

**Columns.** Noise is drawn in square tiles. The tile of rows I and columns J, I before J, has a source of its own. Its key is a
digest of the release's key and the two tile numbers. For the mirrored tile the same source is set up again and gives the same
whole numbers. Mirrored entries have the same noise, as in `packed_noise`, and the proof is the same. The release is a function
of the upper triangle in whole steps. Its noise is s on the diagonal and s / sqrt(2) off it, so that
    sum_i D_ii^2 / s^2 + sum_(i<j) D_ij^2 / (s^2 / 2) = ||D||_F^2 / s^2.
The value must be symmetric to the last bit. Otherwise the difference of two mirrored entries would be public without any noise.
"""

import hashlib
import math
from collections.abc import Iterable, Iterator
from typing import Protocol, final, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from eigenveil.core.ledger import Slot
from eigenveil.core.mechanism import STRIP, Bounded, Calibrated, Mechanism, symmetric_noise
from eigenveil.core.noise import ROOT_HALF, Noise, RoundedGaussian, steps_of, values_of
from eigenveil.core.threads import Array
from eigenveil.errors import require

__all__ = [
    "columns_released",
    "pack",
    "packed_noise",
    "packed_side",
    "packed_size",
    "release_columns",
    "release_packed",
    "unpack",
]


def packed_size(shape: tuple[int, ...], *, symmetric: bool) -> int:
    """How many numbers `pack` makes of an array of this shape.

    >>> packed_size((3, 3), symmetric=True), packed_size((3, 2), symmetric=False)
    (6, 6)
    """
    return shape[0] * (shape[0] + 1) // 2 if symmetric else math.prod(shape)


def packed_side(size: int) -> int:
    """The side of a symmetric matrix that is packed into so many numbers; otherwise a `ValueError`.

    >>> packed_side(6)
    3
    """
    side = (math.isqrt(8 * size + 1) - 1) // 2
    require(side * (side + 1) // 2 == size, f"no symmetric matrix is packed into {size} numbers")
    return side


def pack(value: Array, *, symmetric: bool) -> Array:
    """`value` as a flat copy; for a symmetric matrix only the upper triangle, row by row.

    >>> pack(np.array([[1.0, 2.0], [2.0, 3.0]]), symmetric=True).tolist()
    [1.0, 2.0, 3.0]
    """
    if not symmetric:
        return np.array(value, dtype=np.float64).ravel()
    return np.concatenate([np.asarray(row, dtype=np.float64)[index:] for index, row in enumerate(value)])


def unpack(flat: Array, shape: tuple[int, ...], *, symmetric: bool) -> Array:
    """The array of this shape that `pack` made flat.

    >>> unpack(np.array([1.0, 2.0, 3.0]), (2, 2), symmetric=True).tolist()
    [[1.0, 2.0], [2.0, 3.0]]
    """
    size = packed_size(shape, symmetric=symmetric)
    require(flat.shape == (size,), f"a part of shape {shape} must have {size} numbers, got {flat.shape}")
    if not symmetric:
        return flat.reshape(shape)
    dim, start = shape[0], 0
    value = np.empty(shape)
    for i in range(dim):
        value[i, i:] = flat[start : start + dim - i]
        value[i:, i] = value[i, i:]
        start += dim - i
    return value


def packed_noise(noise: Noise, deviation: float, shape: tuple[int, ...], *, symmetric: bool) -> NDArray[np.int64]:
    """Whole steps of noise for a packed array of this shape: round(s Z), s = `deviation`, in every entry.

    In a symmetric matrix the entries off the diagonal get s / sqrt(2). Each of them counts twice in the Frobenius norm, so
        sum_i D_ii^2 / s^2 + sum_(i<j) D_ij^2 / (s^2 / 2) = ||D||_F^2 / s^2.
    The protection is as of a full array with noise s in every entry.
    """
    size = packed_size(shape, symmetric=symmetric)
    if not symmetric:
        return RoundedGaussian(deviation).draw(noise, size)
    drawn = RoundedGaussian(deviation * ROOT_HALF).draw(noise, size)
    dim = shape[0]
    # Row i of the triangle begins with its diagonal entry, after rows of dim, dim - 1, ... entries.
    diagonal = np.cumsum(np.arange(dim, 0, -1)) - np.arange(dim, 0, -1)
    drawn[diagonal] = RoundedGaussian(deviation).draw(noise, dim)
    return drawn


Integers = NDArray[np.int64]


@runtime_checkable
class OwnColumns(Protocol):
    """A mechanism that releases columns in its own way, such as one that gives earlier releases again."""

    def release_columns(
        self, slices: Iterable[Array], *, dim: int, sensitivity: float, label: str, share: float, slot: Slot | None
    ) -> Iterator[Array]:
        """As the function of this name."""


def release_packed(
    mechanism: Mechanism, packed: Array, *, sensitivity: float, label: str, share: float = 1.0, slot: Slot | None = None
) -> Array:
    """The public version of a symmetric matrix that is packed, as `pack` does it: packed too, and with the same numbers.

    It may take the memory of `packed`: this is for devices that have no room for a whole matrix.
    """
    side = packed_side(len(packed))
    if side <= STRIP:
        # A matrix this small costs nothing, and all its rows at once are faster.
        private = Bounded(unpack(packed, (side, side), symmetric=True), sensitivity, symmetric=True)
        return pack(mechanism.release(private, label=label, share=share, slot=slot), symmetric=True)
    # Step and noise are as for the whole matrix: half of it determines the rest.
    drawn = mechanism.charged(sensitivity, side * side, label=label, share=share, slot=slot)
    return packed if drawn is None else _add_packed_noise(packed, side, drawn)


def release_columns(
    mechanism: Mechanism,
    slices: Iterable[Array],
    *,
    dim: int,
    sensitivity: float,
    label: str,
    share: float = 1.0,
    slot: Slot | None = None,
) -> Iterator[Array]:
    """The public versions of consecutive `slices`, (dim, w), of the columns of one private symmetric matrix, (dim, dim).

    Each slice is yielded as it is computed, and together they are symmetric. There is one charge for all of them, on the ledger
    before the first slice is requested. `sensitivity` is the whole matrix's (Frobenius).
    """
    if isinstance(mechanism, OwnColumns):
        return mechanism.release_columns(slices, dim=dim, sensitivity=sensitivity, label=label, share=share, slot=slot)
    # Charged here and not in the generator, which runs only when its first slice is requested. And for the whole matrix: all
    # slices are one release, and must be on one lattice.
    drawn = mechanism.charged(sensitivity, dim * dim, label=label, share=share, slot=slot)
    if drawn is None:
        return iter(slices)
    return columns_released(slices, dim=dim, step=drawn.step, deviation=drawn.deviation, noise=drawn.noise)


def _add_packed_noise(packed: Array, side: int, drawn: Calibrated) -> Array:
    """The matrix in whole steps plus symmetric noise, in its own memory and a row at a time."""
    offset = 0
    for start, stop, more, diagonal in symmetric_noise(side, drawn.deviation, drawn.noise):
        for row in range(stop - start):
            line = packed[offset : offset + side - start - row]
            steps = steps_of(line, drawn.step)
            own = steps[0] + diagonal[row]
            steps += more[row, row:]
            steps[0] = own
            line[:] = values_of(steps, drawn.step)
            offset += len(line)
        del more
    return packed


# Columns of noise that are drawn together. Slices of the matrix may begin and end anywhere.
_TILE = 64
_KEY_WORDS = 4


def columns_released(slices: Iterable[Array], *, dim: int, step: float, deviation: float, noise: Noise) -> Iterator[Array]:
    """Consecutive slices, (dim, w) for any w, of the columns of a symmetric matrix, in whole steps, with symmetric noise.

    >>> parts = columns_released([np.zeros((3, 2)), np.zeros((3, 1))], dim=3, step=1.0, deviation=9.0, noise=Noise.seeded(1))
    >>> whole = np.hstack(list(parts))
    >>> bool((whole == whole.T).all()), whole.shape
    (True, (3, 3))
    """
    tiles = (
        _Tiles(key=noise.words(_KEY_WORDS).tobytes(), reproducible=noise.reproducible, dim=dim, deviation=deviation)
        if deviation > 0
        else None
    )
    start, drawn, strip = 0, -1, np.zeros((dim, 0), dtype=np.int64)
    for part in slices:
        stop = start + part.shape[1]
        require(len(part) == dim and stop <= dim, f"slices must be columns of a ({dim}, {dim}) matrix")
        steps = steps_of(part, step)
        # Freed before noise is drawn, because this runs where memory is short.
        del part
        column = start
        while tiles is not None and column < stop:
            number, offset = divmod(column, _TILE)
            if number != drawn:
                del strip
                drawn, strip = number, tiles.strip(number)
            count = min(stop - column, _TILE - offset)
            steps[:, column - start : column - start + count] += strip[:, offset : offset + count]
            column += count
        yield values_of(steps, step)
        start = stop
    require(start == dim, f"slices must have {dim} columns in all, got {start}")


@final
class _Tiles:
    """The noise of one release, (dim, dim) whole steps; any columns of it can be drawn at any time."""

    def __init__(self, *, key: bytes, reproducible: bool, dim: int, deviation: float) -> None:
        # The key is in no repr: with it, anyone could subtract the noise.
        self._key, self._reproducible, self._dim = key, reproducible, dim
        self._on, self._off = RoundedGaussian(deviation), RoundedGaussian(deviation * ROOT_HALF)

    def strip(self, number: int) -> Integers:
        """The columns, (dim, w), of the tiles in column `number`."""
        columns = np.empty((self._dim, self._size(number)), dtype=np.int64)
        for row in range(-(-self._dim // _TILE)):
            tile = columns[row * _TILE : (row + 1) * _TILE]
            tile[...] = self._tile(row, number) if row <= number else self._tile(number, row).T
        return columns

    def _tile(self, row: int, column: int) -> Integers:
        """Rows of tile `row` by columns of tile `column`, row <= column."""
        places = row.to_bytes(8, "little") + column.to_bytes(8, "little")
        source = hashlib.sha256(b"eigenveil columns" + self._key + places).digest()
        noise = Noise(source, reproducible=self._reproducible)
        shape = self._size(row), self._size(column)
        drawn = self._off.draw(noise, shape[0] * shape[1]).reshape(shape)
        if row < column:
            return drawn
        square = np.triu(drawn, 1)
        square += square.T
        # The diagonal has its own, larger noise.
        np.fill_diagonal(square, self._on.draw(noise, shape[0]))
        return square

    def _size(self, number: int) -> int:
        return min(_TILE, self._dim - number * _TILE)
