"""The seam between sums and rows that are elsewhere: on a cluster, in a pool of processes, on a GPU.

Whatever is released is a sum over rows. So the sum goes to where the rows are, as a `Work`, and only its result comes back. The
sums of `eigenveil.core.whole` are such works. They call `total_of`, which runs them here if the rows are here, and hands them
to `RowsElsewhere.total` if not. Noise is not part of a work: it stays with whoever releases.

To add an engine, write a class with the five members of `RowsElsewhere`, and let `total` do one of two things.
- Cut the rows into pieces that are `Rows` where they lie, call `work.of(piece)` there, and `work.joined` on the results, in the
  order of the pieces. Clipping, grids, weights and checks then happen at the pieces, because `work.of` contains them.
- Recognise the class of a work, which is a frozen dataclass of public numbers, and compute the same whole numbers by other means.
Both must give the bits that `work.of` gives for all rows in memory. Sums of whole numbers do not depend on the cuts. An `Engine`
of `data.engines` makes such rows of what a caller has.
"""

from typing import Any, NoReturn

from eigenveil.core.rows import Rows, is_elsewhere, unwrapped
from eigenveil.data.rows import WeightedRows

__all__ = ["NotCopied", "by_person", "refuse_to_copy"]


def by_person(rows: Rows, person: Any) -> Rows:
    """`rows` weighted where they are, so that each person counts once; `person` has an identifier for each row."""
    place = unwrapped(rows)[0]
    return place.by_person(person) if is_elsewhere(place) else WeightedRows.by_person(rows, person)


class NotCopied(ValueError):
    """A step needs rows that stay where they are."""


def refuse_to_copy(place: str) -> NoReturn:
    """The error of `RowsElsewhere.blocks`: `place` says where the rows are, such as "on a Dask cluster"."""
    raise NotCopied(
        f"the rows are {place} and are not copied to this process, but this step needs the rows themselves. Choose a method that "
        "only needs sums, such as covariance or power, or copy the rows into memory first"
    )
