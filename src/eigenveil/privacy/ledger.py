"""`Ledger`: what has been spent, line by line, and the filter that refuses what the budget cannot pay.

All our releases are Gaussian, so the ledger adds up squares of mu. A filter on that sum is valid even when each
release is chosen by looking at the ones before it (Smith and Thakurta 2022): the guarantee is the budget fixed up front.
"""

import math
import os
import threading
from dataclasses import dataclass
from typing import Any, final

from eigenveil.errors import BudgetExceeded, require
from eigenveil.privacy.accounting import Budget, epsilon_of

__all__ = ["Charge", "Ledger"]

# Shares of one budget are added up in floating point; `mu_for` stays further than this on the safe side.
_ROUNDING = 1e-13


@final
@dataclass(frozen=True, slots=True)
class Charge:
    """One line of the ledger: what was released, and its mu = sensitivity / noise."""

    label: str
    mu: float


@final
class Ledger:
    """Append-only list of charges against a budget. Changes in place, so that no charge can be lost with a return value.

    >>> ledger = Ledger(epsilon=1.0, delta=1e-6)
    >>> ledger.spend(0.1, label="mean")
    >>> round(ledger.epsilon(), 3), len(ledger.charges)
    (0.397, 1)
    >>> ledger.spend(1.0, label="too much")
    Traceback (most recent call last):
    ...
    eigenveil.errors.BudgetExceeded: 'too much' needs mu = 1 and the ledger has mu = 0.214... left of epsilon = 1.0, \
delta = 1e-06; nothing was released
    """

    def __init__(self, *, epsilon: float, delta: float) -> None:
        self._open, self._process = True, os.getpid()
        self._budget = Budget(epsilon, delta)
        self._limit = self._budget.mu
        self._charges: list[Charge] = []
        # The sum of squared mu so far, and what rounding has left out of it (Neumaier 1974): charges can be many.
        self._square, self._carry = 0.0, 0.0
        self._lock = threading.Lock()

    @property
    def budget(self) -> Budget:
        """What may be spent in all."""
        return self._budget

    @property
    def charges(self) -> tuple[Charge, ...]:
        """The lines so far."""
        return tuple(self._charges)

    @property
    def spent_mu(self) -> float:
        """The mu of everything released so far."""
        return math.sqrt(self._square + self._carry)

    @property
    def remaining_mu(self) -> float:
        """The largest single charge that can still be paid."""
        if math.isinf(self._limit):
            return math.inf
        return math.sqrt(max(0.0, self._limit**2 - self.spent_mu**2))

    def epsilon(self, delta: float | None = None) -> float:
        """The epsilon spent so far, at `delta` (the budget's own unless given)."""
        return epsilon_of(self.spent_mu, self._budget.delta if delta is None else delta)

    def afford(self, mu: float, *, label: str) -> None:
        """Raise `BudgetExceeded` if a charge of `mu` cannot be paid; write nothing in either case."""
        require(0 <= mu < math.inf, f"mu must be finite and not negative, got {mu}")
        if not self._open or os.getpid() != self._process:
            # A forked child's ledger is a copy too: what it spent, its parent would not see.
            raise BudgetExceeded(f"{label!r} was to be paid from a copy of a ledger; spend from the original")
        if math.hypot(self.spent_mu, mu) > self._limit * (1 + _ROUNDING):
            raise BudgetExceeded(
                f"{label!r} needs mu = {mu:.4g} and the ledger has mu = {self.remaining_mu:.4g} left of "
                f"epsilon = {self._budget.epsilon}, delta = {self._budget.delta}; nothing was released"
            )

    def spend(self, mu: float, *, label: str) -> None:
        """Write a charge, or raise `BudgetExceeded` and write nothing."""
        with self._lock:
            self.afford(mu, label=label)
            self._write(Charge(label, mu))

    def _write(self, charge: Charge) -> None:
        more = charge.mu * charge.mu
        total = self._square + more
        larger, smaller = max(self._square, more), min(self._square, more)
        self._square, self._carry = total, self._carry + ((larger - total) + smaller)
        self._charges.append(charge)

    def __copy__(self) -> "Ledger":
        """The same ledger: a copy would let the same budget be spent twice (scikit-learn's `clone` copies parameters)."""
        return self

    def __deepcopy__(self, memo: object) -> "Ledger":
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Stored or sent to another process, a ledger becomes a record: it can be read, and refuses to spend."""
        return _record, (self._budget, tuple(self._charges))

    def __repr__(self) -> str:
        return f"Ledger(epsilon={self._budget.epsilon}, delta={self._budget.delta}, charges={len(self._charges)})"


def _record(budget: Budget, charges: tuple[Charge, ...]) -> Ledger:
    ledger = Ledger(epsilon=budget.epsilon, delta=budget.delta)
    for charge in charges:
        ledger._write(charge)
    ledger._open = False
    return ledger
