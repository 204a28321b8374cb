"""The set of numbers that can come out of a release is the same for any two tables.

Whatever the value, what leaves is a whole number of public steps: that of the value, K, plus a draw that no table has a say in.
So the numbers that can come out for one table are those for another one, moved by whole steps. What is left to tell tables apart
is how far K moves, and that is what noise is for. Each law is shown to fail for the mistake that it is there for.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import chi2

from eigenveil.core import mechanism, sums
from eigenveil.core.domain import Domain
from eigenveil.core.ledger import Ledger
from eigenveil.core.mechanism import Bounded, Calibrated, Gaussian, Mechanism
from eigenveil.core.noise import CAPACITY, LARGEST_SCALE, REACH, Noise, distance_in_steps, step_of, steps_of
from eigenveil.core.unit import Neighbours
from eigenveil.data.rows import DenseRows
from eigenveil.linalg import Array
from eigenveil.linalg.sketch import normals
from eigenveil.privacy import released
from eigenveil.privacy.floating import dense, float_gram, float_sum
from eigenveil.privacy.released import release_columns
from eigenveil.privacy.sums import bounded_gram, bounded_sum
from eigenveil.tasks.fit.gaps import PartialBudget
from laws.strategies import Case, cases
from laws.sums.test_exact_sums_laws import SUMS, Table, alike

Integers = NDArray[np.int64]
MULTIPLIER, SHARE, PART, CARRIED = 3.0, 0.36, 0.25, 1.5
# What a private number may be, a mistake of ours included: none may lead out of the lattice, or to an error.
VALUES = [0.0, -0.0, 1.0, math.pi, -1e-300, 5e-324, 1e16 / 3, -1e100, 1e308, math.inf, -math.inf, math.nan]
SENSITIVITIES = [1e-200, 1e-9, 0.7, 1.0, math.pi, 1e12, 1e200]


def gaussian(noise: Noise | None = None, **more: Any) -> Gaussian:
    return Gaussian(
        multiplier=more.pop("multiplier", MULTIPLIER),
        ledger=Ledger(epsilon=math.inf, delta=1e-6),
        noise=noise or Noise.seeded(3),
        **more,
    )


Release = Callable[[Bounded], Array]


def by_columns(private: Bounded) -> Array:
    dim = len(private.value)
    slices = (private.value[:, start : start + 2] for start in range(0, dim, 2))
    released = release_columns(gaussian(), slices, dim=dim, sensitivity=private.sensitivity, label="x", share=SHARE)
    return np.hstack(list(released))


def through(make: Callable[[], Mechanism], private: Bounded) -> Array:
    return make().release(private, label="x", share=SHARE)


# Each with what the noise multiplier of its release is, shares taken into account: the step depends on it.
MECHANISMS: dict[str, tuple[Release, float]] = {
    "plain": (lambda private: through(gaussian, private), MULTIPLIER / math.sqrt(SHARE)),
    "portion": (lambda private: through(lambda: PartialBudget(gaussian(), PART), private), MULTIPLIER / math.sqrt(SHARE * PART)),
    "carried": (lambda private: through(lambda: gaussian(existing_multiplier=CARRIED), private), MULTIPLIER / math.sqrt(SHARE)),
    "fine": (lambda private: through(lambda: gaussian(multiplier=1e-3), private), 1e-3 / math.sqrt(SHARE)),
    "columns": (by_columns, MULTIPLIER / math.sqrt(SHARE)),
}


@st.composite
def privates(draw: st.DrawFn, sensitivity: float) -> tuple[Bounded, Bounded]:
    """Two private arrays of one shape, of any numbers, with one bound: symmetric or not."""
    dim, symmetric = draw(st.integers(1, 5)), draw(st.booleans())
    shape = (dim, dim) if symmetric else draw(st.sampled_from([(dim,), (dim, 2), ()]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    found = []
    for _ in range(2):
        value = rng.standard_normal(shape) * sensitivity * draw(st.sampled_from([1e-9, 1.0, 1e5, 1e12]))
        hostile = np.where(rng.random(shape) < 0.3, rng.choice(VALUES, shape), value)
        hostile = np.triu(hostile) + np.triu(hostile, 1).T if symmetric and hostile.ndim == 2 else hostile
        if symmetric:
            # Sums of infinities of two signs are not numbers: the mirror image is taken, not a sum.
            below = np.tril_indices(dim, -1)
            hostile[below] = hostile.T[below]
        found.append(Bounded(np.asarray(hostile), sensitivity, symmetric=symmetric))
    return found[0], found[1]


def steps_released(private: Bounded, name: str) -> Integers:
    """What was released, in public steps. The law: these are whole numbers, and none is beyond what floats hold exactly."""
    release, multiplier = MECHANISMS[name]
    public = release(private)
    step = step_of(private.sensitivity, int(np.size(private.value)), multiplier=multiplier)
    steps = np.asarray(public) / step
    assert np.isfinite(steps).all()
    assert (np.abs(steps) <= CAPACITY + REACH * LARGEST_SCALE + 1).all()
    assert (steps == np.rint(steps)).all(), "not a whole number of public steps"
    return steps.astype(np.int64)


def usual(private: Bounded, name: str) -> bool:
    return name != "columns" or (private.symmetric and private.value.ndim == 2)


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("name", MECHANISMS)
@settings(max_examples=60)
@given(data=st.data(), sensitivity=st.sampled_from(SENSITIVITIES))
def test_what_leaves_is_the_same_lattice_moved_by_whole_steps(name: str, data: st.DataObject, sensitivity: float) -> None:
    one, other = data.draw(privates(sensitivity))
    if not usual(one, name):
        return
    step = step_of(sensitivity, int(np.size(one.value)), multiplier=MECHANISMS[name][1])
    draws = [steps_released(side, name) - steps_of(side.value, step) for side in (one, other)]
    # The words of the noise are the same ones: no table has a say in what is made of them.
    assert np.array_equal(draws[0], draws[1])
    if one.symmetric:
        assert np.array_equal(draws[0], draws[0].T)


@pytest.mark.parametrize("name", MECHANISMS)
@settings(max_examples=40)
@given(case=cases())
def test_sums_of_neighbours_leave_on_one_lattice(name: str, case: Case) -> None:
    """End to end: rows, exact sums, a release."""
    for total in (bounded_gram, bounded_sum):
        sides = [total(rows, domain=case.domain, neighbours=case.neighbours) for rows in (case.one, case.other)]
        if not usual(sides[0], name):
            continue
        step = step_of(sides[0].sensitivity, int(np.size(sides[0].value)), multiplier=MECHANISMS[name][1])
        draws = [steps_released(side, name) - steps_of(side.value, step) for side in sides]
        assert np.array_equal(draws[0], draws[1])


@pytest.mark.parametrize("value", [0.0, 0.5, 1 / 3, -1e9 / 7, math.nan, math.inf])
def test_the_lowest_bits_are_even_whatever_the_value(value: float) -> None:
    """Of 200 000 numbers, the last four bits of the steps: each of the sixteen as often as the others, at a level of 1e-6."""
    private = Bounded(np.full(200_000, value), 1.0)
    steps = steps_released(private, "plain")
    counts = np.bincount(steps & 15, minlength=16)
    assert ((counts - 12_500) ** 2 / 12_500).sum() < chi2.ppf(1 - 1e-6, 15)


@pytest.mark.parametrize("largest", [1.0, 1e308, math.inf, -math.inf])
def test_the_largest_value_and_the_largest_noise_do_not_overflow(largest: float) -> None:
    step = step_of(1.0, 100)
    multiplier = LARGEST_SCALE / distance_in_steps(1.0, 100, step) * (1 - 1e-9)
    found = gaussian(multiplier=multiplier).release(Bounded(np.full(100, largest), 1.0), label="x") / step
    assert (np.abs(found) < 2**52).all()
    assert (found == np.rint(found)).all()
    if abs(largest) > 1:
        assert (np.abs(found - math.copysign(CAPACITY, largest)) <= REACH * LARGEST_SCALE + 1).all()
    with pytest.raises(ValueError, match="scale must be"):
        # Public numbers alone decide that: no table does.
        gaussian(multiplier=2 * multiplier).release(Bounded(np.zeros(100), 1.0), label="x")


def test_numbers_that_are_clipped_or_none_move_no_further_than_others() -> None:
    step = 2.0**-10
    values = np.array([*VALUES, CAPACITY * step, -CAPACITY * step, (CAPACITY - 0.5) * step])
    found = steps_of(values, step)
    assert (np.abs(found) <= CAPACITY).all()
    finite = np.flatnonzero(np.isfinite(values))
    for i in finite:
        for j in finite:
            # Half a step for each of the two, and 2^-51 of a number of up to 2^49 steps for how it was held.
            apart = abs(Fraction(float(values[i])) - Fraction(float(values[j]))) / Fraction(step)
            assert abs(int(found[i]) - int(found[j])) <= apart + 2


# How far the whole numbers of neighbours are apart is what noise is for.


class Still:
    """Takes the place of `RoundedGaussian`: draws nothing but zeros, so that K itself is seen, and keeps the scale. Changes "
    "in place."""

    scales: list[float]

    def __init__(self, scale: float) -> None:
        Still.scales.append(scale)

    def draw(self, noise: Noise, count: int) -> Integers:
        return np.zeros(count, dtype=np.int64)


def distance_and_room(one: Bounded, other: Bounded, name: str) -> tuple[float, float]:
    """How far the whole numbers of two neighbours are apart, and how far the noise that was drawn allows for."""
    release, multiplier = MECHANISMS[name]
    step = step_of(one.sensitivity, int(np.size(one.value)), multiplier=multiplier)
    with pytest.MonkeyPatch.context() as patch:
        for module in (mechanism, released):
            patch.setattr(module, "RoundedGaussian", Still)
        Still.scales = []
        here, there = (np.asarray(release(side)) / step for side in (one, other))
    left = math.sqrt(1 - (CARRIED / MULTIPLIER) ** 2) if name == "carried" else 1.0
    apart = math.sqrt(sum(int(gap) ** 2 for gap in np.ravel(here - there)))
    return apart, max(Still.scales) / (multiplier * left)


def placed_to_round_apart(size: int, about: float, multiplier: float) -> tuple[Bounded, Bounded]:
    """Neighbours as far apart as their sensitivity, `about` this.

    They differ by a little over a whole number of steps in every entry, from just below a half to just above one. So each entry
    is rounded apart by nearly one step more.
    """
    step = step_of(about, size, multiplier=multiplier)
    gap = math.floor(about / step / math.sqrt(size)) - 1 + 2.0**-10
    sensitivity = gap * step * math.sqrt(size) * (1 + 2.0**-50)
    assert step_of(sensitivity, size, multiplier=multiplier) == step
    one = np.full(size, (0.5 - 2.0**-11) * step)
    other = one + gap * step
    assert np.linalg.norm(one - other) <= sensitivity * (1 + 2.0**-50)
    return Bounded(one, sensitivity), Bounded(other, sensitivity)


@pytest.mark.parametrize("name", [name for name in MECHANISMS if name != "columns"])
@pytest.mark.parametrize("size", [1, 7, 100, 10_000])
@pytest.mark.parametrize("about", [1.5, 0.999, 1.3e-50, 12345.678])
def test_rounding_is_in_the_noise(name: str, size: int, about: float) -> None:
    apart, room = distance_and_room(*placed_to_round_apart(size, about, MECHANISMS[name][1]), name)
    assert apart <= room


@pytest.mark.parametrize("name", MECHANISMS)
@settings(max_examples=60)
@given(case=cases())
def test_whole_numbers_of_neighbours_are_no_further_apart_than_noise_is_for(name: str, case: Case) -> None:
    for total in (bounded_gram, bounded_sum):
        sides = [total(rows, domain=case.domain, neighbours=case.neighbours) for rows in (case.one, case.other)]
        if usual(sides[0], name):
            apart, room = distance_and_room(sides[0], sides[1], name)
            assert apart <= room


# Mutants: what must fail, does.


def tables_of_two() -> tuple[Bounded, Bounded]:
    rows = np.random.default_rng(0).standard_normal((40, 4))
    one, other = (
        bounded_gram(DenseRows(held), domain=Domain(dim=4, radius=1.0), neighbours=Neighbours.ADD_REMOVE)
        for held in (rows, rows[:-1])
    )
    return one, other


def one_lattice(name: str, *sides: Bounded) -> None:
    """The law of the support, for two tables."""
    step = step_of(sides[0].sensitivity, int(np.size(sides[0].value)), multiplier=MECHANISMS[name][1])
    draws = [steps_released(side, name) - steps_of(side.value, step) for side in sides]
    assert np.array_equal(draws[0], draws[1])


@pytest.mark.parametrize("name", ["plain", "portion", "carried"])
def test_noise_added_in_floating_point_is_convicted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def added(value: Array, of: Calibrated) -> Array:
        drawn = np.triu(normals(of.noise, value.shape))
        return np.asarray(value + of.step * of.deviation * (drawn + drawn.T) / 2)

    one_lattice(name, *tables_of_two())
    monkeypatch.setattr(mechanism, "_add_symmetric_noise", added)
    with pytest.raises(AssertionError, match="not a whole number of public steps"):
        one_lattice(name, *tables_of_two())


@pytest.mark.parametrize("finer", [-3, 1])
def test_a_step_read_from_the_data_is_convicted(finer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As large as it may be for the largest entry, say: a power of two, but not a public one."""
    honest = mechanism._add_symmetric_noise

    def by_size(value: Array, of: Calibrated) -> Array:
        read = 2.0 ** (math.frexp(float(np.abs(value).max()))[1] + finer - 20)
        return honest(value, Calibrated(read, of.deviation * of.step / read, of.noise))

    one, _ = tables_of_two()
    # One person more is enough for another power of two, somewhere; here it is four times as many.
    larger = Bounded(4 * one.value, one.sensitivity, symmetric=True)
    one_lattice("plain", one, larger)
    monkeypatch.setattr(mechanism, "_add_symmetric_noise", by_size)
    with pytest.raises(AssertionError):
        one_lattice("plain", one, larger)


@pytest.mark.parametrize("size", [1, 100, 10_000])
def test_rounding_outside_of_the_sensitivity_is_convicted(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sides = placed_to_round_apart(size, 1.5, MECHANISMS["plain"][1])
    monkeypatch.setattr(mechanism, "distance_in_steps", lambda sensitivity, size, step: sensitivity / step)
    apart, room = distance_and_room(*sides, "plain")
    assert apart > room + 0.99 * math.sqrt(size)


@pytest.mark.parametrize("name", ["sum", "gram"])
def test_a_sum_that_depends_on_order_is_convicted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    table, order, domain = (Table(rng.standard_normal((200, 6)), None, False), rng.permutation(200), Domain(dim=6, radius=2.0))

    def same() -> bool:
        return alike(SUMS[name](table.rows(), domain), SUMS[name](table.permuted(order).rows(), domain))

    assert same()
    monkeypatch.setattr(sums, "total_of", lambda rows, work: rows)
    monkeypatch.setattr(sums, "finished_sum", float_sum)
    monkeypatch.setattr(sums, "finished_gram", float_gram)
    assert not same()


@pytest.mark.parametrize("mistake", ["one bit", "a product that is not symmetric"])
def test_an_asymmetric_gram_matrix_is_convicted(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    table, domain = Table(rng.standard_normal((500, 37)), None, False), Domain(dim=37, radius=3.0)

    def one_bit(rows: Any, region: Any) -> Array:
        found = float_gram(rows, region)
        found[3, 1] = np.nextafter(found[1, 3], math.inf)
        return found

    def general(rows: Any, region: Any) -> Array:
        values = np.vstack([dense(region, block) for block in rows.blocks(1000)])
        # Weights on one side, taken off afterwards: no two mirrored entries are rounded alike.
        return np.asarray((values * 0.1).T @ values / 0.1)

    def symmetric() -> bool:
        found = SUMS["gram"](table.rows(), domain)
        return alike(found, found.T)

    assert symmetric()
    monkeypatch.setattr(sums, "total_of", lambda rows, work: rows)
    monkeypatch.setattr(sums, "finished_gram", one_bit if mistake == "one bit" else general)
    assert not symmetric()
