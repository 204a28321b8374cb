"""Wire: what is sent arrives to the last bit, and nothing else is ever taken for a message."""

import json
import struct
import tracemalloc
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from each import each
from eigenveil.errors import ProtocolError
from eigenveil.linalg import Array
from eigenveil.privacy.released import pack
from eigenveil.protocols.keys import digest_of
from eigenveil.protocols.messages import Ask, Contribution, Decline, Done, Message
from eigenveil.protocols.wire import LIMIT, VERSION, KindLimit, MessageLimits, decode, encode, in_round, size
from eigenveil.tasks.base import Question
from protocols.star.companies import picture

FRAME = struct.Struct("<4sBI")
WHOLE = st.integers(0, 2**53 - 1)
NAMES = st.text(min_size=1, max_size=200)
# All of them: minus zero, subnormal, infinite, not a number. Who takes such numbers is for the parties to say.
NUMBERS = st.floats(width=64)


def plain_arrays() -> st.SearchStrategy[tuple[Array, ...]]:
    shapes = hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=4)
    return st.lists(hnp.arrays(np.float64, shapes, elements=NUMBERS), max_size=4).map(tuple)


@st.composite
def symmetric_arrays(draw: st.DrawFn) -> tuple[Array, ...]:
    found = []
    for side in draw(st.lists(st.integers(0, 4), min_size=1, max_size=2)):
        upper = draw(hnp.arrays(np.float64, (side, side), elements=NUMBERS))
        found.append(np.where(np.tri(side, dtype=bool).T, upper, upper.T))
    return tuple(found)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    arrays, round_ = draw(plain_arrays()), draw(WHOLE)
    names = st.lists(NAMES, max_size=3).map(tuple)
    question = Question(draw(WHOLE), arrays, draw(st.text(max_size=200)))
    bodies: list[st.SearchStrategy[Ask | Contribution | Decline | Done]] = [
        st.builds(Ask, st.just(round_), st.just(question), names),
        st.builds(Contribution, round=st.just(round_), arrays=st.just(arrays), missing=names),
        st.builds(Contribution, round=st.just(round_), arrays=symmetric_arrays(), missing=names, half=st.just(True)),
        st.just(Decline(round_)),
        st.just(Done(round_, arrays)),
    ]
    return Message(draw(NAMES), draw(NAMES), draw(st.one_of(bodies)))


@settings(max_examples=150)
@given(messages())
def test_every_message_arrives_to_the_last_bit_and_has_the_size_that_was_told(message: Message) -> None:
    sent = encode(message)
    assert picture(decode(sent)) == picture(message)
    assert len(sent) == size(message)
    assert encode(decode(sent)) == sent


def test_half_of_a_symmetric_matrix_is_sent() -> None:
    matrix = np.arange(10_000.0).reshape(100, 100)
    half, whole = (
        Message("a", "hub", Contribution(round=0, arrays=(matrix + matrix.T,), half=symmetric)) for symmetric in (True, False)
    )
    assert size(whole) - size(half) == 8 * 100 * 99 // 2 + 1  # "true" is a letter shorter than "false"


@given(symmetric_arrays(), WHOLE)
def test_a_packed_matrix_has_the_bytes_of_the_whole_one(arrays: tuple[Array, ...], round_: int) -> None:
    flat = tuple(pack(array, symmetric=True) if len(array) else np.empty(0) for array in arrays)
    whole, packed = (Message("a", "hub", Contribution(round=round_, arrays=given, half=True)) for given in (arrays, flat))
    assert encode(packed) == encode(whole)
    assert size(packed) == size(whole)


@given(messages(), WHOLE, st.integers(0, 40))
def test_a_message_in_another_round_has_all_other_bytes_unchanged(message: Message, round_: int, cut: int) -> None:
    sent = encode(message)
    # Pieces of any length, after one that has the head.
    head = FRAME.size + FRAME.unpack_from(sent)[-1]
    pieces = [sent[: head + cut], sent[head + cut : head + 2 * cut], sent[head + 2 * cut :]]
    other = replace(message, body=replace(message.body, round=round_))
    assert in_round(pieces, round_) == encode(other)


@given(messages(), st.data())
def test_what_is_cut_short_or_goes_on_is_refused(message: Message, data: st.DataObject) -> None:
    sent = encode(message)
    for damaged in (sent[: data.draw(st.integers(0, len(sent) - 1))], sent + data.draw(st.binary(min_size=1))):
        with pytest.raises(ProtocolError):
            decode(damaged)


@settings(max_examples=100)
@given(messages(), st.data())
def test_one_wrong_bit_in_the_head_is_refused_or_makes_another_whole_message(message: Message, data: st.DataObject) -> None:
    sent = bytearray(encode(message))
    head = FRAME.size + FRAME.unpack_from(sent)[2]
    sent[data.draw(st.integers(0, head - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        other = decode(bytes(sent))
    except ProtocolError:
        return
    assert picture(other) != picture(message)
    assert picture(decode(encode(other))) == picture(other)


@settings(max_examples=150)
@given(st.binary(max_size=200), st.binary(max_size=100))
def test_random_bytes_are_refused(noise: bytes, head: bytes) -> None:
    for data in (noise, FRAME.pack(b"EIGV", VERSION, len(head)) + head + noise):
        with pytest.raises(ProtocolError):
            decode(data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=150)
@given(messages(), st.data())
def test_any_other_value_in_the_head_is_refused_or_is_another_message(message: Message, data: st.DataObject) -> None:
    head, rest = taken_apart(message)
    head[data.draw(st.sampled_from(sorted(head)))] = data.draw(JSON)
    try:
        decode(put_together(head, rest))
    except ProtocolError:
        return


def taken_apart(message: Message) -> tuple[dict[str, Any], bytes]:
    sent = encode(message)
    start = FRAME.size + FRAME.unpack_from(sent)[2]
    return json.loads(sent[FRAME.size : start]), sent[start:]


def put_together(head: Any, rest: bytes = b"") -> bytes:
    text = head if isinstance(head, bytes) else json.dumps(head, separators=(",", ":")).encode()
    return FRAME.pack(b"EIGV", VERSION, len(text)) + text + rest


GIVE = {"kind": "give", "from": "a", "to": "hub", "round": 0, "shapes": [[1]], "missing": [], "half": False}
ASK = {"kind": "ask", "from": "hub", "to": "a", "round": 0, "shapes": [[1]], "step": 0, "stage": "", "without": []}
ONE = struct.pack("<d", 1.0)
HUGE = 2**52


def test_the_heads_that_are_spoiled_below_are_good_ones() -> None:
    assert isinstance(decode(put_together(GIVE, ONE)).body, Contribution)
    assert isinstance(decode(put_together(ASK, ONE)).body, Ask)


BAD_IN_GIVE: dict[str, list[Any]] = {
    "round": [-1, 1.0, True, None, "0", 2**53, 10**400, [0], float("nan"), float("inf"), -0.0],
    "kind": ["", "Give", None, [], {}, 1],
    "from": ["", None, 7, [], "x" * 201],
    "to": ["", None, 7, "x" * 201],
    "half": [0, 1, None, "true", True],
    "missing": [None, "a", {}, [1], [""], [["a"]]],
    "shapes": [
        *(None, 1, {}, [1], [[-1]], [[True]], [[1.0]], ["1"], [[1, 1, 1]], [[0]], [[2]], [], [[1], [1]]),
        *([[HUGE]], [[HUGE, HUGE]], [[2**32, 2**32]], [[HUGE, 2**12]], [[2**53]], [[2**64, 2**64]], [[]] * 65),
    ],
}
BAD_IN_ASK: dict[str, list[Any]] = {"step": [-1, True, 0.5, "1", 2**60], "stage": [None, 1, [], "x" * 201]}
DECLINE = {"kind": "decline", "from": "a", "to": "b", "round": 0, "shapes": [[1]]}
BOMBS = {
    "nothing": b"",
    "a frame alone": FRAME.pack(b"EIGV", VERSION, 0),
    "another version": FRAME.pack(b"EIGV", VERSION + 1, 2) + b"{}",
    "another magic": b"PK\x03\x04" + encode(Message("a", "b", Decline(0)))[4:],
    "a head longer than the message": FRAME.pack(b"EIGV", VERSION, 2**32 - 1) + b"{}",
    "a long head": put_together(b" " * (2**20) + b"{}"),
    "deep nesting": put_together(b"[" * 500_000 + b"]" * 500_000),
    "deep nesting of objects": put_together(b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
    "a huge number": put_together(b'{"round":' + b"9" * 500_000 + b"}"),
    "a list": put_together([GIVE], ONE),
    "not text": put_together(b"\xff\xfe\xfd"),
    "pickle": put_together(b"\x80\x04\x95cos\nsystem\n", ONE),
    "room to breathe": put_together(json.dumps(GIVE).encode(), ONE),
    "another encoding": put_together(json.dumps(GIVE, separators=(",", ":")).encode("utf-16"), ONE),
    "a field twice": put_together(json.dumps(GIVE, separators=(",", ":"))[:-1].encode() + b',"round":0}', ONE),
    "an extra field": put_together(GIVE | {"more": 1}, ONE),
    "a field of another kind": put_together(GIVE | {"step": 0}, ONE),
    "half of a huge matrix": put_together(GIVE | {"shapes": [[HUGE, HUGE]], "half": True}, ONE),
    "half of an oblong": put_together(GIVE | {"shapes": [[1, 2]], "half": True}, ONE),
    "a decline with numbers": put_together(DECLINE, ONE),
    **{
        f"no {name}": put_together({field: value for field, value in head.items() if field != name}, ONE)
        for head in (GIVE, ASK)
        for name in head
    },
    **{
        f"{name} is {value!r:.20}": put_together(good | {name: value}, ONE)
        for good, bad in ((GIVE, BAD_IN_GIVE), (ASK, BAD_IN_ASK))
        for name, values in bad.items()
        for value in values
    },
}


@each("data", BOMBS.values())
def test_bombs_and_lies_are_refused_in_little_memory(data: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            decode(data)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 64 * 2**20 + 20 * len(data)


def test_a_claim_of_many_empty_rows_takes_no_room() -> None:
    found = decode(put_together(GIVE | {"shapes": [[HUGE, 0]]}))
    assert isinstance(found.body, Contribution)
    assert found.body.arrays[0].nbytes == 0


def test_more_than_the_limit_is_refused_whatever_it_is() -> None:
    message = Message("a", "hub", Contribution(round=0, arrays=(np.zeros(10),)))
    sent = encode(message)
    limits = MessageLimits({(Contribution, ""): KindLimit(numbers=10, arrays=1, names=20)})
    assert picture(decode(sent, limits=limits)) == picture(message)
    with pytest.raises(ProtocolError, match="are allowed"):
        decode(sent + bytes(limits.largest), limits=limits)
    assert LIMIT == 1 << 30


def test_arrays_that_arrive_are_float64_whatever_their_place_in_the_message() -> None:
    for name in ("a", "ab", "abc"):
        strided = np.arange(12.0).reshape(3, 4)[:, ::2]
        found = decode(encode(Message(name, "hub", Contribution(round=0, arrays=(strided,)))))
        assert isinstance(found.body, Contribution)
        assert found.body.arrays[0].dtype == np.float64
        assert (found.body.arrays[0] == strided).all()
    with pytest.raises(ProtocolError):
        decode(encode(replace(found, sender="")))


# No two of these may share a digest, although Python calls some of them equal.
DIFFERENT: list[Any] = [
    None,
    True,
    1,
    1.0,
    "1",
    b"1",
    [1],
    [[1]],
    [],
    {},
    {"a": 1},
    {"b": 1},
    {"a": 1, "b": 1},
    ["a", 1],
    np.array([1.0]),
    np.array([[1.0]]),
    np.array([1.0, 0.0]),
    np.zeros((0, 2)),
    np.zeros((2, 0)),
    0.0,
    -0.0,
]


def test_values_that_differ_have_different_digests() -> None:
    digests = [digest_of("kind", value=value) for value in DIFFERENT]
    assert not [pair for pair in combinations(range(len(digests)), 2) if digests[pair[0]] == digests[pair[1]]]
    assert digest_of("kind", other=1) != digest_of("kind", value=1) != digest_of("other", value=1)


def test_equal_values_have_the_digest_that_every_machine_has() -> None:
    array = np.arange(6.0).reshape(2, 3)
    plain = digest_of("kind", shares=(0.5, 0.5), start=array, rounds=2)
    assert plain == digest_of("kind", rounds=np.int64(2), start=np.asfortranarray(array), shares=[0.5, np.float64(0.5)])
    assert plain == digest_of("kind", rounds=2, start=array.astype(">f8"), shares=[0.5, 0.5])
    assert digest_of("kind", rounds=2, share=0.1).hex()[:16] == "a6fc1ccec37a1c1c"
