"""Masked sums on a bad network: the right sum over those who are named, or an error that names who is missing; what it cost."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eigenveil.data.rows import DenseRows
from eigenveil.errors import ProtocolError, QuorumLost
from eigenveil.protocols.masked.graph import MaskGraph
from eigenveil.protocols.masked.member import MaskedMember
from eigenveil.protocols.masked.session import Keyring, Session
from eigenveil.protocols.messages import Masked, Message, StepReply, StepRequest
from eigenveil.runtimes.local import Faults, LocalStar
from protocols.masked.masked_companies import MaskedCompany, drawn_from, masked_company, power, sparse_company

# How many messages a site has got before each step, in a run where nothing else is lost.
COMPLETE = ("keys", "packets", "roster", "seal", "mask", "survivors", "open")
SPARSE = ("keys", "packets", "roster", "roster claim", "seal", "mask", "survivors", "list claim", "open")
KINDS: dict[str, tuple[Callable[..., MaskedCompany], tuple[str, ...], dict[str, Any]]] = {
    "complete": (masked_company, COMPLETE, {"sites": 8, "survivors": 6}),
    # Every secret can be put back as long as two of nine are gone: the threshold is low enough for that.
    "sparse": (
        sparse_company,
        SPARSE,
        {"sites": 9, "survivors": 7, "graph": MaskGraph(holders=5, threshold=3, loss=0, failure=0.0, abort=0.0, complete=False)},
    ),
}
EVERY = [(kind, step, gone) for kind, (_, steps, _) in KINDS.items() for step in steps for gone in (1, 2, 3)]


@pytest.fixture(autouse=True)
def _seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn_from(monkeypatch, 6)


def in_process(them: MaskedCompany, faults: Faults | None = None, seed: int = 0) -> LocalStar:
    return LocalStar(them.hub, them.members.values(), faults=faults, seed=seed)


def require_right(them: MaskedCompany, result: Any) -> None:
    np.testing.assert_allclose(result, them.gram(them.hub.rounds[-1].answered), atol=1e-5)


def revealed(them: MaskedCompany) -> list[str]:
    return [name for name, site in them.members.items() if site._now is not None and site._now.revealed is not None]


def noted(sent: list[Message]) -> Callable[[Message], list[Message]]:
    """A network that keeps a copy of everything."""

    def carry(message: Message) -> list[Message]:
        sent.append(message)
        return [message]

    return carry


# Sites that drop out.


@pytest.mark.parametrize(("kind", "step", "gone"), EVERY)
def test_sites_that_drop_out_in_any_step_leave_the_right_sum_or_are_named(kind: str, step: str, gone: int) -> None:
    make, steps, more = KINDS[kind]
    them = make(**more, retries=1)
    lost = them.names[1 : 1 + gone]
    at = steps.index(step)
    process = in_process(them, Faults(dies=dict.fromkeys(lost, at)))
    if gone <= len(them.names) - them.terms.survivors:
        require_right(them, process.run())
        answered = them.hub.rounds[-1].answered
        # Those whose parts had come are in the sum, whatever became of them.
        assert set(answered) == (set(them.names) if at > steps.index("mask") else set(them.names) - set(lost))
        assert process.refused == []
        return
    with pytest.raises(QuorumLost) as caught:
        process.run()
    assert set(caught.value.missing) == set(lost)
    assert them.hub.result is None
    if step != "open":
        assert revealed(them) == []
    # They come back. While keys are exchanged everybody is asked anew; from the parts on the same round is finished.
    process.network._faults = None
    result = process.run(resume=True)
    require_right(them, result)
    assert set(them.hub.rounds[-1].answered) == set(them.names)
    assert them.hub.rounds[-1].number == int(at < steps.index("mask"))


@pytest.mark.parametrize(("kind", "step"), [(kind, s) for kind, (_, steps, _) in KINDS.items() for s in steps])
def test_a_round_that_is_resumed_is_paid_for_once(kind: str, step: str) -> None:
    make, steps, more = KINDS[kind]
    them = make(**more, private=True, retries=0)
    lost = them.names[:3]
    process = in_process(them, Faults(dies=dict.fromkeys(lost, steps.index(step))))
    with pytest.raises(QuorumLost):
        process.run()
    paid = {name for name, ledger in them.ledgers.items() if ledger.charges}
    if steps.index(step) < steps.index("mask"):
        # Who is lost before the parts has cost nobody anything.
        assert paid == set()
    else:
        assert paid == (set(them.names) - set(lost) if step == "mask" else set(them.names))
    before = {name: ledger.charges for name, ledger in them.ledgers.items()}
    process.network._faults = None
    process.run(resume=True)
    assert all(len(ledger.charges) == 1 for ledger in them.ledgers.values())
    assert all(them.ledgers[name].charges == before[name] for name in paid)


@pytest.mark.parametrize(("sites", "survivors"), [(6, 5), (9, 6), (9, 8)])
def test_when_two_thirds_drop_out_nothing_is_revealed_and_the_ledgers_show_the_charge(sites: int, survivors: int) -> None:
    them = masked_company(sites, survivors, private=True, retries=0)
    lost = them.names[: 2 * sites // 3]
    sent: list[Message] = []
    dies = dict.fromkeys(lost, COMPLETE.index("mask"))
    process = in_process(them, Faults(dies=dies, meddle=noted(sent)))
    with pytest.raises(QuorumLost) as caught:
        process.run()
    assert set(caught.value.missing) == set(lost)
    assert "masked parts" in caught.value.stage
    assert revealed(them) == []
    assert not any(isinstance(message.body, StepRequest) and message.body.step in ("survivors", "open") for message in sent)
    assert {name for name, ledger in them.ledgers.items() if ledger.charges} == set(them.names) - set(lost)


def test_a_hub_that_goes_on_with_a_third_is_stopped_by_the_sites(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own quorum is not what protects anybody. Without what does, a sum over three of nine is read."""

    def attack(them: MaskedCompany) -> Any:
        them.hub._terms = type(them.hub._terms)(quorum=3, retries=0)
        return in_process(them, Faults(dies=dict.fromkeys(them.names[3:], COMPLETE.index("mask")))).run()

    them = masked_company(9, 7)
    with pytest.raises(QuorumLost) as caught:
        attack(them)
    assert "list of survivors" in caught.value.stage
    assert revealed(them) == []
    for check in ("_require_enough", "_require_list_signed"):
        monkeypatch.setattr(MaskedMember, check, lambda *_, **__: None)
    # With the threshold of a complete graph three could put nothing back: it is the last of three checks.
    with pytest.raises(ProtocolError, match=r"3 shares of the secret of .* are valid, and 6 are needed: its holders are gone"):
        attack(masked_company(9, 7))
    them = masked_company(9, 7, bent={"graph": MaskGraph(holders=8, threshold=3, loss=0, failure=0.0, abort=0.0, complete=True)})
    require_right(them, attack(them))
    assert len(them.hub.rounds[-1].answered) == 3


# Networks.


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 2**31),
    st.sampled_from(["complete", "sparse"]),
    st.floats(0, 0.25),
    st.floats(0, 0.4),
    st.sampled_from([0.0, 5.0, 20.0]),
    st.lists(st.integers(0, 12), max_size=3),
)
def test_random_networks_end_in_the_right_sum_or_a_named_error(
    seed: int, kind: str, loss: float, duplicate: float, delay: float, deaths: list[int]
) -> None:
    make, _, more = KINDS[kind]
    them = make(**more, seed=seed % 100)
    dies = dict(zip(them.names, deaths, strict=False))
    process = in_process(them, Faults(loss=loss, duplicate=duplicate, delay=delay, dies=dies), seed=seed)
    try:
        require_right(them, process.run())
    except QuorumLost as lost:
        assert set(lost.missing) <= set(them.names)
        assert lost.missing
        process.network._faults = None
        require_right(them, process.run(resume=True))
    assert len(them.hub.rounds[-1].answered) >= them.terms.survivors
    assert them.masking.liars == {}


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**31), st.floats(0, 0.2), st.floats(0, 0.4), st.sampled_from([0.0, 20.0]))
def test_bad_networks_cost_no_site_more_than_one_charge_a_round(seed: int, loss: float, duplicate: float, delay: float) -> None:
    them = masked_company(7, 5, task=power(), private=True)
    process = in_process(them, Faults(loss=loss, duplicate=duplicate, delay=delay), seed=seed)
    try:
        process.run()
    except QuorumLost:
        process.network._faults = None
        process.run(resume=True)
    rounds = [round_.number for round_ in them.hub.rounds]
    for name, ledger in them.ledgers.items():
        gave = sum(name in round_.answered for round_ in them.hub.rounds)
        assert gave <= len(ledger.charges) <= len(rounds)


# Keys and rounds.


def test_one_exchange_of_keys_serves_all_rounds_of_a_run() -> None:
    them = masked_company(7, 5, task=power(4))
    sent: list[Message] = []
    in_process(them, Faults(meddle=noted(sent))).run()
    steps = [(message.body.round, message.body.step) for message in sent if isinstance(message.body, StepReply)]
    for step in ("keys", "packets", "roster", "seal"):
        assert steps.count((0, step)) == 7
        assert not any((round_, step) in steps for round_ in (1, 2, 3))
    for round_ in range(4):
        assert sum(isinstance(message.body, Masked) and message.body.round == round_ for message in sent) == 7
        assert steps.count((round_, "open")) == 7
    assert all(site.sessions == 1 for site in them.members.values())


def test_keys_are_exchanged_anew_when_their_rounds_are_used_up() -> None:
    them = masked_company(7, 5, task=power(4), rounds=2)
    in_process(them).run()
    assert all(site.sessions == 2 for site in them.members.values())
    them = masked_company(7, 5, task=power(4), rounds=2, most_rounds=3)
    with pytest.raises(ProtocolError, match="all 3 rounds that the study allows are used up"):
        in_process(them).run()


def test_every_round_has_masks_of_its_own() -> None:
    """Else the difference of two masked parts would be the difference of the parts."""
    them = masked_company(7, 5, task=power(3))
    in_process(them).run()
    session = them.members["site 0"]._session
    assert session is not None
    keys = [key for round_ in range(3) for key, _ in session.masks(round_)]
    assert len(set(keys)) == len(keys) == 3 * 7


def test_a_site_that_breaks_can_be_mended_in_the_same_round() -> None:
    them = masked_company(7, 7, private=True)
    site = them.members["site 3"]
    site.mend(DenseRows(np.zeros((4, 3))))
    process = in_process(them)
    with pytest.raises(QuorumLost) as caught:
        process.run()
    assert caught.value.missing == ("site 3",)
    assert site.error is not None
    assert not them.ledgers["site 3"].charges
    site.mend(DenseRows(them.rows["site 3"]))
    process.run(resume=True)
    assert all(len(ledger.charges) == 1 for ledger in them.ledgers.values())


def test_a_site_whose_budget_is_spent_gives_no_part() -> None:
    them = masked_company(7, 6, private=True)
    ledger = them.ledgers["site 3"]
    ledger.spend(ledger.budget.mu * 0.99, label="before")
    in_process(them).run()
    assert "site 3" not in them.hub.rounds[-1].answered
    assert len(ledger.charges) == 1


# The faults would be seen.


def test_wrong_masks_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    masks = Session.masks
    monkeypatch.setattr(Session, "masks", lambda session, round_: masks(session, round_)[:-1])
    them = masked_company()
    with pytest.raises(AssertionError):
        require_right(them, in_process(them).run())


def test_a_dead_sites_masks_that_stay_on_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Keyring, "near", lambda keys, name: [o for o in keys.public if o != name] if not keys.roster else [])
    them = masked_company(8, 6)
    require_right(them, in_process(them).run())
    them = masked_company(8, 6)
    with pytest.raises(AssertionError):
        require_right(them, in_process(them, Faults(dies={"site 7": COMPLETE.index("mask")})).run())
