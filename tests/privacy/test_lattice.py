"""The account of integer noise, against exact sums over its law; and integers that neighbours cannot drive further apart."""

import math
import tracemalloc
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given
from hypothesis import strategies as st
from scipy import special

from eigenveil.linalg import Array
from eigenveil.privacy import Budget, Lattice, delta_of, mu_for, pack, packed_size, unpack
from eigenveil.privacy.lattice import ROUNDED_NORMAL
from eigenveil.privacy.skellam import ERROR, TAIL

BUDGET = Budget(1.0, 1e-6)


def terms(budget: Budget = BUDGET, **changed: Any) -> Lattice:
    usual = {"coordinates": 10**6, "sites": 20, "survivors": 20, "colluders": 1, "entries": 10**4, "smallest": 0.01}
    return Lattice.within(budget, **{**usual, **changed})


def skellam_law(deviation: float, reach: int) -> Array:
    """Probabilities of 0 .. reach."""
    return np.asarray(special.ive(np.arange(reach + 1), deviation**2))


def both_sides(half: Array) -> Array:
    return np.concatenate([half[:0:-1], half])


@pytest.mark.parametrize("deviation", [16.0, 17.3, 32.0, 100.0, 1024.0, 4096.0])
def test_skellam_is_a_rounded_normal_but_for_a_part_in_its_variance(deviation: float) -> None:
    """What docs/integer-noise.md proves, and that the constant is not much larger than it must be."""
    k = np.arange(int(14 * deviation) + 1)
    scale = math.sqrt(deviation**2 - 1 / 12)
    normal = special.ndtr(-(k - 0.5) / scale) - special.ndtr(-(k + 0.5) / scale)
    far = np.abs(both_sides(skellam_law(deviation, len(k) - 1)) - both_sides(normal)).sum() / 2
    assert 0.05 < far * deviation**2 < 0.075 < ROUNDED_NORMAL
    # With the variance itself, and not 1/12 less, it would be further off.
    plain = special.ndtr(-(k - 0.5) / deviation) - special.ndtr(-(k + 0.5) / deviation)
    assert np.abs(both_sides(skellam_law(deviation, len(k) - 1)) - both_sides(plain)).sum() / 2 > 1.1 * far


@pytest.mark.parametrize("deviation", [16.0, 64.0, 4096.0])
@pytest.mark.parametrize("ratio", [0.1, 0.25, 1.0, 3.0])
def test_the_divergence_of_shifted_integer_noise_is_within_the_account(deviation: float, ratio: float) -> None:
    """Exactly: the sum of what p(k) has over e^epsilon p(k + shift), in one dimension."""
    shift = max(1, round(ratio * deviation))
    law = both_sides(skellam_law(deviation, int(24 * deviation)))
    mu = shift / math.sqrt(deviation**2 - 1 / 12)
    for epsilon in (0.05, 0.3, 1.0, 3.0, 6.0):
        exact = np.maximum(law[shift:] - math.exp(epsilon) * law[:-shift], 0).sum() + law[:shift].sum()
        gaussian = delta_of(epsilon, mu)
        assert exact <= gaussian + (1 + math.exp(epsilon)) * ROUNDED_NORMAL / deviation**2
        # Close to it from both sides: an account of noise a tenth larger would be refuted.
        if gaussian > 1e-3 and deviation > 1000:
            assert exact == pytest.approx(gaussian, rel=1e-4)
            assert exact > delta_of(epsilon, mu / 1.1)


def test_several_coordinates_compose_as_the_account_says() -> None:
    """Four coordinates, each moved by a quarter of a deviation, through Google's privacy loss distributions."""
    deviation, shift, count = 1024.0, 256, 4
    law = both_sides(skellam_law(deviation, int(12 * deviation)))
    places = range(len(law))
    upper = {k: math.log(law[k]) for k in places}
    lower = {k + shift: math.log(law[k]) for k in places}
    kept = upper.keys() & lower.keys()
    loss = privacy_loss_distribution.from_two_probability_mass_functions(
        {k: lower[k] for k in kept}, {k: upper[k] for k in kept}, value_discretization_interval=1e-4
    ).self_compose(count)
    mu = shift * math.sqrt(count) / math.sqrt(deviation**2 - 1 / 12)
    for epsilon in (0.25, 1.0, 2.0):
        claimed = delta_of(epsilon, mu) + (1 + math.exp(epsilon)) * count * ROUNDED_NORMAL / deviation**2
        # Rounded up to a grid of 1e-4, four times, it says a little too much.
        assert loss.get_delta_for_epsilon(epsilon + 4e-4) <= claimed
        assert loss.get_delta_for_epsilon(epsilon) > delta_of(epsilon, mu / 1.05)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_noise_is_within_three_percent_of_a_trusted_curator(epsilon: float) -> None:
    """Twenty sites, one of whom tells: sqrt(20 / 19) is 2.6 percent already, and integers take less than a tenth of a percent."""
    lattice = terms(Budget(epsilon, 1e-6), entries=10**6, smallest=1.0)
    assert lattice.gaussian is not None
    step = lattice.step(2.0, mu=lattice.gaussian.mu, size=10**6)
    noise = step * math.sqrt(20 * lattice.share_variance)
    assert math.sqrt(20 / 19) < noise / (2.0 / mu_for(epsilon, 1e-6)) < min(1.03, math.sqrt(20 / 19) * 1.001)


@given(
    epsilon=st.floats(0.01, 12),
    delta=st.floats(1e-10, 1e-3),
    coordinates=st.integers(1, 10**8),
    honest=st.integers(1, 200),
    failure=st.floats(0, 0.09),
)
def test_the_whole_account_stays_within_the_budget(
    epsilon: float, delta: float, coordinates: int, honest: int, failure: float
) -> None:
    """Added up again by hand."""
    lattice = Lattice.within(
        Budget(epsilon, delta),
        coordinates=coordinates,
        sites=honest + 9,
        survivors=honest + 5,
        colluders=3,
        loss=2,
        failure=failure * delta,
        entries=min(coordinates, 1000),
        smallest=0.5,
    )
    assert lattice.gaussian is not None
    assert lattice.honest == honest
    assert Fraction(lattice.share_variance) * honest >= lattice.deviation**2
    assert lattice.share_variance >= 2.0**24
    draws = coordinates * honest
    factor = math.exp(lattice.gaussian.epsilon)
    total = math.exp(draws * ERROR) * (
        delta_of(lattice.gaussian.epsilon, lattice.gaussian.mu)
        + (1 + factor) * coordinates / (3 * lattice.deviation**2)
        + factor * draws * TAIL
    )
    assert lattice.gaussian.epsilon + 2 * draws * ERROR <= epsilon
    assert total + lattice.failure <= delta
    # And it is used up: all but the failure, a thousandth of delta and a hundredth of epsilon.
    assert lattice.gaussian.epsilon > 0.99 * epsilon
    assert lattice.gaussian.delta > (0.985 - failure) * delta


def test_half_the_steps_would_not_do() -> None:
    lattice = terms(smallest=1.0, entries=1)
    assert (1 + math.e) * 10**6 / (3 * lattice.deviation**2) <= 1e-3 * 1e-6
    assert (1 + math.e) * 10**6 / (3 * (lattice.deviation // 2) ** 2) > 1e-3 * 1e-6
    with pytest.raises(ValueError, match="these terms must stay within"):
        replace(lattice, deviation=2**24)


def test_terms_that_cannot_be_kept_are_refused() -> None:
    with pytest.raises(ValueError, match="epsilon = 60"):
        terms(Budget(60.0, 1e-6))
    with pytest.raises(ValueError, match="epsilon must be finite"):
        terms(Budget(math.inf, 1e-6))
    with pytest.raises(ValueError, match="coordinates must be fewer"):
        terms(Budget(0.01, 1e-6), coordinates=10**10)
    with pytest.raises(ValueError, match="ask for fewer rounds"):
        terms(smallest=1e-20)
    with pytest.raises(ValueError, match="failure"):
        terms(failure=1e-7)
    with pytest.raises(ValueError, match="survivors must be more"):
        terms(survivors=5, colluders=3, loss=2)
    with pytest.raises(ValueError, match="survivors"):
        terms(survivors=21)
    wrong: dict[str, Any] = {"coordinates": 0, "entries": 0, "smallest": 0.0, "several": 0, "loss": -1, "colluders": -1}
    for name, value in wrong.items():
        with pytest.raises(ValueError, match=name):
            terms(BUDGET, **{name: value})
    with pytest.raises(ValueError, match="no noise"):
        replace(terms(), budget=None)
    with pytest.raises(ValueError, match="deviation"):
        replace(terms(), deviation=2**47)


def test_steps_that_are_too_coarse_are_refused() -> None:
    lattice = terms()
    with pytest.raises(ValueError, match="size must be smaller"):
        lattice.step(1.0, mu=1e-5, size=10**6)
    with pytest.raises(ValueError, match="size must lie"):
        lattice.step(1.0, mu=0.1, size=10**6 + 1)
    for sensitivity in (0.0, -1.0, math.inf, math.nan, 1e-290, 1e300):
        with pytest.raises(ValueError, match="sensitivity"):
            lattice.step(sensitivity, mu=0.1, size=10)
    with pytest.raises(ValueError, match="mu"):
        lattice.step(1.0, mu=0.0, size=10)
    with pytest.raises(ValueError, match="several"):
        lattice.step(1.0, mu=0.1, size=10, several=0)


@given(
    seed=st.integers(0, 2**32),
    dim=st.integers(1, 12),
    size=st.sampled_from([0.0, 1.0, 1e6, 2e8, 1e9, 1e12, 1e17, 1e30, 1e200, 1e307]),
    sensitivity=st.sampled_from([1e-200, 3e-5, 1.0, 7.7e8, 1e200]),
    symmetric=st.booleans(),
    several=st.integers(1, 3),
    shape=st.sampled_from(["one", "all", "random"]),
)
def test_neighbours_move_integers_by_no_more_than_the_charge(
    seed: int, dim: int, size: float, sensitivity: float, symmetric: bool, several: int, shape: str
) -> None:
    """Arrays a sensitivity apart, tiny, huge, on both sides of the cut: their integers, summed over sites, against mu."""
    lattice, mu, rng = terms(several=3), 0.05, np.random.default_rng(seed)
    entries = packed_size((dim, dim), symmetric=symmetric)
    step = lattice.step(sensitivity, mu=mu, size=entries, several=several)
    allowed = mu * math.sqrt(lattice.deviation**2 - 1 / 12)
    moved = [0] * entries
    for _ in range(several):
        with np.errstate(over="ignore"):
            here = rng.standard_normal((dim, dim)) * min(size * sensitivity, 1e307)
        if shape == "one":
            here[:] = 0.0
            here[0, 0] = (lattice.most * step) * (1 + rng.standard_normal() * 1e-9)
        away = rng.standard_normal((dim, dim))
        if symmetric:
            here, away = (here + here.T) / 2, (away + away.T) / 2
        if shape == "all":
            away = np.ones((dim, dim))
        there = here + away * (sensitivity * (1 - 1e-6) / np.linalg.norm(away))
        # In floating point the two are not quite that far apart. How far they are is added up exactly.
        unit = Fraction(sensitivity)
        gap = sum(((Fraction(b) - Fraction(a)) / unit) ** 2 for a, b in zip(here.flat, there.flat, strict=True))
        if gap > 1:
            there = here
        else:
            assert size > 1e8 or gap > 0.99
        first, second = (lattice.integers(pack(v, symmetric=symmetric), step).tolist() for v in (here, there))
        moved = [m + b - a for m, a, b in zip(moved, first, second, strict=True)]
        assert max(map(abs, first)) <= lattice.most
    assert math.sqrt(sum(m * m for m in moved)) <= allowed


@given(seed=st.integers(0, 2**32), exponent=st.integers(40, 60), symmetric=st.booleans())
def test_rounding_moves_an_entry_by_less_than_eight_steps(seed: int, exponent: int, symmetric: bool) -> None:
    """The other half of the step's proof: each entry against the exact quotient, cut exactly."""
    lattice, rng = terms(), np.random.default_rng(seed)
    step = float(rng.random() + 0.5)
    flat = rng.standard_normal((9, 9)) * 2.0**exponent
    flat += flat.T
    found = lattice.integers(pack(flat, symmetric=symmetric), step).tolist()
    factor = Fraction(math.sqrt(2))
    exact = [
        Fraction(flat[i, j]) * (factor if symmetric and i != j else 1) / Fraction(step)
        for i in range(9)
        for j in range(i if symmetric else 0, 9)
    ]
    cut = [min(max(value, -lattice.most), lattice.most) for value in exact]
    assert all(abs(a - b) < 8 for a, b in zip(found, cut, strict=True))


def test_a_step_an_eighth_too_small_would_be_caught() -> None:
    lattice, mu = terms(), 0.05
    step = lattice.step(1.0, mu=mu, size=1)
    allowed = mu * math.sqrt(lattice.deviation**2 - 1 / 12)
    assert (
        float(lattice.integers(np.ones(1), step)[0]) <= allowed < float(lattice.integers(np.ones(1), step / 1.001)[0])
    )


def test_what_is_not_a_number_leaks_nothing_and_infinity_is_cut() -> None:
    lattice = terms()
    found = lattice.integers(np.array([np.nan, np.inf, -np.inf, 1e308, 2.5]), 1e-3).tolist()
    assert found == [0, lattice.most, -lattice.most, lattice.most, 2500]


def test_without_noise_numbers_too_large_are_an_error_that_tells_no_number() -> None:
    lattice = Lattice.exact(sites=4, people=1024.0)
    assert not lattice.private
    step = lattice.step(2.0, mu=1.0, size=10**9)
    assert step == 2.0**-48
    assert lattice.integers(np.array([1.0, -0.25]), step).tolist() == [2**48, -(2**46)]
    # All people at the bound have room.
    assert lattice.integers(np.array([2.0 * 1024]), step).tolist() == [2**59]
    for wrong in (123456.0 * 2**40, math.nan, math.inf):
        with pytest.raises(ValueError, match="small enough") as refusal:
            lattice.integers(np.array([0.0, wrong]), step)
        assert not any(letter.isdigit() for letter in str(refusal.value))


def test_sums_wrap_around_and_are_read_as_signed_numbers() -> None:
    """Words modulo 2^64 are a function of the integer sum: what masks do to it tells nothing that the sum does not."""
    lattice, rng = terms(), np.random.default_rng(5)
    parts = rng.integers(-lattice.most, lattice.most, (20, 100), endpoint=True)
    masks = rng.integers(0, 2**64 - 1, (20, 100), dtype=np.uint64, endpoint=True)
    masks[-1] = -masks[:-1].sum(axis=0)
    words = (parts.view(np.uint64) + masks).sum(axis=0)
    exact = [sum(column) for column in parts.T.tolist()]
    assert words.tolist() == [total % 2**64 for total in exact]
    assert lattice.values(words, 0.5).tolist() == [0.5 * total for total in exact]
    most = np.full(20, lattice.most)
    assert lattice.values(np.array([most.view(np.uint64).sum()]), 1.0)[0] == 20.0 * lattice.most


@pytest.mark.parametrize("sites", [1, 2, 128, 129, 5000])
def test_the_largest_parts_of_all_sites_do_not_wrap(sites: int) -> None:
    assert sites * Lattice.exact(sites=sites).most <= 2**62


@given(seed=st.integers(0, 1000), dim=st.integers(1, 30))
def test_packing_keeps_norms_and_comes_back(seed: int, dim: int) -> None:
    value = np.random.default_rng(seed).standard_normal((dim, dim))
    assert np.array_equal(unpack(pack(value, symmetric=False), (dim, dim), symmetric=False), value)
    value = value + value.T
    flat = pack(value, symmetric=True)
    assert flat.shape == (packed_size((dim, dim), symmetric=True),)
    assert np.linalg.norm(flat) == pytest.approx(np.linalg.norm(value), rel=1e-14)
    back = unpack(flat, (dim, dim), symmetric=True)
    assert np.array_equal(back, back.T)
    assert np.allclose(back, value, rtol=1e-15, atol=0)


def test_packing_copies_and_takes_scalars_and_refuses_other_sizes() -> None:
    value = np.ones(3)
    pack(value, symmetric=False)[:] = 7
    assert value.tolist() == [1, 1, 1]
    assert unpack(pack(np.asarray(2.0), symmetric=False), (), symmetric=False) == 2.0
    with pytest.raises(ValueError, match="6 numbers"):
        unpack(np.zeros(9), (3, 3), symmetric=True)


def test_packing_a_large_matrix_takes_the_room_of_its_answer() -> None:
    value = np.ones((1500, 1500))
    tracemalloc.start()
    flat = pack(value, symmetric=True)
    half = tracemalloc.get_traced_memory()[1]
    tracemalloc.reset_peak()
    unpack(flat, value.shape, symmetric=True)
    whole = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert half < 1.1 * flat.nbytes
    assert whole < 1.1 * (flat.nbytes + value.nbytes)
