"""Laws of every method in the registry: plans that fit the task, noise that it states, and words that an operator reads."""

import math
from typing import Any

import numpy as np
import pytest

from eigenveil.core.accounting import Budget
from eigenveil.core.domain import Domain
from eigenveil.core.noise import Noise
from eigenveil.core.unit import Neighbours
from eigenveil.errors import ParameterError
from eigenveil.linalg import Array
from eigenveil.methods import METHODS, Method, MethodPlan, TaskContext, methods_in
from eigenveil.methods.base import Scene
from eigenveil.plan.choose import plan_sites
from eigenveil.plan.facts import SETTINGS
from eigenveil.tasks.base import SumTask, Task

BUDGET, DIM, RANK, PEOPLE = Budget(1.0, 1e-6), 12, 3, 5000
LEAVES = pytest.mark.parametrize("leaf", METHODS.values(), ids=str)


def planned(leaf: Method, *, budget: Budget | None = BUDGET, **choices: Any) -> MethodPlan:
    near = Neighbours.ADD_REMOVE
    return plan_sites(dim=DIM, rank=RANK, budget=budget, method=leaf.name, neighbours=near, guessed_people=PEOPLE, **choices)


def task_of(leaf: Method, plan: MethodPlan, *, private: bool) -> Task[Any, Any, Any]:
    context = TaskContext(neighbours=Neighbours.ADD_REMOVE, rank=RANK, private=private, hidden=Noise.seeded(1))
    return leaf.build_task(plan, leaf.start_basis(DIM, plan, 0), context)(domain=Domain(dim=DIM, radius=1.0))


@LEAVES
@pytest.mark.parametrize("budget", [None, BUDGET])
def test_a_plan_fits_its_task(leaf: Method, budget: Budget | None) -> None:
    plan = planned(leaf, budget=budget)
    assert plan.method == leaf.name and str(leaf) == leaf.name
    assert leaf.name in plan.headline and max(plan.width, RANK * leaf.finds_one_by_one) >= RANK
    assert math.fsum(plan.shares) == pytest.approx(1.0, abs=1e-12) and min(plan.shares) > 0
    assert plan.rounds == leaf.fixed_rounds or leaf.fixed_rounds is None
    task = task_of(leaf, plan, private=budget is not None)
    question = task.ask(task.start())
    task.require_question(question)
    assert (leaf.start_basis(DIM, plan, 0) is None) == (not leaf.needs_start_basis)
    if leaf.is_additive:
        assert isinstance(task, SumTask)
        sent = math.prod(task.shape(question))
        assert leaf.message_size(DIM, plan) == (DIM * (DIM + 1) // 2 if task.has_symmetric_parts(question) else sent)
        assert leaf.message_size(DIM, plan) <= leaf.longest_part(DIM, plan)
    else:
        with pytest.raises(ValueError, match="mask"):
            task.as_sum(question)


@LEAVES
def test_every_fit_releases_as_often_as_planned(leaf: Method) -> None:
    plan = planned(leaf)
    task = task_of(leaf, plan, private=True)
    assert isinstance(task, SumTask) or not leaf.is_additive
    if isinstance(task, SumTask) and leaf.has_private_form:
        shares = [task.share(_at(task, step)) for step in range(plan.exchanges)]
        assert shares == list(plan.shares)


def _at(task: Any, step: int) -> Any:
    question = task.ask(task.start())
    return type(question)(step, question.arrays)


@LEAVES
def test_a_choice_is_used_or_refused(leaf: Method) -> None:
    several = leaf.fixed_rounds is None
    choices: list[tuple[dict[str, Any], bool]] = [
        ({"rounds": 3}, several),
        ({"tolerance": 0.1}, several),
        ({"local_steps": 2}, leaf.takes_local_steps),
    ]
    for choice, used in choices:
        if used:
            assert planned(leaf, **choice) != planned(leaf)
        else:
            with pytest.raises(ParameterError, match=next(iter(choice))):
                planned(leaf, **choice)


@LEAVES
def test_what_it_states_can_be_compared(leaf: Method) -> None:
    """Noise falls with the budget only through its scale, and a floor lies above the noise that it is a floor of."""
    plan = planned(leaf)
    stated = leaf.noise_norm(DIM, plan, sites=4), leaf.entry_noise(plan), leaf.memory(DIM, plan)
    assert all(0 < number < math.inf for number in stated)
    floor = leaf.noise_floor(DIM, plan, scale=1.0, spike=0.0, sites=4)
    assert 0 < leaf.last_share(plan) <= 1 and floor > leaf.entry_noise(plan)
    assert leaf.noise_floor(DIM, plan, scale=2.0, spike=0.0, sites=4) == pytest.approx(2 * floor)
    assert leaf.noise_floor(DIM, plan, scale=1.0, spike=5.0, sites=4) > floor


@LEAVES
def test_its_words_say_what_leaves(leaf: Method) -> None:
    said = leaf.disclosure(7, role="clinic")
    assert said.startswith(("products of the rows", "the sums of products", "the 7 leading directions of this clinic"))
    assert leaf.phrase and leaf.places and set(leaf.settings) <= set(SETTINGS)


@LEAVES
def test_a_simulation_finds_the_axes_where_noise_is_small_and_not_where_it_is_large(leaf: Method) -> None:
    plan = planned(leaf)
    gram: Array = PEOPLE * 2.0 ** -np.arange(float(DIM))
    for multiplier, low, high in ((1e-6, 0.999, 1.0 + 1e-9), (1e5, 0.0, 0.95)):
        scene = Scene(gram=gram, shift=None, rank=RANK, neighbours=Neighbours.ZERO_OUT, multiplier=multiplier, seed=3)
        basis = leaf.simulate(plan, scene, sites=2)
        assert basis.shape == (DIM, RANK)
        assert low <= float(gram @ np.square(basis).sum(axis=1)) / gram[:RANK].sum() <= high


def test_every_setting_of_fits_offers_a_method() -> None:
    assert all(methods_in(setting) for setting in SETTINGS if setting != "stream")
