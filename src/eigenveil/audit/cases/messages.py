"""What others see of a run: messages on its way (`Tap`), numbers as they were released (`Look`); and the best score from them.

Of a Gaussian release nobody can tell more than the likelihood ratio does. `scored` computes it for each canary, as one who
knows everything but whether that canary was there.
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
from eigenveil.privacy.noise.steps import pack
from eigenveil.protocols import Ask, Give, Message
from eigenveil.runtimes import Faults
from eigenveil.tasks import Question

__all__ = ["Look", "Part", "Tap", "evened", "scored"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """What `sender` answered to a `question`, as its receiver sees it."""

    sender: str
    round: int
    question: Question
    arrays: tuple[Array, ...]


@final
class Tap:
    """Keeps every message as it is sent, and passes it on as it is. Changes in place.

    `message` is in the order in which it was sent. Who sees which of it is for the case to say.

    >>> from eigenveil import FederatedPCA
    >>> tap = Tap()
    >>> pca = FederatedPCA(1, epsilon=None, method="covariance", center=None, random_state=0, faults=tap.faults())
    >>> _ = pca.fit([np.eye(2) * [3, 1], np.eye(2)])
    >>> [(part.sender, part.arrays[0].tolist()) for part in tap.parts(to="hub", stage="components")]
    [('site 0', [[9.0, 0.0], [0.0, 1.0]]), ('site 1', [[1.0, 0.0], [0.0, 1.0]])]
    """

    def __init__(self) -> None:
        self.message: list[Message] = []

    def carry(self, message: Message) -> Iterable[Message]:
        """Keep it, and let it go on: what `Faults.meddle` asks for."""
        self.message.append(message)
        return (message,)

    def faults(self, *, dies: Mapping[str, int] | None = None) -> Faults:
        """A network that is listened to, in which some may stop."""
        return Faults(meddle=self.carry, dies=dict(dies or {}))

    def questions(self) -> dict[int, Question]:
        """What was asked in each round, by its number: everybody may know."""
        return {message.body.round: message.body.question for message in self.message if isinstance(message.body, Ask)}

    def parts(self, *, to: str, by: str | None = None, stage: str | None = None) -> list[Part]:
        """The parts sent `to` somebody, of all senders or of one, in all stages of a fit or in one.

        The same numbers sent again, as to a question that was asked again, are no more than they were the first time.
        """
        asked, found = self.questions(), list[Part]()
        for message in self.message:
            if message.receiver != to or by not in (None, message.sender) or not isinstance(message.body, Give):
                continue
            part = Part(message.sender, message.body.round, asked[message.body.round], message.body.arrays)
            if stage in (None, part.question.stage) and not any(_same(part, other) for other in found):
                found.append(part)
        return found


def _same(one: Part, other: Part) -> bool:
    return one.sender == other.sender and all(map(np.array_equal, one.arrays, other.arrays))


@final
@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """One released array, `released`, and what is known of it beforehand.

    `base` is what it would be without noise and without any canary, `shifts`, (m, ...), how far each of the m canaries moves it,
    `scale` the deviation of the noise on each entry that was charged for. `symmetric` says that the noise is symmetrised.
    `charged` is the mu that was paid for it, where that is compared with how far a canary goes.
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
    """The trial that somebody makes of all `looks`: for each canary the likelihood ratio, given who else was there.

    A canary that shifts release t by s_t, under noise of deviation sigma_t, scores sum_t <s_t, rest_t> / sigma_t^2 over
    sum_t ||s_t||^2 / sigma_t^2, where rest_t is what base and the other canaries leave of the release. So scores are around one
    with the canary and around zero without, and half is the best threshold. What is left of all releases is their noise.

    A canary moves everything together by sqrt(sum_t ||s_t||^2 / sigma_t^2). Where one release was charged less than a canary
    moves it, others may have been charged more, and the sum may not show it: so what was paid for all releases that the canary is
    in is taken as many times as the worst of them was exceeded.

    >>> look = Look(np.array([1.0, 5.0]), np.zeros(2), np.eye(2), scale=2.0)
    >>> trial = scored([look], np.array([True, False]))
    >>> trial.scores.tolist(), trial.noise.tolist()
    ([1.0, 5.0], [0.0, 2.5])
    """
    products, squares, noise = np.zeros(len(present)), np.zeros(len(present)), list[Array]()
    paid, worst = np.zeros(len(present)), 0.0
    for look in looks:
        left = look.released - look.base - np.tensordot(present.astype(np.float64), look.shifts, axes=1)
        flat = look.shifts.reshape(len(present), -1)
        by = np.square(flat).sum(axis=1) / look.scale**2
        products += flat @ left.ravel() / look.scale**2
        squares += by
        flat_noise = pack(left, symmetric=look.symmetric)
        noise.append((evened(flat_noise, left.shape) if look.symmetric else flat_noise) / look.scale)
        if math.isfinite(look.charged):
            paid += np.where(by > 0, look.charged**2, 0.0)
            worst = max(worst, math.sqrt(by.max()) / look.charged)
    require(bool((squares > 0).all()), "every canary must move something that is looked at")
    moved = math.sqrt(max(squares.max(), worst**2 * paid.max()))
    return Trial(present + products / squares, present, np.concatenate(noise), tuple(map(len, noise)), moved)


def evened(packed: Array, shape: tuple[int, ...]) -> Array:
    """A packed symmetric array with entries off the diagonal times sqrt(2), where noise is less by that: lengths are as before.

    >>> evened(np.array([1.0, 2.0, 3.0]), (2, 2)).round(3).tolist()
    [1.0, 2.828, 3.0]
    """
    weights = np.full(shape, math.sqrt(2))
    np.fill_diagonal(weights, 1.0)
    even: Array = packed * pack(weights, symmetric=True)
    return even
