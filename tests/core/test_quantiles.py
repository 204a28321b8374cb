"""Counts beyond many lengths: the matrix and its root, sensitivities against every pair of cells, and the law of the noise."""

import math

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from eigenveil.core.counts import Bins, _norms, _root, bounded_column_tails, bounded_tails, tails_sensitivity
from eigenveil.core.domain import Domain
from eigenveil.core.ledger import Ledger
from eigenveil.core.mechanism import Bounded, Gaussian
from eigenveil.core.noise import Noise
from eigenveil.core.rows import Rows
from eigenveil.core.unit import Neighbours
from eigenveil.data.rows import DenseRows, SparseRows, WeightedRows
from eigenveil.linalg import Array
from eigenveil.tasks.levels import TailCounts, norm_cells, read_tails, signed_cells

ADD, REPLACE = Neighbours.ADD_REMOVE, Neighbours.REPLACE_ONE
CELLS = norm_cells(0.25, 64.0, per_doubling=4)


def counted(private: Bounded, cells: Bins = CELLS) -> TailCounts:
    return read_tails(private.value, noise=0.0, cells=cells, people=None)[0]


@pytest.mark.parametrize("size", [1, 2, 7, 300])
def test_the_root_squared_is_the_triangle_of_ones(size: int) -> None:
    np.testing.assert_allclose(_root(size) @ _root(size), np.tril(np.ones((size, size))), atol=1e-12)


@pytest.mark.parametrize("size", [2, 5, 60])
def test_the_sensitivity_is_the_largest_over_all_pairs_of_cells(size: int) -> None:
    root = _root(size)
    alone = np.linalg.norm(root, axis=0).max()
    pairs = max(float(np.linalg.norm(root[:, i] - root[:, j])) for i in range(size) for j in range(size))
    # Rounded up by 1e-12, which is more than what the norm of a column may be off by.
    assert alone < tails_sensitivity(size, ADD) == pytest.approx(alone, rel=2e-12)
    assert tails_sensitivity(size, Neighbours.ZERO_OUT) == tails_sensitivity(size, ADD)
    assert pairs < tails_sensitivity(size, REPLACE) == pytest.approx(pairs, rel=2e-12)
    assert tails_sensitivity(size, REPLACE, columns=9) == pytest.approx(3 * pairs, rel=2e-12)


def test_the_error_grows_like_a_logarithm_of_the_number_of_cells() -> None:
    # The root of 1 + (ln m + 1) / pi or so, squared because it is once in the sensitivity and once in the product.
    for size in (100, 1000):
        assert tails_sensitivity(size, ADD) ** 2 < 1 + (math.log(size) + 1) / math.pi


def test_neighbours_in_single_items_are_refused() -> None:
    with pytest.raises(ValueError, match="need a person-level relation"):
        tails_sensitivity(4, Neighbours.INTERACTION)


@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("scale", [False, True])
def test_counts_match_the_obvious_version_dense_and_sparse(center: bool, scale: bool) -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((400, 3)) * (rng.random((400, 3)) < 0.6) * 5
    middle, units = (np.array([1.0, -2.0, 0.0]) if center else None), (np.array([1.0, 2.0, 0.5]) if scale else None)
    lengths = np.linalg.norm((rows - (0 if middle is None else middle)) / (1 if units is None else units), axis=1)
    obvious = [(lengths > edge).sum() for edge in CELLS.edges]
    domain = Domain(dim=3, radius=math.inf, center=middle, scale=units)
    for held in (DenseRows(rows), SparseRows(sp.csr_array(rows))):
        tails = counted(bounded_tails(held, domain=domain, cells=CELLS, neighbours=ADD))
        np.testing.assert_allclose(tails.beyond, obvious, atol=1e-8)
        assert tails.people == pytest.approx(400)


def test_counts_of_columns_match_the_obvious_version_dense_sparse_and_grouped() -> None:
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((300, 2)) * (rng.random((300, 2)) < 0.5) * 5
    cells, middle = signed_cells(0.25, 16.0, per_doubling=2), np.array([0.0, 1.5])
    domain = Domain(dim=2, radius=math.inf, center=middle)
    person = rng.integers(120, size=300)
    weights = 1 / np.bincount(person)[person]
    kinds: list[Rows] = [DenseRows(rows), SparseRows(sp.csr_array(rows))]
    for held, each in [(kind, np.ones(300)) for kind in kinds] + [
        (WeightedRows.by_person(kind, person), weights) for kind in kinds
    ]:
        private = bounded_column_tails(held, domain=domain, cells=cells, neighbours=ADD)
        assert private.sensitivity == pytest.approx(math.sqrt(2) * tails_sensitivity(cells.count, ADD))
        found = read_tails(private.value, noise=0.0, cells=cells, people=None)
        for column, tails in enumerate(found):
            moved = rows[:, column] - middle[column]
            np.testing.assert_allclose(tails.beyond, [each[moved > edge].sum() for edge in cells.edges], atol=1e-8)
            assert tails.people == pytest.approx(each.sum())


def test_a_person_with_many_rows_counts_once() -> None:
    rows = np.array([[1.0, 0.0]] * 3 + [[30.0, 0.0]])
    held = WeightedRows.by_person(DenseRows(rows), np.zeros(4, dtype=int))
    tails = counted(bounded_tails(held, domain=Domain(dim=2, radius=math.inf), cells=CELLS, neighbours=ADD))
    assert tails.people == pytest.approx(1.0)
    assert tails.beyond[CELLS.place(np.array([2.0]))[0]] == pytest.approx(0.25)


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32), dim=st.sampled_from([1, 3, 8, 17, 130, 9000]), sparse=st.booleans())
def test_the_cell_of_a_row_does_not_depend_on_its_company(seed: int, dim: int, sparse: bool) -> None:
    """To the last bit: an edge is put exactly on the length of one row, which must stay on its side wherever the row is."""
    rng = np.random.default_rng(seed)
    row = rng.standard_normal((1, dim))
    domain = Domain(dim=dim, radius=math.inf, center=rng.standard_normal(dim) if rng.random() < 0.5 else None)
    found = []
    for before in (0, 1, 2, 5, 300):
        rows = np.vstack([np.full((before, dim), 1e9), row, np.full((int(rng.integers(3)), dim), 1e9)])
        held = SparseRows(sp.csr_array(rows)) if sparse else DenseRows(rows)
        found.append(np.concatenate([_norms(block, domain) for block in held.blocks(1 << 14)])[before])
    assert len(set(found)) == 1


@pytest.mark.parametrize("size", [0.0, 1e-200, 1e8, 1e200, 1e308])
def test_every_size_of_row_has_a_cell(size: int) -> None:
    rows = DenseRows(np.full((2, 2), size))
    tails = counted(bounded_tails(rows, domain=Domain(dim=2, radius=math.inf), cells=CELLS, neighbours=ADD))
    assert tails.people == pytest.approx(2.0)
    assert tails.beyond[-1] == pytest.approx(2.0 if size > 64 else 0.0)


def test_a_row_too_large_to_be_moved_gives_no_warning_that_would_tell_of_it() -> None:
    cells, domain = (
        signed_cells(0.25, 16.0, per_doubling=2),
        Domain(dim=2, radius=math.inf, center=np.full(2, -1e308), scale=np.full(2, 0.5)),
    )
    values = np.array([[1.7e308, 0.0], [0.0, 0.0]])
    for held in (DenseRows(values), SparseRows(sp.csr_array(values))):
        for release in (bounded_tails, bounded_column_tails):
            # Warnings are errors here.
            assert np.isfinite(release(held, domain=domain, cells=cells, neighbours=ADD).value).all()


def variance_is(samples: Array, expected: float) -> bool:
    """Whether the variance of normal samples with mean zero can be `expected`, at a level of 1e-6."""
    ratio = float(np.square(samples).sum()) / expected
    return bool(chi2.ppf(5e-7, samples.size) < ratio < chi2.ppf(1 - 5e-7, samples.size))


def test_the_noise_on_every_count_is_as_stated_and_ten_percent_off_is_caught() -> None:
    cells = Bins(np.arange(1.0, 8.0))
    truth = 1e7 * np.arange(8.0, 0.0, -1)
    private = Bounded(_root(8) @ np.full(8, 1e7), tails_sensitivity(8, ADD))
    ledger = Ledger(epsilon=1e6, delta=1e-6)
    mechanism = Gaussian(multiplier=5.0, ledger=ledger, noise=Noise.seeded(3))
    noise = mechanism.scale(private.sensitivity, share=0.25)
    released = (mechanism.release(private, label="x", share=0.25) for _ in range(4000))
    runs = [read_tails(one, noise=noise, cells=cells, people=None)[0] for one in released]
    assert {charge.mu for charge in ledger.charges} == {0.1}
    assert runs[0].error.max() < 10 * runs[0].error.min()
    for at in range(7):
        # Counts are so far apart that nothing had to be made to fall.
        off = np.array([run.beyond[at] for run in runs]) - truth[at + 1]
        assert variance_is(off, runs[0].error[at] ** 2)
        assert not variance_is(off * 1.1, runs[0].error[at] ** 2)
        assert not variance_is(off / 1.1, runs[0].error[at] ** 2)
    people = np.array([run.people for run in runs]) - truth[0]
    assert variance_is(people, runs[0].people_error ** 2)
    assert not variance_is(people * 1.1, runs[0].people_error ** 2)


def test_counts_are_made_to_fall_between_none_and_everybody() -> None:
    private = Bounded(_root(8) @ np.zeros(8), tails_sensitivity(8, ADD))
    mechanism = Gaussian(multiplier=50.0, ledger=Ledger(epsilon=1e6, delta=1e-6), noise=Noise.seeded(0))
    for known in (None, 12.0):
        for _ in range(50):
            released = mechanism.release(private, label="x")
            (tails,) = read_tails(released, noise=90.0, cells=Bins(np.arange(1.0, 8.0)), people=known)
            assert (np.diff(tails.beyond) <= 0).all()
            assert tails.beyond.min() >= 0
            assert tails.beyond.max() <= tails.people
            assert known is None or (tails.people, tails.people_error) == (12.0, 0.0)


def test_edges_and_squares_are_read_off_the_counts() -> None:
    tails = TailCounts(
        cells=Bins(np.array([1.0, 2.0, 4.0])), beyond=np.array([8.0, 2.0, 0.0]), error=np.zeros(3), people=10.0, people_error=0.0
    )
    assert [tails.edge_above(most) for most in (8.0, 7.9, 2.0, 1.0)] == [0, 1, 1, 2]
    assert [tails.edge_below(most) for most in (1.9, 2.0, 8.0, 10.0)] == [None, 0, 1, 2]
    assert (
        TailCounts(cells=tails.cells, beyond=np.full(3, 5.0), error=np.zeros(3), people=10.0, people_error=0.0).edge_above(4.0)
        is None
    )
    rng = np.random.default_rng(0)
    lengths = np.linalg.norm(rng.standard_normal((20_000, 3)), axis=1)
    cells = norm_cells(0.01, 16.0, per_doubling=16)
    private = bounded_tails(DenseRows(lengths[:, None]), domain=Domain(dim=1, radius=math.inf), cells=cells, neighbours=ADD)
    fine = counted(private, cells)
    for bound in (1.0, 2.0, 16.0):
        edge = int(cells.place(np.array([bound]))[0])
        assert fine.square(edge) == pytest.approx(np.square(np.minimum(lengths, cells.edges[edge])).mean(), rel=0.01)


@pytest.mark.parametrize("edges", [[], [1.0, 1.0], [2.0, 1.0], [np.nan], np.arange(5000.0)])
def test_bad_cells_are_refused(edges: list[float]) -> None:
    with pytest.raises(ValueError, match="cells"):
        Bins(np.array(edges))


@pytest.mark.parametrize("ends", [(2.0, 1.0), (0.0, 1.0), (1.0, math.inf), (math.nan, 1.0)])
def test_bad_ranges_are_refused(ends: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="the lower one first"):
        norm_cells(*ends, per_doubling=4)
