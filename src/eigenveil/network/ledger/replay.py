"""What a ledger says of its studies and datasets, as values; and the same worked out again from the first entry on.

In daily use the ledger reads only the last entry of each study, which repeats how the study stands. `Replay` trusts none
of that: it adds up every charge anew and compares. `DurableLedger.verify` runs it.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, final

from eigenveil.errors import BudgetExceeded, require
from eigenveil.network.ledger.budget import Standing, State, StudyBudget, Together
from eigenveil.network.ledger.entries import Entry, LedgerError, chained
from eigenveil.privacy.accounting import Budget, epsilon_of
from eigenveil.privacy.ledger import Charge

__all__ = ["BUDGET_KINDS", "DatasetState", "Replay", "StudyReplay", "charges_in"]

# The entries that change how a study stands. All others are for people.
BUDGET_KINDS: Final = ("join", "life", "commit", "finish", "abandon")
_ENDS: Final[dict[str, State]] = {"finish": "finished", "abandon": "abandoned"}


@final
@dataclass(frozen=True, slots=True)
class StudyReplay:
    """A study as the ledger has it: its account, the time it was joined, and how it stands. Public facts only."""

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
    def entries(self) -> int:
        """How many steps were committed."""
        return self.standing.entries


@final
@dataclass(frozen=True, slots=True)
class DatasetState:
    """All studies of a declared dataset together.

    `spent` is the mu of everything released so far. `reserved` is what open studies may spend, including what they have
    spent. `counted` is what counts for life: the reserve of open studies and what closed ones spent. `beyond` comes on
    top, out of delta. `life` is the budget for life that the last study was joined under.
    """

    name: str
    open: int
    closed: int
    spent: float
    reserved: float
    counted: float
    beyond: float
    life: Budget | None

    @classmethod
    def of(cls, name: str, standings: Sequence[Standing], life: Budget | None) -> "DatasetState":
        """The sums over the studies of a dataset."""
        still = [standing for standing in standings if standing.state == "open"]
        total = Together.of(standings)
        spent = math.sqrt(math.fsum(standing.spent**2 for standing in standings))
        reserved = math.sqrt(Together.of(still).counts)
        closed = len(standings) - len(still)
        return cls(name, len(still), closed, spent, reserved, math.sqrt(total.counts), total.beyond, life)

    @property
    def void(self) -> bool:
        """Whether a study without privacy has ended the guarantee for life."""
        return math.isinf(self.counted)

    def epsilon(self, delta: float, *, mu: float | None = None) -> float:
        """The epsilon of what was spent (or of `mu`) at `delta`; infinite where `beyond` leaves nothing of delta."""
        require(0 < delta < 1, f"delta must lie in (0, 1), got {delta}")
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

    def run(self, lines: Iterable[Entry], *, head: str | None = None) -> Entry:
        """Check all entries, and that the noted `head` is the hash of one of them. Returns the last."""
        last, found = None, head is None
        for line in chained(lines):
            self._add(line)
            last = line
            found = found or line.hash == head
        if last is None:
            raise LedgerError("the ledger has no entries, and the first one is written when it is made")
        if not found:
            raise LedgerError(
                f"none of the {last.number} entries has the noted head {str(head)[:80]}. Charges may have been forgotten: "
                "entries were removed or rewritten, an older copy was put back, or the head is of another ledger"
            )
        return last

    def _add(self, line: Entry) -> None:
        if line.kind not in BUDGET_KINDS:
            return
        try:
            standing = self._stands(line)
        except BudgetExceeded as error:
            raise LedgerError(f"entry {line.number} ({line.kind}) exceeds a budget: {error}") from None
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError):
            raise LedgerError(f"entry {line.number} ({line.kind}) does not follow from the entries before it") from None
        assert line.study is not None
        assert line.dataset is not None
        if line.body.get("standing") != standing.values():
            raise LedgerError(
                f"entry {line.number} ({line.kind}) states a balance that the entries before it do not add up to"
            )
        self.standings[line.study] = standing
        self.datasets.setdefault(line.dataset, {})[line.study] = standing
        if line.kind != "commit":
            self._together[line.dataset] = Together.of(self.datasets[line.dataset].values())
        together = self._together[line.dataset]
        if line.body.get("together") != together.values():
            raise LedgerError(f"entry {line.number} ({line.kind}) states a sum over the dataset that is not the sum")
        # A commit without charges is allowed when the budget for life was lowered since: a site may still say no.
        costs = standing.state == "open" and (line.kind != "commit" or line.body["charges"])
        if costs and not together.within(standing.life):
            raise LedgerError(f"entry {line.number} ({line.kind}) exceeds the budget for life of its dataset")

    def _stands(self, line: Entry) -> Standing:
        """How the study stands after this entry, worked out; an error of the kinds `_add` catches if it cannot be."""
        if line.study is None or line.dataset is None:
            raise ValueError("an entry about a budget must name a study and its dataset")
        body, known = line.body, self.standings.get(line.study)
        if line.kind == "join":
            account = StudyBudget.of(line.study, line.dataset, body["account"])
            life = Standing.of(body["standing"]).life
            require(known is None, "joined twice")
            return Standing(account.mu, account.beyond, life)
        if known is None or known.state != "open" or line.study not in self.datasets[line.dataset]:
            raise ValueError("not an open study of this dataset")
        if line.kind == "life":
            return replace(known, life=Standing.of(body["standing"]).life)
        if line.kind in _ENDS:
            return known.closed(_ENDS[line.kind])
        require(body["number"] == known.entries, "not the next step")
        self.commits[line.study, known.entries] = line
        return known.charged(charges_in(body), said=bool(body["said"]))


def charges_in(body: Any) -> tuple[Charge, ...]:
    """The charges that the body of an entry records."""
    return tuple(Charge(str(label), float(mu)) for label, mu in body["charges"])
