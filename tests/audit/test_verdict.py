"""What `judge` makes of runs: thresholds from runs that count for nothing else, and verdicts as seldom wrong as they say."""

import json
import math
from dataclasses import replace
from typing import Any

import dp_accounting
import numpy as np
import pytest
from dp_accounting import pld
from numpy.typing import NDArray
from scipy.stats import binomtest

from eigenveil.audit.case import Case, Claim, Kind, Test, Trial, mu_of
from eigenveil.audit.cases.seen import Look, moved_by_one, scored
from eigenveil.audit.verdict import judge
from eigenveil.core.accounting import Budget, delta_of, mu_for
from eigenveil.linalg import Array

BUDGET = Budget(4.0, 1e-3)
CLAIM = Claim.of(BUDGET, "somebody")


def never(budget: Budget, rng: np.random.Generator, state: int | None) -> Trial:
    raise AssertionError("judging runs nothing")


def case(*tests: Test, threshold: float | None = None, kind: Kind = "shipped") -> Case:
    return Case(
        name="a/case",
        kind=kind,
        about="about",
        canary="canary",
        tests=tests,
        budget=BUDGET,
        claim=lambda budget: CLAIM,
        trial=never,
        quick=1,
        full=1,
        threshold=threshold,
    )


def trials(rng: np.random.Generator, runs: int, canaries: int, *, mu: float, at: float = 0.0) -> tuple[Trial, ...]:
    """Runs of a Gaussian mechanism of this `mu`, scored by the likelihood ratio, with scores moved by `at`."""
    present = rng.integers(2, size=(runs, canaries)).astype(bool)
    noise = rng.standard_normal((runs, canaries))
    return tuple(
        Trial(scores=at + there + drawn / mu, present=there, noise=drawn) for there, drawn in zip(present, noise, strict=True)
    )


def judged(one: Case, seen: tuple[Trial, ...], *, level: float = 0.01, claim: Claim = CLAIM) -> Any:
    return judge(one, claim, seen, level=level, confidence=0.99, seconds=0.0)


@pytest.mark.parametrize("threshold", [None, 0.5])
@pytest.mark.parametrize(("tests", "canaries"), [(("curve", "noise", "rates"), 1), (("curve", "noise"), 6)])
def test_a_true_claim_is_refuted_no_more_often_than_the_level_says(
    threshold: float | None, tests: tuple[Test, ...], canaries: int
) -> None:
    rng = np.random.default_rng(8)
    one = case(*tests, threshold=threshold)
    wrong = sum(judged(one, trials(rng, 50, canaries, mu=CLAIM.mu), level=0.3).refuted for _ in range(80))
    assert binomtest(wrong, 80, 0.3, alternative="greater").pvalue > 1e-6


@pytest.mark.parametrize("test", ["curve", "noise"])
def test_noise_a_fifth_too_small_is_found(test: Test) -> None:
    rng = np.random.default_rng(8)
    small = tuple(replace(trial, noise=0.8 * trial.noise) for trial in trials(rng, 800, 8, mu=CLAIM.mu / 0.8, at=-3.0))
    for threshold in (None, -2.5):
        assert judged(case(test, threshold=threshold), small, level=1e-4).refuted


def test_a_small_release_is_not_lost_in_a_large_one() -> None:
    """One quiet number beside sixty that are as loud as they should be, or a little louder."""
    rng = np.random.default_rng(8)
    drawn = rng.standard_normal((300, 61)) * np.array([1.05] * 60 + [0.6])
    scores, there = np.zeros(1), np.ones(1, dtype=bool)
    together = tuple(Trial(scores=scores, present=there, noise=one) for one in drawn)
    apart = tuple(Trial(scores=scores, present=there, noise=one, parts=(60, 1)) for one in drawn)
    assert not judged(case("noise"), together, level=1e-4).refuted
    finding = judged(case("noise"), apart, level=1e-4).findings[0]
    assert finding.refuted
    assert "in 300 numbers" in finding.seen


def test_releases_by_themselves_are_refuted_no_more_often_than_the_level_says() -> None:
    rng, scores, there = np.random.default_rng(8), np.zeros(1), np.ones(1, dtype=bool)
    wrong = 0
    for _ in range(200):
        seen = tuple(
            Trial(scores=scores, present=there, noise=rng.standard_normal(7), parts=(1, 4, 2), moved=CLAIM.mu) for _ in range(20)
        )
        wrong += judged(case("noise"), seen, level=0.2).refuted
    assert binomtest(wrong, 200, 0.2, alternative="greater").pvalue > 1e-6


@pytest.mark.parametrize(("moved", "refuted"), [(0.0, False), (CLAIM.mu, False), (1.3 * CLAIM.mu, True)])
def test_who_moves_more_than_was_charged_for_needs_more_noise(moved: float, refuted: bool) -> None:
    rng = np.random.default_rng(8)
    seen = [Trial(scores=np.zeros(1), present=np.ones(1, dtype=bool), noise=rng.standard_normal(20)) for _ in range(100)]
    # It is enough that it is seen in one of the runs.
    seen[7] = replace(seen[7], moved=moved)
    assert judged(case("noise"), tuple(seen), level=1e-4).refuted == refuted
    # Twice the noise is enough for anybody who moves less than twice as much.
    loud = tuple(replace(trial, noise=2 * trial.noise) for trial in seen)
    assert not judged(case("noise"), loud, level=1e-4).refuted


def test_a_threshold_is_learnt_from_runs_that_count_for_nothing_else() -> None:
    rng = np.random.default_rng(4)
    seen = trials(rng, 100, 4, mu=6.0, at=100.0)
    finding = judged(case("curve"), seen).findings[0]
    assert finding.runs == 80
    assert judged(case("curve", threshold=100.5), seen).findings[0].runs == 100
    # Where the first runs teach the wrong lesson, the others do not help it.
    misled = tuple(Trial(scores=trial.scores, present=~trial.present) for trial in seen[:20]) + seen[20:]
    assert judged(case("curve"), misled).findings[0].bound < 1.0 < 2.5 < finding.bound
    with pytest.raises(ValueError, match="too few"):
        judged(case("curve"), seen[:1])


def test_rates_learn_a_threshold_for_their_delta_and_count_one_canary_of_a_run() -> None:
    rng = np.random.default_rng(4)
    seen = trials(rng, 1500, 3, mu=4.0, at=7.0)
    finding = judged(case("rates"), seen).findings[0]
    assert finding.unit == "epsilon"
    assert finding.runs == 1200
    assert "of 1200" not in finding.seen
    assert finding.bound > 2.0
    # Nothing is proved beyond what this mechanism is: its own epsilon at this delta.
    assert delta_of(finding.bound, 4.0) >= CLAIM.delta
    again = tuple(Trial(scores=np.repeat(trial.scores[:1], 3), present=np.repeat(trial.present[:1], 3)) for trial in seen)
    alone = tuple(Trial(scores=trial.scores[:1], present=trial.present[:1]) for trial in seen)
    both = [judged(case("rates", threshold=7.5), these).findings[0].bound for these in (again, alone)]
    assert both[0] == both[1]


def test_canaries_that_hang_together_are_no_evidence_of_their_own() -> None:
    """One guess, made for thirty canaries at once: that it was right in most of few runs shows little."""
    rng = np.random.default_rng(4)
    alone = trials(rng, 40, 1, mu=CLAIM.mu)
    together = tuple(Trial(scores=np.repeat(trial.scores, 30), present=np.repeat(trial.present, 30)) for trial in alone)
    one = case("curve", threshold=0.5)
    assert not judged(one, together, level=0.05).refuted
    assert judged(one, together, level=0.05).findings[0].bound <= judged(one, alone, level=0.05).findings[0].bound + 0.3


def test_one_run_is_the_first_run_alone() -> None:
    rng, claim = np.random.default_rng(4), replace(CLAIM, epsilon=1.0, delta=1e-8)
    loud, still = trials(rng, 1, 300, mu=20.0), trials(rng, 1, 300, mu=0.1)
    one = case("one-run")
    assert judged(one, loud + still, claim=claim).refuted
    assert not judged(one, still + loud, claim=claim).refuted
    finding = judged(one, loud, claim=claim).findings[0]
    assert (finding.runs, finding.seen) == (1, "200 of 200 guesses right about 300 canaries in one run")


def test_a_verdict_says_it_in_words_and_in_json() -> None:
    there = [bool(number % 2) for number in range(200)]
    seen = tuple(Trial(scores=np.array([float(one)]), present=np.array([one]), noise=np.zeros(3)) for one in there)
    verdict = judged(case("curve", "noise", threshold=0.5, kind="specimen"), seen)
    assert verdict.refuted and verdict.matches_expectation and verdict.words == "refuted"
    assert not replace(verdict, kind="shipped").matches_expectation
    (noise,) = [finding for finding in verdict.findings if finding.test == "noise"]
    assert math.isinf(noise.bound)
    assert str(verdict.findings[0]).startswith("refuted: guesses are right at most")
    plain = json.loads(json.dumps(verdict.to_json(), allow_nan=False))
    assert plain["verdict"] == "refuted" and plain["matches_expectation"] is True
    assert [finding["level"] for finding in plain["findings"]] == [0.005, 0.005]
    assert plain["findings"][1]["bound"] is None and plain["findings"][1]["refuted"] is True
    still = judged(case("curve", threshold=0.5), tuple(Trial(scores=np.ones(1), present=np.array([one])) for one in there))
    assert still.words == "not refuted" and still.matches_expectation
    assert str(still.findings[0]).startswith("not refuted: ")
    assert "proved" not in json.dumps(still.to_json())


def test_what_cannot_be_judged_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one run"):
        judged(case("curve"), ())
    with pytest.raises(ValueError, match="noise"):
        judged(case("noise"), (Trial(scores=np.zeros(1), present=np.ones(1, dtype=bool)),))
    with pytest.raises(ValueError, match="one entry for each canary"):
        Trial(scores=np.zeros(2), present=np.ones(1, dtype=bool))
    # Where all canaries are there, nothing is known of false alarms.
    always = tuple(Trial(scores=np.ones(1), present=np.ones(1, dtype=bool)) for _ in range(50))
    for threshold in (0.5, None):
        assert judged(case("rates", threshold=threshold), always).findings[0].bound == 0.0


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1.0, 4.0, 30.0, 100.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-6, 1e-3, 0.2])
def test_mu_is_that_of_the_accountant_by_another_way(epsilon: float, delta: float) -> None:
    assert mu_of(Budget(epsilon, delta)) == pytest.approx(mu_for(epsilon, delta), rel=1e-9)


@pytest.mark.parametrize("budget", [Budget(1.0, 1e-6), Budget(4.0, 1e-3)], ids=str)
def test_mu_is_that_of_dp_accounting(budget: Budget) -> None:
    theirs = dp_accounting.calibrate_dp_mechanism(
        lambda: pld.PLDAccountant(value_discretization_interval=1e-3), dp_accounting.GaussianDpEvent, budget.epsilon, budget.delta
    )
    assert mu_of(budget) == pytest.approx(1 / theirs, rel=1e-3)


def test_no_budget_has_no_largest_mu() -> None:
    assert math.isinf(mu_of(Budget(math.inf, 1e-6)))


def test_parts_are_all_of_the_noise() -> None:
    with pytest.raises(ValueError, match="parts must add up"):
        Trial(scores=np.zeros(1), present=np.ones(1, dtype=bool), noise=np.zeros(3), parts=(1, 1))
    assert Trial(scores=np.zeros(1), present=np.ones(1, dtype=bool), noise=np.zeros(3), parts=(1, 2)).moved == 0.0


def look(*shifts: tuple[float, ...], scale: float, charged: float = math.inf) -> Look:
    size = len(shifts[0])
    return Look(released=np.zeros(size), base=np.zeros(size), shifts=np.array(shifts), scale=scale, charged=charged)


def test_a_canary_moves_all_releases_together() -> None:
    present = np.zeros(2, dtype=bool)
    trial = scored([look((3.0, 0.0), (0.0, 1.0), scale=1.0), look((4.0,), (0.0,), scale=0.5)], present)
    assert trial.moved == pytest.approx(math.hypot(3.0, 8.0))
    assert trial.parts == (2, 1)


def test_a_release_that_was_charged_too_little_is_not_made_up_for_by_another() -> None:
    present = np.zeros(1, dtype=bool)
    honest = [look((3.0,), scale=1.0, charged=3.0), look((4.0,), scale=1.0, charged=4.0)]
    assert scored(honest, present).moved == pytest.approx(5.0)
    # It moves the first by twice what was paid for, and the second by next to nothing.
    uneven = [look((6.0,), scale=1.0, charged=3.0), look((0.1,), scale=1.0, charged=4.0)]
    assert scored(uneven, present).moved == pytest.approx(10.0)
    # What it is not in was not paid for it.
    apart = [look((6.0,), scale=1.0, charged=3.0), look((0.0,), scale=1.0, charged=4.0)]
    assert scored(apart, present).moved == pytest.approx(6.0)


def test_noise_of_one_seed_cancels_between_a_run_with_somebody_and_one_without() -> None:
    """One canary of two kinds moves one of its releases by 2, and another by 1; noise is a thousand times as large."""
    seeds = set()

    def released(there: NDArray[np.bool_], seed: int) -> list[Array]:
        seeds.add(seed)
        noise = 1000 * np.random.default_rng(seed).standard_normal((2, *there.shape))
        return [2 * there + noise[0], there + noise[1]]

    rng = np.random.default_rng(5)
    far = np.array([moved_by_one(released, rng.integers(2, size=(2, 3)).astype(bool), rng) for _ in range(400)])
    seen = far[far > 0]
    # In one run of eight, but for five standard deviations.
    assert abs(len(seen) - 50) < 5 * math.sqrt(400 * 7 / 64)
    np.testing.assert_allclose(seen, 0.999 * math.sqrt(5), rtol=1e-9)
    assert len(seeds) == len(seen)
