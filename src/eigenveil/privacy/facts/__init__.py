"""Facts about a release, and the only place that puts them into the sentences of a `Guarantee`.

Estimators, recommenders and papers state who is protected and what is known of the rows (`protected`), who sees what
(`seen_by`), and how noise was calibrated. From these facts `GuaranteeFacts` (`builder`) composes the guarantee. A privacy officer
signs it, so review the sentences as prose: one idea a sentence, the field's terms, no assumption left out. It may
import the rest of `privacy`.
"""

from dataclasses import dataclass
from typing import Final, final

from eigenveil.core.accounting import Budget
from eigenveil.core.ledger import Charge
from eigenveil.core.unit import Neighbours
from eigenveil.privacy.facts.protected import Person, SlottedRows, StreamRows, TableRows, User, UserHistories
from eigenveil.privacy.facts.seen_by import (
    HubAndSites,
    MaskedSites,
    NoisyRows,
    OneDevice,
    OneHolder,
    PeersAlone,
    SeenBy,
    SlotBySlot,
)
from eigenveil.privacy.guarantee import SEEDED, Guarantee, plain

__all__ = [
    "COLUMN_TAILS",
    "COMPONENTS",
    "EIGENVALUES",
    "EVERY_ROW",
    "FOUND_BOUND",
    "FOUND_GAPS",
    "FOUND_UNITS",
    "NO_PRIVACY",
    "ON_LAPACK",
    "ROW_TAILS",
    "GuaranteeFacts",
    "HubAndSites",
    "MaskedSites",
    "NoisyRows",
    "OneDevice",
    "OneHolder",
    "PeersAlone",
    "Person",
    "SeenBy",
    "SlotBySlot",
    "SlottedRows",
    "StreamRows",
    "TableRows",
    "User",
    "UserHistories",
    "items_released",
    "weak_words",
]

# Beyond these, a guarantee comes with a plain word.
_LARGE_EPSILON: Final = 20.0
_LARGE_DELTA: Final = 1e-3
# What was released, by name.
COMPONENTS: Final = ("components", "mean", "spectrum", "explained variance and its ratio")
# Released too by a fit that finds the norm to clip at.
FOUND_BOUND: Final = ("the bound on rows", "quantiles of their norms")
# And by one that finds the units of columns.
FOUND_UNITS: Final = ("the units of the columns",)
# And by one whose table may have missing entries, by the rule for them.
FOUND_GAPS: Final = {
    "counts": ("the share of people who have each column",),
    "groups": ("the share of people who have each pair of groups of columns",),
    "drop": ("the number of people with complete rows",),
}
EIGENVALUES: Final = ("eigenvalues", "their sum")
# What a release of eigenvalues takes on trust. The sensitivity allows for this error, which is tested and not proved.
ON_LAPACK: Final = (
    "this computer's linear algebra library (LAPACK) is accurate: each eigenvalue is off by at most 8 x columns x 2^-53 times "
    "the norm of its matrix. Our tests check this, but it is not proved for every version"
)
ROW_TAILS: Final = ("how many people have a row of norm above each of many public values",)
COLUMN_TAILS: Final = ("how many people have an entry beyond each of many public values, in each column",)
EVERY_ROW: Final = ("every row, with noise", "components", "spectrum", "the number of rows of each peer")
# Why there is no guarantee, where none was asked for.
NO_PRIVACY: Final = {
    "fit": "exact PCA was asked for",
    "releases": "exact numbers were asked for",
    "stream": "a stream without privacy was asked for",
    "items": "an exact item space was asked for",
}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class GuaranteeFacts:
    """What is true of a private release. `guarantee` puts it into words. `reproducible` noise came from a known seed.

    The number of `people` is None if it is neither public nor released.

    >>> from eigenveil.privacy.facts import OneHolder
    >>> facts = GuaranteeFacts(
    ...     budget=Budget(1.0, 1e-6), protects=Person(), neighbours=Neighbours.ADD_REMOVE, rows=TableRows(norm=12.0),
    ...     seen_by=OneHolder(), released=COMPONENTS, charges=(), reproducible=False,
    ... )
    >>> facts.guarantee().clipping
    'rows were clipped to norm 12 around the mean'
    """

    budget: Budget
    protects: Person | User
    neighbours: Neighbours
    rows: TableRows | StreamRows | SlottedRows | UserHistories
    seen_by: SeenBy
    released: tuple[str, ...]
    charges: tuple[Charge, ...]
    reproducible: bool
    people: float | None = None

    def guarantee(self) -> Guarantee:
        """The guarantee, in words that can be signed."""
        return Guarantee(
            epsilon=self.budget.epsilon,
            delta=self.budget.delta,
            unit=self.protects.unit,
            neighbours=self.protects.relation(self.neighbours),
            against=self.seen_by.against(self.protects),
            released=self.released + self.seen_by.released,
            assumptions=(
                *self.protects.assumptions(),
                *self.rows.assumptions(),
                *self.seen_by.assumptions(),
                # Last, because it is about everything above.
                self.seen_by.alone(self.protects),
            ),
            calibration=self.seen_by.calibration(),
            caveats=(
                # First among the notes: it takes the whole guarantee away.
                *((SEEDED,) if self.reproducible else ()),
                *self.seen_by.caveats(),
                *(self.rows.caveats() if isinstance(self.rows, UserHistories) else ()),
                *weak_words(self.budget, self.people, plural=self.protects.plural),
            ),
            charges=self.charges,
            # For programs. The sentence in `neighbours` is for people.
            relation=self.neighbours.value,
            protects=self.protects.protected(self.neighbours),
            reproducible=self.reproducible,
            clipping=self.rows.clipping(),
        )


def weak_words(budget: Budget, people: float | None = None, *, plural: str = "people") -> tuple[str, ...]:
    """What to say of a budget that promises next to nothing, at a public or released number of `people` if there is one.

    >>> weak_words(Budget(1.0, 1e-6), 1000.0)
    ()
    >>> [len(weak_words(Budget(*pair), 1000.0)) for pair in ((21.0, 1e-6), (1.0, 0.01), (21.0, 0.0011))]
    [1, 1, 2]
    """
    texts = []
    if budget.epsilon > _LARGE_EPSILON:
        texts.append(
            f"epsilon is {plain(budget.epsilon)}. Above {_LARGE_EPSILON:g} a guarantee says next to nothing about one person. "
            "At most 1 is strong, and up to 10 is reasonable"
        )
    # At such a delta, publishing one person's whole row at random would be allowed.
    if people is not None and budget.delta * people > 1:
        texts.append(
            f"delta is more than one over the {people:.0f} {plural}. Each of them may be unprotected with that probability, so "
            "some may be"
        )
    elif budget.delta > _LARGE_DELTA:
        texts.append(
            f"delta is {plain(budget.delta)}. Each person may be unprotected with that probability. Choose one well below one "
            "over the number of people"
        )
    return tuple(texts)


def items_released(*, degrees: bool, n_kept: int | None, parts: bool) -> tuple[str, ...]:
    """What a recommender released: the item space, item `degrees`, which items they `n_kept`, and the `parts` of a lone site."""
    return (
        "the item space (components and their values)",
        *(("item degrees (votes over the square root of their user's degree)",) if degrees else ()),
        *((f"which {n_kept} items were kept",) if n_kept is not None else ()),
        *(("every number that leaves a site",) if parts else ()),
    )
