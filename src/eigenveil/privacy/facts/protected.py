"""Who is protected, and what is known of the rows: `Person` and `User`, and the three kinds of rows that there are."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, final

from eigenveil.privacy.accounting import Budget
from eigenveil.privacy.sensitivity import Neighbours

__all__ = [
    "Person",
    "StreamRows",
    "TableRows",
    "User",
    "UserHistories",
]

_COLUMNS: Final = "it is public that all entries are finite, and how many columns there are, with their names and types"
_PERSONS: Final = {
    Neighbours.ADD_REMOVE: "they differ by one person, whose rows are all in one table and not in the other (add/remove). The "
    "number of people is itself protected",
    Neighbours.ZERO_OUT: "in one of them the rows of one person are blanked and contribute nothing (zero-out). The number of "
    "people is the same in both, and public",
    Neighbours.REPLACE_ONE: "in one of them the rows of one person are replaced by those of any other person (replace-one). The "
    "number of people is the same in both, and public",
}
_USERS: Final = {
    Neighbours.ADD_REMOVE: "they differ by one user, whose whole history is in one table and not in the other (add/remove). The "
    "number of users is itself protected",
    Neighbours.ZERO_OUT: "in one of them the whole history of one user is blanked (zero-out). The number of users is the same in "
    "both, and public",
    Neighbours.REPLACE_ONE: "in one of them the history of one user is replaced by any other history (replace-one). The number "
    "of users is the same in both, and public",
    Neighbours.INTERACTION: "one user has one item more in one table than in the other (one interaction). All else is the same, "
    "and the number of users is public",
}
_JOINT: Final = (
    "a user's recommendations are made from the released item space and that user's own history, and are for that user alone. "
    "This is joint differential privacy: the guarantee covers what all other users see, even put together. A user's "
    "recommendations, shown to somebody else, tell about that user's history"
)


@final
@dataclass(frozen=True, slots=True)
class Person:
    """Each person is protected: with one row, or with all of their rows where rows are `grouped` by person.

    `place` is where rows are. A person has rows at no more than `most` sites, or in no more than `most` blocks of a stream.
    """

    place: Literal["table", "site", "peer", "stream"] = "table"
    grouped: bool = False
    most: int = 1

    @property
    def unit(self) -> str:
        """Who is protected."""
        if self.place == "stream":
            several = f"who has at most one row in a block and rows in at most {self.most} blocks"
            return "each person, who has one row of the stream" if self.most == 1 else f"each person, {several}"
        if self.grouped:
            where = {"table": "", "site": " at each site", "peer": " at one peer"}[self.place]
            return f"each person, with all of their rows, which together count as one row{where}"
        if self.most > 1:
            return f"each person, who holds at most one row at each of at most {self.most} sites"
        return "each person, who holds one row" + ("" if self.place == "table" else f" at one {self.place}")

    @property
    def plural(self) -> str:
        """Several of them."""
        return "people"

    @property
    def secret(self) -> str:
        """What an attacker does not know."""
        return "one person's rows"

    def relation(self, neighbours: Neighbours) -> str:
        """What two neighbouring tables have in common, and what not."""
        return _PERSONS[neighbours]

    def assumptions(self) -> Iterator[str]:
        """How much of the rows one person may have."""
        if self.place == "stream":
            several = f"no person has two rows in one block, or rows in more than {self.most} blocks"
            yield "no person has more than one row" if self.most == 1 else several
            return
        if self.place != "table":
            places = f"one {self.place}" if self.most == 1 else f"{self.most} {self.place}s"
            yield f"no person has rows at more than {places}"
        if not self.grouped:
            yield "no person has more than one row" + (" at a site" if self.place == "site" else "")


@final
@dataclass(frozen=True, slots=True)
class User:
    """Each user of a recommender is protected with their whole history, or only each single `interaction` with an item."""

    interaction: bool = False

    @property
    def unit(self) -> str:
        """Who or what is protected."""
        if self.interaction:
            return "each single interaction of a user with an item (not a user's whole history)"
        return "each user, with their whole history"

    @property
    def plural(self) -> str:
        """Several of them."""
        return "users"

    @property
    def secret(self) -> str:
        """What an attacker does not know."""
        return "one interaction of a user" if self.interaction else "one user's history"

    def relation(self, neighbours: Neighbours) -> str:
        """What two neighbouring tables have in common, and what not."""
        return _USERS[neighbours]

    def assumptions(self) -> Iterator[str]:
        """How much of the rows one user may have."""
        yield "each user is one row" + ("" if self.interaction else ", at one site")


@final
@dataclass(frozen=True, slots=True)
class TableRows:
    """Rows of numbers, clipped to a `norm` around the mean, zero or a given center. None where nothing rests on clipping.

    `trace` bounds what a person adds to a matrix that a site gave in place of rows. `least` rows are publicly known to be there.
    `given` names the numbers that the caller gave and that are public.
    """

    norm: float | None = None
    around: Literal["the mean", "the given center", "zero"] = "the mean"
    trace: float | None = None
    least: int | None = None
    given: tuple[str, ...] = ()

    def assumptions(self) -> Iterator[str]:
        """What is assumed of the rows, and public about them."""
        if self.norm is not None:
            yield _clipped(self.norm, self.around)
        if self.trace is not None:
            yield (
                "where a site gave a matrix in place of rows, each person is in it as a positive semi-definite matrix of trace "
                f"at most {self.trace:g}, and once in its number of people. The site vouches for that; nobody else can check it"
            )
        yield _COLUMNS
        if self.least is not None:
            yield f"it is public that the table has at least {self.least} rows"
        if self.given:
            yield f"where they were given, {_listed(self.given)} are public"


@final
@dataclass(frozen=True, slots=True)
class StreamRows:
    """Rows of a stream in blocks of `block`, the first of `first`, clipped to a `norm`; `reason` says why it is released so.

    `horizon` is the most rows that will come, where that was said; `merged` how many streams are in the result.
    """

    norm: float
    around: Literal["the mean", "zero"]
    block: int
    first: int
    reason: str
    horizon: int | None = None
    origin: bool = False
    merged: int = 1

    def assumptions(self) -> Iterator[str]:
        """What is assumed of the rows, and public about them."""
        yield _clipped(self.norm, self.around)
        yield (
            f"these are public and do not depend on anybody's row: the number of rows, that a block is {self.block} rows in the "
            f"order they came (the first {self.first}), and when synchronisations happen"
        )
        yield _COLUMNS
        yield f"how it is released: {self.reason}"
        if self.horizon is not None:
            yield f"the stream has at most {self.horizon} rows, a public number"
        if self.origin:
            yield "the origin is public"
        if self.merged > 1:
            yield (
                f"nobody is in two of the {self.merged} streams that were merged. Each of them clipped rows to its own bound and "
                "had its own blocks"
            )


@final
@dataclass(frozen=True, slots=True)
class UserHistories:
    """Histories of users, each divided by the root of its length, or of `least` where it is shorter.

    `listed` says that a public list names the items in use, `users` how many there are where that is `counted` as public, and
    `degrees_given` that the caller gave item degrees. Where there are several sites, their numbers are public `at_each`.
    """

    least: int
    listed: bool = False
    counted: bool = True
    at_each: bool = False
    users: float | None = None
    degrees_given: bool = False

    def assumptions(self) -> Iterator[str]:
        """What is assumed of the histories, and public about them."""
        yield (
            f"a history is divided by the root of its number of items, or of {self.least} if it has fewer. That least number was "
            "not read from these histories"
        )
        yield "it is public which items there are" + (", and which of them are used" if self.listed else "")
        yield "it is public that all entries are zeros and ones"
        if self.counted:
            each = " at each site" if self.at_each else ""
            yield (
                f"it is public how many users there are{each}: the rows of a matrix, or, where histories were read from lines, "
                "the users who have a line"
            )
        if self.degrees_given:
            yield "the item degrees that were given are public, and were not counted in these histories"

    def caveats(self, budget: Budget) -> Iterator[str]:
        """What the guarantee does not cover."""
        yield _JOINT
        if self.users is not None and budget.delta * self.users > 1:
            yield (
                f"delta is more than one over the {self.users:g} users: each of them may be unprotected with that probability, "
                "so somebody may be"
            )


def _clipped(norm: float, around: str) -> str:
    return (
        f"rows are clipped to norm {norm:g} around {around}. The bound was given without looking at these rows, or found "
        "privately at a cost of its own"
    )


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
