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
    "Ask",
    "Brief",
    "Decline",
    "Done",
    "Envelope",
    "Give",
    "Masked",
    "Message",
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


Message: TypeAlias = Ask | Give | Decline | Done | Brief | Return | Masked


@final
@dataclass(frozen=True, slots=True, eq=False)
class Envelope:
    """A message on its way. Whoever carries it vouches for the sender: a forged name must not get as far as a party."""

    sender: str
    receiver: str
    body: Message
