"""The exceptions of Eigenveil, and the one-line check that raises the commonest of them.

Bad input is a `ValueError` at the public edge. A guarantee that cannot be kept is an exception of its own,
never a warning, so that nobody publishes by accident what was not protected.
"""

__all__ = [
    "BudgetExceeded",
    "EigenveilError",
    "ModelFileError",
    "PeerError",
    "PeersLost",
    "ProtocolError",
    "QuorumLost",
    "StateFileError",
    "require",
]


class EigenveilError(Exception):
    """Whatever Eigenveil raises that is not plain bad input."""


class BudgetExceeded(EigenveilError):
    """A release would cost more than the ledger has left. Nothing was released and nothing was charged."""


class ModelFileError(EigenveilError, ValueError):
    """The file is not an Eigenveil model, is of another version, or is damaged."""


class StateFileError(EigenveilError, ValueError):
    """The file is not the state of an Eigenveil stream, is of another version, is damaged, or was resumed before."""


class PeerError(EigenveilError):
    """Mail from `peer` was refused, and nothing was changed by it: their fault, and no reason to stop."""

    def __init__(self, peer: str, why: str) -> None:
        super().__init__(f"{peer}: {why}")
        self.peer, self.why = peer, why


class ProtocolError(EigenveilError):
    """The run cannot go on."""


class QuorumLost(ProtocolError):
    """Too few sites answered in time. `missing` names the others; what was gathered before is kept and can be resumed."""

    def __init__(self, missing: tuple[str, ...], *, turn: int, stage: str, answered: int, quorum: int) -> None:
        shown = ", ".join(missing[:10]) + (f" and {len(missing) - 10} more" if len(missing) > 10 else "")
        super().__init__(
            f"no answer from {shown} in turn {turn} ({stage}): {answered} answered and {quorum} must. Turns before it are "
            "kept, and so is what did come: resuming asks again, and those who have answered send the same numbers"
        )
        self.missing, self.turn, self.stage = missing, turn, stage
        self.answered, self.quorum = answered, quorum


class PeersLost(ProtocolError):
    """Peers are gone, and those who are left cannot go on without them. `missing` names those who are gone."""

    def __init__(self, missing: tuple[str, ...], *, turn: int, why: str) -> None:
        shown = ", ".join(missing[:10]) + (f" and {len(missing) - 10} more" if len(missing) > 10 else "")
        super().__init__(f"without {shown}, round {turn + 1} cannot be begun again: {why}")
        self.missing, self.turn = missing, turn


def require(condition: bool, message: str) -> None:
    """Raise `ValueError(message)` unless `condition` holds.

    >>> require(2 > 1, "arithmetic must work")
    """
    if not condition:
        raise ValueError(message)
