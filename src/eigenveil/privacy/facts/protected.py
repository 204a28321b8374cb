"""Who is protected (`Person`, `User`) and what is known of the rows.

Rows are those of a table (`TableRows`), a stream (`StreamRows`), streams at many sites (`SlottedRows`), or `UserHistories`. Their
`assumptions` are what is assumed of the rows and public about them, and `clipping` says how rows were clipped. Of a `Person` or
`User`, the `unit` says who is protected, `plural` is several of them, and `secret` is what an attacker does not know. `relation`
is how two neighbouring tables differ, and `assumptions` say how many rows one may have, and where.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, final

from eigenveil.core.unit import Neighbours, PrivacyUnit

__all__ = ["Person", "SlottedRows", "StreamRows", "TableRows", "User", "UserHistories"]

_COLUMNS: Final = "the columns' number, names and types are public, and so is the fact that every entry is a finite number"
# Where entries may be missing, that they may be is public, and which ones are is protected.
_GAPS: Final = (
    "the columns' number, names and types are public, and so is the fact that entries are finite numbers or missing. Which "
    "entries are missing is protected like the numbers"
)
_HANDLED: Final = {
    "counts": "missing entries count as if they were at the center, and sums are divided by released counts of those that are "
    "there. That is right if rows lack an entry by chance. The guarantee does not rest on it",
    "groups": "missing entries count as if they were at the center, and sums are divided by released counts of public groups of "
    "columns. That is right if rows lack a group by chance. The guarantee does not rest on it",
    "apart": "a missing entry was counted in no range of its column",
    "drop": "rows with a missing entry were left out, and the number of rows that were left is protected",
    "fill": "missing entries were replaced by public values, chosen without looking at these rows",
}
_UNTOUCHED: Final = "these rows were not changed by anything fitted to them, such as a scaler or an imputer"
_BOUND: Final = "the bound was chosen without looking at these rows, or found privately at a separate cost"
_FOUND: Final = "This norm was found privately in the same fit, and its cost is part of the guarantee"
_UNITS: Final = "These units were found privately in the same fit, and their cost is part of the guarantee"
_PERSONS: Final = {
    Neighbours.ADD_REMOVE: "they differ by one person, whose rows are all in one table and not in the other (add/remove)",
    Neighbours.ZERO_OUT: "in one of them the rows of one person are blanked and contribute nothing (zero-out)",
    Neighbours.REPLACE_ONE: "in one of them the rows of one person are replaced by those of any other person (replace-one)",
}
# Without identifiers nothing is known of whole people: two rows of one person would change two rows.
_ROWS: Final = {
    Neighbours.ADD_REMOVE: "they differ by one row, which is in one table and not in the other (add/remove)",
    Neighbours.ZERO_OUT: "in one of them one row is blanked and contributes nothing (zero-out)",
    Neighbours.REPLACE_ONE: "in one of them one row is replaced by any other row (replace-one)",
}
_USERS: Final = {
    Neighbours.ADD_REMOVE: "they differ by one user, whose whole history is in one table and not in the other (add/remove). The "
    "number of users is protected too",
    Neighbours.ZERO_OUT: "in one of them the whole history of one user is blanked (zero-out). Both have the same number of "
    "users, which is public",
    Neighbours.REPLACE_ONE: "in one of them the history of one user is replaced by any other history (replace-one). Both have "
    "the same number of users, which is public",
    Neighbours.INTERACTION: "one user has one item more in one table than in the other (one interaction). All else is the same, "
    "and the number of users is public",
}
# Recommendations depend on the user's own history, which plain differential privacy would forbid.
_JOINT: Final = (
    "a user's recommendations come from the released item space and that user's own history, and are for that user alone. This "
    "is joint differential privacy: the guarantee covers what all other users see, even put together. A user's recommendations "
    "reveal something of that user's history to anyone else who sees them"
)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """Each person is protected: with one row, or with all of their rows if rows are `grouped` by person.

    `column` is the one that names people, if it is known. `source` is where the rows are. A person has rows at no more than
    `max_parts` sites, or in no more than `max_parts` blocks of a stream, or slots of streams at many sites. With slots, `grouped`
    means that each site is a device of one person.
    """

    source: Literal["table", "site", "peer", "stream", "slots"] = "table"
    grouped: bool = False
    max_parts: int = 1
    column: str | None = None
    plural: ClassVar[str] = "people"
    secret: ClassVar[str] = "one person's rows"

    def protected(self, neighbours: Neighbours) -> PrivacyUnit:
        """The kind of this guarantee, by which ledgers know what they may add up."""
        several = self.grouped or (self.source in ("stream", "slots") and self.max_parts > 1)
        return PrivacyUnit.of(neighbours, grouped=several, column=self.column)

    @property
    def unit(self) -> str:
        if self.source == "stream" and self.grouped:
            blocks = "one block" if self.max_parts == 1 else f"{self.max_parts} blocks"
            counts = f"of which the first in a block counts, in at most {blocks}"
            return f"each person, named by the column {self.column!r}, with all of their rows, {counts}"
        if self.source == "slots":
            if self.grouped:
                return f"each person, whose device is one of the sites, with all rows in all {self.max_parts} slots"
            several = f"with at most one row in a slot and rows in at most {self.max_parts} slots, at one site"
            return "each person, who has one row at one site" if self.max_parts == 1 else f"each person, {several}"
        if self.source == "stream":
            several = f"with at most one row in a block and rows in at most {self.max_parts} blocks"
            return "each person, who has one row of the stream" if self.max_parts == 1 else f"each person, {several}"
        # Their rows are averaged, so however many they are, they weigh as one (docs/decisions/0004-persons.md).
        if self.grouped:
            where = {"table": "", "site": " at each site", "peer": " at one peer"}[self.source]
            named = "" if self.column is None else f" named by the column {self.column!r},"
            return f"each person,{named} with all of their rows, which together count as one row{where}"
        if self.max_parts > 1:
            return f"each person, with at most one row at each of at most {self.max_parts} sites"
        return "each person, who has one row" + ("" if self.source == "table" else f" at one {self.source}")

    def relation(self, neighbours: Neighbours) -> str:
        what = "rows" if self._one_row else "people"
        public = f"Both have the same number of {what}, which is public"
        return f"{self.tables(neighbours)}. {public if neighbours.count_is_public else f'The number of {what} is protected too'}"

    def tables(self, neighbours: Neighbours) -> str:
        if self._one_row:
            return _ROWS[neighbours]
        # Without identifiers, "all rows of a person" would promise more than is kept.
        each = "" if self.grouped or self.source in ("stream", "slots") else ". No person has more than one row at a site"
        return f"{_PERSONS[neighbours]}{each}"

    @property
    def _one_row(self) -> bool:
        """Whether one row is all that differs: no identifiers, and at most one row of a person in all."""
        return not self.grouped and self.max_parts == 1

    def assumptions(self) -> Iterator[str]:
        if self.source == "stream" and self.grouped:
            # Further rows are left out, so that nothing need be assumed of them. Who is left out follows from the identifiers.
            yield "which rows of the stream are of the same person is public. It is the same in neighbouring streams"
            return
        if self.source == "slots":
            several = f"no person has rows at two sites, two rows in one slot, or rows in more than {self.max_parts} slots"
            single = "no person has more than one row, over all sites and slots"
            yield "no person has two devices" if self.grouped else single if self.max_parts == 1 else several
            return
        if self.source == "stream":
            several = f"no person has two rows in one block, or rows in more than {self.max_parts} blocks"
            yield "no person has more than one row" if self.max_parts == 1 else several
            return
        places = f"one {self.source}" if self.max_parts == 1 else f"{self.max_parts} {self.source}s"
        elsewhere = "" if self.source == "table" else f"no person has rows at more than {places}"
        one_row = "" if self.grouped else "no person has more than one row" + (" at a site" if self.source == "site" else "")
        if elsewhere or one_row:
            yield ", and ".join(text for text in (elsewhere, one_row) if text)


@final
@dataclass(frozen=True, slots=True)
class User:
    """Each user of a recommender is protected with their whole history, or only each single `interaction` with an item is."""

    interaction: bool = False
    plural: ClassVar[str] = "users"

    def protected(self, neighbours: Neighbours) -> PrivacyUnit:
        return PrivacyUnit.of(neighbours, grouped=True)

    @property
    def unit(self) -> str:
        if self.interaction:
            return "each single interaction of a user with an item (not a user's whole history)"
        return "each user, with their whole history"

    @property
    def secret(self) -> str:
        return "one interaction of a user" if self.interaction else "one user's history"

    def relation(self, neighbours: Neighbours) -> str:
        return _USERS[neighbours]

    def assumptions(self) -> Iterator[str]:
        yield "each user is one row" + ("" if self.interaction else ", at one site")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TableRows:
    """Rows of numbers of a table."""

    norm: float | None = None  # They were clipped to it. None if nothing rests on clipping.
    around: Literal["the mean", "the given center", "zero"] = "the mean"
    trace: float | None = None  # Bounds what a person adds to a matrix that a site gives in place of rows.
    min_rows: int | None = None  # That there are so many rows is public.
    explicit: tuple[str, ...] = ()  # Names the numbers that the caller gave, which are public.
    finds_norm: bool = False  # The fit itself finds the norm,
    units: bool = False  # or the units of the columns.
    gaps: str | None = None  # Entries may be missing, and this rule says what became of them.

    def assumptions(self) -> Iterator[str]:
        if self.trace is not None:
            yield (
                "to a matrix that a site gave in place of rows, each person adds a positive semi-definite matrix of trace at "
                f"most {self.trace:g}. Each person counts once in its number of people. The site vouches for both; no other "
                "party can check them"
            )
        yield from _entries(self.gaps)
        yield _UNTOUCHED
        if self.norm is not None and not self.finds_norm and not self.units:
            yield _BOUND
        if self.min_rows is not None:
            yield f"that the table has at least {self.min_rows} rows is public"
        if self.explicit:
            yield f"if given, {_listed(self.explicit)} are public"

    def clipping(self) -> str:
        if self.norm is None:
            return ""
        own = f". {_FOUND}" if self.finds_norm else f", in units of the columns. {_UNITS}" if self.units else ""
        return _clipped(self.norm, self.around) + own


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRows:
    """Rows of a stream, in blocks of `block` rows, the first of `first`."""

    norm: float | None  # They are clipped to it. None as long as it is not known.
    around: Literal["the mean", "zero"]
    block: int
    first: int
    horizon: int | None = None  # No more rows will come, if that is known.
    origin: bool = False
    merged: int = 1  # The result is of so many streams.
    finds_norm: bool = False  # The first block finds the norm,
    units: bool = False  # or the units of the columns.
    scale: bool = False  # The caller gave units,
    columns: bool = False  # or bounds of the columns, from which the norm follows.
    gaps: str | None = None  # As in `TableRows`.

    def assumptions(self) -> Iterator[str]:
        # The ledger's proof for slots needs this. If the number of rows were private, one row less would move every
        # later boundary.
        yield (
            f"the number of rows is public, and so are the blocks: {self.block} rows each (the first {self.first}), in the order "
            "they came. When synchronisations happen is public too. None of these depends on anyone's row"
        )
        yield from _entries(self.gaps)
        if self.gaps in ("counts", "groups", "drop"):
            yield "the shares of what is there were counted in the first rows, and are taken to hold for the whole stream"
        yield _UNTOUCHED
        if not (self.finds_norm or self.units) or self.merged > 1:
            yield _BOUND if self.merged == 1 else f"{_BOUND}. So was that of each merged stream"
        if self.horizon is not None:
            yield f"the stream has at most {self.horizon} rows, a public number"
        if self.origin:
            yield "the origin is public"
        if self.scale:
            yield "the scale is public"
        if self.columns:
            yield "the column bounds are public"
        if self.merged > 1:
            yield f"no person is in two of the {self.merged} streams that were merged"

    def clipping(self) -> str:
        own = ". Each merged stream clipped rows to its own bound and had its own blocks" if self.merged > 1 else ""
        if self.norm is None and self.columns:
            return f"entries will be clipped to the column bounds, and rows around {self.around} to the norm that follows{own}"
        if self.norm is None:
            return f"rows will be clipped around {self.around} to a norm that the first rows find privately{own}"
        how = f". {_FOUND}" if self.finds_norm else f", in units of the columns. {_UNITS}" if self.units else ""
        return _clipped(self.norm, self.around) + how + own


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SlottedRows:
    """Rows of streams at many sites, clipped to a `norm`, in `slots` public slots, by a `clock` or of `size` rows each."""

    norm: float
    around: Literal["the given origin", "zero"]
    slots: int
    clock: bool = True
    size: int | None = None
    counted: bool = True  # The number of rows in a slot is public.
    explicit: tuple[str, ...] = ()  # As in `TableRows`, and so are gaps.
    gaps: str | None = None
    delay: float | None = None  # By the clock, sites answer so many seconds after a slot.

    def assumptions(self) -> Iterator[str]:
        # The ledger's proof for slots needs boundaries that no person moves.
        each = "given by the clock" if self.clock else "so many rows each" if self.size is None else f"{self.size} rows each"
        number = ". The number of rows in each is public, too" if self.counted else ""
        # Where no clock ends the slots, sites tell the hub how far they are.
        ended = "" if self.clock else ". So is the fact that its stream has ended"
        # Where a row is in the slot in which it arrives, the proof of `data.follow.slots` needs the second half.
        moved = ". One row moves neither them nor the arrival of other rows" if self.clock else " that depend on no person's row"
        yield (
            f"there are {self.slots} slots, {each}: a public number, and public boundaries{moved}{number}. "
            f"Whether a site answers for a slot, and when, is public{ended}"
        )
        if self.delay is not None:
            # Without this, absences would tell how long rows took, and so how many there were.
            yield (
                f"a site adds up the rows of a slot within {self.delay:g} seconds of its end, and answers then. If they take "
                "longer, it leaves the study for good, and others see in which slot"
            )
        yield from _entries(self.gaps)
        yield _UNTOUCHED
        yield _BOUND
        if self.explicit:
            yield f"the {_listed(self.explicit)} {'is' if len(self.explicit) == 1 else 'are'} public"

    def clipping(self) -> str:
        return _clipped(self.norm, self.around)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class UserHistories:
    """Histories of users, each divided by the square root of its number of items, or of `min_degree` if it has fewer.

    With `listed`, a public list names the items in use. The number of users is public if `counted`, and with several sites it
    is public `at_each`. With `degrees_given`, the caller gave item degrees.
    """

    min_degree: int
    listed: bool = False
    counted: bool = True
    at_each: bool = False
    degrees_given: bool = False

    def assumptions(self) -> Iterator[str]:
        used = " and which of them are used" if self.listed else ""
        yield f"which items exist{used} is public, and so is the fact that every entry is zero or one"
        if self.counted:
            each = " at each site" if self.at_each else ""
            yield (
                f"the number of users{each} is public: the rows of a matrix or, for a file of interactions, the users who have "
                "any"
            )
        if self.degrees_given:
            yield "the item degrees that were given are public, and were not counted in these histories"
        if self.min_degree > 1:
            yield f"the least number of items, {self.min_degree}, was chosen without looking at these histories"

    def clipping(self) -> str:
        fewer = f", or of {self.min_degree} if it has fewer" if self.min_degree > 1 else ""
        return f"each history was divided by the square root of its number of items{fewer}"

    def caveats(self) -> Iterator[str]:
        yield _JOINT


def _entries(gaps: str | None) -> Iterator[str]:
    """What is public about entries, and what became of missing ones."""
    yield _COLUMNS if gaps is None else _GAPS
    if gaps is not None:
        yield _HANDLED[gaps]


def _clipped(norm: float, around: str) -> str:
    return f"rows were clipped to norm {norm:g} around {around}"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
