"""The recommender's planner: more users or a larger budget never hurt, and what is hopeless is refused before it is paid for."""

import math
import warnings
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from eigenveil.core.accounting import Budget
from eigenveil.core.ledger import Ledger
from eigenveil.core.mechanism import Gaussian
from eigenveil.core.unit import Neighbours
from eigenveil.recommend import PrivateRecommender, evaluate, split
from eigenveil.recommend.plan import ItemTerms, plan_items

GOWALLA = ItemTerms(
    dim=41000,
    n_kept=41000,
    rank=32,
    users=30000,
    budget=Budget(3.0, 1e-6),
    neighbours=Neighbours.ZERO_OUT,
    min_degree=1,
    method="auto",
    degrees=False,
)


@st.composite
def terms(draw: st.DrawFn) -> ItemTerms:
    """What may be asked for, from tiny to huge."""
    dim = draw(st.sampled_from([2, 10, 100, 1000, 10**4, 10**5]))
    kept = draw(st.sampled_from([dim, max(2, dim // 2), max(2, dim // 20)]))
    return ItemTerms(
        dim=dim,
        n_kept=kept,
        rank=draw(st.integers(1, min(kept, 64))),
        users=draw(st.sampled_from([1, 10, 1000, 10**5, 10**7])),
        budget=Budget(draw(st.sampled_from([0.01, 0.3, 1.0, 10.0, 50.0])), draw(st.sampled_from([1e-9, 1e-4, 0.1]))),
        neighbours=draw(st.sampled_from([Neighbours.ZERO_OUT, Neighbours.REPLACE_ONE, Neighbours.INTERACTION])),
        min_degree=draw(st.sampled_from([1, 5, 20])),
        method=draw(st.sampled_from(["auto", "covariance", "power"])),
        degrees=draw(st.booleans()) or kept < dim,
        history=draw(st.sampled_from([None, 1.0, 30.0])),
        noise_inflation=draw(st.sampled_from([1.0, 1.0, 30.0])),
    )


@settings(max_examples=300)
@given(asked=terms(), factor=st.sampled_from([1.5, 2, 100]))
def test_more_users_and_a_larger_budget_never_hurt(asked: ItemTerms, factor: float) -> None:
    assert asked.users is not None and asked.budget is not None
    one = plan_items(asked)
    more = replace(asked, users=math.ceil(factor * asked.users))
    bolder = replace(asked, budget=Budget(factor * asked.budget.epsilon, asked.budget.delta))
    laxer = replace(asked, budget=Budget(asked.budget.epsilon, min(0.5, factor * asked.budget.delta)))
    quieter = replace(asked, noise_inflation=asked.noise_inflation / factor)
    assert one.expected is not None
    for other in map(plan_items, (more, bolder, laxer, quieter)):
        assert other.expected is not None
        # The same fit, of which more is found.
        assert (other.method, other.width, other.shares) == (one.method, one.width, one.shares)
        assert other.expected.share >= one.expected.share - 1e-12
        assert other.expected.beyond >= one.expected.beyond - 1e-12
        assert other.expected.above >= one.expected.above
        assert one.hopeless or not other.hopeless


@settings(max_examples=200)
@given(asked=terms())
def test_a_plan_can_be_carried_out(asked: ItemTerms) -> None:
    plan = plan_items(asked)
    assert plan.expected is not None
    # Popularity is found before what lies beyond it.
    assert 0 <= plan.expected.beyond <= plan.expected.share + 1e-12 <= 1 + 1e-9
    assert 0 <= plan.expected.above <= asked.rank
    assert asked.rank <= plan.width <= asked.n_kept
    assert min(plan.shares) > 0
    assert sum(plan.shares) <= 1 + 1e-12
    assert (plan.degrees_share > 0) == asked.degrees
    assert plan.degrees_share < 1
    assert plan.rounds == len(plan.shares) == plan.for_sites().rounds
    assert asked.method == "auto" or plan.method == asked.method
    # Whatever is not refused promises more than popularity: no fit says "0% of what lies beyond popularity".
    assert plan.hopeless == (plan.expected.beyond < 0.05)
    # One interaction is at most what a whole user is, but for what entries on a grid add to it: 2^-35 for each item.
    if asked.neighbours is not Neighbours.INTERACTION and asked.method == "covariance":
        weaker = plan_items(replace(asked, neighbours=Neighbours.INTERACTION)).expected
        assert weaker is not None
        # But for what rounding a history adds to the sensitivity of one interaction: dim 2^-35.
        assert weaker.share >= plan.expected.share - max(1e-8, asked.dim * 2.0**-35)


@settings(max_examples=100)
@given(asked=terms())
def test_where_nothing_is_known_or_asked_for_nothing_is_expected(asked: ItemTerms) -> None:
    for unknown in (replace(asked, users=None), replace(asked, budget=None)):
        plan = plan_items(unknown)
        assert plan.expected is None
        assert not plan.hopeless
        assert plan.advice == ()
    assert plan_items(replace(asked, budget=None, method="power")).method == "krylov"


def test_pairs_of_items_that_do_not_fit_in_memory_are_not_asked_for() -> None:
    assert plan_items(GOWALLA).method == "power"
    assert plan_items(replace(GOWALLA, dim=1000, n_kept=1000)).method == "covariance"


@settings(max_examples=100)
@given(asked=terms())
def test_what_is_advised_would_do(asked: ItemTerms) -> None:
    """Each line of advice, carried out, is expected to find more than what was asked for."""
    plan = plan_items(asked)
    assert asked.users is not None and asked.budget is not None and plan.expected is not None
    for advice in plan.advice:
        change = dict(advice.change)
        other = replace(asked, users=advice.users * asked.users)
        if "epsilon" in change:
            other = replace(other, budget=Budget(change.pop("epsilon"), asked.budget.delta))
        if "n_components" in change:
            other = replace(other, rank=change.pop("n_components"))
        if "unit" in change:
            assert change.pop("unit") == "item"
            other = replace(other, neighbours=Neighbours.INTERACTION)
        if "items" in change:
            other = replace(other, n_kept=change.pop("items"), degrees=True)
        assert not change
        assert all(f"{name}={value!r}" in str(advice) for name, value in advice.change.items())
        found = plan_items(other)
        assert found.expected is not None
        assert not found.hopeless
        assert found.expected.beyond > plan.expected.beyond


# The same, met in a fit.


@pytest.fixture
def untouched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was charged or released while the test ran."""
    seen: list[str] = []
    for owner, name in ((Ledger, "spend"), (Gaussian, "release")):
        whole = getattr(owner, name)

        def noted(self: Any, *rest: Any, whole: Any = whole, name: str = name, **more: Any) -> Any:
            seen.append(name)
            return whole(self, *rest, **more)

        monkeypatch.setattr(owner, name, noted)
    return seen


def histories(users: int, items: int) -> sp.csr_array:
    """Users with one item each: the planner does not look."""
    return sp.csr_array((np.ones(users), np.arange(users) % items, np.arange(users + 1)), shape=(users, items))


def test_a_fit_like_gowalla_is_refused_before_anything_is_spent(untouched: list[str]) -> None:
    assert plan_items(GOWALLA).hopeless
    model = PrivateRecommender(32, epsilon=3.0)
    held = histories(30000, 41000)
    for table in (held, [held[:10000], held[10000:]]):
        with pytest.raises(ValueError, match="Nothing was spent") as caught:
            model.fit(table)
        # What would do, as far as can be told: fewer items among it.
        assert "items=" in str(caught.value)
        assert "on_noise='warn'" in str(caught.value)
    assert not untouched
    assert not hasattr(model, "ledgers_")
    assert not hasattr(model, "unfinished_")


@pytest.mark.parametrize("trust", ["hub", "site", "masked"])
def test_a_hopeless_fit_goes_on_with_a_warning_where_that_is_asked_for(trust: str, untouched: list[str]) -> None:
    held = histories(60, 300)
    sites: Any = held if trust == "hub" else [held[:20], held[20:40], held[40:]]
    with pytest.raises(ValueError, match="Nothing was spent"):
        PrivateRecommender(4, epsilon=0.5, delta=1e-4, trust=trust).fit(sites)  # type: ignore[arg-type]
    assert not untouched
    with pytest.warns(UserWarning, match="would drown"):
        model = PrivateRecommender(4, epsilon=0.5, delta=1e-4, trust=trust, on_noise="warn").fit(sites)  # type: ignore[arg-type]
    assert model.plan_.hopeless
    assert untouched


def between() -> tuple[int, ItemTerms]:
    """So many users that a fit is neither hopeless nor good, found without knowing where that begins."""
    asked = ItemTerms(
        dim=200,
        n_kept=200,
        rank=8,
        users=1,
        budget=Budget(1.0, 1e-5),
        neighbours=Neighbours.ZERO_OUT,
        min_degree=1,
        method="auto",
        degrees=False,
    )
    users = 1
    while plan_items(replace(asked, users=users)).hopeless:
        users = math.ceil(1.1 * users)
    return users, replace(asked, users=users)


def test_in_between_there_is_a_warning_and_beyond_it_none() -> None:
    users, asked = between()
    plan = plan_items(asked)
    assert not plan.hopeless
    assert plan.advice
    with pytest.warns(UserWarning, match=r"of 8 directions will be above the noise.*To find more, use"):
        PrivateRecommender(8, epsilon=1.0, delta=1e-5, random_state=0).fit(histories(users, 200))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PrivateRecommender(8, epsilon=1.0, delta=1e-5, random_state=0).fit(histories(30 * users, 200))


def test_noise_of_every_site_is_reckoned_with() -> None:
    held = histories(400, 30)
    sites = [held[at::8] for at in range(8)]
    shares = []
    for trust in ("hub", "masked", "site"):
        choices: dict[str, Any] = {"epsilon": 3.0, "delta": 1e-5, "trust": trust, "on_noise": "warn", "random_state": 0}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            expected = PrivateRecommender(4, **choices).fit(sites).plan_.expected
        assert expected is not None
        shares.append(expected.share)
    assert shares[0] >= shares[1] > shares[2]


def test_what_the_planner_says_does_not_depend_on_histories() -> None:
    rng = np.random.default_rng(0)
    tables = [np.zeros((300, 20)), np.ones((300, 20)), (rng.random((300, 20)) < 0.3).astype(float)]
    plans = []
    for table in tables:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            plans.append(PrivateRecommender(3, epsilon=1.0, delta=1e-5, on_noise="warn", random_state=0).fit(table).plan_)
    assert plans[0] == plans[1] == plans[2]


@pytest.mark.parametrize(("users", "items", "rank"), [(6040, 3706, 16), (6040, 3706, 32), (943, 1682, 8), (1500, 1200, 12)])
@pytest.mark.parametrize("neighbours", ["zero-out", "replace-one", "add-remove"])
def test_a_fit_of_popularity_and_noise_is_refused_before_anything_is_spent(
    users: int, items: int, rank: int, neighbours: str, untouched: list[str]
) -> None:
    """The leading direction would be found, and nothing else: counts release that for less."""
    claim = {"delta": 1e-6, "users_at_least": users} if neighbours == "add-remove" else {}
    model = PrivateRecommender(rank, epsilon=1.0, neighbours=neighbours, **claim)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"0% of what lies beyond popularity.*would work: \d+ items.*Nothing was spent"):
        model.fit(histories(users, items))
    assert not untouched


def artificial(users: int, items: int, length: int, *, genres: int, seed: int) -> sp.csr_array:
    """Users with one or two genres and `length` items each, drawn without replacement by a Zipf popularity."""
    rng = np.random.default_rng(seed)
    popular = (np.arange(1, items + 1) + 5.0) ** -0.7
    of_items, of_users = rng.dirichlet(np.full(genres, 0.05), items), rng.dirichlet(np.full(genres, 0.15), users)
    rates = popular * (0.05 / genres + 0.95 * (of_users @ of_items.T))
    chosen = np.argpartition(rng.exponential(size=rates.shape) / rates, length)[:, :length]
    return sp.csr_array((np.ones(users * length), chosen.ravel(), np.arange(users + 1) * length), shape=(users, items))


@pytest.mark.parametrize(("users", "items", "length"), [(3000, 2000, 60), (1500, 1200, 40), (6000, 1500, 25)])
def test_the_advised_number_of_items_is_among_the_best(users: int, items: int, length: int) -> None:
    """Measured on histories, which the planner never sees."""
    train, test = split(artificial(users, items, length, genres=8, seed=1), rng=np.random.default_rng(2))

    def fitted(kept: int | None) -> PrivateRecommender:
        model = PrivateRecommender(8, epsilon=1.0, items=kept, history=length, on_noise="warn", random_state=3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return model.fit(train)

    plan = fitted(None).plan_
    (advised,) = (advice.change["items"] for advice in plan.advice if "items" in advice.change)
    found = {kept: evaluate(fitted(kept).space_, train, test).recall for kept in (50, 100, 200, 500, items)}
    found[advised] = evaluate(fitted(advised).space_, train, test).recall
    assert found[advised] >= 0.8 * max(found.values())
    # All items, of which the planner despairs, are far worse.
    assert found[items] < 0.85 * found[advised]


def test_where_the_number_of_users_is_private_a_public_claim_is_asked_for(untouched: list[str]) -> None:
    """Whether a fit is refused may not depend on a private number, so neighbours get the same answer."""
    for users in (1, 2, 3000):
        with pytest.raises(ValueError, match="users_at_least is required with neighbours='add-remove'"):
            PrivateRecommender(3, epsilon=1.0, delta=1e-5, neighbours="add-remove").fit(histories(users, 50))
    assert not untouched


@settings(max_examples=30)
@given(
    users=st.integers(1, 400),
    more=st.integers(1, 400),
    claim=st.sampled_from([1, 50, 10**4, 10**9]),
    epsilon=st.sampled_from([0.01, 0.3, 3.0]),
    on_noise=st.sampled_from(["raise", "warn"]),
)
def test_with_a_claim_nothing_said_beforehand_depends_on_the_number_of_users(
    users: int, more: int, claim: int, epsilon: float, on_noise: Literal["raise", "warn"]
) -> None:
    said = []
    for count in (users, users + more):
        model = PrivateRecommender(
            3, epsilon=epsilon, delta=1e-5, neighbours="add-remove", users_at_least=claim, on_noise=on_noise, random_state=0
        )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            try:
                plan: Any = model.fit(histories(count, 50)).plan_
            except ValueError as error:
                plan = str(error)
        # What is said of released numbers may differ: it is paid for.
        said.append((plan, [str(one.message) for one in caught if "Nothing stands out" not in str(one.message)]))
    assert said[0] == said[1]


def test_without_a_forecast_a_fit_has_to_be_asked_for() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Said of released numbers.
        warnings.filterwarnings("ignore", message="Nothing stands out")
        model = PrivateRecommender(3, epsilon=0.1, delta=1e-5, neighbours="add-remove", on_noise="warn")
        assert model.fit(histories(2, 50)).plan_.expected is None
        # An exact filter has no noise to forecast.
        PrivateRecommender(3, epsilon=None, neighbours="add-remove").fit(histories(200, 50))


def test_a_longer_history_and_fewer_items_give_more_hope() -> None:
    for longer in (replace(GOWALLA, history=400.0), replace(GOWALLA, n_kept=500, degrees=True)):
        one, other = plan_items(GOWALLA).expected, plan_items(longer).expected
        assert one is not None and other is not None
        assert other.share >= one.share
        assert other.beyond >= one.beyond
        assert other.share > one.share
