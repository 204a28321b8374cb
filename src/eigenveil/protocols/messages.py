"""What parties say to each other: frozen, few, and all of it plain numbers and names."""

from dataclasses import dataclass
from typing import Final, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from eigenveil.errors import require
from eigenveil.linalg import Array
from eigenveil.tasks import Question

__all__ = [
    "LONGEST_NAME",
    "Again",
    "Ask",
    "Brief",
    "Card",
    "Decline",
    "Done",
    "Envelope",
    "Give",
    "Here",
    "Leave",
    "Masked",
    "Message",
    "Pass",
    "Return",
    "Table",
]

Table: TypeAlias = tuple[tuple[str, bytes], ...]

# Of a site or a stage, in characters.
LONGEST_NAME: Final = 200


@final
@dataclass(frozen=True, slots=True, eq=False)
class Ask:
    """Hub to sites: the question of a turn. `without` names the sites that no longer count."""

    turn: int
    question: Question
    without: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require(self.turn >= 0 and self.question.step >= 0, "turn and step count from zero")


@final
@dataclass(frozen=True, slots=True, eq=False)
class Give:
    """Site to hub: its part of a turn. An inner node of a tree says which sites below it are `missing` from it.

    `symmetric` says that the arrays are symmetric matrices, of which half is sent.
    """

    turn: int
    arrays: tuple[Array, ...]
    missing: tuple[str, ...] = ()
    symmetric: bool = False

    def __post_init__(self) -> None:
        require(self.turn >= 0, "turn counts from zero")


@final
@dataclass(frozen=True, slots=True, eq=False)
class Decline:
    """Site to hub: there will be no part of mine in this turn. Why is the site's own business."""

    turn: int

    def __post_init__(self) -> None:
        require(self.turn >= 0, "turn counts from zero")


@final
@dataclass(frozen=True, slots=True, eq=False)
class Done:
    """Hub to sites: the answer, and no more turns."""

    turn: int
    arrays: tuple[Array, ...]

    def __post_init__(self) -> None:
        require(self.turn >= 0, "turn counts from zero")


@final
@dataclass(frozen=True, slots=True, eq=False)
class Brief:
    """Hub to site, where sums are masked: a `step` between two questions, with what it is about, and what is from each site."""

    turn: int
    step: str
    data: bytes = b""
    table: Table = ()

    def __post_init__(self) -> None:
        require(self.turn >= 0, "turn counts from zero")


@final
@dataclass(frozen=True, slots=True, eq=False)
class Return:
    """Site to hub: its answer to a `Brief`, what is for each site, and the site's signature."""

    turn: int
    step: str
    data: bytes
    table: Table
    signature: bytes

    def __post_init__(self) -> None:
        require(self.turn >= 0, "turn counts from zero")


@final
@dataclass(frozen=True, slots=True, eq=False)
class Masked:
    """Site to hub: its part of a turn as integers modulo 2^64, under masks, signed."""

    turn: int
    words: NDArray[np.uint64]
    signature: bytes

    def __post_init__(self) -> None:
        require(self.turn >= 0, "turn counts from zero")


@final
@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """Peer to neighbour: its numbers, (n,), in one `step` of adding up a turn.

    `stage` says what the turn is about, `without` which peers no longer count, `base` the turn that was begun again when they
    were left behind, and `terms` is a digest of what all peers have agreed on: whoever adds up something else, or otherwise, is
    not one of them.
    """

    turn: int
    step: int
    values: Array
    stage: str
    without: tuple[str, ...]
    terms: bytes
    base: int = 0

    def __post_init__(self) -> None:
        require(min(self.turn, self.step, self.base) >= 0, "turn, step and base count from zero")


@final
@dataclass(frozen=True, slots=True, eq=False)
class Again:
    """Peer to neighbour: your numbers of this step have not come."""

    turn: int
    step: int
    without: tuple[str, ...]
    terms: bytes
    base: int = 0

    def __post_init__(self) -> None:
        require(min(self.turn, self.step, self.base) >= 0, "turn, step and base count from zero")


@final
@dataclass(frozen=True, slots=True, eq=False)
class Here:
    """Peer to neighbour: I have nothing to send in this turn yet, and wait for others myself."""

    turn: int

    def __post_init__(self) -> None:
        require(self.turn >= 0, "turn counts from zero")


@final
@dataclass(frozen=True, slots=True, eq=False)
class Leave:
    """Peer to neighbour: the `gone` no longer count, and turn `turn` begins again without them."""

    turn: int
    gone: tuple[str, ...]
    terms: bytes

    def __post_init__(self) -> None:
        require(self.turn >= 0, "turn counts from zero")


@final
@dataclass(frozen=True, slots=True, eq=False)
class Card:
    """From peer `origin` to peer `target`, passed on by those between: a public key, signed. `again` asks for the target's."""

    turn: int
    origin: str
    target: str
    key: bytes
    signature: bytes
    terms: bytes
    again: bool = False

    def __post_init__(self) -> None:
        require(self.turn >= 0, "turn counts from zero")


Message: TypeAlias = Ask | Give | Decline | Done | Brief | Return | Masked | Pass | Again | Here | Leave | Card


@final
@dataclass(frozen=True, slots=True, eq=False)
class Envelope:
    """A message on its way. Whoever carries it vouches for the sender: a forged name must not get as far as a party."""

    sender: str
    receiver: str
    body: Message
