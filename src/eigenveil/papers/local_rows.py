"""`local_rows_pca`: every row with noise of its own, shared with everybody, and then any SVD. D-DP-PM section IV.A, "LDP".

It is what a decentralised method has to beat: nobody is trusted with anything, nothing is added up before it is noisy, and so
the noise of n rows meets in every direction. Not a `Tracker`, unlike the others here: it takes all rows at once.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

import numpy as np

from eigenveil.data.rows import Block
from eigenveil.errors import require
from eigenveil.linalg import Array, Subspace, top_eigen
from eigenveil.papers.noise_scales import classical_multiplier
from eigenveil.privacy import Bounded, Budget, Domain, Gaussian, Guarantee, Ledger, Neighbours, Noise, sum_sensitivity
from eigenveil.privacy.facts import EVERY_ROW, GuaranteeFacts, NoisyRows, Person, TableRows, unproven
from eigenveil.privacy.noise.steps import distance_in_steps, step_of

__all__ = ["LocalRows", "local_rows_pca"]

# Rows are not multiplied before they are released, so that their grid can be this much finer than that of products.
_FINE = 2.0**-17


@final
@dataclass(frozen=True, slots=True, eq=False)
class LocalRows:
    """The directions of the noisy rows, what was guaranteed, and the standard deviation of the noise on every entry."""

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
    calibration: Literal["exact", "paper"] = "exact",
    debiased: bool = False,
) -> LocalRows:
    """The top `rank` right singular vectors of `peers`' rows, (n_i, d), each row cut to `row_bound` and with noise of its own.

    Sensitivity. A person is one row of all that is shared: zeros in the place of x move it by ||x|| <= B, another row y by
    ||y - x|| <= 2B. "paper" has deviation sqrt(2 ln(1.25/delta)) / epsilon, as printed: proved for epsilon < 1 and for rows
    that move by one, and used beyond both, so it comes with no guarantee. Either is added as `Gaussian` adds it, to rows in whole
    steps, with a part in 4096 more at most for the rounding.

    The Gram matrix of n noisy rows has n scale^2 on its diagonal in the mean. `debiased` takes that off, n being public. It
    changes no direction, as M and M - c I have the same eigenvectors in the same order; only values get nearer to those of
    the rows.

    >>> found = local_rows_pca([3 * np.eye(2)], rank=1, row_bound=1.0, budget=Budget(1.0, 1e-5), noise=Noise.seeded(1))
    >>> round(found.scale, 4), found.guarantee.epsilon, found.subspace.basis.shape
    (3.7306, 1.0, (2, 1))
    """
    require(len(peers) > 0, "peers must be at least one, got none")
    peers = [np.asarray(rows, dtype=np.float64) for rows in peers]
    require(peers[0].ndim == 2, f"peer 0 must hold rows, (n, d), got shape {peers[0].shape}")
    require(
        neighbours in (Neighbours.ZERO_OUT, Neighbours.REPLACE_ONE),
        f"neighbours must be zero-out or replace-one, since everybody sees how many rows there are; got {neighbours.value!r}",
    )
    require(calibration in ("exact", "paper"), f"calibration must be 'exact' or 'paper', got {calibration!r}")
    domain = Domain(dim=peers[0].shape[1], radius=row_bound)
    require(rank <= domain.dim, f"rank must lie in 1..{domain.dim}, got {rank}")
    require(math.isfinite(row_bound), f"row_bound must be finite, got {row_bound}")
    gram, floor = np.zeros((domain.dim, domain.dim)), 0.0
    sensitivity = sum_sensitivity(row_bound, neighbours)
    printed = calibration == "paper"
    scale = classical_multiplier(budget) if printed else sensitivity / budget.mu
    # Nothing but the one release is charged: each person's row is at one peer, so peers' ledgers do not add up.
    ledger = _ledger(budget, printed=printed)
    for number, rows in enumerate(peers):
        require(rows.ndim == 2 and rows.shape[1] == domain.dim, f"peer {number} must hold rows of {domain.dim} columns")
        ledger = _ledger(budget, printed=printed)
        mechanism = Gaussian(scale / sensitivity, ledger, noise)
        noisy = mechanism.release(Bounded(_on_grid(rows, domain), sensitivity), label="every row")
        gram += noisy.T @ noisy
        step = step_of(sensitivity, rows.size, multiplier=scale / sensitivity)
        floor += len(rows) * (distance_in_steps(sensitivity, rows.size, step) * step * scale / sensitivity) ** 2
    values, vectors = top_eigen(gram, rank=rank)
    floor = floor if debiased else 0.0
    guarantee = (
        Guarantee.none(_as_printed(budget))
        if printed
        else _guarantee(budget, neighbours, row_bound, ledger, reproducible=noise.reproducible)
    )
    return LocalRows(Subspace(vectors, np.sqrt(np.maximum(values - floor, 0.0))), guarantee, scale)


def _ledger(budget: Budget, *, printed: bool) -> Ledger:
    """What a peer charges: the budget, or no limit where the noise is as printed and nothing is guaranteed."""
    return Ledger(epsilon=math.inf if printed else budget.epsilon, delta=budget.delta)


def _on_grid(rows: Array, domain: Domain) -> Array:
    """The rows, (n, d), in their ball, each brought into it and onto its grid by itself: norms are at most the bound, exactly."""
    assert domain.unit is not None
    unit = domain.unit * _FINE
    return domain.whole(Block(rows), unit=unit) * unit


def _guarantee(
    budget: Budget, neighbours: Neighbours, row_bound: float, ledger: Ledger, *, reproducible: bool
) -> Guarantee:
    return GuaranteeFacts(
        budget=budget,
        protects=Person(place="peer"),
        neighbours=neighbours,
        rows=TableRows(norm=row_bound, around="zero"),
        seen_by=NoisyRows(),
        released=EVERY_ROW,
        charges=ledger.charges,
        reproducible=reproducible,
    ).guarantee()


def _as_printed(budget: Budget) -> str:
    because = "it is proved for epsilon < 1 only, and for rows that one person moves by at most one"
    return unproven("D-DP-PM section IV.A", [("every peer", budget)], [because])
