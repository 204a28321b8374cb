"""Quorum: who is missing and when is said exactly, and a fit that is resumed ends in the right answer and pays nothing twice."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from eigenveil import FederatedPCA
from eigenveil.errors import ProtocolError, QuorumLost
from eigenveil.linalg import Array
from eigenveil.protocols.messages import Contribution, Message
from eigenveil.protocols.star.rounds import Sampling, Terms
from eigenveil.runtimes.local import Faults, LocalStar
from protocols.star.companies import PLACES as KINDS_IN_PLACES
from protocols.star.companies import RANK, TASKS, Company, bits, company, finish, layouts, tables
from protocols.star.fault_runs import require_same_space, same_alone, top

pytestmark = pytest.mark.usefixtures("unplanned")
PLACES = pytest.mark.parametrize("place", ["star", "tree of 2", "tree of 3"])


def model(**given: Any) -> FederatedPCA:
    return FederatedPCA(**{"n_components": RANK, "epsilon": None, "center": None, "oversample": 0, "random_state": 3} | given)


def around(place: str) -> dict[str, Any]:
    return {} if place == "star" else {"topology": "tree", "fanout": int(place[-1])}


def dead(*sites: str, after: int = 0) -> Faults:
    return Faults(dies=dict.fromkeys(sites, after))


def require_answer_of(fit: FederatedPCA, sites: Mapping[str, Array]) -> None:
    assert fit.sites_ == tuple(sites)
    rows = np.concatenate(list(sites.values()))
    center = 0.0 if fit.center is None else rows.mean(axis=0)
    require_same_space(fit.components_, top(rows - center), tolerance=1e-7)


@PLACES
@pytest.mark.parametrize("after", [0, 1, 2])
def test_by_default_all_must_answer_and_exactly_the_missing_are_named(place: str, after: int) -> None:
    fit = model(faults=dead("site 1", "site 4", after=after), **around(place))
    with pytest.raises(QuorumLost, match="no answer from site 1, site 4") as lost:
        fit.fit(tables(6))
    assert lost.value.missing == ("site 1", "site 4")
    assert lost.value.round == after
    assert lost.value.stage == f"components {after + 1}"


@PLACES
@pytest.mark.parametrize("center", [None, "private"])
@pytest.mark.parametrize("after", [0, 1, 2, 3])
def test_a_resumed_fit_is_the_fit_that_lost_nobody(place: str, center: Any, after: int) -> None:
    sites, fit = tables(6), model(center=center, faults=dead("site 2", "site 3", after=after), **around(place))
    with pytest.raises(QuorumLost):
        fit.fit(sites)
    fit.faults = None
    fit.resume()
    require_answer_of(fit, sites)
    whole = same_alone(fit, sites)
    assert fit.components_.tobytes() == whole.components_.tobytes()
    assert len(fit.transcript_) == len(whole.transcript_)
    with pytest.raises(ValueError, match="nothing to resume"):
        fit.resume()


@PLACES
@pytest.mark.parametrize(("quorum", "needed"), [(4, 4), (0.6, 4), (1.0, 6), (1, 1), (0.01, 1), (5, 5)])
def test_a_quorum_is_a_number_or_a_share(place: str, quorum: float, needed: int) -> None:
    sites = tables(6)
    for gone in range(6):
        names = [f"site {i}" for i in range(gone)]
        fit = model(quorum=quorum, faults=dead(*names), **around(place))
        if 6 - gone >= needed:
            require_answer_of(fit.fit(sites), {name: sites[name] for name in sites if name not in names})
        else:
            with pytest.raises(QuorumLost) as lost:
                fit.fit(sites)
            assert lost.value.missing == tuple(names)


@PLACES
@pytest.mark.parametrize("after", [1, 2, 3])
def test_an_exact_fit_that_loses_a_counted_site_begins_again_and_says_so(place: str, after: int) -> None:
    sites, faults = tables(6), dead("site 2", after=after)
    fit = model(quorum=4, center="private", faults=faults, **around(place)).fit(sites)
    assert [round_.restarted for round_ in fit.transcript_].count(True) == 1
    again = fit.transcript_[after]
    assert again.restarted
    assert again.missing == ("site 2",)
    assert [round_.number for round_ in fit.transcript_] == list(range(len(fit.transcript_)))
    left = {name: sites[name] for name in sites if name != "site 2"}
    require_answer_of(fit, left)
    assert all("site 2" not in round_.answered for round_ in fit.transcript_[after:])


def test_a_site_lost_before_anything_was_counted_is_no_reason_to_begin_again() -> None:
    fit = model(quorum=4, center="private", faults=dead("site 2")).fit(tables(6))
    assert not any(round_.restarted for round_ in fit.transcript_)


@PLACES
@pytest.mark.parametrize("trust", ["hub", "site", "both"])
def test_a_private_fit_goes_on_without_those_who_left(place: str, trust: str) -> None:
    budget = {"epsilon": (3.0, 2.0) if trust == "both" else 3.0, "delta": 1e-5, "row_bound": 50.0, "trust": trust}
    fit = model(quorum=3, method="power", faults=dead("site 2", after=2), **budget, **around(place)).fit(tables(6))
    assert not any(round_.restarted for round_ in fit.transcript_)
    assert [round_.missing for round_ in fit.transcript_].count(("site 2",)) == 1
    assert fit.sites_ == tuple(f"site {i}" for i in range(6) if i != 2)


@PLACES
@pytest.mark.parametrize("trust", ["hub", "site", "both"])
@pytest.mark.parametrize("after", [0, 1, 3])
def test_resuming_costs_those_who_had_answered_nothing(place: str, trust: str, after: int) -> None:
    budget = {"epsilon": (3.0, 2.0) if trust == "both" else 3.0, "delta": 1e-5, "row_bound": 50.0, "trust": trust}
    fit = model(method="power", faults=dead("site 2", after=after), **budget, **around(place))
    sites = tables(6)
    with pytest.raises(QuorumLost):
        fit.fit(sites)
    before = {name: ledger.charges for name, ledger in fit._federation.ledgers.items()}
    for _ in range(2):
        # Still not there, and nobody pays for asking.
        with pytest.raises(QuorumLost):
            fit.faults = dead("site 2")
            fit.resume()
        assert {name: ledger.charges for name, ledger in fit._federation.ledgers.items()} == before
    fit.faults = None
    fit.resume()
    whole = same_alone(fit, sites)
    assert fit.components_.tobytes() == whole.components_.tobytes()
    for name, ledger in fit.ledgers_.items():
        assert ledger.charges == whole.ledgers_[name].charges


@pytest.mark.parametrize(("kind", "place"), KINDS_IN_PLACES)
def test_a_hub_resumes_with_its_own_parties(kind: str, place: str) -> None:
    def them() -> Company:
        return company(TASKS[kind](), layouts(5)[place], tables(5), mu=0.2, terms=Terms(retries=1))

    one, undisturbed = them(), them()
    runtime = LocalStar(one.hub, [*one.nodes.values(), *one.members.values()], faults=dead("site 3"), seed=0)
    with pytest.raises(QuorumLost) as lost:
        runtime.run()
    assert lost.value.missing == ("site 3",)
    assert one.hub.waiting is None
    assert one.hub.timeout() == []
    charged = {name: ledger.charges for name, ledger in one.ledgers.items()}
    again = LocalStar(one.hub, [*one.nodes.values(), *one.members.values()])
    again.run(resume=True)
    finish(undisturbed)
    assert bits(one.hub.result) == bits(undisturbed.hub.result)
    for name, ledger in one.ledgers.items():
        assert ledger.charges == undisturbed.ledgers[name].charges
        assert ledger.charges[: len(charged[name])] == charged[name]
    assert again.refused == []


def test_there_is_nothing_to_resume_while_nothing_is_lost() -> None:
    them = company(TASKS["covariance"](), layouts(3)["star"], tables(3), terms=Terms(retries=0))
    them.hub.start()
    with pytest.raises(ProtocolError, match="nothing to resume"):
        them.hub.resume()
    with pytest.raises(QuorumLost):
        them.hub.timeout()
    late = Message("site 0", "hub", Contribution(round=0, arrays=(np.eye(5),)))
    with pytest.raises(Exception, match="after it had lost its quorum"):
        them.hub.receive(late)
    assert len(them.hub.resume()) == 3


def test_a_site_put_right_comes_back() -> None:
    sites = tables(4)
    fit = model(faults=dead("site 1", after=1))
    with pytest.raises(QuorumLost):
        fit.fit({**sites, "site 1": sites["site 1"]})
    fit.faults = None
    fit.resume({"site 1": sites["site 1"]})
    require_answer_of(fit, sites)


@pytest.mark.parametrize("scheme", ["with-replacement", "without-replacement"])
@pytest.mark.parametrize("trust", [None, "hub", "site"])
def test_drawn_sites_that_are_missing_are_left_out_of_their_round_alone(scheme: str, trust: str | None) -> None:
    budget = {} if trust is None else {"epsilon": 3.0, "delta": 1e-5, "row_bound": 50.0, "trust": trust}
    more: dict[str, Any] = {"neighbours": "zero-out"} if trust is not None else {}
    settings: dict[str, Any] = {"method": "power", "rounds": 8, "participation": (scheme, 4), "quorum": 1, **budget, **more}
    fit = model(faults=dead("site 2"), **settings).fit(tables(6))
    drawn = [round_ for round_ in fit.transcript_ if round_.stage.startswith("power")]
    assert any(round_.missing == ("site 2",) for round_ in drawn)
    assert all(round_.missing in ((), ("site 2",)) and 1 <= len(round_.answered) <= 4 for round_ in drawn)
    with pytest.raises(QuorumLost) as lost:
        model(faults=dead("site 2"), **settings | {"quorum": None}).fit(tables(6))
    assert lost.value.missing == ("site 2",)


@pytest.mark.parametrize("scheme", ["with-replacement", "without-replacement"])
def test_a_sampled_sum_is_right_on_average_also_when_some_are_missing(scheme: Any) -> None:
    """Scheme 1 draws by size, scheme 2 evenly; both, scaled by `factor`, estimate the sum over all who are there."""
    sizes = {f"site {i}": float(2 + 3 * i) for i in range(5)}
    there = [name for name in sizes if name != "site 3"]
    rng = np.random.default_rng(8)
    numbers = {name: float(rng.standard_normal()) * size for name, size in sizes.items()}
    sampling = Sampling(scheme=scheme, count=3, sizes=sizes, rng=np.random.default_rng(9))
    draws = []
    for _ in range(40_000):
        drawn = sampling.draw(there)
        weights = sampling.weights(drawn)
        factor = sampling.factor(drawn, tuple(drawn), there)
        draws.append(factor * sum(weights[name] * numbers[name] for name in drawn))
    expected = sum(numbers[name] for name in there)
    error = float(np.std(draws)) / np.sqrt(len(draws))
    assert abs(np.mean(draws) - expected) < 5 * error
    assert abs(np.mean(draws) - 1.1 * expected) > 5 * error
