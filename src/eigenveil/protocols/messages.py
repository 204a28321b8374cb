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
    "Body",
    "Brief",
    "Decline",
    "Done",
    "Give",
    "Here",
    "Leave",
    "Masked",
    "Message",
    "Pass",
    "PeerKey",
    "Return",
    "Table",
]

Table: TypeAlias = tuple[tuple[str, bytes], ...]

# Of a site or a stage, in characters.
LONGEST_NAME: Final = 200


@final
@dataclass(frozen=True, slots=True, eq=False)
class Ask:
    """Hub to sites: the question of a round. `without` names the sites that no longer count."""

    round: int
    question: Question
    without: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require(self.round >= 0 and self.question.step >= 0, "round and step count from zero")


@final
@dataclass(frozen=True, slots=True, eq=False)
class Give:
    """Site to hub: its part of a round. An inner node of a tree says which sites below it are `missing` from it.

    `symmetric` says that the arrays are symmetric matrices, of which half is sent.
    """

    round: int
    arrays: tuple[Array, ...]
    missing: tuple[str, ...] = ()
    symmetric: bool = False

    def __post_init__(self) -> None:
        require(self.round >= 0, "round counts from zero")


@final
@dataclass(frozen=True, slots=True, eq=False)
class Decline:
    """Site to hub: there will be no part of mine in this round. Why is the site's own business."""

    round: int

    def __post_init__(self) -> None:
        require(self.round >= 0, "round counts from zero")


@final
@dataclass(frozen=True, slots=True, eq=False)
class Done:
    """Hub to sites: the answer, and no more rounds."""

    round: int
    arrays: tuple[Array, ...]

    def __post_init__(self) -> None:
        require(self.round >= 0, "round counts from zero")


@final
@dataclass(frozen=True, slots=True, eq=False)
class Brief:
    """Hub to site, where sums are masked: a `step` between two questions, with what it is about, and what is from each site."""

    round: int
    step: str
    data: bytes = b""
    table: Table = ()

    def __post_init__(self) -> None:
        require(self.round >= 0, "round counts from zero")


@final
@dataclass(frozen=True, slots=True, eq=False)
class Return:
    """Site to hub: its answer to a `Brief`, what is for each site, and the site's signature."""

    round: int
    step: str
    data: bytes
    table: Table
    signature: bytes

    def __post_init__(self) -> None:
        require(self.round >= 0, "round counts from zero")


@final
@dataclass(frozen=True, slots=True, eq=False)
class Masked:
    """Site to hub: its part of a round as integers modulo 2^64, under masks, signed."""

    round: int
    words: NDArray[np.uint64]
    signature: bytes

    def __post_init__(self) -> None:
        require(self.round >= 0, "round counts from zero")


@final
@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """Peer to neighbour: its numbers, (n,), in one `step` of adding up a round.

    `stage` says what the round is about, `without` which peers no longer count, `base` the round that was begun again when they
    were left behind, and `terms` is a digest of what all peers have agreed on: whoever adds up something else, or otherwise, is
    not one of them.
    """

    round: int
    step: int
    values: Array
    stage: str
    without: tuple[str, ...]
    terms: bytes
    base: int = 0

    def __post_init__(self) -> None:
        require(min(self.round, self.step, self.base) >= 0, "round, step and base count from zero")


@final
@dataclass(frozen=True, slots=True, eq=False)
class Again:
    """Peer to neighbour: your numbers of this step have not come."""

    round: int
    step: int
    without: tuple[str, ...]
    terms: bytes
    base: int = 0

    def __post_init__(self) -> None:
        require(min(self.round, self.step, self.base) >= 0, "round, step and base count from zero")


@final
@dataclass(frozen=True, slots=True, eq=False)
class Here:
    """Peer to neighbour: I have nothing to send in this round yet, and wait for others myself."""

    round: int

    def __post_init__(self) -> None:
        require(self.round >= 0, "round counts from zero")


@final
@dataclass(frozen=True, slots=True, eq=False)
class Leave:
    """Peer to neighbour: the `gone` no longer count, and round `round_` begins again without them."""

    round: int
    gone: tuple[str, ...]
    terms: bytes

    def __post_init__(self) -> None:
        require(self.round >= 0, "round counts from zero")


@final
@dataclass(frozen=True, slots=True, eq=False)
class PeerKey:
    """From peer `origin` to peer `target`, passed on by those between: a public key, signed. `again` asks for the target's."""

    round: int
    origin: str
    target: str
    key: bytes
    signature: bytes
    terms: bytes
    again: bool = False

    def __post_init__(self) -> None:
        require(self.round >= 0, "round counts from zero")


Body: TypeAlias = Ask | Give | Decline | Done | Brief | Return | Masked | Pass | Again | Here | Leave | PeerKey


@final
@dataclass(frozen=True, slots=True, eq=False)
class Message:
    """A message on its way. Whoever carries it vouches for the sender: a forged name must not get as far as a party."""

    sender: str
    receiver: str
    body: Body
