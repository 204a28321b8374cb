"""Publishing everybody's scores with noise after a fit: a separate choice, with a budget of its own."""

import math
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import final

from eigenveil.core.accounting import Budget, epsilon_of
from eigenveil.core.ledger import Charge, Ledger
from eigenveil.core.mechanism import Bounded, Gaussian
from eigenveil.core.noise import Noise
from eigenveil.core.rows import Rows
from eigenveil.core.threads import this_process
from eigenveil.errors import EigenveilError, require_param
from eigenveil.estimators.gossip.spec import GossipSpec
from eigenveil.linalg import Array
from eigenveil.privacy import Guarantee, bounded_scores
from eigenveil.tasks.fit.task import FitResult

__all__ = ["PublishedScores", "ReadyScores"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class PublishedScores:
    """Noisy scores of each peer's people, (n, k) by name, and the guarantee of fit and scores together."""

    scores: dict[str, Array]
    guarantee: Guarantee


@final
@dataclass(slots=True, eq=False)
class ReadyScores:
    """Scores with their bound, as they were when the fit ended, for `publish`. Parameters may change later.

    Changes in place: it counts calls, so that a seed makes other noise each time. `why_not` says why nothing may be published.
    It must not be copied: a copy would release the same scores without knowing of the charge.
    """

    own: Mapping[str, Bounded]
    seed: int | None
    why_not: str = ""
    _times: int = field(init=False, default=0)
    _process: tuple[int, int] = field(init=False, default_factory=this_process)
    _busy: threading.Lock = field(init=False, default_factory=threading.Lock)

    @classmethod
    def of(cls, request: GossipSpec, rows: Mapping[str, Rows], found: FitResult) -> "ReadyScores":
        """The scores of these rows on the directions found, or why none may be published."""
        why_not = ""
        if request.budget is None:
            why_not = "the fit has no guarantee to add to. Fit with epsilon and delta"
        elif not request.fit.neighbours.count_is_public:
            why_not = (
                "one score for each person reveals the number of people, which {neighbours=add-remove} protects. Fit with "
                "{neighbours=zero-out} or {neighbours=replace-one}"
            )
        elif request.fit.grouped:
            why_not = "people with several rows have several scores. publish_scores is for one row each"
        own: dict[str, Bounded] = {}
        if not why_not:
            own = {
                name: bounded_scores(
                    own_rows, basis=found.subspace.basis, domain=found.domain, neighbours=request.fit.neighbours
                )
                for name, own_rows in rows.items()
            }
        return cls(own, request.seed, why_not)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """One call at a time, so that each guarantee includes the charges before it. Refused in a forked process."""
        # A fork has the same scores and another ledger: both could publish, and neither would know of the other's charge.
        if this_process() != self._process:
            raise EigenveilError("this is a forked copy of a fit: only the process that fitted can publish scores")
        with self._busy:
            yield

    def publish(self, budget: Budget, fitted: Guarantee, *, shared: Ledger | None) -> PublishedScores:
        """Release each peer's scores through its own mechanism, for all of `budget`. The guarantee covers fit and scores.

        A `shared` ledger of the people is charged once, because each person is at one peer.
        """
        require_param(not self.why_not, self.why_not)
        assert fitted.epsilon is not None and fitted.delta is not None
        if shared is not None:
            shared.spend(budget.mu, label="scores of the people of peers", unit=fitted.protects)
        # Counted before anything is released: a call that fails midway must not draw the same noise again.
        self._times += 1
        scores: dict[str, Array] = {}
        for place, (name, private) in enumerate(self.own.items()):
            ledger = Ledger(epsilon=budget.epsilon, delta=budget.delta, unit=fitted.protects)
            # A hair more noise than needed, so that rounding never refuses the release.
            release = Gaussian(multiplier=(1 + 1e-10) / budget.mu, ledger=ledger, noise=self._noise(place))
            scores[name] = release.release(private, label="scores of the people of a peer")
        # Gaussian releases add up in squares of mu, and epsilon is then stated at the delta of the fit.
        mu = math.hypot(Budget(fitted.epsilon, fitted.delta).mu, budget.mu)
        guarantee = replace(
            fitted,
            epsilon=epsilon_of(mu, fitted.delta),
            released=(*fitted.released, "every person's scores with noise"),
            # One charge for all peers, because each person is at one peer.
            charges=(*fitted.charges, Charge("scores of the people of a peer", budget.mu)),
        )
        return PublishedScores(scores, guarantee)

    def _noise(self, place: int) -> Noise:
        if self.seed is None:
            return Noise.fresh()
        # Room for a million calls, each with noise of its own at every peer.
        return Noise.seeded((((self.seed << 34) + place) << 20) + self._times)
