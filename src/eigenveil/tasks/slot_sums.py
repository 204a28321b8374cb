"""`SlotSums`: with noise, a slot is one symmetric matrix, which has the products of its rows, their sum and their number.

A row x, clipped to norm B, gets a constant last entry g: u = (x, g). The sum of u u^T over a slot's rows holds the products
of rows, g times their sum, and g^2 times their number. One matrix is one release, one masked vector and one charge. Where
entries may be missing, some columns before those say how many rows have each entry, and the hub divides by that.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, final

import numpy as np

from eigenveil.core.domain import Domain, MissingPolicy
from eigenveil.core.ledger import Slot
from eigenveil.core.mechanism import Bounded, Mechanism
from eigenveil.core.noise import ROUNDING_COST
from eigenveil.core.rows import Block, Rows
from eigenveil.core.unit import Neighbours
from eigenveil.core.whole import COUNT_UNIT, observed_in
from eigenveil.errors import require
from eigenveil.linalg import Array
from eigenveil.privacy.floating import dense
from eigenveil.privacy.released import packed_size, release_packed, unpack
from eigenveil.privacy.sums import add_packed
from eigenveil.tasks.base import Question, SumTask, require_array
from eigenveil.tasks.levels import Levels
from eigenveil.tasks.slots import ClosedSlot, OpenSlot, SlotState, SlotTask, aged, weighed

__all__ = ["SlotSums"]

# g^2 over B^2. The products get 2.5% more noise, and the sum of rows as much as with 5% of the budget (`trackers.sums`).
_SHARE: Final = 0.025
# What the counts of entries add to the squared sensitivity, where entries may be missing: as in a fit of a table.
_OBSERVED: Final = 0.04
# Counts are released in whole numbers of 2^-20: with these 48 bits and five of their factor, no product is rounded.
_COARSER: Final = 14
# Weights of so many rows, 34 bits each, add up exactly in float64.
_COUNTED_ROWS: Final = 1 << 18
# Numbers that are converted at a time.
_STRIP: Final = 1 << 14
# This many rows, 34 bits each, keep a sum below 2^62.
_MOST_ROWS: Final = 1 << 28


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SlotSums(SlotTask[Array], SumTask[SlotState, SlotState]):
    """The matrix of each slot's rows in `domain`, (d + 1 + w, d + 1 + w), over `slots` slots, with w columns for counts.

    A person has at most one row in a slot, and rows in at most `person_slots` slots. With `one_person_per_site`,
    each site is one person, who is in every slot: the mean of the slot's matrices counts, however many rows there are.
    Where a hub adds noise to a sum of parts from others, there are at most `grid` of them, rounded so that they add up
    exactly (`on_grid`).

    Sensitivity: with R^2 = B^2 + g^2, as of a Gram matrix of rows of norm R. Proof. ||u||^2 = |x|^2 + g^2 <= R^2, so adding
    or removing u u^T moves the matrix by at most R^2. A blanked row is (0, g), or nothing; against x it moves the matrix by
    at most sqrt(|x|^4 + 2 g^2 |x|^2) < R^2. Two rows differ by at most sqrt(2) R^2, like any two such matrices
    (`gram_sensitivity`). A mean of matrices u u^T is positive semi-definite of trace at most R^2, and `Symmetric` proves the
    same bounds for it. Dividing whole numbers rounds every entry down by less than a unit, which moves an array of (d + 1)^2
    entries by at most d + 1 units.

    Where entries may be missing, a row adds h times its c zeros and ones (`Gaps.sensitivity`) to rows of their own, before
    those of u u^T, and the same again below the diagonal. Each of 2 c entries moves by at most h, for all relations and for
    a mean of such rows: rounded down, it stays in [0, 1]. They share no entry with u u^T, so the squares add up:
    s^2 + 2 c h^2. Incomplete rows that are left out add nothing, not even their constant. Against a complete row that moves
    the matrix by u u^T, R^2 at most, and the number of rows left is protected under every relation.

    >>> task = SlotSums(domain=Domain(dim=1, radius=2.0), neighbours=Neighbours.ZERO_OUT, slots=3)
    >>> slot = task.open()
    >>> slot.add(np.array([[1.0], [-1.0]]))
    >>> matrix = task.private(Question(0), slot.close()).value
    >>> float(matrix[0, 0].round(4)), abs(task.total_of(matrix)).round(4).tolist(), round(task.count_of(matrix), 4)
    (2.0, [0.0], 2.0)
    """

    domain: Domain
    neighbours: Neighbours
    slots: int
    person_slots: int = 1
    forget: float = 1.0
    one_person_per_site: bool = False
    window: int = 0
    grid: int = 0
    series: str = "slots"

    def __post_init__(self) -> None:
        require(self.slots >= 1, f"slots must be at least 1, got {self.slots}")
        require(1 <= self.person_slots <= self.slots, f"person_slots must lie in 1..{self.slots}")
        require(0 < self.forget <= 1, f"forget must lie in (0, 1], got {self.forget}")
        # Late slots and slots of a device have no number of people of their own that could be added again.
        require(self.gaps is None or not self.gaps.less_half, "slots have plain counts of entries")
        require(
            not self.one_person_per_site or self.person_slots == self.slots,
            f"a device that is a person is in all {self.slots} slots, got person_slots {self.person_slots}",
        )
        require(
            not self.one_person_per_site or self.neighbours.count_is_public,
            "that a device takes part is public, so neighbours must be zero-out or replace-one where it is a person",
        )

    @property
    def constant(self) -> float:
        """The constant entry g, a power of two, so that multiples of it are exact."""
        return 2.0 ** round(math.log2(self.domain.radius * math.sqrt(_SHARE)))

    @property
    def gaps(self) -> MissingPolicy | None:
        return self.domain.gaps

    @property
    def entries(self) -> int:
        """How many counts of entries c there are, zero unless sums are divided by them."""
        return 0 if self.gaps is None else self.gaps.entries

    @property
    def side(self) -> int:
        """The number of columns: the rows', the constant, and as many as the counts of entries fill."""
        return self.domain.dim + 1 + -(-self.entries // (self.domain.dim + 1))

    @property
    def seen(self) -> float:
        """The factor h of the counts of entries, of five bits, so that their multiples are exact."""
        if self.entries == 0:
            return 0.0
        mantissa, power = math.frexp(self.wide.radius**2 * math.sqrt(_OBSERVED / (2 * self.entries)))
        return math.ldexp(round(mantissa * 32), power - 5)

    @property
    def wide(self) -> Domain:
        """The ball of rows with their constant."""
        return Domain(dim=self.domain.dim + 1, radius=math.hypot(self.domain.radius, self.constant))

    # What a site makes of a slot.

    def open(self) -> OpenSlot:
        """Whole sums, which grow no longer than one matrix."""
        return _OpenSums(self)

    def take(self, filled: OpenSlot, block: Any) -> None:
        """Sparse rows are made dense: the constant column would fill them anyway."""
        assert isinstance(filled, _OpenSums)
        values = block.values.toarray() if block.sparse else block.values
        filled.add_weighted(values, block.weights)

    def private(self, question: Question, rows: Rows) -> Bounded:
        return Bounded(self._whole(self.closed(question, rows).summary), self.sensitivity(question), symmetric=True)

    def sensitivity(self, question: Question) -> float:
        wide = self.wide
        by_rows = wide.gram_sensitivity(self.neighbours)
        assert wide.unit is not None
        # A device's mean is rounded down, which moves each of (d + 1)^2 entries by less than a unit.
        by_rows += wide.dim * wide.unit**2 if self.one_person_per_site else 0.0
        if self.entries == 0:
            return by_rows
        # Rounded up, twice: once for the root, and once for the length.
        by_counts = math.nextafter(self.seen * math.sqrt(2 * self.entries), math.inf)
        return math.nextafter(math.hypot(by_rows, by_counts), math.inf)

    def shape(self, question: Question) -> tuple[int, ...]:
        return (self.side, self.side)

    @property
    def symmetric(self) -> bool:
        return True

    def label(self, question: Question) -> str:
        return f"slot {question.step + 1}"

    def share(self, question: Question) -> float:
        """So much of mu^2 that the slots a person is in add up to all of it."""
        return 1.0 / self.person_slots

    def slot(self, question: Question) -> Slot:
        return Slot(series=self.series, number=question.step, per_person=self.person_slots, window=self.window)

    def work(self, question: Question, rows: Rows, mechanism: Mechanism) -> Array:
        """The released matrix. Where the number of rows is public, it is put back without noise."""
        closed = self.closed(question, rows)
        # A copy, because the caller may use a closed slot again.
        sums = np.array(closed.summary) if rows is closed else closed.summary
        return self._whole(*self.sent(question, replace(closed, summary=sums), mechanism))

    def sent(self, question: Question, closed: ClosedSlot, mechanism: Mechanism) -> tuple[Array, ...]:
        """The same, packed: a device has no room for a whole matrix, nor for two halves."""
        corner = closed.summary[-1]
        released = release_packed(
            mechanism,
            closed.summary,
            sensitivity=self.sensitivity(question),
            label=self.label(question),
            share=self.share(question),
            slot=self.slot(question),
        )
        if self.counts:
            released[-1] = corner
        # The hub checks the same. Failing here keeps the reason at the site.
        return (require_array(released, closed.summary.shape),)

    def _whole(self, packed: Array) -> Array:
        return unpack(packed, self.shape(Question(0)), symmetric=True)

    @property
    def counts(self) -> bool:
        """Whether a slot's number of rows is public and sent exactly. How many of them are complete never is."""
        return self.neighbours.count_is_public and not self.drops

    @property
    def drops(self) -> bool:
        return self.gaps is not None and self.gaps.drops

    # What a hub makes of the slots.

    def part(self, question: Question, arrays: tuple[Array, ...]) -> Array:
        """One matrix, whole or packed, with numbers that can be added; on the grid, if there is one."""
        if len(arrays) == 1 and np.ndim(arrays[0]) == 1:
            arrays = (self._whole(require_array(arrays[0], (packed_size(self.shape(question), symmetric=True),))),)
        matrix = SumTask.part(self, question, arrays)
        return matrix if self.grid == 0 else self.rounded_to_grid(question, matrix, parts=self.grid)

    def update(self, state: SlotState, released: Array) -> SlotState:
        return replace(self._added(state, state.following, released, 1, 1.0), following=state.following + 1)

    def advance(self, state: SlotState, total: Array, mechanism: Mechanism, *, stretch: float = 1.0) -> SlotState:
        slot = state.following
        folded = self.fold(state, slot, total, mechanism, parts=1, noise=1.0, group="")
        return replace(folded, following=slot + 1)

    def fold(
        self, state: SlotState, slot: int, total: Array, mechanism: Mechanism, *, parts: int, noise: float, group: str
    ) -> SlotState:
        """The state with this slot's sum. Sums have no order: what is aged is added."""
        question = Question(slot)
        # Rounding parts onto the grid may move neighbours a little further apart, and the noise must cover that too.
        rounding = 0.0 if self.grid == 0 else ROUNDING_COST
        private = Bounded(total, (1 + rounding) * self.sensitivity(question), symmetric=True)
        where = replace(self.slot(question), group=group)
        released = mechanism.release(private, label=self.label(question), share=self.share(question), slot=where)
        # A public count needs no noise, and means are better with the exact one.
        if self.counts:
            released = np.array(released)
            released[-1, -1] = total[-1, -1]
        return self._added(state, slot, released, parts, noise)

    def joined(self, states: Sequence[SlotState], factors: Sequence[float]) -> SlotState:
        """Sums are added. Variances of noise count the square of what sums do."""
        pairs, newest = weighed(states, factors, self.forget)
        value: Array | None = None
        for state, weight in pairs:
            value = weight * state.value if value is None else value + weight * state.value
        levels: Levels | None = None
        for state, weight in pairs:
            if state.levels is not None:
                own = state.levels.times(weight)
                levels = own if levels is None else levels.and_also(own)
        return SlotState(
            value=value,
            reference=newest,
            parts=sum(weight * state.parts for state, weight in pairs),
            noise=sum(weight**2 * state.noise for state, weight in pairs),
            levels=levels,
        )

    def _added(self, state: SlotState, slot: int, released: Array, parts: int, noise: float) -> SlotState:
        before, now, reference = aged(state, slot, self.forget)
        old = np.zeros_like(released) if state.value is None else state.value
        variances = {"total_noise": noise, "energy_noise": noise, "weight_noise": noise}
        energy, rows = float(np.trace(self.gram_of(released))), self.count_of(released)
        levels = Levels.of(slot, self.total_of(released), energy=energy, weight=rows, **variances).times(now)
        # Variances of noise fade with the square of what sums fade by.
        return replace(
            state,
            value=before * old + now * released,
            reference=reference,
            parts=before * state.parts + now * parts,
            noise=before**2 * state.noise + now**2 * noise,
            levels=levels if state.levels is None else state.levels.times(before).and_also(levels),
        )

    def gram_of(self, matrix: Array) -> Array:
        """The sum of products of the columns, (d, d), in a matrix of slots."""
        inner = slice(-1 - self.domain.dim, -1)
        return matrix[inner, inner]

    def total_of(self, matrix: Array) -> Array:
        """The sum of rows, (d,), in a matrix of slots."""
        return np.asarray(matrix[-1 - self.domain.dim : -1, -1] / self.constant)

    def count_of(self, matrix: Array) -> float:
        """The number of rows, or of devices, in a matrix of slots; with noise where it is protected."""
        return float(matrix[-1, -1]) / self.constant**2

    def observed_of(self, matrix: Array) -> Array:
        """How many rows have each entry, (c,), in a matrix of slots, with noise."""
        more = self.side - self.domain.dim - 1
        return np.asarray(matrix[:more, more:].ravel()[: self.entries] / self.seen)


@final
class _OpenSums(OpenSlot):
    """The whole sums of a slot: the upper triangle of their matrix, row by row. Changes in place."""

    def __init__(self, task: SlotSums) -> None:
        self._task, self._wide, self._rows, self._kept = task, task.wide, 0, 0
        self._packed = np.zeros(packed_size((task.side, task.side), symmetric=True), dtype=np.int64)
        # The triangle of the rows is all that follows the counts of entries.
        self._counted = len(self._packed) - packed_size((self._wide.dim, self._wide.dim), symmetric=True)
        self._seen = np.zeros(task.entries, dtype=np.int64)
        self._people = 0.0

    def add(self, rows: Array) -> None:
        self.add_weighted(rows, None)

    def add_weighted(self, rows: Any, weights: Array | None) -> None:
        """The same for rows that count less than one each."""
        task, dim = self._task, self._task.domain.dim
        # All checks come before the first change: a refused block must leave the sums as they were.
        require(
            getattr(rows, "ndim", 0) == 2 and rows.shape[1] == dim,
            f"rows of this stream must have {dim} columns, got {getattr(rows, 'shape', type(rows).__name__)}",
        )
        require(self._rows + len(rows) <= _MOST_ROWS, f"a slot must have at most {_MOST_ROWS} rows")
        # A missing entry gets its public value in the domain, or is put at the origin, row by row and before the row is clipped.
        # Such a row is in the same ball as any other, and all sensitivities stay.
        good = np.isfinite(rows) if task.domain.gaps is None else ~np.isinf(rows)
        require(bool(good.all()), "rows must be finite")
        whole = np.full((len(rows), dim + 1), task.constant)
        block = Block(rows, weights)
        dense(task.domain, Block(rows), out=whole[:, :dim] if len(rows) else None)
        n_kept = len(rows)
        if task.gaps is not None and task.drops:
            mask = task.gaps.kept(block)
            # Without its constant a row adds nothing at all.
            whole[~mask, dim] = 0.0
            n_kept = int(mask.sum())
        # Clipped again with the constant, on the grid this time: the bound then holds to the last bit.
        add_packed(Block(whole, weights), self._wide, self._packed[self._counted :])
        if task.gaps is not None and task.entries:
            for start in range(0, len(rows), _COUNTED_ROWS):
                self._seen += observed_in(block.piece(start, _COUNTED_ROWS), task.gaps)
        self._rows, self._kept = self._rows + len(rows), self._kept + n_kept
        self._people += len(rows) if weights is None else float(weights.sum())

    def close(self) -> ClosedSlot:
        """The packed matrix in float64, rounded once. For a device, the mean over its rows."""
        task, unit = self._task, self._wide.unit
        assert unit is not None
        # Given away: nothing can be added to a closed slot.
        sums, self._packed = self._packed, np.empty(0, dtype=np.int64)
        # The floats take the memory of the whole numbers, some at a time: a device has no room for both.
        packed = sums.view(np.float64)
        for start in range(self._counted, len(sums), _STRIP):
            some = sums[start : start + _STRIP]
            # Whole numbers are divided, before any conversion: the sensitivity counts the unit that this rounds off.
            # A device has the mean of the rows that count.
            some = some // max(self._kept, 1) if task.one_person_per_site else some
            packed[start : start + _STRIP] = some.astype(np.float64) * unit**2
        if task.entries:
            whole = (self._seen // max(self._rows, 1) if task.one_person_per_site else self._seen) >> _COARSER
            more = task.side - self._wide.dim
            counts = np.zeros((more, task.side))
            counts[:, more:].flat[: task.entries] = whole * (COUNT_UNIT * 2**_COARSER * task.seen)
            packed[: self._counted] = np.concatenate([line[at:] for at, line in enumerate(counts)])
        if task.counts:
            # Exact, where it is public: on the grid the constant is a little shorter.
            size = 1.0 if task.one_person_per_site else float(round(self._people))
            packed[-1] = size * task.constant**2
        # The size would tell how many rows came, so it is zero where that is protected.
        return ClosedSlot(packed, task.domain.dim, self._rows if task.counts else 0)
