"""`Round` and `Unfinished`: the public record of a fit over sites or peers, also of one that did not end."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from eigenveil.core.ledger import Charge, Ledger
from eigenveil.protocols import HubRound
from eigenveil.runtimes import Refusal

__all__ = ["Round", "Unfinished", "Watch", "round_of"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round of a fit over sites or peers: who answered, what it sent, how far the answer moved, and what was charged.

    Bytes are those of all links together. Peers have no up or down, so all of theirs are `bytes_up`. The largest sine between
    the directions before and after is `movement`. FedPower's rho_t, how far the sites were from the broadcast basis, is
    `residual`. Both are None if there was nothing to measure or it is not public. The `charges` are entries of the hub's ledger
    or, if sites add the noise, of one site's. A round `restarted` if sites that had been counted were gone: the fit began
    again without them. The `variances` are those along the estimate after the round, summed over rows: the scree so far. They
    are empty where a hub has no estimate yet, and between peers.
    """

    number: int
    stage: str
    answered: tuple[str, ...]
    missing: tuple[str, ...]
    bytes_down: int
    bytes_up: int
    movement: float | None
    residual: float | None
    charges: tuple[Charge, ...]
    restarted: bool = False
    variances: tuple[float, ...] = ()


Watch = Callable[[Round], None]


def round_of(round_: HubRound, *, method: str, down: int, up: int, charges: tuple[Charge, ...]) -> Round:
    """The record of a hub's round, with its bytes and its charges."""
    return Round(
        number=round_.number,
        stage=round_.stage if round_.stage != "components" else f"{method} {round_.step + 1}",
        answered=round_.answered,
        missing=round_.missing,
        bytes_down=down,
        bytes_up=up,
        movement=round_.movement,
        residual=round_.spread,
        charges=charges,
        restarted=round_.restarted,
        variances=round_.variances,
    )


@final
@dataclass(frozen=True, slots=True, eq=False)
class Unfinished:
    """A fit that did not end: its rounds, each party's ledger, and the messages that were refused."""

    transcript: tuple[Round, ...]
    ledgers: dict[str, Ledger]
    refused: tuple[Refusal, ...]
