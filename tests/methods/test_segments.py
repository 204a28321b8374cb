"""Components one after another between peers: exact without noise, orthonormal always, priced as stated, refused where wrong."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.special import ndtr

from eigenveil.core.accounting import Budget
from eigenveil.core.domain import Domain
from eigenveil.core.ledger import Ledger
from eigenveil.core.mechanism import Exact, Gaussian
from eigenveil.core.noise import Noise
from eigenveil.core.rows import Block
from eigenveil.core.unit import Neighbours
from eigenveil.data.rows import DenseRows, SparseRows
from eigenveil.linalg import Array, Subspace, captured_variance, orthonormal, sines, top_eigen
from eigenveil.methods.segments import Segments, SegmentsState
from eigenveil.privacy.floating import dense
from eigenveil.protocols.party import run_pooled
from eigenveil.tasks.base import Question

EXACT = Exact(because="tests compare with the exact answer")


def some_rows(count: int = 300, dim: int = 12, seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    round_ = orthonormal(rng.standard_normal((dim, dim)))
    return rng.standard_normal((count, dim)) * 0.6 ** np.arange(dim) @ round_


def a_task(dim: int = 12, *, rank: int = 3, rounds: int = 201, radius: float = math.inf, **more: Any) -> Segments:
    """Without a radius nothing is claimed, and rows stay as they are: what is compared with exact answers has none."""
    shares = (1 / (rank * rounds),) * (rank * rounds)
    given: dict[str, Any] = {"noise": Noise.seeded(3), "deviation": 0.1, "clip": 0.2, "tolerance": 1e-9} | more
    return Segments(
        domain=Domain(dim=dim, radius=radius), neighbours=Neighbours.ADD_REMOVE, rank=rank, rounds=rounds, shares=shares, **given
    )


def run_peers(tasks: list[Segments], parts: list[Array], *, jitter: float = 0.0) -> tuple[Subspace, list[SegmentsState]]:
    """Each peer with its own instance and own state; sums differ between peers by `jitter`, relatively."""
    rng = np.random.default_rng(9)
    states = [task.start() for task in tasks]
    while (result := tasks[0].result(states[0])) is None:
        asked = [task.ask(state) for task, state in zip(tasks, states, strict=True)]
        for task, question in zip(tasks, asked, strict=True):
            task.require_question(question)
        sent = [task.work(question, DenseRows(rows), EXACT) for task, question, rows in zip(tasks, asked, parts, strict=True)]
        total = np.sum(sent, axis=0)
        states = [
            task.advance(state, total * (1 + jitter * rng.standard_normal(total.shape)), EXACT)
            for task, state in zip(tasks, states, strict=True)
        ]
    return result, states


@pytest.mark.parametrize("sparse", [False, True])
def test_exact_runs_find_the_singular_vectors(sparse: bool) -> None:
    rows = some_rows()
    table = SparseRows(sp.csr_array(rows)) if sparse else DenseRows(rows)
    task = a_task()
    found = run_pooled(task, table, EXACT)
    values, vectors = top_eigen(rows.T @ rows, rank=3)
    for one in range(3):
        assert sines(found.basis[:, [one]], vectors[:, [one]])[0] < 1e-7
    np.testing.assert_allclose(found.values, np.sqrt(values), rtol=1e-9)
    # What each peer keeps, its rows' scores over the value, is its part of the left singular vectors.
    left = np.linalg.svd(rows, full_matrices=False)[0][:, :3]
    assert sines(orthonormal(rows @ found.basis / found.values), left).max() < 1e-7


def test_rows_are_centered_and_scaled_by_the_domain_in_either_storage() -> None:
    rows = some_rows() + 0.3
    domain = Domain(dim=12, radius=math.inf, center=rows.mean(axis=0), scale=np.linspace(1.0, 2.0, 12))
    moved = (rows - rows.mean(axis=0)) / np.linspace(1.0, 2.0, 12)
    _, vectors = top_eigen(moved.T @ moved, rank=3)
    for table in (DenseRows(rows), SparseRows(sp.csr_array(rows))):
        found = run_pooled(replace(a_task(), domain=domain, noise=Noise.seeded(1)), table, EXACT)
        assert sines(found.basis, vectors).max() < 1e-7


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("center", [None, 0.4, 40.0])
@pytest.mark.parametrize("radius", [1.5, 2.0 * (1 - 2.0**-40)])
def test_a_private_start_takes_any_number_of_rows_around_any_center(sparse: bool, center: float | None, radius: float) -> None:
    # More than are added up at once: how many rows there are may not decide whether there is an error.
    rows = np.random.default_rng(1).standard_normal((1500, 3)) + (center or 0.0)
    table = SparseRows(sp.csr_array(rows)) if sparse else DenseRows(rows)
    where = None if center is None else np.full(3, center)
    task = replace(a_task(3), domain=Domain(dim=3, radius=radius, center=where), noise=Noise.seeded(5))
    found = task.private(task.ask(task.start()), table).value[:, 0]
    scores = replace(task, noise=Noise.seeded(5))._scores(len(rows)) * task._score_unit
    bounded = dense(Domain(dim=3, radius=radius, center=where), Block(rows))
    np.testing.assert_allclose(found, scores @ bounded, atol=1e-3)


def test_several_peers_find_what_one_would() -> None:
    rows = some_rows()
    tasks = [a_task(noise=Noise.seeded(seed)) for seed in range(4)]
    found, states = run_peers(tasks, np.array_split(rows, 4))
    _, vectors = top_eigen(rows.T @ rows, rank=3)
    assert sines(found.basis, vectors).max() < 1e-7
    assert all(task.has_converged(state) for task, state in zip(tasks, states, strict=True))


def test_peers_whose_sums_differ_by_rounding_agree() -> None:
    rows = some_rows()
    rows -= rows @ np.outer(np.ones(12), np.ones(12)) / 12
    # Of rank 2 with four asked for: what the last two are is up to the peers, and they must agree on it.
    rows = rows[:, :] @ (top := top_eigen(rows.T @ rows, rank=2)[1]) @ top.T
    tasks = [a_task(rank=4, noise=Noise.seeded(seed)) for seed in range(3)]
    found, states = run_peers(tasks, np.array_split(rows, 3), jitter=1e-12)
    for task, state in zip(tasks, states, strict=True):
        mine = task.result(state)
        assert mine is not None
        assert sines(mine.basis, found.basis).max() < 1e-6
        assert np.abs(state.basis.T @ state.basis - np.eye(4)).max() < 1e-12
    assert found.values[2] < 1e-6 * found.values[0]


@pytest.mark.parametrize("rows", [np.zeros((5, 4)), np.zeros((0, 4)), np.eye(4)[:1], 1e-180 * np.eye(4)])
def test_where_nothing_is_left_some_direction_is_found(rows: Array) -> None:
    found = run_pooled(a_task(4, rank=4, rounds=5), DenseRows(rows), EXACT)
    assert np.abs(found.basis.T @ found.basis - np.eye(4)).max() < 1e-12


@pytest.mark.parametrize("seed", range(3))
def test_found_directions_are_orthonormal_under_any_noise(seed: int) -> None:
    task = a_task(12, rank=12, rounds=3, radius=1.0, tolerance=0.0)
    state, ledger = task.start(), Ledger(epsilon=math.inf, delta=1e-6)
    mechanism = Gaussian(multiplier=1e6, ledger=ledger, noise=Noise.seeded(seed))
    while task.result(state) is None:
        task.require_question(task.ask(state))
        state = task.advance(state, task.work(task.ask(state), DenseRows(some_rows()), EXACT), mechanism)
        gap = state.basis.T @ state.basis - np.eye(state.basis.shape[1])
        assert np.abs(gap).max(initial=0.0) < 1e-12
        assert np.abs(state.basis.T @ state.current).max(initial=0.0) < 1e-12
        estimate = task.estimate(state)
        assert estimate is not None and estimate.rank == state.basis.shape[1] + state.current.shape[1]
    assert task.has_converged(state) is None


def test_a_whole_run_spends_the_budget_and_finds_what_stands_out() -> None:
    rows = some_rows(20_000)
    rows /= np.linalg.norm(rows, axis=1).max()
    budget = Budget(2.0, 1e-6)
    task = a_task(rank=2, rounds=5, radius=1.0, tolerance=0.0)
    ledger = Ledger(epsilon=budget.epsilon, delta=budget.delta)
    found = run_pooled(task, DenseRows(rows), Gaussian(multiplier=1 / budget.mu, ledger=ledger, noise=Noise.seeded(5)))
    assert math.isclose(ledger.spent_mu, budget.mu, rel_tol=1e-12)
    assert ledger.epsilon() <= budget.epsilon
    assert [charge.label for charge in ledger.charges][5] == "component 2, round 1 of 5"
    assert captured_variance(rows.T @ rows, found.basis) > 0.9


def test_a_component_at_rest_makes_way_for_the_next() -> None:
    task = a_task(rank=2)
    state, steps = task.start(), []
    while task.result(state) is None:
        steps.append(state.step)
        state = task.advance(state, task.work(task.ask(state), DenseRows(some_rows()), EXACT), EXACT)
    assert steps.index(201) < 150
    assert task.has_converged(state) is True
    few = a_task(rank=2, rounds=4)
    state = few.start()
    while few.result(state) is None:
        state = few.advance(state, few.work(few.ask(state), DenseRows(some_rows()), EXACT), EXACT)
    assert few.has_converged(state) is False


def test_a_start_is_hidden_and_never_drawn_twice() -> None:
    task = a_task()
    question = task.ask(task.start())
    one, two = (task.private(question, DenseRows(some_rows())).value for _ in range(2))
    assert not np.allclose(one, two)


def test_what_was_found_is_taken_off_after_the_release() -> None:
    """G P v is released, and P of it is P G P v: the same direction as if rows had been projected, whatever noise was added."""
    rows, rng = some_rows(), np.random.default_rng(4)
    task = a_task(tolerance=0.0)
    found, current = orthonormal(rng.standard_normal((12, 2))), orthonormal(rng.standard_normal((12, 1)))
    off = np.eye(12) - found @ found.T
    state = SegmentsState(step=2 * 201 + 1, basis=found, values=np.ones(2), current=orthonormal(off @ current))
    gram, noise = rows.T @ rows, rng.standard_normal((12, 1))
    private = task.private(task.ask(state), DenseRows(rows))
    np.testing.assert_allclose(private.value, gram @ state.current, rtol=1e-9)
    bounded = a_task(radius=5.0)
    assert bounded.private(bounded.ask(state), DenseRows(rows)).sensitivity == bounded.sensitivity(bounded.ask(state))
    projected = off @ gram @ off @ state.current
    after, before = (task.update(state, total + noise) for total in (private.value, projected))
    assert sines(after.current, before.current)[0] < 1e-12
    assert after.value == pytest.approx(before.value, rel=1e-12)
    assert after.largest == pytest.approx(before.largest, rel=1e-12)


@pytest.mark.parametrize("clip", [1e-80, 0.1, 0.25, 3.0])
def test_hidden_scores_are_whole_numbers_of_the_stated_law(clip: float) -> None:
    """Scores are clipped, and inside the clip they have the stated normal law: a 10% error is detected."""
    task = a_task(deviation=0.5 * clip, clip=clip)
    scores = task._scores(200_000)
    assert scores.dtype == np.int64
    assert 2**15 <= clip / task._score_unit < 2**16
    assert np.abs(scores).max() * task._score_unit <= clip < (np.abs(scores).max() + 1) * task._score_unit
    inside = ndtr(1.0) - ndtr(-1.0)
    for factor in (1.0, 0.9, 1.1):
        within = float((np.abs(scores * task._score_unit) < 0.5 * clip * factor).mean())
        deviations = abs(within - inside) / math.sqrt(inside * (1 - inside) / 200_000)
        assert (deviations < 5) == (factor == 1.0)
    far = a_task(deviation=1.0, clip=1e-30)
    assert np.abs(far._scores(1000)).min() * far._score_unit > 0.99e-30


NOTHING, AXIS = np.zeros((12, 0)), np.eye(12)[:, :1]


@pytest.mark.parametrize(
    ("question", "message"),
    [
        (Question(603, (NOTHING, NOTHING)), "step 603"),
        (Question(-1, (NOTHING, NOTHING)), "step -1"),
        (Question(0, (NOTHING,)), "2 arrays"),
        (Question(0, (NOTHING, AXIS)), "current must have shape"),
        (Question(1, (NOTHING, NOTHING)), "current must have shape"),
        (Question(201, (NOTHING, NOTHING)), "found must have shape"),
        (Question(1, (NOTHING, 1.1 * AXIS)), "spectral norm"),
        (Question(1, (NOTHING, np.nan * AXIS)), "finite"),
        (Question(201, (1.1 * AXIS, NOTHING)), "spectral norm"),
        (Question(201, (0.5 * AXIS, NOTHING)), "orthonormal"),
        (Question(402, (np.hstack([AXIS, AXIS]) / 2**0.5, NOTHING)), "orthonormal"),
    ],
)
def test_questions_that_it_would_not_ask_are_refused(question: Question, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        a_task().require_question(question)
