"""Cases of peers: what we ship stands, what is wrong is found, and the attack is as strong as the guarantee allows."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from eigenveil.audit import CASES
from eigenveil.audit import specimens as wrong_peers
from eigenveil.audit.case import Case, Trial
from eigenveil.audit.cases import peers as cases_peers
from eigenveil.audit.cases.seen import Look, scored
from eigenveil.audit.verdict import Verdict, audit
from eigenveil.core.noise import Noise, RoundedGaussian
from eigenveil.linalg import Array
from eigenveil.papers.leakage import instance_leakage
from eigenveil.privacy.paired import Pairing

# As in an audit of sixty cases at 99%.
CONFIDENCE = 1 - 0.01 / 60
WRONG = ("wrong/ddppm-lone-direction", "wrong/pairwise-star")
BY_NAME = {case.name: case for case in cases_peers.CASES}


def assess_fit(case: Case, runs: int | None = None, seed: int = 1) -> Verdict:
    (verdict,) = audit([case], runs=runs, seed=seed, jobs=1, confidence=CONFIDENCE)
    return verdict


def refuted_by(verdict: Verdict) -> set[str]:
    return {finding.test for finding in verdict.findings if finding.refuted}


@pytest.mark.parametrize("case", cases_peers.CASES, ids=lambda case: case.name)
def test_what_we_ship_stands(case: Case) -> None:
    assert assess_fit(case, runs=12).words == "not refuted"


@pytest.mark.parametrize("case", [CASES[name] for name in WRONG], ids=lambda case: case.name)
def test_what_is_wrong_is_found(case: Case) -> None:
    verdict = assess_fit(case)
    assert refuted_by(verdict) == set(case.tests)
    assert verdict.matches_expectation


@pytest.mark.parametrize("case", cases_peers.CASES, ids=lambda case: case.name)
def test_a_canary_is_worth_what_is_promised_and_no_more(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """What all looks of a run come to, in mu, for each canary: at most the claim's, and for the strongest nearly that."""
    taken: list[Look] = []

    def kept(looks: Sequence[Look], present: NDArray[np.bool_]) -> Trial:
        taken.extend(looks)
        return scored(looks, present)

    monkeypatch.setattr(cases_peers, "scored", kept)
    assess_fit(case, runs=2)
    claim = case.claim(case.budget)
    halves = taken[: len(taken) // 2], taken[len(taken) // 2 :]
    for looks in halves:
        squares = sum(np.square(look.shifts).sum(axis=tuple(range(1, look.shifts.ndim))) / look.scale**2 for look in looks)
        mu = np.sqrt(squares)
        assert (mu <= claim.mu * (1 + 1e-6)).all()
        # Where nobody colludes, all peers' noise counts, for one more of them; a mean that is found is near no canary's end.
        assert mu.max() >= 0.81 * claim.mu


@pytest.mark.parametrize("case", cases_peers.CASES, ids=lambda case: case.name)
def test_noise_a_fifth_too_small_is_found(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = RoundedGaussian.draw

    def less(sampler: RoundedGaussian, noise: Noise, count: int) -> NDArray[np.int64]:
        fewer: NDArray[np.int64] = np.rint(0.8 * whole(sampler, noise, count)).astype(np.int64)
        return fewer

    monkeypatch.setattr(RoundedGaussian, "draw", less)
    runs = 40 if case.name in ("peers/segments", "peers/result") else 8
    assert "noise" in refuted_by(assess_fit(case, runs=runs))


def test_too_little_noise_that_calls_itself_enough_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As much as is stated, and less than it should be: only how well canaries are found shows it."""
    whole = Pairing.own
    monkeypatch.setattr(Pairing, "own", lambda pairing, sensitivity, mu: 0.5 * whole(pairing, sensitivity, mu))
    assert refuted_by(assess_fit(BY_NAME["peers/pairwise"], runs=120)) == {"curve", "noise"}


def test_the_published_form_claims_that_the_lone_row_is_hidden() -> None:
    """Its Theorem 2, as printed, finds nothing in this very table; what its neighbour really sees tells it with certainty."""
    tables = wrong_peers.lone_tables(present=True)
    settings = dict(wrong_peers.DDPPM_SETTINGS)
    weights, steps = settings.pop("weights"), settings.pop("c")
    peers: list[Array] = list(tables.values())
    choices: dict[str, Any] = {**settings, "steps": steps, "observer": 0, "replaced": (1, len(peers[1]) - 1), "by": None}
    case = CASES["wrong/ddppm-lone-direction"]
    printed = instance_leakage(peers, weights, as_printed=True, **choices)
    assert not printed.infinite and printed.delta(case.budget.epsilon) < case.budget.delta
    assert instance_leakage(peers, weights, **choices).infinite
