"""What a site sends under masks moves by no more than its noise was bought for, on neighbours chosen to break it."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from eigenveil.core.accounting import Budget
from eigenveil.core.ledger import Ledger
from eigenveil.core.noise import Noise
from eigenveil.privacy.lattice import Lattice, Share
from eigenveil.privacy.released import unpack
from eigenveil.tasks.base import Question, SumTask
from laws.strategies import Case, all_tasks, cases, search_task

BUDGET = Budget(1.0, 1e-6)


def lattice() -> Lattice:
    return Lattice(budget=BUDGET, sites=3, survivors=3, colluders=1)


def sent(task: SumTask[Any, Any], question: Question, rows: Any, terms: Lattice, several: int, seed: int) -> Any:
    """The words of one site, with noise that is the same on both sides: what is left of a difference is the rows'.

    And how far the honest shares' noise lets neighbours be apart in steps, for what was charged.
    """
    assert terms.gaussian is not None
    ledger = Ledger(epsilon=terms.gaussian.epsilon, delta=terms.gaussian.delta)
    share = Share(
        lattice=terms, ledger=ledger, noise=Noise.seeded(seed), multiplier=(1 + 1e-10) / terms.gaussian.mu, several=several
    )
    private = task.private(question, rows)
    words = share.of(private, label=task.label(question), share=0.5)
    mu = ledger.charges[0].mu
    deviation = terms.deviation(private.sensitivity, mu=mu, size=private.value.size, several=several)
    return words, mu * deviation * math.sqrt(terms.honest)


def length(task: SumTask[Any, Any], moved: NDArray[np.uint64]) -> float:
    """Of a difference of words: off the diagonal of a symmetric array noise is sqrt(2) smaller, and an entry counts twice."""
    steps = moved.view(np.int64).astype(np.float64)
    if not task.symmetric:
        return float(np.linalg.norm(steps))
    dim = math.isqrt(2 * len(steps))
    return float(np.linalg.norm(unpack(steps, (dim, dim), symmetric=True)))


EXAMPLES = given(case=cases(), seed=st.integers(0, 2**32), several=st.integers(1, 3))


@settings(max_examples=100)
@EXAMPLES
def test_every_masked_release_keeps_the_mu_it_was_charged(case: Case, seed: int, several: int) -> None:
    terms = lattice()
    rng = np.random.default_rng(seed)
    for task, question in (*all_tasks(case.domain, case.neighbours, rng), search_task(case.domain, case.neighbours, rng)):
        if not 0 < task.sensitivity(question) < math.inf:
            continue
        (one, allowed), (other, _) = (sent(task, question, rows, terms, several, seed % 1000) for rows in (case.one, case.other))
        # A person at several sites moves the sum by as many such vectors.
        assert several * length(task, one - other) <= allowed


@settings(max_examples=30)
@given(case=cases(), seed=st.integers(0, 2**32))
def test_sites_and_hub_find_the_same_sensitivity_and_shape(case: Case, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for task, question in (*all_tasks(case.domain, case.neighbours, rng), search_task(case.domain, case.neighbours, rng)):
        inner, asked, fraction = task.as_sum(question)
        private = inner.private(asked, case.one)
        assert fraction == 1.0
        assert private.sensitivity == inner.sensitivity(asked)
        assert private.value.shape == inner.shape(asked)
        assert private.symmetric == inner.symmetric


def test_noise_that_is_too_little_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Lattice.deviation
    monkeypatch.setattr(Lattice, "deviation", lambda self, far, **more: 0.9 * right(self, far, **more))
    law: Any = test_every_masked_release_keeps_the_mu_it_was_charged
    # The first example that convicts is enough; to look for the smallest one takes seconds.
    found = settings(max_examples=100, phases=[Phase.generate])(EXAMPLES(law.hypothesis.inner_test))
    with pytest.raises(AssertionError):
        found()
