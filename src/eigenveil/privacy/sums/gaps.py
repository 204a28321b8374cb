"""`Gaps`: rows may lack entries, and which entries count as missing. Every sum over rows asks this one place.

A missing entry is NaN. Whether a table may have any is a public fact that the caller declares with a rule, and nothing that an
observer sees depends on where they are. `Domain` puts a missing entry at the center, so that it adds nothing to any sum, or at a
public value. Beside the sums, `bounded_observed` releases how many people have each entry, so that sums can be divided by it.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, final

import numpy as np
from numpy.typing import NDArray

from eigenveil.data.rows import Block
from eigenveil.errors import require
from eigenveil.linalg import Array
from eigenveil.privacy.sensitivity import Neighbours

__all__ = ["Gaps"]

Rule = Literal["counts", "groups", "drop", "fill"]
_RULES: Final = ("counts", "groups", "drop", "fill")


@final
@dataclass(frozen=True, slots=True, eq=False)
class Gaps:
    """Which entries of a row count as missing, and what is counted of the others.

    Columns with the same number in `group`, (d,), go together: if one of them is missing in a row, all of them count as missing
    in that row. With "counts" every column is a group of its own. With "groups" several columns are one, such as those of a
    questionnaire. With "drop" all are, so that an incomplete row counts as nothing. With "fill" nothing is missing any more:
    `values`, (d,), public, take the place of missing entries. With `less_half`, counts are taken less half of the people.

    >>> gaps = Gaps.grouped(np.array([0, 0, 1]))
    >>> gaps.there(Block(np.array([[1.0, np.nan, 3.0], [4.0, 5.0, 6.0]]))).astype(int).tolist()
    [[0, 1], [1, 1]]
    """

    rule: Rule
    group: NDArray[np.int64]
    values: Array | None = None
    less_half: bool = False

    def __post_init__(self) -> None:
        require(self.rule in _RULES, f"the rule of gaps must be one of {', '.join(_RULES)}, got {self.rule!r}")
        require((self.values is not None) == (self.rule == "fill"), "only the rule fill has public values")
        require(not self.less_half or self.divides, "only counts of entries are taken less half of the people")
        # The "or" over each group in `_lost` is wrong for a group without columns, so there must be none.
        found = np.unique(self.group)
        require(
            self.group.ndim == 1 and np.array_equal(found, np.arange(len(found))),
            "groups of columns must be numbered from zero without a break",
        )
        if self.values is not None:
            require(self.values.shape == self.group.shape, "there must be one public value for each column")
            require(bool(np.isfinite(self.values).all()), "public values for missing entries must be finite")

    @classmethod
    def counted(cls, dim: int) -> "Gaps":
        """Each of `dim` columns by itself."""
        return cls("counts", np.arange(dim))

    @classmethod
    def grouped(cls, group: NDArray[np.int64]) -> "Gaps":
        """Groups of columns, by the number of each column's group, (d,)."""
        return cls("groups", np.asarray(group, dtype=np.int64))

    @classmethod
    def dropped(cls, dim: int) -> "Gaps":
        """Incomplete rows of `dim` columns count as nothing."""
        return cls("drop", np.zeros(dim, dtype=np.int64))

    @classmethod
    def filled(cls, values: Array) -> "Gaps":
        """These public values, (d,), take the place of missing entries."""
        return cls("fill", np.zeros(len(values), dtype=np.int64), np.array(values, dtype=np.float64))

    def under(self, neighbours: Neighbours) -> "Gaps":
        """The same gaps, with the counts that have the least noise under this relation: see `sensitivity`.

        >>> Gaps.counted(2).under(Neighbours.ADD_REMOVE).less_half, Gaps.counted(2).under(Neighbours.ZERO_OUT).less_half
        (True, False)
        """
        return replace(self, less_half=self.divides and neighbours is Neighbours.ADD_REMOVE)

    def require_relation(self, neighbours: Neighbours) -> None:
        """Refuse counts whose sensitivity does not hold under this relation."""
        require(
            not self.less_half or neighbours is Neighbours.ADD_REMOVE,
            f"counts less half of the people are for add/remove, and not for {neighbours.value!r}",
        )

    @property
    def drops(self) -> bool:
        """Whether incomplete rows count as nothing, so that even the number of rows that count is private."""
        return self.rule == "drop"

    @property
    def divides(self) -> bool:
        """Whether sums are divided by released counts."""
        return self.rule in ("counts", "groups")

    @property
    def groups(self) -> int:
        """How many groups g there are."""
        return int(self.group.max()) + 1

    @property
    def entries(self) -> int:
        """How many counts are released: one for each column, or one for each pair of groups; none if nothing is divided."""
        if not self.divides:
            return 0
        return self.groups if self.rule == "counts" else self.groups * (self.groups + 1) // 2

    def sensitivity(self) -> float:
        """Euclidean sensitivity of the observed counts: the root of their number, for all three person-level relations.

        Proof. With "counts", a row adds its indicator m in {0, 1}^g, and with "groups" the upper triangle of m m^T. In both
        cases it is a vector of c zeros and ones, c = `entries`. A person with several rows adds an average of such vectors,
        whose entries lie in [0, 1]; weights are rounded down, so that they add up to at most one. Adding, removing or zeroing
        a person moves each of c counts by at most 1, and replacing one moves each within [0, 1], so by at most 1 again. All c
        together move by at most sqrt(c). Which entries are missing may depend on anything about the person: nothing was
        assumed of m.

        With `less_half` it is half of that, under add/remove only. Every row adds m less a half in all of c places. A person
        whose weights add up to W <= 1 adds entries between -W / 2 and W / 2, so adding or removing them moves each by at most a
        half. Half of the people, who are counted anyway, is added again after the release (`eigenveil.tasks.fit.gaps.Rates`).
        Where a person is zeroed or replaced, an entry may go from one end to the other, and nothing is gained.

        Under add/remove the number of people may go along as one more entry. Each has a share of its own
        (`eigenveil.tasks.Totals`).

        >>> Gaps.counted(9).sensitivity(), Gaps.grouped(np.array([0, 0, 1, 1, 2, 2, 2])).sensitivity() ** 2
        (3.0, 6.0...)
        """
        root = math.sqrt(self.entries)
        # Rounded up: a root that is rounded down would be exceeded by its last bit.
        root = root if math.isqrt(self.entries) ** 2 == self.entries else math.nextafter(root, math.inf)
        return root / 2 if self.less_half else root

    def gone(self, values: Any) -> NDArray[np.bool_]:
        """Which entries of dense rows, (b, d), count as missing, with the rest of their group."""
        missing: NDArray[np.bool_] = np.isnan(values)
        return missing if self.rule in ("counts", "fill") else self._lost(missing)[:, self.group]

    def there(self, block: Block) -> NDArray[np.bool_]:
        """Which groups, (b, g), each row of a block has."""
        if not block.sparse:
            missing = np.isnan(block.values)
            return ~(missing if self.rule == "counts" else self._lost(missing))
        matrix = block.values
        # What is not stored is a zero and no gap, so only stored entries can be missing.
        found = np.ones((len(block), self.groups), dtype=bool)
        stored = np.isnan(matrix.data)
        lines = np.repeat(np.arange(len(block)), np.diff(matrix.indptr))
        found[lines[stored], self.group[matrix.indices[stored]]] = False
        return found

    def kept(self, block: Block) -> NDArray[np.bool_]:
        """Which rows of a block, (b,), count at all: with "drop" the complete ones, otherwise all."""
        return self.there(block)[:, 0] if self.drops else np.ones(len(block), dtype=bool)

    def _lost(self, missing: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which groups, (b, g), lack an entry."""
        # Columns of one group lie side by side in this order, and one pass over them takes the "or" of each group.
        order = np.argsort(self.group, kind="stable")
        starts = np.searchsorted(self.group[order], np.arange(self.groups))
        return np.asarray(np.logical_or.reduceat(missing[:, order], starts, axis=1))
