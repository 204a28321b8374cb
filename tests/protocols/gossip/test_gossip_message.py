"""Messages between peers as bytes: it arrives to the last bit, and nothing else is ever taken for it."""

import json
import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from each import each
from eigenveil.errors import PeerError, ProtocolError
from eigenveil.protocols.messages import Body, KeepAlive, Message, PartialSum, PeerKey, PeersDropped, ResendRequest
from eigenveil.protocols.wire import VERSION, decode, encode, size
from protocols.gossip.gossip_circles import circle, look
from protocols.star.companies import picture

FRAME = struct.Struct("<4sBI")
WHOLE = st.integers(0, 2**53 - 1)
NAMES = st.text(min_size=1, max_size=200)
MANY = st.lists(NAMES, max_size=4).map(tuple)
ROW = hnp.arrays(np.float64, hnp.array_shapes(min_dims=1, max_dims=1, min_side=0, max_side=9), elements=st.floats(width=64))
BODIES = st.one_of(
    st.builds(
        PartialSum, round=WHOLE, step=WHOLE, values=ROW, stage=st.text(max_size=200), without=MANY, terms=st.binary(max_size=40)
    ),
    st.builds(ResendRequest, round=WHOLE, step=WHOLE, without=MANY, terms=st.binary(max_size=40)),
    st.builds(KeepAlive, WHOLE),
    st.builds(PeersDropped, WHOLE, MANY, st.binary(max_size=40)),
    st.builds(
        PeerKey,
        round=WHOLE,
        origin=NAMES,
        target=NAMES,
        key=st.binary(max_size=40),
        signature=st.binary(max_size=70),
        terms=st.binary(max_size=40),
        again=st.booleans(),
    ),
)
MESSAGE = st.builds(Message, NAMES, NAMES, BODIES)
EXAMPLES: dict[str, Body] = {
    "pass": PartialSum(round=3, step=1, values=np.array([1.0, -0.0]), stage="components 2", without=("p4",), terms=bytes(16)),
    "again": ResendRequest(round=3, step=1, without=("p4",), terms=bytes(16)),
    "here": KeepAlive(3),
    "leave": PeersDropped(3, ("p4",), bytes(16)),
    "key": PeerKey(round=0, origin="p1", target="p3", key=bytes(32), signature=bytes(64), terms=bytes(16), again=True),
}


@settings(max_examples=200)
@given(MESSAGE)
def test_every_message_arrives_to_the_last_bit_and_has_the_size_that_was_told(message: Message) -> None:
    sent = encode(message)
    assert picture(decode(sent)) == picture(message)
    assert len(sent) == size(message)
    assert encode(decode(sent)) == sent


@given(MESSAGE, st.data())
def test_what_is_cut_short_or_goes_on_is_refused(message: Message, data: st.DataObject) -> None:
    sent = encode(message)
    for damaged in (sent[: data.draw(st.integers(0, len(sent) - 1))], sent + data.draw(st.binary(min_size=1))):
        with pytest.raises(ProtocolError):
            decode(damaged)


@settings(max_examples=300)
@given(st.sampled_from(sorted(EXAMPLES)), st.data())
def test_a_turned_bit_is_refused_or_is_another_message_and_never_anything_else(kind: str, data: st.DataObject) -> None:
    sent = bytearray(encode(Message("p1", "p0", EXAMPLES[kind])))
    place = data.draw(st.integers(0, len(sent) - 1))
    sent[place] ^= 1 << data.draw(st.integers(0, 7))
    try:
        found = decode(bytes(sent))
    except ProtocolError:
        return
    assert encode(found) == bytes(sent)


def spelled(kind: str, changes: dict[str, Any]) -> bytes:
    """The bytes of an example with other fields in its head; None takes one away."""
    sent = encode(Message("p1", "p0", EXAMPLES[kind]))
    length = FRAME.unpack_from(sent)[2]
    head = json.loads(sent[FRAME.size : FRAME.size + length])
    head = {name: value for name, value in (head | changes).items() if value is not None}
    text = json.dumps(head, separators=(",", ":")).encode()
    return FRAME.pack(b"EIGV", VERSION, len(text)) + text + sent[FRAME.size + length :]


BAD: dict[str, tuple[str, dict[str, Any]]] = {
    "a round below zero": ("pass", {"round": -1}),
    "half a round": ("pass", {"round": 0.5}),
    "a round that is true": ("here", {"round": True}),
    "a huge round": ("again", {"round": 1 << 60}),
    "a step that is text": ("pass", {"step": "1"}),
    "no step": ("again", {"step": None}),
    "a long stage": ("pass", {"stage": "s" * 201}),
    "half a character": ("pass", {"stage": "\ud800"}),
    "one who is gone as text": ("leave", {"gone": "p4"}),
    "one without a name": ("leave", {"gone": [""]}),
    "a number for a name": ("leave", {"gone": [4]}),
    "a long name": ("key", {"origin": "p" * 201}),
    "again in words": ("key", {"again": "yes"}),
    "again as a number": ("key", {"again": 1}),
    "a table of numbers": ("pass", {"shapes": [[1, 2]]}),
    "two rows of numbers": ("pass", {"shapes": [[1], [1]]}),
    "no numbers at all": ("pass", {"shapes": []}),
    "numbers in a question": ("again", {"shapes": [[1]]}),
    "pieces in what has none": ("here", {"lengths": [0]}),
    "two digests": ("leave", {"lengths": [8, 8]}),
    "a key in two pieces": ("key", {"lengths": [96, 16]}),
    "lengths below zero": ("leave", {"lengths": [-16]}),
    "endless lengths": ("leave", {"lengths": [1 << 50]}),
    "another kind": ("here", {"kind": "there"}),
    "a list for a kind": ("here", {"kind": ["here"]}),
    "one field more": ("here", {"terms": "x"}),
}


@each("what", BAD)
def test_a_head_that_no_peer_writes_is_refused(what: str) -> None:
    kind, changes = BAD[what]
    assert picture(decode(spelled(kind, {}))) == picture(Message("p1", "p0", EXAMPLES[kind]))
    with pytest.raises(ProtocolError, match="not a message of version"):
        decode(spelled(kind, changes))


@settings(max_examples=100)
@given(st.lists(st.builds(replace, st.just(Message("p1", "p0", KeepAlive(0))), body=BODIES), min_size=1, max_size=8))
def test_whatever_comes_over_the_wire_a_peer_takes_it_or_names_its_sender(messages: list[Message]) -> None:
    """Any messages at all, most of them of other studies: nothing but a `PeerError`, and then no trace."""
    these = circle("complete", 4, consensus="metropolis")
    peer = these.peers["p0"]
    peer.start()
    for message in messages:
        bodies = [message.body]
        if isinstance(message.body, PartialSum | ResendRequest | PeersDropped | PeerKey):
            # And the same as one of this study.
            bodies.append(replace(message.body, terms=these.terms.digest))
        for body in bodies:
            before = look(peer)
            try:
                peer.receive(decode(encode(replace(message, body=body))))
            except PeerError as error:
                assert error.peer == "p1"
                assert look(peer) == before
