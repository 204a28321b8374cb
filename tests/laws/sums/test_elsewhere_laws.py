"""Sums over rows that are elsewhere are those over rows in memory, to the last bit, however the rows are cut and in whatever
order the sums come back. `RemoteRows` cuts a table anywhere and pickles all that travels.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from eigenveil import FederatedPCA, GossipPCA, PrivatePCA, find_bounds, find_column_bounds, released_spectrum
from eigenveil.core import whole as whole_module
from eigenveil.core.counts import TailsWork
from eigenveil.core.domain import Domain
from eigenveil.core.rows import total_of
from eigenveil.core.whole import GramWork, Total, WholeSums
from eigenveil.data.engines.base import answer_of, attempted
from eigenveil.data.rows import DenseRows, NamedRows, SparseRows, WatchedRows, WeightedRows
from eigenveil.errors import ParameterError
from eigenveil.linalg import Array
from eigenveil.privacy.histories import Histories
from eigenveil.privacy.sums import bounded_gram, bounded_gram_times, bounded_sum, bounded_trace
from laws.sums.histories_cases import HistoryCase, history_cases
from laws.sums.remote_rows import RemoteRows
from laws.sums.test_exact_sums_laws import ADD, LENGTHS, SUMS, Table, alike, basis_of, tables

# Those that need blocks here are for streams, which have the rows of a block in hand.
REMOTE = [name for name in SUMS if name not in ("slices", "blocks of a stream")]
ROWS: Array = np.random.default_rng(3).standard_normal((3000, 6)) * [9, 5, 2, 1, 1, 1] + 4
PEOPLE = np.random.default_rng(4).integers(900, size=3000)
PRIVATE: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-6, "random_state": 7}


def cut(values: Any, weights: Any, seed: int) -> RemoteRows:
    """A table cut at random, perhaps into empty pieces, whose sums come back in any order."""
    rng = np.random.default_rng(seed)
    cuts = np.sort(rng.integers(0, values.shape[0] + 1, int(rng.integers(0, 6))))
    return RemoteRows.of(values, weights, cuts=cuts.tolist(), order=rng.permutation(len(cuts) + 1).tolist())


@pytest.mark.parametrize("name", REMOTE)
@settings(max_examples=25)
@given(case=tables(), seed=st.integers(0, 2**32))
def test_any_cut_and_any_order_give_the_bits_of_memory(name: str, case: tuple[Table, Domain], seed: int) -> None:
    table, domain = case
    values = sp.csr_array(table.values) if table.sparse else table.values
    assert alike(SUMS[name](table.rows(), domain), SUMS[name](cut(values, table.weights, seed), domain))


@settings(max_examples=25)
@given(case=history_cases(), seed=st.integers(0, 2**32))
def test_so_do_histories_of_users(case: HistoryCase, seed: int) -> None:
    region, values = case.region, sp.csr_array(case.tables[0])
    sums: list[Callable[[Any], Array]] = [
        lambda rows: bounded_sum(rows, domain=region, neighbours=ADD).value,
        lambda rows: bounded_gram(rows, domain=region, neighbours=ADD).value,
        lambda rows: bounded_trace(rows, domain=region, neighbours=ADD).value,
        lambda rows: bounded_gram_times(rows, basis=basis_of(region.dim), domain=region, neighbours=ADD).value,
    ]
    assert isinstance(region, Histories)
    for make in sums:
        assert alike(make(SparseRows(values)), make(cut(values, None, seed)))


@pytest.mark.parametrize(
    "settings_",
    [{}, {"row_bound": 30.0}, {"scale": "private"}, {"row_bound": 30.0, "method": "power"}, {"person": PEOPLE}],
    ids=str,
)
def test_a_whole_fit_elsewhere_is_the_fit_in_memory(settings_: dict[str, Any]) -> None:
    fits = [PrivatePCA(2, **PRIVATE, **settings_).fit(rows) for rows in (ROWS, cut(ROWS, None, 1))]
    assert alike(fits[0].components_, fits[1].components_) and alike(fits[0].mean_, fits[1].mean_)
    assert fits[0].guarantee_.protects == fits[1].guarantee_.protects
    assert str(fits[0].ledger_) == str(fits[1].ledger_)


def test_exact_fits_agree_up_to_rounding() -> None:
    """Without privacy sums are floating point, whose last bits depend on the cuts."""
    methods: tuple[Any, ...] = ("covariance", "power")
    for method in methods:
        fits = [PrivatePCA(2, epsilon=None, method=method).fit(rows) for rows in (ROWS, cut(ROWS, None, 1))]
        np.testing.assert_allclose(fits[0].components_, fits[1].components_, atol=1e-9)
        np.testing.assert_allclose(fits[0].explained_variance_, fits[1].explained_variance_, rtol=1e-9)


def test_a_person_in_two_pieces_counts_once() -> None:
    """The cut runs through the rows of every person: weights of a piece by itself would count each of them twice."""
    values, people = np.vstack([ROWS[:500], ROWS[:500]]), np.tile(np.arange(500), 2)
    rows = RemoteRows.of(values, cuts=[500]).by_person(people)
    memory = WeightedRows.by_person(DenseRows(values), people)
    domain = Domain(dim=6, radius=20.0)
    for name in ("count", "sum", "gram", "lengths"):
        assert alike(SUMS[name](memory, domain), SUMS[name](rows, domain))
    assert float(SUMS["count"](rows, domain)) == 500.0
    # Weights that stay here, beside rows that are elsewhere, would be forgotten.
    with pytest.raises(ValueError, match="must be weighted there"):
        SUMS["count"](WeightedRows(cut(values, None, 0), memory.weights), domain)


def test_other_releases_run_where_the_rows_are() -> None:
    rows = cut(ROWS, None, 2)
    for find in (find_bounds, find_column_bounds):
        assert repr(find(ROWS, **PRIVATE)) == repr(find(rows, **PRIVATE))
    one, other = (released_spectrum(X, row_bound=30.0, **PRIVATE) for X in (ROWS, rows))
    assert repr(one) == repr(other)


@pytest.mark.parametrize("method", ["auto", "covariance", "krylov", "fedpower", "merge", "uda"])
def test_rows_elsewhere_can_be_a_site(method: Any) -> None:
    fits = [
        FederatedPCA(2, **PRIVATE, row_bound=30.0, method=method).fit({"a": ROWS[:1500], "b": b})
        for b in (ROWS[1500:], cut(ROWS[1500:], None, 3))
    ]
    assert alike(fits[0].components_, fits[1].components_)


def test_rows_elsewhere_can_be_a_peer() -> None:
    parts = dict(zip("abcd", np.split(ROWS, 4), strict=True))
    fits = [
        GossipPCA(2, graph="complete", **PRIVATE, row_bound=30.0, method="covariance").fit({**parts, "d": d})
        for d in (parts["d"], cut(parts["d"], None, 5))
    ]
    assert alike(fits[0].components_, fits[1].components_)
    # Scores are made where rows are. Those of the others are here.
    assert set(fits[0].scores_) - set(fits[1].scores_) == {"d"}


def test_a_masked_fit_without_privacy_finds_its_bound_at_the_pieces() -> None:
    fits = [
        FederatedPCA(2, epsilon=None, trust="masked", random_state=1).fit({"a": ROWS[:1500], "b": b, "c": ROWS[:500]})
        for b in (ROWS[1500:], cut(ROWS[1500:], None, 3))
    ]
    np.testing.assert_allclose(fits[0].components_, fits[1].components_, atol=1e-6)


def test_what_needs_the_rows_themselves_refuses_with_words() -> None:
    rows = cut(ROWS, None, 1)
    pca = PrivatePCA(2, **PRIVATE, row_bound=30.0).fit(rows)
    with pytest.raises(ValueError, match="are not copied to this process"):
        pca.transform(rows)


def test_names_and_progress_come_along() -> None:
    seen: list[int] = []
    rows = NamedRows(WatchedRows(RemoteRows.of(ROWS, cuts=[1000]), seen.append), tuple("abcdef"))
    pca = PrivatePCA(2, **PRIVATE, row_bound=30.0, center=None, method="covariance").fit(rows)
    assert pca.model_.columns == tuple("abcdef") and seen


def test_an_error_at_a_piece_has_no_value_in_it() -> None:
    class Broken:
        def of(self, rows: Any) -> Any:
            return float("Ann Smith, born 1970")

    with pytest.raises(ValueError, match="could not be read") as caught:
        answer_of(attempted(Broken().of, DenseRows(ROWS)))
    assert "Ann" not in str(caught.value) and caught.value.__cause__ is None and caught.value.__context__ is None


def test_words_of_this_program_reach_the_caller() -> None:
    domain = Domain(dim=6, radius=1.0, center=np.full(6, 1e9))
    with pytest.raises(ValueError, match="more than 100 times their bound"):
        bounded_gram(RemoteRows.of(sp.csr_array(ROWS), cuts=[9]), domain=domain, neighbours=ADD)
    with pytest.raises(ParameterError):
        PrivatePCA(2, epsilon=-1.0, delta=1e-6).fit(cut(ROWS, None, 0))


def test_counts_that_overflow_an_int64_do_not_depend_on_the_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last bits of tails came from how counts were carried, which cuts would decide."""
    domain, values = Domain(dim=6, radius=float("inf")), ROWS[:40]
    whole = SUMS["lengths"](DenseRows(values), domain)
    monkeypatch.setattr(whole_module, "_FULL", 1 << 37)
    for seed in range(20):
        assert alike(whole, SUMS["lengths"](cut(values, None, seed), domain))


def test_what_comes_back_is_whole_numbers() -> None:
    sums = total_of(RemoteRows.of(ROWS, cuts=[9]), GramWork(Domain(dim=6, radius=1.0)))
    assert isinstance(sums, WholeSums) and sums.total.low.dtype == np.int64
    assert "array" not in repr(sums) and "shape=(6, 6)" in repr(sums)
    counts = total_of(RemoteRows.of(ROWS, cuts=[9]), TailsWork(Domain(dim=6, radius=1.0), LENGTHS))
    assert isinstance(counts, Total) and counts.low.dtype == np.int64
