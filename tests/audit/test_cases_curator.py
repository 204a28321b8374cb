"""Cases of one holder: each attack sees what there is to see, refutes what is wrong, and nothing that is right."""

from typing import Any

import numpy as np
import pytest
from scipy.special import ndtr

from eigenveil.audit import CASES, Case, Trial, Verdict, judge
from eigenveil.audit.cases.seen import enough_people, gram_of, lifted, require_guarantee, symmetric_noise
from eigenveil.core.accounting import Budget
from eigenveil.core.domain import Domain
from eigenveil.core.ledger import Ledger, Memory, Reserve
from eigenveil.core.noise import RoundedGaussian
from eigenveil.data.rows import WeightedRows
from eigenveil.errors import BudgetExceeded
from eigenveil.estimators import PrivatePCA
from eigenveil.linalg import Subspace
from eigenveil.privacy.guarantee import Guarantee
from eigenveil.trackers import SlicedTracker, SumTerms, TreeTracker

SHIPPED = {name: case for name, case in CASES.items() if name.startswith(("curator/", "stream/", "bounds/"))}
_WRONG = ("quiet-noise", "forgetful-ledger", "unclipped-row", "bound-from-data", "slots-as-read", "slots-as-read-long")
SPECIMENS = [CASES[f"wrong/{name}"] for name in _WRONG]
# Where the score is the likelihood ratio of all that a person moves, guesses are right as often as mu allows.
SHARP = sorted(
    SHIPPED.keys()
    - {"curator/lone-direction", "curator/power", "curator/trace", "curator/one-run"}
    - {"stream/mean", "stream/person-continual", "bounds/norms", "bounds/norms-counts", "bounds/norms-groups"}
    - {"curator/found-units", "stream/slots-masked", "bounds/columns", "bounds/columns-counts", "bounds/columns-groups"}
)
# A case's part of the 1% of a whole audit.
LEVEL = 0.01 / 60


def trials_of(case: Case, runs: int, *, budget: Budget | None = None) -> tuple[Trial, ...]:
    given = budget or case.budget
    return tuple(case.trial(given, np.random.default_rng([7, number]), 7000 + number) for number in range(runs))


def assess_fit(case: Case, trials: tuple[Trial, ...], *, level: float = LEVEL) -> Verdict:
    return judge(case, case.claim(case.budget), trials, level=level, confidence=0.99, seconds=0.0)


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    loud = RoundedGaussian.draw
    monkeypatch.setattr(
        RoundedGaussian, "draw", lambda law, noise, count: np.rint(0.8 * loud(law, noise, count)).astype(np.int64)
    )


@pytest.mark.parametrize("name", SHIPPED)
def test_what_we_ship_is_not_refuted_and_the_attack_is_not_blind(name: str) -> None:
    case = SHIPPED[name]
    # One number that shows a person less than mu allows takes more runs.
    trials = trials_of(case, min(case.quick, 200 if name.startswith("bounds/columns") else 40))
    assert not assess_fit(case, trials, level=1e-6).refuted
    if case.threshold is not None and name != "curator/one-run":
        right = np.concatenate([(trial.scores > case.threshold) == trial.present for trial in trials])
        # As often as mu allows, but for five standard deviations; for the others better than by chance.
        expected = float(ndtr(case.claim(case.budget).mu / 2)) if name in SHARP else 0.5
        assert right.mean() > expected - 5 * 0.45 / np.sqrt(len(right))
        assert right.mean() > 0.55


@pytest.mark.parametrize("case", SPECIMENS, ids=lambda case: case.name)
def test_what_is_wrong_is_refuted_by_a_quick_audit(case: Case) -> None:
    assert case.kind == "specimen"
    assert assess_fit(case, trials_of(case, case.quick)).refuted


@pytest.mark.parametrize("name", [name for name, case in SHIPPED.items() if "noise" in case.tests])
@pytest.mark.usefixtures("quiet")
def test_noise_a_fifth_too_small_is_refuted_wherever_it_can_be_taken_apart(name: str) -> None:
    case = SHIPPED[name]
    # A release of three numbers takes more runs than one of a matrix.
    few = {"curator/trace": 400, "curator/incomplete-rows": 400, "curator/missing": 150, "bounds/norms": 150}
    few |= {"bounds/columns": 400}
    few |= {"bounds/spectrum": 60}
    runs = next((number for begins, number in few.items() if name.startswith(begins)), min(case.quick, 25))
    assert assess_fit(case, trials_of(case, runs)).refuted


@pytest.mark.usefixtures("quiet")
def test_noise_a_fifth_too_small_is_refuted_by_the_order_of_components_alone() -> None:
    case = SHIPPED["curator/near-ties"]
    assert assess_fit(case, trials_of(case, case.quick)).refuted


def test_a_swap_of_two_people_costs_more_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eigenveil.core.domain.gram_sensitivity", lambda radius, neighbours: radius**2)
    ties = SHIPPED["curator/near-ties"]
    assert assess_fit(SHIPPED["curator/replace-one"], trials_of(SHIPPED["curator/replace-one"], 40)).refuted
    assert assess_fit(ties, trials_of(ties, 200)).refuted


def test_rows_of_a_person_count_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def each_by_itself(rows: Any, person: Any) -> WeightedRows:
        return WeightedRows(rows, np.ones(len(person)))

    monkeypatch.setattr(WeightedRows, "by_person", each_by_itself)
    case = SHIPPED["curator/person"]
    assert assess_fit(case, trials_of(case, 150)).refuted


@pytest.mark.parametrize("name", ["curator/mean", "curator/scale", "stream/block"])
def test_heavy_rows_must_be_cut(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    whole = Domain.to_grid

    def less(self: Domain, squares: Any, block: Any, unit: float, *rest: Any) -> Any:
        return np.minimum(1 / unit, 3 * whole(self, squares, block, unit, *rest))

    monkeypatch.setattr(Domain, "to_grid", less)
    assert assess_fit(SHIPPED[name], trials_of(SHIPPED[name], 120)).refuted


def test_a_stream_pays_for_every_row_and_every_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TreeTracker, "cost", 1)
    monkeypatch.setattr(SlicedTracker, "cost", 1)
    one = SumTerms.gram_sensitivity
    monkeypatch.setattr(SumTerms, "gram_sensitivity", lambda self, rows=1: one(self))
    # A ledger that refuses nothing: a true one would stop some of these before the audit sees them.
    monkeypatch.setattr(Memory, "require_affordable", lambda self, mu, **_: None)
    monkeypatch.setattr(Reserve, "_require_room", lambda self, mu, label: None)
    for name in ("continual", "person-sync", "person-block", "person-continual"):
        case = SHIPPED[f"stream/{name}"]
        assert assess_fit(case, trials_of(case, 30)).refuted, name


@pytest.mark.parametrize("budget", [Budget(0.3, 1e-6), Budget(30.0, 1e-4)], ids=str)
def test_every_case_can_be_audited_at_another_budget(budget: Budget) -> None:
    for name, case in SHIPPED.items():
        if name != "curator/one-run":
            (trial,) = trials_of(case, 1, budget=budget)
            assert np.abs(trial.noise).max(initial=0.0) < 6, name


def test_two_fits_at_full_price_do_not_fit_an_honest_ledger() -> None:
    ledger = Ledger(epsilon=4.0, delta=1e-3)
    settings: dict[str, Any] = {"epsilon": 4.0, "delta": 1e-3, "row_bound": 1.0, "ledger": ledger, "random_state": 0}
    PrivatePCA(1, **settings).fit(np.eye(4))
    with pytest.raises(BudgetExceeded):
        PrivatePCA(1, **settings).fit(np.eye(4))


def test_enough_people_keep_a_noisy_matrix_above_zero() -> None:
    rng, dim, deviation = np.random.default_rng(0), 6, 3.0
    people = enough_people(dim, deviation=deviation)
    gram = lifted(dim, length=1.0, people=people).T @ lifted(dim, length=1.0, people=people)
    drawn = deviation * rng.standard_normal((2000, dim, dim))
    noise = (drawn + drawn.transpose(0, 2, 1)) / 2
    assert float(np.linalg.eigvalsh(gram + noise).min()) > 0
    # A quarter as many do not.
    assert float(np.linalg.eigvalsh(gram / 4 + noise).min()) < 0
    shown = gram_of(Subspace.of_gram(gram + noise[0], rank=dim))
    np.testing.assert_allclose(shown - gram, noise[0], atol=1e-9)


def test_symmetric_noise_is_of_one_size_in_all_entries() -> None:
    drawn = 2.5 * np.random.default_rng(1).standard_normal((4000, 5, 5))
    noise = np.array([symmetric_noise((one + one.T) / 2, deviation=2.5) for one in drawn])
    assert noise.shape == (4000, 15)
    # Five standard deviations of a variance from 4000 draws.
    assert np.abs(noise.var(axis=0) - 1).max() < 5 * np.sqrt(2 / 4000)


def test_a_guarantee_of_something_else_is_no_claim_to_test() -> None:
    require_guarantee(Guarantee(epsilon=1.0, delta=1e-6), Budget(1.0, 1e-6))
    with pytest.raises(ValueError, match=r"the claim is \(1.0, 1e-06\), but the guarantee says \(2.0, 1e-06\)"):
        require_guarantee(Guarantee(epsilon=2.0, delta=1e-6), Budget(1.0, 1e-6))
