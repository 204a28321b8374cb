"""Canaries, and what an adversary who knows all but their tosses sees of them: messages, released numbers, and the best score."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, final

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from eigenveil.audit.case import Trial
from eigenveil.core.accounting import Budget
from eigenveil.core.ledger import Slot
from eigenveil.core.mechanism import Bounded, Calibrated, Exact, Mechanism
from eigenveil.data.rows import DenseRows
from eigenveil.errors import require
from eigenveil.estimators import FederatedPCA
from eigenveil.estimators.federated.parties import Parties, federated_guarantee
from eigenveil.linalg import Array, Subspace
from eigenveil.privacy.guarantee import Guarantee
from eigenveil.privacy.released import pack
from eigenveil.protocols.keys import Identity
from eigenveil.protocols.messages import Ask, Contribution, Message
from eigenveil.protocols.party import Party
from eigenveil.runtimes.local import Faults, LocalStar
from eigenveil.tasks.base import Question, Task

__all__ = [
    "Announced",
    "CanaryPopulation",
    "CrowdKnows",
    "Look",
    "Part",
    "Recorder",
    "StudyBalance",
    "Tap",
    "announced",
    "as_member",
    "enough_people",
    "evened",
    "exact",
    "flip_coins",
    "gram_of",
    "lifted",
    "moved_by_one",
    "require_guarantee",
    "scored",
    "shown",
    "symmetric_noise",
]

# This many people along each axis keep all eigenvalues of a released matrix above zero, so that they are released unclipped.
_LIFT: Final = 400
# Standard deviations. A normal beyond 8 has probability 1e-15.
_FAR: Final = 8.0
# It takes two more runs to see how far a canary moves the releases, so only one run in this many does it. A little is
# subtracted, because another canary may also move slightly with a mean.
_SELDOM: Final = 8
_A_HAIR: Final = 1e-3


def flip_coins(count: int, rng: Generator) -> NDArray[np.bool_]:
    """Which of `count` canaries are present, by one toss of a fair coin for each."""
    return np.asarray(rng.integers(2, size=count), dtype=bool)


def lifted(dim: int, *, length: float, people: int = _LIFT) -> Array:
    """Rows, (people * dim, dim), of norm `length` along every axis: their Gram matrix is far above the noise everywhere."""
    return np.repeat(length * np.eye(dim), people, axis=0)


def gram_of(subspace: Subspace) -> Array:
    """The Gram matrix, (d, d), whose decomposition is a released subspace of full rank."""
    matrix: Array = (subspace.basis * np.square(subspace.values)) @ subspace.basis.T
    return matrix


def enough_people(dim: int, *, deviation: float) -> int:
    """How many rows of norm one along each axis keep a released Gram matrix, (dim, dim), above zero in all directions.

    Entries of the noise have this `deviation` on the diagonal and 1 / sqrt(2) of it off the diagonal. Then its norm is at most
    sqrt(2 dim) deviation on average, and its tail beyond that is a normal's of this deviation (Davidson and Szarek 2001). Above
    zero, a subspace of full rank shows the matrix as it was released. Negative eigenvalues would be set to zero.

    >>> enough_people(8, deviation=1.0)
    13
    """
    return math.ceil(deviation * (math.sqrt(2 * dim) + _FAR)) + 1


def symmetric_noise(residual: Array, *, deviation: float) -> Array:
    """Entries of symmetric noise, (d, d), on and above the diagonal, each in units of the deviation that it should have.

    That is `deviation` on the diagonal, and 1 / sqrt(2) of it off the diagonal.

    >>> symmetric_noise(np.array([[2.0, 1.0], [1.0, 0.0]]), deviation=2.0).round(9).tolist()
    [1.0, 0.0, 0.707106781]
    """
    off_diagonal: Array = residual[np.triu_indices(len(residual), 1)] * math.sqrt(2)
    return np.concatenate([np.diag(residual), off_diagonal]) / deviation


def moved_by_one(
    released: Callable[[NDArray[np.bool_], int], Sequence[Array]], present: NDArray[np.bool_], rng: Generator
) -> float:
    """How far one random canary moves all releases together; zero in the many runs that do not look at it.

    All releases for given tosses and a given seed are `released`, in units of the deviation that was charged. The same seed
    draws the same noise, so runs with the canary and without it differ exactly by what the canary moved,
    whatever it was clipped to, and whatever it should have been clipped to.

    >>> there, rng = np.array([True, False]), np.random.default_rng(0)
    >>> far = [moved_by_one(lambda tossed, seed: [3 * tossed.astype(float)], there, rng) for _ in range(20)]
    >>> sorted({round(one, 3) for one in far})
    [0.0, 2.997]
    """
    # Drawn in every run, used in few: the draws of a run must not depend on whether it looks.
    looked_at, which, seed = int(rng.integers(_SELDOM)), int(rng.integers(present.size)), int(rng.integers(2**31))
    if looked_at > 0:
        return 0.0
    other = present.copy()
    other.flat[which] = not other.flat[which]
    pairs = zip(released(present, seed), released(other, seed), strict=True)
    return (1 - _A_HAIR) * math.hypot(*(float(np.linalg.norm(release - twin)) for release, twin in pairs))


def require_guarantee(guarantee: Guarantee, budget: Budget) -> None:
    """Refuse a result that does not guarantee exactly the budget it was given: the case would test another claim.

    >>> require_guarantee(Guarantee.none("exact PCA was asked for"), Budget(1.0, 1e-6))
    Traceback (most recent call last):
    ...
    ValueError: the claim is (1.0, 1e-06), but the guarantee says (None, None)
    """
    require(
        (guarantee.epsilon, guarantee.delta) == (budget.epsilon, budget.delta),
        f"the claim is ({budget.epsilon}, {budget.delta}), but the guarantee says ({guarantee.epsilon}, {guarantee.delta})",
    )


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Part:
    """What `sender` answered to a `question`, as its receiver sees it."""

    sender: str
    round: int
    question: Question
    arrays: tuple[Array, ...]


@final
class Tap:
    """Keeps every message as it is sent, and passes it on unchanged. Changes in place.

    The `messages` are in the order sent. The case decides who sees which of them.

    >>> from eigenveil import FederatedPCA
    >>> tap = Tap()
    >>> pca = FederatedPCA(1, epsilon=None, method="covariance", center=None, random_state=0, faults=tap.faults())
    >>> _ = pca.fit([np.eye(2) * [3, 1], np.eye(2)])
    >>> [(part.sender, part.arrays[0].tolist()) for part in tap.parts(to="hub", stage="components")]
    [('site 0', [[9.0, 0.0], [0.0, 1.0]]), ('site 1', [[1.0, 0.0], [0.0, 1.0]])]
    """

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def meddle(self, message: Message) -> Iterable[Message]:
        """Keep a message and pass it on. This is what `Faults.meddle` takes."""
        self.messages.append(message)
        return (message,)

    def faults(self, *, dies: Mapping[str, int] | None = None) -> Faults:
        """A network with this tap, in which some parties may stop."""
        return Faults(meddle=self.meddle, dies=dict(dies or {}))

    def questions(self) -> dict[int, Question]:
        """The question of each round, by its number. Questions are public."""
        return {message.body.round: message.body.question for message in self.messages if isinstance(message.body, Ask)}

    def parts(self, *, to: str, by: str | None = None, stage: str | None = None) -> list[Part]:
        """The parts sent `to` a party, of all senders or of one, in all stages of a fit or in one.

        The same numbers sent again, because a question was asked again, count once.
        """
        # A part is read with its question, because what a canary would add depends on the basis that was asked for.
        questions, distinct = self.questions(), list[Part]()
        for message in self.messages:
            if message.receiver != to or by not in (None, message.sender) or not isinstance(message.body, Contribution):
                continue
            part = Part(
                sender=message.sender,
                round=message.body.round,
                question=questions[message.body.round],
                arrays=message.body.arrays,
            )
            if stage in (None, part.question.stage) and not any(_same(part, other) for other in distinct):
                distinct.append(part)
        return distinct


def _same(part: Part, other: Part) -> bool:
    return part.sender == other.sender and all(map(np.array_equal, part.arrays, other.arrays))


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Look:
    """One released array, and what is known of it beforehand."""

    released: Array
    base: Array  # What it would be without noise and without canaries.
    shifts: Array  # How far each of the m canaries moves it, (m, ...).
    scale: float  # The deviation of the noise on each entry that was charged for.
    symmetric: bool = False  # Whether the noise is symmetrised.
    charged: float = math.inf  # The mu charged for it, where that is compared with how far a canary moves it.

    def __post_init__(self) -> None:
        require(
            self.released.shape == self.base.shape == self.shifts.shape[1:],
            f"shapes must agree, got {self.released.shape}, {self.base.shape} and {self.shifts.shape}",
        )
        require(self.scale > 0, f"scale must be positive, got {self.scale}")


def scored(looks: Sequence[Look], present: NDArray[np.bool_]) -> Trial:
    """The trial from all `looks`: for each canary the likelihood ratio, given which others were present.

    Canary shifts are s_t for release t, with noise of deviation sigma_t. The score is sum_t <s_t, rest_t> / sigma_t^2 over
    sum_t ||s_t||^2 / sigma_t^2, where rest_t is the release less base and the other canaries, so scores are around one with the
    canary and around zero without, and half is the best threshold. The releases less everything known are their noise.

    A canary moves everything together by sqrt(sum_t ||s_t||^2 / sigma_t^2). One release may be charged less than a canary moves
    it, and others more, so that the sum does not show it. The charge of all releases that a canary is in is multiplied by
    the worst ratio of movement to charge.

    >>> look = Look(released=np.array([1.0, 5.0]), base=np.zeros(2), shifts=np.eye(2), scale=2.0)
    >>> trial = scored([look], np.array([True, False]))
    >>> trial.scores.tolist(), trial.noise.tolist()
    ([1.0, 5.0], [0.0, 2.5])
    """
    products, squares, noise = np.zeros(len(present)), np.zeros(len(present)), list[Array]()
    paid, worst = np.zeros(len(present)), 0.0
    for look in looks:
        # Everything but noise is known for the tosses as they were.
        left = look.released - look.base - np.tensordot(present.astype(np.float64), look.shifts, axes=1)
        flat = look.shifts.reshape(len(present), -1)
        by = np.square(flat).sum(axis=1) / look.scale**2
        # This holds for symmetric releases too: an entry off the diagonal has half the variance, and is counted twice.
        products += flat @ left.ravel() / look.scale**2
        squares += by
        flat_noise = pack(left, symmetric=look.symmetric)
        noise.append((evened(flat_noise, left.shape) if look.symmetric else flat_noise) / look.scale)
        if math.isfinite(look.charged):
            paid += np.where(by > 0, look.charged**2, 0.0)
            worst = max(worst, math.sqrt(by.max()) / look.charged)
    require(bool((squares > 0).all()), "every canary must move a release that is looked at")
    moved = math.sqrt(max(squares.max(), worst**2 * paid.max()))
    # All canaries were subtracted from the rest. Adding `present` puts each one back for its own score.
    return Trial.of_releases(present + products / squares, present, noise, moved=moved)


def evened(packed: Array, shape: tuple[int, ...]) -> Array:
    """A packed symmetric array, with entries off the diagonal times sqrt(2), where noise is smaller by that. Norms stay the same.

    >>> evened(np.array([1.0, 2.0, 3.0]), (2, 2)).round(3).tolist()
    [1.0, 2.828, 3.0]
    """
    weights = np.full(shape, math.sqrt(2))
    np.fill_diagonal(weights, 1.0)
    even: Array = packed * pack(weights, symmetric=True)
    return even


_KNOWN: Final = Exact(because="the auditor knows all but the tosses")
# Noise on a Gram matrix is at most this many times what it would be if nothing else took a share of the budget.
_SHARES: Final = 2.0
# The norm of a heavy row, in units of the bound.
_HEAVY: Final = 1000.0


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class CanaryPopulation:
    """People at several sites, and canaries: one along each axis for each site, present or not."""

    names: tuple[str, ...]  # Of the sites.
    base: Array  # The people, (people, d), the same at each site.
    rows: Array  # The canaries, (m, d), of norm one, the bound, or for every other one a thousand times that, to be clipped.
    places: NDArray[np.bool_]  # The sites of each canary, (m, sites).
    present: NDArray[np.bool_]  # (m,).
    blank: bool = False  # An absent canary has a blank row, where neighbouring tables are defined so. Otherwise it has none.

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
    ) -> "CanaryPopulation":
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
            present=flip_coins(len(places), rng),
            blank=blank,
        )

    def tables(self) -> dict[str, Array]:
        """The rows of each site: the base, and the canaries that are present."""
        if self.blank:
            rows = np.where(self.present[:, None], self.rows, 0.0)
            return {name: np.vstack([self.base, rows[self.places[:, at]]]) for at, name in enumerate(self.names)}
        return {name: np.vstack([self.base, self.rows[self.present & self.places[:, at]]]) for at, name in enumerate(self.names)}

    def known(self, task: Task[Any, Any, Any], question: Question) -> "CrowdKnows":
        """What is known of each site's answer to a question beforehand."""
        dim = self.rows.shape[1]
        # Canaries are the same at each site.
        each = np.stack([exact(task, question, row[None, :]) for row in self.rows[:dim]])
        base = exact(task, question, self.base)
        # A product with a basis has two dimensions too. Its question carries the basis.
        symmetric = base.ndim == 2 and not any(array.ndim == 2 for array in question.arrays)
        return CrowdKnows(base, np.tile(each, (len(self.rows) // dim, *(1 for _ in base.shape))), symmetric)

    def look(self, knowledge: "CrowdKnows", released: Array, *, sites: Sequence[str], scale: float, far: float = 1.0) -> Look:
        """What was `released` of the sum over these `sites`, under noise of deviation `scale`. One person moves it by `far`."""
        times = self.places[:, [self.names.index(name) for name in sites]].sum(axis=1)
        shifts = knowledge.shifts * times.reshape(-1, *(1 for _ in knowledge.base.shape))
        return Look(
            released=released,
            base=len(sites) * knowledge.base,
            shifts=shifts,
            scale=scale,
            symmetric=knowledge.symmetric,
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
class Recorder(Mechanism):
    """A mechanism that also keeps each value before and after the noise. Changes in place."""

    def __init__(self, mechanism: Mechanism, *, private: list[Array], released: list[Array]) -> None:
        self._mechanism, self._private, self._released = mechanism, private, released

    def release(self, private: Bounded, *, label: str, share: float = 1.0, slot: Slot | None = None) -> Array:
        """As the other mechanism does."""
        self._private.append(private.value)
        public = self._mechanism.release(private, label=label, share=share, slot=slot)
        self._released.append(public)
        return public

    def charged(
        self, sensitivity: float, size: int, *, label: str, share: float = 1.0, slot: Slot | None = None
    ) -> Calibrated | None:
        """As the other mechanism does."""
        return self._mechanism.charged(sensitivity, size, label=label, share=share, slot=slot)

    def scale(self, sensitivity: float, *, share: float = 1.0) -> float:
        """As the other mechanism does."""
        return self._mechanism.scale(sensitivity, share=share)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Announced:
    """A finished fit: its `parties`, what the hub asked and released in each round, and what is guaranteed of it."""

    parties: Parties
    rounds: tuple[tuple[Question, Array], ...]
    guarantee: Guarantee


# Makes the party of a site from the parties, the site's name, its rows, and its identity where there are masks.
StudyBalance = Callable[[Parties, str, DenseRows, Identity | None], Party]


def as_member(parties: Parties, name: str, rows: DenseRows, identity: Identity | None) -> Party:
    """The site's own party."""
    return parties.member(name, rows, identity=identity)


def announced(
    pca: FederatedPCA,
    tables: Mapping[str, Array],
    tap: Tap,
    *,
    dies: Mapping[str, int] | None = None,
    standing: StudyBalance = as_member,
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
    released: list[Array] = []
    through = partial(Recorder, private=[], released=released)
    hub = parties.hub(masking=parties.masking(), watch=None, through=through)
    result = LocalStar(hub, members, faults=tap.faults(dies=dies), seed=pca.random_state).run()
    rounds = tuple(zip(tap.questions().values(), released, strict=True))
    return Announced(parties, rounds, federated_guarantee(parties, result))
