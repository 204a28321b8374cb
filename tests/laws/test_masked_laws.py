"""What a site sends under masks moves by no more than its noise was bought for, on neighbours chosen to break it."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eigenveil.privacy import Budget, Lattice, Ledger, Noise, Share
from eigenveil.tasks import Question, SumTask
from laws.strategies import Case, all_tasks, cases

BUDGET = Budget(1.0, 1e-6)
SLACK = 1 + 1e-9


def lattice(*, several: int = 1) -> Lattice:
    return Lattice.within(
        BUDGET,
        coordinates=10**4,
        sites=3,
        survivors=3,
        colluders=1,
        entries=10**3,
        smallest=0.01,
        several=several,
    )


def sent(task: SumTask[Any, Any], question: Question, rows: Any, terms: Lattice, several: int, seed: int) -> Any:
    """The words of one site, with noise that is the same on both sides: what is left of a difference is the rows'."""
    assert terms.gaussian is not None
    ledger = Ledger(epsilon=terms.gaussian.epsilon, delta=terms.gaussian.delta)
    share = Share(terms, ledger, Noise.seeded(seed), (1 + 1e-10) / terms.gaussian.mu, several)
    words = share.of(task.private(question, rows), label=task.label(question), share=0.5)
    return words, ledger.charges[0].mu


@settings(max_examples=100)
@given(case=cases(), seed=st.integers(0, 2**32), several=st.integers(1, 3))
def test_every_masked_release_keeps_the_mu_it_was_charged(case: Case, seed: int, several: int) -> None:
    terms = lattice(several=several)
    for task, question in all_tasks(case.domain, case.neighbours, np.random.default_rng(seed)):
        if not 0 < task.sensitivity(question) < math.inf:
            continue
        (one, mu), (other, _) = (
            sent(task, question, rows, terms, several, seed % 1000) for rows in (case.one, case.other)
        )
        moved = (one - other).view(np.int64).astype(np.float64)
        # A person at several sites moves the sum by as many such vectors.
        assert several * np.linalg.norm(moved) <= mu * math.sqrt(terms.deviation**2 - 1 / 12) * SLACK


@settings(max_examples=30)
@given(case=cases(), seed=st.integers(0, 2**32))
def test_sites_and_hub_find_the_same_sensitivity_and_shape(case: Case, seed: int) -> None:
    for task, question in all_tasks(case.domain, case.neighbours, np.random.default_rng(seed)):
        inner, asked, fraction = task.as_sum(question)
        private = inner.private(asked, case.one)
        assert fraction == 1.0
        assert private.sensitivity == inner.sensitivity(asked)
        assert private.value.shape == inner.shape(asked)
        assert private.symmetric == inner.symmetric


def test_a_step_that_is_too_small_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Lattice.step
    monkeypatch.setattr(Lattice, "step", lambda self, far, **more: 0.9 * right(self, far, **more))
    with pytest.raises(AssertionError):
        test_every_masked_release_keeps_the_mu_it_was_charged()
