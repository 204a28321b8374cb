"""Specimens around a hub, known to be wrong: FedPower with local steps as published, and masks with a missing share of noise.

Each is the smallest change to a shipped fit. An audit that does not refute it is blind.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any, Final, cast

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from eigenveil.audit.case import Case, Claim, Trial
from eigenveil.audit.cases.canaries import tossed
from eigenveil.audit.cases.masked import BUDGET, claim_under_masks, seen_by_hub_and_colluder
from eigenveil.audit.cases.messages import Tap
from eigenveil.core.accounting import Budget
from eigenveil.core.mechanism import Exact
from eigenveil.core.noise import Noise
from eigenveil.data.rows import Symmetric
from eigenveil.estimators import FederatedPCA
from eigenveil.linalg import Array
from eigenveil.tasks import Question, Task

__all__ = ["CASES", "published_fedpower"]

# FedPower's own neighbours: Gram matrices that differ by one in one entry, here on the diagonal of a multiple of the identity.
# With this many columns and directions, one local step as published keeps the guarantee for such an entry; four do not.
_DIM, _RANK, _LEVEL, _ENTRIES = 32, 10, 400.0, 10
_KNOWN: Final = Exact(because="the auditor knows all but the tosses")
# One round, in which the number of people is public.
_MASKED: Final[dict[str, Any]] = {"method": "covariance", "neighbours": "zero-out"}


def _published(budget: Budget, state: int | None, *, steps: int) -> FederatedPCA:
    """FedPower with the noise of the paper, at the sites, in one round."""
    return FederatedPCA(
        _RANK,
        epsilon=budget.epsilon,
        delta=budget.delta,
        method="fedpower",
        calibration="paper",
        trust="site",
        rounds=1,
        local_steps=steps,
        oversample=0,
        center=None,
        random_state=state,
    )


def _matrix(there: NDArray[np.bool_]) -> Symmetric:
    """The Gram matrix of a site whose first diagonal entries are larger by one, or not."""
    return Symmetric(np.diag(_LEVEL + np.pad(there.astype(np.float64), (0, _DIM - _ENTRIES))), people=1)


@lru_cache(maxsize=8)
def _task(steps: int) -> Task[Any, Any, Any]:
    # The task depends on public settings alone, so any site's matrix will do to prepare it.
    nobody = _matrix(np.zeros(_ENTRIES, dtype=bool))
    return _published(Budget(1.0, 1e-5), 0, steps=steps).prepare([nobody]).study


def _answer(steps: int, question: Question, there: NDArray[np.bool_]) -> Array:
    """What the site would send, without noise."""
    task = _task(steps)
    return task.arrays(task.work(question, _matrix(there), _KNOWN))[0]


def published_fedpower(budget: Budget, rng: Generator, state: int | None, *, steps: int) -> Trial:
    """What a site sends after its local `steps`, against what it would send with and without one more in an entry.

    The score is how far the answer lies on the line from one to the other.
    """
    # Several entries at once are several trials for the price of one fit.
    present, tap = tossed(_ENTRIES, rng), Tap()
    pca = _published(budget, state, steps=steps)
    pca.faults = tap.faults()
    pca.fit([_matrix(present)])
    (part,) = tap.parts(to="hub", stage="components")
    here, scores = _answer(steps, part.question, present), np.empty(_ENTRIES)
    for entry in range(_ENTRIES):
        flipped = present.copy()
        flipped[entry] = not flipped[entry]
        far = here - _answer(steps, part.question, flipped)
        # The answer's place on the line between the two, with the noise across it left out.
        way = np.vdot(far, part.arrays[0] - here) / np.vdot(far, far)
        scores[entry] = 1 + way if present[entry] else -way
    return Trial(scores=scores, present=present)


def _theorem(budget: Budget) -> Claim:
    return Claim.of(budget, "FedPower's Theorem 4, for one entry of a Gram matrix")


class _Silent:
    """Replaces a `Noise`: every word is zero, and so is every whole number drawn from it."""

    def words(self, count: int) -> NDArray[np.uint64]:
        return np.zeros(count, dtype=np.uint64)

    @contextmanager
    def batch(self) -> Iterator[Callable[[int], NDArray[np.uint64]]]:
        yield self.words


def _missing_share(budget: Budget, rng: Generator, state: int | None, *, sites: int) -> Trial:
    """`masked/covariance`, except that the last site, which is honest, adds no noise."""
    silent = {f"site {sites - 1}": cast("Noise", _Silent())}
    return seen_by_hub_and_colluder(budget, rng, state, sites=sites, sources=silent, **_MASKED)


CASES: Final = (
    Case(
        name="wrong/fedpower-4-steps",
        kind="specimen",
        about="FedPower with 4 local steps, noise as published, what a site sends, seen by the hub",
        canary="one in an entry on the diagonal of a site's Gram matrix, present or not: FedPower's own neighbours",
        tests=("curve",),
        budget=Budget(1.0, 1e-5),
        claim=_theorem,
        trial=partial(published_fedpower, steps=4),
        quick=260,
        full=2600,
        threshold=0.5,
    ),
    Case(
        name="wrong/missing-share",
        kind="specimen",
        about="masked sums over 3 sites, one of which adds no noise, seen by the hub and another of the sites",
        canary="a row along each axis at the honest site that adds its noise, present or blank",
        tests=("curve", "noise"),
        budget=BUDGET,
        claim=claim_under_masks,
        trial=partial(_missing_share, sites=3),
        quick=60,
        full=2600,
        threshold=0.5,
    ),
    Case(
        name="wrong/missing-only-share",
        kind="specimen",
        about="masked sums over 2 sites, the honest one of which adds no noise, seen by the hub and the other site",
        canary="a row along each axis at the honest site, present or blank",
        tests=("rates",),
        budget=Budget(1.0, 1e-3),
        claim=claim_under_masks,
        trial=partial(_missing_share, sites=2),
        quick=100,
        full=1000,
        threshold=0.5,
    ),
)
