"""`Rows`: every storage gives all of its rows, once, in order; people share a weight of one; work is shared out by order."""

import time
from collections.abc import Callable, Iterator
from datetime import date
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from eigenveil.core.domain import Domain
from eigenveil.core.rows import Block, Rows, block_size, total_of
from eigenveil.core.threads import shared_work
from eigenveil.core.unit import Neighbours
from eigenveil.core.whole import CountWork
from eigenveil.data.frames import ArrowRows
from eigenveil.data.rows import CheckedRows, DenseRows, NamedRows, SparseRows, WatchedRows, WeightedRows, counts_people
from eigenveil.linalg import Array
from eigenveil.privacy.sums import bounded_gram


def arrow(values: Array) -> Rows:
    """The same rows in an Arrow table of two chunks."""
    table = pa.table({f"c{i}": column for i, column in enumerate(values.T)})
    return ArrowRows(pa.concat_tables([table.slice(0, len(values) // 2), table.slice(len(values) // 2)]))


STORAGES: dict[str, Callable[[Array], Rows]] = {
    "dense": DenseRows,
    "Fortran order": lambda values: DenseRows(np.asfortranarray(values)),
    "sparse": lambda values: SparseRows(sp.csr_array(values)),
    "arrow": arrow,
    "weighted": lambda values: WeightedRows(DenseRows(values), 1 / np.arange(1.0, len(values) + 1)),
    "weighted sparse": lambda values: WeightedRows(SparseRows(sp.csr_array(values)), 1 / np.arange(1.0, len(values) + 1)),
    "watched": lambda values: WatchedRows(DenseRows(values), lambda _: None),
    "named": lambda values: NamedRows(DenseRows(values), ("age", "pulse", "salt")),
}


def plain(block: Block) -> Array:
    """The rows of a block as an array."""
    return np.asarray(block.values.toarray() if block.sparse else block.values, dtype=np.float64)


@pytest.mark.parametrize("store", STORAGES.values(), ids=STORAGES.keys())
@given(count=st.integers(0, 40), size=st.integers(1, 50))
def test_blocks_give_every_row_once_and_in_order(store: Callable[[Array], Rows], count: int, size: int) -> None:
    values = np.arange(3.0 * count).reshape(count, 3) % 7
    rows = store(values)
    blocks = list(rows.blocks(size))
    assert rows.shape == (count, 3)
    assert all(block.sparse == rows.sparse for block in blocks)
    assert [len(block) for block in blocks] == [min(size, count - start) for start in range(0, count, size)]
    assert np.array_equal(np.vstack([np.empty((0, 3)), *map(plain, blocks)]), values)
    weights = [block.weights for block in blocks if block.weights is not None]
    if isinstance(rows, WeightedRows):
        assert np.array_equal(np.concatenate([np.empty(0), *weights]), 1 / np.arange(1.0, count + 1))
    else:
        assert not weights
    # A second pass reads the same rows again.
    assert all(np.array_equal(plain(a), plain(b)) for a, b in zip(blocks, rows.blocks(size), strict=True))


def test_dense_and_sparse_blocks_copy_no_numbers() -> None:
    values = np.random.default_rng(0).standard_normal((50, 4))
    matrix = sp.csr_array(values)
    for block in DenseRows(values).blocks(7):
        assert np.shares_memory(block.values, values)
    for block in SparseRows(matrix).blocks(7):
        assert np.shares_memory(block.values.data, matrix.data)
        assert np.shares_memory(block.values.indices, matrix.indices)


def test_sparse_entries_stored_in_parts_are_added_up_in_a_copy() -> None:
    parts = sp.csr_array((np.array([1.0, 2.0, 4.0, 8.0]), np.array([2, 0, 2, 1]), np.array([0, 3, 4])), shape=(2, 3))
    before = parts.data.copy()
    rows = SparseRows(parts)
    assert rows.values.has_canonical_format
    assert rows.values.nnz == 3
    assert next(rows.blocks(9)).values.toarray().tolist() == [[2.0, 0.0, 5.0], [0.0, 8.0, 0.0]]
    assert parts.nnz == 4 and np.array_equal(parts.data, before)
    whole = sp.csr_array(np.eye(3))
    assert SparseRows(whole).values is whole


class OwnRows:
    """Somebody's own storage: it gives what it has in one block, whatever was asked for."""

    sparse = True

    def __init__(self, values: Any, weights: Array | None = None) -> None:
        self._block = Block(values, weights)
        self.shape: tuple[int, int] = values.shape

    def blocks(self, size: int) -> Any:
        yield self._block


@pytest.mark.parametrize("form", [lambda matrix: matrix, sp.csc_array, sp.coo_array])
def test_rows_from_elsewhere_move_no_sum_by_more_than_their_bound(form: Callable[[Any], Any]) -> None:
    # Each row has 64 parts of one entry, which come to 8: as 64 entries of their own they would be as long as one.
    parts = sp.csr_array((np.full(128, 0.125), np.zeros(128, dtype=int), [0, 64, 128]), shape=(2, 2))
    rows = CheckedRows(OwnRows(form(parts)))
    gram = bounded_gram(rows, domain=Domain(dim=2, radius=1.0), neighbours=Neighbours.ADD_REMOVE)
    assert 1.99 < np.linalg.norm(gram.value) <= 2 * gram.sensitivity


def test_blocks_from_elsewhere_are_no_longer_than_asked_for() -> None:
    values, weights = sp.csr_array(np.arange(20.0).reshape(10, 2)), np.linspace(0.1, 1.0, 10)
    blocks = list(CheckedRows(OwnRows(values, weights)).blocks(4))
    assert [len(block) for block in blocks] == [4, 4, 2]
    np.testing.assert_array_equal(np.concatenate([block.values.toarray() for block in blocks]), values.toarray())
    np.testing.assert_array_equal(np.concatenate([block.weights for block in blocks]), weights)


IDENTIFIERS: dict[str, st.SearchStrategy[Any]] = {
    "integers": st.integers(-3, 3),
    "text": st.sampled_from(["ann", "bob", "Ärzte", "nana", "a b"]),
    "bytes": st.sampled_from([b"x", b"y"]),
    "floats": st.sampled_from([0.5, -1e15, 7.0]),
    "booleans": st.booleans(),
    "dates": st.sampled_from([date(2020, 1, 1), date(2021, 1, 1)]),
    "numpy dates": st.sampled_from([np.datetime64("2020-01-01"), np.datetime64("2021-01-01")]),
    "large integers": st.sampled_from([2**70, 2**71]),
}


@pytest.mark.parametrize("identifiers", IDENTIFIERS.values(), ids=IDENTIFIERS.keys())
@given(data=st.data())
def test_weights_of_each_person_sum_to_one(identifiers: st.SearchStrategy[Any], data: st.DataObject) -> None:
    ids = data.draw(st.lists(identifiers, min_size=1, max_size=12))
    weights = WeightedRows.by_person(DenseRows(np.zeros((len(ids), 1))), ids).weights
    for person in ids:
        own = [weight for other, weight in zip(ids, weights, strict=True) if other == person]
        assert own == [1 / len(own)] * len(own)


@pytest.mark.parametrize(
    "ids", [[1.0, np.nan], ["ann", None], [None, None], [np.datetime64("2020-01-01"), np.datetime64("NaT")], [b"x", 1, None]]
)
def test_a_row_of_nobody_is_refused(ids: list[Any]) -> None:
    with pytest.raises(ValueError, match="missing"):
        WeightedRows.by_person(DenseRows(np.zeros((len(ids), 1))), np.array(ids, dtype=None))


def test_wrapped_rows_still_count_people() -> None:
    weighted = WeightedRows.by_person(DenseRows(np.zeros((2, 1))), ["ann", "bob"])
    assert counts_people(weighted)
    assert counts_people(WatchedRows(WatchedRows(weighted, print), print))
    assert counts_people(NamedRows(WatchedRows(weighted, print), None, "patient"))
    assert not counts_people(WatchedRows(DenseRows(np.zeros((2, 1))), print))


def test_watched_rows_tell_after_each_block() -> None:
    seen: list[int] = []
    for read, _ in enumerate(WatchedRows(DenseRows(np.zeros((5, 1))), seen.append).blocks(2)):
        assert len(seen) == read
    assert seen == [2, 2, 1]


@given(st.integers(1, 10**7), st.integers(1, 10**7))
def test_block_sizes_are_bounded_and_shrink_with_width(one: int, other: int) -> None:
    def size(dim: int) -> int:
        return block_size(DenseRows(np.broadcast_to(0.0, (1, dim))))

    assert 64 <= size(one) <= 1 << 16
    assert size(min(one, other)) >= size(max(one, other))
    assert size(one) * one <= max(2_000_000, 64 * one)
    # Zeros take no room, so a sparse block may be as long whatever its width.
    assert block_size(SparseRows(sp.csr_array((1, one)))) == block_size(SparseRows(sp.csr_array((1, other)))) > 1000


def test_shared_work_goes_by_order_and_not_by_time() -> None:
    rng = np.random.default_rng(0)
    items = [(index, value, wait) for index, (value, wait) in enumerate(zip(rng.random(40), rng.random(40), strict=True))]

    def run(count: int, *, reverse_waits: bool) -> list[list[tuple[int, float]]]:
        workers: list[list[tuple[int, float]]] = [[] for _ in range(count)]

        def take(worker: list[tuple[int, float]], item: tuple[int, float, float]) -> None:
            time.sleep((1 - item[2] if reverse_waits else item[2]) / 1000)
            worker.append(item[:2])

        shared_work(iter(items), workers=workers, take=take)
        return workers

    for count in (1, 2, 3):
        first = run(count, reverse_waits=False)
        assert first == run(count, reverse_waits=True)
        assert first == [[item[:2] for item in items[start::count]] for start in range(count)]


def test_shared_work_reads_only_a_little_ahead() -> None:
    open_items, most, lock = 0, 0, Lock()

    def produce() -> Any:
        nonlocal open_items, most
        for item in range(11):
            with lock:
                open_items += 1
                most = max(most, open_items)
            yield item

    def take(worker: list[int], item: int) -> None:
        nonlocal open_items
        worker.append(item)
        with lock:
            open_items -= 1

    shared_work(produce(), workers=[[], []], take=take)
    assert open_items == 0
    assert most <= 5


@pytest.mark.parametrize("count", [1, 2])
def test_shared_work_raises_what_a_worker_raised(count: int) -> None:
    def take(_: None, item: int) -> None:
        if item == 3:
            raise ZeroDivisionError("item three")

    with pytest.raises(ZeroDivisionError, match="item three"):
        shared_work(range(9), workers=[None] * count, take=take)


def test_a_sparse_table_is_known_again_without_its_zeros_being_written() -> None:
    """100000 x 2000 with ten entries in each row: 1.6 GB as numbers."""
    import tracemalloc

    import scipy.sparse as sp

    from eigenveil.data.known import fingerprints

    rng = np.random.default_rng(0)
    columns = np.sort(rng.permuted(np.tile(np.arange(2000), (1000, 1)), axis=1)[:, :10], axis=1).ravel()
    thin = sp.csr_array((np.ones(10_000), columns, np.arange(0, 10_001, 10)), shape=(1000, 2000))
    matrix = sp.csr_array(sp.vstack([thin] * 100))
    tracemalloc.start()
    marks = fingerprints(SparseRows(matrix))
    assert tracemalloc.get_traced_memory()[1] < 200e6
    tracemalloc.stop()
    stored = matrix.copy()
    stored.data[::7] = 0.0
    without = stored.copy()
    without.eliminate_zeros()
    assert fingerprints(SparseRows(stored)) == fingerprints(SparseRows(without)) != marks


def test_sparse_rows_that_state_their_density_get_blocks_to_match() -> None:
    class Store:
        shape, sparse = (10**6, 30_000), True

        def __init__(self, density: float) -> None:
            self.density = density

        def blocks(self, size: int) -> Any:
            raise AssertionError

    assert block_size(Store(1e-4)) == 1 << 14
    assert block_size(Store(0.1)) == 166
    # Rows that do not say are taken to be dense enough that a block of them fits in memory.
    silent: Any = Store(0.0)
    del silent.density
    assert 64 <= block_size(silent) <= 1000


def test_people_are_counted_without_reading_the_rows_of_a_file() -> None:
    """Also where there are more people than one sum of their weights can hold, in the units that weights are counted in."""

    class Unread:
        shape, sparse, unweighted = (300_000, 2), False, True

        def blocks(self, size: int) -> Iterator[Block]:
            raise AssertionError("rows were read")

    seen: list[int] = []
    rows = WatchedRows(NamedRows(CheckedRows(Unread()), None), seen.append)
    assert total_of(rows, CountWork()) == 300_000 * 2**45 and sum(seen) == 300_000
    weighted = WeightedRows(rows, np.full(300_000, 0.75))
    assert total_of(weighted, CountWork()) == 225_000 * 2**45

    # Rows of another class may weigh themselves, so their blocks decide.
    class Foreign:
        shape, sparse = (2, 1), False

        def blocks(self, size: int) -> Iterator[Block]:
            yield Block(np.zeros((2, 1)), np.array([0.5, 0.25]))

    assert total_of(CheckedRows(Foreign()), CountWork()) == 0.75 * 2**45
