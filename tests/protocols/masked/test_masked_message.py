"""Messages of masked runs gone bad:

refused with the name of its sender and no trace, and what would come of it if nobody looked.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from hypothesis import given, settings
from hypothesis import strategies as st

import eigenveil.protocols.masked.session as session_module
import eigenveil.protocols.wire as wire_module
from eigenveil.data.rows import DenseRows
from eigenveil.errors import PeerError, ProtocolError, QuorumLost
from eigenveil.protocols.keys import KEY, POINT, Identity
from eigenveil.protocols.masked.dealing import MARK
from eigenveil.protocols.masked.hub import SecureAggregationRound
from eigenveil.protocols.masked.member import MaskedMember, _SiteRound, words_digest
from eigenveil.protocols.masked.session import Keyring, Session
from eigenveil.protocols.masked.terms import DECLINED, question_digest
from eigenveil.protocols.messages import Ask, Body, Contribution, Decline, Done, Masked, Message, StepReply, StepRequest
from eigenveil.protocols.wire import decode, encode, size
from eigenveil.runtimes.local import Faults, LocalStar
from eigenveil.tasks.base import Question
from protocols.masked.masked_companies import (
    MaskedCompany,
    confirm_everything,
    deep,
    drawn_from,
    join_anything,
    masked_company,
    nothing,
    power,
    sparse_company,
    take_every_share,
)
from protocols.star.companies import EXACT, picture

Patch = pytest.MonkeyPatch
Meddle = Callable[[Message], list[Message]]
BAD = "site 2"
CLAIMS = ("keys", "packets", "roster", "roster claim", "seal", "survivors", "list claim", "open")


@pytest.fixture(autouse=True)
def _seeded(monkeypatch: Patch) -> None:
    drawn_from(monkeypatch, 5)


def flipped(raw: bytes, at: int = 0) -> bytes:
    return raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]


def run(them: MaskedCompany, meddle: Meddle | None = None) -> tuple[Any, LocalStar]:
    process = LocalStar(them.hub, them.members.values(), faults=Faults(meddle=meddle), seed=1)
    return process.run(), process


def right(them: MaskedCompany, result: Any) -> bool:
    """Whether the sum is that over those who are said to be in it, to the precision of the grid."""
    return bool(np.allclose(result, them.gram(them.hub.rounds[-1].answered), atol=1e-5))


def only(change: Callable[[Any], Body | None], kind: type, step: str | None = None, sender: str = BAD) -> Meddle:
    """Change what one party sends, of one kind and step."""

    def meddle(message: Message) -> list[Message]:
        body = message.body
        if message.sender != sender or not isinstance(body, kind) or (step and getattr(body, "step", "") != step):
            return [message]
        changed = change(body)
        return [] if changed is None else [replace(message, body=changed)]

    return meddle


# What a site sends, spoiled in each step.


def spoiled_returns() -> Iterator[tuple[str, Callable[[StepReply], StepReply]]]:
    yield "signature flipped", lambda body: replace(body, signature=flipped(body.signature, 40))
    yield "signature cut", lambda body: replace(body, signature=body.signature[:-1])
    yield "no signature", lambda body: replace(body, signature=b"")
    yield "next round", lambda body: replace(body, round=body.round + 1)
    yield "data longer", lambda body: replace(body, data=body.data + b"\0")
    yield "data cut", lambda body: replace(body, data=body.data[:-1] if body.data else b"\1")
    yield "data flipped", lambda body: replace(body, data=flipped(body.data) if body.data else b"\1")
    yield (
        "table changed",
        lambda body: replace(
            body, table=((body.table[0][0], flipped(body.table[0][1])), *body.table[1:]) if body.table else (("x", b""),)
        ),
    )
    yield "another step", lambda body: replace(body, step="seal" if body.step != "seal" else "open")


RETURNS = dict(spoiled_returns())


@pytest.mark.parametrize("how", RETURNS)
@pytest.mark.parametrize("step", CLAIMS)
def test_a_spoiled_answer_is_refused_and_its_sender_left_out(step: str, how: str) -> None:
    them = sparse_company(sites=8, survivors=6, retries=0) if "claim" in step else masked_company(5, 4, retries=0)
    result, process = run(them, only(RETURNS[how], StepReply, step))
    assert {refusal.peer for refusal in process.refused} == {BAD}
    assert right(them, result)
    # It is in the sum where its part had come by then.
    assert (BAD in them.hub.rounds[-1].answered) == (step in ("survivors", "list claim", "open"))
    assert them.masking.liars == {}


def test_a_changed_part_is_refused_and_without_the_check_it_gets_into_the_sum(monkeypatch: Patch) -> None:
    def change(body: Masked) -> Masked:
        return replace(body, limbs=body.limbs + np.uint64(1 << 40))

    them = masked_company()
    result, process = run(them, only(change, Masked))
    assert {refusal.peer for refusal in process.refused} == {BAD}
    assert BAD not in them.hub.rounds[-1].answered
    assert right(them, result)
    monkeypatch.setattr(SecureAggregationRound, "_require_signed", nothing)
    them = masked_company()
    result, process = run(them, only(change, Masked))
    assert process.refused == []
    assert not right(them, result)


def test_a_part_that_another_site_signed_is_refused(monkeypatch: Patch) -> None:
    def attack() -> tuple[MaskedCompany, Any]:
        them = masked_company()
        other = them.members["site 3"]

        def change(body: Masked) -> Masked:
            words = np.zeros_like(body.limbs)
            assert other._session is not None
            said = words_digest(question_digest(Question()), words)
            return Masked(0, words, other._session.sign(0, "mask", said))

        return them, run(them, only(change, Masked))[0]

    them, result = attack()
    assert BAD not in them.hub.rounds[-1].answered
    assert right(them, result)
    monkeypatch.setattr(SecureAggregationRound, "_require_signed", nothing)
    assert not right(*attack())


@pytest.mark.parametrize("words", [np.zeros(1), np.zeros(1, dtype=np.uint64), np.zeros((1, 15), dtype=np.uint64)])
def test_a_part_of_the_wrong_length_or_kind_is_refused(words: Any, monkeypatch: Patch) -> None:
    def change(body: Masked) -> Masked:
        return replace(body, limbs=words)

    them = masked_company()
    result, process = run(them, only(change, Masked))
    assert all("does not have 15 words" in refusal.why for refusal in process.refused)
    assert BAD not in them.hub.rounds[-1].answered
    assert right(them, result)
    if words.shape == (1,) and words.dtype == np.uint64:
        # One number, signed or not, would be added to all of them, and nobody would notice.
        monkeypatch.setattr(SecureAggregationRound, "_require_size", nothing)
        monkeypatch.setattr(SecureAggregationRound, "_require_signed", nothing)
        them = masked_company()
        result, process = run(them, only(change, Masked))
        assert process.refused == []
        assert not right(them, result)


def estimate(them: MaskedCompany, result: Any) -> float:
    """How far the values of two steps of the power method are from those of the sites in it, relatively."""
    assert len(them.hub.rounds) == 2
    assert them.hub.rounds[0].answered == them.hub.rounds[1].answered
    gram = them.gram(them.hub.rounds[-1].answered)
    task = them.task
    state = task.start()
    for _ in range(2):
        state = task.advance(state, gram @ task.ask(state).arrays[0], EXACT)
    expected = np.asarray(getattr(task.result(state), "values"))  # noqa: B009
    return float(np.abs(result.values - expected).max() / expected.max())


@pytest.mark.parametrize("fresh_label", [True, False])
def test_a_part_of_an_earlier_round_is_not_taken_for_another(fresh_label: bool, monkeypatch: Patch) -> None:
    """As it was, or with the number of the round that it is sent in."""

    def attack() -> tuple[MaskedCompany, Any, LocalStar]:
        them = masked_company(task=power(), survivors=6, retries=0)
        kept: list[Masked] = []

        def change(body: Masked) -> Masked:
            kept.append(body)
            return replace(kept[0], round=body.round) if fresh_label else kept[0]

        result, process = run(them, only(change, Masked))
        return them, result, process

    them, result, process = attack()
    assert {refusal.peer for refusal in process.refused} == {BAD}
    assert BAD not in them.hub.rounds[-1].answered
    monkeypatch.setattr(SecureAggregationRound, "_require_signed", nothing)
    if not fresh_label:
        monkeypatch.setattr(SecureAggregationRound, "_require_round", nothing)
    them, result, process = attack()
    assert process.refused == []
    assert estimate(them, result) > 1


def replayed(them: MaskedCompany, old: dict[str, Body]) -> tuple[Any, LocalStar]:
    """What one site gave in an earlier study in the place of what it gives."""
    return run(them, only(lambda body: old.setdefault("part", body), Masked))


def test_a_part_of_an_earlier_study_is_not_taken_in_the_next(monkeypatch: Patch) -> None:
    """With the same identities and terms. The session has another name, and were it the same: the roster has other keys."""
    ids = {f"site {at}": Identity.fresh() for at in range(7)}

    def attack() -> tuple[MaskedCompany, Any, LocalStar]:
        old: dict[str, Body] = {}
        replayed(masked_company(identities=ids), old)
        them = masked_company(identities=ids, seed=1)
        return them, *replayed(them, old)

    made = session_module.Keyring.__init__
    for same_name in (False, True):
        if same_name:
            monkeypatch.setattr(
                session_module.Keyring, "__init__", lambda self, terms, first, nonce=None: made(self, terms, first, bytes(32))
            )
        them, result, process = attack()
        assert {refusal.peer for refusal in process.refused} == {BAD}
        assert right(them, result)
        assert BAD not in them.hub.rounds[-1].answered
    monkeypatch.setattr(session_module, "bound_to", lambda session, roster: session)
    them, result, process = attack()
    assert process.refused == []
    assert BAD in them.hub.rounds[-1].answered
    assert not right(them, result)


def test_undisturbed_the_power_method_gives_what_it_would_without_masks() -> None:
    them = masked_company(task=power())
    result, process = run(them)
    assert process.refused == []
    assert estimate(them, result) < 1e-7


# What the hub sends, changed on the way to one site.


def spoiled_briefs() -> Iterator[tuple[str, Callable[[StepRequest], StepRequest]]]:
    yield "table flipped", lambda body: replace(body, table=tuple((name, flipped(raw)) for name, raw in body.table))
    yield "table cut", lambda body: replace(body, table=tuple((name, raw[:-1]) for name, raw in body.table))
    yield "table empty", lambda body: replace(body, table=())
    yield "data flipped", lambda body: replace(body, data=flipped(body.data) if body.data else b"\1")
    yield "data cut", lambda body: replace(body, data=body.data[:-1])
    yield "another round", lambda body: replace(body, round=body.round + 1)


@pytest.mark.parametrize("how", dict(spoiled_briefs()))
@pytest.mark.parametrize("step", CLAIMS)
def test_a_spoiled_step_keeps_at_most_one_site_out(step: str, how: str) -> None:
    change = dict(spoiled_briefs())[how]

    def spoil_one(message: Message) -> list[Message]:
        body = message.body
        if isinstance(body, StepRequest) and body.step == step and message.receiver == BAD:
            return [replace(message, body=change(body))]
        return [message]

    them = sparse_company(sites=8, survivors=6, retries=0) if "claim" in step else masked_company(5, 4, retries=0)
    result, _ = run(them, spoil_one)
    assert right(them, result)
    assert len(them.hub.rounds[-1].answered) >= len(them.names) - 1


def open_without_looking(key: bytes, sealed: bytes, *, about: bytes) -> bytes:
    """A bundle as the cipher has it, whether or not it is what was sealed."""
    stream = Cipher(algorithms.ChaCha20(key, (1).to_bytes(4, "little") + bytes(12)), mode=None).decryptor()
    return stream.update(sealed[:-16])


def spoil_bundles(message: Message) -> list[Message]:
    body = message.body
    if isinstance(body, StepRequest) and body.step == "roster" and message.receiver == BAD:
        return [replace(message, body=replace(body, table=tuple((name, flipped(raw, KEY + 20)) for name, raw in body.table)))]
    return [message]


def test_bundles_changed_on_the_way_are_not_read(monkeypatch: Patch) -> None:
    """Their reader holds nothing, and says so. Read all the same they are not what was sent, and it says that."""
    them = masked_company()
    assert right(them, run(them, spoil_bundles)[0])
    assert them.masking.liars == {}
    assert len(them.hub.rounds[-1].answered) == 7
    session = them.members[BAD]._session
    assert session is not None and set(session._held) == {BAD}
    monkeypatch.setattr(session_module, "open_bundle", open_without_looking)
    them = masked_company()
    assert right(them, run(them, spoil_bundles)[0])
    assert them.masking.liars == {}
    # Where nobody listens to that either, it is called a liar.
    monkeypatch.setattr(Keyring, "confirm", confirm_everything)
    them = masked_company()
    assert right(them, run(them, spoil_bundles)[0])
    assert set(them.masking.liars) == {BAD}


def test_a_changed_key_ends_in_a_wrong_sum_only_past_five_checks(monkeypatch: Patch) -> None:
    def change(body: StepReply) -> StepReply:
        """The mask key of the second round in the place of that of the first."""
        return replace(body, data=body.data[:POINT] + body.data[2 * POINT : 3 * POINT] + body.data[2 * POINT :])

    def attack() -> tuple[MaskedCompany, Any]:
        them = masked_company(retries=0)
        return them, run(them, only(change, StepReply, "keys"))[0]

    them, result = attack()
    assert right(them, result)
    assert BAD not in them.hub.rounds[-1].answered
    monkeypatch.setattr(SecureAggregationRound, "_require_signed", nothing)
    # Nobody takes the keys from the hub.
    with pytest.raises(QuorumLost):
        attack()
    monkeypatch.setattr(Session, "_require_signed_keys", nothing)
    # What the site has shared out does not fit those keys: before the roster, and again before anything is charged.
    them, result = attack()
    assert right(them, result)
    assert set(them.masking.liars) == {BAD}
    monkeypatch.setattr(Keyring, "proves", lambda *_: True)
    with pytest.raises(ProtocolError, match=f"{BAD} sent holders other bundles than announced"):
        attack()
    monkeypatch.setattr(Keyring, "confirm", confirm_everything)
    # The site itself sees that the roster is not for its keys; of its secret, what is put together does not fit the public key.
    with pytest.raises(ProtocolError, match=f"the secret that {BAD} shared is not the one of its signed keys"):
        attack()
    monkeypatch.setattr(Session, "_require_same_keys", nothing)
    assert not right(*attack())


def test_a_changed_share_ends_in_a_wrong_sum_only_past_three_checks(monkeypatch: Patch) -> None:
    def change(body: StepReply) -> StepReply:
        return replace(body, data=flipped(body.data, 20))

    def attack() -> tuple[MaskedCompany, Any]:
        them = masked_company()
        return them, run(them, only(change, StepReply, "open"))[0]

    them, result = attack()
    assert right(them, result)
    assert them.masking.liars == {}
    monkeypatch.setattr(SecureAggregationRound, "_require_signed", nothing)
    them, result = attack()
    assert right(them, result)
    assert set(them.masking.liars) == {BAD}
    # Other shares join to the secret of the public key; yet the dealer is taken for a liar.
    monkeypatch.setattr(SecureAggregationRound, "_pooled", take_every_share)
    them, result = attack()
    assert right(them, result)
    assert set(them.masking.liars) == {"site 0"}
    monkeypatch.setattr(SecureAggregationRound, "_joined", join_anything)
    assert not right(*attack())


def test_digests_of_shares_changed_on_the_way_frame_a_dealer_only_where_nobody_asks_who_signed(monkeypatch: Patch) -> None:
    """Of two bundles, one more than may be denied."""

    def change(body: StepReply) -> StepReply:
        each = (2 * 4 + 1) * MARK + KEY
        return replace(body, data=flipped(flipped(body.data, each), 2 * each))

    def attack() -> tuple[MaskedCompany, Any]:
        them = masked_company(retries=0)
        return them, run(them, only(change, StepReply, "packets"))[0]

    them, result = attack()
    assert right(them, result)
    assert BAD not in them.hub.rounds[-1].answered
    assert them.masking.liars == {}
    monkeypatch.setattr(SecureAggregationRound, "_require_signed", nothing)
    them, result = attack()
    assert right(them, result)
    assert set(them.masking.liars) == {BAD}
    monkeypatch.setattr(Keyring, "proves", lambda *_: True)
    with pytest.raises(ProtocolError, match=f"{BAD} sent holders other bundles than announced"):
        attack()


# Foreign messages, and no trace of what is refused.


def deliveries(them: MaskedCompany) -> Iterator[Message]:
    """All messages of a run in the order it was sent, each as it is about to be delivered."""
    messages = list(them.hub.start())
    while messages:
        message = messages.pop(0)
        yield message
        messages.extend(them.parties[message.receiver].receive(message))


def require_refused(them: MaskedCompany, message: Message, what: str) -> None:
    party = them.parties[message.receiver]
    before = deep(party)
    with pytest.raises(PeerError) as caught:
        party.receive(message)
    assert caught.value.peer == message.sender, what
    assert deep(party) == before, f"{message.receiver} was changed by {what}"


def bad_message(message: Message) -> Iterator[tuple[str, Body]]:
    """What is refused in place of a good message, for any receiver."""
    body = message.body
    match body:
        case StepReply():
            for what, change in RETURNS.items():
                yield what, change(body)
            yield "declined, unsigned", Decline(body.round)
            yield "declined, signed for something else", replace(body, data=DECLINED, table=())
            yield "a part out of place", Masked(body.round, np.zeros(15, dtype=np.uint64), body.signature)
        case Masked():
            yield "words flipped", replace(body, limbs=body.limbs ^ np.uint64(1))
            yield "words cut", replace(body, limbs=body.limbs[:-1])
            yield "signature flipped", replace(body, signature=flipped(body.signature))
            yield "signature cut", replace(body, signature=body.signature[:63])
            yield "next round", replace(body, round=body.round + 1)
            yield (
                "an answer out of place",
                StepReply(round=body.round, step="open", data=b"", table=(), signature=body.signature),
            )
            yield "declined, unsigned", Decline(body.round)
            yield (
                "declined, signed for something else",
                StepReply(round=body.round, step="mask", data=DECLINED, table=(), signature=body.signature),
            )
        case StepRequest():
            yield "a step that there is not", replace(body, step="mask")
            yield "a round that there is not", replace(body, round=1000)
            if body.step not in ("keys",):
                yield "another round", replace(body, round=body.round + 1)
            if body.step in ("keys", "roster", "survivors", "roster claim", "list claim"):
                yield "data cut", replace(body, data=body.data[:-1])
                yield "data longer", replace(body, data=body.data + b"\0")
                yield "no data", replace(body, data=b"")
            if body.step in ("roster", "survivors"):
                yield "data flipped", replace(body, data=flipped(body.data))
            if body.step == "packets":
                for what, raw in (("cut", body.table[0][1][:-1]), ("flipped", flipped(body.table[0][1])), ("empty", b"")):
                    yield what, replace(body, table=(*body.table[1:], (body.table[0][0], raw)))
                yield "its own keys", replace(body, table=((message.receiver, body.table[0][1]), *body.table[1:]))
                yield "a stranger's keys", replace(body, table=(("stranger", body.table[0][1]), *body.table[1:]))
            if body.step == "roster":
                yield "a bundle too few", replace(body, table=body.table[1:])
                yield "a bundle too many", replace(body, table=(*body.table, ("stranger", b"")))
            if body.step in ("seal", "open"):
                yield "nothing shown", replace(body, table=())
                few = tuple((name, flipped(piece)) for name, piece in body.table)
                yield "signatures flipped", replace(body, table=few)
        case Ask():
            yield "a round that there is not", replace(body, round=7)
            yield "another question", replace(body, question=Question(99))
    if not isinstance(body, Contribution | Done):
        yield "a plain part", Contribution(round=body.round, arrays=(np.zeros((5, 5)),))


@pytest.mark.parametrize("make", [masked_company, sparse_company])
def test_bad_message_is_refused_by_name_and_leaves_no_trace(make: Callable[..., MaskedCompany]) -> None:
    them = make(sites=7, survivors=5) if make is masked_company else make(sites=8, survivors=6)
    seen: set[tuple[str, str]] = set()
    taken: list[Message] = []
    for message in deliveries(them):
        kind = getattr(message.body, "step", type(message.body).__name__)
        if isinstance(message.body, Ask):
            kind = "Ask"
        if message.receiver == "hub" and isinstance(message.body, StepReply | Masked):
            for old in taken[-6:]:
                require_refused(them, old, "what came before")
            taken.append(message)
        # Each kind of messages to two places is enough.
        if message.receiver in ("hub", "site 1") and (message.receiver, kind) not in seen:
            seen.add((message.receiver, kind))
            require_refused(them, replace(message, sender="stranger"), "a stranger")
            for what, body in bad_message(message):
                require_refused(them, replace(message, body=body), f"{kind}: {what}")
    assert right(them, them.hub.result)
    require_refused(them, taken[-1], "what came after the end")


@pytest.mark.parametrize("make", [masked_company, sparse_company])
def test_asked_again_in_any_step_a_site_sends_the_same_bytes(make: Callable[..., MaskedCompany], monkeypatch: Patch) -> None:
    def run_twice() -> tuple[set[str], MaskedCompany]:
        """The steps in which a second answer is another, while everybody goes by the first."""
        them, other = make(private=True), set()
        messages = list(them.hub.start())
        while messages:
            message = messages.pop(0)
            answers = them.parties[message.receiver].receive(message)
            if message.receiver != "hub" and not isinstance(message.body, Done):
                before = [encode(answer) for answer in answers]
                again = them.parties[message.receiver].receive(message)
                if [encode(answer) for answer in again] != before:
                    other.add(getattr(message.body, "step", "mask"))
            messages.extend(answers)
        return other, them

    different, them = run_twice()
    assert different == set()
    assert all(len(ledger.charges) == 1 for ledger in them.ledgers.values())

    def anew(_: MaskedMember, now: _SiteRound, question: Question) -> bool:
        now.masked = None
        return True

    # A site that makes its part a second time would pay twice, and give away the difference of two noises.
    monkeypatch.setattr(MaskedMember, "_same_question", anew)
    different, them = run_twice()
    assert different == {"mask"}
    assert all(len(ledger.charges) == 2 for ledger in them.ledgers.values())


def test_a_site_that_was_told_the_answer_says_no_more() -> None:
    them = masked_company()
    asks = [message for message in deliveries(them) if isinstance(message.body, Ask | StepRequest)]
    for message in asks[-20:]:
        require_refused(them, message, "a question after the answer")


# The hub's memory.


def arrays_in(thing: Any, seen: set[int]) -> list[int]:
    """The sizes of all arrays that a thing holds on to."""
    if id(thing) in seen:
        return []
    seen.add(id(thing))
    if isinstance(thing, np.ndarray):
        return [thing.size]
    if isinstance(thing, dict):
        inner: list[Any] = [*thing.keys(), *thing.values()]
    elif isinstance(thing, list | tuple | set | frozenset):
        inner = list(thing)
    else:
        slots = getattr(type(thing), "__slots__", ())
        inner = [*getattr(thing, "__dict__", {}).values(), *(getattr(thing, s, None) for s in slots)]
    return [size for one in inner for size in arrays_in(one, seen)]


def test_the_hub_keeps_one_sum_and_not_the_parts() -> None:
    them = masked_company()
    most = 0
    for message in deliveries(them):
        if message.receiver == "hub":
            most = max(most, sum(arrays_in(them.hub._now, set())))
    assert most == 15
    assert right(them, them.hub.result)
    # One that kept them would be seen.
    them = masked_company()
    kept: list[Any] = []
    for message in deliveries(them):
        if them.hub._now is not None:
            vars(them.hub._now)["kept"] = kept
            most = max(most, sum(arrays_in(them.hub._now, set())))
        if isinstance(message.body, Masked):
            kept.append(message.body)
    assert most == 15 * 8


# As bytes.

names = st.text(min_size=1, max_size=12)
tables = st.lists(st.tuples(names, st.binary(max_size=40)), max_size=4, unique_by=lambda entry: entry[0]).map(tuple)
rounds = st.integers(0, 2**53 - 1)
bodies: st.SearchStrategy[Body] = st.one_of(
    st.builds(StepRequest, round=rounds, step=names, data=st.binary(max_size=60), table=tables),
    st.builds(StepReply, round=rounds, step=names, data=st.binary(max_size=60), table=tables, signature=st.binary(max_size=64)),
    st.builds(
        Masked,
        rounds,
        st.lists(st.integers(0, 2**64 - 1), max_size=8).map(lambda values: np.array(values, dtype=np.uint64)),
        st.binary(max_size=64),
    ),
)


@given(names, names, bodies)
def test_masked_message_survives_the_wire_and_its_size_is_known(sender: str, receiver: str, body: Body) -> None:
    message = Message(sender, receiver, body)
    data = encode(message)
    assert len(data) == size(message)
    assert picture(decode(data)) == picture(message)
    assert encode(decode(data)) == data


@given(names, bodies, st.data())
def test_masked_message_cut_short_or_lengthened_is_refused(sender: str, body: Body, data: st.DataObject) -> None:
    raw = encode(Message(sender, "hub", body))
    with pytest.raises(ProtocolError):
        decode(raw[: data.draw(st.integers(0, len(raw) - 1))])
    with pytest.raises(ProtocolError):
        decode(raw + b"\0")


@settings(max_examples=300)
@given(bodies, st.data())
def test_masked_message_with_a_changed_byte_is_other_message_or_refused(body: Body, data: st.DataObject) -> None:
    raw = bytearray(encode(Message("a", "hub", body)))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    try:
        message = decode(bytes(raw))
    except ProtocolError:
        return
    assert encode(message) == bytes(raw)


@pytest.mark.parametrize("make", [masked_company, sparse_company])
def test_a_masked_run_over_bytes_gives_the_same_sum(make: Callable[..., MaskedCompany]) -> None:
    them = make()
    result, process = run(them, lambda message: [decode(encode(message))])
    assert process.refused == []
    assert right(them, result)


# Declines.


def declined_before(forged: Callable[[Masked], Body]) -> Meddle:
    """Somebody on the way says for a site that there will be no part, and is quicker than the site."""

    def meddle(message: Message) -> list[Message]:
        if message.sender == BAD and isinstance(message.body, Masked):
            # The last is delivered first.
            return [message, replace(message, body=forged(message.body))]
        return [message]

    return meddle


FORGED: dict[str, Callable[[Masked], Body]] = {
    "unsigned": lambda body: Decline(body.round),
    "badly signed": lambda body: StepReply(round=body.round, step="mask", data=DECLINED, table=(), signature=bytes(64)),
    "with the signature of the part": lambda body: StepReply(
        round=body.round, step="mask", data=DECLINED, table=(), signature=body.signature
    ),
}


@pytest.mark.parametrize("how", FORGED)
def test_nobody_can_decline_for_a_site(how: str, monkeypatch: Patch) -> None:
    def attack() -> tuple[MaskedCompany, Any, LocalStar]:
        them = masked_company()
        process = LocalStar(
            them.hub, them.members.values(), faults=Faults(meddle=declined_before(FORGED[how]), delay=1e-9), seed=1
        )
        return them, process.run(), process

    them, result, process = attack()
    assert {refusal.peer for refusal in process.refused} == {BAD}
    assert right(them, result)
    assert BAD in them.hub.rounds[-1].answered
    sound = SecureAggregationRound._require_sound
    monkeypatch.setattr(SecureAggregationRound, "_require_signed", nothing)
    monkeypatch.setattr(
        SecureAggregationRound, "_require_sound", lambda now, who, body: isinstance(body, Decline) or sound(now, who, body)
    )
    them, result, process = attack()
    assert BAD not in them.hub.rounds[-1].answered
    assert right(them, result)


def test_a_site_that_declines_is_left_out() -> None:
    them = masked_company()
    them.members[BAD].mend(DenseRows(np.zeros((4, 3))))
    sent: list[Message] = []

    def note(message: Message) -> list[Message]:
        sent.append(message)
        return [message]

    result, process = run(them, note)
    assert process.refused == []
    assert BAD not in them.hub.rounds[-1].answered
    assert right(them, result)
    (declined,) = [m.body for m in sent if isinstance(m.body, StepReply) and m.body.data == DECLINED]
    assert isinstance(declined, StepReply) and len(declined.signature) == 64


# Bundles of another length.


@pytest.mark.parametrize("more", [-1, 1, 1 << 20])
def test_bundles_of_another_length_are_refused_by_the_hub(more: int, monkeypatch: Patch) -> None:
    """Signed by their sender as they are. A hub that carries them all has a site fill everybody's messages."""
    bundle = Session._bundle

    def other(session: Session, name: str, text: bytes, public: bytes) -> bytes:
        sealed = bundle(session, name, text, public)
        return (sealed + bytes(max(more, 0)))[: len(sealed) + more] if session._name == BAD else sealed

    def attack() -> tuple[MaskedCompany, Any, LocalStar, int]:
        them, longest = masked_company(retries=0), [0]

        def measure(message: Message) -> list[Message]:
            if isinstance(message.body, StepRequest) and message.body.step == "roster":
                longest[0] = max(longest[0], size(message))
            return [message]

        result, process = run(them, measure)
        return them, result, process, longest[0]

    monkeypatch.setattr(Session, "_bundle", other)
    them, result, process, longest = attack()
    assert {refusal.peer for refusal in process.refused} == {BAD}
    assert "does not have the contents asked for" in process.refused[0].why
    assert right(them, result)
    assert BAD not in them.hub.rounds[-1].answered
    assert longest < 1 << 14
    if more > 1:
        monkeypatch.setattr(SecureAggregationRound, "_read", nothing)
        monkeypatch.setattr(SecureAggregationRound, "_require_bundles", nothing)
        them = masked_company(retries=0)
        sent: list[int] = []

        def noted(message: Message) -> list[Message]:
            if isinstance(message.body, StepRequest) and message.body.step == "roster":
                sent.append(size(message))
            return [message]

        with pytest.raises(ProtocolError):
            run(them, noted)
        assert sum(length > 1 << 20 for length in sent) == 6


# Names that are no text.


@pytest.mark.parametrize(
    "body",
    [
        StepReply(round=0, step="packets", data=b"", table=(("\ud800", b""),), signature=bytes(64)),
        StepReply(round=0, step="\udfff", data=b"", table=(), signature=bytes(64)),
        StepRequest(round=0, step="roster", data=b"", table=(("\ud83d", b""),)),
        Ask(0, Question(0), ("\ud800",)),
    ],
)
def test_names_that_are_no_text_are_refused(body: Body, monkeypatch: Patch) -> None:
    with pytest.raises(ProtocolError, match="surrogates not allowed"):
        decode(encode(Message("a", "hub", body)))
    with pytest.raises(ProtocolError, match="surrogates not allowed"):
        decode(encode(Message("\ud800", "hub", Decline(0))))
    # Let in, they could not be written down anywhere, nor be signed.
    monkeypatch.setattr(wire_module, "_name", lambda value: value)
    form = wire_module._FORMS[type(body)]
    unread = replace(form, head=dict(form.head) | ({"step": lambda value: value} if form.has_table else {}))
    monkeypatch.setitem(cast("dict[Any, Any]", wire_module._FORMS), type(body), unread)
    with pytest.raises(UnicodeEncodeError):
        repr_of(decode(encode(Message("a", "hub", body))).body).encode()


def test_a_stage_that_is_no_text_is_refused_by_name() -> None:
    them = masked_company()
    for message in deliveries(them):
        if isinstance(message.body, Ask):
            question = replace(message.body.question, stage="\ud800")
            with pytest.raises(ProtocolError):
                them.parties[message.receiver].receive(
                    decode(encode(replace(message, body=replace(message.body, question=question))))
                )


def repr_of(body: Body) -> str:
    match body:
        case StepReply() | StepRequest():
            return body.step + "".join(name for name, _ in body.table)
        case Ask():
            return "".join(body.without)
        case _:
            return ""
