"""The search for a row bound inside a fit: its steps, its choice, and what sites accept of it."""

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from eigenveil.core.counts import Bins
from eigenveil.core.ledger import Ledger
from eigenveil.core.mechanism import Exact, Gaussian
from eigenveil.core.noise import Noise
from eigenveil.core.unit import Neighbours
from eigenveil.data.rows import DenseRows
from eigenveil.errors import ParameterError, TooFewPeople
from eigenveil.linalg import Array, expected_captured_variance
from eigenveil.methods.covariance import CovarianceSum
from eigenveil.protocols.party import run_pooled
from eigenveil.tasks.base import Question
from eigenveil.tasks.fit.bounds import Outliers, RowBounds
from eigenveil.tasks.fit.gaps import split_budget
from eigenveil.tasks.fit.search import NORMS, BoundSearch, Center, clip_edge
from eigenveil.tasks.fit.task import Fit
from eigenveil.tasks.fit.units import ScaleSearch
from eigenveil.tasks.levels import TailCounts, norm_cells

DIM = 5
RNG = np.random.default_rng(3)
ROWS = RNG.standard_normal((4000, DIM)) * [9, 5, 2, 1, 1] + 100


def bounds(**given: Any) -> RowBounds:
    usual = {"column_bounds": None, "origin": None, "mean_bound": None, "scale": None, "sparse": False}
    return RowBounds.check(DIM, private=True, row_bound="private", **(usual | given))


def search(mu: float = 0.5, *, center: Any = "private", people: float | None = None, **given: Any) -> BoundSearch:
    split = split_budget(mean=isinstance(center, str), search=False, count=people is None, trace=False, bound=True)
    return BoundSearch(
        bounds=bounds(**given),
        neighbours=Neighbours.ADD_REMOVE,
        center=center,
        split=split,
        people=people,
        multiplier=1 / mu,
        rank=2,
        entry=math.sqrt(0.5),
    )


def found(task: BoundSearch, rows: Array = ROWS, seed: int = 0) -> tuple[Center, Ledger]:
    ledger = Ledger(epsilon=math.inf, delta=1e-6)
    return run_pooled(
        task, DenseRows(rows), Gaussian(multiplier=task.multiplier, ledger=ledger, noise=Noise.seeded(seed))
    ), ledger


def whole_fit(**given: Any) -> Fit:
    one = search(**given)
    return Fit(
        bounds=one.bounds,
        neighbours=one.neighbours,
        center=one.center,
        components=lambda domain: CovarianceSum(domain, one.neighbours),
        split=one.split,
        people=one.people,
        multiplier=one.multiplier,
        rank=2,
    )


def test_the_bound_lies_among_the_norms_around_the_mean_and_is_charged_step_by_step() -> None:
    task = search()
    answer, ledger = found(task)
    norms = np.linalg.norm(ROWS - ROWS.mean(axis=0), axis=1)
    assert answer.bound is not None
    assert answer.center is not None
    assert np.quantile(norms, 0.05) < answer.bound < np.quantile(norms, 0.99)
    assert np.linalg.norm(answer.center - ROWS.mean(axis=0)) < 0.1 * answer.bound
    assert answer.people == pytest.approx(len(ROWS), rel=0.05)
    assert [charge.label for charge in ledger.charges][:4] == [
        "norms around the origin",
        "mean",
        "norms around the mean",
        "mean, again and count",
    ]
    spent = 1 - task.split.main(answer.steps)
    assert ledger.spent_mu == pytest.approx(0.5 * math.sqrt(spent))


def test_a_mean_far_from_the_origin_is_searched_for_once_more() -> None:
    near, _ = found(search())
    far, ledger = found(search(), ROWS + 1e4)
    assert (near.steps, far.steps, len(ledger.charges)) == (4, 6, 6)
    assert far.bound is not None
    # Around the first mean alone, which is off by a hundred or so, it would be far larger.
    assert far.bound < 40


def test_a_mean_a_million_spreads_away_is_searched_for_until_it_is_found() -> None:
    far, ledger = found(search(), ROWS + 1e7)
    assert far.bound is not None and far.center is not None
    assert far.bound < 40
    assert np.linalg.norm(far.center - 1e7 - ROWS.mean(axis=0)) < 0.1 * far.bound
    # No two entries of the ledger have the same name.
    assert len({charge.label for charge in ledger.charges}) == far.steps == len(ledger.charges)


@pytest.mark.parametrize("center", [None, np.full(DIM, 100.0)], ids=["zero", "numbers"])
def test_with_a_given_center_one_release_is_enough(center: Any) -> None:
    answer, ledger = found(search(center=center))
    norms = np.linalg.norm(ROWS - (0 if center is None else center), axis=1)
    assert answer.bound is not None
    assert np.quantile(norms, 0.05) < answer.bound < np.quantile(norms, 0.99)
    assert [charge.label for charge in ledger.charges] == ["norms"]


def test_rows_that_never_vary_and_rows_of_nothing_end_with_a_bound() -> None:
    for rows in (np.zeros((4000, DIM)), np.full((4000, DIM), 3.0), np.full((4000, DIM), 1e300)):
        answer, _ = found(search(), rows)
        assert answer.bound is not None
        assert NORMS.edges[0] <= answer.bound <= NORMS.edges[-1] * 10


def test_more_noise_never_raises_the_bound_and_quantiles_hold_it() -> None:
    cells = norm_cells(1.0, 64.0, per_doubling=4)
    beyond = 1000 * np.exp(-cells.edges / 10)
    tails = TailCounts(cells=cells, beyond=beyond, error=np.zeros(len(beyond)), people=1000.0, people_error=0.0)
    edges = [clip_edge(tails, dim=30, rank=3, entry=entry) for entry in np.logspace(-3, 4, 30)]
    assert (edges[0], edges[-1]) == (tails.edge_above(50.0), tails.edge_above(900.0))
    assert len(set(edges)) > 5
    # Where the formula loses one direction after the other, it may step back by a little.
    assert all(later <= earlier + 3 for earlier, later in pairwise(edges))
    shares = beyond[edges] / 1000
    assert shares.min() >= 0.03
    assert shares.max() <= 0.9


def test_noise_below_all_norms_is_not_taken_for_short_rows() -> None:
    """With few people noise passes for a tenth of them, where nobody is. The bound was then a millionth of the norms."""
    edges: Array = 2.0 ** np.arange(-20, 8, dtype=np.float64)
    beyond = np.where(edges < 1, 440.0, 440.0 * np.exp(-edges / 10))
    beyond[0] = 500.0
    tails = TailCounts(cells=Bins(edges), beyond=beyond, error=np.full(len(edges), 50.0), people=500.0, people_error=50.0)
    assert edges[clip_edge(tails, dim=DIM, rank=DIM, entry=1e6)] >= 1
    # Where counts are sure, a tenth of the people are such short rows.
    assert edges[clip_edge(replace(tails, error=np.zeros(len(edges))), dim=DIM, rank=DIM, entry=1e6)] < 1e-5


def test_the_choice_is_the_least_of_the_losses() -> None:
    cells = norm_cells(1.0, 64.0, per_doubling=2)
    tails = TailCounts(cells=cells, beyond=1000 * np.exp(-cells.edges / 10), error=np.zeros(13), people=1000.0, people_error=0.0)
    chosen = clip_edge(tails, dim=30, rank=3, entry=2.0, price=0.3)
    top = tails.edge_above(50.0)
    assert top is not None
    guess = 1000 / np.arange(1, 4) / (1 / np.arange(1, 31)).sum()
    losses = {
        edge: 1
        - expected_captured_variance(guess * tails.square(edge) / cells.edges[edge] ** 2, entry=2.0, dim=30)
        + 0.3 * (1 - tails.square(edge) / tails.square(top)) ** 2
        for edge in range(tails.edge_above(900.0) or 0, top + 1)
    }
    assert losses[chosen] == min(losses.values())


def test_too_few_people_are_refused_and_the_error_says_what_it_cost() -> None:
    with pytest.raises(ParameterError, match=r"200 people: .* needs about 1000\..* Nothing was released"):
        search(0.1, people=200.0).start()
    task, ledger = search(0.1), Ledger(epsilon=math.inf, delta=1e-6)
    with pytest.raises(ParameterError, match=r"needs about 1000\..* 1\.5% of the budget was spent"):
        run_pooled(task, DenseRows(ROWS[:100]), Gaussian(multiplier=10.0, ledger=ledger, noise=Noise.seeded(0)))
    assert [charge.label for charge in ledger.charges] == ["norms around the origin"]


def test_a_table_is_refused_by_the_better_of_its_two_counts() -> None:
    """Norms count people with an error of a quarter of the least, so they refuse only what the second count would refuse too."""
    refused, steps = {70: 0, 118: 0}, set()
    for people in refused:
        for seed in range(60):
            task, ledger = search(1.0), Ledger(epsilon=math.inf, delta=1e-6)
            mechanism = Gaussian(multiplier=task.multiplier, ledger=ledger, noise=Noise.seeded(seed))
            try:
                run_pooled(task, DenseRows(ROWS[:people]), mechanism)
            except TooFewPeople as error:
                refused[people] += 1
                steps.add(len(ledger.charges))
                spent = 1 - task.split.main(len(ledger.charges))
                assert f"{spent:.1%} of the budget was spent" in str(error)
    # At mu = 1 a hundred are needed.
    assert refused[70] >= 45
    assert refused[118] <= 2
    assert steps == {1, 4}


@pytest.mark.parametrize("unit", [1e-15, 1e-12, 1e12, 1e15])
def test_tables_in_any_unit_have_a_bound(unit: float) -> None:
    usual, _ = found(search())
    answer, _ = found(search(), ROWS * unit)
    assert usual.bound is not None and answer.bound is not None
    # Cells of units that hardly anybody has are 19% wide, and one more may be taken for noise.
    assert answer.bound / unit == pytest.approx(usual.bound, rel=0.5)


def test_a_search_among_more_people_goes_on_where_it_paused() -> None:
    rows = ROWS + 1e7
    first = replace(search(people=300.0), pause=6)
    paused, _ = found(first, rows[:300])
    assert paused.poor and paused.steps == 6
    assert first.result(replace(paused, poor=False, far=False)) is not None
    begun = replace(paused, people=4000.0)
    ledger = Ledger(epsilon=math.inf, delta=1e-6)
    mechanism = Gaussian(multiplier=first.multiplier, ledger=ledger, noise=Noise.seeded(1))
    answer = run_pooled(search(people=4000.0), DenseRows(rows), mechanism, begun=begun)
    assert answer.bound is not None and answer.bound < 40
    assert ledger.charges[0].label == "norms around the mean, a third time"


def test_a_given_bound_on_the_mean_limits_the_first_ball() -> None:
    task = search(mean_bound=20.0)
    state = task.advance(task.start(), task.work(task.ask(task.start()), DenseRows(ROWS), EXACT), EXACT)
    assert state.bound == 20.0


EXACT = Exact(because="a test")
POINT = np.full(DIM, 1.0)
QUESTIONS = {
    "another start": Question(0, (POINT,)),
    "no center": Question(0),
    "a step too many": Question(len(search().split.mean), (POINT,)),
    "a center of another length": Question(2, (np.ones(DIM + 1),)),
    "a center that is infinite": Question(2, (np.full(DIM, np.inf),)),
    "a mean without a ball": Question(1, (POINT,)),
    "a ball of no size": Question(1, (POINT, np.zeros(1))),
    "a ball of NaN": Question(1, (POINT, np.array([np.nan]))),
    "a ball without end": Question(1, (POINT, np.array([np.inf]))),
    "a huge ball": Question(1, (POINT, np.array([1e80]))),
    "two radii": Question(1, (POINT, np.ones(2))),
}


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS)
def test_a_site_refuses_questions_that_no_search_would_ask(question: Question) -> None:
    with pytest.raises(ValueError):
        search().require_question(question)
    with pytest.raises(ValueError):
        whole_fit().require_question(replace(question, stage="bound"))


def test_a_site_accepts_what_an_honest_hub_asks() -> None:
    fit = whole_fit()
    state = fit.start()
    while fit.result(state) is None:
        question = fit.ask(state)
        fit.require_question(question)
        state = fit.advance(state, fit.work(question, DenseRows(ROWS), EXACT), EXACT)
    answer = fit.result(state)
    assert answer is not None
    again = fit.decode_result(fit.encode_result(answer))
    assert again.domain.radius == answer.domain.radius
    assert again.clipped == answer.clipped
    assert again.outliers == answer.outliers
    hiding = replace(answer, outliers=Outliers(8.0, 0.01, 0.5, 0.001, 90.0))
    assert fit.decode_result(fit.encode_result(hiding)).outliers == hiding.outliers
    assert again.norms == answer.norms and any(norm > 0 for norm in answer.norms or ())
    *arrays, numbers = fit.encode_result(answer)
    for norm in (-1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match=r"norms of an answer|finite"):
            fit.decode_result((*arrays, np.array([*numbers[:-6], norm, *numbers[-5:]])))
    with pytest.raises(ValueError, match=r"outliers of an answer|finite"):
        fit.decode_result((*arrays, np.array([*numbers[:-1], -1.0])))


NUMBERS = {
    "no bound": [4.0],
    "an odd number of steps": [5.0, 3.0],
    "too few steps": [2.0, 3.0],
    "no size": [4.0, 0.0],
    "not a number": [4.0, math.nan],
    "without end": [4.0, math.inf],
    "too large": [4.0, 1e80],
    "more than two": [4.0, 3.0, 3.0],
}


@pytest.mark.parametrize("numbers", NUMBERS.values(), ids=NUMBERS)
def test_a_site_refuses_components_around_what_no_search_finds(numbers: list[float]) -> None:
    with pytest.raises(ValueError):
        whole_fit().require_question(Question(0, (POINT, np.array(numbers)), "components"))
    with pytest.raises(ValueError):
        whole_fit().require_question(Question(0, (POINT, np.array([1.0])), "mean"))


def test_the_last_step_of_a_search_for_units_is_around_a_point() -> None:
    split = split_budget(mean=True, search=False, count=True, trace=False, units=True)
    public = replace(bounds(), dim=3, row_bound=2.0, mean_bound=2.0, finds_bound=False, finds_scale=True)
    task = ScaleSearch(bounds=public, neighbours=Neighbours.ADD_REMOVE, split=split, people=None, multiplier=1.0)
    task.require_question(Question(0, (np.empty(0),)))
    task.require_question(Question(4, (np.zeros(3), np.ones(3))))
    with pytest.raises(ValueError, match="center must have shape"):
        task.require_question(Question(4, (np.empty(0), np.ones(3))))
    with pytest.raises(ValueError, match="one unit for each column"):
        task.require_question(Question(4, (np.zeros(3), np.ones(2))))
