"""`Ledger`: what has been spent, line by line, and the filter that refuses what the budget cannot pay.

All our releases are Gaussian, so the ledger adds up squares of mu. A filter on that sum is valid even when each
release is chosen by looking at the ones before it (Smith and Thakurta 2022): the guarantee is the budget fixed up front.

Releases from disjoint slots of a stream cost no more than the dearest slots that one person can be in. Proof: slots are
bounded by sequence numbers and neighbouring streams differ in one person's rows only (zero-out or replace-one), so they
differ in at most m slots of a series, fixed by that person. Whatever is released from another slot has, given all that was
released before it, the same law in both streams and adds nothing. The releases from the m slots compose like any others,
to the sum of their squares, which is at most the sum of the m largest. Under add/remove it would be false: one row less moves
every later boundary.
"""

import math
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from eigenveil.errors import BudgetExceeded, require
from eigenveil.privacy.accounting import Budget, epsilon_of

__all__ = ["Charge", "Ledger", "Slot"]

# Shares of one budget are added up in floating point; `mu_for` stays further than this on the safe side.
_ROUNDING = 1e-13


@final
@dataclass(frozen=True, slots=True)
class Charge:
    """One line of the ledger: what was released, and its mu = sensitivity / noise."""

    label: str
    mu: float


@final
@dataclass(frozen=True, slots=True)
class Slot:
    """Where in a stream a release comes from: slot `number` of a `series` of disjoint ones, counted up from any start.

    One person has rows in at most `per_person` slots of the series: whoever makes the slots sees to that, or assumes it aloud.
    """

    series: str
    number: int
    per_person: int

    def __post_init__(self) -> None:
        require(self.per_person >= 1, f"per_person must be at least 1, got {self.per_person}")


@final
@dataclass(slots=True)
class _Series:
    """Squares of mu by slot: the largest of the closed ones, and the one now open. Changes in place."""

    number: int
    per_person: int
    open: float = 0.0
    largest: tuple[float, ...] = ()

    def extra(self, slot: Slot, square: float) -> float:
        """How much one person's worst total grows if `square` is spent in `slot`."""
        require(slot.per_person == self.per_person, f"slots of {slot.series!r} allow {self.per_person} per person")
        require(
            slot.number >= self.number, f"slot {slot.number} of {slot.series!r} was closed when a later one was opened"
        )
        largest, now = self._turned(slot.number)
        return self._worst(largest, now + square) - self._worst(*self._turned(self.number))

    def add(self, slot: Slot, square: float) -> None:
        self.largest, now = self._turned(slot.number)
        self.number, self.open = slot.number, now + square

    def _turned(self, number: int) -> tuple[tuple[float, ...], float]:
        if number == self.number:
            return self.largest, self.open
        return tuple(sorted((*self.largest, self.open), reverse=True)[: self.per_person]), 0.0

    def _worst(self, largest: tuple[float, ...], now: float) -> float:
        return math.fsum(sorted((*largest, now), reverse=True)[: self.per_person])


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
        self._series: dict[str, _Series] = {}
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

    def spend(self, mu: float, *, label: str, slot: Slot | None = None) -> None:
        """Write a charge, or raise `BudgetExceeded` and write nothing.

        In a `slot` of a stream only what it adds to the dearest slots of one person is charged, which may be nothing.

        >>> ledger = Ledger(epsilon=1.0, delta=1e-6)
        >>> for number in range(1000):
        ...     ledger.spend(0.2, label="block", slot=Slot("blocks", number, per_person=1))
        >>> len(ledger.charges), ledger.spent_mu
        (1, 0.2)
        """
        with self._lock:
            if slot is None:
                self.afford(mu, label=label)
                self._write(Charge(label, mu))
                return
            require(0 <= mu < math.inf, f"mu must be finite and not negative, got {mu}")
            series = self._series.get(slot.series) or _Series(slot.number, slot.per_person)
            extra = math.sqrt(max(series.extra(slot, mu * mu), 0.0))
            self.afford(extra, label=label)
            series.add(slot, mu * mu)
            self._series[slot.series] = series
            if extra > 0:
                self._write(Charge(label, extra))

    def series(self) -> dict[str, tuple[int, int, float, tuple[float, ...]]]:
        """For each series of slots: the slot now open, slots per person, squared mu there and the largest closed ones."""
        return {name: (s.number, s.per_person, s.open, s.largest) for name, s in self._series.items()}

    @classmethod
    def continued(
        cls,
        budget: Budget,
        charges: tuple[Charge, ...],
        series: Mapping[str, tuple[int, int, float, tuple[float, ...]]],
    ) -> "Ledger":
        """An account that was moved here with the stream it belongs to, and goes on. Nobody may go on with the old one."""
        ledger = _record(budget, charges)
        for name, (number, per_person, now, largest) in series.items():
            numbers = [now, *largest]
            require(all(0 <= square < math.inf for square in numbers), f"the account of {name!r} is damaged")
            ledger._series[name] = _Series(number, per_person, now, tuple(largest))
        ledger._open = True
        return ledger

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
