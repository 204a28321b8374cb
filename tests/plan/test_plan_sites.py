"""How rows at many sites are fitted: what the caller gave is kept or refused, and the rest follows from public numbers."""

import inspect
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eigenveil.core.accounting import Budget
from eigenveil.core.unit import Neighbours
from eigenveil.methods import MethodPlan
from eigenveil.plan.choose import plan_sites

METHODS = ["krylov", "power", "fedpower", "covariance", "merge", "uda", "wda", "dr-svd"]
TURNING, ONE_SHOT = METHODS[:3], METHODS[3:]
BUDGET = Budget(1.0, 1e-6)


def planned(**choices: Any) -> MethodPlan:
    """A plan for a hundred columns."""
    plain: dict[str, Any] = {"dim": 100, "rank": 5, "budget": None, "method": "auto", "neighbours": Neighbours.ADD_REMOVE}
    plain |= {"rounds": None, "tolerance": None, "oversample": None, "local_steps": 1}
    return plan_sites(**(plain | choices))


def test_krylov_without_noise_and_the_covariance_with_it_while_it_fits() -> None:
    assert planned().method == "krylov"
    assert planned(budget=BUDGET).method == "covariance"
    wide = planned(budget=BUDGET, dim=50_000)
    assert wide.method in TURNING
    assert "MiB" in wide.reason
    assert wide.reason.startswith(wide.method)


@pytest.mark.parametrize("budget", [None, BUDGET], ids=["exact", "private"])
@pytest.mark.parametrize("method", METHODS)
def test_what_was_asked_for_is_done(method: Any, budget: Budget | None) -> None:
    plan = planned(method=method, budget=budget)
    assert plan.method == method
    assert plan.reason == f"{method} was asked for"
    assert 5 <= plan.width <= 100
    assert sum(plan.shares) == pytest.approx(1.0, rel=1e-12)
    assert min(plan.shares) > 0
    if method in TURNING:
        assert len(plan.shares) == plan.rounds
        assert len(plan.steps) == plan.rounds
    else:
        assert plan.rounds == (2 if method == "dr-svd" else 1)


@given(
    dim=st.integers(2, 3000),
    rank=st.integers(1, 3000),
    method=st.sampled_from(["auto", *METHODS]),
    private=st.booleans(),
    oversample=st.one_of(st.none(), st.integers(0, 5000)),
)
def test_widths_fit_between_rank_and_columns(dim: int, rank: int, method: Any, private: bool, oversample: int | None) -> None:
    rank = min(rank, dim)
    budget = BUDGET if private else None
    chosen = planned(dim=dim, rank=rank, method=method, budget=budget).method
    if chosen in ("covariance", "uda", "wda") and oversample is not None:
        with pytest.raises(ValueError, match="oversample has no meaning"):
            planned(dim=dim, rank=rank, method=method, budget=budget, oversample=oversample)
        return
    plan = planned(dim=dim, rank=rank, method=method, budget=budget, oversample=oversample)
    assert rank <= plan.width <= dim
    if oversample is not None:
        assert plan.width == min(dim, rank + oversample)


@pytest.mark.parametrize("method", ONE_SHOT)
def test_one_shot_methods_have_rounds_of_their_own(method: Any) -> None:
    with pytest.raises(ValueError, match="round"):
        planned(method=method, rounds=3)
    with pytest.raises(ValueError, match="tolerance is for krylov, power and fedpower"):
        planned(method=method, tolerance=0.1)
    with pytest.raises(ValueError, match="local_steps is for method='fedpower'"):
        planned(method=method, local_steps=2)


@pytest.mark.parametrize("method", TURNING)
@pytest.mark.parametrize("rounds", [1, 2, 7, 60])
def test_rounds_and_tolerance_are_kept(method: Any, rounds: int) -> None:
    for budget in (None, BUDGET):
        plan = planned(method=method, rounds=rounds, tolerance=0.25, budget=budget)
        assert plan.rounds == rounds == len(plan.shares) == len(plan.steps)
        assert plan.tolerance == 0.25


def test_with_noise_nothing_stops_a_fit_unless_asked() -> None:
    for method in TURNING:
        assert planned(method=method, budget=BUDGET).tolerance == 0.0
        assert 0 < planned(method=method).tolerance < 1e-6


@pytest.mark.parametrize("method", TURNING)
def test_later_rounds_get_more_of_a_budget(method: Any) -> None:
    shares = planned(method=method, budget=BUDGET, rounds=5).shares
    assert all(later > earlier for earlier, later in pairwise(shares))
    assert planned(method=method, rounds=4).shares == pytest.approx((0.25,) * 4)


@pytest.mark.parametrize(
    ("given_steps", "steps"),
    [
        (1, (1, 1, 1, 1)),
        (3, (3, 3, 3, 3)),
        (("decay", 3), (3, 2, 1, 1)),
        (("decay", 9), (9, 8, 7, 6)),
        ((4, 2), (4, 2, 2, 2)),
        ([7], (7, 7, 7, 7)),
        ((1, 2, 3, 4, 5, 6), (1, 2, 3, 4)),
    ],
)
def test_schedules_of_local_steps(given_steps: Any, steps: tuple[int, ...]) -> None:
    assert planned(method="fedpower", rounds=4, local_steps=given_steps).steps == steps


def test_the_paper_has_its_own_width_for_dr_svd() -> None:
    assert planned(method="dr-svd").width == 5 + 95 // 4


def test_the_plan_sees_no_rows_and_no_number_of_people() -> None:
    assert not {"rows", "people", "sizes", "sites"} & set(inspect.signature(plan_sites).parameters)
