"""The account of noise in shares, against exact sums over its law; and integers that neighbours cannot drive further apart."""

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import special

from eigenveil.core.accounting import Budget, delta_of, mu_for
from eigenveil.core.noise import CAPACITY, LARGEST_SCALE, REACH, distance_in_steps, step_of
from eigenveil.linalg import Array
from eigenveil.privacy.lattice import Lattice
from eigenveil.privacy.released import pack, packed_size

BUDGET = Budget(1.0, 1e-6)


def terms(budget: Budget = BUDGET, **changed: Any) -> Lattice:
    return Lattice(budget=budget, **{"sites": 20, "survivors": 20, "colluders": 1, **changed})


def rounded_law(deviation: float, reach: int) -> Array:
    """Probabilities of -reach .. reach under round(deviation Z)."""
    k = np.abs(np.arange(-reach, reach + 1))
    return np.asarray(special.ndtr(-(k - 0.5) / deviation) - special.ndtr(-(k + 0.5) / deviation))


def law_of_sum(deviation: float, shares: int) -> Array:
    """Probabilities of a sum of so many shares, around zero."""
    one = rounded_law(deviation, math.ceil(14 * deviation) + 2)
    law = one
    for _ in range(shares - 1):
        law = np.convolve(law, one)
    return law


def law_after_rounding(deviation: float, shares: int, reach: int) -> Array:
    """Probabilities of -reach .. reach under round(N(0, h s^2) + U_1 + ... + U_(h-1)), from the characteristic function.

    P(n) is the density of N(0, h s^2) + U_1 + ... + U_h at n, and U has sin(u/2) / (u/2). A fine grid of u gives all digits.
    """
    far = 10 / (deviation * math.sqrt(shares))
    u = np.linspace(-far, far, 4001)
    seen = np.exp(-shares * (deviation * u) ** 2 / 2) * np.sinc(u / (2 * math.pi)) ** shares
    return np.asarray(np.cos(np.outer(np.arange(-reach, reach + 1), u)) @ seen * (u[1] - u[0]) / (2 * math.pi))


@pytest.mark.parametrize("shares", [2, 3, 5, 8])
@pytest.mark.parametrize("deviation", [0.5, 0.8, 1.0, 1.5, 3.0])
def test_shares_add_up_to_rounded_gaussian_noise_as_the_lemma_says(deviation: float, shares: int) -> None:
    """Total variation is at most (h - 1) exp(-2 pi^2 s^2 / h), which can be seen where shares are far too small."""
    law = law_of_sum(deviation, shares)
    far = np.abs(law - law_after_rounding(deviation, shares, len(law) // 2)).sum() / 2
    bound = (shares - 1) * math.exp(-2 * math.pi**2 * deviation**2 / shares)
    assert far <= bound * 1.01 + 1e-13
    if deviation == 0.5:
        # So the lemma says something: shares as small as this are not Gaussian noise, rounded.
        assert far > 3e-5


@pytest.mark.parametrize("shares", [1, 2, 5, 20])
@pytest.mark.parametrize("ratio", [0.1, 0.25, 1.0, 3.0])
def test_the_divergence_of_shifted_shares_is_within_the_gaussian_account(shares: int, ratio: float) -> None:
    """Exactly: the sum of what p(k) has over e^epsilon p(k + shift), for shares as small as a lattice ever makes them."""
    deviation = 32 * math.sqrt(shares)
    shift = round(ratio * deviation * math.sqrt(shares))
    law = law_of_sum(deviation, shares)
    mu = shift / (deviation * math.sqrt(shares))
    for epsilon in (0.05, 0.3, 1.0, 3.0, 6.0):
        exact = np.maximum(law[shift:] - math.exp(epsilon) * law[:-shift], 0).sum() + law[:shift].sum()
        gaussian = delta_of(epsilon, mu)
        assert exact <= gaussian + 1e-13
        # Close to it: an account of noise a tenth larger would be refuted.
        if gaussian > 1e-3:
            assert exact > delta_of(epsilon, mu / 1.1)


def test_several_coordinates_compose_as_the_account_says() -> None:
    """Four coordinates, each moved by a quarter of a deviation, through Google's privacy loss distributions."""
    shares, count = 4, 4
    deviation = 32 * math.sqrt(shares)
    law, shift = law_of_sum(deviation, shares), 32
    upper = {k: math.log(law[k]) for k in range(len(law)) if law[k] > 0}
    lower = {k + shift: seen for k, seen in upper.items()}
    kept = upper.keys() & lower.keys()
    loss = privacy_loss_distribution.from_two_probability_mass_functions(
        {k: lower[k] for k in kept}, {k: upper[k] for k in kept}, value_discretization_interval=1e-4
    ).self_compose(count)
    mu = shift * math.sqrt(count) / (deviation * math.sqrt(shares))
    for epsilon in (0.25, 1.0, 2.0):
        # Rounded up to a grid of 1e-4, four times, it says a little too much.
        assert loss.get_delta_for_epsilon(epsilon + 4e-4) <= delta_of(epsilon, mu) + 1e-13
        assert loss.get_delta_for_epsilon(epsilon) > delta_of(epsilon, mu / 1.05)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0, 30.0])
@pytest.mark.parametrize("size", [1, 1000, 10**6])
def test_noise_is_within_three_percent_of_a_trusted_curator(epsilon: float, size: int) -> None:
    """Twenty sites, one of whom tells: sqrt(20 / 19) is 2.6 percent already, and rounding takes a part in 4096 at most."""
    lattice = terms(Budget(epsilon, 1e-6))
    assert lattice.gaussian is not None
    given: dict[str, Any] = {"mu": lattice.gaussian.mu, "size": size}
    noise = lattice.step(2.0, **given) * math.sqrt(20) * lattice.deviation(2.0, **given)
    assert math.sqrt(20 / 19) < noise / (2.0 / mu_for(epsilon, 1e-6)) < math.sqrt(20 / 19) * (1 + 2.0**-12 + 1e-9)


@given(
    epsilon=st.floats(0.01, 100),
    delta=st.floats(1e-12, 1e-3),
    honest=st.integers(1, 2000),
    more=st.integers(0, 300),
    size=st.sampled_from([1, 7, 10**4, 10**8]),
    sensitivity=st.sampled_from([1e-200, 0.3, 1.0, 1.999, 1e200]),
    several=st.integers(1, 5),
    share=st.floats(1e-4, 1.0),
)
def test_honest_shares_make_the_noise_that_was_charged_for(
    epsilon: float, delta: float, honest: int, more: int, size: int, sensitivity: float, several: int, share: float
) -> None:
    """Added up again by hand: deviation, smoothness, the sampler's limits, and that no sum can wrap around."""
    lattice = terms(Budget(epsilon, delta), sites=honest + more + 5, survivors=honest + 5, colluders=3, loss=2)
    mu = mu_for(epsilon, delta) * math.sqrt(share)
    step = lattice.step(sensitivity, mu=mu, size=size, several=several)
    deviation = lattice.deviation(sensitivity, mu=mu, size=size, several=several)
    assert lattice.honest == honest
    # A power of two, not coarser than that of any release, so rounding costs no more.
    coarse = step_of(sensitivity, size)
    assert math.frexp(step)[0] == 0.5 and step <= coarse
    apart = several * Fraction(distance_in_steps(sensitivity, size, coarse)) * Fraction(coarse) / Fraction(step)
    assert honest * Fraction(deviation) ** 2 * Fraction(mu) ** 2 >= apart**2
    assert deviation * mu * math.sqrt(honest) < float(apart) * (1 + 1e-9)
    # So large that shares add up, no larger than the sampler reaches, and finer steps only where they are needed.
    assert deviation >= 32 * math.sqrt(honest) or honest == 1
    assert deviation <= LARGEST_SCALE
    if step < coarse:
        assert deviation < 2 * 32 * math.sqrt(honest) * (1 + 1e-6)
    assert lattice.sites * (lattice.most + math.ceil(REACH * deviation)) < 2**63
    people = lattice.people(mu=mu, size=size, several=several)
    room = max(2.0**15 * math.sqrt(size), 128 * honest * mu / several)
    assert people >= max(1000, math.floor(lattice.most / room * (1 - 1e-3)))
    # They all have room, at their bound in one entry.
    full = np.array([people * sensitivity])
    assert lattice.integers(full, step)[0] * step == pytest.approx(full[0], rel=1e-6)


@given(epsilon=st.floats(0.01, 100), delta=st.floats(1e-12, 1e-3), failure=st.floats(0, 0.09))
def test_nothing_of_the_budget_is_lost_but_the_failure_of_masks(epsilon: float, delta: float, failure: float) -> None:
    lattice = terms(Budget(epsilon, delta), failure=failure * delta)
    assert lattice.gaussian is not None
    assert lattice.gaussian.epsilon == epsilon
    assert Fraction(lattice.gaussian.delta) + Fraction(lattice.failure) <= Fraction(delta)
    assert lattice.gaussian.delta >= (delta - failure * delta) * (1 - 1e-11)
    assert terms(Budget(epsilon, delta)).gaussian == Budget(epsilon, delta)


def test_releases_without_room_are_refused_before_anything_is_drawn() -> None:
    lattice = terms()
    # Enormous noise, and steps so fine that a few people fill them.
    with pytest.raises(ValueError, match=r"mu = 1e-09 is too small for a sum of 1000000 numbers"):
        lattice.deviation(1.0, mu=1e-9, size=10**6)
    for mu in (1e12, 1e200):
        with pytest.raises(ValueError, match="clipped with fewer than 1000 people"):
            lattice.deviation(1.0, mu=mu, size=1)
    with pytest.raises(ValueError, match="is too small"):
        replace(lattice, sites=2**20).deviation(1.0, mu=1e-8, size=100)
    for sensitivity in (0.0, -1.0, math.inf, math.nan, 1e-290, 1e300):
        with pytest.raises(ValueError, match="sensitivity"):
            lattice.step(sensitivity, mu=0.1, size=10)
    for mu in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="mu"):
            lattice.step(1.0, mu=mu, size=10)
    with pytest.raises(ValueError, match="several"):
        lattice.step(1.0, mu=0.1, size=10, several=0)
    with pytest.raises(ValueError, match="size"):
        lattice.step(1.0, mu=0.1, size=0)


def floats_near(exact: list[Fraction], coarse: float, rng: np.random.Generator) -> Array:
    """What a site may hand in for these values, at its worst: off by a part of the value and a quarter of a coarse step."""
    found = []
    for value in exact:
        most = abs(value) / (4 * CAPACITY) + Fraction(coarse) / 4
        near = float(value + most * int(rng.integers(-1, 2)))
        # Rounding to a float may not go further than that.
        while abs(Fraction(near) - value) > most:
            near = math.nextafter(near, float(value))
        found.append(near)
    return np.array(found)


@given(
    seed=st.integers(0, 2**32),
    dim=st.integers(1, 8),
    size=st.sampled_from([0.0, 1.0, 1e6, 2e8, 1e9, 1e12, 1e17, 1e30]),
    sensitivity=st.sampled_from([1e-200, 3e-5, 1.0, 7.7e8, 1e200]),
    symmetric=st.booleans(),
    several=st.integers(1, 3),
    shape=st.sampled_from(["one", "all", "random"]),
    mu=st.sampled_from([1e-3, 0.05, 3.0, 3e4]),
)
@example(seed=0, dim=1, size=0.0, sensitivity=1.0, symmetric=False, several=1, shape="one", mu=3e4)
def test_neighbours_move_integers_by_no_more_than_the_charge(
    seed: int, dim: int, size: float, sensitivity: float, symmetric: bool, several: int, shape: str, mu: float
) -> None:
    """Exact values a sensitivity apart, tiny, huge, on both sides of the clip, handed in as badly as the contract allows."""
    lattice, rng = terms(), np.random.default_rng(seed)
    step = lattice.step(sensitivity, mu=mu, size=dim * dim, several=several)
    allowed = mu * lattice.deviation(sensitivity, mu=mu, size=dim * dim, several=several) * math.sqrt(lattice.honest)
    coarse, unit = step_of(sensitivity, dim * dim), Fraction(sensitivity)
    moved = [0] * packed_size((dim, dim), symmetric=symmetric)
    for _ in range(several):
        here = rng.standard_normal((dim, dim)) * min(size, 1e300 / sensitivity)
        if shape == "one":
            here[:] = 0.0
            here[0, 0] = (lattice.most * step / sensitivity) * (1 + rng.standard_normal() * 1e-9)
        away = np.ones((dim, dim)) if shape == "all" else rng.standard_normal((dim, dim))
        if symmetric:
            here, away = (here + here.T) / 2, (away + away.T) / 2
        away *= (1 - 2.0**-40) / np.linalg.norm(away)
        values = [[Fraction(a) * unit for a in array.flat] for array in (here, away)]
        assert sum(float(a / unit) ** 2 for a in values[1]) <= 1
        pair = (values[0], [a + b for a, b in zip(*values, strict=True)])
        whole = []
        for exact in pair:
            handed = floats_near(exact, coarse, rng).reshape(dim, dim)
            if symmetric:
                handed = np.triu(handed) + np.triu(handed, 1).T
            whole.append(lattice.integers(pack(handed, symmetric=symmetric), step).tolist())
        moved = [m + b - a for m, a, b in zip(moved, *whole, strict=True)]
        assert max(map(abs, whole[0])) <= lattice.most
    # Off the diagonal of a symmetric array noise is sqrt(2) smaller: such an entry counts twice.
    places = [(i, j) for i in range(dim) for j in range(i if symmetric else 0, dim)]
    weights = [2 if symmetric and i != j else 1 for i, j in places]
    assert math.sqrt(sum(w * m * m for w, m in zip(weights, moved, strict=True))) <= allowed


@given(seed=st.integers(0, 2**32), exponent=st.integers(-3, 60), mu=st.sampled_from([0.05, 3e4]))
def test_rounding_moves_an_entry_by_no_more_than_a_coarse_step(seed: int, exponent: int, mu: float) -> None:
    """The other half of the step's proof: each entry against the exact quotient, clipped exactly."""
    lattice, rng = terms(), np.random.default_rng(seed)
    step, coarse = lattice.step(1.0, mu=mu, size=81), step_of(1.0, 81)
    assert (coarse == step) == (mu < 1)
    exact = [Fraction(x) * Fraction(step) for x in rng.standard_normal(81) * 2.0**exponent]
    found = lattice.integers(floats_near(exact, coarse, rng), step).tolist()
    clipped = [min(max(value / Fraction(step), -lattice.most), lattice.most) for value in exact]
    assert all(abs(a - b) <= coarse / step for a, b in zip(found, clipped, strict=True))


def test_a_deviation_a_thousandth_too_small_would_be_caught() -> None:
    """One person at the worst place moves a whole number by nearly all that is paid for."""
    lattice, mu, sensitivity = terms(), 0.05, 1.0
    step = lattice.step(sensitivity, mu=mu, size=1)
    allowed = mu * lattice.deviation(sensitivity, mu=mu, size=1) * math.sqrt(lattice.honest)
    far = float(lattice.integers(np.array([sensitivity + 0.74 * step]), step)[0]) + 1
    assert far <= allowed < far * 1.001


def test_what_is_not_a_number_leaks_nothing_and_infinity_is_clipped() -> None:
    lattice = terms()
    found = lattice.integers(np.array([np.nan, np.inf, -np.inf, 1e308, 2.5]), 2.0**-10).tolist()
    assert found == [0, lattice.most, -lattice.most, lattice.most, 2560]


def test_without_noise_numbers_too_large_are_an_error_that_tells_no_number() -> None:
    lattice = Lattice.exact(sites=4, people=1024.0)
    assert not lattice.private and lattice.gaussian is None
    step = lattice.step(2.0, mu=1.0, size=10**9)
    assert step == 2.0**-48 and lattice.deviation(2.0, mu=1.0, size=10**9) == 0.0
    assert lattice.integers(np.array([1.0, -0.25]), step).tolist() == [2**48, -(2**46)]
    # All people at the bound have room.
    assert lattice.integers(np.array([2.0 * 1024]), step).tolist() == [2**59]
    for wrong in (123456.0 * 2**40, math.nan, math.inf, -1e308):
        with pytest.raises(ValueError, match="too large to be added up") as refusal:
            lattice.integers(np.array([0.0, wrong]), step)
        assert not any(character.isdigit() for character in str(refusal.value))


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


@pytest.mark.parametrize("sites", [1, 2, 128, 129, 5000, 2**20])
def test_the_largest_parts_of_all_sites_do_not_wrap(sites: int) -> None:
    assert sites * Lattice.exact(sites=sites).most <= 2**62
    # With noise at the largest that is ever drawn, half of the room is left for it.
    lattice = terms(sites=sites, survivors=sites, colluders=0)
    assert lattice.most == min(CAPACITY, 2**62 // sites)
    least = next(mu for mu in 10.0 ** np.arange(-12, 0, 0.1) if fits(lattice, mu))
    noise = math.ceil(REACH * lattice.deviation(1.0, mu=least, size=10**6))
    assert sites * (lattice.most + noise) < 2**63
    words = np.full(sites, lattice.most + noise).view(np.uint64).sum()
    assert lattice.values(np.array([words]), 1.0)[0] == float(sites * (lattice.most + noise))


def fits(lattice: Lattice, mu: float) -> bool:
    try:
        return lattice.deviation(1.0, mu=mu, size=10**6) > 0
    except ValueError:
        return False
