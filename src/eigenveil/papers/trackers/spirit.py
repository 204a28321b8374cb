"""`Spirit`: hidden variables of a stream, tracked one after the other by PAST; their number follows the energy of the rows.

Each hidden variable sees what the ones before it left of a row, and forgets old rows at a chosen rate.
"""

from dataclasses import dataclass
from math import sqrt
from typing import Any, final

import numpy as np

from eigenveil.core.mechanism import Mechanism
from eigenveil.errors import require
from eigenveil.linalg import Array, Subspace, orthonormal
from eigenveil.papers.trackers.edges import admit, read_only, require_rank
from eigenveil.trackers import Tracker, require_exact

__all__ = ["Spirit", "SpiritState"]

# If less than this fraction of a row's energy is left, it is rounding, and a direction counts as forgotten.
_ROUNDING = 1e-20


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SpiritState:
    """The `basis`, (d, j), with the `weights`, (j,), of PAST and the `energies`, (j,).

    They are compared with the `total` energy of the rows, which determines how many directions are `wanted` next.
    """

    basis: Array
    weights: Array
    energies: Array
    total: float
    wanted: int


@final
@dataclass(frozen=True, slots=True)
class Spirit(Tracker[SpiritState]):
    """SPIRIT: Papadimitriou, Sun and Faloutsos (2005), algorithms TrackW and SPIRIT, over the deflating PAST of Yang (1995).

    For each hidden variable w with weight m, one after the other, with x what is left of the row, y = w^T x and e = x - y w:

        m <- forget * m + y^2,   w <- w + (y / m) e,   x <- x - y w.

    Then its energy becomes forget * energy + (w^T row)^2, with the new w as in the authors' program. With y instead, the part of
    the row that moved w would be missing, and variables would be added without end.

    With thresholds `energy` = (low, high) there is one variable at first. While all energies together are below low times that of
    the rows, each row adds one, up to `rank`. While they are above high times that, each row removes one. With `energy` None
    there are `rank` of them, as soon as the rows have as many directions. With `forget` = 1 nothing is forgotten.

    Three things differ from the paper. Columns are made orthonormal after every row by QR, because Gram-Schmidt fails when they
    become dependent. A new variable begins with m = 0 instead of a small number. Its first row alone then determines it, so no
    start is needed and the scale of the rows has no effect. The variable that is removed is the one of least energy, which need
    not be the last. Values are the roots of the energies, of rows weighted by powers of `forget`. With `forget` 1, a new variable
    has all the past to catch up with, and more are added meanwhile. As FPCA (supplement, D) notes, there can be far too many.

    >>> from eigenveil.trackers import NOTHING_ASKED
    >>> tracker = Spirit(rank=2, forget=1.0)
    >>> state = tracker.step(tracker.start(3), np.array([[0.0, 3.0, 0.0], [0.0, 4.0, 0.0]]), NOTHING_ASKED)
    >>> tracker.subspace(state).values.tolist()
    [5.0]
    """

    rank: int
    forget: float = 0.96
    energy: tuple[float, float] | None = (0.95, 0.98)

    def __post_init__(self) -> None:
        require_rank(self.rank)
        require(0 < self.forget <= 1, f"forget must lie in (0, 1], got {self.forget}")
        require(
            self.energy is None or 0 < self.energy[0] < self.energy[1] <= 1,
            f"energy must be two shares, 0 < low < high <= 1, or None for a fixed rank, got {self.energy}",
        )

    def start(self, dim: int) -> SpiritState:
        """No hidden variable yet."""
        require_rank(self.rank, dim)
        none, wanted = read_only(np.zeros(0)), self.rank if self.energy is None else 1
        return SpiritState(basis=read_only(np.zeros((dim, 0))), weights=none, energies=none, total=0.0, wanted=wanted)

    def step(self, state: SpiritState, rows: Any, mechanism: Mechanism) -> SpiritState:
        """One update of every hidden variable per row."""
        require_exact(mechanism, "Spirit")
        for row in admit(rows, len(state.basis)):
            state = self._after(state, row)
        return state

    def subspace(self, state: SpiritState) -> Subspace:
        """The hidden variables by energy."""
        order = np.argsort(-state.energies, kind="stable")
        return Subspace(state.basis[:, order], np.sqrt(state.energies[order]))

    def _after(self, state: SpiritState, row: Array) -> SpiritState:
        room = int(len(state.weights) < state.wanted)
        # One hidden variable per row of the frame, so that each is contiguous. A zero row is where a new one may begin.
        frame = np.concatenate([state.basis.T, np.zeros((room, len(row)))])
        weights, energies = (np.append(self.forget * old, np.zeros(room)) for old in (state.weights, state.energies))
        _track(frame, weights, row)
        begun = weights > 0.0
        basis, weights = orthonormal(frame[begun].T), weights[begun]
        # With the new basis, as in the authors' program: otherwise variables would be added without end.
        energies = energies[begun] + np.square(row @ basis)
        total = self.forget * state.total + float(row @ row)
        wanted = self._wanted(energies, total, state.wanted)
        if wanted < len(energies):
            others = np.arange(len(energies)) != energies.argmin()
            basis, weights, energies = basis[:, others], weights[others], energies[others]
        return SpiritState(
            basis=read_only(basis), weights=read_only(weights), energies=read_only(energies), total=total, wanted=wanted
        )

    def _wanted(self, energies: Array, total: float, wanted: int) -> int:
        """How many hidden variables there should be for the next row."""
        if self.energy is None or len(energies) == 0:
            return wanted
        low, high = self.energy
        caught = float(energies.sum())
        if caught < low * total:
            return min(len(energies) + 1, self.rank)
        return max(len(energies) - 1, 1) if caught > high * total else len(energies)


def _track(frame: Array, weights: Array, row: Array) -> None:
    """TrackW for `row`, (d,). Changes the directions, (j, d), and their weights, (j,), already multiplied by `forget`."""
    left, floor = row, _ROUNDING * float(row @ row)
    for i, direction in enumerate(frame):
        projection = float(direction @ left)
        weight = float(weights[i]) + projection * projection
        if weight > floor:
            error = left - projection * direction
            direction += (projection / weight) * error
            # The rest after the new direction: x - y w = (1 - y^2 / m) e.
            left = (1.0 - projection * projection / weight) * error
        elif float(left @ left) > floor:
            # New, or long forgotten: it begins with what is left of this row.
            weight = float(left @ left)
            direction[:], left = left / sqrt(weight), np.zeros_like(left)
        weights[i] = weight
