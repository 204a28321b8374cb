"""What `FederatedPCA` refuses before anything is read or charged: what no guarantee could be kept for, or has no meaning.

Each function is given the estimator, whose parameters are still as the caller wrote them.
"""

from collections.abc import Mapping
from typing import Any

from eigenveil.errors import require
from eigenveil.estimators.checks import require_integer
from eigenveil.estimators.federated_masks import MASKED_METHODS
from eigenveil.estimators.federated_request import Participation
from eigenveil.estimators.federated_terms import participation_of, share_of
from eigenveil.plan import SitesPlan
from eigenveil.privacy import Budget, Neighbours
from eigenveil.protocols.masked import require_survivors

__all__ = ["masks_of", "require_enough", "require_legal", "require_maskable"]


def masks_of(asked: Any, sites: int, *, few: str = "a sum over one site is that site's part") -> tuple[int, int] | None:
    """How many sites must survive and how many may collude, where parts are masked. `few` says why one site will not do."""
    if asked.trust != "masked":
        require(asked.survivors is None, "survivors is for trust='masked'; for other trust there is quorum")
        require(asked.colluders == 1, "colluders is for trust='masked'")
        return None
    require(sites >= 2, f"trust='masked' needs at least 2 sites: {few}")
    require(
        asked.quorum is None, "quorum is not for trust='masked': give survivors, how many sites must be in each sum"
    )
    require_integer("colluders", asked.colluders, least=1, most=max(1, sites - 1), optional=False)
    survivors = share_of("survivors", asked.survivors, sites)
    survivors = sites if survivors is None else survivors
    require_survivors(sites, survivors=survivors, colluders=int(asked.colluders))
    return survivors, int(asked.colluders)


def require_maskable(pca: Any, plan: SitesPlan, sites: int) -> None:
    """Refuse under masks what is more than sums over enough sites."""
    if pca.trust != "masked":
        return
    require(pca.topology == "star", "trust='masked' is for a star: nodes of a tree would see sums over few sites")
    require(pca.calibration == "exact", "trust='masked' has exact accounting only: leave calibration='exact'")
    require(
        plan.method in MASKED_METHODS,
        f"trust='masked' can only add, and method={plan.method!r} does more: take one of {', '.join(MASKED_METHODS)}",
    )
    require(
        participation_of(pca.participation, sites) is None,
        "participation with trust='masked' would make sums over few sites: leave it 'full'",
    )


def require_legal(
    pca: Any,
    plan: SitesPlan,
    participation: Participation | None,
    at_sites: Budget | None,
    at_hub: Budget | None,
    *,
    private: bool,
) -> None:
    """Refuse what no guarantee could be kept for, or what has no meaning."""
    method, published = plan.method, pca.calibration == "paper"
    several = method == "fedpower" and max(plan.steps) > 1
    require(not (private and method == "dr-svd"), "method='dr-svd' has no private form; take 'auto', or epsilon=None")
    require(
        not (several and at_hub is not None and not published),
        f"local_steps > 1 with epsilon and trust={pca.trust!r}: rows are read in local steps that noise at the hub does not "
        "cover; take trust='site', which charges every local step, or local_steps=1",
    )
    require(not published or method == "fedpower", f"calibration='paper' is FedPower's, and the method is {method!r}")
    require(
        not published or not (pca.center is True or isinstance(pca.center, str)),
        "calibration='paper' has no private mean: give center=None, or public numbers",
    )
    require(
        participation is None or method in ("power", "fedpower"),
        f"participation is for power and fedpower: {method} needs the same sites in every round",
    )
    require(participation is None or pca.topology == "star", "participation is for a star: give topology='star'")
    require(
        pca.topology == "star" or method not in ("uda", "wda"),
        f"method={method!r} averages at the hub: give topology='star', or method='merge' for a tree",
    )
    require(
        participation is None or not pca.tolerance,
        "tolerance is for full participation: the same sites drawn twice would look like an answer at rest",
    )
    by_size = participation is not None and participation[0] == "with-replacement"
    require(
        not (by_size and private and not published) or Neighbours(pca.neighbours).count_is_public,
        "participation='with-replacement' draws sites by size, which neighbours='add-remove' protects: take "
        "'without-replacement', or neighbours that declare sizes public",
    )


def require_enough(sizes: Mapping[str, float] | None, dim: int, rank: int, *, private: bool, published: bool) -> None:
    """Refuse too few columns, and, where the numbers of rows are public, too few rows."""
    require(dim >= 2, "sites have 1 column, and principal components need at least 2")
    if sizes is None:
        return
    require(
        not published or min(sizes.values()) > 0,
        "calibration='paper' divides by the rows of the smallest site, and every site must have some",
    )
    if not private:
        total = sum(sizes.values())
        require(total >= 2, f"the sites have {total:g} rows together, and principal components need at least 2")
        require(total >= rank, f"all sites together have fewer rows than n_components={rank}; ask for fewer components")
