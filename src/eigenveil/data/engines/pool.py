"""Rows of files, read by several processes of this machine: each process adds up ranges of the files, and sends sums back.

A Parquet file is cut at its row groups and an npy file anywhere. The files may be far larger than memory, because every process
has one block of rows at a time. The process that fits has none.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Final, NoReturn, TypeVar, final

import numpy as np

from eigenveil.core.rows import Progress, Rows, RowSum
from eigenveil.core.threads import cores
from eigenveil.data.columns import ColumnChoice, ColumnLayout
from eigenveil.data.engines.base import PieceRefusal, answer_of, attempted
from eigenveil.data.formats import SHARED, FileParams, SharedTable, format_of, open_named, require_readable
from eigenveil.data.frames import person_ids
from eigenveil.data.number_texts import MissingMarks
from eigenveil.data.rows import CheckedRows, DenseRows, NamedRows, WeightedRows, person_weights, refuse_to_copy
from eigenveil.data.tables import FileRows, beside, with_gaps
from eigenveil.errors import ColumnsError, EngineLost, require
from eigenveil.linalg import Array
from eigenveil.params.declare import validate_params

__all__ = ["PoolRows", "rows_in_processes", "table_in_processes"]

_Sums = TypeVar("_Sums")
# More pieces than processes, so that a slow one does not keep the others waiting. Each costs one message.
_PIECES_EACH: Final = 4
# Numbers of a block: half of what one process with several threads takes. Fresh memory costs processor time in every process,
# and smaller blocks than this cost more than they save.
_BLOCK_NUMBERS: Final = 1_000_000
# A process may be killed for want of memory. Its pieces are tried again this many times, in new processes.
_ATTEMPTS: Final = 3


@final
@dataclass(frozen=True, slots=True)
class FileMark:
    """A file as it was when it was opened. Another size or time means that its rows may have changed since."""

    path: Path
    size: int
    changed: int

    @classmethod
    def of(cls, path: Path) -> "FileMark":
        """The file as it is now."""
        status = path.stat()
        return cls(path, status.st_size, status.st_mtime_ns)


@final
@dataclass(frozen=True, slots=True)
class TablePiece:
    """A piece of a table with column names, and its columns that are analysed."""

    mark: FileMark
    table: SharedTable
    layout: ColumnLayout

    @property
    def count(self) -> int:
        return self.table.count or 0

    def rows(self, *, gaps: bool) -> Rows:
        return CheckedRows(FileRows(table=self.table, layout=self.layout, gaps=gaps, max_numbers=_BLOCK_NUMBERS), gaps)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayPiece:
    """The rows from `start` on, `count` of them, of a file without column names that a process can map to memory."""

    mark: FileMark
    how: FileParams
    start: int
    count: int

    def rows(self, *, gaps: bool) -> Rows:
        rows = mapped(self.mark.path, self.how).values[self.start : self.start + self.count]
        return CheckedRows(with_gaps(DenseRows(rows), MissingMarks.of(self.how)), gaps)


def mapped(path: Path, how: FileParams) -> DenseRows:
    """All rows of such a file."""
    read = format_of(path, how).rows
    rows = None if read is None else read(path, how)
    assert isinstance(rows, DenseRows)
    return rows


FilePiece = TablePiece | ArrayPiece


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PoolRows:
    """Rows in ranges of files, and how many processes read them."""

    sparse: ClassVar = False
    pieces: tuple[FilePiece, ...]
    dim: int
    processes: int
    weights: tuple[Array, ...] | None = None  # Of each piece, None where each row is a person.
    gaps: bool = False  # Missing values are NaN.

    @property
    def shape(self) -> tuple[int, int]:
        return sum(piece.count for piece in self.pieces), self.dim

    @property
    def counts_people(self) -> bool:
        return self.weights is not None

    def blocks(self, size: int) -> NoReturn:
        """Always a `ValueError`: rows stay with the processes that read them."""
        refuse_to_copy("in other processes")

    def by_person(self, person: Any) -> "PoolRows":
        """The same rows, weighted; `person` has an identifier for each row, in the order of the files."""
        ends = np.cumsum([piece.count for piece in self.pieces])
        # Cut along with the pieces: a weight beside another row would let a person count more than once, without an error.
        return replace(self, weights=tuple(np.split(person_weights(person, self.shape[0]), ends[:-1])))

    def total(self, work: RowSum[_Sums], *, progress: Progress | None = None) -> _Sums:
        """`work` over all pieces, in their order. A process that dies costs only time: its pieces go to new processes."""
        done, combined, lost = 0, None, 0
        while done < len(self.pieces):
            try:
                for sums in self._answers(work, done):
                    combined = sums if combined is None else work.joined(combined, sums)
                    if progress is not None:
                        progress(self.pieces[done].count)
                    # An answer shows that the processes work, so attempts are counted anew.
                    done, lost = done + 1, 0
            except BrokenProcessPool:
                lost += 1
                if lost == _ATTEMPTS:
                    raise EngineLost(
                        "the processes that read the table were killed, most likely because memory ran out. Use fewer processes. "
                        "Nothing of this sum was released"
                    ) from None
        assert combined is not None
        return combined

    def _answers(self, work: RowSum[_Sums], first: int) -> Iterator[_Sums]:
        """The sums over the pieces from `first` on, in order, a few of them in memory at a time."""
        from joblib import Parallel, delayed, parallel_config

        weights = self.weights or (None,) * len(self.pieces)
        refused: list[PieceRefusal] = []

        def tasks() -> Iterator[Any]:
            for at in range(first, len(self.pieces)):
                # After a refusal no more pieces are begun. Those under way are waited for: joblib cannot stop them quietly.
                if refused:
                    return
                yield delayed(attempted)(_summed, work, self.pieces[at], weights[at], self.gaps)

        # Arguments go through pipes: joblib would otherwise leave larger ones, weights of people among them, in files.
        with parallel_config("loky", inner_max_num_threads=max(1, cores() // self.processes)):
            for answer in Parallel(self.processes, return_as="generator", max_nbytes=None)(tasks()):
                if isinstance(answer, PieceRefusal):
                    refused.append(answer)
                elif not refused:
                    yield answer
        if refused:
            answer_of(refused[0])


def _summed(work: RowSum[_Sums], piece: FilePiece, weights: Array | None, gaps: bool) -> _Sums:
    """In another process: the sum over one piece."""
    # This is checked where the piece is read and at every sum, since a file may change during a fit.
    mark = piece.mark
    same = mark.path.exists() and FileMark.of(mark.path) == mark
    # A sum over other rows than before would be of two tables at once.
    require(same, f"{mark.path} has changed while it was being fitted. Fit again once it is complete")
    rows = piece.rows(gaps=gaps)
    return work.of(rows if weights is None else WeightedRows(rows, weights))


def rows_in_processes(
    path: str | Path,
    *,
    processes: int | None = None,
    person: str | None = None,
    columns: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    one_hot: Mapping[str, Sequence[str]] | None = None,
    literal: bool = False,
    gaps: bool = False,
    **how: Any,
) -> NamedRows:
    """A Parquet file, a folder of them, or an npy file, read by several processes, one for each core unless said otherwise.

    Estimators take it in place of a table. The other arguments are those of `eigenveil.data.tables.read_table`.

    >>> from tempfile import TemporaryDirectory
    >>> import pyarrow as pa, pyarrow.parquet as pq
    >>> with TemporaryDirectory() as folder:
    ...     pq.write_table(pa.table({"age": [30.0, 40.0], "pulse": [60.0, 70.0]}), f"{folder}/patients.parquet")
    ...     rows_in_processes(f"{folder}/patients.parquet", processes=2).shape
    (2, 2)
    """
    params = validate_params(FileParams, FileParams(**how))
    count = cores() if processes is None else processes
    require(count >= 1, f"processes must be at least 1, got {processes}")
    path = Path(path)
    require_readable(path)
    format_ = format_of(path, params)
    require(format_.is_shared, f"{path} is {format_.word}, which several processes cannot share. Convert it to {SHARED} first")
    if not format_.has_names:
        require(
            not (person or columns or drop or one_hot),
            f"{path} is {format_.word} and has no column names. Leave out person, columns, drop and one_hot",
        )
        return NamedRows(replace(_array_rows(path, count, params), gaps=gaps), None)
    choice = ColumnChoice.named(columns, drop, one_hot, person=person, literal=literal)
    table: Any = open_named(path, params)
    return table_in_processes(table, choice, processes=count, gaps=gaps)


def table_in_processes(table: SharedTable, choice: ColumnChoice, *, processes: int, gaps: bool = False) -> NamedRows:
    """The chosen columns of a table whose names and types were checked. With `gaps`, missing values are NaN."""
    try:
        layout = choice.laid_out(table.source, table.names, table.kinds)
    except ColumnsError as error:
        raise error.at(str(table.source)) from None
    assert table.count is not None
    # Pieces of about the same number of rows.
    parts = table.pieces(-(-table.count // (processes * _PIECES_EACH)))
    require(len(parts) > 0, f"{table.source} has no rows")
    pieces = tuple(TablePiece(FileMark.of(part.source), part, layout) for part in parts)
    rows = PoolRows(pieces=pieces, dim=len(layout.names), processes=processes, gaps=gaps)
    if layout.person is not None:
        rows = rows.by_person(person_ids(beside(table, (layout.person,)), layout.person))
    return NamedRows(rows, layout.names, layout.person)


def _array_rows(path: Path, processes: int, how: FileParams) -> PoolRows:
    """Equal ranges of an array in a file."""
    count, dim = mapped(path, how).shape
    require(count > 0, f"{path} has no rows")
    each, mark = -(-count // (processes * _PIECES_EACH)), FileMark.of(path)
    starts = range(0, count, each)
    pieces = tuple(ArrayPiece(mark=mark, how=how, start=start, count=min(each, count - start)) for start in starts)
    return PoolRows(pieces=pieces, dim=dim, processes=processes)
