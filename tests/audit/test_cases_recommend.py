"""Cases of recommenders: what we ship stands, and histories that count for too much, or too little noise, are found."""

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from eigenveil.audit.case import Case, Trial
from eigenveil.audit.cases import recommend as cases_recommend
from eigenveil.audit.cases.seen import Look, scored
from eigenveil.audit.verdict import Verdict, audit
from eigenveil.core.noise import RoundedGaussian
from eigenveil.privacy.histories import Histories

# As in an audit of sixty cases at 99%.
CONFIDENCE = 1 - 0.01 / 60
BY_NAME = {case.name: case for case in cases_recommend.CASES}
REPEATED = [case for case in cases_recommend.CASES if case.tests != ("one-run",)]


def assess_fit(case: Case, runs: int | None = None, seed: int = 1) -> Verdict:
    (verdict,) = audit([case], runs=runs, seed=seed, jobs=1, confidence=CONFIDENCE)
    return verdict


def refuted_by(verdict: Verdict) -> set[str]:
    return {finding.test for finding in verdict.findings if finding.refuted}


def quieter(patch: pytest.MonkeyPatch, factor: float) -> None:
    whole = RoundedGaussian.draw
    patch.setattr(RoundedGaussian, "draw", lambda law, noise, count: np.rint(factor * whole(law, noise, count)).astype(np.int64))


@pytest.mark.parametrize("case", cases_recommend.CASES, ids=lambda case: case.name)
def test_what_we_ship_stands(case: Case) -> None:
    assert assess_fit(case, runs=15).words == "not refuted"


@pytest.mark.parametrize("case", REPEATED, ids=lambda case: case.name)
def test_a_canary_is_worth_what_is_promised_and_no_more(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """What all looks of a run come to, in mu, for each canary: at most the claim's, and for the strongest nearly that."""
    taken: list[Look] = []

    def kept(looks: Sequence[Look], present: NDArray[np.bool_]) -> Trial:
        taken.extend(looks)
        return scored(looks, present)

    monkeypatch.setattr(cases_recommend, "scored", kept)
    assess_fit(case, runs=2)
    claim = case.claim(case.budget)
    for looks in (taken[: len(taken) // 2], taken[len(taken) // 2 :]):
        squares = sum(np.square(look.shifts).sum(axis=tuple(range(1, look.shifts.ndim))) / look.scale**2 for look in looks)
        mu = np.sqrt(squares)
        assert (mu <= claim.mu * (1 + 1e-6)).all()
        assert mu.max() >= 0.8 * claim.mu


@pytest.mark.parametrize("case", REPEATED, ids=lambda case: case.name)
def test_noise_a_fifth_too_small_is_found(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    quieter(monkeypatch, 0.8)
    assert "noise" in refuted_by(assess_fit(case, runs=20))


def test_one_look_finds_noise_that_is_hardly_there(monkeypatch: pytest.MonkeyPatch) -> None:
    quieter(monkeypatch, 0.02)
    assert assess_fit(BY_NAME["recommend/one-run"]).refuted


def test_a_history_that_nobody_divided_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    factors, shares = Histories._factors, Histories._shares
    monkeypatch.setattr(Histories, "_factors", lambda domain, degrees, squares: factors(domain, np.minimum(degrees, 4), squares))
    monkeypatch.setattr(Histories, "_shares", lambda domain, degrees: shares(domain, np.minimum(degrees, 4)))
    assert "curve" in refuted_by(assess_fit(BY_NAME["recommend/long-history"], runs=60))


@pytest.mark.parametrize("name", ["recommend/user", "recommend/item", "recommend/user-products", "recommend/item-products"])
def test_histories_that_count_for_more_than_they_should_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    factors, shares = Histories._factors, Histories._shares
    monkeypatch.setattr(Histories, "_factors", lambda domain, degrees, squares: 2 * factors(domain, degrees, squares))
    # Products are made of the squares of factors.
    monkeypatch.setattr(Histories, "_shares", lambda domain, degrees: 4 * shares(domain, degrees))
    assert "curve" in refuted_by(assess_fit(BY_NAME[name], runs=60))
