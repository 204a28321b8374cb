"""What a worker of a cluster does with one partition of a table: checks it, knows it again, weighs its people, adds it up.

Everything here runs where the rows are. Names and types are checked against those that the table declares, because a cluster
takes the declaration on trust. The digest of a partition tells whether it is still the same after it was read again.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar, final

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from eigenveil.core.rows import Rows, RowSum, block_size, innermost, require_real
from eigenveil.data.columns import ColumnLayout, kinds_of, require_kinds
from eigenveil.data.engines.base import PieceRefusal, attempted
from eigenveil.data.frames import distinct_ids
from eigenveil.data.number_texts import NO_MARKS, MissingMarks
from eigenveil.data.people import identifiers
from eigenveil.data.rows import CheckedRows, DenseRows, SparseRows, WeightedRows
from eigenveil.errors import require
from eigenveil.linalg import Array

__all__ = [
    "ONE_TYPE",
    "ArrayPlan",
    "FramePlan",
    "Partition",
    "PartitionFacts",
    "answered",
    "changed",
    "facts_of",
    "joined",
    "merged",
    "summed",
    "tallied",
]

_Sums = TypeVar("_Sums")
_Digests = NDArray[np.bytes_]
_Places = NDArray[np.int64]
# Digests of people, their numbers of rows, and the type of their identifiers.
Tally = tuple[_Digests, _Places, str]
# Identifiers travel between workers as digests of this many bytes: too many for two people to share one.
_DIGEST: Final = 16
ONE_TYPE: Final = "the person column must have one type in all partitions"


@final
@dataclass(frozen=True, slots=True, eq=False)
class People:
    """Who is in a partition: digests of its distinct identifiers, (m,), all of one `kind`, and which one each row has, (n,)."""

    digests: _Digests
    codes: _Places
    kind: str

    @classmethod
    def of(cls, names: Sequence[Any], codes: _Places) -> "People":
        """From distinct identifiers that were checked."""
        digests = [hashlib.blake2b(repr(name).encode(), digest_size=_DIGEST).digest() for name in names]
        kind = type(names[0]).__name__ if len(names) else ""
        return cls(np.array(digests, dtype=f"S{_DIGEST}"), codes, kind)

    def bucket(self, number: int, buckets: int) -> _Places:
        """The places of those people who are counted in one of the `buckets`."""
        # Digests look random, so their first byte divides people into tables of about the same size.
        first = self.digests.view(np.uint8).reshape(-1, _DIGEST)[:, 0]
        return np.flatnonzero(first % buckets == number)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """Checked rows of one partition, on the worker that has them, and the digest by which they are known again."""

    rows: Rows
    digest: bytes
    people: People | None = None

    def __sizeof__(self) -> int:
        # Dask asks for it. It would otherwise take every partition for a few bytes, move them about and spill none.
        held = innermost(self.rows).values
        parts = (held.data, held.indices, held.indptr) if self.rows.sparse else (held,)
        return object.__sizeof__(self) + sum(int(part.nbytes) for part in parts)

    def weighted(self, weights: Array) -> "Partition":
        """The same rows, weighted."""
        # The weights are in the digest, so a partition that is made again must have the same ones.
        mark = hashlib.blake2b(self.digest + np.ascontiguousarray(weights).tobytes(), digest_size=_DIGEST).digest()
        return replace(self, rows=WeightedRows(self.rows, weights), digest=mark)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFacts:
    """What the process that fits knows of a partition."""

    count: int  # Rows.
    dim: int  # Columns.
    sparse: bool
    stored: int  # Entries.
    digest: bytes


@final
@dataclass(frozen=True, slots=True)
class ArrayPlan:
    """How chunks of an array become checked rows: numpy arrays or scipy sparse matrices."""

    dim: int  # Columns.
    convert: Callable[[Any], Any] | None = None  # Makes other rows of them.
    gaps: bool = False  # Values may be missing.

    def partition(self, part: Any, number: int) -> Partition:
        what = f"chunk {number}"
        is_matrix = isinstance(part, np.ndarray) or sp.issparse(part)
        require(is_matrix, f"{what} must be a numpy array or a scipy sparse matrix, got {type(part).__name__}")
        require(
            not isinstance(part, np.ma.MaskedArray),
            f"{what} is a masked array, whose hidden entries would be used. Fill them first",
        )
        require(part.ndim == 2 and part.shape[1] == self.dim, f"{what} must have {self.dim} columns, as the array declares")
        require_real(part.dtype, what)
        return _checked(part if self.convert is None else self.convert(part), gaps=self.gaps)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FramePlan:
    """How partitions of a dataframe become checked rows."""

    names: tuple[str, ...]  # All columns, in this order.
    layout: ColumnLayout  # Which of them are analysed.
    gaps: bool = False
    missing: MissingMarks = NO_MARKS

    def partition(self, part: Any, number: int) -> Partition:
        """Check a partition: its names, their order and the types of its columns, and find the people in it."""
        import pyarrow as pa

        what = f"partition {number}"
        require(
            tuple(map(str, part.columns)) == self.names,
            f"{what} has other columns than the table declares, or another order. Make all partitions alike",
        )
        used = [*self.layout.read, *([] if self.layout.person is None else [self.layout.person])]
        table = self.missing.taken_out(pa.Table.from_pandas(part[list(dict.fromkeys(used))], preserve_index=False))
        require_kinds(kinds_of(table.schema), self.layout.plain, source=what)
        checked_part = _checked(self.layout.numbers(table, gaps=self.gaps), gaps=self.gaps)
        if self.layout.person is None:
            return checked_part
        return replace(checked_part, people=People.of(*distinct_ids(table, self.layout.person)))


PartitionPlan = ArrayPlan | FramePlan


def _checked(values: Any, *, gaps: bool) -> Partition:
    """Rows of finite real numbers, or NaN where `gaps` are allowed, with their digest."""
    rows: Rows = SparseRows(sp.csr_array(values)) if sp.issparse(values) else DenseRows(np.ascontiguousarray(values))
    for _ in CheckedRows(rows, gaps).blocks(block_size(rows)):
        # Only reading them: each block is checked as it comes.
        pass
    held = innermost(rows).values
    parts = (held.data, held.indices, held.indptr) if rows.sparse else (held,)
    state = hashlib.blake2b(repr((rows.shape, str(held.dtype))).encode(), digest_size=_DIGEST)
    for part in parts:
        state.update(np.ascontiguousarray(part).data)
    return Partition(rows, state.digest())


def answered(act: Callable[..., Any], *args: Any) -> Any:
    """`act(*given)`, or the first refusal among what is given, alone or in a list: nothing is raised on a worker."""
    # A refusal is handed on as a value: Dask logs the text of an exception, and that may quote the data.
    for arg in args:
        for refused in arg if isinstance(arg, list) else [arg]:
            if isinstance(refused, PieceRefusal):
                return refused
    return attempted(act, *args)


def named_by(partition: Partition, ids: Any) -> Partition:
    """The partition, with the people that a column beside it names."""
    checked_ids = identifiers(ids)
    require(len(checked_ids) == partition.rows.shape[0], "person must have one identifier per row, in the same partitions")
    names, codes = np.unique(checked_ids, return_inverse=True)
    return replace(partition, people=People.of(names.tolist(), codes))


def facts_of(partition: Partition) -> PartitionFacts:
    """What is known of a partition where the fit runs."""
    rows = partition.rows
    stored = int(innermost(rows).values.nnz) if rows.sparse else rows.shape[0] * rows.shape[1]
    return PartitionFacts(count=rows.shape[0], dim=rows.shape[1], sparse=rows.sparse, stored=stored, digest=partition.digest)


def tallied(partition: Partition, number: int, buckets: int) -> Tally:
    """How many rows the people of one bucket have in a partition."""
    assert partition.people is not None
    members = partition.people.bucket(number, buckets)
    counts = np.bincount(partition.people.codes, minlength=len(partition.people.digests))
    return partition.people.digests[members], counts[members], partition.people.kind


def merged(tallies: list[Tally]) -> list[_Places]:
    """How many rows the people of one bucket have in all partitions, in the order of each partition's tally."""
    kinds = {kind for _, _, kind in tallies if kind}
    # The number 7 and the text "7" may be one person or two.
    require(len(kinds) <= 1, ONE_TYPE)
    digests = np.concatenate([digests for digests, _, _ in tallies])
    counts = np.concatenate([counts for _, counts, _ in tallies])
    _, inverse = np.unique(digests, return_inverse=True)
    totals = np.bincount(inverse, weights=counts).astype(np.int64)[inverse]
    return np.split(totals, np.cumsum([len(digests) for digests, _, _ in tallies])[:-1])


def weighed(partition: Partition, answers: list[list[_Places]], number: int) -> Partition:
    """Partition `number`, each row weighted by one over the number of rows that its person has in all partitions."""
    people = partition.people
    assert people is not None
    totals = np.empty(len(people.digests))
    for bucket, answer in enumerate(answers):
        totals[people.bucket(bucket, len(answers))] = answer[number]
    # The people are not needed again, so their digests do not stay on the workers.
    return replace(partition.weighted(1.0 / totals[people.codes]), people=None)


def summed(work: RowSum[_Sums], partition: Partition, expected: bytes, number: int) -> _Sums:
    """The sum over one partition, if it is the one that the fit began with."""
    require(partition.digest == expected, changed(number))
    return work.of(partition.rows)


def changed(number: int) -> str:
    """What is wrong with a partition that is not the same when it is read again."""
    return (
        f"partition {number} has changed since the fit began: it was read again, as after a worker was lost, from a source that "
        "is different now. Fit again once the source is complete"
    )


def joined(work: RowSum[_Sums], sums: list[_Sums]) -> _Sums:
    """Several sums as one, in their order."""
    first, *others = sums
    for other in others:
        first = work.joined(first, other)
    return first


def values_of(partition: Partition) -> Any:
    """The rows themselves, for a stream that takes them one partition after the other."""
    require(not isinstance(partition.rows, WeightedRows), "a stream cannot group rows by person")
    held: Any = partition.rows
    return held.values
