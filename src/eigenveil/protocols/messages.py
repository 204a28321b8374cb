"""What parties say to each other: a few frozen messages of plain numbers and names. `wire` encodes them."""

from dataclasses import dataclass
from typing import Final, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from eigenveil.errors import require
from eigenveil.linalg import Array
from eigenveil.tasks.base import Question

__all__ = [
    "LONGEST_NAME",
    "Ask",
    "Body",
    "Contribution",
    "Decline",
    "Done",
    "KeepAlive",
    "Masked",
    "Message",
    "PartialSum",
    "PeerKey",
    "PeersDropped",
    "ResendRequest",
    "StepReply",
    "StepRequest",
    "Table",
]

# Pairs, not a dict: their order is part of the bytes on the wire and of what a site signs.
Table: TypeAlias = tuple[tuple[str, bytes], ...]

# Longest name of a site or a stage, in characters.
LONGEST_NAME: Final = 200


@dataclass(frozen=True, slots=True, eq=False)
class _InRound:
    """What all messages have: the number of the `round` that they belong to."""

    round: int

    def __post_init__(self) -> None:
        require(self.round >= 0, "round counts from zero")


@final
@dataclass(frozen=True, slots=True, eq=False)
class Ask(_InRound):
    """Hub to sites: the question of a round. `without` names the sites that have dropped out."""

    question: Question
    without: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require(min(self.round, self.question.step) >= 0, "round and step count from zero")


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Contribution(_InRound):
    """Site to hub: its part of a round."""

    arrays: tuple[Array, ...]
    missing: tuple[str, ...] = ()  # Of the sites below an inner node of a tree: those that are not in the part.
    half: bool = False  # The arrays are symmetric matrices, of which half is sent: whole matrices, or flat and packed already.


@final
@dataclass(frozen=True, slots=True, eq=False)
class Decline(_InRound):
    """Site to hub: no part will come in this round. The reason stays at the site."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Done(_InRound):
    """Hub to sites: the result. No round follows."""

    arrays: tuple[Array, ...]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Step(_InRound):
    """One `step` of masked sums between two questions, with its `data` and an entry for each other site."""

    step: str
    data: bytes = b""
    table: Table = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.table)


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StepRequest(_Step):
    """Hub to site: what it needs in a step, with an entry from each other site."""


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StepReply(_Step):
    """Site to hub: its answer to a `StepRequest`, with an entry for each other site and the site's signature."""

    signature: bytes


@final
@dataclass(frozen=True, slots=True, eq=False)
class Masked(_InRound):
    """Site to hub: its part of a round as masked integers modulo 2^64, signed."""

    # Unsigned, because masks wrap around modulo 2^64. That is how they cancel exactly in the sum.
    limbs: NDArray[np.uint64]
    signature: bytes


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _InSum(_InRound):
    """Which sum numbers belong to: parts for different sets of peers have different pair noise and must never be mixed.

    It is in one `step` of summing a round. Peers in `without` are left behind, and round `base` began again without them. All
    that the peers agreed on has the digest `terms`. A peer with other terms sums something else, so it is refused.
    """

    step: int
    without: tuple[str, ...]
    terms: bytes
    base: int = 0

    def __post_init__(self) -> None:
        require(min(self.round, self.step, self.base) >= 0, "round, step and base count from zero")


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PartialSum(_InSum):
    """Peer to neighbour: its numbers, (n,), in one step of summing a round. The task is at `stage`."""

    values: Array
    stage: str


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ResendRequest(_InSum):
    """Peer to neighbour: your numbers of this step have not arrived, send them again."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class KeepAlive(_InRound):
    """Peer to neighbour: I am alive and have nothing to send yet, because I wait for others."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class PeersDropped(_InRound):
    """Peer to neighbour: the peers `gone` are left behind, and round `round` begins again without them."""

    # All peers left behind so far, because an earlier message may have been lost.
    gone: tuple[str, ...]
    terms: bytes


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PeerKey(_InRound):
    """A signed public key from peer `origin` to peer `target`, forwarded by peers between. `again` asks for the target's key."""

    # Not the sender of the message: a key may travel over several peers, and the transport vouches for the last one
    # only.
    origin: str
    target: str
    key: bytes
    signature: bytes
    terms: bytes
    again: bool = False


Body: TypeAlias = (
    Ask
    | Contribution
    | Decline
    | Done
    | StepRequest
    | StepReply
    | Masked
    | PartialSum
    | ResendRequest
    | KeepAlive
    | PeersDropped
    | PeerKey
)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Message:
    """A message between two parties. The transport vouches for the sender: a forged name must never reach a party."""

    sender: str
    receiver: str
    body: Body
