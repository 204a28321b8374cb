"""What others see of a run, messages in transit (`Tap`) and released numbers (`Look`), and the best score from them.

Nothing tells more about a Gaussian release than its likelihood ratio. `scored` computes it for each canary, for an adversary who
knows everything but whether that canary was present.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from eigenveil.audit.case import Trial
from eigenveil.errors import require
from eigenveil.linalg import Array
from eigenveil.privacy.packed import pack
from eigenveil.protocols import Ask, Give, Message
from eigenveil.runtimes import Faults
from eigenveil.tasks import Question

__all__ = ["Look", "Part", "Tap", "evened", "scored"]


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

    def carry(self, message: Message) -> Iterable[Message]:
        """Keep a message and pass it on. This is what `Faults.meddle` takes."""
        self.messages.append(message)
        return (message,)

    def faults(self, *, dies: Mapping[str, int] | None = None) -> Faults:
        """A network with this tap, in which some parties may stop."""
        return Faults(meddle=self.carry, dies=dict(dies or {}))

    def questions(self) -> dict[int, Question]:
        """The question of each round, by its number. Questions are public."""
        return {message.body.round: message.body.question for message in self.messages if isinstance(message.body, Ask)}

    def parts(self, *, to: str, by: str | None = None, stage: str | None = None) -> list[Part]:
        """The parts sent `to` a party, of all senders or of one, in all stages of a fit or in one.

        The same numbers sent again, because a question was asked again, count once.
        """
        # A part is read with its question, because what a canary would add depends on the basis that was asked for.
        asked, found = self.questions(), list[Part]()
        for message in self.messages:
            if message.receiver != to or by not in (None, message.sender) or not isinstance(message.body, Give):
                continue
            part = Part(
                sender=message.sender,
                round=message.body.round,
                question=asked[message.body.round],
                arrays=message.body.arrays,
            )
            if stage in (None, part.question.stage) and not any(_same(part, other) for other in found):
                found.append(part)
        return found


def _same(one: Part, other: Part) -> bool:
    return one.sender == other.sender and all(map(np.array_equal, one.arrays, other.arrays))


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Look:
    """One released array, `released`, and what is known of it beforehand.

    Without noise and without canaries it would be `base`. Each of the m canaries moves it by its entry of `shifts`, (m, ...). The
    noise charged for has the deviation `scale` on each entry; `symmetric` says that it is symmetrised. The mu charged for it is
    `charged`, where that is compared with how far a canary moves it.
    """

    released: Array
    base: Array
    shifts: Array
    scale: float
    symmetric: bool = False
    charged: float = math.inf

    def __post_init__(self) -> None:
        require(
            self.released.shape == self.base.shape == self.shifts.shape[1:],
            f"shapes must agree, got {self.released.shape}, {self.base.shape} and {self.shifts.shape}",
        )
        require(self.scale > 0, f"scale must be positive, got {self.scale}")


def scored(looks: Sequence[Look], present: NDArray[np.bool_]) -> Trial:
    """The trial from all `looks`: for each canary the likelihood ratio, given which others were present.

    Canary shifts are s_t for release t, with noise of deviation sigma_t. The score is sum_t <s_t, rest_t> / sigma_t^2 over
    sum_t ||s_t||^2 / sigma_t^2, where rest_t is the release less base and the other canaries. So scores are around one with the
    canary and around zero without, and half is the best threshold. The releases less everything known are their noise.

    A canary moves everything together by sqrt(sum_t ||s_t||^2 / sigma_t^2). One release may be charged less than a canary moves
    it, and others more, so that the sum does not show it. So the charge of all releases that a canary is in is multiplied by
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
    return Trial(
        scores=present + products / squares,
        present=present,
        noise=np.concatenate(noise),
        parts=tuple(map(len, noise)),
        moved=moved,
    )


def evened(packed: Array, shape: tuple[int, ...]) -> Array:
    """A packed symmetric array, with entries off the diagonal times sqrt(2), where noise is smaller by that. Norms stay the same.

    >>> evened(np.array([1.0, 2.0, 3.0]), (2, 2)).round(3).tolist()
    [1.0, 2.828, 3.0]
    """
    weights = np.full(shape, math.sqrt(2))
    np.fill_diagonal(weights, 1.0)
    even: Array = packed * pack(weights, symmetric=True)
    return even
