"""The guarantee of a whole fit of a recommender: neighbours, given the same transcript, stay within what was charged; the noise
is what was said; and an independent accountant agrees."""

import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import dp_accounting
import numpy as np
import pytest
import scipy.sparse as sp
from dp_accounting import pld
from hypothesis import given, settings
from hypothesis import strategies as st

from core.test_noise import LEVEL, scale_statistic
from eigenveil.core.accounting import Budget, epsilon_of, mu_for
from eigenveil.core.mechanism import Bounded, Gaussian
from eigenveil.core.noise import ROUNDING_COST
from eigenveil.core.unit import Neighbours
from eigenveil.errors import BudgetExceeded
from eigenveil.linalg import Array, orthonormal
from eigenveil.methods.covariance import CovarianceSum
from eigenveil.methods.power import PowerIteration
from eigenveil.privacy.histories import Histories
from eigenveil.privacy.lattice import Share
from eigenveil.protocols.masked.terms import MaskedTerms
from eigenveil.recommend import PrivateRecommender
from eigenveil.recommend.item_fit import ItemFit, most_popular
from eigenveil.tasks.base import Question
from laws.parties.transcripts import Transcript
from recommend.histories_of_users import random_histories

TOLERANCE = 1 + 1e-9
ITEMS, DELTA = 6, 1e-3


def fitted(R: Any, **options: Any) -> PrivateRecommender:
    """A fit that goes on where the planner expects nothing, with a fixed seed."""
    choices: dict[str, Any] = {"n_components": 2, "on_noise": "warn", "random_state": 1, **options}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return PrivateRecommender(**choices).fit(R)


@st.composite
def fits(draw: st.DrawFn) -> tuple[dict[str, Any], list[Array], list[Array]]:
    """Options of a fit, and two neighbouring lists of three sites."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    item = draw(st.booleans())
    near = "zero-out" if item else draw(st.sampled_from(["zero-out", "add-remove", "replace-one"]))
    sites = [(rng.random((3, ITEMS)) < 0.4).astype(float) for _ in range(3)]
    site, user = int(rng.integers(3)), int(rng.integers(3))
    sites[site][user] = 0.0
    sites[site][user, rng.permutation(ITEMS)[: draw(st.integers(1, ITEMS))]] = 1.0
    others = [held.copy() for held in sites]
    if item:
        others[site][user, rng.choice(np.flatnonzero(sites[site][user]))] = 0.0
    elif near == "add-remove":
        others[site] = np.delete(others[site], user, axis=0)
    else:
        others[site][user] = 0.0 if near == "zero-out" else (rng.random(ITEMS) < 0.5).astype(float)
    options: dict[str, Any] = {
        "epsilon": draw(st.sampled_from([0.5, 3.0])),
        "delta": DELTA,
        "unit": "item" if item else "user",
        "neighbours": near,
        "min_degree": draw(st.sampled_from([1, 2, 4])),
        "item_degrees": draw(st.sampled_from([None, "private"])),
        "items": draw(st.sampled_from([None, 4, [0, 1, 3, 5]])),
        "method": draw(st.sampled_from(["covariance", "power"])),
    }
    if not item and draw(st.booleans()):
        options["normalise"] = "both"
        options["item_degrees"] = draw(st.sampled_from(["private", [0.0, 1.0, 5.0, 100.0, 1e9, 1e-9]]))
    return options, sites, others


def runs(options: dict[str, Any], one: Any, other: Any) -> tuple[Transcript, Transcript, PrivateRecommender]:
    """What left through mechanisms on both sides, where the second sees what the first released."""
    first = Transcript()
    second = Transcript(first)
    recommender = None
    for transcript, table in ((first, one), (second, other)):
        with pytest.MonkeyPatch.context() as patch:
            transcript.watch(patch)
            recommender = fitted(table, **options)
    assert recommender is not None
    assert len(first.values) == len(second.values) > 0
    assert first.scales == second.scales
    return first, second, recommender


def moves(first: Transcript, second: Transcript) -> list[float]:
    """How far each release moved, over the noise that was added to it."""
    pairs = zip(first.values, second.values, first.scales, strict=True)
    return [float(np.linalg.norm(a - b)) / scale for a, b, scale in pairs]


@pytest.mark.parametrize("trust", ["one matrix", "hub", "site"])
@settings(max_examples=60)
@given(case=fits())
def test_a_whole_fit_stays_within_its_budget(trust: str, case: tuple[dict[str, Any], list[Array], list[Array]]) -> None:
    options, one, other = case
    sides: list[Any] = [one, other]
    if trust == "one matrix":
        sides = [sp.csr_array(np.vstack(side)) for side in sides]
    else:
        options = {**options, "trust": trust}
    first, second, recommender = runs(options, *sides)
    mu = mu_for(options["epsilon"], DELTA)
    found = moves(first, second)
    assert math.hypot(*found) <= mu * TOLERANCE
    for ledger in recommender.ledgers_.values():
        # All of the budget is spent, and never more.
        assert mu * (1 - 1e-9) <= ledger.spent_mu <= mu * (1 + 1e-12)
        assert ledger.spent_mu == pytest.approx(math.sqrt(sum(c.mu**2 for c in ledger.charges)), rel=1e-12)
    if trust != "site":
        # One release for each line of the one ledger, each within what it was charged for.
        (ledger,) = recommender.ledgers_.values()
        assert len(ledger.charges) == len(found)
        assert all(moved <= charge.mu * TOLERANCE for moved, charge in zip(found, ledger.charges, strict=True))


class MaskedTranscript:
    """Stands where sites hand their arrays to the masks, and where the hub reads a sum; that can be played back."""

    def __init__(self, played: "MaskedTranscript | None" = None) -> None:
        self.private: list[Bounded] = []
        self.sums: list[Array] = []
        self.played = played

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        of, read = Share.of, MaskedTerms.read

        def shared(place: Share, private: Bounded, **more: Any) -> Any:
            self.private.append(Bounded(np.array(private.value), private.sensitivity))
            return of(place, private, **more)

        def total(terms: MaskedTerms, *rest: Any, **more: Any) -> Array:
            found = read(terms, *rest, **more)
            if self.played is not None:
                found = self.played.sums[len(self.sums)]
            self.sums.append(found)
            return found

        patch.setattr(Share, "of", shared)
        patch.setattr(MaskedTerms, "read", total)


@settings(max_examples=15)
@given(case=fits())
def test_what_sites_give_under_masks_moves_by_no_more_than_it_says(case: tuple[dict[str, Any], list[Array], list[Array]]) -> None:
    options, one, other = case
    options = {**options, "trust": "masked", "epsilon": 1.0}
    first = MaskedTranscript()
    second = MaskedTranscript(first)
    recommender = None
    for transcript, sites in ((first, one), (second, other)):
        with pytest.MonkeyPatch.context() as patch:
            transcript.watch(patch)
            recommender = fitted(sites, **options)
    assert recommender is not None
    assert len(first.private) == len(second.private) == 3 * len(recommender.transcript_)
    for left, right in zip(first.private, second.private, strict=True):
        assert left.sensitivity == right.sensitivity
        assert np.linalg.norm(left.value - right.value) <= left.sensitivity * TOLERANCE
    for ledger in recommender.ledgers_.values():
        assert len(ledger.charges) == len(recommender.transcript_)
        assert epsilon_of(ledger.spent_mu, DELTA) <= 1.0


@pytest.mark.parametrize("unit", ["user", "item"])
def test_the_budget_is_reached(unit: str) -> None:
    """By a user with as many items as the least degree, or by the loss of one of them: the account is tight, not merely safe."""
    table = np.zeros((4, 8))
    table[0, :5] = 1.0
    other = table.copy()
    other[0, 0 if unit == "item" else slice(None)] = 0.0
    options = {"epsilon": 1.0, "delta": DELTA, "unit": unit, "min_degree": 5, "method": "covariance"}
    first, second, _ = runs(options, table, other)
    # A hub rounds parts to a grid and pays for that: see `on_grid`.
    assert math.hypot(*moves(first, second)) == pytest.approx(mu_for(1.0, DELTA), rel=2 * ROUNDING_COST)


def test_a_forgotten_divisor_is_convicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Histories, "_shares", lambda self, degrees: np.ones(len(degrees)))
    table = np.zeros((4, 8))
    table[0] = 1.0
    first, second, _ = runs({"epsilon": 1.0, "delta": DELTA, "method": "covariance"}, table, 0 * table)
    assert math.hypot(*moves(first, second)) > 5 * mu_for(1.0, DELTA)


def test_a_degree_vote_that_is_not_paid_for_is_convicted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Portions of the budget: a stage that took all of it would be seen in the sum."""
    monkeypatch.setattr(ItemFit, "_fraction", lambda self, stage: 1.0)
    with pytest.raises(BudgetExceeded, match="nothing was released"):
        fitted(np.ones((4, 8)), epsilon=1.0, delta=DELTA, item_degrees="private", method="covariance")


# The law of the noise.


def noise_of(R: Any, **options: Any) -> tuple[list[Array], PrivateRecommender]:
    """Released less private, over the noise stated, of each release."""
    transcript = Transcript()
    with pytest.MonkeyPatch.context() as patch:
        transcript.watch(patch)
        recommender = fitted(R, **options)
    pairs = zip(transcript.released, transcript.values, transcript.scales, strict=True)
    return [(public - private) / scale for public, private, scale in pairs], recommender


def has_law(noise: Array) -> None:
    """A standard normal, or one made symmetric; a tenth off fails."""
    if noise.ndim == 2 and noise.shape[0] == noise.shape[1] and np.array_equal(noise, noise.T):
        noise = noise[np.triu_indices(len(noise), 1)] * math.sqrt(2)
    assert abs(scale_statistic(noise)) < LEVEL
    assert abs(scale_statistic(1.1 * noise)) > LEVEL
    assert abs(scale_statistic(0.9 * noise)) > LEVEL


@pytest.mark.parametrize(("unit", "least"), [("user", 1), ("item", 1), ("item", 20)])
def test_noise_is_what_was_charged_for(unit: str, least: int) -> None:
    R = random_histories(300, 9000, share=0.01, rng=np.random.default_rng(3))
    options = {"epsilon": 2.0, "delta": 1e-4, "unit": unit, "min_degree": least, "random_state": 5}
    (degrees, gram), recommender = noise_of(R, items=180, method="covariance", **options)
    has_law(degrees)
    has_law(gram)
    products, powered = noise_of(R, method="power", **options)
    assert len(products) >= 2
    for product in products:
        has_law(product)
    # The scale that it was divided by is the sensitivity over the charge: what accounting stands on.
    region, near = (Histories(dim=180, min_degree=least), Neighbours.INTERACTION if unit == "item" else Neighbours.ZERO_OUT)
    transcript = Transcript()
    with pytest.MonkeyPatch.context() as patch:
        transcript.watch(patch)
        fitted(R, items=180, method="covariance", **options)
    (ledger,) = recommender.ledgers_.values()
    # Degrees are released in units of their sensitivity.
    stated = [1.0 / ledger.charges[0].mu, region.gram_sensitivity(near) / ledger.charges[1].mu]
    assert transcript.scales == pytest.approx(stated, rel=1e-3)
    assert all(scale >= least for scale, least in zip(transcript.scales, stated, strict=True))
    assert powered.plan_.method == "power"


@pytest.mark.parametrize("unit", ["user", "item"])
@pytest.mark.parametrize("method", ["covariance", "power"])
def test_noise_under_masks_is_at_least_a_curators_and_what_the_fit_says(unit: str, method: str) -> None:
    R = random_histories(40, 6000, share=0.01, rng=np.random.default_rng(3)).toarray()
    sites = [R[at::4] for at in range(4)]
    options = {"epsilon": 2.0, "delta": 1e-4, "unit": unit, "min_degree": 3, "method": method, "items": 150}
    watched = MaskedTranscript()
    studies: list[ItemFit] = []
    result = ItemFit.result

    def kept(study: ItemFit, state: Any) -> Any:
        studies.append(study)
        return result(study, state)

    with pytest.MonkeyPatch.context() as patch:
        watched.watch(patch)
        patch.setattr(ItemFit, "result", kept)
        recommender = fitted(sites, trust="masked", survivors=4, **options)
    charges = recommender.ledgers_["site 0"].charges
    assert len(watched.sums) == len(charges)
    total = np.zeros(0)
    for round_, (released, charge) in enumerate(zip(watched.sums, charges, strict=True)):
        parts = watched.private[4 * round_ : 4 * round_ + 4]
        exact = np.add.reduce([part.value for part in parts])
        curator = parts[0].sensitivity / charge.mu
        # Three honest sites must make all of the noise, and there are four.
        noise = (released - exact) / (curator * math.sqrt(4 / 3))
        if noise.ndim == 2 and noise.shape[0] == noise.shape[1]:
            noise = noise[np.triu_indices(len(noise), 1)] * math.sqrt(2)
        total = np.concatenate([total, noise.ravel()])
        if noise.size > 4000:
            has_law(noise.ravel())
    has_law(total)
    # What the fit itself says of it, for the planner's floor of the degrees.
    multiplier = studies[-1].multiplier
    assert multiplier / math.sqrt(4 / 3) * Budget(2.0, 1e-4).mu == pytest.approx(1.0, rel=0.05)
    assert multiplier / math.sqrt(4 / 3) * Budget(2.0, 1e-4).mu >= 1 - 1e-9


@pytest.mark.parametrize("options", [{}, {"item_degrees": "private"}, {"items": 5, "method": "power"}], ids=repr)
@pytest.mark.parametrize("unit", ["user", "item"])
def test_an_independent_accountant_agrees(options: dict[str, Any], unit: str) -> None:
    R = random_histories(50, 12, share=0.3, rng=np.random.default_rng(1))
    recommender = fitted(R, epsilon=1.0, delta=1e-4, unit=unit, **options)
    oracle = pld.PLDAccountant(value_discretization_interval=1e-4)
    for charge in recommender.guarantee_.charges:
        oracle.compose(dp_accounting.GaussianDpEvent(1 / charge.mu))
    # The oracle rounds privacy losses up to a grid of 1e-4.
    assert 1.0 - 1e-6 <= oracle.get_epsilon(1e-4) <= 1.0 + 3e-3


# The task itself.


def study(**changes: Any) -> ItemFit:
    """A fit of nine items of which four are kept."""

    def components(*, domain: Histories) -> PowerIteration:
        begin = orthonormal(np.random.default_rng(0).standard_normal((domain.dim, 2)))
        return PowerIteration(domain=domain, neighbours=Neighbours.ZERO_OUT, begin=begin, shares=(0.25, 0.75), rank=2)

    given: dict[str, Any] = {
        "dim": 9,
        "min_degree": 1,
        "neighbours": Neighbours.ZERO_OUT,
        "components": components,
        "rank": 2,
        "releases": ((0.25, 0.75), 2, 8),
        "multiplier": 1.0,
        "degrees_share": 0.1,
        "keep": 4,
    }
    return ItemFit(**(given | changes))


BASIS = orthonormal(np.random.default_rng(1).standard_normal((4, 2)))


def about(kept: Any, *arrays: Any, step: int = 0, weights: Any = ()) -> Question:
    """A question about the directions of these items."""
    return Question(step, (np.asarray(kept, float), np.asarray(weights, float), *arrays), "components")


def test_a_sound_question_is_answered() -> None:
    study().require_question(Question(0, (), "degrees"))
    study().require_question(about([0, 2, 5, 8], BASIS))
    study().require_question(about([0, 2, 5, 8], BASIS, step=1))


@pytest.mark.parametrize(
    "kept",
    [
        [0, 2, 5, 9],
        [-1, 2, 5, 8],
        [0, 2, 2, 8],
        [5, 2, 0, 8],
        [0, 2, 5],
        [0, 1, 2, 3, 4],
        [0.5, 2, 5, 8],
        [np.nan, 2, 5, 8],
        [0, 2, 5, np.nan],
        [0, 2, 5, np.inf],
        [[0, 2, 5, 8]],
        [],
        3,
    ],
    ids=repr,
)
@pytest.mark.filterwarnings("error")
def test_a_hub_that_asks_for_other_items_is_refused(kept: Any) -> None:
    with pytest.raises(ValueError, match="items"):
        study().require_question(about(kept, BASIS))


@pytest.mark.parametrize(
    "question",
    [
        Question(0, (), "components"),
        Question(0, (np.array([0.0, 2, 5, 8]),), "components"),
        about([0, 2, 5, 8], BASIS, weights=[1, 1, 1, 1]),
        Question(0, (), ""),
        Question(0, (), "totals"),
        Question(1, (), "degrees"),
        Question(0, (np.zeros(3),), "degrees"),
        about([0, 2, 5, 8]),
        about([0, 2, 5, 8], BASIS, BASIS),
        about([0, 2, 5, 8], BASIS, step=2),
        about([0, 2, 5, 8], BASIS, step=-1),
        about([0, 2, 5, 8], 1.1 * BASIS),
        about([0, 2, 5, 8], np.eye(9)[:, :2]),
        about([0, 2, 5, 8], np.eye(4)[:, :3]),
        about([0, 2, 5, 8], np.full((4, 2), np.nan)),
    ],
)
def test_a_hub_that_asks_something_else_is_refused(question: Question) -> None:
    with pytest.raises(ValueError, match=r"question|stage|basis"):
        study().require_question(question)


WEIGHED = {"weigh": True, "degrees_share": 0.1}


@pytest.mark.parametrize(
    "weights",
    [[], [1, 1, 1], [1] * 5, [0, 1, 1, 1], [-1, 1, 1, 1], [1, 1, 1, math.nan], [1, 1, 1, math.inf], [1e-300, 1, 1, 1]],
    ids=repr,
)
@pytest.mark.filterwarnings("error")
def test_a_hub_that_weighs_items_as_nobody_can_is_refused(weights: Any) -> None:
    study(**WEIGHED).require_question(about([0, 2, 5, 8], BASIS, weights=[1e-100, 1e100, 1, 3]))
    with pytest.raises(ValueError, match="weigh"):
        study(**WEIGHED).require_question(about([0, 2, 5, 8], BASIS, weights=weights))


def test_where_no_items_are_kept_none_may_be_named_and_no_degrees_asked_for() -> None:
    whole = study(keep=None, degrees_share=0.0, columns=np.array([0, 2, 5, 8]))
    whole.require_question(about(np.empty(0), BASIS))
    with pytest.raises(ValueError, match="wrong number of items"):
        whole.require_question(about([0, 2, 5, 8], BASIS))
    with pytest.raises(ValueError, match="no stage"):
        whole.require_question(Question(0, (), "degrees"))


def test_what_is_released_at_most_is_what_is_released() -> None:
    extent = study().extent()
    assert (extent.rounds, extent.entries) == (3, 9)
    assert extent.smallest == pytest.approx(0.1)
    assert study(degrees_share=0.9).extent().smallest == pytest.approx(0.1 * 0.25)
    assert study().with_noise(3.0).multiplier == 3.0
    assert not study().sampled(Question())


def test_shares_of_all_stages_add_up_to_one() -> None:
    task = study()
    total = 0.0
    for question in [Question(0, (), "degrees"), *(about([0, 2, 5, 8], BASIS, step=step) for step in (0, 1))]:
        inner, asked, fraction = task.as_sum(question)
        total += fraction * inner.share(asked)
    assert total == pytest.approx(1.0, rel=1e-12)


def test_only_a_gram_matrix_is_halved() -> None:
    assert not study().has_symmetric_parts(Question(0, (), "degrees"))
    assert not study().has_symmetric_parts(about([0, 2, 5, 8], BASIS))
    whole = study(components=lambda domain: CovarianceSum(domain, Neighbours.ZERO_OUT))
    assert whole.has_symmetric_parts(about([0, 2, 5, 8]))


def test_of_equal_degrees_the_first_items_are_kept() -> None:
    assert most_popular(np.array([1.0, 5.0, 5.0, 5.0]), 2).tolist() == [1, 2]
    assert most_popular(np.array([-3.0, -1.0, -2.0]), 3).tolist() == [0, 1, 2]


@given(seed=st.integers(0, 2**32), count=st.integers(1, 9))
def test_the_most_popular_are_those_of_largest_degree(seed: int, count: int) -> None:
    degrees = np.random.default_rng(seed).integers(-3, 4, 9).astype(float)
    kept = most_popular(degrees, count)
    assert len(kept) == count
    assert (np.diff(kept) > 0).all()
    left = np.setdiff1d(np.arange(9), kept)
    assert count == 9 or degrees[kept].min() >= degrees[left].max()


def captured(act: Callable[[], Any]) -> Iterator[float]:
    """The multipliers of all mechanisms that released something."""
    found: list[float] = []
    whole = Gaussian.release
    with pytest.MonkeyPatch.context() as patch:

        def release(mechanism: Gaussian, *rest: Any, **more: Any) -> Array:
            found.append(mechanism.multiplier)
            return whole(mechanism, *rest, **more)

        patch.setattr(Gaussian, "release", release)
        act()
    return iter(found)


def test_kept_items_are_those_of_the_released_degrees_and_not_of_the_true_ones() -> None:
    R = random_histories(60, 12, share=0.3, rng=np.random.default_rng(1))
    transcript = Transcript()
    with pytest.MonkeyPatch.context() as patch:
        transcript.watch(patch)
        recommender = fitted(R, epsilon=0.1, delta=1e-4, items=4, method="covariance")
    assert recommender.columns_.tolist() == most_popular(transcript.released[0], 4).tolist()
    assert recommender.columns_.tolist() != most_popular(transcript.values[0], 4).tolist()
    assert transcript.values[1].shape == (4, 4)


def test_nothing_is_released_without_noise_in_a_private_fit() -> None:
    R = random_histories(60, 12, share=0.3, rng=np.random.default_rng(1))
    budget = Budget(1.0, 1e-4)
    multipliers = list(captured(lambda: fitted(R, epsilon=1.0, delta=1e-4, items=4)))
    assert len(multipliers) == 2
    assert min(multipliers) >= 1 / budget.mu
