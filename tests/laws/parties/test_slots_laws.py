"""Laws of slots: one person, or one device, moves what a site makes of a slot by no more than is stated."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eigenveil.core.domain import Domain, MissingPolicy
from eigenveil.core.ledger import Ledger
from eigenveil.core.mechanism import Gaussian
from eigenveil.core.noise import Noise
from eigenveil.core.unit import Neighbours
from eigenveil.errors import BudgetExceeded
from eigenveil.linalg import Array
from eigenveil.tasks.base import Question
from eigenveil.tasks.slot_sums import SlotSums
from eigenveil.tasks.slots import SlotSketches
from laws.strategies import SIZES, person

COUNTED = (Neighbours.ZERO_OUT, Neighbours.REPLACE_ONE)


def made(task: SlotSums, blocks: list[Array]) -> Array:
    filled = task.open()
    for block in blocks:
        filled.add(block)
    return np.asarray(task.private(Question(0), filled.close()).value)


@given(
    st.integers(0, 2**32), st.sampled_from(SIZES), st.sampled_from(SIZES), st.sampled_from(COUNTED), st.sampled_from([0.5, 37.0])
)
def test_a_device_moves_a_slot_by_no_more_than_is_stated(
    seed: int, size: float, other: float, neighbours: Neighbours, radius: float
) -> None:
    rng = np.random.default_rng(seed)
    task = SlotSums(domain=Domain(dim=4, radius=radius), neighbours=neighbours, slots=3, person_slots=3, one_person_per_site=True)
    rows = person(4, rng, size, int(rng.integers(1, 30)))
    if neighbours is Neighbours.ZERO_OUT:
        instead = np.zeros((int(rng.integers(1, 30)), 4))
    else:
        instead = person(4, rng, other, int(rng.integers(1, 30)))
    moved = np.linalg.norm(made(task, [rows]) - made(task, [instead]))
    assert moved <= task.sensitivity(Question(0)) * (1 + 1e-12)


@given(
    st.integers(0, 2**32),
    st.sampled_from(SIZES),
    st.sampled_from(COUNTED),
    st.sampled_from(["counts", "groups", "drop"]),
    st.booleans(),
)
def test_gaps_of_one_person_move_a_slot_by_no_more_than_is_stated(
    seed: int, size: float, neighbours: Neighbours, rule: str, device: bool
) -> None:
    rng = np.random.default_rng(seed)
    gaps = {
        "counts": MissingPolicy.counted(4),
        "groups": MissingPolicy.grouped(np.array([0, 0, 1, 2])),
        "drop": MissingPolicy.dropped(4),
    }[rule]
    task = SlotSums(
        domain=Domain(dim=4, radius=2.0, gaps=gaps),
        neighbours=neighbours,
        slots=3,
        person_slots=3 if device else 1,
        one_person_per_site=device,
    )
    count = int(rng.integers(1, 30)) if device else 1

    def torn(rows: Array) -> Array:
        return np.where(rng.random(rows.shape) < rng.choice([0.0, 0.3, 1.0]), np.nan, rows)

    # Everything may differ, the gaps too. A person who is blanked has zeros, or nothing at all.
    one, other = torn(person(4, rng, size, count)), torn(person(4, rng, 1.0, count))
    if neighbours is Neighbours.ZERO_OUT:
        other = np.full((count, 4), rng.choice([0.0, np.nan]))
    beside = [] if device else [torn(rng.standard_normal((20, 4)))]
    moved = np.linalg.norm(made(task, [*beside, one]) - made(task, [*beside, other]))
    assert moved <= task.sensitivity(Question(0)) * (1 + 1e-12)


@given(st.integers(0, 2**32), st.sampled_from(SIZES))
def test_blocks_and_their_order_change_no_bit_and_huge_rows_change_no_more_than_others(seed: int, size: float) -> None:
    rng = np.random.default_rng(seed)
    task = SlotSums(domain=Domain(dim=4, radius=1.0), neighbours=Neighbours.ZERO_OUT, slots=3)
    rows, hostile = rng.standard_normal((20, 4)), person(4, rng, size, 1)
    whole = made(task, [np.vstack([rows, hostile])])
    assert whole.tobytes() == made(task, [hostile, rows[::-1]]).tobytes()
    blanked = made(task, [rows, np.zeros((1, 4))])
    assert np.linalg.norm(whole - blanked) <= task.sensitivity(Question(0)) * (1 + 1e-12)


def test_a_second_release_of_a_slot_is_refused_and_a_later_slot_is_free() -> None:
    task = SlotSums(domain=Domain(dim=2, radius=1.0), neighbours=Neighbours.ZERO_OUT, slots=3)
    ledger = Ledger(epsilon=1.0, delta=1e-5)
    mechanism = Gaussian(multiplier=(1 + 1e-10) / ledger.budget.mu, ledger=ledger, noise=Noise.seeded(1))
    filled = task.open()
    filled.add(np.ones((3, 2)))
    closed = filled.close()
    task.work(Question(0), closed, mechanism)
    with pytest.raises(BudgetExceeded):
        task.work(Question(0), closed, mechanism)
    task.work(Question(2), closed, mechanism)
    with pytest.raises(ValueError, match="was closed"):
        task.work(Question(1), closed, mechanism)


def test_sketches_are_refused_by_every_mechanism_with_noise() -> None:
    task = SlotSketches(dim=3, width=2, slots=1)
    filled = task.open()
    filled.add(np.eye(3))
    with pytest.raises(ValueError, match="cannot have noise"):
        task.work(
            Question(0), filled.close(), Gaussian(multiplier=1.0, ledger=Ledger(epsilon=9.0, delta=1e-5), noise=Noise.seeded(1))
        )
