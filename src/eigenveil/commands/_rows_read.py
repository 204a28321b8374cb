"""What `eigenveil stream` notes in a state beside the stream itself, so that `--resume` goes on as if nothing had happened."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    from eigenveil.data.streams import Source

__all__ = ["RowsRead", "rest_of"]


@final
class RowsRead:
    """How many rows of one source were read, and a digest that tells them from others. Changes in place.

    The digest is of raw data, and is kept with it only. It does not depend on the sizes of batches.
    """

    def __init__(self) -> None:
        self.count = 0
        self._digests: dict[str, Any] = {}

    def add(self, rows: Any) -> None:
        """Take the next rows: an array, a CSR matrix, or a table whose last column names people."""
        self.count += rows.shape[0]
        for name, data in _bytes_of(rows):
            self._digests.setdefault(name, hashlib.sha256()).update(data)

    def facts(self) -> dict[str, Any]:
        """For a state, as plain JSON."""
        return {"rows": self.count, "digests": {name: digest.hexdigest() for name, digest in self._digests.items()}}


def rest_of(source: "Source", facts: Mapping[str, Any]) -> "tuple[Source, RowsRead] | None":
    """What follows in a source that begins with the rows that were read; None if it begins with others, and is used up."""
    read, batches = RowsRead(), iter(source.batches)
    while read.count < facts["rows"]:
        batch = next(batches, None)
        if batch is None:
            return None
        first, others = _parted(batch, facts["rows"] - read.count)
        read.add(first)
        batches = batches if others is None else chain([others], batches)
    return (replace(source, batches=batches), read) if read.facts() == facts else None


def _parted(batch: Any, count: int) -> tuple[Any, Any]:
    """The first rows of a batch, and the others, None if there are none."""
    if batch.shape[0] <= count:
        return batch, None
    if hasattr(batch, "schema"):
        return batch.slice(0, count), batch.slice(count)
    return batch[:count], batch[count:]


def _bytes_of(rows: Any) -> Iterator[tuple[str, bytes]]:
    # Here, so that --help does not wait for it.
    import numpy as np

    if hasattr(rows, "schema"):
        *values, people = (column.combine_chunks() for column in rows.columns)
        yield "values", np.column_stack([value.to_numpy(zero_copy_only=False) for value in values]).tobytes()
        yield "people", "".join(f"{person!r}\n" for person in people.to_pylist()).encode()
    elif hasattr(rows, "indptr"):
        yield "values", rows.data.tobytes()
        yield "places", rows.indices.astype(np.int64).tobytes()
        yield "lengths", np.diff(rows.indptr).astype(np.int64).tobytes()
    else:
        yield "values", np.ascontiguousarray(rows).tobytes()
