"""Mistakes that a reviewer made on purpose, one at a time, in what is shipped: each is refuted by a case that looks at it."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from eigenveil.audit import CASES, audit
from eigenveil.audit.cases import sites
from eigenveil.core import mechanism
from eigenveil.core.counts import tails_sensitivity
from eigenveil.core.domain import Domain, MissingPolicy
from eigenveil.core.noise import Noise, distance_in_steps
from eigenveil.core.unit import Neighbours
from eigenveil.estimators.bounds import spectrum
from eigenveil.linalg import Array
from eigenveil.privacy import floating as clipped
from eigenveil.privacy.histories import Histories
from eigenveil.privacy.paired import PairedSteps
from eigenveil.privacy.released import packed_noise
from eigenveil.protocols.masked.session import Session

# As in an audit of seventy cases at 99%.
CONFIDENCE = 1 - 0.01 / 70

Patch = pytest.MonkeyPatch


def refuted_by(name: str, runs: int) -> set[str]:
    (verdict,) = audit([CASES[name]], runs=runs, seed=1, jobs=1, confidence=CONFIDENCE)
    return {finding.test for finding in verdict.findings if finding.refuted}


def half_the_trace(patch: Patch) -> None:
    whole = Domain.trace_sensitivity
    patch.setattr(Domain, "trace_sensitivity", lambda domain, near: 0.5 * whole(domain, near))


def half_the_count(patch: Patch) -> None:
    patch.setattr("eigenveil.tasks.totals.count_sensitivity", lambda near: 0.5)


def a_swap_is_one_person(patch: Patch) -> None:
    patch.setattr("eigenveil.core.domain.gram_sensitivity", lambda radius, near: radius**2)
    patch.setattr("eigenveil.core.unit.gram_sensitivity", lambda radius, near: radius**2)


def a_swap_moves_a_sum_once(patch: Patch) -> None:
    patch.setattr("eigenveil.core.domain.sum_sensitivity", lambda radius, near: radius)


def less_for_products(patch: Patch) -> None:
    def less(whole: Callable[..., float]) -> Callable[..., float]:
        def sensitivity(domain: object, near: Neighbours, *, basis: Array, basis_norm: float) -> float:
            return 0.75 * whole(domain, near, basis=basis, basis_norm=basis_norm)

        return sensitivity

    for domain in (Domain, Histories):
        patch.setattr(domain, "gram_times_sensitivity", less(domain.gram_times_sensitivity))


def a_ball_a_tenth_too_large(patch: Patch) -> None:
    def larger(whole: Callable[..., Array]) -> Callable[..., Array]:
        return lambda domain, *how: whole(replace(domain, radius=1.1 * domain.radius), *how)

    patch.setattr(clipped, "to_ball", larger(clipped.to_ball))
    patch.setattr(Domain, "to_grid", larger(Domain.to_grid))


def a_third_of_the_entries(patch: Patch) -> None:
    whole = MissingPolicy.sensitivity
    patch.setattr(MissingPolicy, "sensitivity", lambda gaps: whole(gaps) / 3)


def entries_are_divided_for_free(patch: Patch) -> None:
    whole = spectrum._factors

    def for_free(domain: Domain, near: Neighbours, *, counted: bool, noise_inflation: float) -> tuple[float, float, float]:
        return whole(domain, near, counted=counted)

    patch.setattr(spectrum, "_factors", for_free)


def fewer_steps_than_neighbours_are_apart(patch: Patch) -> None:
    patch.setattr(mechanism, "distance_in_steps", lambda *how: 0.8 * distance_in_steps(*how))


def less_noise_off_the_diagonal(patch: Patch) -> None:
    patch.setattr(mechanism, "ROOT_HALF", 0.5)


def columns_are_one_table(patch: Patch) -> None:
    for module in ("core.counts", "estimators.bounds.columns"):
        patch.setattr(f"eigenveil.{module}.tails_sensitivity", lambda cells, near, columns=1: tails_sensitivity(cells, near))


def quieter_shares(patch: Patch) -> None:
    def quieter(noise: Noise, deviation: float, shape: tuple[int, ...], *, symmetric: bool) -> NDArray[np.int64]:
        return packed_noise(noise, 0.8 * deviation, shape, symmetric=symmetric)

    patch.setattr("eigenveil.privacy.lattice.packed_noise", quieter)


def no_masks(patch: Patch) -> None:
    def nothing(words: NDArray[np.uint64], masks: object, asked: bytes) -> None:
        pass

    for module in ("member", "hub"):
        patch.setattr(f"eigenveil.protocols.masked.{module}.add_masks", nothing)


def no_masks_between_pairs(patch: Patch) -> None:
    whole = Session.masks
    patch.setattr(Session, "masks", lambda session, round_: whole(session, round_)[:1])


def no_noise_between_pairs(patch: Patch) -> None:
    whole = PairedSteps.draw_between
    patch.setattr(PairedSteps, "draw_between", lambda steps, noise: 0 * whole(steps, noise))


@pytest.mark.parametrize(
    ("mistake", "name", "runs"),
    [
        (half_the_trace, "hub-noise/power", 15),
        (half_the_trace, "site-noise/power", 15),
        (half_the_trace, "masked/power", 10),
        (half_the_trace, "peers/default", 10),
        (half_the_trace, "curator/trace", 60),
        (half_the_count, "hub-noise/result", 15),
        (half_the_count, "site-noise/covariance", 15),
        (a_swap_is_one_person, "peers/independent", 15),
        (a_swap_moves_a_sum_once, "peers/replaced-mean", 15),
        (less_for_products, "peers/krylov-tree", 15),
        (less_for_products, "recommend/user-products", 15),
        (a_ball_a_tenth_too_large, "curator/heavy-row", 60),
        (a_ball_a_tenth_too_large, "curator/person", 60),
        (a_ball_a_tenth_too_large, "curator/mean", 60),
        (a_ball_a_tenth_too_large, "stream/sync", 60),
        (a_ball_a_tenth_too_large, "bounds/spectrum", 150),
        (a_ball_a_tenth_too_large, "hub-noise/power", 20),
        (a_third_of_the_entries, "curator/missing-groups", 30),
        (a_third_of_the_entries, "curator/missing-add-remove", 30),
        (a_third_of_the_entries, "curator/missing-values-bound", 30),
        (entries_are_divided_for_free, "bounds/spectrum-groups", 20),
        (a_ball_a_tenth_too_large, "stream/slots-counts", 60),
        (fewer_steps_than_neighbours_are_apart, "curator/covariance", 20),
        (fewer_steps_than_neighbours_are_apart, "hub-noise/power", 20),
        (fewer_steps_than_neighbours_are_apart, "stream/sync", 20),
        (less_noise_off_the_diagonal, "curator/covariance", 20),
        (less_noise_off_the_diagonal, "site-noise/covariance", 20),
        (quieter_shares, "stream/slots-masked", 25),
        (half_the_count, "curator/found-units", 60),
        (fewer_steps_than_neighbours_are_apart, "curator/found-units", 20),
        (columns_are_one_table, "bounds/columns", 150),
        (no_masks, "masked/messages", 10),
        (no_masks_between_pairs, "masked/messages", 10),
        (no_noise_between_pairs, "peers/listener", 10),
    ],
)
def test_a_mistake_is_refuted(mistake: Callable[[Patch], None], name: str, runs: int, monkeypatch: Patch) -> None:
    # Without the mistake none of these is refuted: see the tests of what is shipped, by family.
    mistake(monkeypatch)
    # What is the same in every run of a case is kept, and would be kept as it is without the mistake, or with it afterwards.
    sites._task.cache_clear()
    found = refuted_by(name, runs)
    sites._task.cache_clear()
    assert "noise" in found
