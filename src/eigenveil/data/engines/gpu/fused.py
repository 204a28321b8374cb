"""Products of the Gram matrix with a basis on an NVIDIA GPU, in kernels that clip rows as they read them.

Without them each step of the clipping writes a table as large as the rows, and the memory of the device is what takes the time.
Three kernels read the rows once each: their squared norms, their scores, and the products of rows with scores. No clipped row is
ever written. Norms add up in numpy's order (`blocks.row_sums`), nothing is fused that would round differently, and everything
else is whole numbers. So the bits are those of rows in memory.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np

from eigenveil.core.domain import SCORE, SCORE_BITS, SQUARABLE, Domain, clip_factors, unit_of
from eigenveil.core.whole import Total, WholeSums
from eigenveil.data.engines.gpu.blocks import grid_limits, leaves, on_host
from eigenveil.linalg import Array

try:
    import torch
    import triton
    import triton.language as tl
    from triton.language.extra import libdevice
except ModuleNotFoundError:
    triton = None

__all__ = ["fused_products", "fused_squares"]

# Vectors of a basis that one pass takes: more would not fit into a processor's registers. And the fewest it multiplies with.
_WIDEST, _NARROWEST = 64, 16
# The most leaves of a row's pairwise sum that a kernel can hold: 32768 columns.
_MOST_LEAVES: Final = 256
# Products of rows with scores that add up exactly in float64, and rows after which sums in int64 could overflow.
_SCORED_ROWS, _MOST_ROWS = 1 << 9, 1 << 18
# Rows whose scores are on the device at a time.
_AT_ONCE: Final = 1 << 21
# Tiles, found by trying: rows x columns of scores, columns x rows of products, each with warps and stages. And into how many
# parts a sum's rows are divided.
_SCORE_TILE, _BACK_TILE, _PARTS = (64, 16, 4, 4), (64, 16, 2, 3), 4
# What a sum in int64 may reach.
_ROOM: Final = 1 << 61


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Table:
    """Rows on the GPU, and a domain's center, scale and bounds beside them, as the kernels take them."""

    values: Any
    parts: tuple[Any, ...]
    flags: dict[str, Any]

    @classmethod
    def of(cls, values: Any, domain: Domain) -> "_Table":
        """A domain's numbers on the device of the rows. One that is missing is never read."""
        found = [domain.center, domain.scale, domain.low, domain.high]
        # A kernel needs an address also for a part that its flags switch off, and that of the rows will do.
        there = tuple(
            values if part is None else torch.as_tensor(part, dtype=torch.float64, device=values.device)
            for part in found
        )
        flags = {"CENTER": domain.center is not None, "SCALE": domain.scale is not None, "BOX": domain.low is not None}
        # A product and a sum fused into one operation would be rounded once instead of twice.
        return cls(values, there, flags | {"enable_fp_fusion": False})


def fused_products(
    values: Any, domain: Domain, basis: Any, *, weights: Array | None, kept: dict[Any, Any]
) -> WholeSums | None:
    """The Gram matrix of `values`, (n, d), times `basis`, (d, p), on its grid; None where the kernels do not apply.

    Both are on the device. `kept` has the factors of the last domain, so that the rounds of a power iteration measure the rows
    once.
    """
    if not _applies(values):
        return None
    table, plan = _Table.of(values, domain), leaves(values.shape[1])
    factors, limits = _factors(table, domain, plan, weights, kept)
    strips = [_padded(basis[:, first : first + _WIDEST]) for first in range(0, basis.shape[1], _WIDEST)]
    parts: list[Any] = []
    for start in range(0, len(values), _AT_ONCE):
        rows = slice(start, min(start + _AT_ONCE, len(values)))
        found = [_products(table, rows, factors, limits, strip) for strip in strips]
        parts.append(torch.cat(found, dim=2)[:, :, : basis.shape[1]])
    unit = unit_of(domain)
    return WholeSums(total=_joined(torch.cat(parts), len(values)), unit=unit * (unit / SCORE))


def _padded(strip: Any) -> Any:
    """Vectors of a basis, with zeros up to a width that the kernels multiply with. Only the last is padded."""
    width = max(_NARROWEST, 1 << (strip.shape[1] - 1).bit_length())
    return torch.nn.functional.pad(strip, (0, width - strip.shape[1])).contiguous()


def _joined(parts: Any, count: int) -> Total:
    """The sum of a few arrays of int64, (s, d, p), which is nearly always small enough to be formed on the device."""
    each = 1 << (17 + SCORE_BITS)
    # The sum is on its way before anybody knows that it fits: one wait for the device instead of several.
    whole = _on_the_way(parts.sum(dim=0))
    peak = sum(parts.abs().amax(dim=(1, 2)).tolist())
    if peak < _ROOM:
        # It counts as the number of rows that could have added up to it.
        return Total.of(whole.numpy(), each=each, rows=-(-peak // each))
    total = Total.zeros(tuple(parts.shape[1:]), each=each)
    for at, part in enumerate(parts):
        total.add(on_host(part), min(_MOST_ROWS, count - at * _MOST_ROWS))
    return total


def _on_the_way(values: Any) -> Any:
    """An array of the device in memory, complete once the device has done everything that it was asked to do before."""
    # Only pinned memory is copied without a stop on the way. torch keeps it and hands it out again.
    return torch.empty(values.shape, dtype=values.dtype, pin_memory=True).copy_(values, non_blocking=True)


def fused_squares(values: Any, domain: Domain) -> Any:
    """The squared norms, (n,), of rows around the center and in the units of `domain`; None where the kernels do not apply."""
    return _squares(_Table.of(values, domain), leaves(values.shape[1]), None) if _applies(values) else None


def _applies(values: Any) -> bool:
    """Whether the kernels can read these rows."""
    if triton is None or values.device.type != "cuda" or len(leaves(values.shape[1])) > _MOST_LEAVES:
        return False
    return len(values) > 0 and values.stride(1) == 1 and values.dtype is not torch.bool


def _factors(
    table: _Table, domain: Domain, plan: list[tuple[int, int]], weights: Array | None, kept: dict[Any, Any]
) -> tuple[Any, Any]:
    """The factor, (n,), that clips each row, and the most, (n,), that its entries may be before that; None for no limits."""
    # The version counts changes in place: old factors would let changed rows out of the ball.
    key = table.values._version, *_content(domain)
    if key not in kept:
        squares, limits = _squares(table, plan, None), None
        huge = ~torch.isfinite(squares)
        if bool(huge.any()):
            limits = torch.full_like(squares, np.inf).masked_fill_(huge, SQUARABLE)
            squares = _squares(table, plan, limits)
        there = grid_limits(domain, weights, unit=unit_of(domain), squared=True)
        most, room = (torch.as_tensor(each, device=table.values.device) for each in there)
        # Only the last domain is kept: factors take eight bytes a row of the device's memory.
        kept.clear()
        kept[key] = clip_factors(torch, squares, most, room), limits
    factors, limits = kept[key]
    return factors, limits


def _content(domain: Domain) -> tuple[Any, ...]:
    """What decides the factors: equal for equal domains."""
    arrays = (domain.center, domain.scale, domain.low, domain.high)
    return domain.radius, domain.claimed, *(None if part is None else part.tobytes() for part in arrays)


def _squares(table: _Table, plan: list[tuple[int, int]], limits: Any) -> Any:
    """The squared norm of each row, (n,), with entries clipped to the limits, (n,)."""
    values, device = table.values, table.values.device
    starts, sizes = (torch.tensor(each, dtype=torch.int32, device=device) for each in zip(*plan, strict=True))
    found = torch.empty(len(values), dtype=torch.float64, device=device)
    shape = {"LEAVES": len(plan), "LEVELS": len(plan).bit_length() - 1, "LIMITED": limits is not None, "num_warps": 8}
    here = (values, values.stride(0), found if limits is None else limits, *table.parts)
    _squares_kernel[(len(values),)](*here, starts, sizes, found, **shape, **table.flags)
    return found


def _products(table: _Table, rows: slice, factors: Any, limits: Any, basis: Any) -> Any:
    """The products of these rows with their scores on a basis, (s, d, p), in int64: one sum for each `_MOST_ROWS` of them."""
    values = table.values[rows]
    (count, dim), width, device = values.shape, basis.shape[1], values.device
    # Scores have 27 bits. Many processors read them, and half the bytes are half the time.
    scores = torch.empty((count, width), dtype=torch.int32, device=device)
    sums = -(-count // _MOST_ROWS)
    found = torch.zeros((sums, dim, width), dtype=torch.int64, device=device)
    here = (values, values.stride(0), factors[rows], factors if limits is None else limits[rows], *table.parts)
    shape = {"WIDTH": width, "LIMITED": limits is not None, **table.flags}
    high, across, warps, stages = _SCORE_TILE
    shape |= {"num_warps": warps, "num_stages": stages}
    _scores_kernel[(-(-count // high),)](*here, basis, scores, count, dim, SCORE, HIGH=high, ACROSS=across, **shape)
    across, high, warps, stages = _BACK_TILE
    shape |= {"num_warps": warps, "num_stages": stages}
    groups = -(-min(count, _MOST_ROWS) // (_PARTS * _SCORED_ROWS))
    sizes = {"GROUP": _SCORED_ROWS, "PARTS": _PARTS, "HIGH": high, "ACROSS": across}
    _back_kernel[(-(-dim // across), sums * _PARTS)](*here, scores, found, count, dim, groups, **sizes, **shape)
    return found


def _kernel(act: Callable[..., Any]) -> Any:
    """`act` compiled for the GPU when it is first called. Its annotations are quoted, because the compiler reads them."""
    return act if triton is None else triton.jit(act)


@_kernel
def _moved(
    x: "Any",
    most: "Any",
    center: "Any",
    scale: "Any",
    low: "Any",
    high: "Any",
    CENTER: "tl.constexpr",
    SCALE: "tl.constexpr",
    BOX: "tl.constexpr",
    LIMITED: "tl.constexpr",
) -> "Any":
    """Entries as `Domain` moves them, with those clipped that no square could hold."""
    v = x.to(tl.float64)
    if BOX:
        v = tl.minimum(tl.maximum(v, low), high)
    if CENTER:
        v = v - center
    if SCALE:
        v = libdevice.div_rn(v, scale)
    if LIMITED:
        v = tl.minimum(tl.maximum(v, -most), most)
    return v


@_kernel
def _squares_kernel(
    values: "Any",
    stride: "Any",
    limits: "Any",
    centers: "Any",
    scales: "Any",
    lows: "Any",
    highs: "Any",
    starts: "Any",
    sizes: "Any",
    found: "Any",
    LEAVES: "tl.constexpr",
    LEVELS: "tl.constexpr",
    CENTER: "tl.constexpr",
    SCALE: "tl.constexpr",
    BOX: "tl.constexpr",
    LIMITED: "tl.constexpr",
) -> None:
    """The squared norm of one row: eight running sums in each leaf, added in pairs, then the leaves, level by level."""
    row = tl.program_id(0).to(tl.int64)
    leaf = tl.arange(0, LEAVES)
    start = tl.load(starts + leaf)
    size = tl.load(sizes + leaf)
    even = size - size % 8
    lane = tl.arange(0, 8)
    most = tl.load(limits + row)
    sums = tl.zeros([LEAVES, 8], tl.float64)
    for step in range(16):
        column = start[:, None] + 8 * step + lane[None, :]
        inside = (8 * step < even)[:, None] & (lane[None, :] >= 0)
        center = tl.load(centers + column, mask=inside, other=0.0) if CENTER else 0.0
        scale = tl.load(scales + column, mask=inside, other=1.0) if SCALE else 1.0
        low = tl.load(lows + column, mask=inside, other=0.0) if BOX else 0.0
        high = tl.load(highs + column, mask=inside, other=0.0) if BOX else 0.0
        x = tl.load(values + row * stride + column, mask=inside, other=0)
        v = _moved(x, most, center, scale, low, high, CENTER, SCALE, BOX, LIMITED)
        sums += v * v
    fours = tl.sum(tl.reshape(sums, [LEAVES, 4, 2]), axis=2)
    twos = tl.sum(tl.reshape(fours, [LEAVES, 2, 2]), axis=2)
    total = tl.sum(twos, axis=1)
    # What is left over of the last leaf is added one by one.
    for step in range(7):
        column = start + even + step
        inside = step < size - even
        center = tl.load(centers + column, mask=inside, other=0.0) if CENTER else 0.0
        scale = tl.load(scales + column, mask=inside, other=1.0) if SCALE else 1.0
        low = tl.load(lows + column, mask=inside, other=0.0) if BOX else 0.0
        high = tl.load(highs + column, mask=inside, other=0.0) if BOX else 0.0
        x = tl.load(values + row * stride + column, mask=inside, other=0)
        v = _moved(x, most, center, scale, low, high, CENTER, SCALE, BOX, LIMITED)
        total += v * v
    for level in tl.static_range(LEVELS):
        total = tl.sum(tl.reshape(total, [LEAVES >> (level + 1), 2]), axis=1)
    tl.store(found + row + tl.arange(0, 1), tl.reshape(total, [1]))


@_kernel
def _scores_kernel(
    values: "Any",
    stride: "Any",
    factors: "Any",
    limits: "Any",
    centers: "Any",
    scales: "Any",
    lows: "Any",
    highs: "Any",
    basis: "Any",
    scores: "Any",
    count: "Any",
    dim: "Any",
    fine: "Any",
    HIGH: "tl.constexpr",
    ACROSS: "tl.constexpr",
    WIDTH: "tl.constexpr",
    CENTER: "tl.constexpr",
    SCALE: "tl.constexpr",
    BOX: "tl.constexpr",
    LIMITED: "tl.constexpr",
) -> None:
    """The scores of `HIGH` rows: whole rows times the basis, in finer units, rounded towards zero."""
    row = tl.program_id(0).to(tl.int64) * HIGH + tl.arange(0, HIGH)
    there = row < count
    factor = tl.load(factors + row, mask=there, other=0.0)
    most = tl.load(limits + row, mask=there, other=0.0)[:, None] if LIMITED else 0.0
    place = tl.arange(0, WIDTH)
    total = tl.zeros([HIGH, WIDTH], tl.float64)
    for first in range(0, dim, ACROSS):
        column = first + tl.arange(0, ACROSS)
        inside = column < dim
        center = tl.load(centers + column, mask=inside, other=0.0)[None, :] if CENTER else 0.0
        scale = tl.load(scales + column, mask=inside, other=1.0)[None, :] if SCALE else 1.0
        low = tl.load(lows + column, mask=inside, other=0.0)[None, :] if BOX else 0.0
        high = tl.load(highs + column, mask=inside, other=0.0)[None, :] if BOX else 0.0
        x = tl.load(values + row[:, None] * stride + column[None, :], mask=there[:, None] & inside[None, :], other=0)
        v = _moved(x, most, center, scale, low, high, CENTER, SCALE, BOX, LIMITED)
        whole = libdevice.rint(v * factor[:, None])
        part = tl.load(basis + column[:, None] * WIDTH + place[None, :], mask=inside[:, None], other=0.0)
        total = tl.dot(whole, part, total, out_dtype=tl.float64)
    tl.store(
        scores + row[:, None] * WIDTH + place[None, :], libdevice.trunc(total * fine).to(tl.int32), mask=there[:, None]
    )


@_kernel
def _back_kernel(
    values: "Any",
    stride: "Any",
    factors: "Any",
    limits: "Any",
    centers: "Any",
    scales: "Any",
    lows: "Any",
    highs: "Any",
    scores: "Any",
    found: "Any",
    count: "Any",
    dim: "Any",
    groups: "Any",
    GROUP: "tl.constexpr",
    PARTS: "tl.constexpr",
    HIGH: "tl.constexpr",
    ACROSS: "tl.constexpr",
    WIDTH: "tl.constexpr",
    CENTER: "tl.constexpr",
    SCALE: "tl.constexpr",
    BOX: "tl.constexpr",
    LIMITED: "tl.constexpr",
) -> None:
    """Products of `ACROSS` columns of a part of the rows with their scores: groups add up in float64, and they in int64."""
    column = tl.program_id(0) * ACROSS + tl.arange(0, ACROSS)
    inside = column < dim
    place = tl.arange(0, WIDTH)
    center = tl.load(centers + column, mask=inside, other=0.0)[None, :] if CENTER else 0.0
    scale = tl.load(scales + column, mask=inside, other=1.0)[None, :] if SCALE else 1.0
    low = tl.load(lows + column, mask=inside, other=0.0)[None, :] if BOX else 0.0
    high = tl.load(highs + column, mask=inside, other=0.0)[None, :] if BOX else 0.0
    total = tl.zeros([ACROSS, WIDTH], tl.int64)
    first = tl.program_id(1).to(tl.int64) * groups * GROUP
    for group in range(groups):
        exact = tl.zeros([ACROSS, WIDTH], tl.float64)
        for step in range(0, GROUP, HIGH):
            row = first + group * GROUP + step + tl.arange(0, HIGH)
            there = row < count
            factor = tl.load(factors + row, mask=there, other=0.0)
            most = tl.load(limits + row, mask=there, other=0.0)[:, None] if LIMITED else 0.0
            x = tl.load(
                values + row[:, None] * stride + column[None, :], mask=there[:, None] & inside[None, :], other=0
            )
            v = _moved(x, most, center, scale, low, high, CENTER, SCALE, BOX, LIMITED)
            whole = libdevice.rint(v * factor[:, None])
            score = tl.load(scores + row[:, None] * WIDTH + place[None, :], mask=there[:, None], other=0).to(tl.float64)
            exact = tl.dot(tl.trans(whole), score, exact, out_dtype=tl.float64)
        total += exact.to(tl.int64)
    # Whole numbers: the order in which processors add them does not matter.
    into = found + (tl.program_id(1) // PARTS) * dim * WIDTH
    tl.atomic_add(into + column[:, None] * WIDTH + place[None, :], total, mask=inside[:, None])
