"""A message and its frames: cut and put together it is the same, and what was not announced is refused."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eigenveil.runtimes.grpc.channel import (
    CHUNK,
    LARGEST_FRAME,
    LONGEST_GREETING,
    BadFrame,
    Bye,
    Incoming,
    bye,
    frames_of,
    greeting_frame,
    is_greeting,
    parting,
)

LIMIT = 1 << 30
ANY = dict.fromkeys(range(256), LIMIT)


def first(length: int, data: bytes, kind: int = 0) -> bytes:
    return struct.pack("<BBQ", 1, kind, length) + data


def together(frames: list[bytes]) -> Incoming:
    message = Incoming(frames[0], accepts=ANY)
    for frame in frames[1:]:
        assert not message.complete
        message.add(frame)
    return message


@given(kind=st.integers(0, 255), chunks=st.integers(0, 3), more=st.sampled_from([-1, 0, 1, 1000]))
def test_put_together_it_is_what_was_cut(kind: int, chunks: int, more: int) -> None:
    data = bytes(range(251)) * (1 + max(0, chunks * CHUNK + more) // 251)
    data = data[: max(0, chunks * CHUNK + more)]
    frames = list(frames_of(kind, data))
    message = together(frames)
    assert message.complete
    assert (message.kind, message.data()) == (kind, data)
    assert max(map(len, frames)) <= LARGEST_FRAME
    assert len(frames) == max(1, -(-len(data) // CHUNK))


def test_an_announcement_over_the_limit_is_refused_and_nothing_is_held() -> None:
    with pytest.raises(BadFrame, match=f"announced a message of {LIMIT + 1} bytes, and at most {LIMIT} are allowed") as refusal:
        Incoming(first(LIMIT + 1, bytes(CHUNK)), accepts=ANY)
    assert refusal.value.code == Bye.TOO_LONG
    assert not Incoming(first(LIMIT, bytes(CHUNK)), accepts=ANY).complete


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x01",
        first(3, b"abcd"),
        first(3, b"ab"),
        first(2 * CHUNK, bytes(CHUNK - 1)),
        first(2 * CHUNK, bytes(CHUNK + 1)),
        first(0, b"a"),
        b"\x02abcdefghijkl",
        b"\x07abcdefghijkl",
        greeting_frame(b"hello hello hello"),
    ],
)
def test_what_begins_no_message_is_refused(frame: bytes) -> None:
    with pytest.raises(BadFrame) as refusal:
        Incoming(frame, accepts=ANY)
    assert refusal.value.code == Bye.UNFIT


@pytest.mark.parametrize(
    "frame", [b"", b"\x02", b"\x02abcd", b"\x02ab", first(3, b"abc"), b"\x00abc", b"\x09abc", b"\x02" + bytes(CHUNK)]
)
def test_what_continues_no_message_is_refused(frame: bytes) -> None:
    message = Incoming(first(CHUNK + 3, bytes(CHUNK)), accepts=ANY)
    with pytest.raises(BadFrame):
        message.add(frame)


def test_a_message_that_is_whole_takes_nothing_more() -> None:
    message = Incoming(first(1, b"a"), accepts=ANY)
    with pytest.raises(BadFrame):
        message.add(b"\x02b")


def test_greetings_have_a_longest_length() -> None:
    assert is_greeting(greeting_frame(bytes(LONGEST_GREETING)))
    assert not is_greeting(greeting_frame(bytes(LONGEST_GREETING + 1)))
    assert not is_greeting(b"")
    assert not is_greeting(bye(0))


def test_every_parting_has_words_even_one_from_a_later_version() -> None:
    assert [parting(bye(code)) for code in range(len(Bye.WORDS))] == list(Bye.WORDS)
    assert parting(bye(200)) == parting(b"\x03") == "it ended the connection"
    assert parting(b"") is None
    assert parting(first(1, b"a")) is None
