"""`Ledger`: what has been spent, entry by entry, and the filter that refuses charges beyond the budget.

All our releases are Gaussian, so the ledger adds up squares of mu. A filter on that sum is valid even when each release is
chosen by looking at the ones before it (Smith and Thakurta 2022). The guarantee is the budget that was fixed up front.

Releases from disjoint slots of a stream cost no more than the m costliest slots, if one person is in at most m of them. Proof.
Slots are bounded by sequence numbers, and neighbouring streams differ in one person's rows only (zero-out or replace-one). So
they differ in at most m slots of a series, fixed by that person. A release from any other slot has the same law in both streams,
given everything released before it, and adds nothing. The releases from the m slots compose like any others, to the sum of their
squares, which is at most the sum of the m largest. Under add/remove this would be false for slots that are counted out: one row
less moves every later boundary. Slots of a clock have boundaries that no row moves, so there it holds under add/remove too, if
no row decides in which slot others are counted (`data.follow.slots` proves it of a source that is followed).

Releases of one slot about disjoint `group`s of people, such as the sites of two rounds, cost no more than the costliest of
them. A person is in one group, and the releases about the others have the same law in both streams.

A fit reserves what it will spend before its first release. Fits that share a ledger, in any number of threads, are therefore each
paid for in full or refused. No other fit can spend a reserve, and closing it gives back the rest. In a file, the reserve of a
curator's fit is written with its first charge, so two processes may both begin with the last of a budget. The second is refused
before it releases.

A ledger adds up guarantees of one kind (`PrivacyUnit`). The constructor says which, or else the first fit that charges it. A fit
of another kind is refused before anything is written. A charge that names no kind, by hand, is taken to be of the ledger's, in
memory and in a file, also if the ledger learns only later which that is.

What was charged and reserved is kept in a `Store`: in `Memory` for as long as the process lasts, or in a file (`Ledger.open`,
`eigenveil.ledger.store`), from which several processes may spend at once. The store decides, in one step with keeping what it
accepts: two who ask for the last of a budget cannot both be accepted. A charge is kept before `spend` returns, and noise is drawn
after that. A process that dies at any moment may have spent a charge for nothing, and has never released without one.

States of a ledger: open (spends and reserves), or a record (a copy that was stored, or sent to another process), which can be
read and refuses to spend; a ledger in a file is opened again there. States of a reserve: open, then closed.
"""

import math
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from os import PathLike
from typing import Any, ClassVar, Literal, NoReturn, Protocol, final, get_args

from eigenveil.core.accounting import Budget, ExactSum, epsilon_of, fits, largest_epsilon
from eigenveil.core.threads import this_process
from eigenveil.core.unit import PrivacyUnit, require_same_unit
from eigenveil.errors import BudgetExceeded, EigenveilError, require

__all__ = ["Account", "Charge", "Committed", "Ledger", "Memory", "Purpose", "Reserve", "Slot", "Store"]

# What a release is for: the result, or where and how rows are clipped for it.
Purpose = Literal["main", "search"]
_OWN_LEDGER = "Fit with the same person= (or person_blocks=) and neighbours= as before, or give this fit a ledger of its own"


@final
@dataclass(frozen=True, slots=True)
class Charge:
    """One entry of the ledger: what was released, and its mu = sensitivity / noise.

    A stream first searches for where to clip rows; its later noise is for what the search left. A charge therefore says what it
    is for: the label is for people, and no noise may depend on its words. Ledger files do not keep the purpose, so it is not
    compared.
    """

    label: str
    mu: float
    purpose: Purpose = field(default="main", compare=False)

    def __post_init__(self) -> None:
        require(self.purpose in get_args(Purpose), f"the purpose of a charge is main or search, got {self.purpose!r}")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
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
@dataclass(slots=True, kw_only=True)
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
@dataclass(frozen=True, slots=True)
class Committed:
    """What a ledger has spent, and what running fits have reserved beyond that: sums of squared mu."""

    spent: float
    reserved: float


class Account(Protocol):
    """What a store keeps of one reserve."""

    @property
    def name(self) -> str | None:
        """What the reserve is called where it outlives the process; None in memory."""

    def charge(self, charge: Charge, *, slot: Slot | None = None) -> None:
        """Keep a charge, for good, before this returns: noise is drawn only then. Whatever raises has kept nothing."""

    def close(self, *, failed: bool) -> None:
        """Give back what was not spent."""


class Store(Protocol):
    """Where a ledger is kept. It has the last word: others may spend from the same budget at the same time."""

    @property
    def limit(self) -> float:
        """The mu that may be spent in total."""

    @property
    def unit(self) -> PrivacyUnit | None:
        """What charges and open reserves protect. None if there are none, or none that says so."""

    @property
    def charges(self) -> tuple[Charge, ...]:
        """Every charge, in order."""

    def committed(self) -> Committed:
        """What they add up to, in all processes."""

    def require_affordable(self, mu: float, *, label: str, unit: PrivacyUnit | None, budget: Budget | None) -> None:
        """Raise what `reserve` would raise, and keep nothing."""

    def reserve(self, reserve: "Reserve", *, budget: Budget | None, name: str | None, lazy: bool) -> Account:
        """Keep a reserve, or raise `BudgetExceeded` or `UnitMismatch` and keep nothing. Called `name`, it is an old one.

        A `lazy` one may be kept with its first charge, in one write. That charge is then refused if others were quicker.
        """

    def charge(self, charge: Charge, *, unit: PrivacyUnit | None) -> None:
        """Keep a charge without a reserve, or raise and keep nothing."""

    def knows(self, name: str) -> bool:
        """Whether a reserve of this name was ever kept."""

    def again(self) -> tuple[Any, ...] | None:
        """How another process opens the same ledger, for `pickle`; None if it cannot."""

    def words(self) -> str:
        """Where it is, for people; empty in memory."""


@final
class Memory:
    """A ledger that lasts as long as its process. Changes in place. It is the account of all of its reserves.

    With `through`, every charge is also kept there, and there first: one release of a command is charged to a file like that.
    """

    name: str | None = None

    def __init__(self, budget: Budget, *, through: Account | None = None) -> None:
        self._budget, self.limit, self._through = budget, budget.mu, through
        self.unit: PrivacyUnit | None = None
        self._charges: list[Charge] = []
        # Replaced in one assignment, like the reserves, so that a reader without the lock never sees half of a change.
        self._total = ExactSum()
        self._reserves: tuple[weakref.ref[Reserve], ...] = ()

    @property
    def charges(self) -> tuple[Charge, ...]:
        """The entries so far."""
        return tuple(self._charges)

    def committed(self) -> Committed:
        held = (ref() for ref in self._reserves)
        return Committed(self._total.value, math.fsum(reserve.left for reserve in held if reserve is not None))

    def require_affordable(self, mu: float, *, label: str, unit: PrivacyUnit | None, budget: Budget | None = None) -> None:
        """Raise unless a charge of `mu` fits next to all others."""
        committed = self.committed()
        if fits(math.fsum((committed.spent, committed.reserved, mu * mu)), self.limit):
            return
        left = math.sqrt(max(0.0, self.limit * self.limit - committed.spent - committed.reserved))
        reserved = math.sqrt(committed.reserved)
        aside = f", besides mu = {reserved:.4g} reserved by running fits" if reserved > 0 else ""
        raise BudgetExceeded(
            f"{label!r} needs mu = {mu:.4g} and the ledger has mu = {left:.4g} left of "
            f"epsilon = {self._budget.epsilon}, delta = {self._budget.delta}{aside}; nothing was released"
            f"{_enough(left, budget)}"
        )

    def reserve(
        self, reserve: "Reserve", *, budget: Budget | None = None, name: str | None = None, lazy: bool = False
    ) -> "Memory":
        """Set it aside, or raise."""
        self.require_affordable(math.sqrt(reserve.left), label=reserve.label, unit=reserve.unit, budget=budget)
        self._reserves = (*(ref for ref in self._reserves if ref() is not None), weakref.ref(reserve))
        return self

    def charge(self, charge: Charge, *, unit: PrivacyUnit | None = None, slot: Slot | None = None) -> None:
        """Write it down. The caller has checked that it fits in its reserve."""
        if self._through is not None:
            self._through.charge(charge, slot=slot)
        self.write(charge)

    def write(self, charge: Charge) -> None:
        """The entry first: an interrupt in between may understate nothing."""
        self._total = self._total.square(charge.mu)
        self._charges.append(charge)

    def close(self, *, failed: bool) -> None:
        """The reserve itself says that it is closed."""

    def knows(self, name: str) -> bool:
        """Reserves have no names here."""
        return False

    def again(self) -> None:
        """Another process gets a record."""

    def words(self) -> str:
        """Nowhere."""
        return ""


class Opener(Protocol):
    """What `Ledger.open` is: a function of `eigenveil.ledger.store`, whose parameters it explains."""

    def __call__(
        self,
        path: str | PathLike[str],
        dataset: str | None = None,
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        unit: PrivacyUnit | None = None,
    ) -> "Ledger":
        """The budget of a dataset in the ledger file at `path`."""


@final
class Ledger:
    """Append-only list of charges against a budget. Changes in place: a forgotten return value must not lose a charge.

    It lasts as long as its process. `Ledger.open` has one that is kept in a file.

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
        budget = Budget(epsilon, delta)
        self._begin(budget, Memory(budget), unit)

    def _begin(self, budget: Budget, store: Store, unit: PrivacyUnit | None) -> None:
        require(
            unit is None or isinstance(unit, PrivacyUnit),
            f'unit must be a PrivacyUnit, such as PrivacyUnit("row", Neighbours.ADD_REMOVE), got {unit!r}',
        )
        self._open, self._process = True, this_process()
        self._budget, self._store = budget, store
        self._unit = unit
        self._series: dict[str, _Series] = {}
        self._reserves: tuple[weakref.ref[Reserve], ...] = ()
        # Reentrant: a reserve may be given back in the middle of a charge, by the thread that has the lock.
        self._lock = threading.RLock()

    # Opens one that is kept in a file. Set by `eigenveil.ledger.store`, because nothing here reads files.
    open: "ClassVar[Opener]"
    # What was spent, in a notebook. Set by `eigenveil.ledger`, because nothing here draws.
    _repr_html_: "ClassVar[Callable[[Ledger], str]]"

    @classmethod
    def kept(cls, budget: Budget, store: Store, *, unit: PrivacyUnit | None = None) -> "Ledger":
        """A ledger over a `store`, which has this budget."""
        ledger = cls.__new__(cls)
        ledger._begin(budget, store, None)
        if unit is not None:
            ledger._require_unit(unit, "this ledger")
            ledger._unit = unit
        return ledger

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
        running = (reserve.unit for reserve in held if reserve is not None and reserve.unit is not None and not reserve.closed)
        return next(running, None) or self._store.unit

    @property
    def charges(self) -> tuple[Charge, ...]:
        """The entries so far; in a file, of all processes."""
        return self._store.charges

    @property
    def spent_mu(self) -> float:
        """The mu of everything released so far, without what is reserved and not yet spent."""
        return math.sqrt(self._store.committed().spent)

    @property
    def reserved_mu(self) -> float:
        """The mu reserved by fits that are running, beyond what they have spent."""
        return math.sqrt(self._store.committed().reserved)

    @property
    def remaining_mu(self) -> float:
        """The largest single charge that can still be paid or reserved: neither spent nor reserved by another fit."""
        limit, committed = self._store.limit, self._store.committed()
        if math.isinf(limit):
            return math.inf
        return math.sqrt(max(0.0, limit * limit - committed.spent - committed.reserved))

    def epsilon(self, delta: float | None = None) -> float:
        """The epsilon spent so far, at `delta` (the budget's own unless given)."""
        return epsilon_of(self.spent_mu, self._budget.delta if delta is None else delta)

    def left(self, delta: float | None = None) -> float:
        """The largest epsilon, to three digits, that one more fit at `delta` can have (at the budget's own unless given).

        >>> ledger = Ledger(epsilon=1.0, delta=1e-6)
        >>> ledger.left()
        1.0
        """
        left = self.remaining_mu
        return math.inf if math.isinf(left) else largest_epsilon(left, self._budget.delta if delta is None else delta)

    @property
    def place(self) -> str:
        """Where it is kept, for people; empty in memory."""
        return self._store.words()

    def require_affordable(self, mu: float, *, label: str, unit: PrivacyUnit | None = None, budget: Budget | None = None) -> None:
        """Raise `BudgetExceeded` or `UnitMismatch` if a charge of `mu` cannot be paid now. Nothing is written in either case."""
        self._require_original(label)
        require(0 <= mu < math.inf, f"mu must be finite and not negative, got {mu}")
        self._require_unit(unit, label)
        self._store.require_affordable(mu, label=label, unit=unit or self.unit, budget=budget)

    def reserve(
        self,
        mu: float,
        *,
        label: str,
        paid: tuple[Charge, ...] = (),
        unit: PrivacyUnit | None = None,
        budget: Budget | None = None,
        name: str | None = None,
        lazy: bool = False,
    ) -> "Reserve":
        """Set `mu` aside for later releases, all of it or, with `BudgetExceeded`, none of it. Use it in a `with` statement.

        A fit that continues earlier work passes the entries it has already `paid` on this ledger, and the `name` of the reserve
        that it had. `unit` is what the fit protects. `UnitMismatch` if the ledger counts guarantees of another kind. `budget` is
        what `mu` was computed from, for entries and messages. A `lazy` reserve, of a fit that charges soon, is written to a file
        with its first charge: one wait for the disk less. Until then other processes may still spend what it is for.

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
            reserve = Reserve(self, mu, label, unit or self.unit)
            # They are on the ledger already, so they count against this reserve alone.
            for charge in paid:
                reserve._write(charge)
            reserve._account = self._store.reserve(reserve, budget=budget, name=name, lazy=lazy)
            self._reserves = (*(ref for ref in self._reserves if ref() is not None), weakref.ref(reserve))
        return reserve

    def spend(
        self, mu: float, *, label: str, slot: Slot | None = None, unit: PrivacyUnit | None = None, purpose: Purpose = "main"
    ) -> None:
        """Write a charge, or raise `BudgetExceeded` or `UnitMismatch` and write nothing.

        `unit` is what the release protects. Without it the charge is taken to be of the ledger's own kind.

        In a `slot` of a stream, only the increase of one person's costliest slots is charged, which may be nothing.

        >>> ledger = Ledger(epsilon=1.0, delta=1e-6)
        >>> for number in range(1000):
        ...     ledger.spend(0.2, label="block", slot=Slot(series="blocks", number=number, per_person=1))
        >>> len(ledger.charges), ledger.spent_mu
        (1, 0.2)
        """
        self._spend(mu, label, slot, None, unit, purpose)

    def _spend(
        self, mu: float, label: str, slot: Slot | None, reserve: "Reserve | None", unit: PrivacyUnit | None, purpose: Purpose
    ) -> None:
        """Charge `mu`, from a `reserve` or from what is not reserved."""
        # Checked before the lock: in a forked child, a thread of the parent may have it forever.
        self._require_original(label, reserve)
        require(0 <= mu < math.inf, f"mu must be finite and not negative, got {mu}")
        with self._lock:
            self._require_unit(unit, label)
            # A charge that names no kind has the one that the ledger has now, be it of a fit that still runs.
            unit = unit or self.unit
            extra, series = mu, None
            if slot is not None:
                series = self._series.get(slot.series) or _Series(
                    number=slot.number, per_person=slot.per_person, open={}, window=slot.window
                )
                extra = math.sqrt(max(series.extra(slot, mu * mu), 0.0))
            if reserve is None:
                self._store.require_affordable(extra, label=label, unit=unit, budget=None)
            else:
                reserve._require_room(extra, label)
            if slot is None or extra > 0:
                charge = Charge(label, extra, purpose)
                # Kept first, and then counted by the reserve and its slot: an interrupt in between may overstate what is spent,
                # never understate it. A charge that cannot be kept is not made, and nothing is released.
                if reserve is None:
                    self._store.charge(charge, unit=unit)
                else:
                    reserve._account.charge(charge, slot=slot)
                    reserve._write(charge)
            self._unit = self._unit or unit
            if slot is not None and series is not None:
                series.add(slot, mu * mu)
                self._series[slot.series] = series

    def _require_original(self, label: str, reserve: "Reserve | None" = None) -> None:
        process = self._process if reserve is None else reserve.process
        if self._open and this_process() == process:
            return
        if self._open and reserve is None and self._store.again() is not None:
            # A forked child opens the file again, and has no part in the slots and reserves of its parent.
            self._process, self._lock = this_process(), threading.RLock()
            self._series, self._reserves = {}, ()
            return
        # A forked child's ledger is a copy too: its parent would not see what it spent.
        raise BudgetExceeded(f"{label!r} cannot be paid from a copy of a ledger; spend from the original")

    def _require_unit(self, unit: PrivacyUnit | None, label: str) -> None:
        require_same_unit(repr(label), unit, self.unit, instead=f"{_OWN_LEDGER}. Nothing was released")

    def knows(self, name: str) -> bool:
        """Whether a reserve of this name was ever in this ledger's file."""
        return self._store.knows(name)

    def series(self) -> dict[str, tuple[int, int, float, tuple[float, ...]]]:
        """For each series: the newest slot, slots per person, that slot's squared mu, and the largest others."""
        return {name: (s.number, s.per_person, s.now, s.others) for name, s in self._series.items()}

    def adopt(self, series: Mapping[str, tuple[int, int, float, tuple[float, ...]]]) -> None:
        """Go on with slots of streams that were charged before, in another process. Those it knows already stay as they are."""
        for name, (number, per_person, now, largest) in series.items():
            numbers = [now, *largest]
            require(all(0 <= square < math.inf for square in numbers), f"the ledger's record of {name!r} is damaged")
            # Without a window: what was open behind the newest slot counts as closed from here on.
            self._series.setdefault(
                name, _Series(number=number, per_person=per_person, open={number: {"": now}}, largest=tuple(largest))
            )

    @classmethod
    def continued(
        cls,
        budget: Budget,
        charges: tuple[Charge, ...],
        series: Mapping[str, tuple[int, int, float, tuple[float, ...]]],
        *,
        unit: PrivacyUnit | None = None,
        through: Account | None = None,
    ) -> "Ledger":
        """A ledger that was moved here together with its stream, open for spending. The old one must not be used again.

        What is charged from here on is also kept `through` another account, and there first.
        """
        ledger = _record(budget, charges, unit, through)
        ledger.adopt(series)
        # Last, so that a damaged record never becomes a ledger that can spend.
        ledger._open = True
        return ledger

    def __copy__(self) -> "Ledger":
        """The same ledger: a copy would let the same budget be spent twice (scikit-learn's `clone` copies parameters)."""
        return self

    def __deepcopy__(self, memo: object) -> "Ledger":
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """In another process, a ledger in a file is opened again, and one in memory is a record that refuses to spend."""
        again = self._store.again()
        if again is not None:
            return _opened_again, (*again, self._unit)
        return _record, (self._budget, self.charges, self._unit)

    def __repr__(self) -> str:
        where = self._store.words()
        prefix = f"{where}, " if where else ""
        try:
            count = f", charges={len(self.charges)}" + (f", left={self.left():g}" if where else "")
        except EigenveilError as error:
            # What is printed while an error is looked at must not be another one.
            count = f", {error}"
        return f"Ledger({prefix}epsilon={self._budget.epsilon}, delta={self._budget.delta}{count})"


@final
class Reserve:
    """Part of a ledger's budget, set aside for one fit, and spent like the ledger itself. Changes in place.

    Charges become entries of the ledger at once; `charges` are those of this reserve only, in order. Closing it, or leaving its
    `with` block in any way, gives back what was not spent, and so does deleting it: the ledger keeps no reserve alive.

    A reserve may be exceeded by the rounding of a sum of shares. That keeps what is spent within twice the rounding that the
    ledger allows itself.
    """

    def __init__(self, ledger: Ledger, mu: float, label: str, unit: PrivacyUnit | None) -> None:
        self._ledger, self._mu, self.label = ledger, mu, label
        self.unit, self.process = unit, this_process()
        self._charges: list[Charge] = []
        self._total = ExactSum()
        self._closed = False
        # Set by `Ledger.reserve`, once the store has accepted it.
        self._account: Account

    @property
    def name(self) -> str | None:
        """What the reserve is called in a file; None in memory. Work that continues passes it to `Ledger.reserve`."""
        return self._account.name

    @property
    def charges(self) -> tuple[Charge, ...]:
        """The entries paid before this reserve was made, and then those paid from it so far."""
        return tuple(self._charges)

    @property
    def mu(self) -> float:
        """All that it may spend."""
        return self._mu

    @property
    def spent_mu(self) -> float:
        """Their mu."""
        return math.sqrt(self._total.value)

    @property
    def left(self) -> float:
        """The square of the mu that is still reserved."""
        return 0.0 if self._closed else max(0.0, self._mu * self._mu - self._total.value)

    @property
    def closed(self) -> bool:
        """Whether what was left has been given back."""
        return self._closed

    def spend(self, mu: float, *, label: str, slot: Slot | None = None, purpose: Purpose = "main") -> None:
        """Write a charge on the ledger, from this reserve, or raise `BudgetExceeded` and write nothing."""
        self._ledger._spend(mu, label, slot, self, self.unit, purpose)

    def close(self) -> None:
        """Give back what was not spent. Nothing can be spent from here on."""
        self._end(failed=False)

    def _end(self, *, failed: bool) -> None:
        if not self._closed:
            self._closed = True
            self._account.close(failed=failed)

    def _require_room(self, mu: float, label: str) -> None:
        if self._closed:
            raise BudgetExceeded(f"{label!r} cannot be paid from the reserve of {self.label!r}, which is closed")
        if not fits(self._total.square(mu).value, self._mu):
            raise BudgetExceeded(
                f"{label!r} needs mu = {mu:.4g} and {self.label!r} has mu = {math.sqrt(self.left):.4g} left of the "
                f"{self._mu:.4g} that it reserved; nothing was released"
            )

    def _write(self, charge: Charge) -> None:
        self._total = self._total.square(charge.mu)
        self._charges.append(charge)

    def __enter__(self) -> "Reserve":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._end(failed=kind is not None)

    # A copy is the same reserve. Two of them could each spend all of it.
    def __copy__(self) -> "Reserve":
        return self

    def __deepcopy__(self, memo: object) -> "Reserve":
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Reserve cannot be stored or sent: it belongs to the running fit that made it")

    def __repr__(self) -> str:
        return f"Reserve({self.label!r}, mu={self._mu:.4g}, charges={len(self._charges)})"


def _enough(left: float, budget: Budget | None) -> str:
    """What to type next, where it is known at which delta."""
    if budget is None:
        return ""
    epsilon = largest_epsilon(left, budget.delta)
    return f". What is left is enough for epsilon={epsilon:g}" if epsilon > 0 else ""


def _record(
    budget: Budget, charges: tuple[Charge, ...], unit: PrivacyUnit | None = None, through: Account | None = None
) -> Ledger:
    memory = Memory(budget, through=through)
    for charge in charges:
        # Written, not spent: the filter accepted them when they were made.
        memory.write(charge)
    ledger = Ledger.kept(budget, memory, unit=unit)
    ledger._open = False
    return ledger


def _opened_again(budget: Budget, store: Store, unit: PrivacyUnit | None) -> Ledger:
    ledger = Ledger.__new__(Ledger)
    # Nothing is read before it is used: the file may not be there where an estimator is only looked at.
    ledger._begin(budget, store, unit)
    return ledger
