"""What a federated fit guarantees, against whom, and what it was charged: in words, in the ledgers and in the model file."""

import math
from typing import Any

import numpy as np
import pytest

from eigenveil import FederatedPCA
from eigenveil.core.accounting import Budget
from eigenveil.errors import QuorumLost
from eigenveil.linalg import sines
from eigenveil.runtimes.local import Faults
from estimators.sites_of_rows import (
    component_rounds,
    cut,
    federated,
    off,
    pooled_answer,
    pooled_rows,
    private_federated,
    same_bits,
)

ROWS = pooled_rows()
SITES = np.array_split(ROWS, 4)
METHODS = ["krylov", "power", "fedpower", "covariance", "merge", "uda", "wda"]
SUMS = METHODS[:4]
PAIR: dict[str, Any] = {"trust": "both", "epsilon": (4.0, 0.5)}


@pytest.mark.parametrize("method", METHODS[4:])
def test_averages_put_the_noise_at_the_sites_with_any_trust_and_say_so(method: str) -> None:
    pca = private_federated(method=method, trust="hub").fit(SITES)
    assert set(pca.ledgers_) == set(pca.sites_)
    assert "Only the site itself sees its rows" in pca.guarantee_.to_text()
    assert pca.model_.settings["trust"] == "site"


@pytest.mark.parametrize("method", SUMS)
def test_noise_in_both_places_makes_two_guarantees(method: str) -> None:
    pca = private_federated(method=method, random_state=None, **PAIR).fit(SITES)
    guarantee = pca.guarantee_
    assert guarantee.epsilon == 0.5
    assert "the guarantee is (4, 1e-06)" in guarantee.to_text()
    assert "Against the hub" in guarantee.to_text()
    assert "No one but the hub reads what sites send. Against other readers, only the guarantee against" in guarantee.to_text()
    assert set(pca.ledgers_) == {"hub", *pca.sites_}
    pair = private_federated(trust="both", epsilon=[4.0, 0.5], delta=(1e-5, 1e-7)).fit(SITES).guarantee_
    assert (pair.epsilon, pair.delta) == (0.5, 1e-7)
    assert "the guarantee is (4, 1e-05)" in pair.to_text()


def test_more_noise_at_the_sites_than_was_asked_of_the_hub_is_guaranteed() -> None:
    for several in (1, 2):
        pca = private_federated(trust="both", epsilon=(0.5, 4.0), person_sites=several).fit(SITES)
        assert pca.guarantee_.epsilon == 0.5
        # The lines below a guarantee add up to no more than it.
        assert pca.guarantee_.mu <= Budget(0.5, 1e-6).mu * (1 + 1e-9)


@pytest.mark.parametrize("method", [*METHODS, "dr-svd"])
def test_without_epsilon_there_is_no_guarantee(method: str) -> None:
    pca = federated(method=method).fit(SITES)
    assert pca.guarantee_.epsilon is None
    assert pca.guarantee_.headline == "No privacy: exact PCA was asked for."
    assert pca.guarantee_.charges == ()
    assert pca.model_.settings["trust"] == "none"
    assert pca.noise_floor_ == 0.0


def test_a_known_seed_is_not_private() -> None:
    for choices in ({}, {"trust": "site"}, PAIR):
        seeded = private_federated(random_state=7, **choices).fit(SITES).guarantee_
        assert not seeded.private
        assert seeded.headline.startswith("NOT PRIVATE (known seed)")
        fresh = private_federated(random_state=None, **choices).fit(SITES).guarantee_
        assert fresh.private
        assert "NOT PRIVATE" not in fresh.to_text()


def test_noise_is_fresh_without_a_seed() -> None:
    for choices in ({}, {"trust": "site"}, PAIR):
        one, other = (private_federated(random_state=None, **choices).fit(SITES) for _ in range(2))
        assert not same_bits(one, other)


def test_every_place_has_noise_of_its_own() -> None:
    """Equal sites that drew equal noise would send equal parts."""
    sent: list[Any] = []

    def heard(message: Any) -> Any:
        if message.receiver == "hub":
            sent.append(message.body.arrays[0])
        return [message]

    private_federated(trust="site", center=None, neighbours="zero-out", method="covariance", faults=Faults(meddle=heard)).fit(
        [SITES[0]] * 3
    )
    assert len(sent) == 3
    assert len({array.tobytes() for array in sent}) == 3


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("trust", ["hub", "site", "both"])
@pytest.mark.parametrize("several", [1, 3])
def test_charges_add_up(method: str, trust: str, several: int) -> None:
    choices: dict[str, Any] = {"method": method, "trust": trust, "person_sites": several}
    if trust == "both":
        if method in METHODS[4:]:
            return
        choices["epsilon"] = (2.0, 1.0)
    pca = private_federated(**choices).fit(SITES)
    at_sites = trust != "hub" or method in METHODS[4:]
    mu = Budget(1.0, 1e-6).mu
    lines = [charge for round_ in pca.transcript_ for charge in round_.charges]
    own = [*pca.ledgers_["site 0"].charges] if at_sites else []
    hub = [*pca.ledgers_["hub"].charges] if "hub" in pca.ledgers_ else []
    assert sorted(lines, key=repr) == sorted(own + hub, key=repr)
    assert all(round_.charges for round_ in pca.transcript_)
    if hub:
        assert pca.guarantee_.charges == tuple(hub)
    for ledger in pca.ledgers_.values():
        # A search for the mean that ends early leaves its share to the components, so all is spent in the end.
        assert ledger.spent_mu == pytest.approx(ledger.budget.mu, rel=1e-9)
        assert ledger.spent_mu <= ledger.budget.mu * (1 + 1e-12)
    assert pca.guarantee_.mu == pytest.approx(mu, rel=1e-9)
    if at_sites and trust != "both":
        assert pca.ledgers_["site 0"].spent_mu * math.sqrt(several) == pytest.approx(mu, rel=1e-9)


@pytest.mark.parametrize("trust", ["hub", "site"])
def test_the_budget_is_reserved_for_the_most_rounds(trust: Any) -> None:
    """Stopping early leaves something over, and says nothing that was not released."""
    choices: dict[str, Any] = {"method": "power", "rounds": 8, "trust": trust, "oversample": 0, "n_components": 1}
    whole = private_federated(**choices).fit(SITES)
    early = private_federated(tolerance=0.9, **choices).fit(SITES)
    assert component_rounds(whole) == 8 > component_rounds(early)
    for name, ledger in early.ledgers_.items():
        assert ledger.spent_mu < whole.ledgers_[name].spent_mu
        assert ledger.charges == whole.ledgers_[name].charges[: len(ledger.charges) - 1] + ledger.charges[-1:]
    assert early.guarantee_.epsilon == whole.guarantee_.epsilon == 1.0


@pytest.mark.parametrize(
    ("epsilon", "delta", "several"),
    [
        (epsilon, delta, (1, 2, 4)[(row + column) % 3])
        for row, epsilon in enumerate((1e-4, 1e-2, 1.0, 30.0, 1e4))
        for column, delta in enumerate((1e-12, 1e-3, 0.1))
    ],
)
def test_every_budget_can_be_spent(epsilon: float, delta: float, several: int) -> None:
    for trust in ("hub", "site", "both"):
        pair = (epsilon, epsilon) if trust == "both" else epsilon
        pca = private_federated(epsilon=pair, delta=delta, trust=trust, person_sites=several, method="covariance").fit(SITES)
        assert pca.guarantee_.mu == pytest.approx(Budget(epsilon, delta).mu, rel=1e-9)


@pytest.mark.parametrize("rounds", [1600, 10_000])
def test_many_rounds_can_be_paid_for_or_are_refused_in_time(rounds: int) -> None:
    for trust in ("hub", "site"):
        said = ""
        try:
            private_federated(1, method="power", oversample=0, trust=trust, rounds=rounds).fit([rows[:5] for rows in SITES])
        except ValueError as error:
            said = str(error)[:300]
        # Before anything is released, and without a list of all shares.
        assert said == "" or ("rounds" in said and len(said) < 300), trust


@pytest.mark.parametrize("trust", ["hub", "site", "both"])
@pytest.mark.parametrize("method", METHODS)
def test_with_many_people_the_private_answer_is_nearly_the_exact_one(method: str, trust: Any) -> None:
    if trust == "both" and method in METHODS[4:]:
        return
    values = pooled_rows(20_000)
    sites = cut(values, 9000, 7000)
    epsilon = (30.0, 20.0) if trust == "both" else 20.0
    pca = private_federated(method=method, trust=trust, epsilon=epsilon, row_bound=20.0).fit(sites)
    basis, variances = pooled_answer(values, 2)
    assert off(pca, basis) < (0.05 if method not in ("uda", "wda") else 0.15)
    assert pca.explained_variance_ == pytest.approx(variances, rel=0.1)
    assert pca.mean_ == pytest.approx(values.mean(axis=0), abs=0.15)
    assert pca.explained_variance_ratio_.sum() <= 1 + 1e-12


@pytest.mark.parametrize("method", METHODS)
def test_noise_alone_is_an_answer_too(method: str) -> None:
    """Of two columns, noise on a matrix of zeros leaves no direction of positive weight in one fit of six: it is paid for."""
    for seed in range(12):
        pca = private_federated(1, method=method, trust="site", center=None, random_state=seed).fit([np.zeros((3, 2))])
        assert np.isfinite(pca.components_).all()
        assert np.isfinite(pca.explained_variance_).all()


def test_noise_in_both_places_costs_no_more_than_the_larger() -> None:
    """The hub adds only what the site of a person has not added already: one site, and the noise is that of one place."""
    zeros = [np.zeros((5, 50))]
    choices: dict[str, Any] = {"method": "covariance", "center": None, "neighbours": "zero-out", "row_bound": 1.0}
    alone = private_federated(50, epsilon=0.5, **choices).fit(zeros)
    both = private_federated(50, **(choices | PAIR)).fit(zeros)
    # Both cover what is rounded on the way, which is more where sites round, too: a part in a thousand at most.
    assert both.noise_floor_ == pytest.approx(alone.noise_floor_, rel=1e-3)
    energy = [float(np.square(np.square(pca.singular_values_)).sum()) for pca in (alone, both)]
    # Half of the eigenvalues are negative and cut: sums of some 600 squares, which vary by a tenth or so.
    assert energy[1] == pytest.approx(energy[0], rel=0.4)


def test_nobody_pays_twice_for_a_resumed_round() -> None:
    for trust in ("hub", "site"):
        pca = private_federated(trust=trust, method="power", faults=Faults(dies={"site 1": 3}))
        with pytest.raises(QuorumLost, match="site 1"):
            pca.fit(SITES)
        pca.faults = None
        pca.resume()
        whole = private_federated(trust=trust, method="power").fit(SITES)
        assert {name: ledger.charges for name, ledger in pca.ledgers_.items()} == {
            name: ledger.charges for name, ledger in whole.ledgers_.items()
        }
        assert sines(pca.components_.T, whole.components_.T).max() < 1e-9


def test_rows_put_in_place_of_others_are_not_paid_for_twice() -> None:
    """A site whose rows are in what was released cannot become another; with those it has it goes on, and nobody pays twice."""
    pca = private_federated(trust="site", method="covariance", faults=Faults(dies={"site 1": 1}), center=None)
    with pytest.raises(QuorumLost):
        pca.fit(SITES)
    pca.faults = None
    with pytest.raises(ValueError, match="site 1 has been counted"):
        pca.resume({"site 1": SITES[1][:50]})
    with pytest.raises(ValueError, match="site 0 was not missing"):
        pca.resume({"site 0": SITES[1][:50]})
    pca.resume()
    mu = Budget(1.0, 1e-6).mu
    assert all(ledger.spent_mu <= mu * (1 + 1e-9) for ledger in pca.ledgers_.values())
    with pytest.raises(ValueError, match="no site 'Oslo'"):
        lost = private_federated(faults=Faults(dies={"site 1": 0}))
        try:
            lost.fit(SITES)
        except QuorumLost:
            lost.resume({"Oslo": SITES[0]})


def test_sites_that_never_came_are_not_counted_where_counts_are_public() -> None:
    rng = np.random.default_rng(2)
    sites = {f"s{i}": 10.0 + rng.standard_normal((2000, 4)) for i in range(4)}
    pca = FederatedPCA(
        2,
        epsilon=50.0,
        delta=1e-6,
        row_bound=6.0,
        origin=10.0,
        neighbours="zero-out",
        quorum=2,
        faults=Faults(dies={"s0": 0, "s1": 0}),
        random_state=0,
    ).fit(sites)
    assert pca.mean_ == pytest.approx(np.full(4, 10.0), abs=0.2)
    assert pca.explained_variance_ == pytest.approx([1.0, 1.0], abs=0.15)


@pytest.mark.parametrize(
    "options",
    [
        {"method": "power", "participation": ("without-replacement", 2)},
        {"method": "fedpower", "participation": ("without-replacement", 2), "trust": "site"},
        {"method": "fedpower", "trust": "site", "local_steps": 4},
        {"method": "merge", "trust": "site"},
        {"method": "krylov"},
        {"method": "covariance", "trust": "site"},
    ],
    ids=str,
)
def test_noise_alone_stays_below_the_floor(options: dict[str, Any]) -> None:
    sites = [np.zeros((30, 40)) for _ in range(10)]
    given: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "row_bound": 1.0, "center": None, "random_state": 3}
    pca = FederatedPCA(3, **{**given, **options}).fit(sites)
    assert pca.explained_variance_[0] <= 1.15 * pca.noise_floor_
