"""What `GossipPCA` refuses before anything is read or charged, and the arguments that can be said in several ways.

Each function is given the estimator, whose parameters are still as the caller wrote them.
"""

import math
import numbers
from collections.abc import Mapping
from typing import Any, Final, Literal

from eigenveil.errors import require
from eigenveil.estimators.checks import is_real, require_integer, require_one_of
from eigenveil.privacy import Budget
from eigenveil.protocols.messages import LONGEST_NAME
from eigenveil.rows import Rows, Symmetric

__all__ = ["NoiseKind", "agree_to_stop", "noise_of", "quorum_of", "require_people", "require_words"]

_METHODS: Final = ("power", "krylov", "covariance", "segments")

NoiseKind = Literal["none", "independent", "pairwise", "published"]


def require_words(pca: Any) -> None:
    """Refuse parameters that are none of their words or numbers."""
    require_one_of("method", pca.method, _METHODS)
    require_one_of("consensus", pca.consensus, ("metropolis", "chebyshev", "tree"))
    require_one_of("neighbours", pca.neighbours, ("add-remove", "zero-out", "replace-one"))
    if pca.noise is not None:
        require_one_of("noise", pca.noise, ("pairwise", "independent", "published"))
    require(pca.person is None or isinstance(pca.person, str), "person must be the name of a column at every peer")
    require_integer("steps", pca.steps, least=1, most=1_000_000)
    require_integer("oversample", pca.oversample, least=0)
    require_integer("restarts", pca.restarts, least=0, most=1000, optional=False)
    require_integer("retries", pca.retries, least=0, most=1000, optional=False)
    require_integer("people", pca.people, least=2)
    good = is_real(pca.deadline) and 0 < float(pca.deadline) < math.inf
    require(good, f"deadline must be positive and finite, got {pca.deadline!r}")
    require(
        pca.consensus != "tree" or pca.steps is None,
        "steps has no meaning with consensus='tree': a sum takes one way up and one way down",
    )
    require(pca.method != "segments" or pca.oversample is None, "oversample has no meaning for method='segments'")


def noise_of(pca: Any, budget: Budget | None) -> NoiseKind:
    """What is added to what leaves a peer."""
    if pca.noise == "published":
        needs = []
        if pca.method != "segments":
            needs.append(f"method='segments', as it is D-DP-PM's Alg. 1, and the method is {pca.method!r}")
        if pca.center is True or isinstance(pca.center, str):
            needs.append("center=None or public numbers, as it has no private mean")
        if pca.row_bound is None:
            needs.append(
                "a row_bound, which its scaling is in units of (eigenveil.find_bounds or `eigenveil bounds` finds one)"
            )
        require(not needs, f"noise='published' needs {'; '.join(needs)}")
        require(pca.restarts == 0, "restarts is for a budget, and noise='published' has none")
        return "published"
    if budget is None:
        require(pca.restarts == 0, "restarts is for a budget; without one turns are begun again as often as needed")
        return "none"
    require(
        pca.noise is not None,
        "noise=None adds no noise, and an epsilon was asked for: take noise='pairwise' or 'independent', or epsilon=None",
    )
    return "pairwise" if pca.noise == "pairwise" else "independent"


def quorum_of(pca: Any, peers: int) -> int:
    """How many peers must be left: more than half, or two groups that cannot reach each other would both go on."""
    least, value = peers // 2 + 1, pca.quorum
    if value is None:
        return least
    if is_real(value) and not isinstance(value, numbers.Integral) and 0 < float(value) <= 1:
        value = math.ceil(float(value) * peers * (1 - 1e-12))
    whole = is_real(value) and isinstance(value, numbers.Integral)
    require(
        whole and least <= int(value) <= peers,
        f"quorum must be None, a number from {least}, more than half, to the {peers} peers, or such a share of them, "
        f"got {pca.quorum!r}",
    )
    return int(value)


def require_people(peers: Mapping[str, Rows]) -> None:
    """Refuse what has no people to keep scores of, and names that no message could carry."""
    for name, rows in peers.items():
        require(
            not isinstance(rows, Symmetric),
            f"{name}: a peer keeps the scores of its own people, and a Symmetric has none; give rows, or take FederatedPCA",
        )
        try:
            short = 0 < len(name) <= LONGEST_NAME and len(name.encode()) > 0
        except UnicodeEncodeError:
            short = False
        require(short, f"names of peers must be text of 1 to {LONGEST_NAME} characters, got {name[:20]!a}")


def agree_to_stop(pca: Any) -> bool:
    """Whether peers go on from one and the same sum, and so decide alike when to stop; refused where they must and do not."""
    require(
        pca.steps is None or pca.method != "krylov",
        f"method='krylov' keeps all products, and with steps={pca.steps} peers would keep different ones: leave steps open, or "
        "take method='power' or 'covariance'",
    )
    return pca.steps is None
