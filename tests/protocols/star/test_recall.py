"""A party that is stopped after any step and made again from what came and what it said goes on as if nothing had happened."""

from typing import Any

import numpy as np
import pytest

from eigenveil.core.ledger import Charge
from eigenveil.data.rows import DenseRows
from eigenveil.errors import BudgetExceeded, PeerError
from eigenveil.estimators import FederatedPCA
from eigenveil.estimators.federated.parties import Parties
from eigenveil.protocols.keys import Identity
from eigenveil.protocols.masked.member import MaskedMember
from eigenveil.protocols.messages import Ask, Message
from eigenveil.protocols.star.hub import Hub
from eigenveil.protocols.star.site import Member
from eigenveil.protocols.wire import decode, encode

NAMES = ("a", "b", "c", "d")
TABLES = {name: np.random.default_rng(at).standard_normal((40, 5)) * [3, 2, 1, 0.5, 0.2] for at, name in enumerate(NAMES)}
IDS = {name: Identity(bytes([at + 1]) * 32) for at, name in enumerate(NAMES)}


class Site:
    """One site with a journal, which can be stopped and made again."""

    def __init__(self, name: str, settings: dict[str, Any]) -> None:
        self.name, self.settings, self.secret = name, settings, name.encode() * 32
        self.journal: list[tuple[bytes, list[bytes]]] = []
        self.charges: list[Charge] = []
        self.restart()

    def restart(self) -> None:
        parties = parties_of(**self.settings)
        self.party: Member | MaskedMember = parties.member(
            self.name, DenseRows(TABLES[self.name]), identity=IDS[self.name], secret=self.secret, charges=tuple(self.charges)
        )
        self.ledger = parties.ledgers.get(self.name)
        for came, said in self.journal:
            self.party.recall(decode(came), [decode(raw) for raw in said])

    def take(self, came: bytes) -> list[bytes]:
        said = [encode(message) for message in self.party.receive(decode(came))]
        self.journal.append((came, said))
        self.charges = [] if self.ledger is None else list(self.ledger.charges)
        return said


def parties_of(**settings: Any) -> Parties:
    pca = FederatedPCA(2, row_bound=4.0, **settings)
    request = pca.request_for(dim=5, sites=NAMES)
    roster = {name: identity.public for name, identity in IDS.items()}
    return Parties(request, NAMES, roster=roster, title="test", start=3, apart=True)


def carried(settings: dict[str, Any], *, stop_at: int | None) -> tuple[Hub[Any], dict[str, Site], int]:
    """A study in which every site is made again after its step `stop_at`, or after each if that is -1."""
    parties = parties_of(**settings)
    hub = parties.hub(masking=parties.masking(secret=bytes(32)), watch=None)
    sites = {name: Site(name, settings) for name in NAMES}
    bag, steps = hub.start(), 0
    while bag:
        message = bag.pop(0)
        site = sites[message.receiver]
        said = site.take(encode(message))
        steps = max(steps, len(site.journal))
        if stop_at in (-1, len(site.journal) - 1):
            site.restart()
            # Asked again, it says what it said.
            if hub.result is None:
                assert [encode(one) for one in site.party.receive(message)] == said
        for raw in said:
            bag += hub.receive(decode(raw))
    return hub, sites, steps


SETTINGS: dict[str, dict[str, Any]] = {
    "masked": {"epsilon": 4.0, "delta": 1e-6, "trust": "masked", "survivors": 3},
    "masked krylov": {"epsilon": 4.0, "delta": 1e-6, "trust": "masked", "method": "krylov", "rounds": 3},
    "masked exact": {"epsilon": None, "trust": "masked"},
    "site": {"epsilon": 4.0, "delta": 1e-6, "trust": "site", "method": "krylov", "rounds": 3},
    "hub": {"epsilon": 4.0, "delta": 1e-6, "trust": "hub"},
    "exact": {"epsilon": None, "method": "power", "rounds": 4},
}


@pytest.mark.parametrize("kind", SETTINGS)
def test_sites_that_are_stopped_after_any_step_go_on_with_the_same_bytes_and_are_charged_once(kind: str) -> None:
    settings = SETTINGS[kind]
    undisturbed, before, steps = carried(settings, stop_at=None)
    assert undisturbed.result is not None
    for stop_at in (*range(steps), -1):
        hub, sites, _ = carried(settings, stop_at=stop_at)
        assert hub.result is not None
        for name, site in sites.items():
            assert [(line.label, line.mu) for line in site.charges] == [(c.label, c.mu) for c in before[name].charges]
            assert site.party.result is not None
        if settings["epsilon"] is None:
            np.testing.assert_array_equal(hub.result.subspace.basis, undisturbed.result.subspace.basis)


@pytest.mark.parametrize("kind", ["masked krylov", "site"])
def test_noise_is_not_drawn_again_but_anew(kind: str) -> None:
    """The secret that a site is made again from makes its keys, not its noise: two studies with one secret have other parts."""
    parts = []
    for _ in range(2):
        _, sites, _ = carried(SETTINGS[kind], stop_at=None)
        asked = [said for came, said in sites["a"].journal if isinstance(decode(came).body, Ask)]
        parts.append(asked[0])
    assert parts[0] != parts[1]


def test_a_site_made_again_without_what_it_spent_would_be_charged_twice() -> None:
    """What this guards: the ledger of a party that is made again starts where it was."""
    settings = SETTINGS["site"]
    parties = parties_of(**settings)
    hub = parties.hub(masking=None, watch=None)
    site = Site("a", settings)
    first = hub.start()[0]
    site.take(encode(first))
    spent = site.ledger.spent_mu if site.ledger is not None else 0.0
    site.restart()
    assert site.ledger is not None and site.ledger.spent_mu == spent > 0
    with pytest.raises(BudgetExceeded):
        site.ledger.require_affordable(site.ledger.budget.mu, label="all of it again")


def test_one_more_question_than_the_plan_has_is_refused_after_a_restart_as_well() -> None:
    settings = {"epsilon": None, "method": "power", "rounds": 2, "center": None}
    parties = parties_of(**settings)
    site = Site("a", settings)
    most = parties.most_questions
    state = parties.study.start()
    rng = np.random.default_rng(0)
    for round_ in range(most):
        question = parties.study.ask(state)
        arrays = (*question.arrays[:2], np.linalg.qr(rng.standard_normal(question.arrays[2].shape))[0])
        asked = Ask(round_, type(question)(question.step, arrays, question.stage))
        site.take(encode(Message("hub", "a", asked)))
        if round_ == most // 2:
            site.restart()
    late = type(question)(question.step, (*question.arrays[:2], np.eye(5)[:, : arrays[2].shape[1]]), question.stage)
    with pytest.raises(PeerError, match="asked more than the"):
        site.party.receive(Message("hub", "a", Ask(most, late)))
