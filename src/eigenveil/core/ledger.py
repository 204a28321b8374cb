"""`Ledger`: what has been spent, entry by entry, and the filter that refuses charges beyond the budget.

All our releases are Gaussian, so the ledger adds up squares of mu. A filter on that sum is valid even when each release is
chosen by looking at the ones before it (Smith and Thakurta 2022). The guarantee is the budget that was fixed up front.

Releases from disjoint slots of a stream cost no more than the m costliest slots, if one person is in at most m of them. Proof.
Slots are bounded by sequence numbers, and neighbouring streams differ in one person's rows only (zero-out or replace-one). So
they differ in at most m slots of a series, fixed by that person. A release from any other slot has the same law in both streams,
given everything released before it, and adds nothing. The releases from the m slots compose like any others, to the sum of their
squares, which is at most the sum of the m largest. Under add/remove this would be false for slots that are counted out: one row
less moves every later boundary. Slots of a clock have boundaries that no row moves, so there it holds under add/remove too, if
no row decides in which slot others are counted (`data.follow.slots` proves that of a source that is followed).

Releases of one slot about disjoint `group`s of people, such as the sites of two rounds, cost no more than the costliest of
them. A person is in one group, and the releases about the others have the same law in both streams.

A fit reserves what it will spend before its first release. So fits that share a ledger, in any number of threads, are each paid
for in full or refused. Nobody else can spend a reserve, and closing it gives back the rest.

A ledger adds up guarantees of one kind (`PrivacyUnit`). The constructor says which, or else the first fit that charges it. A fit
of another kind is refused before anything is written. A charge that names no kind, by hand, is taken to be of the ledger's.

States of a ledger: open (spends and reserves), or a record (a copy that was stored, or sent to another process), which can be
read and refuses to spend. States of a reserve: open, then closed.
"""

import math
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, final

from eigenveil.core.accounting import Budget, epsilon_of
from eigenveil.core.threads import this_process
from eigenveil.core.unit import PrivacyUnit, require_same_unit
from eigenveil.errors import BudgetExceeded, require

__all__ = ["Charge", "Ledger", "Reserve", "Slot"]

# Shares of one budget are added up in floating point. This is safe because `mu_for` leaves a larger margin.
_ROUNDING = 1e-13
_OWN_LEDGER = (
    "Fit with the same person= (or person_blocks=) and neighbours= as before, or give this fit a ledger of its own"
)


@final
@dataclass(frozen=True, slots=True)
class Charge:
    """One entry of the ledger: what was released, and its mu = sensitivity / noise."""

    label: str
    mu: float


@final
@dataclass(frozen=True, slots=True)
class Slot:
    """Where in a stream a release comes from: slot `number` of a `series` of disjoint slots, counted up from any start.

    One person has rows in at most `per_person` slots of the series, and in one `group` of a slot. The code that makes slots and
    groups enforces this, or the guarantee states it as an assumption. A slot may be charged until one more than `window` later
    is.
    """

    series: str
    number: int
    per_person: int
    group: str = ""
    window: int = 0

    def __post_init__(self) -> None:
        require(self.per_person >= 1, f"per_person must be at least 1, got {self.per_person}")
        require(self.window >= 0, f"window must not be negative, got {self.window}")


@final
@dataclass(slots=True)
class _Series:
    """Squares of mu by slot: the largest of the closed slots, and those of the open slots by group. Changes in place."""

    number: int
    per_person: int
    open: dict[int, dict[str, float]]
    largest: tuple[float, ...] = ()
    window: int = 0

    def extra(self, slot: Slot, square: float) -> float:
        """How much one person's worst total grows if `square` is spent in `slot`."""
        # The proof takes one number of slots per person for the whole series.
        require(slot.per_person == self.per_person, f"slots of {slot.series!r} allow {self.per_person} per person")
        require(
            slot.number >= self.number - self.window,
            f"slot {slot.number} of {slot.series!r} was closed when a later slot was opened",
        )
        return self._worst(*self._after(slot, square)) - self._worst(self.largest, self.open)

    def add(self, slot: Slot, square: float) -> None:
        self.largest, self.open = self._after(slot, square)
        self.number = max(self.number, slot.number)

    @property
    def now(self) -> float:
        """The square of the newest slot."""
        return max(self.open.get(self.number, {}).values(), default=0.0)

    @property
    def others(self) -> tuple[float, ...]:
        """The largest squares of all other slots, as many as one person can be in."""
        rest = [max(groups.values()) for number, groups in self.open.items() if number != self.number]
        return self._top((*self.largest, *rest))

    def _after(self, slot: Slot, square: float) -> tuple[tuple[float, ...], dict[int, dict[str, float]]]:
        """The closed and the open slots after this charge."""
        spent = self.open.get(slot.number, {})
        both = self.open | {slot.number: spent | {slot.group: spent.get(slot.group, 0.0) + square}}
        first = max(self.number, slot.number) - self.window
        closed = [max(groups.values()) for number, groups in both.items() if number < first]
        # Of closed slots only the largest can count, so an endless stream takes constant memory.
        return self._top((*self.largest, *closed)), {n: groups for n, groups in both.items() if n >= first}

    def _worst(self, largest: tuple[float, ...], now: dict[int, dict[str, float]]) -> float:
        return math.fsum(self._top((*largest, *(max(groups.values()) for groups in now.values()))))

    def _top(self, squares: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(sorted(squares, reverse=True)[: self.per_person])


@final
class Ledger:
    """Append-only list of charges against a budget. Changes in place: a forgotten return value must not lose a charge.

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

    def __init__(self, *, epsilon: float, delta: float, unit: PrivacyUnit | None = None) -> None:
        require(
            unit is None or isinstance(unit, PrivacyUnit),
            f'unit must be a PrivacyUnit, such as PrivacyUnit("row", Neighbours.ADD_REMOVE), got {unit!r}',
        )
        self._open, self._process = True, this_process()
        self._budget = Budget(epsilon, delta)
        self._limit = self._budget.mu
        self._unit = unit
        self._charges: list[Charge] = []
        self._series: dict[str, _Series] = {}
        # The sum of squared mu so far, and the part of it that rounding dropped. Both are replaced in one assignment, like the
        # reserves, so that a reader without the lock never sees half of a change.
        self._total = (0.0, 0.0)
        self._reserves: tuple[weakref.ref[Reserve], ...] = ()
        # Reentrant: a reserve may be given back in the middle of a charge, by the thread that has the lock.
        self._lock = threading.RLock()

    @property
    def budget(self) -> Budget:
        """What may be spent in total."""
        return self._budget

    @property
    def unit(self) -> PrivacyUnit | None:
        """What every charge here protects: as constructed, or as the first fit. None until one of them says so."""
        if self._unit is not None:
            return self._unit
        # A fit that runs and has charged nothing yet decides it too, but not one that ended without a charge.
        held = (ref() for ref in self._reserves)
        return next((one.unit for one in held if one is not None and one.unit is not None and not one.closed), None)

    @property
    def charges(self) -> tuple[Charge, ...]:
        """The entries so far."""
        return tuple(self._charges)

    @property
    def spent_mu(self) -> float:
        """The mu of everything released so far, without what is reserved and not yet spent."""
        return math.sqrt(sum(self._total))

    @property
    def reserved_mu(self) -> float:
        """The mu reserved by fits that are running, beyond what they have spent."""
        return math.sqrt(self._reserved())

    @property
    def remaining_mu(self) -> float:
        """The largest single charge that can still be paid or reserved: neither spent nor reserved by another fit."""
        if math.isinf(self._limit):
            return math.inf
        return math.sqrt(max(0.0, self._limit**2 - self.spent_mu**2 - self._reserved()))

    def epsilon(self, delta: float | None = None) -> float:
        """The epsilon spent so far, at `delta` (the budget's own unless given)."""
        return epsilon_of(self.spent_mu, self._budget.delta if delta is None else delta)

    def _repr_html_(self) -> str:
        """What was spent, in a notebook."""
        from eigenveil.drawing import escaped, fragment, table

        budget = self._budget
        spent = f"spent: epsilon {self.epsilon():.3g} of {budget.epsilon:g} at delta = {budget.delta:g}"
        entries = table(("release", "mu"), [(charge.label, charge.mu) for charge in self.charges])
        return fragment(f"<p><strong>{escaped(spent)}</strong></p>{entries}")

    def afford(self, mu: float, *, label: str, unit: PrivacyUnit | None = None) -> None:
        """Raise `BudgetExceeded` or `UnitMismatch` if a charge of `mu` cannot be paid now. Nothing is written in either case."""
        self._require_original(label)
        self._require_unit(unit, label)
        self._require_room(mu, label)

    def reserve(
        self, mu: float, *, label: str, paid: tuple[Charge, ...] = (), unit: PrivacyUnit | None = None
    ) -> "Reserve":
        """Set `mu` aside for later releases, all of it or, with `BudgetExceeded`, none of it. Use it in a `with` statement.

        A fit that continues earlier work passes the entries it has already `paid` on this ledger. `unit` is what the fit
        protects. `UnitMismatch` if the ledger counts guarantees of another kind.

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
            self._require_unit(unit, label)
            reserve = Reserve(self, mu, label, unit)
            # They are on the ledger already, so they count against this reserve alone.
            for charge in paid:
                reserve._write(charge)
            self._require_room(math.sqrt(reserve.left), label)
            self._reserves = (*(ref for ref in self._reserves if ref() is not None), weakref.ref(reserve))
        return reserve

    def spend(self, mu: float, *, label: str, slot: Slot | None = None, unit: PrivacyUnit | None = None) -> None:
        """Write a charge, or raise `BudgetExceeded` or `UnitMismatch` and write nothing.

        `unit` is what the release protects. Without it the charge is taken to be of the ledger's own kind.

        In a `slot` of a stream, only the increase of one person's costliest slots is charged, which may be nothing.

        >>> ledger = Ledger(epsilon=1.0, delta=1e-6)
        >>> for number in range(1000):
        ...     ledger.spend(0.2, label="block", slot=Slot("blocks", number, per_person=1))
        >>> len(ledger.charges), ledger.spent_mu
        (1, 0.2)
        """
        self._spend(mu, label, slot, None, unit)

    def _spend(
        self, mu: float, label: str, slot: Slot | None, reserve: "Reserve | None", unit: PrivacyUnit | None
    ) -> None:
        """Charge `mu`, from a `reserve` or from what nobody has reserved."""
        # Checked before the lock: in a forked child, a thread of the parent may have it forever.
        self._require_original(label)
        require(0 <= mu < math.inf, f"mu must be finite and not negative, got {mu}")
        with self._lock:
            self._require_unit(unit, label)
            extra, series = mu, None
            if slot is not None:
                series = self._series.get(slot.series) or _Series(slot.number, slot.per_person, {}, window=slot.window)
                extra = math.sqrt(max(series.extra(slot, mu * mu), 0.0))
            if reserve is None:
                self._require_room(extra, label)
            else:
                reserve._require_room(extra, label)
            self._unit = self._unit or unit
            if slot is None or extra > 0:
                charge = Charge(label, extra)
                # The entry first, then its reserve and its slot: an interrupt in between may overstate what is spent, never
                # understate it.
                self._write(charge)
                if reserve is not None:
                    reserve._write(charge)
            if slot is not None and series is not None:
                series.add(slot, mu * mu)
                self._series[slot.series] = series

    def _require_original(self, label: str) -> None:
        if not self._open or this_process() != self._process:
            # A forked child's ledger is a copy too: its parent would not see what it spent.
            raise BudgetExceeded(f"{label!r} cannot be paid from a copy of a ledger; spend from the original")

    def _require_unit(self, unit: PrivacyUnit | None, label: str) -> None:
        require_same_unit(repr(label), unit, self.unit, instead=f"{_OWN_LEDGER}. Nothing was released")

    def _require_room(self, mu: float, label: str) -> None:
        require(0 <= mu < math.inf, f"mu must be finite and not negative, got {mu}")
        reserved = self.reserved_mu
        if math.hypot(self.spent_mu, reserved, mu) > self._limit * (1 + _ROUNDING):
            aside = f", besides mu = {reserved:.4g} reserved by running fits" if reserved > 0 else ""
            raise BudgetExceeded(
                f"{label!r} needs mu = {mu:.4g} and the ledger has mu = {self.remaining_mu:.4g} left of "
                f"epsilon = {self._budget.epsilon}, delta = {self._budget.delta}{aside}; nothing was released"
            )

    def _reserved(self) -> float:
        """The squared mu that is reserved. A reserve that nobody refers to any more has been given back."""
        held = (ref() for ref in self._reserves)
        return math.fsum(reserve.left for reserve in held if reserve is not None)

    def series(self) -> dict[str, tuple[int, int, float, tuple[float, ...]]]:
        """For each series: the newest slot, slots per person, that slot's squared mu, and the largest others."""
        return {name: (s.number, s.per_person, s.now, s.others) for name, s in self._series.items()}

    @classmethod
    def continued(
        cls,
        budget: Budget,
        charges: tuple[Charge, ...],
        series: Mapping[str, tuple[int, int, float, tuple[float, ...]]],
        *,
        unit: PrivacyUnit | None = None,
    ) -> "Ledger":
        """A ledger that was moved here together with its stream, open for spending. The old one must not be used again."""
        ledger = _record(budget, charges, unit)
        for name, (number, per_person, now, largest) in series.items():
            numbers = [now, *largest]
            require(all(0 <= square < math.inf for square in numbers), f"the ledger's record of {name!r} is damaged")
            # Without a window: what was open behind the newest slot counts as closed from here on.
            ledger._series[name] = _Series(number, per_person, {number: {"": now}}, tuple(largest))
        # Last, so that a damaged record never becomes a ledger that can spend.
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
        return _record, (self._budget, tuple(self._charges), self._unit)

    def __repr__(self) -> str:
        return f"Ledger(epsilon={self._budget.epsilon}, delta={self._budget.delta}, charges={len(self._charges)})"


@final
class Reserve:
    """Part of a ledger's budget, set aside for one fit, and spent like the ledger itself. Changes in place.

    Charges become entries of the ledger at once; `charges` are those of this reserve only, in order. Closing it, or leaving its
    `with` block in any way, gives back what was not spent. So does deleting it: the ledger keeps no reserve alive.

    A reserve may be exceeded by the rounding of a sum of shares. That keeps what is spent within twice the rounding that the
    ledger allows itself.
    """

    def __init__(self, ledger: Ledger, mu: float, label: str, unit: PrivacyUnit | None) -> None:
        self._ledger, self._mu, self._label = ledger, mu, label
        self.unit = unit
        self._charges: list[Charge] = []
        self._total = (0.0, 0.0)
        self._closed = False

    @property
    def charges(self) -> tuple[Charge, ...]:
        """The entries paid before this reserve was made, and then those paid from it so far."""
        return tuple(self._charges)

    @property
    def spent_mu(self) -> float:
        """Their mu."""
        return math.sqrt(sum(self._total))

    @property
    def left(self) -> float:
        """The square of the mu that is still reserved."""
        return 0.0 if self._closed else max(0.0, self._mu * self._mu - sum(self._total))

    @property
    def closed(self) -> bool:
        """Whether what was left has been given back."""
        return self._closed

    def spend(self, mu: float, *, label: str, slot: Slot | None = None) -> None:
        """Write a charge on the ledger, from this reserve, or raise `BudgetExceeded` and write nothing."""
        self._ledger._spend(mu, label, slot, self, self.unit)

    def close(self) -> None:
        """Give back what was not spent. Nothing can be spent from here on."""
        self._closed = True

    def _require_room(self, mu: float, label: str) -> None:
        if self._closed:
            raise BudgetExceeded(f"{label!r} cannot be paid from the reserve of {self._label!r}, which is closed")
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

    # A copy is the same reserve. Two of them could each spend all of it.
    def __copy__(self) -> "Reserve":
        return self

    def __deepcopy__(self, memo: object) -> "Reserve":
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Reserve cannot be stored or sent: it belongs to the running fit that made it")

    def __repr__(self) -> str:
        return f"Reserve({self._label!r}, mu={self._mu:.4g}, charges={len(self._charges)})"


def _and_square(total: tuple[float, float], mu: float) -> tuple[float, float]:
    """A sum, the part that rounding dropped, and one more square added (Neumaier 1974): there may be many charges."""
    (before, carry), more = total, mu * mu
    after = before + more
    larger, smaller = max(before, more), min(before, more)
    return after, carry + ((larger - after) + smaller)


def _record(budget: Budget, charges: tuple[Charge, ...], unit: PrivacyUnit | None = None) -> Ledger:
    ledger = Ledger(epsilon=budget.epsilon, delta=budget.delta, unit=unit)
    for charge in charges:
        # Written, not spent: the filter accepted them when they were made.
        ledger._write(charge)
    ledger._open = False
    return ledger
