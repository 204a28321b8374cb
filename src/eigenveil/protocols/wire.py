"""Messages as bytes: a version, a short JSON head, then the numbers as they are. The only place that knows about bytes.

Nothing is executed or guessed on the way in: whatever is not exactly one message of this version, within its size, is refused.
"""

import json
import math
import struct
from typing import Any, Final

import numpy as np

from eigenveil.errors import ProtocolError
from eigenveil.linalg import Array
from eigenveil.protocols.messages import LONGEST_NAME, Ask, Decline, Done, Envelope, Give, Message
from eigenveil.tasks import Question

__all__ = ["LIMIT", "VERSION", "decode", "encode", "size"]

VERSION: Final = 1
# One message, in bytes: a covariance of some 16000 columns.
LIMIT: Final = 1 << 30
_MAGIC: Final = b"EIGV"
_FRAME: Final = struct.Struct("<4sBI")
_LARGEST_HEAD: Final = 1 << 20
_MOST_ARRAYS: Final = 64


def encode(mail: Envelope) -> bytes:
    """The bytes of an envelope.

    >>> decode(encode(Envelope("a", "hub", Decline(3)))).body.turn
    3
    """
    head, arrays = _head(mail)
    text = _text(head)
    half = isinstance(mail.body, Give) and mail.body.symmetric
    numbers = [_triangle(array) if half else array for array in arrays]
    return b"".join([_FRAME.pack(_MAGIC, VERSION, len(text)), text, *(_raw(array) for array in numbers)])


def size(mail: Envelope) -> int:
    """How many bytes `encode` would make, without making them."""
    head, arrays = _head(mail)
    half = isinstance(mail.body, Give) and mail.body.symmetric
    return _FRAME.size + len(_text(head)) + sum(8 * (_half(len(a)) if half else a.size) for a in arrays)


def decode(data: bytes, *, limit: int = LIMIT) -> Envelope:
    """The envelope in `data`, or a `ProtocolError` that says what is wrong with it."""
    try:
        return _decode(data, limit)
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError, struct.error) as error:
        raise ProtocolError(f"not a message of version {VERSION}: {error}") from error


def _decode(data: bytes, limit: int) -> Envelope:
    if len(data) > limit:
        raise ValueError(f"{len(data)} bytes, and {limit} are allowed")
    magic, version, length = _FRAME.unpack_from(data)
    if magic != _MAGIC or version != VERSION:
        raise ValueError("it opens with other bytes")
    start = _FRAME.size + length
    if length > _LARGEST_HEAD or start > len(data):
        raise ValueError("its head is too long")
    text = data[_FRAME.size : start]
    head = json.loads(text)
    if _text(head) != text:
        # A field that is there twice, for one.
        raise ValueError("its head is not written in the one way there is")
    if not isinstance(head, dict) or head.get("kind") not in _MORE:
        raise ValueError("it is of no known kind")
    if set(head) != {"kind", "from", "to", "turn", "shapes", *_MORE[head["kind"]]}:
        raise ValueError("its head has other fields")
    sender, receiver = _name(head["from"]), _name(head["to"])
    arrays = _arrays(data, start, head["shapes"], half=bool(head.get("half", False)))
    return Envelope(sender, receiver, _body(head, arrays))


_MORE: Final = {"ask": ("step", "stage", "without"), "give": ("missing", "half"), "decline": (), "done": ()}


def _text(head: Any) -> bytes:
    return json.dumps(head, separators=(",", ":")).encode()


def _head(mail: Envelope) -> tuple[dict[str, Any], tuple[Array, ...]]:
    body = mail.body
    head: dict[str, Any] = {
        "kind": type(body).__name__.lower(),
        "from": mail.sender,
        "to": mail.receiver,
        "turn": body.turn,
    }
    arrays: tuple[Array, ...] = ()
    match body:
        case Ask():
            arrays = body.question.arrays
            head |= {"step": body.question.step, "stage": body.question.stage, "without": body.without}
        case Give():
            arrays = body.arrays
            head |= {"missing": body.missing, "half": body.symmetric}
        case Done():
            arrays = body.arrays
    return head | {"shapes": [array.shape for array in arrays]}, arrays


def _body(head: dict[str, Any], arrays: tuple[Array, ...]) -> Message:
    turn = _whole(head["turn"])
    match head["kind"]:
        case "ask":
            stage = head["stage"]
            if not isinstance(stage, str) or len(stage) > LONGEST_NAME:
                raise ValueError("its stage is no short text")
            return Ask(turn, Question(_whole(head["step"]), arrays, stage), _names(head["without"]))
        case "give":
            if not isinstance(head["half"], bool):
                raise ValueError("half must be true or false")
            return Give(turn, arrays, _names(head["missing"]), head["half"])
        case "done":
            return Done(turn, arrays)
        case _:
            if arrays:
                raise ValueError("a decline carries no numbers")
            return Decline(turn)


def _arrays(data: bytes, start: int, shapes: Any, *, half: bool) -> tuple[Array, ...]:
    if not isinstance(shapes, list) or len(shapes) > _MOST_ARRAYS:
        raise ValueError(f"it may hold {_MOST_ARRAYS} arrays")
    found: list[Array] = []
    for shape in shapes:
        if not isinstance(shape, list) or len(shape) > 2:
            raise ValueError("an array has at most two dimensions")
        sides = tuple(_whole(side) for side in shape)
        if half and (len(sides) != 2 or sides[0] != sides[1]):
            raise ValueError("half of a matrix that is not square")
        count = _half(sides[0]) if half else math.prod(sides)
        if 8 * count > len(data) - start:
            raise ValueError("it ends too early")
        flat = np.frombuffer(data, dtype="<f8", count=count, offset=start).astype(np.float64, copy=False)
        found.append(_square(flat, sides[0]) if half else flat.reshape(sides))
        start += 8 * count
    if start != len(data):
        raise ValueError("it goes on after its end")
    return tuple(found)


def _raw(array: Array) -> bytes:
    return np.ascontiguousarray(array, dtype="<f8").tobytes()


def _half(side: int) -> int:
    return side * (side + 1) // 2


def _triangle(matrix: Array) -> Array:
    return matrix[np.triu_indices(len(matrix))]


def _square(flat: Array, side: int) -> Array:
    # Written twice, not added to zeros: minus zero would lose its sign.
    matrix, upper = np.empty((side, side)), np.triu_indices(side)
    matrix[upper] = flat
    matrix.T[upper] = flat
    return matrix


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 53:
        raise ValueError("a whole number was expected")
    return value


def _name(value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_NAME:
        raise ValueError(f"a name has 1 to {LONGEST_NAME} characters")
    return value


def _names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ValueError("a list of names was expected")
    return tuple(_name(name) for name in value)
