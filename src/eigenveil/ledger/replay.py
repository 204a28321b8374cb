"""What a ledger says of its studies and datasets, as values; and how both are worked out from its entries.

A `Replay` goes through the entries from the first one on, and adds up every charge. Every figure and every decision of a
ledger comes from one, so no index, table or setting of the database can change a figure.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, final

from eigenveil.core.accounting import Budget, epsilon_of
from eigenveil.core.ledger import Charge
from eigenveil.core.unit import PrivacyUnit
from eigenveil.errors import BudgetExceeded, require
from eigenveil.ledger.budget import RunningTotal, Standing, State, StudyBudget, Together
from eigenveil.ledger.entries import FIRST, Entry, LedgerError, chained

__all__ = ["BUDGET_KINDS", "DatasetState", "Replay", "StudyReplay", "charges_in"]

# The entries that change how a study stands. All others are for people.
BUDGET_KINDS: Final = ("join", "life", "commit", "finish", "abandon")
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
@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetState:
    """All studies of a declared dataset together.

    - `spent` is the mu of everything released so far.
    - `reserved` is what open studies may spend, including what they have spent.
    - `counted` is what counts in total: the reserve of open studies and what closed ones spent.
    - `beyond` comes on top, out of delta.
    - `life` is the total budget that the last study was joined under.
    - `unit` is what all of this protects. None if nothing is counted yet.
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

    @classmethod
    def of(
        cls, name: str, standings: Sequence[Standing], life: Budget | None, units: Collection[PrivacyUnit] = ()
    ) -> "DatasetState":
        """The sums over the studies of a dataset, which protect these `units`: one, or none yet."""
        still = [standing for standing in standings if standing.state == "open"]
        total = Together.of(standings)
        return cls(
            name=name,
            open=len(still),
            closed=len(standings) - len(still),
            # The root of a sum of squares: under Gaussian DP the mu of several releases adds up like that.
            spent=math.sqrt(math.fsum(standing.spent**2 for standing in standings)),
            reserved=math.sqrt(Together.of(still).counts),
            counted=math.sqrt(total.counts),
            beyond=total.beyond,
            life=life,
            unit=next(iter(units), None),
        )

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
        self.number, self.hash = 0, FIRST  # Of the last entry that was added.
        self.datasets: dict[str, dict[str, Standing]] = {}  # How every study of a dataset stands.
        self.joined: dict[str, Entry] = {}  # The entry with which a study was joined.
        self.commits: dict[str, list[int]] = {}  # The numbers of the entries with the steps of a study.
        self.lives: dict[str, Budget | None] = {}  # The total budget that a dataset got last.
        self._accounts: dict[str, StudyBudget] = {}
        self._totals: dict[str, RunningTotal] = {}
        # 32 bytes for each entry.
        self._hashes = bytearray()

    def standing(self, study: str) -> Standing | None:
        """How a study stands; None if it was never joined."""
        account = self._accounts.get(study)
        return None if account is None else self.datasets[account.dataset][study]

    def study(self, study: str) -> StudyReplay:
        """A study that was joined."""
        account = self._accounts[study]
        return StudyReplay(account, self.joined[study].time, self.datasets[account.dataset][study])

    @property
    def studies(self) -> tuple[StudyReplay, ...]:
        """Every study, in the order in which they were joined."""
        return tuple(map(self.study, self._accounts))

    def dataset(self, name: str) -> DatasetState:
        """The sums over the studies of a dataset, which has none if it was only declared."""
        return DatasetState.of(name, [*self.datasets.get(name, {}).values()], self.lives.get(name), self.units(name))

    def together(self, dataset: str) -> Together:
        """What the studies of a dataset add up to."""
        return self._totals[dataset].together

    def together_after(self, dataset: str, study: str, standing: Standing) -> Together:
        """What they would add up to if a study stood like this."""
        total = self._totals.get(dataset) or RunningTotal()
        return total.after(self.datasets.get(dataset, {}).get(study), standing)

    def units(self, dataset: str) -> set[PrivacyUnit]:
        """What the studies of a dataset protect: one unit, or none yet."""
        return self._totals[dataset].units if dataset in self._totals else set()

    def hash_of(self, number: int) -> str | None:
        """The hash of the entry of this number; None if there is none."""
        if not 0 <= number <= self.number:
            return None
        return self._hashes[32 * number - 32 : 32 * number].hex() if number else FIRST

    def run(self, entries: Iterable[Entry], *, head: str | None = None) -> Entry:
        """Check all entries, and that the noted `head` is the hash of one of them. Returns the last."""
        last, found = None, head is None
        for entry in chained(entries):
            self.add(entry)
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

    def add(self, entry: Entry) -> None:
        """Take the next entry, whose hash follows from the one before it. After a `LedgerError` this replay is of no use."""
        self._balance(entry)
        self.number, self.hash = entry.number, entry.hash
        self._hashes += bytes.fromhex(entry.hash)

    def _balance(self, entry: Entry) -> None:
        if entry.kind not in BUDGET_KINDS:
            return
        try:
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
        studies = self.datasets.setdefault(entry.dataset, {})
        total = self._totals.setdefault(entry.dataset, RunningTotal())
        # A commit changes no sum of the dataset, because open studies count with their whole reserve.
        if entry.kind != "commit":
            total.change(studies.get(entry.study), standing)
        studies[entry.study] = standing
        if entry.kind in ("join", "life"):
            self.lives[entry.dataset] = standing.life
        together = total.together
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
        body, known = entry.body, self.standing(entry.study)
        if entry.kind == "join":
            account = StudyBudget.of(entry.study, entry.dataset, body["account"])
            # The policy is not in the ledger, so the total budget is taken as stated. `_add` checks that it held.
            life = Standing.of(body["standing"]).life
            require(known is None, "joined twice")
            require(account.unit is not None or not account.names_unit, "of no kind")
            standing = Standing.new(account, life)
            # One kind of guarantee for each dataset, or their sum would mean nothing.
            asked = {account.unit} if standing.guarantees and account.unit is not None else set()
            require(len(self.units(entry.dataset) | asked) <= 1, "of another kind")
            self._accounts[entry.study], self.joined[entry.study] = account, entry
            self.commits[entry.study] = []
            return standing
        # After a study ended no entry may change it, and it cannot move to another dataset's budget.
        if known is None or known.state != "open" or self._accounts[entry.study].dataset != entry.dataset:
            raise ValueError("not an open study of this dataset")
        if entry.kind == "life":
            return replace(known, life=Standing.of(body["standing"]).life)
        if entry.kind in _ENDS:
            return known.closed(_ENDS[entry.kind])
        # Steps are numbered without gaps, so a removed commit cannot hide.
        require(body["number"] == known.entries, "not the next step")
        self.commits[entry.study].append(entry.number)
        return known.charged(charges_in(body), said=bool(body["said"]))


def charges_in(body: Any) -> tuple[Charge, ...]:
    """The charges that the body of an entry records."""
    return tuple(Charge(str(label), float(mu)) for label, mu in body["charges"])
