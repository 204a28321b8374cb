"""Cases of masked sums: what is shipped stands, missing shares of noise are noticed, and the claim is what was agreed on."""

from dataclasses import replace

import numpy as np
import pytest

from eigenveil.audit import CASES, Case, audit
from eigenveil.audit.case import BUDGET
from eigenveil.core.accounting import mu_for
from eigenveil.core.noise import Noise, RoundedGaussian

CONFIDENCE = 1 - 1e-6
# As one of sixty cases in an audit at 99%.
ONE_OF_MANY = 1 - 0.01 / 60
# Where masks are on, noise is not seen.
SHIPPED = [case for name, case in CASES.items() if name.startswith("masked/")]
UNMASKED = [case for case in SHIPPED if case.name != "masked/messages"]
MISSING = [CASES[name] for name in ("wrong/missing-share", "wrong/missing-only-share")]


@pytest.mark.parametrize("case", SHIPPED, ids=lambda case: case.name)
def test_what_is_shipped_stands(case: Case) -> None:
    (verdict,) = audit([case], runs=12, seed=1, jobs=1, confidence=CONFIDENCE)
    assert verdict.words == "not refuted"


@pytest.mark.parametrize("case", MISSING, ids=lambda case: case.name)
def test_a_missing_share_is_refuted_in_a_quick_audit(case: Case) -> None:
    (verdict,) = audit([case], seed=1, jobs=1, confidence=ONE_OF_MANY)
    assert verdict.refuted
    assert verdict.matches_expectation


@pytest.mark.parametrize("case", UNMASKED, ids=lambda case: case.name)
def test_integers_a_fifth_too_small_are_seen_as_such(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = RoundedGaussian.draw

    def less(law: RoundedGaussian, noise: Noise, count: int) -> object:
        return np.rint(0.8 * draw(law, noise, count)).astype(np.int64)

    monkeypatch.setattr(RoundedGaussian, "draw", less)
    (verdict,) = audit([replace(case, tests=("noise",))], runs=15, seed=1, jobs=1, confidence=CONFIDENCE)
    assert verdict.refuted


def test_the_claim_is_all_of_the_budget() -> None:
    claim = CASES["masked/covariance"].claim(BUDGET)
    assert (claim.epsilon, claim.delta) == (BUDGET.epsilon, BUDGET.delta)
    assert mu_for(BUDGET.epsilon, BUDGET.delta) == pytest.approx(claim.mu, rel=1e-9)
