"""Histories at many sites: every trust has the same exact answer, sites may go, the network may fail, and a hub may lie."""

import math
import warnings
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from eigenveil.core.accounting import Budget, epsilon_of
from eigenveil.errors import ProtocolError, QuorumLost
from eigenveil.linalg import Array, sines
from eigenveil.protocols.messages import Ask, Message
from eigenveil.recommend import PrivateRecommender
from eigenveil.runtimes.local import Faults
from recommend.histories_of_users import tastes

USERS, ITEMS, RANK = 240, 18, 3
R = tastes(USERS, ITEMS, groups=RANK, rng=np.random.default_rng(0))
CUTS = [0, 50, 110, 111, 180, USERS]
SITES = [R[low:high] for low, high in pairwise(CUTS)]
NAMED = {f"shop {at}": held for at, held in enumerate(SITES)}
ITEM_CHOICES: list[Any] = [None, 9, [1, 2, 5, 7, 11, 13]]


def recommender(**choices: Any) -> PrivateRecommender:
    """Exact and with a fixed seed."""
    return PrivateRecommender(**({"n_components": RANK, "epsilon": None, "random_state": 0} | choices))


def private(**choices: Any) -> PrivateRecommender:
    """With a budget, a fixed seed, and no complaint of too much noise."""
    return recommender(**({"epsilon": 3.0, "delta": 1e-4, "on_noise": "warn"} | choices))


def fit(model: PrivateRecommender, held: Any) -> PrivateRecommender:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return model.fit(held)


def off(one: PrivateRecommender, other: PrivateRecommender) -> float:
    """The largest sine between two spaces of the same items."""
    assert one.columns_.tolist() == other.columns_.tolist()
    return float(sines(one.components_.T, other.components_.T).max())


def pooled_basis(held: Any, columns: Any = None, *, least: int = 1, weights: Any = 1.0) -> Array:
    """The slow version: normalise, weigh, multiply, diagonalise."""
    dense = held.toarray() if columns is None else held.toarray()[:, columns]
    rows = dense / np.sqrt(np.maximum(dense.sum(axis=1, keepdims=True), least))
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    rows = rows * weights
    rows *= lengths / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300)
    basis: Array = np.linalg.eigh(rows.T @ rows)[1][:, ::-1][:, :RANK]
    return basis


def same_bits(one: PrivateRecommender, other: PrivateRecommender) -> bool:
    names = ("components_", "singular_values_", "columns_", "item_degrees_")
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in names)


@pytest.mark.parametrize("items", ITEM_CHOICES, ids=["all", "kept", "listed"])
@pytest.mark.parametrize("method", ["covariance", "power"])
@pytest.mark.parametrize("normalise", ["filter", "both"])
@pytest.mark.parametrize("trust", ["one matrix", "hub", "site", "masked"])
def test_without_noise_every_trust_finds_the_pooled_space(trust: str, normalise: str, method: str, items: Any) -> None:
    choices = {"method": method, "items": items, "min_degree": 4, "item_degrees": "private"}
    choices["normalise"] = normalise
    plain = fit(recommender(**choices), R)
    model = plain if trust == "one matrix" else fit(recommender(trust=trust, **choices), SITES)
    assert model.item_degrees_ is not None and plain.item_degrees_ is not None
    weights = 1.0 if normalise == "filter" else 1 / np.sqrt(model.item_degrees_)
    basis = pooled_basis(R, model.columns_, least=4, weights=weights)
    assert sines(model.components_.T, basis).max() <= 1e-6
    assert off(model, plain) <= 1e-6
    np.testing.assert_allclose(model.item_degrees_, plain.item_degrees_, rtol=1e-6)
    np.testing.assert_allclose(model.singular_values_, plain.singular_values_, rtol=1e-5)
    assert not model.guarantee_.private
    assert model.ledgers_ == {}


@pytest.mark.parametrize("items", ITEM_CHOICES, ids=["all", "kept", "listed"])
@pytest.mark.parametrize("method", ["covariance", "power"])
def test_a_curator_of_sites_releases_what_a_curator_of_all_does(method: str, items: Any) -> None:
    """The same seed, the same noise at the hub, and sums that differ by rounding to a grid alone."""
    choices = {"method": method, "items": items, "item_degrees": "private", "unit": "item", "min_degree": 4}
    one, several = fit(private(**choices), R), fit(private(**choices), SITES)
    assert off(one, several) <= 1e-3
    assert one.item_degrees_ is not None and several.item_degrees_ is not None
    np.testing.assert_allclose(one.item_degrees_, several.item_degrees_, rtol=1e-3)
    assert one.guarantee_.charges == several.guarantee_.charges


@pytest.mark.parametrize("trust", ["hub", "site", "masked"])
def test_names_storage_and_the_order_of_sites(trust: str) -> None:
    plain = fit(recommender(trust=trust), SITES)
    named = fit(recommender(trust=trust), NAMED)
    mixed = fit(recommender(trust=trust), [SITES[0].toarray(), *(sp.coo_matrix(s) for s in SITES[1:])])
    turned = fit(recommender(trust=trust), SITES[::-1])
    assert set(named.sites_) == set(NAMED)
    assert max(off(plain, other) for other in (named, mixed, turned)) <= 1e-6


def test_every_user_may_be_a_site() -> None:
    few = R[:12]
    model = fit(recommender(trust="masked", method="covariance"), [few[[at]] for at in range(12)])
    assert sines(model.components_.T, pooled_basis(few)).max() <= 1e-6


@pytest.mark.parametrize("trust", ["hub", "site", "masked"])
def test_a_site_without_users_and_one_with_empty_histories_change_nothing(trust: str) -> None:
    nobody, nothing = sp.csr_array((0, ITEMS)), sp.csr_array((4, ITEMS))
    plain = fit(recommender(trust=trust), SITES)
    more = fit(recommender(trust=trust), [*SITES, nobody, nothing])
    assert off(plain, more) <= 1e-6


# Guarantee and ledgers.


@pytest.mark.parametrize("unit", ["user", "item"])
@pytest.mark.parametrize("trust", ["hub", "site", "masked"])
def test_ledgers_stand_where_the_noise_does(trust: str, unit: str) -> None:
    model = fit(private(trust=trust, unit=unit, item_degrees="private", random_state=None), NAMED)
    assert set(model.ledgers_) == ({"hub"} if trust == "hub" else set(NAMED))
    for ledger in model.ledgers_.values():
        assert epsilon_of(ledger.spent_mu, 1e-4) <= 3.0
        assert ledger.spent_mu > 0.95 * Budget(3.0, 1e-4).mu
        assert [charge.label for charge in ledger.charges] == ["item degrees", "covariance"]
    guarantee, words = model.guarantee_, model.guarantee_.to_text()
    assert (guarantee.epsilon, guarantee.delta, guarantee.private) == (3.0, 1e-4, True)
    assert guarantee.charges == next(iter(model.ledgers_.values())).charges
    assert ("single interaction" in guarantee.unit) == (unit == "item")
    assert "joint differential privacy" in words
    wanted = {"hub": "raw", "site": "every number that leaves a site", "masked": "even if it breaks the protocol"}[trust]
    assert wanted in words


def test_masked_needs_sites_and_survivors_that_can_be() -> None:
    for held in (R, [R]):
        with pytest.raises(ValueError, match="at least 2 sites"):
            private(trust="masked").fit(held)
    for wrong in ({"survivors": 6}, {"survivors": 0}, {"colluders": 0}, {"colluders": 5}, {"quorum": 3}, {"survivors": 1}):
        with pytest.raises(ValueError, match=r"survivors|colluders|quorum"):
            private(trust="masked", **wrong).fit(SITES)
    for trust in ("hub", "site"):
        for wrong in ({"survivors": 3}, {"colluders": 2}):
            with pytest.raises(ValueError, match="is for trust='masked'"):
                private(trust=trust, **wrong).fit(SITES)


# Sites that go, and a network that fails.


@pytest.mark.parametrize("private_fit", [False, True])
@pytest.mark.parametrize("trust", ["hub", "site", "masked"])
def test_a_lost_site_is_missed_and_the_rest_answers(trust: str, private_fit: bool) -> None:
    enough = {"survivors": 4} if trust == "masked" else {"quorum": 4}
    choices = {"trust": trust, "method": "covariance", "faults": Faults(dies={"site 3": 0}), **enough}
    model = fit((private if private_fit else recommender)(**choices), SITES)
    assert "site 3" in model.transcript_[-1].missing
    if private_fit:
        assert all(epsilon_of(ledger.spent_mu, 1e-4) <= 3.0 for ledger in model.ledgers_.values())
        return
    left = sp.vstack([held for at, held in enumerate(SITES) if at != 3]).tocsr()
    assert sines(model.components_.T, pooled_basis(left)).max() <= 1e-6


@pytest.mark.parametrize("trust", ["hub", "site", "masked"])
def test_a_lost_quorum_is_an_error_that_names_the_missing_and_says_what_was_spent(trust: str) -> None:
    model = private(trust=trust, faults=Faults(dies={"site 2": 0}), method="covariance")
    with warnings.catch_warnings(), pytest.raises(QuorumLost, match="site 2"):
        warnings.simplefilter("ignore", UserWarning)
        model.fit(SITES)
    assert not hasattr(model, "space_")
    assert not model.__sklearn_is_fitted__()
    spent = model.unfinished_.ledgers
    assert all(epsilon_of(ledger.spent_mu, 1e-4) <= 3.0 for ledger in spent.values())
    if trust == "hub":
        # The sum was never there to be released.
        assert not spent["hub"].charges


def test_a_site_that_goes_between_the_stages_of_an_exact_fit_is_not_half_counted() -> None:
    faults = Faults(dies={"site 1": 1})
    model = fit(recommender(items=9, quorum=4, method="covariance", faults=faults), SITES)
    left = sp.vstack([held for at, held in enumerate(SITES) if at != 1]).tocsr()
    assert sines(model.components_.T, pooled_basis(left, model.columns_)).max() <= 1e-6
    alone = fit(recommender(items=9, method="covariance"), left)
    assert model.columns_.tolist() == alone.columns_.tolist()


@pytest.mark.parametrize("faults", [Faults(delay=1.0), Faults(delay=1.0, duplicate=0.3), Faults(loss=0.1)], ids=repr)
@pytest.mark.parametrize("trust", ["hub", "site", "masked"])
def test_a_bad_network_gives_the_same_answer_or_a_named_error(trust: str, faults: Faults) -> None:
    choices = {"trust": trust, "items": 9, "item_degrees": "private", "unit": "item", "method": "covariance"}
    quiet = fit(private(**choices), SITES)
    try:
        rough = fit(private(faults=faults, **choices), SITES)
    except ProtocolError:
        assert faults.loss > 0
        return
    assert same_bits(quiet, rough)


def meddled(change: Any) -> Faults:
    """A hub whose questions about components are changed on the way out."""

    def meddle(message: Message) -> Iterator[Message]:
        body = message.body
        if isinstance(body, Ask) and body.question.stage == "components":
            question = replace(body.question, arrays=change(body.question.arrays))
            message = replace(message, body=replace(body, question=question))
        yield message

    return Faults(meddle=meddle)


LIES: dict[str, Any] = {
    "out of range": lambda arrays: (arrays[0] + ITEMS, *arrays[1:]),
    "negative": lambda arrays: (arrays[0] - ITEMS, *arrays[1:]),
    "repeated": lambda arrays: (np.zeros(len(arrays[0])), *arrays[1:]),
    "too many": lambda arrays: (np.arange(float(ITEMS)), *arrays[1:]),
    "too few": lambda arrays: (arrays[0][:2], *arrays[1:]),
    "halves": lambda arrays: (arrays[0] + 0.5, *arrays[1:]),
    "not numbers": lambda arrays: (np.full(len(arrays[0]), np.nan), *arrays[1:]),
    "stretched": lambda arrays: (*arrays[:-1], 2 * arrays[-1]),
    "without items": lambda arrays: arrays[1:],
    "weights that nobody asked for": lambda arrays: (arrays[0], np.ones(9), *arrays[2:]),
}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("trust", ["site", "masked"])
@pytest.mark.filterwarnings("ignore")
def test_a_hub_that_asks_what_it_should_not_gets_nothing_for_it(trust: str, lie: str) -> None:
    model = private(trust=trust, items=9, method="power", faults=meddled(LIES[lie]))
    with pytest.raises((ProtocolError, ValueError)):
        model.fit(SITES)
    assert not hasattr(model, "space_")
    for ledger in model.unfinished_.ledgers.values():
        # What was asked for rightly, before the lie, was paid for; nothing else was given.
        assert [charge.label for charge in ledger.charges] == ["item degrees"]


WEIGHT_LIES: dict[str, Any] = {
    "zero": lambda weights: 0 * weights,
    "negative": lambda weights: -weights,
    "not numbers": lambda weights: np.full(len(weights), np.nan),
    "too large": lambda weights: 1e200 * weights,
    "too many": lambda weights: np.ones(ITEMS),
    "none": lambda weights: np.empty(0),
}


@pytest.mark.parametrize("lie", WEIGHT_LIES)
@pytest.mark.parametrize("trust", ["site", "masked"])
@pytest.mark.filterwarnings("ignore")
def test_a_hub_that_weighs_matches_expectation_not_gets_nothing_for_it(trust: str, lie: str) -> None:
    faults = meddled(lambda arrays: (arrays[0], WEIGHT_LIES[lie](arrays[1]), *arrays[2:]))
    model = private(trust=trust, items=9, item_degrees="private", normalise="both", faults=faults)
    with pytest.raises((ProtocolError, ValueError)):
        model.fit(SITES)
    for ledger in model.unfinished_.ledgers.values():
        assert [charge.label for charge in ledger.charges] == ["item degrees"]


def test_what_sites_do_not_agree_on_is_refused() -> None:
    with pytest.raises(ValueError, match="site 1 has 17 items, but site 0 has 18"):
        recommender().fit([R, R[:, :17]])
    with pytest.raises(ValueError, match="at least one site"):
        recommender().fit([])
    with pytest.raises(ValueError, match="names of sites must be text"):
        recommender().fit({1: R})
    with pytest.raises(ValueError, match="site 1 must be binary"):
        recommender().fit([R, 2 * R])


def test_sites_with_other_names_of_items_are_refused() -> None:
    from eigenveil.recommend import Interactions

    names = tuple(f"i{at}" for at in range(ITEMS))
    one, other = Interactions(R, items=names), Interactions(R, items=names[::-1])
    with pytest.raises(ValueError, match="other items"):
        recommender().fit([one, other])
    with pytest.raises(ValueError, match="does not name its items"):
        recommender().fit([one, R])
    assert fit(recommender(), [one, one]).items_ == names


@pytest.mark.parametrize("trust", ["hub", "site"])
def test_quorum_is_a_number_or_a_share(trust: str) -> None:
    for quorum in (4, 0.8):
        model = fit(recommender(trust=trust, quorum=quorum, faults=Faults(dies={"site 0": 0})), SITES)
        assert len(model.transcript_[-1].answered) == 4
    for wrong in (0, 6, 1.5, -1, "most", math.nan):
        with pytest.raises(ValueError, match="quorum"):
            recommender(trust=trust, quorum=wrong).fit(SITES)


def test_noise_at_every_site_is_more_than_a_curators() -> None:
    """Noise in five places is sqrt(5) times as large in the sum: seen in how far the space is off, and in what it says."""
    curator, site = (fit(private(trust=trust, method="covariance"), SITES) for trust in ("hub", "site"))
    basis = pooled_basis(R)
    gaps = [float(sines(model.components_.T, basis).max()) for model in (curator, site)]
    assert gaps[0] < gaps[1]
