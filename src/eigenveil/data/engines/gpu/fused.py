"""Products of the Gram matrix with a basis on an NVIDIA GPU, in kernels that clip rows as they read them.

Without them each step of the clipping writes a table as large as the rows, and the memory of the device is what takes the time.
Three kernels read the rows once each: their squared norms, their scores, and the products of rows with scores. No clipped row is
ever written. Norms add up in numpy's order (`row_sums`), nothing is fused that would round differently, and everything
else is whole numbers, which gives the bits of rows in memory.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, final

import numpy as np

from eigenveil.core.domain import SCORE, SCORE_BITS, SQUARABLE, Domain, clip_factors, unit_of
from eigenveil.core.whole import Total, WholeSums
from eigenveil.linalg import Array

__all__ = ["DeviceBlock", "Mover", "fused_products", "fused_squares", "leaves", "on_host"]

# numpy adds up a row in halves, until so few numbers are left, and these in eight running sums.
_LEAF: Final = 128
_LANES: Final = 8


@final
@dataclass(frozen=True, slots=True, eq=False)
class DeviceBlock:
    """Some rows, (b, d), in an array on a device, the first of which is row `start`; `weights`, (b,), are in memory."""

    values: Any
    start: int
    weights: Array | None = None

    def __len__(self) -> int:
        return int(self.values.shape[0])


@final
class Mover:
    """A domain's center, scale and column bounds on the device: what is done to every entry before it is clipped."""

    def __init__(self, xp: Any, device: Any, domain: Domain) -> None:
        self.xp, self.device, self.domain = xp, device, domain

    @cached_property
    def parts(self) -> tuple[Any, Any, Any, Any]:
        """Center, scale, low and high on the device; None for each that the domain has not. Kernels bring their own."""
        domain = self.domain
        center, scale, low, high = (
            None if part is None else self.put(part) for part in (domain.center, domain.scale, domain.low, domain.high)
        )
        return center, scale, low, high

    @cached_property
    def filler(self) -> Any:
        """What missing entries become, (d,), on the device; None if that is not public."""
        gaps = self.domain.gaps
        return None if gaps is None or gaps.values is None else self.put(gaps.values)

    @cached_property
    def member(self) -> Any:
        """Which columns, (d, g), are in which group, where one missing entry takes its whole group along; None elsewhere."""
        gaps = self.domain.gaps
        return None if gaps is None or gaps.rule not in ("groups", "drop") else self.put(np.eye(gaps.groups)[gaps.group])

    def put(self, values: Array) -> Any:
        """An array of float64 on the device."""
        # Writable ones: torch warns of others. Nothing here writes to them.
        return self.xp.asarray(np.require(values, np.float64, ["C", "W"]), device=self.device)

    def moved(self, values: Any) -> Any:
        """The rows, (b, d), centered and in scaled units: what `Domain` does to dense rows, without its clipping of norms."""
        xp, (center, scale, low, high) = self.xp, self.parts
        rows = xp.astype(values, xp.float64)
        gone = None if self.domain.gaps is None else self._gone(rows)
        if self.filler is not None:
            rows = xp.where(gone, self.filler, rows)
        # The steps have the order of `Domain`: each of them rounds, and the bits must agree.
        if low is not None and high is not None:
            rows = xp.minimum(xp.maximum(rows, low), high)
        if center is not None:
            rows = rows - center
        rows = rows if scale is None else rows / scale
        if gone is None or self.filler is not None:
            return rows
        # After centering: at zero, an entry adds nothing to any sum.
        return xp.where(gone, xp.asarray(0.0, dtype=xp.float64, device=self.device), rows)

    def _gone(self, rows: Any) -> Any:
        """Which entries, (b, d), count as missing, with the rest of their group."""
        xp, missing = self.xp, self.xp.isnan(rows)
        if self.member is None:
            return missing
        # A product of zeros and ones counts the missing entries of each group, and says in which columns they count.
        lost = xp.astype(xp.astype(missing, xp.float64) @ self.member > 0, xp.float64)
        return lost @ self.member.T > 0

    def measured(self, values: Any) -> tuple[Any, Any]:
        """The moved rows, (b, d), and their squared norms, (b,), with entries that no square could hold clipped."""
        xp, rows = self.xp, self.moved(values)
        squares = None
        # The kernels read rows as they are, and do not know of gaps.
        if getattr(self.device, "type", None) == "cuda" and self.domain.gaps is None:
            squares = fused_squares(values, self.domain)
        if squares is None:
            squares = row_sums(xp, rows * rows)
        huge = ~xp.isfinite(squares)
        if math.isfinite(self.domain.radius) and bool(xp.any(huge)):
            limit = xp.asarray(SQUARABLE, dtype=xp.float64, device=self.device)
            rows = xp.where(huge[:, None], xp.minimum(xp.maximum(rows, -limit), limit), rows)
            squares = row_sums(xp, rows * rows)
        return rows, squares

    def whole(self, block: DeviceBlock, *, unit: float, squared: bool) -> Any:
        """The clipped rows, (b, d), in whole numbers of `unit`: the bits of `Domain.whole`."""
        rows, squares = self.measured(block.values)
        # The formula is that of `Domain`. It runs here, because the device would wait while norms go to memory and back.
        limits = grid_limits(self.domain, block.weights, unit=unit, squared=squared)
        factors = clip_factors(self.xp, squares, *map(self.put, limits))
        return self.xp.round(rows * factors[:, None])


def on_host(values: Any) -> Any:
    """An array of the device as one of numpy."""
    return values.cpu().numpy() if hasattr(values, "cpu") else np.asarray(values)


def row_sums(xp: Any, squares: Any) -> Any:
    """The sum of each row, (b,), of an array, (b, d), added up in the order of `numpy.add.reduce` over contiguous rows.

    A sum in another order can differ in its last bit. The row would be clipped a little differently than in memory, and two
    sites with the same rows would no longer agree.

    >>> rows = np.random.default_rng(1).random((3, 300))
    >>> bool((row_sums(np, rows) == np.add.reduce(rows, axis=1)).all())
    True
    """
    parts = [_leaf(xp, squares[:, start : start + size]) for start, size in leaves(squares.shape[1])]
    # Halves of halves: adjacent sums are added until one is left. A part that is missing adds nothing.
    while len(parts) > 1:
        pairs = zip(parts[::2], parts[1::2], strict=True)
        parts = [left if right is None else left + right for left, right in pairs]
    return parts[0]


def leaves(size: int) -> list[tuple[int, int]]:
    """Where the leaves of numpy's pairwise sum of `size` numbers begin, and how many numbers they have.

    There are a power of two of them, so that adjacent ones can be added level by level. Empty ones stand beside leaves that
    numpy does not divide as often as others.

    >>> leaves(300), leaves(264)[-2:]
    ([(0, 72), (72, 72), (144, 72), (216, 84)], [(128, 64), (192, 72)])
    """
    tree = [(0, size)]
    while max(length for _, length in tree) > _LEAF:
        tree = [half for start, length in tree for half in _halves(start, length)]
    return tree


def _halves(start: int, size: int) -> Iterator[tuple[int, int]]:
    # numpy divides at a multiple of its eight running sums, so this must do the same.
    half = size // 2 - size // 2 % _LANES if size > _LEAF else size
    yield start, half
    yield start + half, size - half


def _leaf(xp: Any, numbers: Any) -> Any:
    """The sums of a leaf's rows: eight running sums, added in pairs, and then what is left over, one by one."""
    size = numbers.shape[1]
    if size == 0:
        return None
    even = size - size % _LANES
    if even == 0:
        total, rest = numbers[:, 0], range(1, size)
    else:
        lanes = numbers[:, :_LANES]
        for start in range(_LANES, even, _LANES):
            lanes = lanes + numbers[:, start : start + _LANES]
        pairs = lanes[:, 0::2] + lanes[:, 1::2]
        fours = pairs[:, 0::2] + pairs[:, 1::2]
        total, rest = fours[:, 0] + fours[:, 1], range(even, size)
    for column in rest:
        total = total + numbers[:, column]
    return total


def grid_limits(domain: Domain, weights: Array | None, *, unit: float, squared: bool) -> tuple[Array, Array]:
    """What `Domain.whole` makes the factors of dense rows from, (b,) each, or (1,) without weights: for `clip_factors`."""
    max_factor, room = domain.limits(weights, unit, np.sqrt(domain.dim) / 2, squared)
    return np.atleast_1d(max_factor), np.atleast_1d(room)


try:
    import torch
    import triton
    import triton.language as tl
    from triton.language.extra import libdevice
except ModuleNotFoundError:
    triton = None

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
        parts = [domain.center, domain.scale, domain.low, domain.high]
        # A kernel needs an address also for a part that its flags switch off, and that of the rows will do.
        device_parts = tuple(
            values if part is None else torch.as_tensor(part, dtype=torch.float64, device=values.device) for part in parts
        )
        flags = {"CENTER": domain.center is not None, "SCALE": domain.scale is not None, "BOX": domain.low is not None}
        # A product and a sum fused into one operation would be rounded once instead of twice.
        return cls(values, device_parts, flags | {"enable_fp_fusion": False})


def fused_products(values: Any, domain: Domain, basis: Any, *, weights: Array | None, cache: dict[Any, Any]) -> WholeSums | None:
    """The Gram matrix of `values`, (n, d), times `basis`, (d, p), on its grid; None where the kernels do not apply.

    Both are on the device. `cache` has the factors of the last domain, so that the rounds of a power iteration measure the rows
    once.
    """
    if not _applies(values):
        return None
    table, plan = _Table.of(values, domain), leaves(values.shape[1])
    factors, limits = _factors(table, domain, plan, weights, cache)
    strips = [_padded(basis[:, first : first + _WIDEST]) for first in range(0, basis.shape[1], _WIDEST)]
    parts: list[Any] = []
    for start in range(0, len(values), _AT_ONCE):
        rows = slice(start, min(start + _AT_ONCE, len(values)))
        products = [_products(table, rows, factors, limits, strip) for strip in strips]
        parts.append(torch.cat(products, dim=2)[:, :, : basis.shape[1]])
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
    table: _Table, domain: Domain, plan: list[tuple[int, int]], weights: Array | None, cache: dict[Any, Any]
) -> tuple[Any, Any]:
    """The factor, (n,), that clips each row, and the most, (n,), that its entries may be before that; None for no limits."""
    # The version counts changes in place: old factors would let changed rows out of the ball.
    key = table.values._version, *_content(domain)
    if key not in cache:
        squares, limits = _squares(table, plan, None), None
        huge = ~torch.isfinite(squares)
        if bool(huge.any()):
            limits = torch.full_like(squares, np.inf).masked_fill_(huge, SQUARABLE)
            squares = _squares(table, plan, limits)
        host_limits = grid_limits(domain, weights, unit=unit_of(domain), squared=True)
        max_factor, room = (torch.as_tensor(each, device=table.values.device) for each in host_limits)
        # Only the last domain is kept: factors take eight bytes a row of the device's memory.
        cache.clear()
        cache[key] = clip_factors(torch, squares, max_factor, room), limits
    factors, limits = cache[key]
    return factors, limits


def _content(domain: Domain) -> tuple[Any, ...]:
    """What decides the factors: equal for equal domains."""
    arrays = (domain.center, domain.scale, domain.low, domain.high)
    return domain.radius, domain.claimed, *(None if part is None else part.tobytes() for part in arrays)


def _squares(table: _Table, plan: list[tuple[int, int]], limits: Any) -> Any:
    """The squared norm of each row, (n,), with entries clipped to the limits, (n,)."""
    values, device = table.values, table.values.device
    starts, sizes = (torch.tensor(each, dtype=torch.int32, device=device) for each in zip(*plan, strict=True))
    squares = torch.empty(len(values), dtype=torch.float64, device=device)
    shape = {"LEAVES": len(plan), "LEVELS": len(plan).bit_length() - 1, "LIMITED": limits is not None, "num_warps": 8}
    inputs = (values, values.stride(0), squares if limits is None else limits, *table.parts)
    _squares_kernel[(len(values),)](*inputs, starts, sizes, squares, **shape, **table.flags)
    return squares


def _products(table: _Table, rows: slice, factors: Any, limits: Any, basis: Any) -> Any:
    """The products of these rows with their scores on a basis, (s, d, p), in int64: one sum for each `_MOST_ROWS` of them."""
    values = table.values[rows]
    (count, dim), width, device = values.shape, basis.shape[1], values.device
    # Scores have 27 bits. Many processors read them, and half the bytes are half the time.
    scores = torch.empty((count, width), dtype=torch.int32, device=device)
    sums = -(-count // _MOST_ROWS)
    products = torch.zeros((sums, dim, width), dtype=torch.int64, device=device)
    inputs = (values, values.stride(0), factors[rows], factors if limits is None else limits[rows], *table.parts)
    shape = {"WIDTH": width, "LIMITED": limits is not None, **table.flags}
    high, across, warps, stages = _SCORE_TILE
    shape |= {"num_warps": warps, "num_stages": stages}
    _scores_kernel[(-(-count // high),)](*inputs, basis, scores, count, dim, SCORE, HIGH=high, ACROSS=across, **shape)
    across, high, warps, stages = _BACK_TILE
    shape |= {"num_warps": warps, "num_stages": stages}
    groups = -(-min(count, _MOST_ROWS) // (_PARTS * _SCORED_ROWS))
    sizes = {"GROUP": _SCORED_ROWS, "PARTS": _PARTS, "HIGH": high, "ACROSS": across}
    _back_kernel[(-(-dim // across), sums * _PARTS)](*inputs, scores, products, count, dim, groups, **sizes, **shape)
    return products


def _kernel(act: Callable[..., Any]) -> Any:
    """`act` compiled for the GPU when it is first called. Its annotations are quoted, because the compiler reads them."""
    return act if triton is None else triton.jit(act)


@_kernel
def _moved(
    x: "Any",
    limit: "Any",
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
        v = tl.minimum(tl.maximum(v, -limit), limit)
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
    out: "Any",
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
    limit = tl.load(limits + row)
    sums = tl.zeros([LEAVES, 8], tl.float64)
    for step in range(16):
        column = start[:, None] + 8 * step + lane[None, :]
        inside = (8 * step < even)[:, None] & (lane[None, :] >= 0)
        center = tl.load(centers + column, mask=inside, other=0.0) if CENTER else 0.0
        scale = tl.load(scales + column, mask=inside, other=1.0) if SCALE else 1.0
        low = tl.load(lows + column, mask=inside, other=0.0) if BOX else 0.0
        high = tl.load(highs + column, mask=inside, other=0.0) if BOX else 0.0
        x = tl.load(values + row * stride + column, mask=inside, other=0)
        v = _moved(x, limit, center, scale, low, high, CENTER, SCALE, BOX, LIMITED)
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
        v = _moved(x, limit, center, scale, low, high, CENTER, SCALE, BOX, LIMITED)
        total += v * v
    for level in tl.static_range(LEVELS):
        total = tl.sum(tl.reshape(total, [LEAVES >> (level + 1), 2]), axis=1)
    tl.store(out + row + tl.arange(0, 1), tl.reshape(total, [1]))


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
    present = row < count
    factor = tl.load(factors + row, mask=present, other=0.0)
    limit = tl.load(limits + row, mask=present, other=0.0)[:, None] if LIMITED else 0.0
    component = tl.arange(0, WIDTH)
    total = tl.zeros([HIGH, WIDTH], tl.float64)
    for first in range(0, dim, ACROSS):
        column = first + tl.arange(0, ACROSS)
        inside = column < dim
        center = tl.load(centers + column, mask=inside, other=0.0)[None, :] if CENTER else 0.0
        scale = tl.load(scales + column, mask=inside, other=1.0)[None, :] if SCALE else 1.0
        low = tl.load(lows + column, mask=inside, other=0.0)[None, :] if BOX else 0.0
        high = tl.load(highs + column, mask=inside, other=0.0)[None, :] if BOX else 0.0
        x = tl.load(values + row[:, None] * stride + column[None, :], mask=present[:, None] & inside[None, :], other=0)
        v = _moved(x, limit, center, scale, low, high, CENTER, SCALE, BOX, LIMITED)
        whole = libdevice.rint(v * factor[:, None])
        part = tl.load(basis + column[:, None] * WIDTH + component[None, :], mask=inside[:, None], other=0.0)
        total = tl.dot(whole, part, total, out_dtype=tl.float64)
    tl.store(
        scores + row[:, None] * WIDTH + component[None, :], libdevice.trunc(total * fine).to(tl.int32), mask=present[:, None]
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
    out: "Any",
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
    component = tl.arange(0, WIDTH)
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
            present = row < count
            factor = tl.load(factors + row, mask=present, other=0.0)
            limit = tl.load(limits + row, mask=present, other=0.0)[:, None] if LIMITED else 0.0
            x = tl.load(values + row[:, None] * stride + column[None, :], mask=present[:, None] & inside[None, :], other=0)
            v = _moved(x, limit, center, scale, low, high, CENTER, SCALE, BOX, LIMITED)
            whole = libdevice.rint(v * factor[:, None])
            score = tl.load(scores + row[:, None] * WIDTH + component[None, :], mask=present[:, None], other=0).to(tl.float64)
            exact = tl.dot(tl.trans(whole), score, exact, out_dtype=tl.float64)
        total += exact.to(tl.int64)
    # Whole numbers: the order in which processors add them does not matter.
    into = out + (tl.program_id(1) // PARTS) * dim * WIDTH
    tl.atomic_add(into + column[:, None] * WIDTH + component[None, :], total, mask=inside[:, None])
