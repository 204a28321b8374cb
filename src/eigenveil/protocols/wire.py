"""Messages as bytes: a version, a short JSON head, then the numbers as they are. No other module knows about bytes.

Nothing is executed or guessed while reading. Bytes that are not exactly one message of this version, within its size, are
refused. `MessageLimits` says which messages may come to a party and what each may have. It is compared with a message's head
before anything of the message is copied. Nothing in a message is compressed.
"""

import io
import json
import math
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from eigenveil.errors import ProtocolError
from eigenveil.linalg import Array
from eigenveil.privacy.released import packed_side
from eigenveil.protocols import messages
from eigenveil.protocols.messages import LONGEST_NAME, Body, Message
from eigenveil.tasks.base import Question

__all__ = ["LIMIT", "VERSION", "KindLimit", "MessageLimits", "decode", "encode", "in_round", "name_bytes", "size"]

VERSION: Final = 2
# Largest message in bytes, whatever a study needs: a covariance of some 16000 columns.
LIMIT: Final = 1 << 30
_MAGIC: Final = b"EIGV"
_FRAME: Final = struct.Struct("<4sBI")
# Limits on what a stranger can make this process allocate before a message is refused.
_LARGEST_HEAD: Final = 1 << 20
_MOST_ARRAYS: Final = 64
# The longest parts of a head: fields with single numbers or short words, one array's shape, one piece's length.
_FIELDS, _SHAPE, _LENGTH = 384, 40, 12
# Made once: json.dumps would make one for every head.
_JSON: Final = json.JSONEncoder(separators=(",", ":"))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class KindLimit:
    """The most that one kind of message may have in a study.

    >>> KindLimit(numbers=1000, arrays=1, names=20).size
    8453
    """

    numbers: int = 0  # In all arrays together.
    arrays: int = 0
    data: int = 0  # Bytes of its own.
    entries: int = 0  # Pieces in its table.
    entry: int = 0  # Bytes of a piece.
    names: int = 0  # Bytes of the names in its head, counted as `name_bytes` does.

    @property
    def head(self) -> int:
        return _FIELDS + self.names + _SHAPE * self.arrays + _LENGTH * self.entries

    @property
    def size(self) -> int:
        return _FRAME.size + self.head + 8 * self.numbers + self.data + self.entries * self.entry


@final
@dataclass(frozen=True, slots=True)
class MessageLimits:
    """Which messages may come to a party, by kind and step, and the most that each may have. The step is "" for most kinds."""

    kinds: Mapping[tuple[type[Body], str], KindLimit]

    @property
    def largest(self) -> int:
        return max(limit.size for limit in self.kinds.values())

    @property
    def head(self) -> int:
        return max(limit.head for limit in self.kinds.values())


def name_bytes(name: str) -> int:
    """The bytes that a name takes in a head: JSON writes other alphabets in six bytes a letter.

    >>> name_bytes("Lyon"), name_bytes("Łódź")
    (7, 22)
    """
    return len(_JSON.encode(name)) + 1


def encode(message: Message) -> bytes:
    """The bytes of a message.

    >>> decode(encode(Message("a", "hub", messages.Decline(3)))).body.round
    3
    """
    head, arrays = _head(message)
    text = _text(head)
    half = isinstance(message.body, messages.Contribution) and message.body.half
    numbers = [_triangle(array) if half and array.ndim == 2 else array for array in arrays]
    kind = _NUMBERS[isinstance(message.body, messages.Masked)]
    raw = (np.ascontiguousarray(array, dtype=kind).reshape(-1).view(np.uint8).data for array in numbers)
    return b"".join([_FRAME.pack(_MAGIC, VERSION, len(text)), text, *_pieces(message.body), *raw])


def in_round(pieces: Iterable[bytes], round_: int) -> bytes:
    """A message of ours, which comes in pieces, as one of another round: all else of its bytes is as it was.

    The first piece has all of its head. Nothing of its length is in memory twice.

    >>> decode(in_round([encode(Message("a", "hub", messages.Decline(3)))], 12)).body.round
    12
    """
    rest = iter(pieces)
    first = next(rest)
    start = _FRAME.size + _FRAME.unpack_from(first)[-1]
    text = _text(json.loads(first[_FRAME.size : start]) | {"round": round_})
    # This buffer becomes the result without a copy.
    buffer = io.BytesIO()
    buffer.writelines((_FRAME.pack(_MAGIC, VERSION, len(text)), text, memoryview(first)[start:]))
    buffer.writelines(rest)
    return buffer.getvalue()


def size(message: Message) -> int:
    """The number of bytes that `encode` would make, without making them."""
    head, arrays = _head(message)
    half = isinstance(message.body, messages.Contribution) and message.body.half
    numbers = sum(8 * (_half(len(a)) if half and a.ndim == 2 else a.size) for a in arrays)
    return _FRAME.size + _head_size(tuple(head.items())) + sum(map(len, _pieces(message.body))) + numbers


# Parties send messages with the same head to each other in turn, and a simulation counts the bytes of them all.
@lru_cache(maxsize=256)
def _head_size(fields: tuple[tuple[str, Any], ...]) -> int:
    return len(_text(dict(fields)))


def decode(data: bytes, *, limits: MessageLimits | None = None) -> Message:
    """The message in `data`, which `limits` must allow. A `ProtocolError` says what is wrong with data that hold none."""
    try:
        return _decode(data, limits)
    except (ValueError, TypeError, LookupError, RecursionError, OverflowError, struct.error) as error:
        # Bytes of a stranger can fail anywhere while they are parsed, and none of that may end this process.
        raise ProtocolError(f"not a message of version {VERSION}: {error}") from error


def _decode(data: bytes, limits: MessageLimits | None) -> Message:
    # Before anything is parsed: a length is cheap to check, and a stranger may have sent it.
    limit, longest = (LIMIT, _LARGEST_HEAD) if limits is None else (limits.largest, limits.head)
    if len(data) > limit:
        raise ValueError(f"it has {len(data)} bytes, and at most {limit} are allowed")
    magic, version, length = _FRAME.unpack_from(data)
    if magic != _MAGIC or version != VERSION:
        raise ValueError("it opens with other bytes than a message does")
    start = _FRAME.size + length
    if length > longest or start > len(data):
        raise ValueError("its head is too long")
    text = data[_FRAME.size : start]
    head = json.loads(text)
    if _text(head) != text:
        # One message has one encoding. JSON would read a repeated field or other spacing as the same head.
        raise ValueError("its head is not in the canonical form")
    body = _BODIES.get(head["kind"]) if isinstance(head, dict) else None
    if body is None:
        raise ValueError("its kind is unknown")
    form = _FORMS[body]
    # Exactly these fields. An unknown one would be dropped unread, and one message would have several encodings.
    if set(head) != {"kind", "from", "to", "round", "shapes", *form.head, *(("lengths",) if form.pieces else ())}:
        raise ValueError("its head has unknown fields, or lacks some")
    if limits is not None:
        _require_within(head, length, limits)
    sender, receiver = _name(head["from"]), _name(head["to"])
    pieces = _split(data, start, head.get("lengths", []))
    start += sum(map(len, pieces))
    kind = _NUMBERS[body is messages.Masked]
    arrays = _arrays(data, start, head["shapes"], half=bool(head.get("half", False)), kind=kind)
    return Message(sender, receiver, _body(body, head, arrays, pieces))


_NUMBERS: Final = {False: "<f8", True: "<u8"}
_MOST_PIECES: Final = 1 << 17


def _require_within(head: dict[str, Any], length: int, limits: MessageLimits) -> None:
    """Refuse a head that announces more than a message of its kind may have, before anything is copied or made."""
    body = _BODIES[head["kind"]]
    form = _FORMS[body]
    limit, own_pieces = limits.kinds.get((body, str(head["step"]) if form.has_table else "")), len(form.pieces)
    if limit is None:
        raise ValueError(f"no message of the kind {form.kind!r}, or of this step, is expected here")
    shapes, pieces = head["shapes"], head.get("lengths", [])
    if not isinstance(shapes, list) or not isinstance(pieces, list):
        raise ValueError("a list was expected in its head")
    if length > limit.head or len(shapes) > limit.arrays or len(pieces) > own_pieces + limit.entries:
        raise ValueError("it has more names, arrays or entries than this study needs")
    half = head.get("half") is True
    numbers = sum(_half(_whole(shape[0])) if half else math.prod(map(_whole, shape)) for shape in shapes)
    own, entries = pieces[:own_pieces], pieces[own_pieces:]
    if numbers > limit.numbers or sum(map(_whole, own)) > limit.data:
        raise ValueError("it has more numbers or bytes than this study needs")
    if any(_whole(piece) > limit.entry for piece in entries):
        raise ValueError("an entry of it has more bytes than this study needs")


def _text(head: Any) -> bytes:
    return _JSON.encode(head).encode()


def _pieces(body: Body) -> list[bytes]:
    """What is already bytes, in the order sent."""
    pieces = [getattr(body, name) for name in _FORMS[type(body)].pieces]
    return pieces + [piece for _, piece in getattr(body, "table", ())]


def _head(message: Message) -> tuple[dict[str, Any], tuple[NDArray[Any], ...]]:
    body = message.body
    form, pieces = _FORMS[type(body)], _pieces(body)
    head = {"kind": form.kind, "from": message.sender, "to": message.receiver, "round": body.round}
    head |= {name: getattr(_with_field(body, name), name) for name in form.head}
    if pieces:
        head["lengths"] = tuple(map(len, pieces))
    arrays = (getattr(body, form.vector),) if form.vector else getattr(_with_field(body, "arrays"), "arrays", ())
    # The shape of a packed matrix is that of the whole one: how much of it is sent is said by `half`.
    packed = isinstance(body, messages.Contribution) and body.half
    head["shapes"] = tuple((packed_side(len(a)),) * 2 if packed and a.ndim == 1 else a.shape for a in arrays)
    return head, arrays


def _with_field(body: Body, name: str) -> Body | Question:
    """What has this field of a message: a question has three of its own."""
    return body.question if isinstance(body, messages.Ask) and name in ("step", "stage", "arrays") else body


def _body(body: type[Body], head: dict[str, Any], arrays: tuple[NDArray[Any], ...], pieces: list[bytes]) -> Body:
    form = _FORMS[body]
    values = {name: read(head[name]) for name, read in form.head.items()} | {"round": _whole(head["round"])}
    own, entries = pieces[: len(form.pieces)], pieces[len(form.pieces) :]
    names = values.pop("names", ())
    if len(own) < len(form.pieces) or len(entries) != len(names) or len(set(names)) != len(names):
        raise ValueError("a message of its kind has other pieces, or each name in it must have one piece")
    values |= zip(form.pieces, own, strict=True)
    if form.has_table:
        values["table"] = tuple(zip(names, entries, strict=True))
    if form.vector:
        if len(arrays) != 1 or arrays[0].ndim != 1:
            raise ValueError("the numbers of a message of its kind must be one vector")
        values[form.vector] = arrays[0]
    elif form.has_arrays:
        values["arrays"] = arrays
    elif arrays:
        raise ValueError("a message of its kind must carry no numbers")
    if body is messages.Ask:
        values["question"] = Question(step=values.pop("step"), arrays=values.pop("arrays"), stage=values.pop("stage"))
    return body(**values)


def _stage(stage: Any) -> str:
    if not isinstance(stage, str) or len(stage) > LONGEST_NAME:
        raise ValueError("its stage is not a short text")
    # A lone surrogate is valid JSON and not valid text: encoding raises a ValueError.
    stage.encode()
    return stage


def _split(data: bytes, start: int, lengths: Any) -> list[bytes]:
    if not isinstance(lengths, list) or len(lengths) > _MOST_PIECES:
        raise ValueError(f"it has more than {_MOST_PIECES} pieces")
    pieces: list[bytes] = []
    for length in lengths:
        # Python cuts a slice short at the end of the data, without an error.
        if _whole(length) > len(data) - start:
            raise ValueError("it ends too early")
        pieces.append(data[start : start + length])
        start += length
    return pieces


def _arrays(data: bytes, start: int, shapes: Any, *, half: bool, kind: str) -> tuple[NDArray[Any], ...]:
    if not isinstance(shapes, list) or len(shapes) > _MOST_ARRAYS:
        raise ValueError(f"it has more than {_MOST_ARRAYS} arrays")
    arrays: list[NDArray[Any]] = []
    for shape in shapes:
        if not isinstance(shape, list) or len(shape) > 2:
            raise ValueError("an array has more than two dimensions")
        sides = tuple(_whole(side) for side in shape)
        if half and (len(sides) != 2 or sides[0] != sides[1]):
            raise ValueError("only a square matrix can be sent by half")
        count = _half(sides[0]) if half else math.prod(sides)
        # Before numpy allocates anything: a short head can announce an array of any size.
        if 8 * count > len(data) - start:
            raise ValueError("it ends too early")
        flat = np.frombuffer(data, dtype=kind, count=count, offset=start).astype(kind[1:], copy=False)
        # After a head of any length the numbers may be unaligned, and products of such arrays take several times as long.
        flat = flat if flat.flags.aligned else flat.copy()
        arrays.append(_square(flat, sides[0]) if half else flat.reshape(sides))
        start += 8 * count
    if start != len(data):
        raise ValueError("bytes follow its end")
    return tuple(arrays)


def _half(side: int) -> int:
    return side * (side + 1) // 2


def _triangle(matrix: Array) -> Array:
    # Row by row: arrays of indices would take twice the memory of the matrix.
    return np.concatenate([matrix[row, row:] for row in range(len(matrix))]) if len(matrix) else matrix.reshape(-1)


def _square(flat: Array, side: int) -> Array:
    matrix, start = np.empty((side, side)), 0
    for row in range(side):
        # Assigned twice, not added to zeros: minus zero would lose its sign.
        matrix[row, row:] = matrix[row:, row] = flat[start : start + side - row]
        start += side - row
    return matrix


def _whole(value: Any) -> int:
    # `type`, not `isinstance`: true is an int in Python. Beyond 2^53 other JSON readers lose digits.
    if type(value) is not int or not 0 <= value < 1 << 53:
        raise ValueError("a number in its head is not a whole number from 0 to 2^53")
    return value


def _name(value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_NAME:
        raise ValueError(f"a name has 1 to {LONGEST_NAME} characters")
    # A lone surrogate is valid JSON and not valid text: encoding raises a ValueError.
    value.encode()
    return value


def _names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ValueError("a list of names was expected in its head")
    return tuple(_name(name) for name in value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("half and again must be true or false")
    return value


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """How one kind of message is written: its name, and what comes after its sender, receiver and round."""

    kind: str
    head: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)  # Fields of the head, and what reads each.
    has_arrays: bool = False
    vector: str = ""  # The field that is one vector. "" for none.
    pieces: tuple[str, ...] = ()  # The fields that are bytes.
    has_table: bool = False  # An entry of bytes for each of its names.


# The names belong to version 2 of the format: ledgers and hub logs keep such bytes, so renaming a class or a field must not
# change them.
_FORMS: Final[Mapping[type[Body], _Form]] = {
    messages.Ask: _Form(kind="ask", head={"step": _whole, "stage": _stage, "without": _names}, has_arrays=True),
    messages.Contribution: _Form(kind="give", head={"missing": _names, "half": _flag}, has_arrays=True),
    messages.Decline: _Form(kind="decline"),
    messages.Done: _Form(kind="done", has_arrays=True),
    messages.StepRequest: _Form(kind="brief", head={"step": _name, "names": _names}, pieces=("data",), has_table=True),
    messages.StepReply: _Form(kind="return", head={"step": _name, "names": _names}, pieces=("signature", "data"), has_table=True),
    messages.Masked: _Form(kind="masked", vector="limbs", pieces=("signature",)),
    messages.PartialSum: _Form(
        kind="pass", head={"step": _whole, "stage": _stage, "without": _names, "base": _whole}, vector="values", pieces=("terms",)
    ),
    messages.ResendRequest: _Form(kind="again", head={"step": _whole, "without": _names, "base": _whole}, pieces=("terms",)),
    messages.KeepAlive: _Form(kind="here"),
    messages.PeersDropped: _Form(kind="leave", head={"gone": _names}, pieces=("terms",)),
    messages.PeerKey: _Form(
        kind="key", head={"origin": _name, "target": _name, "again": _flag}, pieces=("key", "signature", "terms")
    ),
}
_BODIES: Final = {form.kind: body for body, form in _FORMS.items()}
