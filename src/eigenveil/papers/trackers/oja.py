"""`Oja`: stochastic gradient ascent on the captured energy, one row at a time, on an orthonormal basis.

The step is in units of the energy captured so far, so it does not depend on the scale of the rows.
"""

from dataclasses import dataclass
from math import inf, sqrt
from typing import Any, final

import numpy as np

from eigenveil.core.mechanism import Mechanism
from eigenveil.errors import require
from eigenveil.linalg import Array, Subspace, orthonormal
from eigenveil.papers.trackers.edges import REPAIR, admit, nothing, read_only, require_rank, start_basis
from eigenveil.trackers import Tracker, require_exact

__all__ = ["Oja", "OjaState"]


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

    The error falls like t^-(rate * gap / mean eigenvalue). So a rate below 2 is slow where eigenvalues differ much. A rate
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
