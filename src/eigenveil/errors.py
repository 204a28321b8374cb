"""The exceptions of Eigenveil, and the one-line check that raises the commonest of them.

Bad input is a `ValueError` at the public edge. A guarantee that cannot be kept is an exception of its own,
never a warning, so that nobody publishes by accident what was not protected.
"""

__all__ = ["BudgetExceeded", "EigenveilError", "ModelFileError", "StateFileError", "require"]


class EigenveilError(Exception):
    """Whatever Eigenveil raises that is not plain bad input."""


class BudgetExceeded(EigenveilError):
    """A release would cost more than the ledger has left. Nothing was released and nothing was charged."""


class ModelFileError(EigenveilError, ValueError):
    """The file is not an Eigenveil model, is of another version, or is damaged."""


class StateFileError(EigenveilError, ValueError):
    """The file is not the state of an Eigenveil stream, is of another version, is damaged, or was resumed before."""


def require(condition: bool, message: str) -> None:
    """Raise `ValueError(message)` unless `condition` holds.

    >>> require(2 > 1, "arithmetic must work")
    """
    if not condition:
        raise ValueError(message)
