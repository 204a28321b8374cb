"""Blocks of rows on a device, moved and measured there with the operations of `Domain`, in their order."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, final

import numpy as np

from eigenveil.core.domain import SQUARABLE, Domain, clip_factors
from eigenveil.linalg import Array

__all__ = ["DeviceBlock", "Mover", "leaves", "on_host"]

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
        return (
            None if gaps is None or gaps.rule not in ("groups", "drop") else self.put(np.eye(gaps.groups)[gaps.group])
        )

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
            from eigenveil.data.engines.gpu.fused import fused_squares

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
    for place in rest:
        total = total + numbers[:, place]
    return total


def grid_limits(domain: Domain, weights: Array | None, *, unit: float, squared: bool) -> tuple[Array, Array]:
    """What `Domain.whole` makes the factors of dense rows from, (b,) each, or (1,) without weights: for `clip_factors`."""
    most, room = domain.limits(weights, unit, np.sqrt(domain.dim) / 2, squared)
    return np.atleast_1d(most), np.atleast_1d(room)
