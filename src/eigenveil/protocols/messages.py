"""What parties say to each other: a few frozen messages of plain numbers and names. `wire` encodes them."""

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

# Pairs, not a dict: their order is part of the bytes on the wire and of what a site signs.
Table: TypeAlias = tuple[tuple[str, bytes], ...]

# Longest name of a site or a stage, in characters.
LONGEST_NAME: Final = 200


@final
@dataclass(frozen=True, slots=True, eq=False)
class Ask:
    """Hub to sites: the question of a round. `without` names the sites that have dropped out."""

    round: int
    question: Question
    without: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require(self.round >= 0 and self.question.step >= 0, "round and step count from zero")


@final
@dataclass(frozen=True, slots=True, eq=False)
class Give:
    """Site to hub: its part of a round. An inner node of a tree names the sites below it that are `missing` from the part.

    `symmetric` says that the arrays are symmetric matrices, of which half is sent: whole matrices, or flat and packed already.
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
    """Site to hub: no part will come in this round. The reason stays at the site."""

    round: int

    def __post_init__(self) -> None:
        require(self.round >= 0, "round counts from zero")


@final
@dataclass(frozen=True, slots=True, eq=False)
class Done:
    """Hub to sites: the result. No round follows."""

    round: int
    arrays: tuple[Array, ...]

    def __post_init__(self) -> None:
        require(self.round >= 0, "round counts from zero")


@final
@dataclass(frozen=True, slots=True, eq=False)
class Brief:
    """Hub to site, for masked sums: one `step` between two questions, with its `data` and an entry from each other site."""

    round: int
    step: str
    data: bytes = b""
    table: Table = ()

    def __post_init__(self) -> None:
        require(self.round >= 0, "round counts from zero")


@final
@dataclass(frozen=True, slots=True, eq=False)
class Return:
    """Site to hub: its answer to a `Brief`, with an entry for each other site and the site's signature."""

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
    """Site to hub: its part of a round as masked integers modulo 2^64, signed."""

    round: int
    # Unsigned, because masks wrap around modulo 2^64. That is how they cancel exactly in the sum.
    words: NDArray[np.uint64]
    signature: bytes

    def __post_init__(self) -> None:
        require(self.round >= 0, "round counts from zero")


@final
@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """Peer to neighbour: its numbers, (n,), in one `step` of summing a round.

    The task is at `stage`. Peers in `without` are left behind, and round `base` began again without them. All that the peers
    agreed on has the digest `terms`. A peer with other terms sums something else, so it is refused.
    """

    round: int
    step: int
    values: Array
    # These fields say which sum the numbers belong to. Parts for different sets of peers have different pair noise and
    # must never be mixed.
    stage: str
    without: tuple[str, ...]
    terms: bytes
    base: int = 0

    def __post_init__(self) -> None:
        require(min(self.round, self.step, self.base) >= 0, "round, step and base count from zero")


@final
@dataclass(frozen=True, slots=True, eq=False)
class Again:
    """Peer to neighbour: your numbers of this step have not arrived, send them again."""

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
    """Peer to neighbour: I am alive and have nothing to send yet, because I wait for others."""

    round: int

    def __post_init__(self) -> None:
        require(self.round >= 0, "round counts from zero")


@final
@dataclass(frozen=True, slots=True, eq=False)
class Leave:
    """Peer to neighbour: the peers `gone` are left behind, and round `round` begins again without them."""

    round: int
    # All peers left behind so far, because an earlier message may have been lost.
    gone: tuple[str, ...]
    terms: bytes

    def __post_init__(self) -> None:
        require(self.round >= 0, "round counts from zero")


@final
@dataclass(frozen=True, slots=True, eq=False)
class PeerKey:
    """A signed public key from peer `origin` to peer `target`, forwarded by peers between. `again` asks for the target's key."""

    round: int
    # Not the sender of the message: a key may travel over several peers, and the transport vouches for the last one
    # only.
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
    """A message between two parties. The transport vouches for the sender: a forged name must never reach a party."""

    sender: str
    receiver: str
    body: Body
