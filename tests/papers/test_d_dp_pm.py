"""Alg. 1 as printed: it finds the singular vectors where it adds no noise, keeps to its steps, and claims nothing."""

import math
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from eigenveil.core.domain import Domain
from eigenveil.core.ledger import Ledger
from eigenveil.core.mechanism import Exact, Gaussian
from eigenveil.core.noise import Noise
from eigenveil.core.rows import Rows
from eigenveil.data.rows import DenseRows, SparseRows, Symmetric
from eigenveil.linalg import Array, Subspace, orthonormal, sines
from eigenveil.papers.d_dp_pm import PublishedSegments
from eigenveil.protocols.party import run_pooled
from eigenveil.tasks.base import Question

EXACT = Exact(because="the published form sends sums without noise")
DIM, COUNT = 8, 120


def some_rows() -> Array:
    rng = np.random.default_rng(0)
    round_ = orthonormal(rng.standard_normal((DIM, DIM)))
    return rng.standard_normal((COUNT, DIM)) * 0.5 ** np.arange(DIM) @ round_ / 4


def a_peer(*, seed: int = 0, rounds: int = 40, **more: Any) -> PublishedSegments:
    values = np.linalg.eigvalsh(some_rows().T @ some_rows())[::-1]
    given: dict[str, Any] = {"rank": 3, "alpha": 1 / math.sqrt(values[0] * values[1]), "sigma_q": COUNT**-0.5}
    given |= {"sigma_p": (0.0,) * rounds, "noise": Noise.seeded(seed)} | more
    return PublishedSegments(domain=Domain(dim=DIM, radius=1e3), rounds=rounds, **given)


def run(peers: list[PublishedSegments], parts: list[Rows], *, twice: bool = False) -> Subspace:
    states = [peer.start() for peer in peers]
    while (result := peers[0].result(states[0])) is None:
        total: Array | None = None
        for peer, state, rows in zip(peers, states, parts, strict=True):
            question = peer.ask(state)
            peer.require_question(question)
            part = peer.work(question, rows, EXACT)
            if twice:
                again = Question(question.step, tuple(a * (1 + 1e-13) for a in question.arrays), question.stage)
                np.testing.assert_array_equal(peer.work(again, rows, EXACT), part)
            assert part.shape == peer.shape(question)
            total = part if total is None else peer.combine(total, part)
        assert total is not None
        states = [peer.advance(state, total, EXACT) for peer, state in zip(peers, states, strict=True)]
    return result


@pytest.mark.parametrize("sparse", [False, True])
def test_without_noise_it_finds_both_sides_of_the_singular_vectors(sparse: bool) -> None:
    rows = some_rows()
    peers = [a_peer(seed=seed) for seed in range(4)]
    split = np.array_split(rows, 4)
    found = run(peers, [SparseRows(sp.csr_array(part)) if sparse else DenseRows(part) for part in split])
    left, values, right = np.linalg.svd(rows, full_matrices=False)
    np.testing.assert_allclose(found.values, values[:3], rtol=1e-6)
    segments = np.vstack([peer.segments for peer in peers])
    for one in range(3):
        assert sines(found.basis[:, [one]], right[[one]].T)[0] < 1e-6
        assert sines(segments[:, [one]], left[:, [one]])[0] < 1e-6
    np.testing.assert_allclose(np.linalg.norm(segments, axis=0), 1.0)


def test_the_same_question_again_has_the_same_answer() -> None:
    sigma_p = tuple(0.01 * 0.5**t for t in range(40))
    parts: list[Rows] = [DenseRows(part) for part in np.array_split(some_rows(), 3)]
    once = run([a_peer(seed=seed, sigma_p=sigma_p) for seed in range(3)], parts)
    twice = run([a_peer(seed=seed, sigma_p=sigma_p) for seed in range(3)], parts, twice=True)
    np.testing.assert_array_equal(once.basis, twice.basis)


def test_noise_on_scores_is_of_the_stated_size() -> None:
    """With rows of zeros, scores are the noise alone: the mean square is within six deviations, 10% more is not."""
    count = 40_000
    peer = a_peer(rank=1, rounds=1, sigma_q=0.5, sigma_p=(0.3,))
    state, rows = peer.start(), DenseRows(np.zeros((count, DIM)))
    state = peer.advance(state, peer.work(peer.ask(state), rows, EXACT), EXACT)
    square = float(peer.work(peer.ask(state), rows, EXACT)[0]) / count
    assert abs(square / 0.3**2 - 1) < 6 * math.sqrt(2 / count) < 0.1


@pytest.mark.parametrize("sigma", [1e-200, 0.3, 0.5, 7.0, 1e100])
def test_scores_are_whole_steps_near_a_millionth_of_their_noise(sigma: float) -> None:
    peer = a_peer(rank=1, rounds=1, sigma_q=sigma, sigma_p=(2 * sigma,))
    rows = DenseRows(np.eye(DIM)[np.arange(5000) % DIM])
    state = peer.start()
    state = peer.advance(state, peer.work(peer.ask(state), rows, EXACT), EXACT)
    started = peer._scores
    # The step of scores that noise was added to, so that nothing of what it was added to is left below it.
    peer.private(peer.ask(state), rows)
    for scores, size in ((started, sigma), (peer._scores, 2 * sigma)):
        step = 2.0 ** (math.frexp(size)[1] - 20)
        assert sigma * 2.0**-21 < step <= 2 * size * 2.0**-19
        assert np.array_equal(scores / step, np.rint(scores / step))
        assert len(np.unique(scores)) > 4000
    assert abs(float(np.mean((started / sigma) ** 2)) - 1) < 6 * math.sqrt(2 / 5000) < 0.21


def test_noise_far_below_the_scores_does_not_clip_them() -> None:
    """Scores of a size that steps of the noise are lost on stay as they are."""
    peer = a_peer(rank=1, rounds=1, sigma_q=0.5, sigma_p=(1e-30,))
    rows = DenseRows(np.eye(DIM))
    state = peer.start()
    state = peer.advance(state, peer.work(peer.ask(state), rows, EXACT), EXACT)
    peer.private(peer.ask(state), rows)
    np.testing.assert_allclose(peer._scores, peer.alpha * state.total, rtol=1e-15)


def test_no_mechanism_can_claim_anything_for_it() -> None:
    peer = a_peer()
    mechanism = Gaussian(multiplier=1.0, ledger=Ledger(epsilon=math.inf, delta=1e-6), noise=Noise.seeded(1))
    with pytest.raises(ValueError, match="sensitivity inf"):
        run_pooled(peer, DenseRows(some_rows()), mechanism)
    assert "0.1" not in repr(peer).split("alpha")[0] and "_rows" not in repr(peer)


def test_steps_are_taken_once_and_in_order() -> None:
    peer, rows = a_peer(), DenseRows(some_rows())
    question = peer.ask(peer.start())
    assert peer.segments.shape == (0, 0)
    peer.work(question, rows, EXACT)
    later = Question(2, (np.ones(DIM),), "round")
    with pytest.raises(ValueError, match="for step 2"):
        peer.work(later, rows, EXACT)
    peer.work(Question(1, (np.ones(DIM),), "round"), rows, EXACT)
    with pytest.raises(ValueError, match="another total"):
        peer.work(Question(1, (2 * np.ones(DIM),), "round"), rows, EXACT)
    with pytest.raises(ValueError, match="new instance"):
        peer.work(question, rows, EXACT)
    with pytest.raises(ValueError, match="no rows"):
        a_peer().work(question, Symmetric(np.eye(DIM), people=1), EXACT)
