"""`SmallRelease`: a table, a budget and a guarantee, for releases that prepare a fit: bounds, a spectrum."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, final

from sklearn.base import BaseEstimator

from eigenveil.core.accounting import Budget
from eigenveil.core.domain import MissingPolicy
from eigenveil.core.ledger import Ledger, Reserve
from eigenveil.core.mechanism import Exact, Gaussian, Mechanism
from eigenveil.core.noise import Noise
from eigenveil.core.rows import Rows
from eigenveil.core.unit import Neighbours
from eigenveil.data.rows import by_person, counts_people
from eigenveil.estimators.checks import SharedLedger, budget_of, seed_of, warn_if_weak
from eigenveil.estimators.reading import column_names, people_at, read_rows, select_columns
from eigenveil.params.declarations.private import SmallReleaseParams
from eigenveil.params.declare import parameters
from eigenveil.privacy.facts import FOUND_GAPS, NO_PRIVACY, GuaranteeFacts, OneHolder, Person, TableRows
from eigenveil.privacy.guarantee import Guarantee
from eigenveil.tasks.fit.gaps import gaps_of

__all__ = ["AskedOfRows", "SmallRelease", "Text"]


class Text(ABC):
    """A result that can be printed: the answer, what is known of it, and the cost."""

    __slots__ = ()
    guarantee: Guarantee

    @abstractmethod
    def _lines(self) -> Iterator[str]:
        """The answer."""

    def to_text(self) -> str:
        """The answer and the cost, as text."""
        cost = self.guarantee.headline + ("" if self.guarantee.epsilon is None else ".")
        return "\n".join([*self._lines(), cost])

    def __str__(self) -> str:
        return self.to_text()


@parameters()
class AskedOfRows(SharedLedger, SmallReleaseParams):
    """The parameters that all small releases share."""


@final
class _Reader(BaseEstimator):
    """The estimator that scikit-learn's checks of a table need. Changes in place: it records the columns."""

    def __init__(self, missing: str = "refuse") -> None:
        self.missing = missing


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SmallRelease:
    """Checked `rows`, and the ledger that is charged for releases of them. The ledger changes in place."""

    rows: Rows
    columns: tuple[str, ...] | None
    neighbours: Neighbours
    protects: Person
    budget: Budget | None  # This and the ledger are None for exact numbers.
    ledger: Ledger | None
    noise: Noise
    gaps: MissingPolicy | None = None  # Entries may be missing.
    reserve: Reserve | None = None  # What `reserved` has set aside. Releases are charged to it.

    @classmethod
    def of(cls, X: Any, params: AskedOfRows) -> "SmallRelease":
        """Read rows `X`, (n, d). Checks only that they are finite numbers."""
        budget, ledger = budget_of(params.epsilon, params.delta), params.ledger
        X, ids = select_columns(X, params, fitting=True)
        names = column_names(X)
        rows = read_rows(_Reader(params.missing), X, reset=True)
        if ids is not None:
            rows = by_person(rows, ids)
        # A ledger that the caller shares adds up over several releases; otherwise this one gets its own.
        if budget is not None and ledger is None:
            ledger = Ledger(epsilon=budget.epsilon, delta=budget.delta)
        seed = seed_of(params.random_state)
        noise = Noise.fresh() if seed is None else Noise.seeded(seed)
        columns = None if names is None else tuple(map(str, names))
        near, person = Neighbours(params.neighbours), params.person if isinstance(params.person, str) else None
        gaps = gaps_of(params, rows.shape[1], names=columns, sparse=rows.sparse)
        return cls(
            rows=rows,
            columns=columns,
            neighbours=near,
            protects=Person(grouped=counts_people(rows), column=person),
            budget=budget,
            ledger=ledger,
            noise=noise,
            gaps=None if gaps is None else gaps.under(near),
        )

    @property
    def dim(self) -> int:
        """The number of columns."""
        return self.rows.shape[1]

    @property
    def multiplier(self) -> float:
        """The size of the noise over the sensitivity, for the whole budget; zero where there is none."""
        return 0.0 if self.budget is None else 1.0 / self.budget.mu

    def mechanism(self) -> Mechanism:
        """The mechanism that every release goes through. A share of 1 is the whole budget."""
        if self.budget is None:
            return Exact(because=NO_PRIVACY["releases"])
        assert self.reserve is not None
        return Gaussian(multiplier=self.multiplier, ledger=self.reserve, noise=self.noise)

    def scale(self, sensitivity: float, *, share: float = 1.0) -> float:
        """The noise that `mechanism` will add to each entry of a release, known before anything is reserved."""
        return sensitivity * self.multiplier / math.sqrt(share)

    @contextmanager
    def reserved(self, label: str) -> Iterator["SmallRelease"]:
        """This release with its whole budget set aside on the ledger. Refused, before anything is released, if the
        ledger has less.

        What was not spent is given back, however the block ends.
        """
        if self.budget is None or self.ledger is None:
            yield self
            return
        unit = self.protects.protected(self.neighbours)
        with self.ledger.reserve(self.budget.mu, label=label, unit=unit, budget=self.budget, lazy=True) as reserve:
            yield replace(self, reserve=reserve)

    def public_people(self) -> float | None:
        """The number of people where it is public, None where it is private."""
        # Of rows with gaps, only reading tells how many are complete.
        if self.gaps is not None and self.gaps.drops:
            return None
        if self.budget is not None and not self.neighbours.count_is_public:
            return None
        return people_at(self.rows)

    @property
    def counted_entries(self) -> tuple[str, ...]:
        """What is released beside sums because entries may be missing, in the words of a guarantee."""
        return () if self.gaps is None else FOUND_GAPS.get(self.gaps.rule, ())

    def guarantee(
        self, released: Sequence[str], rows: TableRows, *, people: float, ranges: bool = False, assumes: tuple[str, ...] = ()
    ) -> Guarantee:
        """The guarantee of everything released here, with what is known of the rows and of the number of people.

        With `ranges` entries were counted column by column, and nothing was divided by how many are there. It rests on what this
        kind of release `assumes`, too.
        """
        if self.budget is None:
            return Guarantee.none(NO_PRIVACY["releases"])
        assert self.reserve is not None
        if self.gaps is not None:
            rows = replace(rows, gaps="apart" if ranges and self.gaps.divides else self.gaps.rule)
        claim = GuaranteeFacts(
            budget=self.budget,
            protects=self.protects,
            neighbours=self.neighbours,
            rows=rows,
            seen_by=OneHolder("less"),
            released=tuple(released),
            # Those of this release alone. A shared ledger also has the charges of other fits.
            charges=self.reserve.charges,
            reproducible=self.noise.reproducible,
            people=people,
        ).guarantee()
        warn_if_weak(claim, people)
        return replace(claim, assumptions=(*assumes, *claim.assumptions))
