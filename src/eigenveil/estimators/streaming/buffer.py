"""Rows on their way into a stream: checked batches, the block that is not full yet, and columns that show up late.

All of a batch is checked before a private stream takes any of it, because a release cannot be taken back.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from eigenveil.core.rows import Block, Rows, innermost, is_remote, require_real
from eigenveil.data.columns import as_numbers, require_entries, require_numbers
from eigenveil.data.frames import as_arrow, is_arrow_like
from eigenveil.data.people import MARK_BYTES, Marks
from eigenveil.errors import ParameterError, require, require_param
from eigenveil.estimators.checks import checked_array, learn_columns, with_names
from eigenveil.linalg import Array
from eigenveil.plan.streams import StreamPlan
from eigenveil.trackers import SketchTracker
from eigenveil.trackers.sums import has_gaps, sum_of_squares

__all__ = ["OpenBlock", "PeopleSeen", "as_kind", "checked_batch", "in_units", "placed", "still_unseen"]

# Rows of a sparse piece, and numbers of a dense one, which are 8 MiB as float64.
_PIECE: Final = 1 << 14
_PIECE_NUMBERS: Final = 1 << 20
# Sums of products of larger numbers could overflow. A private stream clips rows long before that.
_SQUARABLE: Final = 1e140


def checked_batch(
    estimator: Any, X: Any, *, reset: bool, min_n: int, nameless: bool = False, names: Sequence[str] | None = None
) -> tuple[int, Iterator[Any]]:
    """The number of rows, and pieces of them, with the columns that `estimator` knows, or learns if `reset`.

    Pieces are float64 arrays in C order, or CSR matrices. At least `min_n` rows must come at once. `nameless` rows are taken to
    have the columns that are known by name. Those of a file have `names` of which they know nothing.
    """
    private, gaps = estimator.epsilon is not None, estimator.missing != "refuse"
    if type(X) is np.ndarray and not reset and _is_plain(estimator, X, min_n, nameless=nameless):
        return len(X), _pieces(X)
    if not isinstance(X, np.ndarray) and isinstance(X, Rows) and not is_arrow_like(X):
        _require_shape(X.shape, min_n=min_n)
        # Rows on a cluster were checked there.
        if private and not is_remote(X):
            # A first pass that only checks. The second one, below, feeds the stream.
            deque(_of_rows(estimator, X, reset=reset), maxlen=0)
        return X.shape[0], _of_rows(estimator, X, reset=reset)
    if is_arrow_like(X):
        table = as_arrow(with_names(estimator, X, reset=reset))
        require_numbers(table.schema)
        _require_shape((table.num_rows, table.num_columns), min_n=min_n)
        array = as_numbers(table, gaps=True)
    else:
        fewest = {"ensure_min_features": 2} if reset else {}
        checks: dict[str, Any] = {"ensure_min_samples": min_n, **fewest}
        try:
            array = checked_array(estimator, X, reset=reset, gaps=True, **checks)
        except ValueError as error:
            raise _about_rows(error) from error
    names = getattr(estimator, "feature_names_in_", None) if names is None else names
    _require_usable(array, private=private, gaps=gaps, names=names)
    return array.shape[0], _pieces(array)


def in_units(rows: Any, scale: Array | None, *, private: bool) -> Any:
    """Rows, (n, d), divided by the units of their columns, (d,), dense or sparse. Each entry depends on that entry alone.

    A `private` stream clips rows afterwards, so entries that a small unit makes too large to square only keep their sign.
    """
    if scale is None:
        return rows
    # No overflow warning: it would reveal something about one person.
    with np.errstate(over="ignore"):
        scaled = rows.data / scale[rows.indices] if sp.issparse(rows) else rows / scale
    if private:
        np.clip(scaled, -_SQUARABLE, _SQUARABLE, out=scaled)
    return sp.csr_array((scaled, rows.indices, rows.indptr), shape=rows.shape) if sp.issparse(rows) else scaled


def as_kind(rows: Any, *, sparse: bool, gaps: bool = False) -> Any:
    """Rows of the kind, sparse or dense, that the stream began with."""
    if sparse == sp.issparse(rows):
        return rows
    if not sparse:
        return rows.toarray()
    require_param(gaps or not has_gaps(rows), "{X} contains NaN, and this stream began with sparse rows, which cannot have gaps")
    return sp.csr_array(rows)


def _is_plain(estimator: Any, X: Any, min_n: int, *, nameless: bool) -> bool:
    """Whether `X` is exactly as expected, so that scikit-learn's slower checks would find nothing."""
    if X.ndim != 2 or X.dtype != np.float64 or X.shape[1] != estimator.n_features_in_ or len(X) < min_n:
        return False
    # Rows without names must go through the checks, which warn about it.
    if not nameless and "feature_names_in_" in vars(estimator):
        return False
    # One pass for all checks. NaN and infinity in any entry make the sum NaN or infinite, and neither is below the limit.
    return sum_of_squares(X) < _SQUARABLE**2


def _of_rows(estimator: Any, X: Rows, *, reset: bool) -> Iterator[Any]:
    if reset:
        learn_columns(estimator, X)
    require_param(
        X.shape[1] == estimator.n_features_in_,
        f"{{X}} has {X.shape[1]} features, but StreamingPCA is expecting {estimator.n_features_in_} features as input",
    )
    # A stream has its rows in hand. Those on a cluster come one partition after the other, never all of them.
    brought = getattr(innermost(X), "one_by_one", None)
    for block in X.blocks(_PIECE) if brought is None else map(Block, brought()):
        values = block.values
        require_param(block.weights is None, "a stream cannot group rows by person. Use {person_blocks} instead")
        require_real(values.dtype, "X")
        require_param(not np.isinf(values.data if sp.issparse(values) else values).any(), "{X} contains infinity")
        _require_usable(values, private=estimator.epsilon is not None, gaps=estimator.missing != "refuse")
        yield from _pieces(values)


def _require_usable(array: Any, *, private: bool, gaps: bool, names: Sequence[str] | None = None) -> None:
    """Refuse gaps in sparse and private rows without a rule, and without privacy numbers that are too large to multiply."""
    sparse = sp.issparse(array)
    # Whole numbers and truth values have no NaN, and none of them is near the limit.
    if array.dtype.kind != "f":
        return
    values = array.data if sparse else array
    if not private:
        require_param(
            # float32 ends at 3.4e38, far below the limit, so only wider numbers need the pass.
            array.dtype.itemsize <= 4 or not bool(((values > _SQUARABLE) | (values < -_SQUARABLE)).any()),
            f"{{X}} contains numbers beyond {_SQUARABLE:g}, too large to square. Scale the columns first",
        )
        if not sparse:
            return
    if gaps:
        return
    torn = bool(np.isnan(values).any())
    require_param(
        not torn or not sparse,
        "{X} contains NaN in a sparse matrix. Leave such entries out, or give dense rows if they are gaps. A private stream "
        "takes them with a rule such as {missing=counts}",
    )
    if torn and names is not None:
        require_entries(array, names, gaps=False)
    require_param(
        not torn,
        "{X} contains NaN, and a private stream takes no gaps without a rule for them. Use {missing=counts}, or another one: "
        "filling gaps from other rows would break the bound on what one row can change",
    )


def _about_rows(error: ValueError) -> ValueError:
    """Scikit-learn's error as a template, so that a command can use its own word for X."""
    text = str(error).removeprefix("Input ")
    if isinstance(error, ParameterError) or not text.startswith("X "):
        return error
    # Braces in scikit-learn's text would be read as parameters of the template.
    return ParameterError("{X}" + text[1:].replace("{", "{{").replace("}", "}}"))


def _require_shape(shape: tuple[int, int], *, min_n: int) -> None:
    require_param(shape[1] >= 2, f"{{X}} has {shape[1]} feature(s), and principal components need at least 2 columns")
    require_param(shape[0] >= min_n, f"{{X}} has {shape[0]} sample(s), and at least {min_n} must come at once")


def _pieces(array: Any) -> Iterator[Any]:
    """Float64 pieces of an array. Converting piece by piece avoids a whole copy."""
    if sp.issparse(array):
        array = sp.csr_array(array)
        if not array.has_canonical_format:
            # A copy first, because duplicates are added up in place.
            array = array.copy()
            array.sum_duplicates()
        step, order = _PIECE, {}
    else:
        # One memory order for all, because another order changes the last bits of sums.
        order = {"order": "C"}
        ready = array.dtype == np.float64 and array.flags.c_contiguous
        step = max(1, len(array) if ready else _PIECE_NUMBERS // max(1, array.shape[1]))
    for start in range(0, array.shape[0], step):
        yield array[start : start + step].astype(np.float64, copy=False, **order)


@final
@dataclass(frozen=True, slots=True, eq=False)
class OpenBlock:
    """The rows of a block that is not full yet: the first `count` of `room`, (b, d), or sparse `pieces`. Raw data.

    New rows go behind the others, in the same array. An earlier value does not look that far, so it stays valid and one can
    return to it. But only one value can be continued.

    >>> block = OpenBlock().and_rows(np.ones((1, 2)), length=3)
    >>> block.and_rows(np.zeros((2, 2)), length=3).rows.tolist(), block.count
    ([[1.0, 1.0], [0.0, 0.0], [0.0, 0.0]], 1)
    """

    count: int = 0
    room: Array | None = None
    pieces: tuple[Any, ...] = ()

    @classmethod
    def of(cls, rows: Any) -> "OpenBlock":
        """A block of rows that were stored elsewhere."""
        return cls().and_rows(rows, length=rows.shape[0]) if rows is not None else cls()

    def and_rows(self, rows: Any, *, length: int) -> "OpenBlock":
        """With a copy of more rows, for a block that will have `length`."""
        count = self.count + rows.shape[0]
        if sp.issparse(rows):
            return OpenBlock(count, None, (*self.pieces, rows.copy()))
        room = self.room
        if room is None or len(room) < count:
            # First just enough: the block before may still be in use, and both would take memory. Then all of the block.
            room = np.empty((max(count, length if self.count else 0), rows.shape[1]))
            if self.room is not None:
                room[: self.count] = self.room[: self.count]
        room[self.count : count] = rows
        return OpenBlock(count, room)

    @property
    def rows(self) -> Any:
        """All rows, (count, d), None if there are none."""
        if self.count == 0:
            return None
        if self.room is not None:
            return self.room[: self.count]
        return self.pieces[0] if len(self.pieces) == 1 else sp.csr_array(sp.vstack(self.pieces))

    def __repr__(self) -> str:
        return f"OpenBlock(count={self.count})"

    def __reduce__(self) -> tuple[Any, ...]:
        # Without the unwritten part of the array, which may hold anything.
        rows = self.rows
        return OpenBlock.of, (None if rows is None else rows.copy(),)


def still_unseen(unseen: Any, rows: Any) -> Any:
    """Columns, (d,) of truth values, without an entry in these rows or the ones before. None if there are none.

    Such as a sensor that comes online late.
    """
    # An entry that a sparse row does not store is zero, not a gap.
    if sp.issparse(rows):
        return None
    gaps = np.isnan(rows).all(axis=0)
    gaps = gaps if unseen is None else gaps & unseen
    return gaps if gaps.any() else None


def placed(tracker: SketchTracker[Any], state: Any, unseen: Any, rows: Any) -> Any:
    """The state with the mean of columns that show up for the first time set to the mean of these rows.

    Until now they were filled with one constant, which adds nothing to the scatter.
    """
    present = ~np.isnan(rows)
    first = unseen & present.any(axis=0)
    if not first.any():
        return state
    means = np.where(present, rows, 0.0).sum(axis=0) / np.maximum(present.sum(axis=0), 1)
    return tracker.with_means(state, first, means)


@final
class PeopleSeen:
    """Admits the first row of a person in a block, in at most `most` blocks. Changes in place, and is raw data.

    Blocks are counted in admitted rows. In what is admitted no person has two rows in a block, or rows in more than `most`
    blocks, which is all that the trackers' sensitivities need (`SumTerms`). Who is admitted depends on identifiers alone.
    Neighbouring streams have the same ones, so they admit the same places.

    >>> from eigenveil.data.people import marks_of
    >>> seen = PeopleSeen(max_blocks=2)
    >>> plan = StreamPlan(tracker="products", block=2, first_block=2, horizon_blocks=0, memory=0, reason="")
    >>> [seen.admitted(marks_of(["ann", "bob", "ann", "ann"]), rows=rows, plan=plan).tolist() for rows in (0, 3)]
    [[True, True, True, False], [False, True, False, False]]
    """

    def __init__(self, max_blocks: int) -> None:
        self.max_blocks = max_blocks
        # For each person in how many blocks they have a row, and the last of these.
        self._blocks: dict[bytes, tuple[int, int]] = {}
        self._kind: str | None = None

    def admitted(self, marks: Marks, *, rows: int, plan: StreamPlan) -> NDArray[np.bool_]:
        """Which of the rows with these marks, (n,), are taken, in a stream that has `rows` rows."""
        require(
            self._kind in (None, marks.kind),
            f"{marks.what} has identifiers of another type than in earlier rows. Give all of them as text",
        )
        self._kind = marks.kind
        taken = np.zeros(len(marks.each), dtype=bool)
        for index, mark in enumerate(marks.each):
            block = plan.block_of(rows)
            blocks, last = self._blocks.get(mark, (0, -1))
            # The block before a synchronisation and the rest of it after that are one block.
            if last == block or blocks == self.max_blocks:
                continue
            self._blocks[mark] = (blocks + 1, block)
            taken[index] = True
            rows += 1
        return taken

    def arrays(self) -> dict[str, Any]:
        """Everything but the kind of identifiers, for a state file."""
        marks = np.frombuffer(b"".join(self._blocks), dtype=np.uint8).reshape(-1, MARK_BYTES)
        return {"people": marks, "people.blocks": np.array(list(self._blocks.values()), dtype=np.int64).reshape(-1, 2)}

    @property
    def kind(self) -> str | None:
        """The type of identifiers so far."""
        return self._kind

    @classmethod
    def restored(cls, max_blocks: int, arrays: Any, kind: str | None) -> "PeopleSeen":
        """From the arrays of a state file."""
        marks, blocks = arrays["people"], arrays["people.blocks"]
        good = marks.shape == (len(blocks), MARK_BYTES) and blocks.shape == (len(marks), 2)
        require(good and marks.dtype == np.uint8, "its people are not those that were saved")
        people = cls(max_blocks)
        people._kind = kind
        pairs = ((int(count), int(last)) for count, last in blocks)
        people._blocks = {mark.tobytes(): pair for mark, pair in zip(marks, pairs, strict=True)}
        return people

    def __repr__(self) -> str:
        # Neither people nor their number: a log may print this.
        return f"PeopleSeen(max_blocks={self.max_blocks})"
