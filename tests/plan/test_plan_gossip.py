"""The plan of components between peers: public guesses only, shares that add up and fall to the components as proved."""

from typing import Any

import numpy as np
import pytest

from eigenveil.core.accounting import Budget
from eigenveil.core.domain import Domain
from eigenveil.core.noise import Noise
from eigenveil.core.unit import Neighbours
from eigenveil.methods import MethodPlan, TaskContext, segments
from eigenveil.methods.segments import Segments
from eigenveil.plan.choose import plan_sites
from eigenveil.plan.spectrum import guessed_eigenvalues

BUDGET = Budget(1.0, 1e-6)


def planned(*, people: int, **choices: Any) -> MethodPlan:
    """A plan of segments."""
    return plan_sites(method="segments", neighbours=Neighbours.ADD_REMOVE, guessed_people=people, **choices)


@pytest.mark.parametrize("budget", [None, BUDGET])
@pytest.mark.parametrize(("dim", "rank", "people"), [(1, 1, 1), (5, 5, 3), (100, 7, 10**6)])
def test_both_tasks_take_the_plan(budget: Budget | None, dim: int, rank: int, people: int) -> None:
    plan = planned(dim=dim, rank=rank, people=people, budget=budget, rounds=None)
    domain, context = (
        Domain(dim=dim, radius=1.0),
        TaskContext(neighbours=Neighbours.ADD_REMOVE, rank=rank, private=True, hidden=Noise.seeded(0)),
    )
    task = segments.METHOD.build_task(plan, None, context)(domain=domain)
    assert isinstance(task, Segments) and (task.rounds, task.clip) == (plan.rounds, 2 * task.deviation)
    assert sum(plan.shares) == pytest.approx(1.0, abs=1e-12)


def test_shares_grow_within_a_component_and_as_roots_over_components() -> None:
    plan = planned(dim=30, rank=4, people=1000, budget=BUDGET, rounds=None)
    shares = np.array(plan.shares).reshape(4, plan.rounds)
    assert (np.diff(shares, axis=1) > 0).all()
    np.testing.assert_allclose(shares.sum(axis=1) / shares[0].sum(), np.sqrt(np.arange(1, 5)))
    np.testing.assert_allclose(shares[:, 0] / shares.sum(axis=1), 0.02)


def test_no_other_split_over_components_loses_less_by_the_guess() -> None:
    plan = planned(dim=30, rank=4, people=1000, budget=BUDGET, rounds=1)
    values = guessed_eigenvalues(dim=30, people=1000)[:4]
    chosen = np.array(plan.shares).reshape(4, 2).sum(axis=1)
    least = (1 / (chosen * values)).sum()
    rng = np.random.default_rng(0)
    for _ in range(200):
        other = chosen * np.exp(0.1 * rng.standard_normal(4))
        assert (1 / (other / other.sum() * values)).sum() >= least


def test_rounds_are_products_and_reasons_say_so() -> None:
    plan = planned(dim=10, rank=1, people=10, budget=BUDGET, rounds=7)
    assert plan.rounds == 8 and "7 products" in plan.reason and "below the noise" in plan.reason
    many = planned(dim=10, rank=1, people=10**7, budget=BUDGET, rounds=None)
    assert "above the noise" in many.reason
    exact = planned(dim=10, rank=1, people=10, budget=None, rounds=None)
    assert (exact.rounds, exact.tolerance) == (201, 1e-8) and "converged" in exact.reason
