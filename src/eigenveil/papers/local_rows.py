"""`local_rows_pca`: every row is shared with its own noise, and then any SVD. D-DP-PM section IV.A, "LDP".

It is what a decentralised method has to beat. Nobody is trusted with anything and nothing is added up before it is noisy, so the
noise of n rows accumulates in every direction. Unlike the others here, it is not a `Tracker`: it takes all rows at once.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from eigenveil.core.accounting import Budget
from eigenveil.core.domain import Domain
from eigenveil.core.ledger import Ledger
from eigenveil.core.mechanism import Bounded, Gaussian
from eigenveil.core.noise import Noise, distance_in_steps, step_of
from eigenveil.core.rows import Block
from eigenveil.core.unit import Neighbours, sum_sensitivity
from eigenveil.errors import require
from eigenveil.linalg import Array, Subspace, top_eigen
from eigenveil.privacy.facts import EVERY_ROW, GuaranteeFacts, NoisyRows, Person, TableRows
from eigenveil.privacy.guarantee import Guarantee

__all__ = ["LocalRows", "local_rows_pca"]

# Rows are not multiplied before they are released, so their grid can be this much finer than for products.
_FINE = 2.0**-17


@final
@dataclass(frozen=True, slots=True, eq=False)
class LocalRows:
    """The directions of the noisy rows, the guarantee, and the standard deviation of the noise on every entry."""

    subspace: Subspace
    guarantee: Guarantee
    scale: float


def local_rows_pca(
    peers: Sequence[Array],
    *,
    rank: int,
    row_bound: float,
    budget: Budget,
    noise: Noise,
    neighbours: Neighbours = Neighbours.ZERO_OUT,
    debiased: bool = False,
) -> LocalRows:
    """The top `rank` right singular vectors of `peers`' rows, (n_i, d), each row clipped to `row_bound` and with its own noise.

    Sensitivity. A person is one row of the shared array. Zeros in the place of x move it by ||x|| <= B, another row y by
    ||y - x|| <= 2B. Noise is added by `Gaussian`, to rows in whole steps, with at most a part in 4096 more for rounding. With the
    noise as the paper prints it there is `eigenveil.papers.baselines.LocalRows`.

    The expected Gram matrix of n noisy rows has n scale^2 on its diagonal. With `debiased` that is subtracted; n is public. It
    changes no direction, as M and M - c I have the same eigenvectors in the same order. Only values come closer to those of the
    rows.

    >>> found = local_rows_pca([3 * np.eye(2)], rank=1, row_bound=1.0, budget=Budget(1.0, 1e-5), noise=Noise.seeded(1))
    >>> round(found.scale, 4), found.guarantee.epsilon, found.subspace.basis.shape
    (3.7306, 1.0, (2, 1))
    """
    require(len(peers) > 0, "peers must be at least one, got none")
    peers = [np.asarray(rows, dtype=np.float64) for rows in peers]
    require(peers[0].ndim == 2, f"peer 0 must hold rows, (n, d), got shape {peers[0].shape}")
    require(
        neighbours in (Neighbours.ZERO_OUT, Neighbours.REPLACE_ONE),
        f"neighbours must be zero-out or replace-one, since the number of rows is visible to all; got {neighbours.value!r}",
    )
    domain = Domain(dim=peers[0].shape[1], radius=row_bound)
    require(rank <= domain.dim, f"rank must lie in 1..{domain.dim}, got {rank}")
    require(math.isfinite(row_bound), f"row_bound must be finite, got {row_bound}")
    gram, floor = np.zeros((domain.dim, domain.dim)), 0.0
    sensitivity = sum_sensitivity(row_bound, neighbours)
    scale = sensitivity / budget.mu
    # Only one release is charged: each person's row is at one peer, so charges of different peers do not add up.
    ledger = Ledger(epsilon=budget.epsilon, delta=budget.delta)
    for number, rows in enumerate(peers):
        require(rows.ndim == 2 and rows.shape[1] == domain.dim, f"peer {number} must hold rows of {domain.dim} columns")
        ledger = Ledger(epsilon=budget.epsilon, delta=budget.delta)
        mechanism = Gaussian(multiplier=scale / sensitivity, ledger=ledger, noise=noise)
        noisy = mechanism.release(Bounded(_on_grid(rows, domain), sensitivity), label="every row")
        gram += noisy.T @ noisy
        step = step_of(sensitivity, rows.size, multiplier=scale / sensitivity)
        # The noise as it was drawn, with what rounding added to the sensitivity, and not the nominal scale.
        floor += len(rows) * (distance_in_steps(sensitivity, rows.size, step) * step * scale / sensitivity) ** 2
    values, vectors = top_eigen(gram, rank=rank)
    floor = floor if debiased else 0.0
    guarantee = _guarantee(budget, neighbours, row_bound, ledger, reproducible=noise.reproducible)
    return LocalRows(Subspace(vectors, np.sqrt(np.maximum(values - floor, 0.0))), guarantee, scale)


def _on_grid(rows: Array, domain: Domain) -> Array:
    """The rows, (n, d), each clipped and rounded onto its grid by itself: norms are at most the bound, exactly."""
    assert domain.unit is not None
    unit = domain.unit * _FINE
    return domain.whole(Block(rows), unit=unit) * unit


def _guarantee(budget: Budget, neighbours: Neighbours, row_bound: float, ledger: Ledger, *, reproducible: bool) -> Guarantee:
    return GuaranteeFacts(
        budget=budget,
        protects=Person(source="peer"),
        neighbours=neighbours,
        rows=TableRows(norm=row_bound, around="zero"),
        seen_by=NoisyRows(),
        released=EVERY_ROW,
        charges=ledger.charges,
        reproducible=reproducible,
    ).guarantee()
