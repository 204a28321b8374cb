"""The low-bit attack: certain of noise in floating point, blind to noise in whole steps, and right about what is neither."""

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from scipy.special import ndtr

from eigenveil.audit.low_bits import Candidates, certain, evidence, likelihood, on_steps
from eigenveil.audit.specimens import FloatingGaussian
from eigenveil.core.ledger import Ledger
from eigenveil.core.mechanism import Bounded, Gaussian
from eigenveil.core.noise import Noise, RoundedGaussian
from eigenveil.linalg import Array

Released = Callable[[Bounded, int], Array]
# mu, and so the rate of right guesses that it allows.
MU = 1.2
ALLOWED = float(ndtr(MU / 2))


def gaussian(seed: int) -> Gaussian:
    return Gaussian(multiplier=1 / MU, ledger=Ledger(epsilon=math.inf, delta=0.5), noise=Noise.seeded(seed))


def lattice(private: Bounded, seed: int) -> Array:
    return gaussian(seed).release(private, label="it")


def floating(private: Bounded, seed: int) -> Array:
    return FloatingGaussian(gaussian(seed)).release(private, label="it")


def unrounded(private: Bounded, seed: int) -> Array:
    """Noise in whole steps on a value that is not rounded to any."""
    drawn = RoundedGaussian(2.0**17 / MU).draw(Noise.seeded(seed), private.value.size).reshape(private.value.shape)
    upper = np.triu(drawn * 2.0**-17)
    return np.asarray(private.value + upper + np.triu(upper, 1).T)


def coarse(private: Bounded, seed: int) -> Array:
    """A value on a lattice, and noise on one that is twice as coarse."""
    drawn = RoundedGaussian(2.0**16 / MU).draw(Noise.seeded(seed), private.value.size).reshape(private.value.shape)
    upper = np.triu(drawn * 2.0**-16)
    return np.asarray(np.rint(private.value * 2.0**17) * 2.0**-17 + upper + np.triu(upper, 1).T)


def guesses(release: Released, *, runs: int, dim: int = 12, people: int = 60) -> tuple[Array, Array, Array]:
    """Of runs with and without a person: who was there, what low bits say, and the score."""
    there, sure, scores = [], [], []
    for run in range(runs):
        rng = np.random.default_rng([11, run])
        rows, row = rng.standard_normal((people, dim)) / 4, rng.standard_normal(dim)
        row /= np.linalg.norm(row)
        without = rows.T @ rows
        without = (without + without.T) / 2
        given = without + np.outer(row, row)
        present = bool(rng.integers(2))
        released = release(Bounded(given if present else without, 1.0, symmetric=True), run)
        seen = [Candidates.of(released, without, given, scale=1 / MU, symmetric=True)]
        there.append(1 if present else -1)
        sure.append(certain(seen))
        scores.append(evidence(seen))
    return np.array(there), np.array(sure), np.array(scores)


@pytest.mark.parametrize("release", [floating, unrounded, coarse], ids=lambda release: release.__name__)
def test_noise_that_does_not_reach_everything_is_told_for_certain(release: Released) -> None:
    there, sure, _ = guesses(release, runs=100)
    # The right table is never found impossible, and the wrong one nearly always is.
    assert (sure * there >= 0).all()
    assert (sure == there).mean() > 0.9


@pytest.mark.parametrize("people", [20, 1000])
def test_a_large_release_in_floating_point_is_told_each_time(people: int) -> None:
    there, sure, scores = guesses(floating, runs=60, dim=24, people=people)
    assert (sure == there).all()
    assert (np.sign(scores) == there).all()


def test_noise_in_whole_steps_tells_what_mu_allows_and_no_more() -> None:
    there, sure, scores = guesses(lattice, runs=2000)
    assert (sure == 0).all()
    right = (np.sign(scores) == there).mean()
    # Five standard deviations: the likelihood ratio is all there is, and it is all that mu allows.
    assert abs(right - ALLOWED) < 5 * math.sqrt(ALLOWED * (1 - ALLOWED) / 2000)


def test_parity_of_whole_steps_tells_nothing() -> None:
    runs, agree = 4000, 0
    for run in range(runs):
        steps = float(run % 2)
        # One number, and two candidates that are an odd number of steps apart.
        released = lattice(Bounded(np.array([steps * (1 + 2.0**-13)]), 1.0), run)
        agree += round(float(released[0]) * 2.0**13) % 2 == run % 2
    assert abs(agree / runs - 0.5) < 5 * 0.5 / math.sqrt(runs)


def test_the_likelihood_is_that_of_two_normals() -> None:
    rng = np.random.default_rng(3)
    released, without, given = rng.standard_normal((3, 5))
    seen = Candidates.of(released, without, given, scale=0.7)
    by_hand = (((released - without) / 0.7) ** 2 - ((released - given) / 0.7) ** 2).sum() / 2
    assert math.isclose(likelihood([seen]), by_hand)
    assert math.isclose(likelihood([seen, seen]), 2 * by_hand)
    # Where releases share their noise, one of them counts.
    assert math.isclose(evidence([seen, seen], weighed=[seen]) % 1e6, by_hand % 1e6)


def test_every_float_that_noise_leads_to_counts_as_possible() -> None:
    """Sums and products as IEEE does them, against the definition in fractions: nothing that happened is called impossible."""
    rng = np.random.default_rng(5)
    for run in range(300):
        scale, value = float(rng.uniform(0.5, 2)), rng.standard_normal(40) * 2.0 ** rng.integers(-30, 30)
        noise = scale * rng.standard_normal(40)
        released = value + noise
        exact = [float(Fraction(a) + Fraction(b)) for a, b in zip(value.tolist(), noise.tolist(), strict=True)]
        assert released.tolist() == exact
        assert certain([Candidates.of(released, value, value + 0.37, scale=scale)]) <= 0, run


def test_steps_come_back_from_a_decomposition() -> None:
    rng = np.random.default_rng(7)
    steps = rng.integers(-(2**20), 2**20, size=(6, 6)) * 2.0**-15 + 100 * np.eye(6)
    matrix = (steps + steps.T) / 2
    values, vectors = np.linalg.eigh(matrix)
    shown = (vectors * values) @ vectors.T
    assert not np.array_equal(shown, matrix)
    assert np.array_equal(on_steps(shown), matrix)
    assert on_steps(np.zeros(3)).tolist() == [0.0] * 3
