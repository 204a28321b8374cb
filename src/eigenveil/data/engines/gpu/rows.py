"""`DeviceRows`: rows in an array on a GPU, or on any device of an array-API library, that work out their sums there."""

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, TypeVar, final

import numpy as np

from eigenveil.core.counts import ColumnTailsWork, TailsWork, counted, no_counts
from eigenveil.core.domain import SCORE, SCORE_BITS, Domain, unit_of
from eigenveil.core.rows import Block, Progress, RowSum, require_real
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
from eigenveil.data.engines.gpu.fused import DeviceBlock, Mover, on_host
from eigenveil.data.rows import FILL_PUBLICLY, DenseRows, WatchedRows, WeightedRows, person_weights
from eigenveil.errors import EngineLost, ParameterError, require, require_param
from eigenveil.linalg import Array

__all__ = ["DeviceRows", "device_sum", "float_total", "rows_on_device", "words_for_the_device"]

# Rows of a table have 17 bits, so 2^19 of their products, or of the entries for a sum, add up exactly in float64.
_ROW_BITS: Final = 17
_EXACT_ROWS: Final = 1 << 19
# Scores have 27 bits: so many of their products with rows.
_SCORED_ROWS: Final = 1 << 9
# Columns from which a Gram matrix is worth computing by strips, and how many strips there are.
_WIDE, _STRIPS = 1024, 4
# What sums in int64 may reach on the device before they are brought here.
_ROOM: Final = 1 << 62


def device_sum(rows: "DeviceRows", work: Any) -> Any:
    """The sum that `work` describes, or None if it must be worked out in memory, block by block."""
    if isinstance(work, CountWork):
        # A count needs the weights alone: rows of one zero each have them.
        zeros = DenseRows(np.broadcast_to(np.float64(0.0), (rows.shape[0], 1)))
        return work.of(zeros if rows.weights is None else WeightedRows(zeros, rows.weights))
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


def _gram(rows: "DeviceRows", work: GramWork, mover: Mover) -> WholeSums:
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


def _sum(rows: "DeviceRows", work: SumWork, mover: Mover) -> WholeSums:
    unit = sum_unit(work.region)

    def product(block: DeviceBlock) -> Any:
        return rows.xp.sum(mover.whole(block, unit=unit, squared=False), axis=0)

    return WholeSums(total=_added_up(rows, product, (work.region.dim,), each=1 << (_ROW_BITS + SUM_BITS)), unit=unit)


def _products(rows: "DeviceRows", work: ProductsWork, mover: Mover) -> WholeSums:
    domain, basis = mover.domain, on_basis_grid(mover.put(work.basis), rows.xp)
    if (faster := rows.products(domain, basis)) is not None:
        return faster
    unit = unit_of(domain)

    def product(block: DeviceBlock) -> Any:
        inside = mover.whole(block, unit=unit, squared=True)
        scores = rows.xp.trunc(inside @ basis * SCORE)
        starts = range(0, len(block), _SCORED_ROWS)
        ends = (slice(at, min(at + _SCORED_ROWS, len(block))) for at in starts)
        parts = (inside[group, :].T @ scores[group, :] for group in ends)
        # Groups are added in int64: more of these products do not fit into float64.
        return sum(rows.xp.astype(part, rows.xp.int64) for part in parts)

    total = _added_up(rows, product, work.basis.shape, each=1 << (_ROW_BITS + SCORE_BITS))
    return WholeSums(total=total, unit=unit * (unit / SCORE))


def _added_up(rows: "DeviceRows", product: Callable[[DeviceBlock], Any], shape: tuple[int, ...], *, each: int) -> Total:
    """The sum of what `product` finds in each block, in whole numbers, of which a row adds at most `each`."""
    total, running, count = None, None, 0
    for block in rows.device_blocks():
        assert len(block) <= _EXACT_ROWS
        block_sum = rows.xp.astype(product(block), rows.xp.int64)
        # The running sum is brought here before it could overflow. When that is depends on row counts alone.
        if (count + len(block)) * each > _ROOM and running is not None:
            total = total or Total.zeros(shape, each=each)
            total.add(on_host(running), count)
            running, count = None, 0
        running, count = block_sum if running is None else running + block_sum, count + len(block)
    if total is None and running is not None:
        return Total.of(_own(running), each=each, rows=count)
    total = total or Total.zeros(shape, each=each)
    if running is not None:
        total.add(on_host(running), count)
    return total


def _own(values: Any) -> Any:
    """An array of the device in memory that may be changed: arrays of libraries in memory share theirs."""
    array = on_host(values)
    return array if hasattr(values, "cpu") and values.device.type != "cpu" else np.array(array)


def _trace(rows: "DeviceRows", work: TraceWork, mover: Mover) -> int:
    unit, total = unit_of(work.region) ** 2, 0
    for block in rows.device_blocks():
        # Rows are clipped to the ball, so a norm beyond it counts as the radius.
        inside = np.minimum(on_host(mover.measured(block.values)[1]), work.region.radius**2)
        inside = inside if block.weights is None else inside * block.weights
        total += int(np.floor(inside / unit).sum())
    return total


def _tails(rows: "DeviceRows", work: TailsWork, mover: Mover) -> Total:
    total = no_counts(work.cells.count)
    for block in rows.device_blocks():
        work.count(total, np.sqrt(on_host(mover.measured(block.values)[1])), block.weights)
    return total


def _column_tails(rows: "DeviceRows", work: ColumnTailsWork, mover: Mover) -> Total:
    xp, dim, count = rows.xp, work.domain.dim, work.cells.count
    total, edges = no_counts(dim * count), mover.put(work.cells.edges)
    first = count * xp.arange(dim, dtype=xp.int64, device=rows.device)
    for block in rows.device_blocks():
        index = xp.searchsorted(edges, mover.measured(block.values)[0]) + first
        total.add(_counted(xp.reshape(index, (-1,)), block.weights, dim, dim * count), len(block))
    return total


def _counted(index: Any, weights: Array | None, dim: int, cells: int) -> Any:
    """How many entries are in each cell, in `COUNT_UNIT`: counted on the device if it can, because they are many."""
    each = None if weights is None else np.repeat(weights, dim)
    if not hasattr(index, "scatter_add_"):
        return counted(on_host(index), each, cells)
    if each is None:
        return on_host(index.bincount(minlength=cells)) * round(1 / COUNT_UNIT)
    whole = index.new_tensor(whole_weights(each))
    return on_host(index.new_zeros(cells).scatter_add_(0, index, whole))


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
_Sums = TypeVar("_Sums")
# Numbers of a block: half a gigabyte in float64, enough to keep a large GPU busy. A few copies of it are made at a time.
_BLOCK_NUMBERS: Final = 1 << 26
# More rows do not add up exactly in float64.
_MOST_ROWS: Final = 1 << 18
_NOT_FINITE: Final = f"{{X}} contains NaN or infinity. {FILL_PUBLICLY}"
_INSTALL: Final = "Install the extra: pip install 'eigenveil[torch]'"


def rows_on_device(X: Any, *, device: Any = None, gaps: bool = False) -> "DeviceRows":
    """Rows whose sums are worked out on a GPU, to be passed to any estimator in place of a table.

    Parameters
    ----------
    X : array of shape (n, d)
        A torch tensor, or an array of any library that follows the array API. It stays where it is. A numpy array, or a
        memory map of one, is brought to `device` block by block while the device works, and may be larger than its memory.
    device : str or None
        Where to work, such as "cuda" or "cuda:1", for a numpy array. Without it, where `X` is.
    gaps : bool, default False
        Whether NaN is a missing value. The estimator then needs a rule for it, such as ``missing="counts"``.

    Returns
    -------
    DeviceRows
        A fit gives the same bits as the same rows in memory.

    Examples
    --------
    >>> import array_api_strict as xp
    >>> from eigenveil import PrivatePCA
    >>> X = np.random.default_rng(0).normal(size=(2000, 5))
    >>> there = rows_on_device(xp.asarray(X))
    >>> asked = {"epsilon": 1.0, "delta": 1e-6, "row_bound": 4.0, "random_state": 1}
    >>> bool((PrivatePCA(2, **asked).fit(there).components_ == PrivatePCA(2, **asked).fit(X).components_).all())
    True
    """
    if isinstance(X, np.ndarray):
        require(not isinstance(X, np.ma.MaskedArray), "X is a masked array, whose hidden entries would be used. Fill them")
        require(X.ndim == 2, f"rows must have two dimensions, got {X.ndim}")
        require_real(X.dtype, "X")
        torch = _torch()
        where = _torch_device(torch, "cuda" if device is None else device)
        return DeviceRows(values=X, xp=_namespace(torch.empty(0, device=where)), device=where, gaps=gaps)
    # Layouts of torch, in which zeros are not stored.
    dense = str(getattr(X, "layout", "torch.strided")) == "torch.strided"
    require(
        dense, "X is a sparse tensor, and sums on a device need dense ones. Pass X.to_dense(), or a scipy sparse matrix in memory"
    )
    if hasattr(X, "detach"):
        # Gradients play no part in a fit, and would keep blocks from being copied to memory.
        X = X.detach()
    if str(getattr(X, "dtype", "")) == "torch.bfloat16":
        # numpy has no such numbers, and float32 holds each of them.
        X = X.float()
    if device is not None and hasattr(X, "to"):
        X = X.to(_torch_device(_torch(), device))
    xp = _namespace(X)
    require(X.ndim == 2, f"rows must have two dimensions, got {X.ndim}")
    real = xp.isdtype(X.dtype, ("bool", "integral", "real floating"))
    require(bool(real), f"X must hold real numbers, got dtype {X.dtype}")
    rows = DeviceRows(values=X, xp=xp, device=X.device, gaps=gaps)
    with words_for_the_device():
        rows.require_finite()
    return rows


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class DeviceRows:
    """Rows, (n, d), in an array on a `device`, or on their way to it. Sums are worked out there and only sums come back.

    Sums that the device does not know, and steps that need the rows themselves, read copies of blocks in memory. The device is
    in the same hands as the memory, so that reveals nothing.
    """

    sparse: ClassVar = False
    values: Any
    xp: Any  # The array-API functions of the device's library.
    device: Any  # In the library's terms.
    weights: Array | None = None  # How much each row counts, (n,), in memory.
    progress: Progress | None = None
    gaps: bool = False  # NaN is a missing value.
    # The last factors by which rows were clipped, on the device: a power iteration asks for the same ones in every round.
    _kept: dict[Any, Any] = field(default_factory=dict, repr=False)

    @property
    def shape(self) -> tuple[int, int]:
        return int(self.values.shape[0]), int(self.values.shape[1])

    @property
    def counts_people(self) -> bool:
        return self.weights is not None

    def by_person(self, person: Any) -> "DeviceRows":
        """The same rows, weighted so that a person with several of them counts once."""
        # Kept factors have the old weights in them, so these rows begin with none.
        return replace(self, weights=person_weights(person, self.shape[0]), _kept={})

    def blocks(self, size: int) -> Iterator[Block]:
        """Copies of blocks in memory, for steps that need the rows themselves."""
        for start in range(0, self.shape[0], size):
            values = on_host(self.values[start : min(start + size, self.shape[0]), :])
            good = ~np.isinf(values) if self.gaps else np.isfinite(values)
            require_param(bool(good.all()), _NOT_FINITE)
            yield Block(values, None if self.weights is None else self.weights[start : start + size])

    def total(self, work: RowSum[_Sums], *, progress: Progress | None = None) -> _Sums:
        """`work` over all rows. `progress` is told how many rows were just done."""
        # A warning of numpy would reveal something about the row that caused it.
        with words_for_the_device(), np.errstate(all="ignore"):
            sums: _Sums | None = device_sum(replace(self, progress=progress), work)
        if sums is not None:
            return sums
        copies = _Copies(self.shape, self.blocks)
        return work.of(copies if progress is None else WatchedRows(copies, progress))

    def device_blocks(self) -> Iterator[DeviceBlock]:
        """The rows on the device, in order. Values that were elsewhere are checked when they arrive."""
        for start, values in self._pieces():
            yield DeviceBlock(values, start, None if self.weights is None else self.weights[start : start + int(values.shape[0])])
            if self.progress is not None:
                self.progress(int(values.shape[0]))

    def products(self, domain: Domain, basis: Any) -> WholeSums | None:
        """The Gram matrix times a basis on its grid, on the device, by kernels for NVIDIA GPUs; None where these do not apply."""
        # The kernels need the whole table on the device, and rows in memory come block by block.
        on_gpu = getattr(self.device, "type", None) == "cuda" and not isinstance(self.values, np.ndarray)
        if not on_gpu or domain.gaps is not None:
            return None
        from eigenveil.data.engines.gpu.fused import fused_products

        sums = fused_products(self.values, domain, basis, weights=self.weights, cache=self._kept)
        if sums is not None and self.progress is not None:
            self.progress(self.shape[0])
        return sums

    def _pieces(self) -> Iterator[tuple[int, Any]]:
        (count, dim), is_host = self.shape, isinstance(self.values, np.ndarray)
        # Smaller on their way, so that the device has to wait less for the first.
        size = max(1, min(_MOST_ROWS, _BLOCK_NUMBERS // (8 if is_host else 1) // max(dim, 1)))
        slices = ((start, self.values[start : min(start + size, count), :]) for start in range(0, count, size))
        return _uploaded(slices, self.device, gaps=self.gaps) if is_host else slices

    def require_finite(self) -> None:
        """Refuse infinity, and NaN unless it is a missing value. No error shows a value."""
        if self.xp.isdtype(self.values.dtype, "real floating"):
            for _, values in self._pieces():
                good = ~self.xp.isinf(values) if self.gaps else self.xp.isfinite(values)
                require_param(bool(self.xp.all(good)), _NOT_FINITE)

    def __repr__(self) -> str:
        return f"DeviceRows(columns={self.shape[1]}, device={self.device})"


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Copies:
    """The rows of a device as rows in memory, a block at a time. They have no `total`, so sums read the blocks."""

    sparse: ClassVar = False
    shape: tuple[int, int]
    blocks: Callable[[int], Iterator[Block]]


def _uploaded(slices: Iterator[tuple[int, Any]], device: Any, *, gaps: bool) -> Iterator[tuple[int, Any]]:
    """Pieces of an array in memory, on the device; the next one is on its way while the caller works on this one."""
    torch = _torch()
    if device.type != "cuda":
        yield from ((start, _checked(torch, _tensor(torch, piece).to(device), gaps=gaps)) for start, piece in slices)
        return
    # Only pinned memory is copied while the device computes. There are two buffers: one is filled while the other is sent.
    lane = torch.cuda.Stream(device)
    buffers: list[Any] = [None, None]
    sent: list[Any] = [None, None]
    coming: tuple[int, Any, Any] | None = None
    for at, (start, piece) in enumerate(slices):
        source, slot = _tensor(torch, piece), at % 2
        if sent[slot] is None:
            buffers[slot] = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
        else:
            # A buffer is filled again only after its last copy has left it.
            sent[slot].synchronize()
        pinned = buffers[slot][: len(source)].copy_(source)
        with torch.cuda.stream(lane):
            tensor = pinned.to(device, non_blocking=True)
            sent[slot] = torch.cuda.Event()
            sent[slot].record(lane)
        if coming is not None:
            yield _arrived(torch, *coming, gaps=gaps)
        coming = start, tensor, sent[slot]
    if coming is not None:
        yield _arrived(torch, *coming, gaps=gaps)


def _tensor(torch: Any, piece: Any) -> Any:
    """A piece of a numpy array as a tensor that shares its memory."""
    with warnings.catch_warnings():
        # Of memory that may not be written to, such as a memory map. Nothing here writes to it.
        warnings.simplefilter("ignore")
        return torch.from_numpy(np.ascontiguousarray(piece))


def _arrived(torch: Any, start: int, tensor: Any, ready: Any, *, gaps: bool) -> tuple[int, Any]:
    stream = torch.cuda.current_stream(tensor.device)
    stream.wait_event(ready)
    # The allocator must not hand out this memory again before the caller's work on it is done.
    tensor.record_stream(stream)
    return start, _checked(torch, tensor, gaps=gaps)


def _checked(torch: Any, tensor: Any, *, gaps: bool) -> Any:
    good = ~torch.isinf(tensor) if gaps else torch.isfinite(tensor)
    require_param(bool(good.all()), _NOT_FINITE)
    return tensor


@contextmanager
def words_for_the_device() -> Iterator[None]:
    """Errors of the device's library in our words: nothing of the sum was released."""
    try:
        yield
    except Exception as error:
        # The error is told by its name, because torch may not be installed.
        if type(error).__name__ == "OutOfMemoryError":
            raise EngineLost(
                "the device has too little free memory for this sum, and nothing was released. Pass a numpy array to "
                "rows_on_device, which brings rows to the device block by block, or free memory there"
            ) from None
        if type(error).__module__.partition(".")[0] in ("torch", "triton"):
            raise EngineLost(
                f"the device failed in the middle of a sum ({type(error).__name__}), and nothing was released"
            ) from None
        raise


def _namespace(values: Any) -> Any:
    """The array-API functions for these arrays."""
    try:
        from array_api_compat import array_namespace
    except ModuleNotFoundError:
        raise ImportError(f"rows on a device need array-api-compat. {_INSTALL}") from None
    try:
        return array_namespace(values)
    except TypeError:
        raise ParameterError(
            f"{{X}} must be an array of a library that follows the array API, such as torch, got {type(values).__name__}"
        ) from None


def _torch() -> Any:
    try:
        import torch
    except ModuleNotFoundError:
        raise ImportError(f"bringing rows to a device needs torch. {_INSTALL}") from None
    return torch


def _torch_device(torch: Any, name: Any) -> Any:
    """A device of torch, if it is there."""
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, TypeError):
        raise ParameterError(
            "{device} must be one that torch can use here, got {@name}. This machine may have no GPU: "
            "torch.cuda.is_available() tells",
            name=str(name),
        ) from None
    return device
