"""`PrivacyUnit`: what one guarantee protects, and between which tables. Costs are added up only where it is the same.

Guarantees of two kinds have no common sum. Under epsilon = 1 for each row, a person with 50 rows is protected far less. Nor does
a guarantee for people cover each of their rows at the same cost. A person's rows are averaged, so one row more replaces the
person's average by another: removing and adding, which is up to twice the mu. So a ledger refuses a second kind and converts
nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, final

from eigenveil.errors import UnitMismatch, require
from eigenveil.privacy.sensitivity import Neighbours

__all__ = ["PrivacyUnit", "require_same_unit"]

Each = Literal["row", "person", "interaction"]


@final
@dataclass(frozen=True, slots=True)
class PrivacyUnit:
    """What a guarantee protects: `each` row, each person, or each single interaction of a user with an item.

    Neighbouring tables differ in one of them, as `neighbours` says. People are named by a `column` of the table, if it has a
    name. Without people, each row is taken for a different person.

    >>> print(PrivacyUnit("row", Neighbours.ADD_REMOVE))
    each row, taken for a different person (add-remove)
    >>> print(PrivacyUnit("person", Neighbours.ZERO_OUT, "patient_id"))
    each person, named by the column "patient_id" (zero-out)
    """

    each: Each
    neighbours: Neighbours
    column: str | None = None

    def __post_init__(self) -> None:
        require(
            self.each in ("row", "person", "interaction"), f"a unit is a row, a person or an interaction: {self.each!r}"
        )
        require(
            isinstance(self.neighbours, Neighbours),
            f"neighbours must be a Neighbours, such as Neighbours.ADD_REMOVE, got {self.neighbours!r}",
        )
        single = self.neighbours is Neighbours.INTERACTION
        require(
            single if self.each == "interaction" else self.neighbours.protects_a_person,
            f"{self.neighbours.value} is not a relation between tables that differ in one {self.each}",
        )
        require(
            self.column is None or (self.each == "person" and isinstance(self.column, str) and self.column != ""),
            "column names the people, and must be text; it is for a person",
        )

    @classmethod
    def of(cls, neighbours: Neighbours, *, grouped: bool, column: str | None = None) -> "PrivacyUnit":
        """The unit of a release: people if rows are `grouped` by person, otherwise rows, and under INTERACTION single items."""
        if neighbours is Neighbours.INTERACTION:
            return cls("interaction", neighbours)
        return cls("person", neighbours, column) if grouped else cls("row", neighbours)

    @property
    def words(self) -> str:
        """Who or what is protected, without the neighbouring relation."""
        if self.each == "interaction":
            return "each single interaction of a user with an item"
        if self.each == "row":
            return "each row, taken for a different person"
        return "each person" if self.column is None else f'each person, named by the column "{self.column}"'

    def __str__(self) -> str:
        return f"{self.words} ({self.neighbours.value})"

    def values(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"each": self.each, "column": self.column, "neighbours": self.neighbours.value}

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> "PrivacyUnit":
        """The unit that `values` wrote; anything else is a `ValueError`.

        >>> unit = PrivacyUnit("interaction", Neighbours.INTERACTION)
        >>> PrivacyUnit.read(unit.values()) == unit
        True
        """
        known = {"each", "column", "neighbours"}
        require(isinstance(values, Mapping) and set(values) == known, f"a unit has the fields {sorted(known)}")
        return cls(values["each"], Neighbours(values["neighbours"]), values["column"])


def require_same_unit(what: str, asked: PrivacyUnit | None, counted: PrivacyUnit | None, *, instead: str) -> None:
    """Refuse to add `what`, a guarantee for `asked`, to guarantees for `counted`. None is none yet, and fits any."""
    if asked is not None and counted is not None and asked != counted:
        raise UnitMismatch(
            f"{what} protects {asked}. What was charged before protects {counted}. Such costs cannot be added up. {instead}"
        )
