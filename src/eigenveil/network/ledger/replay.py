"""What a ledger says of its studies and datasets, as values; and the same worked out again from the first entry on.

In daily use the ledger reads only the last entry of each study, which repeats how the study stands. A `Replay` trusts
none of that: it adds up every charge anew and compares. It is what `DurableLedger.verify` runs.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, final

from eigenveil.errors import BudgetExceeded, require
from eigenveil.network.ledger.budget import Standing, State, StudyBudget, Together, units_of
from eigenveil.network.ledger.entries import Entry, LedgerError, chained
from eigenveil.privacy.accounting import Budget, epsilon_of
from eigenveil.privacy.ledger import Charge
from eigenveil.privacy.unit import PrivacyUnit

__all__ = ["BUDGET_KINDS", "DECLARATION", "DatasetState", "Replay", "StudyReplay", "charges_in"]

# The entries that change how a study stands. All others are for people.
BUDGET_KINDS: Final = ("join", "life", "commit", "finish", "abandon")
# The entry that says what the studies of version 0.1 of a dataset protect, which their own entries do not.
DECLARATION: Final = "unit"
_ENDS: Final[dict[str, State]] = {"finish": "finished", "abandon": "abandoned"}


@final
@dataclass(frozen=True, slots=True)
class StudyReplay:
    """A study as the ledger has it: its account, the day it was joined, and how it stands. Public facts only."""

    account: StudyBudget
    joined: str
    standing: Standing

    @property
    def state(self) -> State:
        """Whether it is open, finished or abandoned."""
        return self.standing.state

    @property
    def spent(self) -> float:
        """The mu of what it has released; infinite without privacy."""
        return self.standing.spent

    @property
    def steps(self) -> int:
        """How many steps were committed."""
        return self.standing.entries


@final
@dataclass(frozen=True, slots=True)
class DatasetState:
    """All studies of a declared dataset together.

    - `spent` is the mu of everything released so far.
    - `reserved` is what open studies may spend, including what they have spent.
    - `counted` is what counts in total: the reserve of open studies and what closed ones spent.
    - `beyond` comes on top, out of delta.
    - `life` is the total budget that the last study was joined under.
    - `unit` is what all of this protects. None if nothing is counted yet, or if it is `unstated`, as in version 0.1.
    """

    name: str
    open: int
    closed: int
    spent: float
    reserved: float
    counted: float
    beyond: float
    life: Budget | None
    unit: PrivacyUnit | None = None
    unstated: bool = False

    @classmethod
    def of(
        cls, name: str, standings: Sequence[Standing], life: Budget | None, units: Collection[PrivacyUnit | None] = ()
    ) -> "DatasetState":
        """The sums over the studies of a dataset, which protect these `units`: one, or none yet."""
        still = [standing for standing in standings if standing.state == "open"]
        total = Together.of(standings)
        # The root of a sum of squares: under Gaussian DP the mu of several releases adds up like that.
        spent = math.sqrt(math.fsum(standing.spent**2 for standing in standings))
        reserved = math.sqrt(Together.of(still).counts)
        closed = len(standings) - len(still)
        sums = (spent, reserved, math.sqrt(total.counts), total.beyond)
        unit = next((unit for unit in units if unit is not None), None)
        return cls(name, len(still), closed, *sums, life, unit, unstated=None in units)

    @property
    def void(self) -> bool:
        """Whether a study without privacy has ended the guarantee for good."""
        return math.isinf(self.counted)

    def epsilon(self, delta: float, *, mu: float | None = None) -> float:
        """The epsilon of what was spent (or of `mu`) at `delta`; infinite where `beyond` leaves nothing of delta."""
        require(0 < delta < 1, f"delta must lie in (0, 1), got {delta}")
        # Masks may fail with probability `beyond` whatever epsilon is, so only the rest of delta is for the noise.
        left = delta - self.beyond
        return epsilon_of(self.spent if mu is None else mu, left) if left > 0 else math.inf


@final
class Replay:
    """Balances worked out from entries, one after the other. Changes in place.

    `LedgerError` names the first entry whose hash, number or balance is wrong.
    """

    def __init__(self) -> None:
        self.standings: dict[str, Standing] = {}
        self.datasets: dict[str, dict[str, Standing]] = {}
        self._together: dict[str, Together] = {}
        self.commits: dict[tuple[str, int], Entry] = {}
        self._declared: dict[str, PrivacyUnit] = {}

    def run(self, entries: Iterable[Entry], *, head: str | None = None) -> Entry:
        """Check all entries, and that the noted `head` is the hash of one of them. Returns the last."""
        last, found = None, head is None
        for entry in chained(entries):
            self._add(entry)
            last = entry
            # Any entry will do, not only the last: the head was noted earlier, and the ledger has grown since.
            found = found or entry.hash == head
        if last is None:
            raise LedgerError("the ledger has no entries, and the first one is written when it is made")
        if not found:
            raise LedgerError(
                f"none of the {last.number} entries has the noted head {str(head)[:80]}. Charges may have been forgotten: "
                "entries were removed or rewritten, an older copy was put back, or the head is of another ledger"
            )
        return last

    def _add(self, entry: Entry) -> None:
        if entry.kind not in (*BUDGET_KINDS, DECLARATION):
            return
        try:
            if entry.kind == DECLARATION:
                self._declare(entry)
                return
            standing = self._stands(entry)
        except BudgetExceeded as error:
            raise LedgerError(f"entry {entry.number} ({entry.kind}) exceeds a budget: {error}") from None
        # The body is whatever JSON somebody wrote, so any field may be missing or of another type.
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError):
            raise LedgerError(
                f"entry {entry.number} ({entry.kind}) does not follow from the entries before it"
            ) from None
        assert entry.study is not None
        assert entry.dataset is not None
        # Exact comparison of floats: the ledger computed them in the same order from the same numbers.
        if entry.body.get("standing") != standing.values():
            raise LedgerError(
                f"entry {entry.number} ({entry.kind}) states a balance that the entries before it do not add up to"
            )
        self.standings[entry.study] = standing
        self.datasets.setdefault(entry.dataset, {})[entry.study] = standing
        # A commit changes no sum of the dataset, because open studies count with their whole reserve.
        if entry.kind != "commit":
            self._together[entry.dataset] = Together.of(self.datasets[entry.dataset].values())
        together = self._together[entry.dataset]
        if entry.body.get("together") != together.values():
            raise LedgerError(f"entry {entry.number} ({entry.kind}) states a sum over the dataset that is not the sum")
        # A commit without charges spends nothing, so it cannot exceed the budget.
        costs = standing.state == "open" and (entry.kind != "commit" or entry.body["charges"])
        if costs and not together.within(standing.life):
            raise LedgerError(f"entry {entry.number} ({entry.kind}) exceeds the total budget of its dataset")

    def _stands(self, entry: Entry) -> Standing:
        """How the study stands after this entry, worked out; an error of the kinds `_add` catches if it cannot be."""
        if entry.study is None or entry.dataset is None:
            raise ValueError("an entry about a budget must name a study and its dataset")
        body, known = entry.body, self.standings.get(entry.study)
        if entry.kind == "join":
            account = StudyBudget.of(entry.study, entry.dataset, body["account"])
            # The policy is not in the ledger, so the total budget is taken as stated. `_add` checks that it held.
            life = Standing.of(body["standing"]).life
            require(known is None, "joined twice")
            standing = Standing(account.mu, account.beyond, life, unit=account.unit)
            # One kind of guarantee for each dataset, or their sum would mean nothing.
            every = (*self.datasets.get(entry.dataset, {}).values(), standing)
            require(len(units_of(every, self._declared.get(entry.dataset))) <= 1, "of another kind")
            return standing
        # After a study ended no entry may change it, and it cannot move to another dataset's budget.
        if known is None or known.state != "open" or entry.study not in self.datasets[entry.dataset]:
            raise ValueError("not an open study of this dataset")
        if entry.kind == "life":
            stated = Standing.of(body["standing"])
            # A study of version 0.1 that goes on after its dataset was declared says from here on what it protects.
            if known.unit is None and stated.unit is not None:
                require(stated.unit == self._declared.get(entry.dataset), "of another kind")
                known = replace(known, unit=stated.unit)
            return replace(known, life=stated.life)
        if entry.kind in _ENDS:
            return known.closed(_ENDS[entry.kind])
        # Steps are numbered without gaps, so a removed commit cannot hide.
        require(body["number"] == known.entries, "not the next step")
        self.commits[entry.study, known.entries] = entry
        return known.charged(charges_in(body), said=bool(body["said"]))

    def _declare(self, entry: Entry) -> None:
        """Take note of what the studies of a dataset protect, once."""
        if entry.dataset is None:
            raise ValueError("a declaration must name a dataset")
        unit, studies = PrivacyUnit.read(entry.body["unit"]), self.datasets.get(entry.dataset, {})
        undeclared = units_of(studies.values(), self._declared.get(entry.dataset))
        require(undeclared == {None}, "nothing is left to declare")
        self._declared[entry.dataset] = unit


def charges_in(body: Any) -> tuple[Charge, ...]:
    """The charges that the body of an entry records."""
    return tuple(Charge(str(label), float(mu)) for label, mu in body["charges"])
