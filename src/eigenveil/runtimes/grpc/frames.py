"""A message as frames: the first gives the length of the message, and none is longer than a chunk. Anything else is refused.

Every frame but the last of a message is a full chunk. So a sender can neither block a place with tiny frames nor send more than
it announced.
"""

import io
import struct
from collections.abc import Iterator, Mapping
from typing import Final, final

from eigenveil.errors import EigenveilError

__all__ = [
    "CHUNK",
    "LARGEST_FRAME",
    "LONGEST_GREETING",
    "BadFrame",
    "Bye",
    "Incoming",
    "bye",
    "frames_of",
    "greeting_frame",
    "is_greeting",
    "parting",
]

# Measured: a round of 25.6 MB to three sites, on a busy machine, against bare TLS sockets. It takes 3.2 times as long with chunks
# of 64 KiB, 2.3 with 256 KiB, 2.2 with 1 MiB and 2.0 with 4 MiB. A smaller chunk leaves the loop to others more often. gRPC's
# windows, frame sizes and read sizes made no difference beyond noise, and keep their defaults.
CHUNK: Final = 1 << 20
LONGEST_GREETING: Final = 4096
_GREETING, _FIRST, _MORE, _BYE = range(4)
_HEAD: Final = struct.Struct("<BBQ")
LARGEST_FRAME: Final = CHUNK + _HEAD.size


@final
class Bye:
    """Why one side ends a connection: one byte on the wire, words for people."""

    CLOSED, REPLACED, TOO_LONG, UNFIT, CROSSED = range(5)
    WORDS: Final = (
        "it closed the connection",
        "it has a newer connection under this name: is the same party running twice?",
        "it does not accept messages as long as the one sent to it",
        "it was sent something it does not understand",
        "both sides dial each other, and only one of them may",
    )


class BadFrame(EigenveilError):
    """A refused frame; the sender is told the `code`."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code, self.why = code, why


def frames_of(kind: int, data: bytes) -> Iterator[bytes]:
    """The frames of one message. Each copies only its own part, when it is asked for.

    >>> [len(frame) for frame in frames_of(7, bytes(CHUNK + 5))]
    [1048586, 6]
    """
    view = memoryview(data)
    yield b"".join((_HEAD.pack(_FIRST, kind, len(data)), view[:CHUNK]))
    for start in range(CHUNK, len(data), CHUNK):
        yield b"".join((bytes((_MORE,)), view[start : start + CHUNK]))


def greeting_frame(greeting: bytes) -> bytes:
    """The first frame on every connection."""
    return bytes((_GREETING,)) + greeting


def is_greeting(frame: bytes) -> bool:
    """Whether this is a greeting of an allowed length."""
    return frame[:1] == bytes((_GREETING,)) and len(frame) <= 1 + LONGEST_GREETING


def bye(code: int) -> bytes:
    """The last frame on a connection that is ended on purpose."""
    return bytes((_BYE, code))


def parting(frame: bytes) -> str | None:
    """Why the sender of this frame ends the connection; None for any other frame.

    >>> parting(bye(Bye.CLOSED))
    'it closed the connection'
    """
    if frame[:1] != bytes((_BYE,)):
        return None
    return Bye.WORDS[frame[1]] if len(frame) == 2 and frame[1] < len(Bye.WORDS) else "it ended the connection"


@final
class Incoming:
    """One message on its way in, of a kind in `accepts` and at most as long as it says there. Changes in place.

    It has memory for what has come, and none for what was only announced.

    >>> first, second = frames_of(7, bytes(CHUNK + 5))
    >>> message = Incoming(first, accepts={7: 1 << 30})
    >>> message.complete, message.add(second), message.complete
    (False, None, True)
    >>> message.kind, len(message.data())
    (7, 1048581)
    """

    def __init__(self, frame: bytes, *, accepts: Mapping[int, int]) -> None:
        if len(frame) < _HEAD.size or frame[0] != _FIRST:
            raise BadFrame(Bye.UNFIT, "it sent something that is not the beginning of a message")
        self.kind: int
        self.length: int
        _, self.kind, self.length = _HEAD.unpack_from(frame)
        # Refused by its kind and announced length, before the rest of it is read.
        limit = accepts.get(self.kind)
        if limit is None:
            raise BadFrame(Bye.UNFIT, "it announced a message of a kind that is unknown here")
        if self.length > limit:
            raise BadFrame(
                Bye.TOO_LONG, f"it announced a message of {self.length} bytes, and at most {limit} are allowed"
            )
        # This buffer becomes the result without a copy. A list of parts would need one.
        self._buffer = io.BytesIO()
        self._take(frame, _HEAD.size)

    @property
    def complete(self) -> bool:
        """Whether all of it has come."""
        return self._buffer.tell() == self.length

    def add(self, frame: bytes) -> None:
        """Take the next frame; a `BadFrame` error unless it is exactly what was announced."""
        if frame[:1] != bytes((_MORE,)):
            raise BadFrame(Bye.UNFIT, "it began something else in the middle of a message")
        self._take(frame, 1)

    def data(self) -> bytes:
        """The whole message."""
        return self._buffer.getvalue()

    def _take(self, frame: bytes, start: int) -> None:
        if len(frame) - start != min(CHUNK, self.length - self._buffer.tell()):
            raise BadFrame(Bye.UNFIT, "it sent another number of bytes than it announced")
        self._buffer.write(memoryview(frame)[start:])
