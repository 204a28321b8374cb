"""`Crowd`: canaries spread over sites, and what an adversary who knows all but their tosses knows of each release.

`announced` runs the parties of a federated fit and keeps what the hub publishes, where messages alone do not show it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, final

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from eigenveil.audit.cases.canaries import enough_people, gram_of, lifted, tossed
from eigenveil.audit.cases.messages import Look, Tap
from eigenveil.core.ledger import Slot
from eigenveil.core.mechanism import Bounded, Calibrated, Exact, Mechanism
from eigenveil.data.rows import DenseRows
from eigenveil.estimators import FederatedPCA
from eigenveil.estimators.federated.guarantee import federated_guarantee
from eigenveil.estimators.federated.parties import Parties
from eigenveil.linalg import Array, Subspace
from eigenveil.privacy import Guarantee
from eigenveil.protocols import Party
from eigenveil.protocols.masked import Identity
from eigenveil.runtimes import LocalStar
from eigenveil.tasks import Question, Task

__all__ = ["Announced", "Crowd", "CrowdKnows", "Standing", "announced", "as_member", "exact", "shown"]

_KNOWN: Final = Exact(because="the auditor knows all but the tosses")
# Noise on a Gram matrix is at most this many times what it would be if nothing else took a share of the budget.
_SHARES: Final = 2.0
# The norm of a heavy row, in units of the bound.
_HEAVY: Final = 1000.0


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Crowd:
    """People at `names`, (people, d) the same `base` at each, and canaries: one along each axis for each site, present or not.

    Their `rows`, (m, d), have norm one, the bound, or for every other one a thousand times that, to be clipped. Each is at the
    sites in `places`, (m, sites), and is present or not by `present`, (m,). An absent canary has no row, or a `blank` one where
    neighbouring tables are defined so.
    """

    names: tuple[str, ...]
    base: Array
    rows: Array
    places: NDArray[np.bool_]
    present: NDArray[np.bool_]
    blank: bool = False

    @classmethod
    def of(
        cls,
        names: Sequence[str],
        *,
        dim: int,
        mu: float,
        rng: Generator,
        at: Sequence[str] | None = None,
        several: int = 1,
        blank: bool = False,
    ) -> "Crowd":
        """Canaries of each of the sites `at`, all sites unless given; they are also at the sites after it, `several` in all.

        The number of people keeps a site's Gram matrix above zero under the noise for `mu`.
        """
        count, homes = len(names), [list(names).index(name) for name in (names if at is None else at)]
        half = lifted(dim, length=1.0, people=math.ceil(enough_people(dim, deviation=_SHARES / mu) / 2))
        lengths = np.where(np.arange(dim) % 2 == 1, _HEAVY, 1.0)
        places = np.zeros((len(homes) * dim, count), dtype=bool)
        for step in range(several):
            # Home site and the next ones on the roster, so that each person is at `several` sites.
            places[np.arange(len(places)), (np.repeat(homes, dim) + step) % count] = True
        return cls(
            names=tuple(names),
            # In both directions along each axis, so that the mean is zero.
            base=np.vstack([half, -half]),
            rows=np.tile(lengths[:, None] * np.eye(dim), (len(homes), 1)),
            places=places,
            present=tossed(len(places), rng),
            blank=blank,
        )

    def tables(self) -> dict[str, Array]:
        """The rows of each site: the base, and the canaries that are present."""
        if self.blank:
            rows = np.where(self.present[:, None], self.rows, 0.0)
            return {name: np.vstack([self.base, rows[self.places[:, at]]]) for at, name in enumerate(self.names)}
        return {
            name: np.vstack([self.base, self.rows[self.present & self.places[:, at]]])
            for at, name in enumerate(self.names)
        }

    def known(self, task: Task[Any, Any, Any], question: Question) -> "CrowdKnows":
        """What is known of each site's answer to a question beforehand."""
        dim = self.rows.shape[1]
        # Canaries are the same at each site.
        each = np.stack([exact(task, question, row[None, :]) for row in self.rows[:dim]])
        base = exact(task, question, self.base)
        # A product with a basis has two dimensions too. Its question carries the basis.
        symmetric = base.ndim == 2 and not any(array.ndim == 2 for array in question.arrays)
        return CrowdKnows(base, np.tile(each, (len(self.rows) // dim, *(1 for _ in base.shape))), symmetric)

    def look(
        self, known: "CrowdKnows", released: Array, *, sites: Sequence[str], scale: float, far: float = 1.0
    ) -> Look:
        """What was `released` of the sum over these `sites`, under noise of deviation `scale`. One person moves it by `far`."""
        times = self.places[:, [self.names.index(name) for name in sites]].sum(axis=1)
        shifts = known.shifts * times.reshape(-1, *(1 for _ in known.base.shape))
        return Look(
            released=released,
            base=len(sites) * known.base,
            shifts=shifts,
            scale=scale,
            symmetric=known.symmetric,
            charged=far / scale,
        )


@final
@dataclass(frozen=True, slots=True, eq=False)
class CrowdKnows:
    """A site's answer without canaries and noise, `base`, and how far each canary moves it where it has a row, `shifts`."""

    base: Array
    shifts: Array
    symmetric: bool


def exact(task: Task[Any, Any, Any], question: Question, rows: Array) -> Array:
    """The contribution of `rows`, (n, d), to this round, without noise."""
    return shown(task.arrays(task.work(question, DenseRows(rows), _KNOWN)))


def shown(arrays: tuple[Array, ...]) -> Array:
    """A part as one array: directions with their values become the Gram matrix of which they are the decomposition."""
    return gram_of(Subspace(arrays[0], arrays[1])) if len(arrays) == 3 else arrays[0]


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Listened(Mechanism):
    """A mechanism that also keeps what it `released`. Changes in place."""

    whole: Mechanism
    released: list[Array] = field(default_factory=list)

    def release(self, private: Bounded, *, label: str, share: float = 1.0, slot: Slot | None = None) -> Array:
        public = self.whole.release(private, label=label, share=share, slot=slot)
        self.released.append(public)
        return public

    def charged(
        self, sensitivity: float, size: int, *, label: str, share: float = 1.0, slot: Slot | None = None
    ) -> Calibrated | None:
        return self.whole.charged(sensitivity, size, label=label, share=share, slot=slot)

    def scale(self, sensitivity: float, *, share: float = 1.0) -> float:
        return self.whole.scale(sensitivity, share=share)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Announced:
    """A finished fit: its `parties`, what the hub asked and released in each round, and what is guaranteed of it."""

    parties: Parties
    rounds: tuple[tuple[Question, Array], ...]
    guarantee: Guarantee


# Makes the party of a site from the parties, the site's name, its rows, and its identity where there are masks.
Standing = Callable[[Parties, str, DenseRows, Identity | None], Party]


def as_member(parties: Parties, name: str, rows: DenseRows, identity: Identity | None) -> Party:
    """The site's own party."""
    return parties.member(name, rows, identity=identity)


def announced(
    pca: FederatedPCA,
    tables: Mapping[str, Array],
    tap: Tap,
    *,
    dies: Mapping[str, int] | None = None,
    standing: Standing = as_member,
) -> Announced:
    """Run the fit of `pca` with its own parties, as separate sites do, and keep what its hub releases.

    Another party can take the place of a site by `standing`.
    """
    names, dim = tuple(tables), next(iter(tables.values())).shape[1]
    masked = pca.trust == "masked"
    identities = {name: Identity.fresh() if masked else None for name in names}
    roster = {name: identity.public for name, identity in identities.items() if identity is not None}
    # The number of rows is given here, but a fit that protects the number of people does not use it.
    sizes = {name: float(len(rows)) for name, rows in tables.items()}
    parties = Parties(pca.request_for(dim=dim, sites=names, sizes=sizes), names, roster=roster)
    members = [standing(parties, name, DenseRows(rows), identities[name]) for name, rows in tables.items()]
    listened: list[_Listened] = []

    def through(mechanism: Mechanism) -> Mechanism:
        listened.append(_Listened(mechanism))
        return listened[0]

    hub = parties.hub(masking=parties.masking(), watch=None, through=through)
    found = LocalStar(hub, members, faults=tap.faults(dies=dies), seed=pca.random_state).run()
    rounds = tuple(zip(tap.questions().values(), listened[0].released, strict=True))
    return Announced(parties, rounds, federated_guarantee(parties, found))
