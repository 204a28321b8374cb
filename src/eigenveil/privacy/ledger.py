"""`Ledger`: what has been spent, line by line, and the filter that refuses what the budget cannot pay.

All our releases are Gaussian, so the ledger adds up squares of mu. A filter on that sum is valid even when each
release is chosen by looking at the ones before it (Smith and Thakurta 2022): the guarantee is the budget fixed up front.

Releases from disjoint slots of a stream cost no more than the dearest slots that one person can be in. Proof: slots are
bounded by sequence numbers and neighbouring streams differ in one person's rows only (zero-out or replace-one), so they
differ in at most m slots of a series, fixed by that person. Whatever is released from another slot has, given all that was
released before it, the same law in both streams and adds nothing. The releases from the m slots compose like any others,
to the sum of their squares, which is at most the sum of the m largest. Under add/remove it would be false: one row less moves
every later boundary.

What one fit will spend is reserved before its first release, so that fits which share a ledger, in as many threads as may be,
are each paid for in full or refused. A reserve can be spent by nobody else, and what is left of it in the end is given back.
"""

import math
import os
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, final

from eigenveil.errors import BudgetExceeded, require
from eigenveil.privacy.accounting import Budget, epsilon_of

__all__ = ["Charge", "Ledger", "Reserve", "Slot"]

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
        # The sum of squared mu so far, with what rounding has left out of it. One value, and the reserves another, so that
        # whoever reads without the lock never sees half of a change.
        self._total = (0.0, 0.0)
        self._reserves: tuple[weakref.ref[Reserve], ...] = ()
        # Entered again by a thread that holds it, as when a reserve is given back in the middle of a charge.
        self._lock = threading.RLock()

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
        """The mu of everything released so far. What is reserved and not spent is no part of it."""
        return math.sqrt(sum(self._total))

    @property
    def reserved_mu(self) -> float:
        """The mu that is set aside for fits that are under way, beyond what they have spent."""
        return math.sqrt(self._reserved())

    @property
    def remaining_mu(self) -> float:
        """The largest single charge that can still be paid, or reserved: neither spent nor set aside for another."""
        if math.isinf(self._limit):
            return math.inf
        return math.sqrt(max(0.0, self._limit**2 - self.spent_mu**2 - self._reserved()))

    def epsilon(self, delta: float | None = None) -> float:
        """The epsilon spent so far, at `delta` (the budget's own unless given)."""
        return epsilon_of(self.spent_mu, self._budget.delta if delta is None else delta)

    def afford(self, mu: float, *, label: str) -> None:
        """Raise `BudgetExceeded` if a charge of `mu` cannot be paid now; write nothing in either case."""
        self._require_original(label)
        self._require_room(mu, label)

    def reserve(self, mu: float, *, label: str, paid: tuple[Charge, ...] = ()) -> "Reserve":
        """Set `mu` aside for releases to come, all of it or, with `BudgetExceeded`, none of it. Use it in a `with` statement.

        Who goes on with what was begun before has `paid` for a part of it: lines that are on this ledger already.

        >>> ledger = Ledger(epsilon=1.0, delta=1e-6)
        >>> with ledger.reserve(0.2, label="a fit") as reserve:
        ...     reserve.spend(0.1, label="mean")
        ...     round(ledger.remaining_mu, 3)
        0.127
        >>> round(ledger.remaining_mu, 3), ledger.charges == reserve.charges
        (0.215, True)
        """
        self._require_original(label)
        with self._lock:
            require(0 <= mu < math.inf, f"mu must be finite and not negative, got {mu}")
            reserve = Reserve(self, mu, label)
            for charge in paid:
                reserve._write(charge)
            self._require_room(math.sqrt(reserve.left), label)
            self._reserves = (*(ref for ref in self._reserves if ref() is not None), weakref.ref(reserve))
        return reserve

    def spend(self, mu: float, *, label: str, slot: Slot | None = None) -> None:
        """Write a charge, or raise `BudgetExceeded` and write nothing.

        In a `slot` of a stream only what it adds to the dearest slots of one person is charged, which may be nothing.

        >>> ledger = Ledger(epsilon=1.0, delta=1e-6)
        >>> for number in range(1000):
        ...     ledger.spend(0.2, label="block", slot=Slot("blocks", number, per_person=1))
        >>> len(ledger.charges), ledger.spent_mu
        (1, 0.2)
        """
        self._spend(mu, label, slot, None)

    def _spend(self, mu: float, label: str, slot: Slot | None, reserve: "Reserve | None") -> None:
        """Charge `mu`, out of a `reserve` or out of what nobody has reserved."""
        # Before the lock: in a forked child another thread of the parent may hold it for ever.
        self._require_original(label)
        require(0 <= mu < math.inf, f"mu must be finite and not negative, got {mu}")
        with self._lock:
            extra, series = mu, None
            if slot is not None:
                series = self._series.get(slot.series) or _Series(slot.number, slot.per_person)
                extra = math.sqrt(max(series.extra(slot, mu * mu), 0.0))
            if reserve is None:
                self._require_room(extra, label)
            else:
                reserve._require_room(extra, label)
            if slot is None or extra > 0:
                charge = Charge(label, extra)
                # The line first, its reserve and its slot after it: an interrupt in between leaves more spent than need be, and
                # never less.
                self._write(charge)
                if reserve is not None:
                    reserve._write(charge)
            if slot is not None and series is not None:
                series.add(slot, mu * mu)
                self._series[slot.series] = series

    def _require_original(self, label: str) -> None:
        if not self._open or os.getpid() != self._process:
            # A forked child's ledger is a copy too: what it spent, its parent would not see.
            raise BudgetExceeded(f"{label!r} was to be paid from a copy of a ledger; spend from the original")

    def _require_room(self, mu: float, label: str) -> None:
        require(0 <= mu < math.inf, f"mu must be finite and not negative, got {mu}")
        reserved = self.reserved_mu
        if math.hypot(self.spent_mu, reserved, mu) > self._limit * (1 + _ROUNDING):
            aside = f", beside mu = {reserved:.4g} reserved by fits under way" if reserved > 0 else ""
            raise BudgetExceeded(
                f"{label!r} needs mu = {mu:.4g} and the ledger has mu = {self.remaining_mu:.4g} left of "
                f"epsilon = {self._budget.epsilon}, delta = {self._budget.delta}{aside}; nothing was released"
            )

    def _reserved(self) -> float:
        """The square of what is set aside. A reserve that nobody holds any more has been given back."""
        held = (ref() for ref in self._reserves)
        return math.fsum(reserve.left for reserve in held if reserve is not None)

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
        self._total = _and_square(self._total, charge.mu)
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


@final
class Reserve:
    """Part of a ledger's budget, set aside for one fit, to be spent as the ledger itself is. Changes in place.

    Charges are lines of the ledger at once; `charges` are those of this reserve alone, in order. Closing it, or leaving its
    `with` block by whatever way, gives back what was not spent. So does losing it: the ledger keeps no reserve alive.

    A reserve may be exceeded by as little as rounding in a sum of shares, which keeps what is spent within twice the
    rounding that the ledger allows itself.
    """

    def __init__(self, ledger: Ledger, mu: float, label: str) -> None:
        self._ledger, self._mu, self._label = ledger, mu, label
        self._charges: list[Charge] = []
        self._total = (0.0, 0.0)
        self._closed = False

    @property
    def charges(self) -> tuple[Charge, ...]:
        """The lines paid from this reserve so far, after those that were paid before it was made."""
        return tuple(self._charges)

    @property
    def spent_mu(self) -> float:
        """Their mu."""
        return math.sqrt(sum(self._total))

    @property
    def left(self) -> float:
        """The square of the mu that is still set aside."""
        return 0.0 if self._closed else max(0.0, self._mu * self._mu - sum(self._total))

    def spend(self, mu: float, *, label: str, slot: Slot | None = None) -> None:
        """Write a charge on the ledger, out of this reserve, or raise `BudgetExceeded` and write nothing."""
        self._ledger._spend(mu, label, slot, self)

    def close(self) -> None:
        """Give back what was not spent. Nothing can be spent from here on."""
        self._closed = True

    def _require_room(self, mu: float, label: str) -> None:
        if self._closed:
            raise BudgetExceeded(f"{label!r} was to be paid from the reserve of {self._label!r}, which was given back")
        if math.hypot(self.spent_mu, mu) > self._mu * (1 + _ROUNDING):
            raise BudgetExceeded(
                f"{label!r} needs mu = {mu:.4g} and {self._label!r} has mu = {math.sqrt(self.left):.4g} left of the "
                f"{self._mu:.4g} that it reserved; nothing was released"
            )

    def _write(self, charge: Charge) -> None:
        self._total = _and_square(self._total, charge.mu)
        self._charges.append(charge)

    def __enter__(self) -> "Reserve":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __copy__(self) -> "Reserve":
        return self

    def __deepcopy__(self, memo: object) -> "Reserve":
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Reserve cannot be stored: it belongs to the fit that it was set aside for")

    def __repr__(self) -> str:
        return f"Reserve({self._label!r}, mu={self._mu:.4g}, charges={len(self._charges)})"


def _and_square(total: tuple[float, float], mu: float) -> tuple[float, float]:
    """A sum and what rounding has left out of it, with one more square (Neumaier 1974): charges can be many."""
    (before, carry), more = total, mu * mu
    after = before + more
    larger, smaller = max(before, more), min(before, more)
    return after, carry + ((larger - after) + smaller)


def _record(budget: Budget, charges: tuple[Charge, ...]) -> Ledger:
    ledger = Ledger(epsilon=budget.epsilon, delta=budget.delta)
    for charge in charges:
        ledger._write(charge)
    ledger._open = False
    return ledger
