"""The specimen of low bits: noise in floating point, as most libraries add it. The package itself adds noise in whole steps."""

from typing import Final, cast, final

import numpy as np
from numpy.random import Generator

from eigenveil.audit.case import Case, Claim, Trial
from eigenveil.audit.cases.bits import site_parts
from eigenveil.audit.cases.curator_seen import BUDGET
from eigenveil.core.accounting import Budget
from eigenveil.core.ledger import Slot
from eigenveil.core.mechanism import Bounded, Gaussian, Mechanism
from eigenveil.data.rows import DenseRows
from eigenveil.estimators.federated.parties import Parties
from eigenveil.linalg import Array
from eigenveil.linalg.normals import normals
from eigenveil.protocols import Member, Party
from eigenveil.protocols.masked import Identity

__all__ = ["CASES", "FloatingGaussian"]


@final
class FloatingGaussian:
    """Adds normals in floating point: as much noise as `exact`, for the same charge. Changes in place: it draws.

    A symmetric value gets (N + N^T) / 2 with N of independent entries. Every released number is fl(v + fl(s z)).
    """

    def __init__(self, exact: Gaussian) -> None:
        self._exact = exact

    def scale(self, sensitivity: float, *, share: float = 1.0) -> float:
        """As of the exact mechanism, without what rounding to steps adds."""
        return self._exact.scale(sensitivity, share=share)

    def release(self, private: Bounded, *, label: str, share: float = 1.0, slot: Slot | None = None) -> Array:
        """The value and its noise, added as floats. The charge is right, but the guarantee does not hold."""
        # The same charge as the exact mechanism's: only the arithmetic differs.
        self._exact.ledger.spend(np.sqrt(share) / self._exact.multiplier, label=label, slot=slot)
        # From the same source as shipped noise, so that the addition in floating point is the only mistake.
        drawn = normals(self._exact.noise, np.shape(private.value))
        scale = self.scale(private.sensitivity, share=share)
        released: Array = private.value + ((scale / 2) * (drawn + drawn.T) if private.symmetric else scale * drawn)
        return released


def _floating(parties: Parties, name: str, rows: DenseRows, identity: Identity | None) -> Party:
    """The site's own party with another mechanism."""
    member = parties.member(name, rows, identity=identity)
    assert isinstance(member, Member) and isinstance(member._mechanism, Gaussian)
    member._mechanism = cast(Mechanism, FloatingGaussian(member._mechanism))
    return member


def _trial(budget: Budget, rng: Generator, state: int | None) -> Trial:
    return site_parts(budget, rng, state, standing=_floating)


CASES: Final = (
    Case(
        name="wrong/floating-noise",
        kind="specimen",
        about="FederatedPCA(trust='site') with noise in floating point, the last places of each site's matrix and count, seen by "
        "the hub, by an attacker who knows all other rows",
        canary="a row of real numbers, three times the bound, present or not",
        tests=("curve",),
        budget=BUDGET,
        claim=lambda budget: Claim.of(budget, "FederatedPCA's guarantee, if noise were real numbers"),
        trial=_trial,
        quick=60,
        full=600,
        threshold=0.0,
    ),
)
