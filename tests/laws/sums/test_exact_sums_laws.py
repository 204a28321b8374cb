"""Sums over rows are exact: the same bits for any order, partition, number of threads and storage, and a person is in them as
what they add alone. What is compared here is compared with `==`, in bytes, in Python's integers or in fractions.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from typing import Any, cast

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from each import each
from eigenveil import PrivatePCA
from eigenveil.core import domain as domain_module
from eigenveil.core import rows as rows_module
from eigenveil.core import whole
from eigenveil.core.counts import _norms, _root, bounded_column_tails, bounded_tails
from eigenveil.core.domain import SHIFT, Domain, MissingPolicy
from eigenveil.core.exact import TOEPLITZ_COLUMNS, exact_product, limb_product, limbs_of, toeplitz_times
from eigenveil.core.mechanism import Bounded
from eigenveil.core.noise import step_of
from eigenveil.core.rows import Block, Rows
from eigenveil.core.unit import Neighbours
from eigenveil.core.whole import COUNT_UNIT, Total, on_basis_grid, sum_unit, whole_weights
from eigenveil.data.rows import DenseRows, SparseRows, Symmetric, WeightedRows
from eigenveil.estimators.bounds.rows import find_bounds
from eigenveil.estimators.bounds.spectrum import bounded_spectrum, released_spectrum
from eigenveil.linalg import Array, orthonormal
from eigenveil.linalg.blas import blas_threads
from eigenveil.privacy.histories import Histories
from eigenveil.privacy.sums import (
    add_block,
    bounded_count,
    bounded_gram,
    bounded_gram_times,
    bounded_kept,
    bounded_observed,
    bounded_scores,
    bounded_sum,
    bounded_trace,
    gram_columns,
)
from eigenveil.tasks.levels import norm_cells, signed_cells
from laws.strategies import SIZES, Case, cases, domains
from laws.sums.exact_rows import exact_gram, exact_sum, rounded, table_of
from laws.sums.histories_cases import WEIGHTS, HistoryCase, contractions, history_cases

ADD, REPLACE = Neighbours.ADD_REMOVE, Neighbours.REPLACE_ONE
LENGTHS, SIGNED = norm_cells(1e-3, 1e6, per_doubling=4), signed_cells(1e-2, 1e2, per_doubling=2)
# Around the widths at which numpy, BLAS and vector units change their ways of adding up.
WIDTHS = [1, 2, 3, 7, 8, 9, 15, 16, 17, 37, 100, 127, 128, 129, 1000, 1200]


@cache
def basis_of(dim: int) -> Array:
    """A public basis, (dim, p), that is not on any grid."""
    basis = orthonormal(np.random.default_rng(dim).standard_normal((dim, min(dim, 3))))
    basis.flags.writeable = False
    return basis


Sum = Callable[[Rows, Domain], Array]

SUMS: dict[str, Sum] = {
    "sum": lambda rows, domain: bounded_sum(rows, domain=domain, neighbours=ADD).value,
    "count": lambda rows, domain: bounded_count(rows, neighbours=ADD).value,
    "trace": lambda rows, domain: bounded_trace(rows, domain=domain, neighbours=ADD).value,
    "gram": lambda rows, domain: bounded_gram(rows, domain=domain, neighbours=ADD).value,
    "gram times basis": lambda rows, domain: (
        bounded_gram_times(rows, basis=basis_of(domain.dim), domain=domain, neighbours=ADD).value
    ),
    "lengths": lambda rows, domain: bounded_tails(rows, domain=domain, cells=LENGTHS, neighbours=ADD).value,
    "columns": lambda rows, domain: bounded_column_tails(rows, domain=domain, cells=SIGNED, neighbours=ADD).value,
    "slices": lambda rows, domain: np.hstack(list(gram_columns(whole_block(rows), width=2, domain=domain))),
}


def whole_block(rows: Rows) -> Block:
    """All rows in one block."""
    inner: Any = getattr(rows, "inner", rows)
    return Block(inner.values, getattr(rows, "weights", None))


def streamed(rows: Rows, domain: Domain) -> Array:
    """What somebody has who adds up block after block, in whole numbers: the Gram matrix and the sum of rows below it."""
    gram, total = np.zeros((domain.dim, domain.dim), dtype=np.int64), np.zeros(domain.dim, dtype=np.int64)
    for block in rows.blocks(1 << 14):
        add_block(block, domain, gram=gram, total=total)
    assert domain.unit is not None
    return np.vstack([gram * domain.unit**2, total[None, :] * sum_unit(domain)])


SUMS["blocks of a stream"] = streamed


@dataclass(frozen=True)
class Cut:
    """Rows that come in blocks of lengths of their own, none longer than asked for."""

    inner: Any
    lengths: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, int]:
        return cast(tuple[int, int], self.inner.shape)

    @property
    def sparse(self) -> bool:
        return bool(self.inner.sparse)

    @property
    def values(self) -> Any:
        return self.inner.values

    def blocks(self, size: int) -> Iterator[Block]:
        start, at = 0, 0
        while start < self.shape[0]:
            length = min(self.lengths[at % len(self.lengths)], size)
            block = whole_block(self.inner)
            yield block.piece(start, length)
            start, at = start + length, at + 1


@dataclass(frozen=True)
class Table:
    """Rows, (n, d), with or without weights, to be held densely or sparsely."""

    values: Array
    weights: Array | None
    sparse: bool

    def rows(self, values: Any = None) -> Rows:
        """As `Rows`, perhaps with another array that holds the same numbers."""
        held = self.values if values is None else values
        rows: Rows = SparseRows(sp.csr_array(held)) if self.sparse else DenseRows(held)
        return rows if self.weights is None else WeightedRows(rows, self.weights)

    def permuted(self, order: Any) -> "Table":
        return Table(self.values[order], None if self.weights is None else self.weights[order], self.sparse)


def hostile_rows(count: int, dim: int, rng: np.random.Generator) -> Array:
    """Rows of every size, a third of them along an axis, some entries zero."""
    found = rng.standard_normal((count, dim))
    along = np.flatnonzero(rng.random(count) < 1 / 3)
    found[along] = 0.0
    found[along, rng.integers(dim, size=len(along))] = 1.0
    found /= np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-9)
    found *= rng.choice(SIZES, (count, 1))
    return found * (rng.random(found.shape) < 0.8)


@st.composite
def tables(draw: st.DrawFn, *, most: int = 9) -> tuple[Table, Domain]:
    """A table and what it is brought into: centred, scaled, boxed or none of it, with bounds of any size."""
    dim = draw(st.integers(1, most))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    count = draw(st.sampled_from([1, 2, 30, 150]))
    weights = 1.0 / rng.choice([1, 2, 3, 7, 10**4, 10**7], count) if draw(st.booleans()) else None
    table = Table(hostile_rows(count, dim, rng), weights, draw(st.booleans()))
    domain = draw(domains(dim))
    if draw(st.booleans()) and domain.center is None:
        domain = replace(domain, radius=draw(st.sampled_from([1e-100, 1e-3, 1.99, 1e100])))
    return table, domain


def alike(one: Array, other: Array) -> bool:
    """Whether two arrays are the same to the last bit."""
    return one.shape == other.shape and np.ascontiguousarray(one).tobytes() == np.ascontiguousarray(other).tobytes()


# (a) Neither order nor blocks nor threads nor memory make a difference.


def centre_is_rounded_in_pieces(name: str, table: Table, domain: Domain) -> bool:
    """Of sparse rows around a center each block of a stream is rounded: what blocks there are is part of such a stream."""
    return name == "blocks of a stream" and table.sparse and domain.center is not None


@pytest.mark.parametrize("name", SUMS)
@settings(max_examples=25)
@given(case=tables(), seed=st.integers(0, 2**32))
def test_order_blocks_workers_and_threads_change_no_bit(name: str, case: tuple[Table, Domain], seed: int) -> None:
    (table, domain), rng, release = case, np.random.default_rng(seed), SUMS[name]
    here = release(table.rows(), domain)
    order = rng.permutation(len(table.values))
    assert alike(here, release(table.permuted(order).rows(), domain))
    for threads in (1, 2):
        with blas_threads(threads):
            assert alike(here, release(table.rows(), domain))
    if name == "slices" or centre_is_rounded_in_pieces(name, table, domain):
        return
    for lengths in ((1,), (2, 5, 1), (64, 3)):
        assert alike(here, release(Cut(table.rows(), lengths), domain))
    with pytest.MonkeyPatch.context() as patch:
        # Blocks of 64 rows, the fewest that there are, and two workers wherever two may be.
        patch.setattr(rows_module, "_BLOCK_NUMBERS", 1)
        patch.setattr(rows_module, "_BLOCK_STORED", 1)
        assert alike(here, release(table.rows(), domain))
        with blas_threads(2):
            assert alike(here, release(Cut(table.rows(), (3, 61)), domain))
        # Products of sparse rows one row at a time, in two threads; and a center taken off one row at a time.
        patch.setattr(rows_module, "_PIECE", 1)
        patch.setattr(rows_module, "_WORTH_A_THREAD", 0)
        patch.setattr(whole, "_STRIP", 1)
        patch.setattr(whole, "_PRODUCT_STRIP", 1)
        assert alike(here, release(table.rows(), domain))


def elsewhere(values: Array, rng: np.random.Generator) -> Iterator[Array]:
    """The same numbers in other places of the memory: column by column, far apart, off their alignment, backwards, read-only."""
    count, dim = values.shape
    yield np.asfortranarray(values)
    apart = np.full((3 * count + 1, 2 * dim + 1), np.nan)
    apart[1::3, 1::2][:count, :dim] = values
    yield apart[1::3, 1::2][:count, :dim]
    raw = np.zeros(values.nbytes + 16, dtype=np.uint8)
    for offset in (1, 4, 8):
        moved = raw[offset : offset + values.nbytes].view(np.float64).reshape(values.shape)
        moved[...] = values
        yield moved
    yield np.ascontiguousarray(values[::-1, ::-1])[::-1, ::-1]
    frozen = values.copy()
    frozen.flags.writeable = False
    yield frozen
    yield values.astype(">f8")


@pytest.mark.parametrize("name", SUMS)
@settings(max_examples=15)
@given(case=tables(), seed=st.integers(0, 2**32))
def test_where_rows_are_in_memory_changes_no_bit(name: str, case: tuple[Table, Domain], seed: int) -> None:
    (table, domain), release = case, SUMS[name]
    if table.sparse:
        matrix = sp.csr_array(table.values)
        wide: Any = matrix.copy()
        wide.indices, wide.indptr = wide.indices.astype(np.int64), wide.indptr.astype(np.int64)
        same = [table.rows(matrix), table.rows(wide)]
        assert alike(release(same[0], domain), release(same[1], domain))
        return
    here = release(table.rows(), domain)
    for values in elsewhere(table.values, np.random.default_rng(seed)):
        assert alike(here, release(table.rows(values), domain))


@each("name", SUMS)
@each("kind", ["f4", ">f4", "f2", "i1", "u1", "i8", ">i4", "u8", "?"])
def test_numbers_of_any_type_count_as_what_they_are(name: str, kind: str) -> None:
    rng, release = np.random.default_rng(5), SUMS[name]
    values: Any = (rng.standard_normal((40, 5)) * 50).astype(np.float64 if kind != "?" else np.bool_)
    if kind in ("u1", "u8"):
        values = np.abs(values)
    values = values.astype(kind)
    for domain in (
        Domain(dim=5, radius=30.0),
        Domain(
            dim=5,
            radius=30.0,
            center=rng.standard_normal(5),
            scale=rng.uniform(0.2, 5.0, 5),
            low=np.full(5, -9.5),
            high=np.full(5, 17.25),
        ),
    ):
        here = release(DenseRows(values), domain)
        assert alike(here, release(DenseRows(values.astype(np.float64)), domain))
        if kind in ("f4", "i1", "u1", "i8", "u8", "?"):
            narrow, wide = (SparseRows(sp.csr_array(held)) for held in (values, values.astype(np.float64)))
            assert alike(release(narrow, domain), release(wide, domain))


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("dim", [3, 300, 12_000])
def test_wide_rows_around_a_center_do_not_depend_on_threads(dim: int, sparse: bool) -> None:
    """BLAS adds up long vectors in parts, one for each thread: a center's length and scores must not come from there."""
    rng = np.random.default_rng(dim)
    values = rng.standard_normal((5, dim)) * (rng.random((5, dim)) < 0.3)
    domain = Domain(dim=dim, radius=math.sqrt(dim), center=rng.standard_normal(dim))
    rows: Rows = SparseRows(sp.csr_array(values)) if sparse else DenseRows(values)
    basis = orthonormal(rng.standard_normal((dim, 2)))
    found: list[list[Array]] = []
    for threads in (1, 2):
        with blas_threads(threads):
            found.append(
                [
                    SUMS["sum"](rows, domain),
                    SUMS["trace"](rows, domain),
                    SUMS["lengths"](rows, domain),
                    bounded_gram_times(rows, basis=basis, domain=domain, neighbours=ADD).value,
                    bounded_scores(rows, basis=basis, domain=domain, neighbours=REPLACE).value,
                ]
            )
    assert all(alike(one, other) for one, other in zip(*found, strict=True))


@settings(max_examples=25)
@given(case=tables(), seed=st.integers(0, 2**32))
def test_a_spectrum_is_that_of_one_matrix(case: tuple[Table, Domain], seed: int) -> None:
    """Eigenvalues are rounded, with that in their sensitivity; but of a matrix that neither order nor blocks change."""
    table, domain = case
    order = np.random.default_rng(seed).permutation(len(table.values))
    found = [
        bounded_spectrum(rows, domain=domain, neighbours=ADD, counted=True).value
        for rows in (table.rows(), table.permuted(order).rows(), Cut(table.rows(), (1, 5)))
    ]
    assert alike(found[0], found[1]) and alike(found[0], found[2])


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("person", [False, True])
@pytest.mark.parametrize("method", ["covariance", "power"])
def test_a_whole_fit_does_not_depend_on_the_order_of_rows(method: Any, person: bool, sparse: bool) -> None:
    rng = np.random.default_rng(0)
    values, ids, order = rng.standard_normal((500, 6)) + 1, rng.integers(200, size=500), rng.permutation(500)
    fits = [
        PrivatePCA(
            2, epsilon=1.0, delta=1e-6, row_bound=5.0, method=method, random_state=1, person=ids[places] if person else None
        ).fit(sp.csr_array(values[places]) if sparse else values[places])
        for places in (np.arange(500), order)
    ]
    for name in ("components_", "mean_", "explained_variance_"):
        assert alike(*(getattr(fit, name) for fit in fits))


def test_searches_do_not_depend_on_the_order_of_rows() -> None:
    rng = np.random.default_rng(0)
    values, order = rng.standard_normal((2000, 6)) + 1, rng.permutation(2000)
    tables = (values, values[order])
    one, other = (find_bounds(held, epsilon=1.0, delta=1e-6, random_state=1) for held in tables)
    assert str(one) == str(other) and one.row_bound == other.row_bound
    spectra = [released_spectrum(held, epsilon=1.0, delta=1e-6, row_bound=5.0, random_state=1) for held in tables]
    assert alike(*(cast(Any, found.spectrum).values for found in spectra))


HISTORY_SUMS: dict[str, Callable[[Rows, Histories], Array]] = {
    "degrees": lambda rows, region: bounded_sum(rows, domain=region, neighbours=Neighbours.ZERO_OUT).value,
    "trace": lambda rows, region: bounded_trace(rows, domain=region, neighbours=Neighbours.ZERO_OUT).value,
    "gram": lambda rows, region: bounded_gram(rows, domain=region, neighbours=Neighbours.ZERO_OUT).value,
    "gram times basis": lambda rows, region: (
        bounded_gram_times(rows, basis=basis_of(region.dim), domain=region, neighbours=Neighbours.ZERO_OUT).value
    ),
}


@pytest.mark.parametrize("name", HISTORY_SUMS)
@pytest.mark.parametrize("weighted", [False, True])
@settings(max_examples=20)
@given(seed=st.integers(0, 2**32), dim=st.integers(1, 40), sparse=st.booleans())
def test_sums_of_histories_depend_on_nothing_but_the_users(name: str, weighted: bool, seed: int, dim: int, sparse: bool) -> None:
    rng, release = np.random.default_rng(seed), HISTORY_SUMS[name]
    region = Histories(
        dim=dim, min_degree=int(rng.integers(1, 9)), columns=None, weights=rng.choice(WEIGHTS, dim) if weighted else None
    )
    table = Table((rng.random((150, dim)) < 0.4).astype(np.float64), None, sparse)
    here = release(table.rows(), region)
    assert alike(here, release(table.permuted(rng.permutation(150)).rows(), region))
    assert alike(here, release(Cut(table.rows(), (1, 9, 2)), region))
    if name == "gram":
        assert alike(here, here.T)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows_module, "_BLOCK_NUMBERS", 1)
        patch.setattr(rows_module, "_BLOCK_STORED", 1)
        for threads in (1, 2):
            with blas_threads(threads):
                assert alike(here, release(table.rows(), region))
    if not sparse:
        for values in elsewhere(table.values, rng):
            assert alike(here, release(table.rows(values), region))
        assert alike(here, release(table.rows(table.values.astype(np.bool_)), region))


# (b) A person is in a sum as what they add alone.


@pytest.mark.parametrize("dim", [256, 301])
@pytest.mark.parametrize("size", [1.0, 1e8])
def test_a_few_wide_rows_are_added_in_strips_to_the_same_bits(dim: int, size: float) -> None:
    rng, domain = np.random.default_rng(dim), Domain(dim=dim, radius=3.0)
    rows, weights = size * rng.standard_normal((7, dim)), rng.random(7)
    strips, whole_one = np.zeros((dim, dim), dtype=np.int64), np.zeros((dim, dim), dtype=np.int64)
    add_block(Block(rows, weights), domain, gram=strips, total=None)
    # With a sum of rows beside it, there is one product.
    add_block(Block(rows, weights), domain, gram=whole_one, total=np.zeros(dim, dtype=np.int64))
    assert np.array_equal(strips, whole_one)
    assert np.array_equal(strips, strips.T)


@settings(max_examples=60)
@given(case=tables(most=7), seed=st.integers(0, 2**32))
def test_who_leaves_takes_what_they_added_and_nothing_else(case: tuple[Table, Domain], seed: int) -> None:
    (table, domain), rng = case, np.random.default_rng(seed)
    if table.sparse:
        # The center comes off finished sums of sparse rows: see the fractions below.
        domain = replace(domain, center=None)
    leaves = rng.random(len(table.values)) < 0.3
    parts = [table, table.permuted(np.flatnonzero(leaves)), table.permuted(np.flatnonzero(~leaves))]
    found = [(np.zeros((domain.dim,) * 2, dtype=np.int64), np.zeros(domain.dim, dtype=np.int64)) for _ in parts]
    for (gram, total), part in zip(found, parts, strict=True):
        add_block(whole_block(part.rows()), domain, gram=gram, total=total)
        assert (gram == gram.T).all()
        # So few rows that floats hold their sums without loss.
        assert np.array_equal(SUMS["gram"](part.rows(), domain), gram * cast(float, domain.unit) ** 2)
        assert np.array_equal(SUMS["sum"](part.rows(), domain), total * sum_unit(domain))
    assert (found[0][0] - found[2][0] == found[1][0]).all()
    assert (found[0][1] - found[2][1] == found[1][1]).all()
    for name in ("count", "trace", "gram times basis"):
        every, gone, stay = (np.ravel(SUMS[name](part.rows(), domain)).tolist() for part in parts)
        assert [Fraction(a) - Fraction(c) for a, c in zip(every, stay, strict=True)] == [Fraction(b) for b in gone]


@settings(max_examples=40)
@given(case=tables())
def test_gram_matrices_are_symmetric_to_the_last_bit(case: tuple[Table, Domain]) -> None:
    table, domain = case
    for name in ("gram", "slices"):
        found = SUMS[name](table.rows(), domain)
        assert alike(found, found.T)
    gram = streamed(table.rows(), domain)[:-1]
    assert alike(gram, gram.T)


@settings(max_examples=40)
@given(case=tables())
def test_counts_beyond_lengths_are_those_of_the_people_rounded_once(case: tuple[Table, Domain]) -> None:
    """A h in fractions: each row in its cell with its weight, and the root's entries as they are."""
    table, domain = case
    rows = table.rows()
    weights = np.ones(len(table.values)) if table.weights is None else table.weights
    counts = [0] * LENGTHS.count
    for place, weight in zip(LENGTHS.place(_norms(whole_block(rows), domain)), whole_weights(weights), strict=True):
        counts[LENGTHS.count - 1 - int(place)] += int(weight)
    root = _root(LENGTHS.count)
    for at, found in enumerate(SUMS["lengths"](rows, domain).tolist()):
        exact = sum((Fraction(float(root[at, j])) * count for j, count in enumerate(counts) if count), Fraction(0))
        assert found == float(exact * Fraction(COUNT_UNIT))


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32), dim=st.integers(1, 6), size=st.sampled_from([1e-8, 1.0, 1e7]))
def test_products_of_a_matrix_in_place_of_rows_are_rounded_once(seed: int, dim: int, size: float) -> None:
    rng = np.random.default_rng(seed)
    matrix = rng.standard_normal((dim, dim)) * size
    given_, domain, basis = Symmetric(matrix + matrix.T, people=9), Domain(dim=dim, radius=2.0), basis_of(dim)
    # Six bits finer than the lattice of its release.
    step = 2.0**-6 * step_of(domain.gram_sensitivity(ADD), dim * dim)
    steps = [[round(Fraction(entry) / Fraction(step)) for entry in row] for row in given_.matrix.tolist()]
    grid = [[Fraction(entry) for entry in row] for row in on_basis_grid(basis).tolist()]
    exact = [
        [Fraction(step) * sum((steps[i][k] * grid[k][j] for k in range(dim)), Fraction(0)) for j in range(basis.shape[1])]
        for i in range(dim)
    ]
    found = bounded_gram_times(given_, basis=basis, domain=domain, neighbours=ADD).value
    assert np.array_equal(found, rounded(exact))
    gram = bounded_gram(given_, domain=domain, neighbours=ADD)
    assert alike(gram.value, gram.value.T) and alike(gram.value, given_.matrix)
    trace = float(bounded_trace(given_, domain=domain, neighbours=ADD).value)
    assert trace == float(sum((Fraction(entry) for entry in given_.matrix.diagonal().tolist()), Fraction(0)))


@settings(max_examples=100)
@given(data=st.data(), left=st.integers(1, 62), right=st.integers(1, 62), size=st.integers(1, 40))
def test_products_of_whole_matrices_are_exact(data: st.DataObject, left: int, right: int, size: int) -> None:
    def number(bits: int) -> st.SearchStrategy[int]:
        most = 2**bits - 1
        return st.one_of(st.sampled_from([0, 1, -1, most, -most]), st.integers(-most, most))

    one, other = (data.draw(st.lists(number(bits), min_size=size, max_size=size)) for bits in (left, right))
    found = exact_product(np.array([one], dtype=np.int64), np.array([other], dtype=np.int64).T)
    exact = sum(a * b for a, b in zip(one, other, strict=True))
    # One rounding, and 2^-98 of the largest term before it.
    largest = max(abs(a * b) for a, b in zip(one, other, strict=True))
    assert abs(Fraction(float(found[0, 0])) - exact) <= Fraction(abs(exact), 2**53) + Fraction(size * largest, 2**98)


@pytest.mark.parametrize("size", [1, 127, 128, 129, 400])
def test_products_with_first_columns_have_the_bits_of_products_with_the_whole_matrix(size: int) -> None:
    rng = np.random.default_rng(size)
    down = np.subtract.outer(np.arange(size), np.arange(size))
    left = np.tril(rng.integers(-(2**40), 2**40, size)[np.abs(down)])
    right = rng.integers(0, 2**45, (size, 3))
    # Long stretches without anybody, as counts have them.
    right[rng.random(size) < 0.9] = 0
    right[: size // 2] = 0
    first = limbs_of(left[:, :TOEPLITZ_COLUMNS], terms=size)
    assert np.array_equal(limb_product(first, right, toeplitz_times), exact_product(left, right))
    floats, there = left.astype(np.float64), right.astype(np.float64)
    np.testing.assert_allclose(toeplitz_times(floats[:, :TOEPLITZ_COLUMNS], there), floats @ there, rtol=1e-9)


# (c) What becomes of a row depends on that row alone.


def crowd(dim: int, rng: np.random.Generator, before: int, row: Array, after: int) -> Array:
    """A row among others that are huge, tiny or ordinary."""
    return np.vstack([hostile_rows(before, dim, rng) if before else np.zeros((0, dim)), row, hostile_rows(after, dim, rng)])


def pictures(domain: Domain, block: Block, at: int) -> list[Array]:
    """All that is made of the row `at` of a block."""
    unit = cast(float, domain.unit)
    basis = on_basis_grid(basis_of(domain.dim))
    found = [domain.squares(block)[at : at + 1], _norms(block, domain)[at : at + 1]]
    scored = domain.scored(block, basis=basis)
    found.append(scored.scores[at])
    if not block.sparse:
        for product, size in ((False, unit * 2.0**-17), (True, unit)):
            found.append(domain.whole(block, unit=size, squared=product)[at])
            out = np.full((len(block) + 3, domain.dim), np.nan)
            found.append(domain.whole(block, unit=size, squared=product, out=out[3:])[at])
        return found
    for product, size in ((False, unit * 2.0**-17), (True, unit)):
        part = domain.to_grid_sparse(block, unit=size, squared=product)
        found += [part.rows[[at]].toarray(), part.shift[at : at + 1]]
    return found


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("dim", WIDTHS)
def test_a_row_becomes_the_same_whatever_is_beside_it(dim: int, sparse: bool) -> None:
    rng = np.random.default_rng(dim)
    for kind in range(4):
        domain = Domain(
            dim=dim,
            radius=1.7 * math.sqrt(dim),
            center=rng.standard_normal(dim) if kind % 2 else None,
            scale=rng.uniform(0.2, 5.0, dim) if kind > 1 else None,
        )
        for size in (1e-3, 1.0, 1e3, 1e200):
            row = rng.standard_normal((1, dim)) * size
            alone: list[Array] | None = None
            for before, after in ((0, 1), (1, 1), (2, 2), (7, 3), (130, 1), (0, 140)):
                table = crowd(dim, rng, before, row, after)
                block = Block(sp.csr_array(table) if sparse else table)
                found = pictures(domain, block, before)
                alone = alone or found
                assert all(alike(one, other) for one, other in zip(alone, found, strict=True)), (size, before, after)
            # By itself, and with its weight among others.
            bare = Block(sp.csr_array(row) if sparse else row)
            assert all(alike(a, b) for a, b in zip(cast(Any, alone), pictures(domain, bare, 0), strict=True))
            table = crowd(dim, rng, 5, row, 2)
            heavy = Block(sp.csr_array(table) if sparse else table, np.array([1.0, 1, 0.5, 1, 1, 1 / 3, 1e-7, 1]))
            bare = Block(bare.values, np.array([1 / 3]))
            pair = zip(pictures(domain, heavy, 5), pictures(domain, bare, 0), strict=True)
            assert all(alike(one, other) for one, other in pair)


def test_lengths_from_differences_of_running_sums_are_convicted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quick way to add up the rows of a sparse matrix, in which a long row leaves its rounding in all that follow."""
    rows = np.array([[0.37, 0.41, 0.53]])
    late = np.vstack([np.full((1, 3), 1e6), rows])
    domain = Domain(dim=3, radius=0.6)

    def same() -> bool:
        one, other = (pictures(domain, Block(sp.csr_array(held)), len(held) - 1) for held in (rows, late))
        return all(alike(a, b) for a, b in zip(one, other, strict=True))

    assert same()
    monkeypatch.setattr(
        domain_module, "row_sums", lambda values, indptr: np.diff(np.concatenate([[0.0], np.cumsum(values)])[indptr])
    )
    assert not same()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dim", WIDTHS)
def test_a_user_becomes_the_same_whatever_is_beside_them(dim: int, weighted: bool) -> None:
    rng = np.random.default_rng(dim)
    region = Histories(dim=dim, min_degree=3, columns=None, weights=rng.uniform(0.1, 9.0, dim) if weighted else None)
    basis = on_basis_grid(basis_of(dim))
    row = (rng.random((1, dim)) < 0.7).astype(np.float64)
    for sparse in (False, True):
        found: list[list[Array]] = []
        for before, after in ((0, 0), (0, 1), (1, 0), (6, 3), (130, 2)):
            table = np.vstack([rng.random((before, dim)) < 0.5, row, rng.random((after, dim)) < 0.5])
            block = Block(sp.csr_array(table.astype(np.float64)) if sparse else table.astype(np.float64))
            pair, scored = region.pair(block), region.scored(block, basis=basis)
            left = pair.left[[before]].toarray()[0] if sparse else pair.left[before]
            total = (
                region.to_grid_sparse(block, unit=2.0**-33).rows[[before]].toarray()[0]
                if sparse
                else region.whole(block, unit=2.0**-33)[before]
            )
            found.append([left, total, scored.scores[before], region.squares(block)[before : before + 1]])
        for others in found[1:]:
            assert all(alike(one, other) for one, other in zip(found[0], others, strict=True))


def test_scores_of_others_stay_as_they_are_when_one_row_changes() -> None:
    rng = np.random.default_rng(0)
    for dim in WIDTHS:
        rows, other = rng.standard_normal((9, dim)), rng.standard_normal((9, dim))
        other[:4], other[5:] = rows[:4], rows[5:]
        for sparse in (False, True):
            for center in (None, rng.standard_normal(dim)):
                domain = Domain(dim=dim, radius=1.3, center=None if center is None else center / math.sqrt(dim))
                sides = (SparseRows(sp.csr_array(held)) if sparse else DenseRows(held) for held in (rows, other))
                one, two = (bounded_scores(side, basis=basis_of(dim), domain=domain, neighbours=REPLACE).value for side in sides)
                assert alike(np.delete(one, 4, axis=0), np.delete(two, 4, axis=0))


# (d) Neighbours are no further apart than stated, in fractions of the floats that are handed on. Nothing is allowed for: rows are
# kept inside their ball by 2^-44 of it, so that the one rounding of a sum over these few people is far within that.

RELEASES: dict[str, Callable[[Rows, Domain, Neighbours], Bounded]] = {
    "sum": lambda rows, domain, near: bounded_sum(rows, domain=domain, neighbours=near),
    "count": lambda rows, domain, near: bounded_count(rows, neighbours=near),
    "trace": lambda rows, domain, near: bounded_trace(rows, domain=domain, neighbours=near),
    "gram": lambda rows, domain, near: bounded_gram(rows, domain=domain, neighbours=near),
    "gram times basis": lambda rows, domain, near: bounded_gram_times(
        rows, basis=basis_of(domain.dim), domain=domain, neighbours=near
    ),
    "lengths": lambda rows, domain, near: bounded_tails(rows, domain=domain, cells=LENGTHS, neighbours=near),
    "columns": lambda rows, domain, near: bounded_column_tails(rows, domain=domain, cells=SIGNED, neighbours=near),
    "entries there": lambda rows, domain, near: bounded_observed(rows, gaps=MissingPolicy.counted(domain.dim)),
    "entries there, for the relation": lambda rows, domain, near: bounded_observed(
        rows, gaps=MissingPolicy.counted(domain.dim).under(near)
    ),
    "complete rows": lambda rows, domain, near: bounded_kept(rows, gaps=MissingPolicy.dropped(domain.dim)),
}


def within(one: Bounded, other: Bounded) -> bool:
    """Whether the gap is at most what is stated, exactly."""
    assert one.sensitivity == other.sensitivity
    pairs = zip(np.ravel(one.value).tolist(), np.ravel(other.value).tolist(), strict=True)
    gap = sum((Fraction(a) - Fraction(b)) ** 2 for a, b in pairs)
    return gap <= Fraction(one.sensitivity) ** 2


@pytest.mark.parametrize("name", RELEASES)
@settings(max_examples=80)
@given(case=cases())
def test_neighbours_are_within_the_sensitivity_exactly(name: str, case: Case) -> None:
    if name == "count" and case.neighbours is not ADD:
        return
    sides = [RELEASES[name](rows, case.domain, case.neighbours) for rows in (case.one, case.other)]
    assert within(*sides)


@settings(max_examples=80)
@given(case=cases())
def test_scores_of_neighbours_are_within_the_sensitivity_exactly(case: Case) -> None:
    values, _ = table_of(case.one)
    other = values.copy()
    if len(values) == 0:
        return
    other[-1] = -values[-1]
    basis = basis_of(case.domain.dim)
    grouped = case.domain.gaps is not None and case.domain.gaps.rule == "groups"
    kinds: list[list[Rows]] = [[DenseRows(held) for held in (values, other)]]
    if not grouped:
        # Sparse rows cannot have gaps by groups of columns.
        kinds.append([SparseRows(sp.csr_array(held)) for held in (values, other)])
    for pair in kinds:
        sides = [bounded_scores(rows, basis=basis, domain=case.domain, neighbours=REPLACE) for rows in pair]
        assert within(*sides)


@settings(max_examples=120)
@given(case=history_cases(), seed=st.integers(0, 2**32))
def test_neighbouring_histories_are_within_the_sensitivity_exactly(case: HistoryCase, seed: int) -> None:
    """All that is allowed for is what the region states for its own rounding."""
    for release in (bounded_sum, bounded_trace, bounded_gram):
        assert within(*(release(rows, domain=case.region, neighbours=case.neighbours) for rows in (case.one, case.other)))
    for basis in contractions(case.region.dim, np.random.default_rng(seed)):
        sides = [
            bounded_gram_times(rows, basis=basis, domain=case.region, neighbours=case.neighbours)
            for rows in (case.one, case.other)
        ]
        assert within(*sides)


def test_a_part_in_ten_thousand_less_is_convicted() -> None:
    one, other = (DenseRows(np.full((1, 2), 9.0 * sign)) for sign in (1, -1))
    for name in ("sum", "gram", "trace"):
        far = DenseRows(np.array([[9.0, -9.0]])) if name == "gram" else other if name == "sum" else DenseRows(np.zeros((1, 2)))
        sides = [RELEASES[name](rows, Domain(dim=2, radius=1.0), REPLACE) for rows in (one, far)]
        assert within(*sides)
        assert not within(*(Bounded(side.value, side.sensitivity * (1 - 1e-4)) for side in sides))


def test_rounding_without_room_for_it_is_convicted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row whose hundred entries are all a half above a whole number of units, and just within its ball."""
    row = np.full((1, 100), 7001.5 * 2.0**-16)
    domain = Domain(dim=100, radius=70015 * 2.0**-16 * (1 + 2.0**-40))
    sides = [DenseRows(row), DenseRows(row[:0])]
    assert within(*(RELEASES["gram"](side, domain, ADD) for side in sides))
    honest = Domain.to_grid
    monkeypatch.setattr(
        Domain, "to_grid", lambda self, squares, block, unit, rounding, squared: honest(self, squares, block, unit, 0.0, squared)
    )
    assert not within(*(RELEASES["gram"](side, domain, ADD) for side in sides))


# (e) Totals carry, and none of them can overflow unnoticed.


@settings(max_examples=100)
@given(
    numbers=st.lists(st.lists(st.integers(-(2**20), 2**20), min_size=3, max_size=3), max_size=30),
    split=st.integers(0, 30),
    full=st.sampled_from([20, 22, 25, 61]),
)
def test_totals_are_the_sums_of_pythons_integers(numbers: list[list[int]], split: int, full: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        # A total that is full after one, four, some and all of these rows; carried over in pieces of eight bits.
        patch.setattr(whole, "_FULL", 1 << full)
        patch.setattr(whole, "CARRY", 8)
        parts = [Total.zeros((3,), each=1 << 20), Total.zeros((3,), each=1 << 20)]
        for at, row in enumerate(numbers):
            integers = np.array(row, dtype=np.int64)
            parts[at >= split].add(integers if at % 2 else integers.astype(np.float64), 1)
        parts[0] += parts[1]
        exact = [sum(row[at] for row in numbers) for at in range(3)]
        high, low = (np.zeros(3, dtype=np.int64) if half is None else half for half in (parts[0].high, parts[0].low))
        assert [(int(h) << 8) + int(low_) for h, low_ in zip(high, low, strict=True)] == exact
        if parts[0].high is None:
            assert parts[0].whole().tolist() == exact
        else:
            with pytest.raises(ValueError, match="may not fit into 64 bits"):
                parts[0].whole()
        hi, lo = parts[0].pair()
        assert [Fraction(float(h)) + Fraction(float(low_)) for h, low_ in zip(hi, lo, strict=True)] == exact
        assert parts[0].value(2.0**-3).tolist() == [number / 8 for number in exact]


def test_totals_beyond_what_a_float_holds_are_rounded_once() -> None:
    total, exact = Total.zeros((2, 1), each=1 << 60), [0, 0]
    for round_ in range(1000):
        row = [(1 << 60) - round_, -(1 << 60) + 7 * round_]
        total.add(np.array(row, dtype=np.int64)[:, None], 1)
        exact = [a + b for a, b in zip(exact, row, strict=True)]
    assert max(map(abs, exact)) > 2**63
    hi, lo = (half.ravel() for half in total.pair())
    assert [Fraction(float(h)) + Fraction(float(low)) for h, low in zip(hi, lo, strict=True)] == exact
    assert total.value(1.0).ravel().tolist() == [float(number) for number in exact]


@pytest.mark.parametrize("far", [0.0, 0.3])
def test_products_of_rows_with_entries_in_few_columns_are_those_of_all_columns(far: float) -> None:
    """One column in ten has entries. With a row that has a zero stored in each column, all of them have."""
    rng, dim = np.random.default_rng(4), 400
    values = np.zeros((61, dim))
    values[:-1, 5:-5:10] = rng.standard_normal((60, 39)) / 9
    few = sp.csr_array(values)
    places = np.concatenate([few.indices, np.arange(dim, dtype=few.indices.dtype)])
    ends = np.append(few.indptr[:-1], len(places))
    full = sp.csr_array((np.concatenate([few.data, np.zeros(dim)]), places, ends), shape=few.shape)
    assert full.nnz == few.nnz + dim
    domain = Domain(dim=dim, radius=1.0, center=np.full(dim, far / dim) if far else None)
    basis = orthonormal(rng.standard_normal((dim, 3)))
    found = bounded_gram_times(SparseRows(few), basis=basis, domain=domain, neighbours=ADD).value
    if not far:
        # Around a center a stored zero makes a row's rounding another one.
        products = bounded_gram_times(SparseRows(full), basis=basis, domain=domain, neighbours=ADD)
        assert alike(found, products.value)
    near = (values - far / dim) / np.maximum(1.0, np.linalg.norm(values - far / dim, axis=1))[:, None]
    np.testing.assert_allclose(found, near.T @ near @ basis, atol=1e-3)


def test_more_rows_at_a_time_than_are_safe_are_refused() -> None:
    total = Total.zeros((1,), each=1 << 40)
    total.add(np.array([2**62 - 1]), 1 << 22)
    with pytest.raises(ValueError, match="could overflow"):
        total.add(np.array([0]), (1 << 22) + 1)
    total.add(np.array([2.0**53]), 1 << 13)
    with pytest.raises(ValueError, match="floating point cannot add up"):
        total.add(np.array([0.0]), (1 << 13) + 1)
    assert int(total.high[0]) * 2**whole.CARRY + int(total.low[0]) == 2**62 - 1 + 2**53  # type: ignore[index]


@pytest.mark.parametrize("far", [1e-3, 50.0, 99.9])
def test_many_sparse_rows_on_one_side_of_a_center_do_not_overflow(far: float) -> None:
    """Rows just inside their ball have the largest scores, with the whole of the center in each: 51 bits a row."""
    count, radius = 16_000, 1.9999
    domain = Domain(dim=2, radius=radius, center=np.array([far, 0.0]))
    one = np.array([[far + radius * 0.999, 0.0]])
    for name in ("sum", "trace", "gram", "gram times basis", "slices", "blocks of a stream"):
        alone = SUMS[name](SparseRows(sp.csr_array(one)), domain)
        many = SUMS[name](SparseRows(sp.csr_array(np.repeat(one, count, axis=0))), domain)
        # Exact but for one rounding of either; a stream rounds each block to whole units.
        unit = 0.0 if name != "blocks of a stream" else cast(float, domain.unit) ** 2
        np.testing.assert_allclose(many, count * alone, rtol=2.0**-51, atol=count * unit)


def test_long_blocks_add_up_as_short_ones_do() -> None:
    values = np.full((70_000, 2), 1.4)
    for domain in (Domain(dim=2, radius=1.99), Domain(dim=2, radius=1.99, center=np.array([-140.0, 140.0]))):
        for held in (values, sp.csr_array(values)):
            if sp.issparse(held) and domain.center is not None:
                held = sp.csr_array(np.repeat([[-139.0, 140.0]], 70_000, axis=0))
            alone = np.hstack(list(gram_columns(Block(held[:1]), width=1, domain=domain)))
            many = np.hstack(list(gram_columns(Block(held), width=1, domain=domain)))
            np.testing.assert_allclose(many, 70_000 * alone, rtol=2.0**-51)
            gram, total = np.zeros((2, 2), dtype=np.int64), np.zeros(2, dtype=np.int64)
            add_block(Block(held), domain, gram=gram, total=total)
            # Pieces of sparse rows around a center are rounded to whole units.
            np.testing.assert_allclose(gram * cast(float, domain.unit) ** 2, many, rtol=2.0**-30)


def test_counts_of_people_carry() -> None:
    rng = np.random.default_rng(0)
    rows, domain = DenseRows(rng.standard_normal((500, 2))), Domain(dim=2, radius=1.0)
    expected = {name: SUMS[name](rows, domain) for name in ("lengths", "columns")}
    with pytest.MonkeyPatch.context() as patch:
        # As if three people were as many as an int64 holds.
        patch.setattr(whole, "_FULL", 3 << 34)
        for name, value in expected.items():
            # Two parts are rounded, and their sum.
            np.testing.assert_allclose(SUMS[name](Cut(rows, (1, 2)), domain), value, rtol=3 * 2.0**-53)


@pytest.mark.parametrize("name", ["sum", "gram", "gram times basis"])
@pytest.mark.parametrize("sparse", [False, True])
def test_sums_carry(name: str, sparse: bool) -> None:
    """Full after a few rows, every sum is still the exact one."""
    rng = np.random.default_rng(1)
    table = Table(rng.standard_normal((300, 3)), None, sparse)
    for center in (None, np.ones(3)):
        domain = Domain(dim=3, radius=1.0, center=center)
        expected = SUMS[name](table.rows(), domain)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(whole, "_FULL", 1 << 44)
            if name == "gram":
                # After so few rows no more are added up in floats.
                patch.setattr(whole, "EXACT", 1 << 43)
                patch.setattr(whole, "EXACT", 1 << 43)
            patch.setattr(rows_module, "_BLOCK_NUMBERS", 1)
            patch.setattr(rows_module, "_BLOCK_STORED", 1)
            assert alike(SUMS[name](table.rows(), domain), expected)


# (f) People with many rows, and sparse rows far from zero, in fractions.


@pytest.mark.parametrize("count", [1, 2, 3, 7, 49, 1000, 2**20 - 1, 2**20, 2**20 + 1, 10**7, 3 * 10**9, 2**40])
@pytest.mark.parametrize("dim", [1, 3, 37])
def test_a_person_with_any_number_of_rows_stays_within_their_bound(count: int, dim: int) -> None:
    """All of their rows the same, as long as can be: what the person adds is `count` times what one row does."""
    rng = np.random.default_rng(count % 1000)
    weight = np.array([1.0 / count])
    for radius in (0.7, 1.0, 1.9999, 1e-90, 3e80):
        row = rng.standard_normal((1, dim))
        row *= radius * 1e3 / np.linalg.norm(row)
        for sparse, center in ((False, None), (False, row[0] / 7), (True, None), (True, row[0] / 1e4)):
            domain = Domain(dim=dim, radius=radius, center=center)
            rows: Rows = SparseRows(sp.csr_array(row)) if sparse else DenseRows(row)
            rows = WeightedRows(rows, weight)
            bound = Fraction(radius)
            total, gram = SUMS["sum"](rows, domain), SUMS["gram"](rows, domain)
            assert count**2 * sum(Fraction(entry) ** 2 for entry in total.tolist()) <= bound**2
            assert count * sum(Fraction(entry) for entry in gram.diagonal().tolist()) <= bound**2
            assert count * Fraction(float(SUMS["trace"](rows, domain))) <= Fraction(radius**2)
            assert count * Fraction(float(SUMS["count"](rows, domain))) <= 1
            product = SUMS["gram times basis"](rows, domain)
            stated = Fraction(domain.gram_times_sensitivity(ADD, basis=basis_of(dim), basis_norm=1 + 1e-8))
            assert count**2 * sum(Fraction(entry) ** 2 for entry in np.ravel(product).tolist()) <= stated**2


@pytest.mark.parametrize("counts", [(1, 2**20), (2**20, 2**20), (3, 10**6), (2**20, 1)])
def test_people_with_many_rows_in_place_of_one_another_stay_within_the_sensitivity(counts: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    for dim in (1, 2, 5):
        domain, basis = Domain(dim=dim, radius=1.5), basis_of(dim)
        rows = rng.standard_normal((2, dim)) * 9
        if dim > 1:
            rows[1] -= rows[0] * (rows[0] @ rows[1]) / (rows[0] @ rows[0])
        sides = [WeightedRows(DenseRows(row[None, :]), np.array([1.0 / count])) for row, count in zip(rows, counts, strict=True)]
        for name, stated in (
            ("gram", domain.gram_sensitivity(REPLACE)),
            ("gram times basis", domain.gram_times_sensitivity(REPLACE, basis=basis, basis_norm=1 + 1e-8)),
        ):
            one, other = (np.ravel(SUMS[name](side, domain)).tolist() for side in sides)
            moved = [counts[0] * Fraction(a) - counts[1] * Fraction(b) for a, b in zip(one, other, strict=True)]
            assert sum(entry**2 for entry in moved) <= Fraction(stated) ** 2


@pytest.mark.parametrize("ratio", [0.5, 30.0, 99.9])
@settings(max_examples=25)
@given(seed=st.integers(0, 2**32), dim=st.integers(1, 7), weighted=st.booleans())
def test_sparse_rows_far_from_zero_add_up_exactly(ratio: float, seed: int, dim: int, weighted: bool) -> None:
    rng = np.random.default_rng(seed)
    center = rng.standard_normal(dim)
    center *= ratio / np.linalg.norm(center)
    values = (center + rng.standard_normal((6, dim)) * rng.choice([1e-3, 0.3, 1e3], (6, 1))) * (rng.random((6, dim)) < 0.8)
    rows: Rows = SparseRows(sp.csr_array(values))
    if weighted:
        rows = WeightedRows(rows, 1.0 / rng.choice([1, 2, 10**5], 6))
    domain = Domain(dim=dim, radius=1.0, center=center)
    # A sum of whole numbers less a multiple of the center, rounded once: double-doubles leave 2^-98 of the largest term before.
    for found, exact in (
        (SUMS["sum"](rows, domain), exact_sum(rows, domain)),
        (SUMS["gram"](rows, domain), exact_gram(rows, domain)),
        (SUMS["slices"](rows, domain), exact_gram(rows, domain)),
        (SUMS["gram times basis"](rows, domain), exact_products(rows, domain)),
    ):
        for number, wanted in zip(np.ravel(found).tolist(), np.ravel(np.array(exact, dtype=object)), strict=True):
            assert abs(Fraction(number) - wanted) <= abs(wanted) / 2**53 + Fraction(ratio**2 * 100) / 2**97


def exact_products(rows: Rows, domain: Domain) -> list[list[Fraction]]:
    """R^T S - c s^T S for sparse rows and scores on their grids, in fractions."""
    center, unit = domain.shifted_center, Fraction(cast(float, domain.unit))
    assert center is not None
    part = domain.scored(whole_block(rows), basis=on_basis_grid(basis_of(domain.dim)))
    stored, scores = part.rows.toarray(), part.scores
    assert part.shift is not None
    found = []
    for i in range(domain.dim):
        off = Fraction(float(center[i])) * Fraction(SHIFT) / unit
        entries = [Fraction(float(r)) - off * Fraction(float(s)) for r, s in zip(stored[:, i], part.shift, strict=True)]
        found.append(
            [
                Fraction(part.unit) * sum((e * int(s) for e, s in zip(entries, scores[:, j], strict=True)), Fraction(0))
                for j in range(scores.shape[1])
            ]
        )
    return found


def test_no_row_is_too_large_to_be_moved_and_none_gives_a_warning() -> None:
    """Warnings are errors here: one would tell of a person."""
    huge = np.array([[1.7e308, -1.7e308], [0.0, 1.0]])
    domain = Domain(dim=2, radius=1.0, center=np.array([-1e305, 1.7e308]), scale=np.array([1e-3, 1e90]))
    for release in SUMS.values():
        assert np.isfinite(release(DenseRows(huge), domain)).all()
    for release in SUMS.values():
        assert np.isfinite(release(SparseRows(sp.csr_array(huge)), replace(domain, center=None))).all()
