"""The seam between sums and rows that are elsewhere: on a cluster, in a pool of processes, on a GPU.

Whatever is released is a sum over rows. So the sum goes to where the rows are, as a `Work`, and only its result comes back. The
sums of `eigenveil.privacy.sums` are such works. They call `total_of`, which runs them here if the rows are here, and hands them
to `RowsElsewhere.total` if not. Noise is not part of a work: it stays with whoever releases.

To add an engine, write a class with the five members of `RowsElsewhere`, and let `total` do one of two things.
- Cut the rows into pieces that are `Rows` where they lie, call `work.of(piece)` there, and `work.joined` on the results, in the
  order of the pieces. Clipping, grids, weights and checks then happen at the pieces, because `work.of` contains them.
- Recognise the class of a work, which is a frozen dataclass of public numbers, and compute the same whole numbers by other means.
Both must give the bits that `work.of` gives for all rows in memory. _Sums of whole numbers do not depend on the cuts.
"""

from typing import Any, NoReturn, Protocol, TypeGuard, TypeVar, runtime_checkable

from eigenveil.data.rows import Progress, Rows, WatchedRows, WeightedRows
from eigenveil.errors import require

__all__ = [
    "NotCopied",
    "RowsElsewhere",
    "Work",
    "by_person",
    "is_dask",
    "is_elsewhere",
    "refuse_to_copy",
    "require_here",
    "total_of",
]

_Sums = TypeVar("_Sums")


class Work(Protocol[_Sums]):
    """A sum over rows, described by public numbers alone: small, frozen and picklable, so that it can travel to the rows."""

    def of(self, rows: Rows) -> _Sums:
        """The sum over rows that are here: private. Where privacy is claimed it consists of whole numbers, and is exact."""
        ...

    def joined(self, left: _Sums, right: _Sums) -> _Sums:
        """The sum over the rows of both, those of `left` first. It may reuse the memory of either."""
        ...


@runtime_checkable
class RowsElsewhere(Rows, Protocol):
    """Rows that are not in this process. They work out sums where they are, and are never copied here.

    They check their own values to be finite real numbers, there, and their errors and logs show no value. So do weights: rows
    weighted by person carry the weights along with the pieces.
    """

    @property
    def counts_people(self) -> bool:
        """Whether rows are weighted so that a person counts once, as those of `by_person` are."""
        ...

    def total(self, work: Work[_Sums], *, seen: Progress | None = None) -> _Sums:
        """`work` over all rows. `seen` is told how many rows were just done, for a display where the data is."""
        ...

    def by_person(self, person: Any) -> "RowsElsewhere":
        """The same rows, weighted so that a person with several of them, in whichever pieces, counts once."""
        ...


def total_of(rows: Rows, work: Work[_Sums]) -> _Sums:
    """The sum that `work` describes over all `rows`, worked out where they are.

    >>> from eigenveil.data.rows import DenseRows
    >>> from eigenveil.privacy.sums.whole import CountWork
    >>> import numpy as np
    >>> total_of(DenseRows(np.zeros((3, 1))), CountWork()) == 3 * 2**45
    True
    """
    place, watchers = _unwrapped(rows)
    if not _elsewhere(place):
        return work.of(rows)

    def seen(count: int) -> None:
        for watcher in watchers:
            watcher(count)

    return place.total(work, seen=seen if watchers else None)


def is_elsewhere(rows: Rows) -> bool:
    """Whether these rows, or those inside them, are not in this process.

    >>> from eigenveil.data.rows import DenseRows
    >>> import numpy as np
    >>> is_elsewhere(DenseRows(np.zeros((3, 1))))
    False
    """
    return _elsewhere(_unwrapped(rows)[0])


def by_person(rows: Rows, person: Any) -> Rows:
    """`rows` weighted where they are, so that each person counts once; `person` has an identifier for each row."""
    place = _unwrapped(rows)[0]
    return place.by_person(person) if _elsewhere(place) else WeightedRows.by_person(rows, person)


def is_dask(X: Any) -> bool:
    """Whether `X` is a Dask array, dataframe or series, without importing Dask.

    >>> is_dask([1, 2])
    False
    """
    return type(X).__module__.partition(".")[0] == "dask"


def require_here(X: Any, name: str) -> None:
    """Refuse a Dask collection where numbers of this process are needed: `numpy.asarray` would copy all of it, silently.

    >>> require_here([1, 2], "rows")
    """
    require(
        not is_dask(X),
        f"{name} must be in this process, got a Dask collection, which is not copied here. Scores are made where its rows are: "
        "use transform, or pass another function to its map_blocks or its map_partitions",
    )


class NotCopied(ValueError):
    """A step needs rows that stay where they are."""


def refuse_to_copy(place: str) -> NoReturn:
    """The error of `RowsElsewhere.blocks`: `place` says where the rows are, such as "on a Dask cluster"."""
    raise NotCopied(
        f"the rows are {place} and are not copied to this process, but this step needs the rows themselves. Choose a method that "
        "only needs sums, such as covariance or power, or copy the rows into memory first"
    )


def _elsewhere(rows: Any) -> TypeGuard[RowsElsewhere]:
    # The first question is cheap, and nearly all rows are here. The second takes longer than the sum over a small table.
    return hasattr(rows, "total") and isinstance(rows, RowsElsewhere)


def _unwrapped(rows: Rows) -> tuple[Any, list[Progress]]:
    """The innermost rows, and those who watch. Names change no sum, and rows elsewhere check their values themselves."""
    inner: Any = rows
    watchers, weighted = [], False
    while hasattr(inner, "inner"):
        if isinstance(inner, WatchedRows):
            watchers.append(inner.seen)
        weighted = weighted or isinstance(inner, WeightedRows)
        inner = inner.inner
    # Weights beside rows that are elsewhere would stay here, and each row would count as a person.
    require(
        not (weighted and _elsewhere(inner)),
        "rows that are elsewhere must be weighted there: use their own by_person",
    )
    return inner, watchers
