"""What a fit over sites or peers tells of itself, round by round, also if it does not end."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from eigenveil.privacy import Charge, Ledger
from eigenveil.protocols import Turn
from eigenveil.runtimes import Refusal

__all__ = ["Round", "Unfinished", "Watch", "round_of"]


@final
@dataclass(frozen=True, slots=True)
class Round:
    """One turn of a fit over sites or peers, in public terms: who answered, what it took, how far the answer moved, what was
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


def round_of(turn: Turn, *, method: str, down: int, up: int, charges: tuple[Charge, ...]) -> Round:
    """A hub's turn as it is written down, with the bytes it took and what was charged in it."""
    return Round(
        number=turn.number,
        stage=turn.stage if turn.stage != "components" else f"{method} {turn.step + 1}",
        answered=turn.answered,
        missing=turn.missing,
        bytes_down=down,
        bytes_up=up,
        movement=turn.movement,
        residual=turn.spread,
        charges=charges,
        restarted=turn.restarted,
    )


@final
@dataclass(frozen=True, slots=True, eq=False)
class Unfinished:
    """A fit that did not end: its rounds, what each place was charged, and mail that was refused."""

    transcript: tuple[Round, ...]
    ledgers: dict[str, Ledger]
    refused: tuple[Refusal, ...]
