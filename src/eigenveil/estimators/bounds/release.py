"""`SmallRelease`: a table, a budget and a guarantee, for what is asked of a table before it is fitted: bounds, a spectrum."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, final

from sklearn.base import BaseEstimator

from eigenveil.data.rows import Rows, WeightedRows, counts_people
from eigenveil.estimators.checks import SharedLedger, budget_of, seed_of
from eigenveil.estimators.fitted import column_names, read_rows, without_person
from eigenveil.params import parameters
from eigenveil.params.declarations.bounds import SmallReleaseParams
from eigenveil.privacy import (
    Budget,
    Exact,
    Gaussian,
    Guarantee,
    Ledger,
    Mechanism,
    Neighbours,
    Noise,
    Reserve,
    bounded_count,
)
from eigenveil.privacy.facts import NO_PRIVACY, GuaranteeFacts, OneHolder, Person, TableRows

__all__ = ["AskedOfRows", "SmallRelease"]


@parameters()
class AskedOfRows(SharedLedger, SmallReleaseParams):
    """What every small release is asked with."""


@final
class _Reader(BaseEstimator):
    """What scikit-learn's checks of a table ask for. Changes in place: it learns the columns."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class SmallRelease:
    """Checked `rows`, and who pays for what is released of them. The ledger, which changes in place, is charged.

    `budget` and `ledger` are None where exact numbers were asked for. Releases are made inside of `reserved`, and paid from
    what that sets aside on the ledger.
    """

    rows: Rows
    columns: tuple[str, ...] | None
    neighbours: Neighbours
    budget: Budget | None
    ledger: Ledger | None
    noise: Noise
    reserve: Reserve | None = None

    @classmethod
    def of(cls, X: Any, asked: AskedOfRows) -> "SmallRelease":
        """Of rows `X`, (n, d); nothing is read off them but that they are finite numbers."""
        budget, ledger = budget_of(asked.epsilon, asked.delta), asked.ledger
        X, ids = without_person(X, asked.person, fitting=True)
        names = column_names(X)
        rows = read_rows(_Reader(), X, reset=True)
        if ids is not None:
            rows = WeightedRows.by_person(rows, ids)
        if budget is None:
            ledger = None
        elif ledger is None:
            ledger = Ledger(epsilon=budget.epsilon, delta=budget.delta)
        seed = seed_of(asked.random_state)
        noise = Noise.fresh() if seed is None else Noise.seeded(seed)
        columns = None if names is None else tuple(str(name) for name in names)
        return cls(rows, columns, Neighbours(asked.neighbours), budget, ledger, noise)

    @property
    def dim(self) -> int:
        """How many columns."""
        return self.rows.shape[1]

    @property
    def multiplier(self) -> float:
        """The size of the noise over the sensitivity, for the whole budget; zero where there is none."""
        return 0.0 if self.budget is None else 1.0 / self.budget.mu

    def mechanism(self) -> Mechanism:
        """The only way out. Its whole share is the budget."""
        if self.budget is None:
            return Exact(because=NO_PRIVACY["releases"])
        assert self.reserve is not None
        return Gaussian(self.multiplier, self.reserve, self.noise)

    def scale(self, sensitivity: float, *, share: float = 1.0) -> float:
        """The noise on each entry of a release, as `mechanism` will have it, for who must know before anything is reserved."""
        return sensitivity * self.multiplier / math.sqrt(share)

    @contextmanager
    def reserved(self, label: str) -> Iterator["SmallRelease"]:
        """This, with all of the budget set aside: refused before anything is released if the ledger cannot pay in full.

        What was not spent in the end, however it came to that, is given back.
        """
        if self.budget is None or self.ledger is None:
            yield self
            return
        with self.ledger.reserve(self.budget.mu, label=label) as reserve:
            yield replace(self, reserve=reserve)

    def public_people(self) -> float | None:
        """The number of people where it may be used as it is, None where it is private."""
        if self.budget is not None and not self.neighbours.count_is_public:
            return None
        if not counts_people(self.rows):
            return float(self.rows.shape[0])
        # Rounded to the whole number that it is: a sum of weights 1/m would tell about m in its last digits.
        return float(round(float(bounded_count(self.rows, neighbours=Neighbours.ZERO_OUT).value)))

    def guarantee(self, released: Sequence[str], rows: TableRows) -> Guarantee:
        """What is guaranteed of all that was released here, and what is known of the rows."""
        if self.budget is None:
            return Guarantee.none(NO_PRIVACY["releases"])
        assert self.reserve is not None
        return GuaranteeFacts(
            budget=self.budget,
            protects=Person(grouped=counts_people(self.rows)),
            neighbours=self.neighbours,
            rows=rows,
            seen_by=OneHolder("less"),
            released=tuple(released),
            charges=self.reserve.charges,
            reproducible=self.noise.reproducible,
        ).guarantee()
