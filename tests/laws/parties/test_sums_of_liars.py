"""A trusted hub adds up what others sent before it adds noise: no part may decide how the sum of the others is rounded."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eigenveil import FederatedPCA
from eigenveil.core.noise import ROUNDING_COST
from eigenveil.linalg import Array
from eigenveil.protocols.messages import Contribution, Message
from eigenveil.runtimes.local import Faults
from eigenveil.tasks.base import on_grid
from eigenveil.tasks.fit.task import Fit


@settings(max_examples=200)
@given(
    seed=st.integers(0, 2**32),
    parts=st.integers(1, 40),
    sensitivity=st.sampled_from([1e-90, 0.37, 1.0, 3e7, 1e60]),
    size=st.integers(1, 300),
)
def test_parts_on_a_grid_add_up_exactly_in_any_order(seed: int, parts: int, sensitivity: float, size: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = 10.0 ** rng.uniform(-3, 5, (parts, 1)) * sensitivity
    given_parts = [on_grid(part, sensitivity, parts=parts) for part in rng.standard_normal((parts, size)) * sizes]
    forwards, backwards = np.zeros(size), np.zeros(size)
    for one, other in zip(given_parts, reversed(given_parts), strict=True):
        forwards, backwards = forwards + one, backwards + other
    np.testing.assert_array_equal(forwards, backwards)
    exact = [math.fsum(part[place] for part in given_parts) for place in range(size)]
    np.testing.assert_array_equal(forwards, exact)


@settings(max_examples=200)
@given(seed=st.integers(0, 2**32), size=st.integers(1, 400), sensitivity=st.sampled_from([1e-90, 0.37, 1.0, 3e7, 1e60]))
def test_the_grid_costs_what_it_says(seed: int, size: int, sensitivity: float) -> None:
    rng = np.random.default_rng(seed)
    one = rng.standard_normal(size) * sensitivity * 50
    moved = rng.standard_normal(size)
    other = one + sensitivity * moved / np.linalg.norm(moved)
    gap = np.linalg.norm(on_grid(one, sensitivity, parts=9) - on_grid(other, sensitivity, parts=9))
    assert gap <= sensitivity * (1 + ROUNDING_COST) * (1 + 1e-12)


def lies(entries: dict[str, float]) -> Faults:
    """Sites that send a matrix of their own making, with one pair of entries in it."""

    def meddle(message: Message) -> list[Message]:
        body = message.body
        if not isinstance(body, Contribution) or message.sender not in entries or body.arrays[0].ndim != 2:
            return [message]
        made = np.zeros((3, 3))
        made[0, 1] = made[1, 0] = entries[message.sender]
        return [
            Message(
                message.sender,
                message.receiver,
                Contribution(round=body.round, arrays=(made,), missing=body.missing, half=body.half),
            )
        ]

    return Faults(meddle=meddle)


def told(rows: Array, unit: float, *, trim: float) -> float:
    """What a hub with noise says when two sites lift its sum to where one `unit` is the last digit, and lower it again."""
    entries = {"trim": trim, "up": unit * 2.0**52, "down": -unit * 2.0**52}
    nothing = np.zeros((1, 3))
    sites = {"honest": rows, "trim": nothing, "up": nothing, "down": nothing}
    pca = FederatedPCA(
        1,
        epsilon=0.1,
        delta=1e-6,
        row_bound=1.0,
        neighbours="zero-out",
        center=None,
        method="covariance",
        faults=lies(entries),
        random_state=0,
    )
    return float(pca.fit(sites).singular_values_[0] ** 2)


def people(count: int, first: float) -> Array:
    rows = np.zeros((count, 3))
    rows[1:, :2] = 0.7
    rows[0, :2] = first
    return rows


@pytest.mark.parametrize("unit", [2.0**-30, 2.0**-16, 1.0, 2.0**15, 2.0**300])
def test_two_huge_parts_that_cancel_do_not_give_a_person_away(unit: float) -> None:
    count = 40_000
    trim = unit / 2 - 0.49 * (count - 1) - 0.2
    without, present = (told(people(count, first), unit, trim=trim) for first in (0.0, 0.7))
    # The noise is the same, by the seed; the person moves the matrix by at most one.
    assert abs(present - without) <= 1.01


def test_without_the_grid_they_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same study, its parts added as they come: one row decides on thousands in what is released."""
    whole = Fit.part

    def plain(study: Fit, question: object, arrays: tuple[Array, ...]) -> object:
        task, inner = study._unwrap_question(question)  # type: ignore[arg-type]
        return task.part(inner, arrays)

    monkeypatch.setattr(Fit, "part", plain)
    count, unit = 40_000, 2.0**15
    trim = unit / 2 - 0.49 * (count - 1) - 0.2
    without, present = (told(people(count, first), unit, trim=trim) for first in (0.0, 0.7))
    assert present - without > 10_000
    monkeypatch.setattr(Fit, "part", whole)


def test_cutting_what_is_too_large_brings_nothing_further_apart() -> None:
    rng = np.random.default_rng(0)
    huge = rng.standard_normal(50) * 10.0 ** rng.uniform(-5, 140, 50)
    moved = rng.standard_normal(50)
    other = huge + moved / np.linalg.norm(moved)
    gap = np.linalg.norm(on_grid(huge, 1.0, parts=7) - on_grid(other, 1.0, parts=7))
    assert gap <= 1 + ROUNDING_COST
