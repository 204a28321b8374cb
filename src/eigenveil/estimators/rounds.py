"""What a fit over sites or peers tells of itself, round by round, also if it does not end."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from eigenveil.privacy import Charge, Ledger
from eigenveil.protocols import HubRound
from eigenveil.runtimes import Refusal

__all__ = ["Round", "Unfinished", "Watch", "round_of"]


@final
@dataclass(frozen=True, slots=True)
class Round:
    """One round of a fit over sites or peers, in public terms: who answered, what it took, how far the answer moved, what was
    charged.

    Bytes are those of all links together; between peers there is no up or down, and all are `bytes_up`. `movement` is the
    largest sine between the directions before and after, `residual` FedPower's rho_t, how far the sites were from the broadcast
    basis; None where there was nothing to measure or it is not public. `charges` are lines of the hub's ledger, or of one
    site's where sites add the noise. A round that `restarted` found sites gone that had been counted, and began the fit again
    without them.
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


Watch = Callable[[Round], None]


def round_of(round_: HubRound, *, method: str, down: int, up: int, charges: tuple[Charge, ...]) -> Round:
    """A hub's round as it is written down, with the bytes it took and what was charged in it."""
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
    )


@final
@dataclass(frozen=True, slots=True, eq=False)
class Unfinished:
    """A fit that did not end: its rounds, what each place was charged, and messages that were refused."""

    transcript: tuple[Round, ...]
    ledgers: dict[str, Ledger]
    refused: tuple[Refusal, ...]
