"""Block Krylov at the hub: exact on every spectrum, ties and missing ranks said, no column too many, damage refused."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.exceptions import ConvergenceWarning

from eigenveil import FederatedPCA
from eigenveil.core.domain import Domain
from eigenveil.core.ledger import Ledger
from eigenveil.core.mechanism import Exact, Gaussian
from eigenveil.core.noise import Noise
from eigenveil.core.unit import Neighbours
from eigenveil.data.rows import DenseRows
from eigenveil.linalg import Array, Subspace, orthonormal, sines, top_eigen
from eigenveil.methods.krylov import METHOD, KrylovState, KrylovSum
from eigenveil.methods.power import PowerIteration
from eigenveil.protocols.party import run_pooled
from eigenveil.tasks.base import Question
from linalg.bases import defect

EXACT = Exact(because="tests compare with the exact answer")
NEAR = Neighbours.ADD_REMOVE


def start(dim: int, width: int, seed: int = 0) -> Array:
    return orthonormal(np.random.default_rng(seed).standard_normal((dim, width)))


def krylov(dim: int, width: int, rank: int, *, rounds: int = 100, tolerance: float = 0.0, seed: int = 0) -> KrylovSum:
    return KrylovSum(
        domain=Domain(dim=dim, radius=math.inf),
        neighbours=NEAR,
        begin=start(dim, width, seed),
        rounds=rounds,
        rank=rank,
        tolerance=tolerance,
    )


def ran(task: KrylovSum, gram: Array) -> tuple[KrylovState, Subspace]:
    """The last state and the result on a Gram matrix, checking at every round what must hold of a state."""
    state = task.start()
    while (result := task.result(state)) is None:
        question = task.ask(state)
        task.require_question(question)
        state = task.update(state, gram @ question.arrays[0])
        everything = np.hstack([state.span, state.basis])
        assert everything.shape[1] <= task.domain.dim
        assert defect(everything) < 1e-12
        np.testing.assert_allclose(state.small, state.span.T @ gram @ state.span, atol=1e-12 * np.abs(gram).max())
        found = task.estimate(state)
        assert found is not None
        assert found.rank == task.rank
    return state, result


def spectrum(values: Array, seed: int = 1) -> tuple[Array, Array]:
    """A symmetric matrix with these eigenvalues, and its eigenvectors, both from a random rotation."""
    vectors = np.linalg.qr(np.random.default_rng(seed).standard_normal((len(values), len(values))))[0]
    return (vectors * values) @ vectors.T, vectors


SPECTRA: dict[str, Any] = {
    "1/i": lambda dim: 1.0 / np.arange(1.0, dim + 1),
    "nearly flat": lambda dim: 1.0 + 0.01 * np.linspace(1.0, 0.0, dim),
    "geometric": lambda dim: 0.5 ** np.arange(dim),
    "one large": lambda dim: np.r_[1e6, np.linspace(2.0, 1.0, dim - 1)],
    "two levels": lambda dim: np.r_[np.linspace(3.0, 2.0, 5), np.linspace(1.9, 0.0, dim - 5)],
}


@pytest.mark.parametrize("name", SPECTRA)
@pytest.mark.parametrize(("dim", "width"), [(60, 6), (60, 5), (150, 15), (12, 12), (40, 30)])
def test_reaches_the_exact_space_on_hard_spectra(name: str, dim: int, width: int) -> None:
    values = SPECTRA[name](dim)
    gram, vectors = spectrum(values)
    task = krylov(dim, width, 5)
    state, found = ran(task, gram)
    assert sines(found.basis, vectors[:, :5]).max() < 1e-6
    np.testing.assert_allclose(found.values, np.sqrt(values[:5]), rtol=1e-9)
    assert task.converged(state)
    assert not task.tied(state)


def test_needs_far_fewer_rounds_than_the_power_method() -> None:
    values = 1.0 / np.arange(1.0, 301)
    gram, vectors = spectrum(values)
    state, found = ran(krylov(300, 15, 10, tolerance=1e-6), gram)
    assert state.round <= 15
    assert sines(found.basis, vectors[:, :10]).max() < 1e-6
    power = PowerIteration(
        domain=Domain(dim=300, radius=math.inf),
        neighbours=NEAR,
        begin=start(300, 15),
        shares=(1 / state.round,) * state.round,
        rank=10,
    )
    other = power.start()
    while (slow := power.result(other)) is None:
        other = power.update(other, gram @ other.basis)
    assert sines(slow.basis, vectors[:, :10]).max() > 1e-2


@pytest.mark.parametrize("tolerance", [1e-2, 1e-4, 1e-6])
def test_stops_at_the_tolerance_and_not_long_before(tolerance: float) -> None:
    gram, vectors = spectrum(1.0 / np.arange(1.0, 201))
    task = krylov(200, 8, 5, tolerance=tolerance)
    state, found = ran(task, gram)
    assert sines(found.basis, vectors[:, :5]).max() <= tolerance
    assert state.round < ran(krylov(200, 8, 5), gram)[0].round


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32), dim=st.integers(1, 24), data=st.data())
def test_matches_eigh_on_rows_of_any_rank(seed: int, dim: int, data: st.DataObject) -> None:
    rng = np.random.default_rng(seed)
    rank = data.draw(st.integers(1, dim))
    width = data.draw(st.integers(rank, dim))
    have = data.draw(st.integers(0, dim + 3))
    rows = rng.standard_normal((have, dim)) * 0.8 ** np.arange(dim)
    gram = rows.T @ rows
    values, vectors = top_eigen(gram, rank=rank)
    state, found = ran(krylov(dim, width, rank, seed=seed), gram)
    largest = max(values[0], 1e-300)
    np.testing.assert_allclose(np.square(found.values) / largest, np.maximum(values, 0) / largest, atol=1e-9)
    if have >= rank and not np.isclose(values[-1] / largest, 0, atol=1e-9):
        every = np.linalg.eigvalsh(gram)[::-1]
        if rank == dim or (every[rank - 1] - every[rank]) / largest > 1e-4:
            assert sines(found.basis, vectors).max() < 1e-6
    if have < rank < dim:
        assert krylov(dim, width, rank, seed=seed).tied(state)


@pytest.mark.parametrize(
    ("values", "width", "rank", "tied"),
    [
        (np.ones(10), 4, 3, True),
        (np.ones(10), 3, 3, True),
        (np.ones(10), 1, 1, True),
        (np.ones(10), 10, 10, False),
        (np.ones(10), 10, 4, True),
        (np.r_[2.0, np.ones(9)], 3, 2, True),
        (np.r_[2.0, np.ones(9)], 3, 1, False),
        (np.r_[3.0, 2.0, 2.0, np.ones(7)], 3, 2, True),
        (np.r_[3.0, 2.0, 2.0, np.ones(7)], 4, 3, False),
        (np.r_[np.full(6, 2.0), np.linspace(1, 0.1, 14)], 3, 2, True),
        (np.r_[np.full(6, 2.0), np.linspace(1, 0.1, 14)], 7, 6, False),
        (np.r_[2.0, 1.0, np.zeros(8)], 4, 3, True),
        (np.r_[2.0, 1.0, np.zeros(8)], 3, 3, True),
        (np.r_[2.0, 1.0, np.zeros(8)], 4, 2, False),
        (np.r_[2.0, 1.0, np.zeros(8)], 10, 10, False),
        (np.zeros(10), 4, 2, True),
        (np.zeros(10), 2, 2, True),
    ],
)
@pytest.mark.parametrize("tolerance", [0.0, 1e-6])
def test_ties_end_and_are_reported(values: Array, width: int, rank: int, tied: bool, tolerance: float) -> None:
    gram, vectors = spectrum(values)
    task = krylov(len(values), width, rank, tolerance=tolerance)
    state, found = ran(task, gram)
    assert task.converged(state)
    assert task.tied(state) is tied
    if tied or rank == len(values):
        # Any choice is right that captures as much.
        captured = float(np.trace(found.basis.T @ gram @ found.basis))
        assert captured == pytest.approx(values[:rank].sum(), abs=1e-9)
    else:
        assert sines(found.basis, vectors[:, :rank]).max() < 1e-6
    assert state.round <= len(values) // width + 2


def test_a_value_more_often_there_than_the_block_is_wide() -> None:
    """Of a value with more copies than columns only as many are found as there are columns, and the rest is exact."""
    gram, vectors = spectrum(np.r_[np.linspace(5.0, 4.0, 3), np.ones(20), np.zeros(20)])
    task = krylov(43, 4, 3)
    state, found = ran(task, gram)
    assert sines(found.basis, vectors[:, :3]).max() < 1e-8
    assert not task.tied(state)
    cut = krylov(43, 4, 4)
    assert cut.tied(ran(cut, gram)[0])


def test_the_block_narrows_and_the_question_with_it() -> None:
    gram, _ = spectrum(np.r_[3.0, 2.0, np.zeros(18)])
    task = krylov(20, 5, 1)
    state = task.update(task.start(), gram @ task.begin)
    assert task.ask(state).arrays[0].shape == (20, 2)
    task.require_question(task.ask(state))
    assert task.shape(task.ask(state)) == (20, 2)


def test_rows_of_any_size_give_the_same_answer() -> None:
    """Nothing is compared with an absolute number."""
    gram, vectors = spectrum(1.0 / np.arange(1.0, 41))
    for size in (1e-120, 1e-8, 1e8, 1e120):
        _, found = ran(krylov(40, 6, 4), gram * size)
        assert sines(found.basis, vectors[:, :4]).max() < 1e-6
        np.testing.assert_allclose(found.values, np.sqrt(size / np.arange(1.0, 5)), rtol=1e-9)


def test_rounds_are_an_end_too_and_say_nothing_of_ties() -> None:
    gram, _ = spectrum(1.0 / np.arange(1.0, 101))
    task = krylov(100, 4, 3, rounds=2)
    state, found = ran(task, gram)
    assert state.round == 2
    assert found.rank == 3
    assert not task.converged(state)
    assert not task.tied(state)


def test_sums_over_sites_in_any_order_give_the_same_space() -> None:
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((300, 30)) / np.sqrt(np.arange(1, 31))
    vectors = top_eigen(rows.T @ rows, rank=4)[1]
    task = krylov(30, 8, 4)
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(300)
        sites = [DenseRows(part) for part in np.split(rows[order], [3, 3, 50, 200])]
        state = task.start()
        while (found := task.result(state)) is None:
            question = task.ask(state)
            parts = [task.part(question, task.arrays(task.work(question, site, EXACT))) for site in sites]
            total = parts[0]
            for part in parts[1:]:
                total = task.combine(total, part)
            state = task.advance(state, total, EXACT)
        assert sines(found.basis, vectors).max() < 1e-8


def test_restarts_without_the_sites_that_left() -> None:
    gram, vectors = spectrum(np.r_[np.linspace(9, 5, 4), np.linspace(1, 0.1, 36)])
    task = krylov(40, 6, 4)
    assert task.after_dropout(task.start()).basis is task.begin
    state = task.start()
    for _ in range(3):
        state = task.update(state, gram @ state.basis)
    again = task.after_dropout(state)
    assert again.round == 0
    assert again.basis.shape == (40, 6)
    assert defect(again.basis) < 1e-12
    # The leading directions leave with their sites; whatever they spanned, the others are found.
    left = gram - (vectors[:, :6] * np.diag(vectors[:, :6].T @ gram @ vectors[:, :6])) @ vectors[:, :6].T
    while (found := task.result(again)) is None:
        again = task.update(again, left @ again.basis)
    assert sines(found.basis, vectors[:, 6:10]).max() < 1e-6


def test_noise_spends_the_shares_in_order() -> None:
    rng = np.random.default_rng(0)
    ledger = Ledger(epsilon=math.inf, delta=1e-6)
    task = KrylovSum(
        domain=Domain(dim=20, radius=1.0), neighbours=NEAR, begin=start(20, 3), rounds=3, rank=2, shares=(0.2, 0.3, 0.5)
    )
    run_pooled(task, DenseRows(rng.standard_normal((50, 20))), Gaussian(multiplier=2.0, ledger=ledger, noise=Noise.seeded(1)))
    assert [charge.label for charge in ledger.charges] == [f"krylov product {round_} of 3" for round_ in (1, 2, 3)]
    np.testing.assert_allclose([charge.mu**2 * 4 for charge in ledger.charges], (0.2, 0.3, 0.5))
    equal = krylov(20, 3, 2, rounds=4)
    assert equal.share(Question(3, (equal.begin,))) == 0.25


def test_questions_and_parts_that_cannot_be_are_refused() -> None:
    task = krylov(4, 2, 1, rounds=3)
    basis = task.begin
    for question in (
        Question(3, (basis,)),
        Question(-1, (basis,)),
        Question(0, ()),
        Question(0, (basis, basis)),
        Question(0, (np.eye(4)[:, :3],)),
        Question(0, (np.eye(4)[:, :0],)),
        Question(0, (1.01 * basis,)),
        Question(0, (basis * np.nan,)),
        Question(0, (np.eye(5)[:, :2],)),
    ):
        with pytest.raises(ValueError):
            task.require_question(question)
    asked = Question(0, (basis,))
    damaged: list[Any] = [np.zeros((4, 1)), np.zeros((4, 2), dtype=np.float32)]
    for bad in (*damaged, np.full((4, 2), np.nan), np.full((4, 2), 1e200)):
        with pytest.raises(ValueError):
            task.part(asked, (bad,))


def test_a_fit_that_did_not_converge_is_not_told_to_use_its_own_method(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(METHOD), "max_rounds", 1)
    rows = np.random.default_rng(0).standard_normal((60, 40))
    with pytest.warns(ConvergenceWarning, match="Use more rounds, or a larger tolerance\\. "):
        FederatedPCA(2, epsilon=None, method="krylov").fit([rows[:30], rows[30:]])
