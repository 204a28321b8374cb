"""What one guarantee protects, which tables are neighbours, and how far one person can move each number we release.

**Sensitivities**, each with its proof. A person is one row x with ||x|| <= B, after clipping by `Domain`. A person with several
rows contributes an average of such rows. P = x x^T, or an average of such matrices, is what the person adds to the Gram matrix:
positive semi-definite, ||P||_F <= B^2 and trace P <= B^2. Everything below follows from that.

**`PrivacyUnit`**: costs are added up only where it is the same, because guarantees of two kinds have no common sum. Under
epsilon = 1 for each row, a person with 50 rows is protected far less. Nor does a guarantee for people cover each of their rows
at the same cost. A person's rows are averaged, so one row more replaces the person's average by another: removing and adding,
which is up to twice the mu. A ledger therefore refuses a second kind and converts nothing.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, final

from eigenveil.errors import UnitMismatch, require

__all__ = [
    "Neighbours",
    "PrivacyUnit",
    "count_sensitivity",
    "gram_sensitivity",
    "gram_times_sensitivity",
    "require_same_unit",
    "sum_sensitivity",
    "trace_sensitivity",
]


class Neighbours(Enum):
    """Neighbouring relation: which two tables the guarantee makes indistinguishable.

    The first three protect a person. INTERACTION protects one item of a user's history (`eigenveil.privacy.Histories`).
    """

    ADD_REMOVE = "add-remove"
    ZERO_OUT = "zero-out"
    REPLACE_ONE = "replace-one"
    INTERACTION = "interaction"

    @property
    def count_is_public(self) -> bool:
        """Whether neighbouring tables have the same number of people, so that the number needs no noise."""
        return self is not Neighbours.ADD_REMOVE

    @property
    def protects_a_person(self) -> bool:
        """Whether everything that one person contributed may change between neighbouring tables."""
        return self is not Neighbours.INTERACTION


def sum_sensitivity(row_bound: float, neighbours: Neighbours) -> float:
    """Euclidean sensitivity of the sum of rows: B, or 2B under replace-one.

    Proof. Adding, removing or zeroing a person changes the sum by their vector x, ||x|| <= B. Replacing x by y changes it by
    y - x, and ||y - x|| <= ||y|| + ||x|| <= 2B, with equality at y = -x.

    >>> sum_sensitivity(3.0, Neighbours.REPLACE_ONE)
    6.0
    """
    _check(row_bound, neighbours)
    return 2 * row_bound if neighbours is Neighbours.REPLACE_ONE else row_bound


def count_sensitivity(neighbours: Neighbours) -> float:
    """Sensitivity of the number of people: 1 under add/remove, otherwise 0, because the number is public.

    >>> count_sensitivity(Neighbours.ADD_REMOVE)
    1.0
    """
    return 0.0 if neighbours.count_is_public else 1.0


def gram_sensitivity(row_bound: float, neighbours: Neighbours) -> float:
    """Frobenius sensitivity of the Gram matrix sum x x^T: B^2, or sqrt(2) B^2 under replace-one.

    Proof. Adding, removing or zeroing a person changes it by P, ||P||_F <= B^2. Replacing P by Q changes it by Q - P, and
    ||Q - P||_F^2 = ||Q||_F^2 + ||P||_F^2 - 2 <P, Q> <= 2 B^4, since <P, Q> = tr(P Q) >= 0 for semi-definite P and Q.

    >>> gram_sensitivity(2.0, Neighbours.ADD_REMOVE)
    4.0
    """
    _check(row_bound, neighbours)
    return (math.sqrt(2) if neighbours is Neighbours.REPLACE_ONE else 1.0) * row_bound**2


def gram_times_sensitivity(row_bound: float, neighbours: Neighbours, *, basis_norm: float) -> float:
    """Frobenius sensitivity of the Gram matrix times a public basis Z, (d, p), whose spectral norm is `basis_norm`.

    Proof. The change is C Z with C as for the Gram matrix, and ||C Z||_F <= ||C||_F ||Z||_2, whatever p is.

    >>> gram_times_sensitivity(1.0, Neighbours.REPLACE_ONE, basis_norm=1.0) == 2**0.5
    True
    """
    return gram_sensitivity(row_bound, neighbours) * basis_norm


def trace_sensitivity(row_bound: float, neighbours: Neighbours) -> float:
    """Sensitivity of the trace of the Gram matrix, the total sum of squares: B^2 for all three person-level relations.

    Proof. A person adds trace P, which lies in [0, B^2]. Replacing a person moves within that interval, so by at most B^2.

    >>> trace_sensitivity(2.0, Neighbours.REPLACE_ONE)
    4.0
    """
    _check(row_bound, neighbours)
    return row_bound**2


def _check(row_bound: float, neighbours: Neighbours) -> None:
    # How far one interaction moves a sum depends on how rows are built from items, which a row bound does not say.
    require(neighbours is not Neighbours.INTERACTION, "neighbours='interaction' is for `Histories` only")
    # An infinite bound, as in exact runs, gives an infinite sensitivity, which every noise mechanism refuses.
    if not row_bound > 0:
        raise ValueError(f"row_bound must be positive, got {row_bound}")


Each = Literal["row", "person", "interaction"]


@final
@dataclass(frozen=True, slots=True)
class PrivacyUnit:
    """What a guarantee protects: `kind` row, each person, or each single interaction of a user with an item.

    Neighbouring tables differ in one of them, as `neighbours` says. People are named by a `column` of the table, if it has a
    name. Without people, each row is taken for a different person.

    >>> print(PrivacyUnit("row", Neighbours.ADD_REMOVE))
    each row, taken for a different person (add-remove)
    >>> print(PrivacyUnit("person", Neighbours.ZERO_OUT, "patient_id"))
    each person, named by the column "patient_id" (zero-out)
    """

    kind: Each
    neighbours: Neighbours
    column: str | None = None

    def __post_init__(self) -> None:
        require(self.kind in ("row", "person", "interaction"), f"a unit is a row, a person or an interaction: {self.kind!r}")
        require(
            isinstance(self.neighbours, Neighbours),
            f"neighbours must be a Neighbours, such as Neighbours.ADD_REMOVE, got {self.neighbours!r}",
        )
        single = self.neighbours is Neighbours.INTERACTION
        require(
            single if self.kind == "interaction" else self.neighbours.protects_a_person,
            f"{self.neighbours.value} is not a relation between tables that differ in one {self.kind}",
        )
        require(
            self.column is None or (self.kind == "person" and isinstance(self.column, str) and self.column != ""),
            "column names the people, and must be text; it is for a person",
        )

    @classmethod
    def of(cls, neighbours: Neighbours, *, grouped: bool, column: str | None = None) -> "PrivacyUnit":
        """The unit of a release: people if rows are `grouped` by person, otherwise rows, and under INTERACTION single items."""
        if neighbours is Neighbours.INTERACTION:
            return cls("interaction", neighbours)
        return cls("person", neighbours, column) if grouped else cls("row", neighbours)

    @property
    def description(self) -> str:
        """Who or what is protected, without the neighbouring relation."""
        if self.kind == "interaction":
            return "each single interaction of a user with an item"
        if self.kind == "row":
            return "each row, taken for a different person"
        return "each person" if self.column is None else f'each person, named by the column "{self.column}"'

    def __str__(self) -> str:
        return f"{self.description} ({self.neighbours.value})"

    def values(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"each": self.kind, "column": self.column, "neighbours": self.neighbours.value}

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> "PrivacyUnit":
        """The unit that `values` wrote; anything else is a `ValueError`.

        >>> unit = PrivacyUnit("interaction", Neighbours.INTERACTION)
        >>> PrivacyUnit.read(unit.values()) == unit
        True
        """
        fields = {"each", "column", "neighbours"}
        require(isinstance(values, Mapping) and set(values) == fields, f"a unit has the fields {sorted(fields)}")
        return cls(values["each"], Neighbours(values["neighbours"]), values["column"])


def require_same_unit(what: str, unit: PrivacyUnit | None, counted: PrivacyUnit | None, *, instead: str) -> None:
    """Refuse to add `what`, a guarantee for `unit`, to guarantees for `counted`. None is none yet, and fits any."""
    if unit is not None and counted is not None and unit != counted:
        raise UnitMismatch(
            f"{what} protects {unit}. What was charged before protects {counted}. Such costs cannot be added up. {instead}"
        )
