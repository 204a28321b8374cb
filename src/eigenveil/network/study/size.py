"""What a study takes: the longest message of each kind, and the memory of a party. Found from the file, before anything is made.

A hostile file may ask for 20000 columns and 6000 components. It is refused here, by arithmetic, before such a matrix exists.
"""

import math
from typing import TYPE_CHECKING, Final

from eigenveil.errors import require_param
from eigenveil.protocols.limits import FitSize, Role, limits_for
from eigenveil.protocols.wire import LIMIT, MessageLimits
from eigenveil.tasks.fit.gaps import gaps_of

# What plans a fit is loaded by whoever asks for its size: a device that follows a stream does without.
if TYPE_CHECKING:
    from eigenveil.estimators.federated.spec import FederatedSpec
    from eigenveil.estimators.gossip.spec import GossipSpec
    from eigenveil.network.study.file import StudyFile
    from eigenveil.protocols.masked import MaskedTerms

__all__ = ["MEMORY", "limits_of", "limits_within", "memory_of", "require_size", "size_of"]

# The most memory that a party gives to a study, unless its operator allows more. A covariance of 8000 columns takes as much.
MEMORY: Final = 4 << 30
# Measured, rounded up: how many arrays as long as the longest message exist at once while a party works on one. Sums in whole
# numbers, their noise, the symmetric matrix, its eigenvectors and the bytes on their way are among them.
_WORKING: Final = 16
# The same for each round where the products of all rounds are kept and orthonormalised together. With
# noise it also solves for what the products have in common.
_KEPT, _KEPT_NOISY = 4, 10


def size_of(
    request: "FederatedSpec | GossipSpec",
    *,
    dim: int,
    rank: int,
    find: bool = False,
    units: bool = False,
    observed: int = 0,
) -> FitSize:
    """The numbers in the longest question, part and answer of a fit of `dim` columns, which may `find` a bound or `units`.

    Where entries may be missing, `observed` counts of them go along with a sum.
    """
    from eigenveil.methods import method_of
    from eigenveil.tasks.fit.outliers import Outliers
    from eigenveil.tasks.fit.task import counted_at_once
    from eigenveil.tasks.tails import BEYOND

    plan, leaf = request.plan, method_of(request.plan.method)
    # A question has the center, the number of steps it took, and a bound or units that were found. A part has counts of norms
    # or entries, the sums for the mean, or a basis and its values.
    scale = dim if units else 0
    question = dim + 2 + scale + dim * plan.width * leaf.needs_start_basis
    part = leaf.longest_part(dim, plan)
    searched = counted_at_once(dim, find=find, units=units)
    # An answer then has the rate of each column, and two numbers more.
    rates = dim + 2 if observed else 0
    norms = len(BEYOND) + len(Outliers._fields) if find else 0
    answer = dim * rank + rank + dim + 7 + 2 * scale + rates + norms
    return FitSize(question, max(part, dim + 2 + observed, searched), answer)


def memory_of(size: FitSize, request: "FederatedSpec | GossipSpec", *, parts: int) -> int:
    """About how many bytes a party needs that has `parts` parts of others in memory at once."""
    from eigenveil.methods import method_of

    plan, numbers = request.plan, max(size.question, size.part, size.answer)
    kept = 0
    if method_of(plan.method).keeps_products:
        kept = (_KEPT_NOISY if request.private else _KEPT) * plan.rounds
    return 8 * numbers * (_WORKING + kept + parts)


def require_size(study: "StudyFile", request: "FederatedSpec | GossipSpec", *, memory: int) -> None:
    """Refuse a study that takes too much: a `ParameterError` says what it would take and what to do."""
    size = _size(study, request)
    needed = memory_of(size, request, parts=_parts(study, request))
    what = f"{len(study.columns)} columns and {study.params.n_components} components"
    require_param(
        needed <= memory,
        f"a party needs about {_shown(needed)} of memory for {what}, and {_shown(memory)} is allowed. Use fewer {{columns}} "
        f"or {{n_components}}. If every party has so much memory, give each of them --memory {math.ceil(needed / 1e9)}GB",
    )
    # Names and keys of masks come on top. `limits_of` counts them, once the terms of the masks are known.
    longest = 8 * max(size.question, size.part, size.answer)
    require_param(
        longest <= LIMIT,
        f"the longest message would have {_shown(longest)} for {what}, and no message may have more than {_shown(LIMIT)}. "
        "Use fewer {columns} or {n_components}",
    )


def limits_of(
    study: "StudyFile", request: "FederatedSpec | GossipSpec", role: Role, masked: "MaskedTerms | None" = None
) -> MessageLimits:
    """What may come to a party in this `role`, checked against the limit that the study sets itself."""
    return limits_within(study, _size(study, request), role, masked)


def limits_within(study: "StudyFile", size: FitSize, role: Role, masked: "MaskedTerms | None" = None) -> MessageLimits:
    """The same for messages of this size."""
    limits = limits_for(role, size, [place.name for place in study.places], masked)
    largest = LIMIT if study.params.largest is None else study.params.largest
    require_param(
        limits.largest <= largest,
        "{largest} must be at least {@needed} for this study, whose messages have that many bytes, got {@given}",
        needed=limits.largest,
        given=largest,
    )
    return limits


def _size(study: "StudyFile", request: "FederatedSpec | GossipSpec") -> FitSize:
    params = study.params
    units = isinstance(params.scale, str)
    # As `RowBounds` decides it: column bounds are enough, and units need no bound on rows.
    find = study.private and isinstance(params.row_bound, str) and params.column_bounds is None and not units
    gaps = gaps_of(params, len(study.columns), names=study.columns, sparse=False)
    observed = 0 if gaps is None else gaps.entries
    return size_of(request, dim=len(study.columns), rank=params.n_components, find=find, units=units, observed=observed)


def _parts(study: "StudyFile", request: "FederatedSpec | GossipSpec") -> int:
    """How many parts of others the busiest party has in memory at once."""
    from eigenveil.estimators.gossip.spec import GossipSpec

    if isinstance(request, GossipSpec):
        # The numbers of two steps, and two that came early.
        return 4 * max(request.graph.degree(name) for name in request.graph.names)
    # Masked parts are added up as they come. Others wait for those before them.
    return 1 if study.masked else max(len(below) for below in study.layout().below.values())


def _shown(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{math.ceil(count / 2**20)} MiB"
