"""`Oja` and `Grouse`: one update of an orthonormal basis for each row.

Oja's rule is stochastic gradient ascent on the captured energy. Its step is in units of the energy captured so far and does not
depend on the scale of the rows. GROUSE rotates the subspace towards the part of the row that it misses. It uses the observed
entries of a row, and was designed for rows with most entries missing.
"""

from dataclasses import dataclass
from math import inf, pi, sqrt
from typing import Any, final

import numpy as np

from eigenveil.core.mechanism import Mechanism
from eigenveil.errors import require
from eigenveil.linalg import Array, Subspace, orthonormal
from eigenveil.papers.trackers.edges import REPAIR, admit, nothing, read_only, require_rank, start_basis
from eigenveil.trackers import Tracker, require_exact

__all__ = ["Grouse", "GrouseState", "Oja", "OjaState"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class OjaState:
    """The `basis`, (d, k), the sum of squares `captured` by it row after row, and the number of rows that moved it."""

    basis: Array
    captured: float
    n_rows: int


@final
@dataclass(frozen=True, slots=True)
class Oja(Tracker[OjaState]):
    """Oja's rule, Q <- orthonormal(Q + eta x x^T Q): Oja and Karhunen (1985), the stochastic gradient ascent method.

    The step at the t-th row is eta = rate * k / sum of |Q^T x|^2 over the rows up to t, each with the basis of its time. That is
    about rate / (t * mean of the top k eigenvalues): the 1 / t decay under which the rule converges, free of scale.

    The error falls like t^-(rate * gap / mean eigenvalue), so a rate below 2 is slow where eigenvalues differ much. A rate
    above 4 is too noisy where they hardly stand out (400 columns, 4000 rows, spiked and power-law spectra). Dividing by the
    energy of the whole rows instead would shrink steps by the share of noise in them. No values are estimated, and directions
    are in no order.

    >>> from eigenveil.trackers import NOTHING_ASKED
    >>> tracker = Oja(rank=1)
    >>> state = tracker.step(tracker.start(2), np.tile([[3.0, 4.0]], (50, 1)), NOTHING_ASKED)
    >>> np.abs(tracker.subspace(state).basis).ravel().round(2).tolist()
    [0.6, 0.8]
    """

    rank: int
    rate: float = 3.0
    seed: int = 0

    def __post_init__(self) -> None:
        require_rank(self.rank)
        require(0 < self.rate < inf, f"rate must be positive and finite, got {self.rate}")

    def start(self, dim: int) -> OjaState:
        """A random basis."""
        require_rank(self.rank, dim)
        return OjaState(start_basis(dim, rank=self.rank, seed=self.seed), 0.0, 0)

    def step(self, state: OjaState, rows: Any, mechanism: Mechanism) -> OjaState:
        """One update per row. A row orthogonal to the basis, such as zero, changes nothing."""
        require_exact(mechanism, "Oja")
        numbers = admit(rows, len(state.basis))
        basis, captured, n_rows = state.basis.copy(), state.captured, state.n_rows
        for row in numbers:
            coordinates = row @ basis
            energy = float(coordinates @ coordinates)
            if energy == 0.0:
                continue
            # Before the step, so that the first row cannot divide by zero.
            captured += energy
            n_rows += 1
            _move(basis, row, coordinates / sqrt(energy), sqrt(energy), self.rate * self.rank / captured)
            if n_rows % REPAIR == 0:
                basis = orthonormal(basis)
        return OjaState(read_only(basis), captured, n_rows)

    def subspace(self, state: OjaState) -> Subspace:
        """The basis, with values zero."""
        return Subspace(state.basis, np.zeros(self.rank)) if state.n_rows > 0 else nothing(len(state.basis))


def _move(basis: Array, row: Array, unit: Array, size: float, eta: float) -> None:
    """Q <- (Q + eta x y^T) M^(-1/2), with y = Q^T x = `size` * `unit` and M = I + (2 eta + eta^2 |x|^2) y y^T. Changes `basis`.

    M is the Gram matrix of the new columns, so the result is orthonormal and has the span that QR would give. As M differs from
    the identity in one direction only, this is one rank-one update.
    """
    # M has one eigenvalue other than one, 1 + (2 eta + eta^2 |x|^2) |y|^2, and `shrink` is its inverse root.
    gain = eta * size * size
    shrink = 1.0 / sqrt(1.0 + 2.0 * gain + gain * (eta * float(row @ row)))
    towards = (shrink * eta * size) * row + (shrink - 1.0) * (basis @ unit)
    basis += towards[:, None] * unit


@final
@dataclass(frozen=True, slots=True, eq=False)
class GrouseState:
    """The `basis`, (d, k), and the number of rows it has `n_rows`, at least in part."""

    basis: Array
    n_rows: int


@final
@dataclass(frozen=True, slots=True)
class Grouse(Tracker[GrouseState]):
    """Grassmannian rank-one updates: Balzano, Nowak and Recht (2010), Algorithm 1. NaN marks an entry that was not observed.

    With w the least squares fit of the observed entries of a row, p = U w and r the residual there, zero elsewhere,

        U <- U + ((cos(a) - 1) p / |p| + sin(a) r / |r|) w^T / |w|.

    Without a `step` the angle is a = arctan(|r| / |p|), the greedy step of Zhang and Balzano (2016). It needs no tuning and does
    not depend on the scale of the rows. Near the solution it is the sin(a) = |r| / |p| of Balzano and Wright (2013). It rotates
    every row fully into the span, so under noise it keeps moving.

    With a `step` c, a = (c / t) |r| |p| at the t-th row, and a step of a right angle or more is skipped. That is the rule of the
    authors' program, for which FPCA (supplement, D) uses c = 2. It depends on the scale. No values are estimated, and directions
    are in no order.

    >>> from eigenveil.trackers import NOTHING_ASKED
    >>> tracker = Grouse(rank=1)
    >>> state = tracker.step(tracker.start(2), np.array([[3.0, 4.0], [np.nan, 4.0]]), NOTHING_ASKED)
    >>> np.abs(tracker.subspace(state).basis).ravel().round(12).tolist()
    [0.6, 0.8]
    """

    rank: int
    step_size: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        require_rank(self.rank)
        require(
            self.step_size is None or 0 < self.step_size < inf,
            f"step_size must be positive and finite, or None for the greedy step, got {self.step_size}",
        )

    def start(self, dim: int) -> GrouseState:
        """A random basis."""
        require_rank(self.rank, dim)
        return GrouseState(start_basis(dim, rank=self.rank, seed=self.seed), 0)

    def step(self, state: GrouseState, rows: Any, mechanism: Mechanism) -> GrouseState:
        """One rotation per row. A row without an observed entry, or all zero, changes nothing."""
        require_exact(mechanism, "Grouse")
        numbers = admit(rows, len(state.basis), gaps=True)
        basis, n_rows = state.basis.copy(), state.n_rows
        for row, gaps in zip(numbers, np.any(np.isnan(numbers), axis=1).tolist(), strict=True):
            weights, residual = _fit_observed(basis, row) if gaps else _fit(basis, row)
            size, left = float(np.linalg.norm(weights)), float(np.linalg.norm(residual))
            # The row has no direction in the span to rotate, and the formula divides by this norm.
            if size == 0.0:
                continue
            n_rows += 1
            _rotate(basis, weights / size, residual, left, self._angle(size, left, n_rows))
            # Steps that are not greedy can overshoot, row after row, and rounding errors grow with them.
            if n_rows % REPAIR == 0 or self.step_size is not None:
                basis = orthonormal(basis)
        return GrouseState(read_only(basis), n_rows)

    def subspace(self, state: GrouseState) -> Subspace:
        """The basis, with values zero."""
        return Subspace(state.basis, np.zeros(self.rank)) if state.n_rows > 0 else nothing(len(state.basis))

    def _angle(self, size: float, left: float, n_rows: int) -> float:
        if self.step_size is None:
            return float(np.arctan2(left, size))
        angle = self.step_size / n_rows * left * size
        return angle if angle < pi / 2 else 0.0


def _fit(basis: Array, row: Array) -> tuple[Array, Array]:
    """Weights, (k,), and residual, (d,), of a whole row."""
    weights = row @ basis
    return weights, row - basis @ weights


def _fit_observed(basis: Array, row: Array) -> tuple[Array, Array]:
    """Weights, (k,), and residual, (d,), of the observed entries: least squares, of least norm if they are too few."""
    observed = ~np.isnan(row)
    part, entries = basis[observed], row[observed]
    weights = np.asarray(np.linalg.lstsq(part, entries, rcond=None)[0], dtype=np.float64)
    residual = np.zeros_like(row)
    residual[observed] = entries - part @ weights
    return weights, residual


def _rotate(basis: Array, unit: Array, residual: Array, left: float, angle: float) -> None:
    """Rotate the direction basis @ `unit` by `angle` towards `residual`, of norm `left`. Changes `basis`."""
    if left > 0.0 and angle > 0.0:
        towards = (np.cos(angle) - 1.0) * (basis @ unit) + (np.sin(angle) / left) * residual
        basis += towards[:, None] * unit
