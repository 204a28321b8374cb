"""The sums of `eigenveil.core.whole` over rows on a device: the same whole numbers, from blocks that stay there.

Products and partial sums are whole numbers below 2^53, so any order of addition on the device gives the same float64. Groups of
blocks are added up in int64 there, and the finished sums in a `Total` here.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

import numpy as np

from eigenveil.core.counts import ColumnTailsWork, TailsWork, counted, nobody
from eigenveil.core.domain import SCORE, SCORE_BITS, Domain, unit_of
from eigenveil.core.rows import Rows
from eigenveil.core.whole import (
    COUNT_UNIT,
    SUM_BITS,
    CountWork,
    GramWork,
    ProductsWork,
    SumWork,
    Total,
    TraceWork,
    WholeSums,
    on_basis_grid,
    sum_unit,
    whole_weights,
)
from eigenveil.data.engines.gpu.blocks import DeviceBlock, Mover, on_host
from eigenveil.data.rows import DenseRows, WeightedRows
from eigenveil.linalg import Array

__all__ = ["Blocks", "device_sum", "float_total"]

# Rows of a table have 17 bits, so 2^19 of their products, or of the entries for a sum, add up exactly in float64.
_ROW_BITS: Final = 17
_EXACT_ROWS: Final = 1 << 19
# Scores have 27 bits: so many of their products with rows.
_SCORED_ROWS: Final = 1 << 9
# Columns from which a Gram matrix is worth computing by strips, and how many strips there are.
_WIDE, _STRIPS = 1024, 4
# What sums in int64 may reach on the device before they are brought here.
_ROOM: Final = 1 << 62


class Blocks(Protocol):
    """Rows on a device, block after block."""

    @property
    def xp(self) -> Any:
        """The array-API functions of the device's library."""
        ...

    @property
    def device(self) -> Any:
        """The device, in the library's terms."""
        ...

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        ...

    @property
    def weights(self) -> Array | None:
        """How much each row counts, in memory."""
        ...

    def device_blocks(self) -> Iterable[DeviceBlock]:
        """The rows in order."""
        ...

    def products(self, domain: Domain, basis: Any) -> WholeSums | None:
        """Products with a basis on its grid and on the device, computed in a faster way; None where the device has none."""
        ...


def device_sum(rows: Blocks, work: Any) -> Any:
    """The sum that `work` describes, or None if it must be worked out in memory, block by block."""
    if isinstance(work, CountWork):
        # A count needs the weights alone.
        return work.of(_weights_alone(rows.shape[0], rows.weights))
    domain = getattr(work, "region", getattr(work, "domain", None))
    if not isinstance(domain, Domain):
        return None
    mover = Mover(rows.xp, rows.device, domain)
    if (itself := getattr(work, "on_device", None)) is not None:
        # A work of another room, which knows how a device does it.
        return itself(rows, mover)
    if type(work) not in _SUMS:
        return None
    # Who is counted depends on what is missing, and is decided in memory. Sums are not counts, and take gaps as zeros.
    if domain.gaps is not None and isinstance(work, TailsWork | ColumnTailsWork):
        return None
    return _SUMS[type(work)](rows, work, mover)


def _weights_alone(count: int, weights: Array | None) -> Rows:
    """Rows of one zero each, with the weights: all that a count needs."""
    rows = DenseRows(np.broadcast_to(np.float64(0.0), (count, 1)))
    return rows if weights is None else WeightedRows(rows, weights)


def _gram(rows: Blocks, work: GramWork, mover: Mover) -> WholeSums:
    unit = unit_of(work.region)

    def product(block: DeviceBlock) -> Any:
        return _gram_of(rows.xp, mover.whole(block, unit=unit, squared=True))

    shape, each = (work.region.dim, work.region.dim), 1 << 2 * _ROW_BITS
    return WholeSums(total=_added_up(rows, product, shape, each=each), unit=unit * unit)


def _gram_of(xp: Any, inside: Any) -> Any:
    """The Gram matrix, (d, d), of whole rows, (b, d).

    Strips of a wide one begin at the diagonal, and what is left of it is copied from above: a part of the products need not be
    computed twice. Whole numbers below 2^53 add up exactly in float64, so the bits are those of any other order.
    """
    dim = inside.shape[1]
    size = dim if dim < _WIDE else -(-dim // _STRIPS)
    firsts = range(0, dim, size)
    strips = [inside[:, first : min(first + size, dim)].T @ inside[:, first:] for first in firsts]
    if len(strips) == 1:
        return strips[0]
    whole = []
    for first, strip in zip(firsts, strips, strict=True):
        over = zip(firsts, strips[: first // size], strict=False)
        left = [other[:, first - start : first - start + strip.shape[0]].T for start, other in over]
        whole.append(xp.concat([*left, strip], axis=1))
    return xp.concat(whole, axis=0)


def _sum(rows: Blocks, work: SumWork, mover: Mover) -> WholeSums:
    unit = sum_unit(work.region)

    def product(block: DeviceBlock) -> Any:
        return rows.xp.sum(mover.whole(block, unit=unit, squared=False), axis=0)

    return WholeSums(total=_added_up(rows, product, (work.region.dim,), each=1 << (_ROW_BITS + SUM_BITS)), unit=unit)


def _products(rows: Blocks, work: ProductsWork, mover: Mover) -> WholeSums:
    domain, there = mover.domain, on_basis_grid(mover.put(work.basis), rows.xp)
    if (faster := rows.products(domain, there)) is not None:
        return faster
    unit = unit_of(domain)

    def product(block: DeviceBlock) -> Any:
        inside = mover.whole(block, unit=unit, squared=True)
        scores = rows.xp.trunc(inside @ there * SCORE)
        starts = range(0, len(block), _SCORED_ROWS)
        ends = (slice(at, min(at + _SCORED_ROWS, len(block))) for at in starts)
        parts = (inside[here, :].T @ scores[here, :] for here in ends)
        # Groups are added in int64: more of these products do not fit into float64.
        return sum(rows.xp.astype(part, rows.xp.int64) for part in parts)

    total = _added_up(rows, product, work.basis.shape, each=1 << (_ROW_BITS + SCORE_BITS))
    return WholeSums(total=total, unit=unit * (unit / SCORE))


def _added_up(rows: Blocks, product: Callable[[DeviceBlock], Any], shape: tuple[int, ...], *, each: int) -> Total:
    """The sum of what `product` finds in each block, in whole numbers, of which a row adds at most `each`."""
    total, running, count = None, None, 0
    for block in rows.device_blocks():
        assert len(block) <= _EXACT_ROWS
        found = rows.xp.astype(product(block), rows.xp.int64)
        # The running sum is brought here before it could overflow. When that is depends on row counts alone.
        if (count + len(block)) * each > _ROOM and running is not None:
            total = total or Total.zeros(shape, each=each)
            total.add(on_host(running), count)
            running, count = None, 0
        running, count = found if running is None else running + found, count + len(block)
    if total is None and running is not None:
        return Total.of(_own(running), each=each, rows=count)
    total = total or Total.zeros(shape, each=each)
    if running is not None:
        total.add(on_host(running), count)
    return total


def _own(values: Any) -> Any:
    """An array of the device in memory that may be changed: arrays of libraries in memory share theirs."""
    found = on_host(values)
    return found if hasattr(values, "cpu") and values.device.type != "cpu" else np.array(found)


def _trace(rows: Blocks, work: TraceWork, mover: Mover) -> int:
    unit, total = unit_of(work.region) ** 2, 0
    for block in rows.device_blocks():
        # Rows are clipped to the ball, so a norm beyond it counts as the radius.
        inside = np.minimum(on_host(mover.measured(block.values)[1]), work.region.radius**2)
        inside = inside if block.weights is None else inside * block.weights
        total += int(np.floor(inside / unit).sum())
    return total


def _tails(rows: Blocks, work: TailsWork, mover: Mover) -> Total:
    total = nobody(work.cells.count)
    for block in rows.device_blocks():
        work.count(total, np.sqrt(on_host(mover.measured(block.values)[1])), block.weights)
    return total


def _column_tails(rows: Blocks, work: ColumnTailsWork, mover: Mover) -> Total:
    xp, dim, count = rows.xp, work.domain.dim, work.cells.count
    total, edges = nobody(dim * count), mover.put(work.cells.edges)
    first = count * xp.arange(dim, dtype=xp.int64, device=rows.device)
    for block in rows.device_blocks():
        place = xp.searchsorted(edges, mover.measured(block.values)[0]) + first
        total.add(_counted(xp.reshape(place, (-1,)), block.weights, dim, dim * count), len(block))
    return total


def _counted(place: Any, weights: Array | None, dim: int, cells: int) -> Any:
    """How many entries are in each cell, in `COUNT_UNIT`: counted on the device if it can, because they are many."""
    each = None if weights is None else np.repeat(weights, dim)
    if not hasattr(place, "scatter_add_"):
        return counted(on_host(place), each, cells)
    if each is None:
        return on_host(place.bincount(minlength=cells)) * round(1 / COUNT_UNIT)
    whole = place.new_tensor(whole_weights(each))
    return on_host(place.new_zeros(cells).scatter_add_(0, place, whole))


def float_total(parts: Iterable[Any], shape: tuple[int, ...]) -> Array:
    """The sum of arrays on a device, here; in floating point, in their order."""
    total = None
    for part in parts:
        total = part if total is None else total + part
    return np.zeros(shape) if total is None else np.array(on_host(total))


_SUMS: Final[dict[type, Callable[..., Any]]] = {
    GramWork: _gram,
    SumWork: _sum,
    ProductsWork: _products,
    TraceWork: _trace,
    TailsWork: _tails,
    ColumnTailsWork: _column_tails,
}
