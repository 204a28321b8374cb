"""Cases of sites: what is shipped stands, what is wrong does not, and a shipped case is refuted once it is made wrong."""

import math
import warnings
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from eigenveil.audit import CASES, Case, Verdict, audit
from eigenveil.audit.case import Test as Hypothesis
from eigenveil.audit.cases.seen import CanaryPopulation, Look, Tap, scored
from eigenveil.audit.specimens import published_fedpower
from eigenveil.core.accounting import Budget
from eigenveil.core.domain import Domain
from eigenveil.core.ledger import Ledger
from eigenveil.core.noise import RoundedGaussian
from eigenveil.errors import BudgetExceeded, QuorumLost
from eigenveil.estimators import FederatedPCA
from eigenveil.protocols.messages import Contribution
from eigenveil.protocols.star.site import Member

_FAMILIES = ("hub-noise/", "site-noise/", "both-noise/", "tree/")
BY_NAME = {name: case for name, case in CASES.items() if name.startswith(_FAMILIES)}
LIKELIHOOD = [case for case in BY_NAME.values() if "noise" in case.tests]
# A true claim is refuted with a chance of no more than this.
CONFIDENCE = 1 - 1e-6


def only(case: Case, *tests: Hypothesis) -> Case:
    return replace(case, tests=tests)


def tried(case: Case, *, runs: int, seed: int = 1) -> Verdict:
    (verdict,) = audit([case], runs=runs, seed=seed, jobs=1, confidence=CONFIDENCE)
    return verdict


def shrink_noise(patch: pytest.MonkeyPatch, factor: float) -> None:
    whole = RoundedGaussian.draw
    patch.setattr(RoundedGaussian, "draw", lambda law, noise, count: np.rint(factor * whole(law, noise, count)).astype(np.int64))


@pytest.mark.parametrize("case", BY_NAME.values(), ids=lambda case: case.name)
def test_what_is_shipped_stands(case: Case) -> None:
    verdict = tried(case, runs=12)
    assert verdict.words == "not refuted"
    assert verdict.matches_expectation


@pytest.mark.parametrize("case", LIKELIHOOD, ids=lambda case: case.name)
def test_noise_a_fifth_too_small_is_seen_as_such(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    shrink_noise(monkeypatch, 0.8)
    assert tried(only(case, "noise"), runs=12).refuted


def test_noise_a_fifth_too_small_makes_guesses_too_good(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink_noise(monkeypatch, 0.8)
    case = only(BY_NAME["site-noise/covariance"], "curve")
    (verdict,) = audit([case], seed=1, jobs=1, confidence=1 - 0.01 / 60)
    assert verdict.refuted


def test_directions_alone_show_that_there_is_next_to_no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink_noise(monkeypatch, 0.1)
    assert tried(BY_NAME["hub-noise/swap"], runs=80).refuted


@pytest.mark.parametrize("name", ["hub-noise/result", "site-noise/covariance"])
def test_a_heavy_row_that_is_not_cut_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Domain, "to_grid", lambda domain, squares, block, unit, *rest: np.full(len(squares), 1 / unit))
    assert tried(only(BY_NAME[name], "curve"), runs=150).refuted


def test_a_site_that_draws_its_noise_again_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    answered, spend = Member._on_ask, Ledger.spend

    def forgetful(member: Member, *asked: Any) -> Any:
        member._question = None
        return answered(member, *asked)

    def lenient(ledger: Ledger, mu: float, **more: Any) -> Any:
        try:
            return spend(ledger, mu, **more)
        except BudgetExceeded:
            return None

    monkeypatch.setattr(Member, "_on_ask", forgetful)
    monkeypatch.setattr(Ledger, "spend", lenient)
    case = only(BY_NAME["site-noise/resumed"], "curve")
    (verdict,) = audit([case], runs=200, seed=1, jobs=1, confidence=1 - 0.01 / 60)
    assert verdict.refuted


def test_a_resumed_fit_is_looked_at_before_and_after() -> None:
    tap, tables = Tap(), {name: np.eye(2) for name in "abc"}
    pca = FederatedPCA(1, epsilon=1.0, delta=1e-3, row_bound=1.0, center=None, trust="site", random_state=1, retries=0)
    pca.faults = tap.faults(dies={"c": 0})
    with pytest.raises(QuorumLost, match="no answer from c"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pca.fit(tables)
    pca.faults = tap.faults()
    pca.resume()
    sent = [message for message in tap.messages if message.sender == "a" and isinstance(message.body, Contribution)]
    # The matrix twice, and the count; what was said twice is one part.
    assert len(sent) == 3
    assert [part.question.stage for part in tap.parts(to="hub", by="a")] == ["components", "totals"]


def test_four_local_steps_as_published_are_refuted_in_a_quick_audit() -> None:
    case = CASES["wrong/fedpower-4-steps"]
    (verdict,) = audit([case], seed=1, jobs=1, confidence=1 - 0.01 / 60)
    assert verdict.refuted
    assert [finding.test for finding in verdict.findings] == ["curve"]
    assert verdict.matches_expectation


def test_one_local_step_as_published_keeps_its_guarantee_for_an_entry() -> None:
    case = CASES["wrong/fedpower-4-steps"]
    one = replace(case, trial=partial(published_fedpower, steps=1))
    assert not tried(one, runs=60).refuted


def test_the_score_is_the_likelihood_ratio_of_all_releases() -> None:
    rng = np.random.default_rng(0)
    shifts = [rng.standard_normal((2, 3)), rng.standard_normal((2, 4))]
    present, scales = np.array([True, False]), (0.5, 2.0)
    noise = [scale * rng.standard_normal(moved.shape[1]) for moved, scale in zip(shifts, scales, strict=True)]
    looks = [
        Look(released=7.0 + moved[0] + drawn, base=np.full(moved.shape[1], 7.0), shifts=moved, scale=scale)
        for moved, drawn, scale in zip(shifts, noise, scales, strict=True)
    ]
    trial = scored(looks, present)
    far = sum(moved[1] @ moved[1] / scale**2 for moved, scale in zip(shifts, scales, strict=True))
    near = sum(moved[1] @ drawn / scale**2 for moved, drawn, scale in zip(shifts, noise, scales, strict=True))
    assert math.isclose(trial.scores[1], near / far)
    assert np.allclose(trial.noise, np.concatenate([drawn / s for drawn, s in zip(noise, scales, strict=True)]))


def test_a_crowd_puts_its_canaries_where_it_says() -> None:
    crowd = CanaryPopulation.of("abc", dim=2, mu=1.0, rng=np.random.default_rng(1), at="bc", several=2)
    assert crowd.places.tolist() == [[False, True, True]] * 2 + [[True, False, True]] * 2
    tables = crowd.tables()
    found = {name: len(rows) - len(crowd.base) for name, rows in tables.items()}
    assert found == {name: int((crowd.places[:, at] & crowd.present).sum()) for at, name in enumerate(crowd.names)}


@pytest.mark.parametrize("name", ["hub-noise/result", "site-noise/merge", "site-noise/power"])
def test_a_smaller_budget_changes_nothing_of_what_is_seen(name: str) -> None:
    case = BY_NAME[name]
    trials = [case.trial(Budget(0.5, 1e-6), np.random.default_rng(seed), seed) for seed in range(12)]
    noise = np.concatenate([trial.noise for trial in trials])
    # Five standard deviations of an empirical deviation.
    assert abs(noise.std() - 1) < 5 / math.sqrt(2 * len(noise))
