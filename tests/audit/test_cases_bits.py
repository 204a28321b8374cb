"""Cases of low bits: what we ship stands, the specimen falls, and float noise put back into what we ship is found."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from eigenveil.audit import CASES, Verdict, audit
from eigenveil.audit.case import Case
from eigenveil.audit.cases.bits import CASES as BITS
from eigenveil.audit.specimens import FloatingGaussian
from eigenveil.core.accounting import Budget
from eigenveil.core.mechanism import Bounded, Gaussian, Mechanism
from eigenveil.core.noise import Noise, RoundedGaussian
from eigenveil.linalg import Array
from eigenveil.trackers import slices

# As in an audit of eighty cases at 99%.
CONFIDENCE = 1 - 0.01 / 80
FLOATING = CASES["wrong/floating-noise"]
# Where noise is not a `Gaussian`'s: in shares, and by pairs.
ELSEWHERE = ("bits/masked-sum", "bits/peers-pairwise")


def assess_fit(case: Case, runs: int | None = None, confidence: float = CONFIDENCE) -> Verdict:
    (verdict,) = audit([case], runs=runs, seed=1, jobs=1, confidence=confidence)
    return verdict


def test_there_is_a_case_for_every_way_out() -> None:
    assert {case.name for case in BITS} == {
        f"bits/{name}"
        for name in (
            *("site-part", "hub-release", "masked-sum", "saved-model", "item-degrees"),
            *("stream-sync", "stream-block", "stream-continual", "peers-pairwise", "peers-independent"),
        )
    }
    assert all(CASES[case.name] is case for case in BITS)


@pytest.mark.parametrize("case", BITS, ids=lambda case: case.name)
def test_low_bits_of_what_we_ship_tell_nothing(case: Case) -> None:
    trials = [case.trial(case.budget, np.random.default_rng([9, run]), run) for run in range(30)]
    # Nothing was certain: all that is left is the likelihood, which is no larger than noise makes it.
    assert max(float(np.abs(trial.scores).max()) for trial in trials) < 1e3
    assert assess_fit(case, runs=30, confidence=1 - 1e-6).words == "not refuted"


def test_noise_in_floating_point_is_refuted_in_a_quick_audit() -> None:
    verdict = assess_fit(FLOATING)
    assert verdict.matches_expectation
    (finding,) = verdict.findings
    # Nearly all guesses are right, so that the bound is nearly as far as these runs can reach.
    assert finding.bound > 0.9 * finding.reach


@pytest.mark.parametrize("case", [case for case in BITS if case.name not in ELSEWHERE], ids=lambda case: case.name)
def test_noise_in_floating_point_anywhere_does_not_pass(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    def release(exact: Gaussian, private: Bounded, *, label: str, share: float = 1.0, slot: Any = None) -> Array:
        return FloatingGaussian(exact).release(private, label=label, share=share, slot=slot)

    def columns(exact: Mechanism, slices: Iterable[Array], *, dim: int, sensitivity: float, **how: Any) -> Iterator[Array]:
        whole = np.hstack(list(slices))
        assert isinstance(exact, Gaussian)
        yield FloatingGaussian(exact).release(Bounded(whole, sensitivity, symmetric=True), **how)

    monkeypatch.setattr(Gaussian, "release", release)
    monkeypatch.setattr(slices, "release_columns", columns)
    verdict = assess_fit(case)
    assert not verdict.matches_expectation
    if case.name in ("bits/site-part", "bits/hub-release", "bits/peers-independent"):
        assert verdict.refuted
    else:
        # Numbers that were decomposed since have no last places to look at, and a case that cannot look says so.
        assert "whole steps of a lattice" in verdict.failed


def test_noise_in_coarser_steps_than_the_value_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = RoundedGaussian.draw

    def coarse(law: RoundedGaussian, noise: Noise, count: int) -> NDArray[np.int64]:
        return whole(law, noise, count) // 4 * 4

    monkeypatch.setattr(RoundedGaussian, "draw", coarse)
    assert assess_fit(next(case for case in BITS if case.name == "bits/site-part")).refuted


@pytest.mark.parametrize("budget", [Budget(0.3, 1e-6), Budget(30.0, 1e-4)], ids=str)
@pytest.mark.parametrize("case", BITS, ids=lambda case: case.name)
def test_low_bits_can_be_looked_at_at_another_budget(case: Case, budget: Budget) -> None:
    trial = case.trial(budget, np.random.default_rng(4), 4)
    assert float(np.abs(trial.scores).max()) < 1e3
