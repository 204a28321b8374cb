"""The sums of rows that tasks ask for: exact ones where privacy is claimed, plain floating point where none is.

Exact sums and their sensitivities are in `eigenveil.core.sums`. A `Symmetric` has no rows: its matrix is used as the site
gave it, with the bound that the site vouches for.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eigenveil.core import sums as exact
from eigenveil.core.domain import FARTHEST, SHIFT, Domain, MissingPolicy, Region, center_scores, unit_of
from eigenveil.core.exact import exact_product
from eigenveil.core.mechanism import Bounded
from eigenveil.core.noise import step_of, steps_of
from eigenveil.core.rows import Block, Rows, block_size, total_of
from eigenveil.core.sums import CONTRACTION, require_contraction
from eigenveil.core.threads import Array
from eigenveil.core.unit import Neighbours, count_sensitivity, sum_sensitivity
from eigenveil.core.whole import (
    BASIS_UNIT,
    CACHED_ROWS,
    CenterSums,
    Integers,
    Total,
    WholeSparseGram,
    WholeSum,
    cached_rows,
    finished_gram,
    finished_sum,
    on_basis_grid,
    reach_of,
    sum_unit,
)
from eigenveil.data.rows import Symmetric
from eigenveil.errors import require
from eigenveil.privacy.floating import FloatProductsWork, FloatTraceWork, float_gram, float_gram_columns, float_scores, float_sum

__all__ = [
    "add_block",
    "add_packed",
    "bounded_count",
    "bounded_gram",
    "bounded_gram_times",
    "bounded_kept",
    "bounded_observed",
    "bounded_scores",
    "bounded_sum",
    "bounded_trace",
    "gram_columns",
    "whole_gram_columns",
    "whole_scores",
]


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
            piece, products, summed = (block.piece(start, _SPARSE_ROWS), WholeSparseGram(domain), WholeSum(domain, sparse=True))
            products.take(piece)
            # Around a center, whole sums are rounded.
            if domain.shifted_center is None:
                gram += products.total.whole()
            else:
                gram += np.rint(finished_gram(products.sums, domain) / unit_of(domain) ** 2).astype(np.int64)
            if total is not None:
                summed.take(piece)
                if summed.shifts is None:
                    total += summed.total.whole()
                else:
                    total += np.rint(finished_sum(summed.sums, domain) / summed.unit).astype(np.int64)
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
        # A matrix this small costs nothing, and all its rows at once are faster.
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
    unit, unit_of_sum, rounding = unit_of(domain), sum_unit(domain), np.sqrt(domain.dim) / 2
    for start in range(0, len(block), size):
        piece = block.piece(start, size)
        if total is None:
            inside = domain.whole(piece, unit=unit, squared=True, out=rows)
        else:
            # Twice as in `Domain.whole`, once for the sum and once for products, but norms are computed once.
            inside, squares = domain.measured(piece, rows)
            summed = fine[: len(piece)]
            by_sum = domain.to_grid(squares, piece, unit_of_sum, rounding, squared=False)
            np.multiply(inside, by_sum[:, None], out=summed)
            inside *= domain.to_grid(squares, piece, unit, rounding, squared=True)[:, None]
            np.rint(inside, out=inside)
            fresh_total += np.add.reduce(np.rint(summed, out=summed), axis=0)
        np.matmul(inside.T, inside, out=product)
        fresh += product
    del rows, fine, product
    for start in range(0, dim, CACHED_ROWS):
        gram[start : start + CACHED_ROWS] += fresh[start : start + CACHED_ROWS].astype(np.int64)
    if total is not None:
        total += fresh_total.astype(np.int64)


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
    yield from (_dense_columns(rows, chunk) * unit for chunk in slices)


def _dense_columns(rows: Array, chunk: slice) -> Array:
    """Columns of the Gram matrix of whole rows, in units."""
    if len(rows) <= _DENSE_ROWS:
        # All partial sums are whole numbers below 2^53, so the order of addition does not matter.
        return np.asarray(rows.T @ rows[:, chunk])
    total = Total.zeros((rows.shape[1], chunk.stop - chunk.start), each=1 << 34)
    for start in range(0, len(rows), _DENSE_ROWS):
        piece = rows[start : start + _DENSE_ROWS]
        total.add(piece.T @ piece[:, chunk], len(piece))
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
    for chunk in slices:
        total = Total.zeros((domain.dim, chunk.stop - chunk.start), each=reach**2)
        for across, by_column in pieces:
            total.add((across @ by_column[:, chunk]).toarray(), across.shape[1])
        if center is None:
            yield total.value(1.0)
        else:
            yield shifts.ends(center / unit_of(domain)).columns(total.pair(), chunk)


def bounded_scores(rows: Rows, *, basis: Array, domain: Domain, neighbours: Neighbours) -> Bounded:
    """The scores, (n, k), of the rows in `domain` on `basis`, (d, k): one row of scores for each person, who has one row.

    Sensitivity, for ||basis||_2 <= 1 + 1e-8: as of a sum, see `sum_sensitivity`. Proof. Bounds, center and basis are public,
    so only the scores of the person who changes differ. A row x in the ball has ||basis^T x|| <= ||basis||_2 B, and a zeroed row
    has zero scores. Scores of two rows are at most twice that apart. The number of rows is visible, so neighbours must be
    zero-out or replace-one.

    >>> from eigenveil.data.rows import DenseRows
    >>> rows, domain = DenseRows(np.array([[3.0, 4.0]])), Domain(dim=2, radius=1.0)
    >>> bounded_scores(rows, basis=np.eye(2)[:, 1:], domain=domain, neighbours=Neighbours.ZERO_OUT).value.round(3).tolist()
    [[0.8]]
    """
    require_contraction(basis, dim=domain.dim)
    require(
        neighbours in (Neighbours.ZERO_OUT, Neighbours.REPLACE_ONE),
        "one score for each person reveals how many there are: neighbours must be 'zero-out' or 'replace-one', got "
        f"{neighbours.value!r}",
    )
    require(not isinstance(rows, Symmetric), "a Symmetric has no rows to compute scores of")
    scores = (float_scores if domain.unit is None else whole_scores)(rows, basis=basis, domain=domain)
    # The basis is rounded onto its grid. Scores of sparse rows are sums of dim terms, and of as many for the center. Each term
    # is at most (FARTHEST + 1) radii and is off by 2^-53 of that.
    rounded = 2.0**-30 + domain.dim * (FARTHEST + 1) * 2.0**-51
    norm = CONTRACTION + math.sqrt(basis.size) * 2.0**-36 + rounded
    return Bounded(scores, norm * sum_sensitivity(domain.radius, neighbours))


def whole_scores(rows: Rows, *, basis: Array, domain: Domain) -> Array:
    """The scores, (n, p), of the clipped rows, each computed by itself, on a basis rounded onto its grid."""
    basis, unit, parts = on_basis_grid(basis), unit_of(domain), [np.zeros((0, basis.shape[1]))]
    center = domain.shifted_center
    for block in rows.blocks(block_size(rows)):
        require(block.weights is None, "scores need one row for each person: a table with several rows per person has none")
        if block.sparse:
            part = domain.to_grid_sparse(block, unit=unit)
            scores = part.rows @ basis
            if center is not None:
                scores -= np.outer(part.shift * (SHIFT / unit), center_scores(center, basis))
        else:
            # Whole rows times a basis of 36 bits: nothing is rounded, so other rows cannot change a score.
            scores = domain.whole(block, unit=unit) @ basis
        parts.append(scores * unit)
    return np.vstack(parts)


# A site's own matrix is rounded onto a lattice this much finer than its release's. It is clipped far beyond what the
# release of a product can represent.
_FINER, _MOST = 2.0**-6, 1 << 60
# Traces of a symmetric matrix are clipped at this many sensitivities.
_MOST_TRACE = 2.0**36


def bounded_sum(rows: Rows, *, domain: Region, neighbours: Neighbours) -> Bounded:
    """The sum, (d,), of the rows in `domain`."""
    require(not isinstance(rows, Symmetric), "a Symmetric has no rows, so their mean cannot be computed: fit without a center")
    if domain.unit is None:
        return Bounded(float_sum(rows, domain), domain.sum_sensitivity(neighbours))
    return exact.bounded_sum(rows, domain=domain, neighbours=neighbours)


def bounded_count(rows: Rows, *, neighbours: Neighbours) -> Bounded:
    """The number of people, a scalar."""
    if isinstance(rows, Symmetric):
        return Bounded(np.asarray(float(rows.people)), count_sensitivity(neighbours))
    return exact.bounded_count(rows, neighbours=neighbours)


def bounded_kept(rows: Rows, *, gaps: MissingPolicy) -> Bounded:
    """The number of people whose rows are complete, a scalar."""
    _require_rows(rows)
    return exact.bounded_kept(rows, gaps=gaps)


def bounded_observed(rows: Rows, *, gaps: MissingPolicy) -> Bounded:
    """How many people have each entry, (c,)."""
    _require_rows(rows)
    return exact.bounded_observed(rows, gaps=gaps)


def bounded_trace(rows: Rows, *, domain: Region, neighbours: Neighbours) -> Bounded:
    """The total sum of squares of the rows in `domain`, a scalar."""
    if isinstance(rows, Symmetric):
        diagonal, sensitivity = _as_vouched(rows, domain).diagonal(), domain.trace_sensitivity(neighbours)
        # Clipped where the rounding of single entries would matter, which takes tens of billions of people. `fsum` rounds once.
        max_entry = _MOST_TRACE * sensitivity / len(diagonal)
        return Bounded(np.asarray(math.fsum(np.clip(diagonal, -max_entry, max_entry))), sensitivity)
    if domain.unit is None:
        terms: list[float] = total_of(rows, FloatTraceWork(domain))
        return Bounded(np.asarray(math.fsum(terms)), domain.trace_sensitivity(neighbours))
    return exact.bounded_trace(rows, domain=domain, neighbours=neighbours)


def bounded_gram(rows: Rows, *, domain: Region, neighbours: Neighbours) -> Bounded:
    """The Gram matrix, (d, d), of the rows in `domain`."""
    if isinstance(rows, Symmetric):
        # A copy, because the caller may add to the sum in place.
        gram = np.array(_as_vouched(rows, domain))
        return Bounded(gram, domain.gram_sensitivity(neighbours), symmetric=True)
    if domain.unit is None:
        return Bounded(float_gram(rows, domain), domain.gram_sensitivity(neighbours), symmetric=True)
    return exact.bounded_gram(rows, domain=domain, neighbours=neighbours)


def gram_columns(block: Block, *, width: int, domain: Domain) -> Iterator[Array]:
    """The Gram matrix of a block's rows in `domain`, at most `width` of its columns at a time: arrays (d, width), private.

    Together they are the matrix of `bounded_gram`, with its sensitivity. The whole (d, d) matrix is never in memory.

    >>> parts = gram_columns(Block(np.array([[1.0, 2.0]])), width=1, domain=Domain(dim=2, radius=9.0))
    >>> [part.ravel().tolist() for part in parts]
    [[1.0, 2.0], [2.0, 4.0]]
    """
    if domain.unit is None:
        return float_gram_columns(block, width=width, domain=domain)
    return whole_gram_columns(block, width=width, domain=domain)


def bounded_gram_times(rows: Rows, *, basis: Array, domain: Region, neighbours: Neighbours) -> Bounded:
    """The Gram matrix times `basis`, (d, p), without the Gram matrix."""
    if domain.unit is not None and not isinstance(rows, Symmetric):
        return exact.bounded_gram_times(rows, basis=basis, domain=domain, neighbours=neighbours)
    require_contraction(basis, dim=domain.dim)
    # For the largest norm that passes, so that noise does not depend on how this basis was rounded.
    sensitivity = domain.gram_times_sensitivity(neighbours, basis=basis, basis_norm=CONTRACTION)
    if not isinstance(rows, Symmetric):
        return Bounded(total_of(rows, FloatProductsWork(domain, basis)), sensitivity)
    matrix = _as_vouched(rows, domain)
    if domain.unit is None:
        return Bounded(matrix @ basis, sensitivity)
    by_matrix = domain.gram_sensitivity(neighbours)
    return Bounded(_symmetric_times(matrix, basis=basis, sensitivity=by_matrix), sensitivity)


def _require_rows(rows: Rows) -> None:
    require(not isinstance(rows, Symmetric), "a Symmetric has no rows, so it does not tell which entries are missing")


def _as_vouched(rows: Symmetric, domain: Region) -> Array:
    """The matrix, (d, d), in the units of `domain`.

    Centers and column bounds are refused: they need the rows, and the sum of their products does not determine the result.
    Nothing is clipped to the radius either, which the site vouches for (`Symmetric`).
    """
    require(isinstance(domain, Domain), "a Symmetric has no histories of users, only a sum of products of rows")
    assert isinstance(domain, Domain)
    require(rows.shape[1] == domain.dim, f"a Symmetric must have {domain.dim} columns, got {rows.shape[1]}")
    require(
        domain.center is None and domain.low is None,
        "a Symmetric cannot be centered or clipped to column bounds, which needs rows: fit without a center and without bounds",
    )
    require(domain.gaps is None, "a Symmetric has no rows, so it does not tell which entries are missing")
    if domain.scale is None:
        matrix: Array = rows.matrix
        return matrix
    with np.errstate(over="ignore"):
        scaled = rows.matrix / np.outer(domain.scale, domain.scale)
    # Checked again, because small units can make it too large to multiply.
    return np.asarray(Symmetric(scaled, people=rows.people).matrix)


def _symmetric_times(matrix: Array, *, basis: Array, sensitivity: float) -> Array:
    """A site's own matrix, (d, d), times `basis`, (d, p): both on lattices, and the product rounded once.

    A person moves the matrix by at most `sensitivity`. Rounding to steps g moves neighbours apart by at most d g. On a lattice
    this fine (`step_of`) that is 2^-19 of the sensitivity, less than the 2^-18 that `Domain.gram_times_sensitivity` allows for.
    """
    step = step_of(sensitivity, matrix.size) * _FINER
    whole = np.rint(on_basis_grid(basis) / BASIS_UNIT).astype(np.int64)
    product = exact_product(steps_of(matrix, step, max_steps=_MOST), whole)
    product *= step
    product *= BASIS_UNIT
    return product
