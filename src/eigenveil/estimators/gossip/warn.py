"""What a user should know of a fit between peers that did end, beyond its answer."""

from collections.abc import Iterator
from typing import Any, Final

from sklearn.exceptions import ConvergenceWarning

from eigenveil.estimators.gossip.simulation import GossipSimulation
from eigenveil.plan import guessed_eigenvalues
from eigenveil.tasks.fit.task import FitResult

__all__ = ["warnings_of"]

# Peers whose answers are further apart than this are told so.
_APART: Final = 0.01
# A published fit whose largest variance is below this part of what it was scaled for has found noise.
_FAR_BELOW: Final = 0.1
_KEPT: Final = (
    ". What was released before they were gone still has their rows in it: the mean, the number of people that variances are "
    "divided by where that is protected, and earlier components of 'segments'"
)


def warnings_of(pca: Any, gossip: GossipSimulation, found: FitResult) -> Iterator[tuple[str, type[Warning]]]:
    """Each warning and its kind. `pca` is the estimator, which shows its answer already."""
    request = gossip.request
    everybody, counted = request.graph.names, pca.peers_
    if len(counted) < len(everybody):
        lost = [name for name in everybody if name not in counted]
        # Without a budget all began again; with one, what was released before is not taken back.
        kept = request.private and len(gossip.rounds[0].answered) > len(counted)
        text = f"the answer is that of {len(counted)} of {len(everybody)} peers, without {', '.join(lost[:5])}"
        yield text + (_KEPT if kept else ""), UserWarning
    if gossip.apart:
        text = (
            f"{', '.join(gossip.apart[:5])} ended with another answer, of other peers: messages were lost in the last round, and "
            "they did not hear that the others began it again"
        )
        yield text, UserWarning
    ended = [name for name in counted if name in gossip.stopped]
    if ended:
        yield (
            f"{', '.join(ended[:5])} were counted and ended without an answer: messages were lost in the last round",
            UserWarning,
        )
    if request.published:
        guess = guessed_eigenvalues(dim=request.bounds.dim, people=max(2, int(found.people)))[0]
        if found.subspace.values[0] ** 2 < _FAR_BELOW * guess * found.domain.radius**2:
            text = (
                "the largest variance is far below what noise='published' was scaled for, so this is likely noise: it needs a "
                "row_bound that rows come near to"
            )
            yield text, UserWarning
        if pca.epsilon is not None:
            yield (
                f"epsilon={pca.epsilon!r} has no meaning with noise='published', which keeps no guarantee",
                UserWarning,
            )
    if found.tied:
        text = (
            f"the variances of components {request.rank} and {request.rank + 1} are equal for all that can be told, so the "
            "answer is not the only one"
        )
        yield text, UserWarning
    if pca.disagreement_ > _APART and request.steps is not None:
        text = (
            f"peers have come to answers that are up to a sine of {pca.disagreement_:.2g} apart: {request.consensus} in "
            f"steps={request.steps} does not bring their sums together on this graph. More steps do, or steps=None"
        )
        yield text, ConvergenceWarning
    if pca.converged_ is False and pca.rounds is None:
        text = (
            f"{request.method} did not come to rest within the tolerance. More rounds or a larger tolerance help, or "
            "method='krylov' or 'covariance'"
        )
        yield text, ConvergenceWarning
