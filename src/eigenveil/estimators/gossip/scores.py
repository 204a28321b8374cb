"""Scores of everybody's people, given away with noise: a choice of its own, with a budget of its own, after a fit."""

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import final

from eigenveil.data.rows import Rows
from eigenveil.errors import EigenveilError, require_param
from eigenveil.estimators.gossip.request import GossipSpec
from eigenveil.linalg import Array
from eigenveil.privacy import (
    Bounded,
    Budget,
    Charge,
    Gaussian,
    Guarantee,
    Ledger,
    Noise,
    bounded_scores,
    compose_mu,
    epsilon_of,
)
from eigenveil.tasks.fit.task import FitResult

__all__ = ["PublishedScores", "ReadyScores"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class PublishedScores:
    """Scores of each peer's people with noise, (n, k) by name, and the guarantee of the fit and the scores together."""

    scores: dict[str, Array]
    guarantee: Guarantee


@final
@dataclass(slots=True, eq=False)
class ReadyScores:
    """What `publish` gives away, with its bound, as it was when the fit ended: parameters may be set to others later.

    Changes in place: it counts how often it was asked, so that a seed makes other noise each time. `why_not` says what stands
    against publishing at all. It belongs to one place: another would release the same scores without knowing of the charge.
    """

    own: Mapping[str, Bounded]
    seed: int | None
    why_not: str = ""
    _times: int = field(init=False, default=0)
    _process: int = field(init=False, default_factory=os.getpid)
    _busy: threading.Lock = field(init=False, default_factory=threading.Lock)

    @classmethod
    def of(cls, request: GossipSpec, rows: Mapping[str, Rows], found: FitResult) -> "ReadyScores":
        """The scores of these rows on the directions that were found, or why there are none to be published."""
        why_not = ""
        if request.budget is None:
            why_not = "the fit guaranteed nothing, so there is no guarantee to add to"
        elif not request.neighbours.count_is_public:
            why_not = (
                "a score for each person says how many there are, which {neighbours=add-remove} protects: fit with "
                "{neighbours=zero-out} or {neighbours=replace-one}"
            )
        elif request.grouped:
            why_not = "people with several rows have several scores: publish_scores is for one row each"
        own: dict[str, Bounded] = {}
        if not why_not:
            own = {
                name: bounded_scores(
                    held, basis=found.subspace.basis, domain=found.domain, neighbours=request.neighbours
                )
                for name, held in rows.items()
            }
        return cls(own, request.seed, why_not)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """One after the other, so that each guarantee has the charges before it; and not in a forked process."""
        if os.getpid() != self._process:
            raise EigenveilError("this is a forked copy of a fit: only the process that fitted can publish scores")
        with self._busy:
            yield

    def publish(self, budget: Budget, fitted: Guarantee) -> PublishedScores:
        """Each peer's scores through a mechanism of its own, for all of `budget`, and what is guaranteed after that."""
        require_param(not self.why_not, self.why_not)
        assert fitted.epsilon is not None and fitted.delta is not None
        self._times += 1
        scores: dict[str, Array] = {}
        for place, (name, private) in enumerate(self.own.items()):
            ledger = Ledger(epsilon=budget.epsilon, delta=budget.delta)
            release = Gaussian((1 + 1e-10) / budget.mu, ledger, self._noise(place))
            scores[name] = release.release(private, label="scores of the people of a peer")
        mu = compose_mu([Budget(fitted.epsilon, fitted.delta).mu, budget.mu])
        guarantee = replace(
            fitted,
            epsilon=epsilon_of(mu, fitted.delta),
            released=(*fitted.released, "every person's scores with noise of their own"),
            # One line, because each person is at one peer.
            charges=(*fitted.charges, Charge("scores of the people of a peer", budget.mu)),
        )
        return PublishedScores(scores, guarantee)

    def _noise(self, place: int) -> Noise:
        if self.seed is None:
            return Noise.fresh()
        return Noise.seeded((((self.seed << 34) + place) << 20) + self._times)
