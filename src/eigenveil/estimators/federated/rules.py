"""What `FederatedPCA` refuses before anything is read or charged: guarantees that cannot be kept, and settings without meaning.

Each parameter is checked by itself before. The rules here need several of them, or the number of sites.
"""

import math
from collections.abc import Mapping
from typing import Any, Final, Literal, cast

from eigenveil.core.accounting import Budget
from eigenveil.core.unit import Neighbours
from eigenveil.errors import ParameterError, require, require_param, verbatim
from eigenveil.methods import METHODS, MethodPlan, method_of, methods_at
from eigenveil.params import FederatedParams, RecommenderParams
from eigenveil.params.values import Expected, number_or_share
from eigenveil.protocols.masked import require_survivors

__all__ = [
    "Participation",
    "drawn_of",
    "masks_of",
    "require_enough",
    "require_few_rounds",
    "require_legal",
    "require_maskable",
    "share_of",
]

Participation = tuple[Literal["with-replacement", "without-replacement"], int]

# With noise, shares grow from round to round. With more rounds, the first share would be next to nothing.
_MOST_NOISY_ROUNDS: Final = 200


def share_of(name: str, value: Any, sites: int) -> int | None:
    """How many sites a number or a share of them means, None for all. Errors name the parameter `name`."""
    if value is None:
        return None
    try:
        given = number_or_share(value)
    except Expected as error:
        raise ParameterError(f"{{{name}}} must be {error}, got {{@value}}", value=value) from None
    if isinstance(given, int):
        require_param(given <= sites, f"{{{name}}} must be from 1 to the {sites} sites, got {{@value}}", value=given)
        return given
    # As binary fractions, shares such as 0.28 are a little larger than written.
    return max(1, math.ceil(given * sites * (1 - 1e-12)))


def drawn_of(asked: FederatedParams, sites: int) -> Participation | None:
    """How sites are drawn, None if all take part."""
    if asked.participation == "full":
        return None
    scheme, count = asked.participation
    # With replacement a site may be drawn several times.
    most = sites if scheme == "without-replacement" else 10**6
    require_param(
        count <= most, f"{{participation}} must draw from 1 to {most} of the {sites} sites, got {{@value}}", value=count
    )
    return cast("Participation", (scheme, count))


def masks_of(
    asked: FederatedParams | RecommenderParams, sites: int, *, few: str = "a sum over one site is that site's own sum"
) -> tuple[int, int] | None:
    """With masks, how many sites must survive and how many may collude. `few` says why one site is not enough."""
    if asked.trust != "masked":
        return None
    require_param(sites >= 2, f"{{trust=masked}} needs at least 2 sites: {verbatim(few)}")
    require_param(
        asked.quorum is None,
        "{quorum} is not for {trust=masked}. Use {survivors}, how many sites must be in each sum",
    )
    most = max(1, sites - 1)
    require_param(
        asked.colluders <= most,
        f"{{colluders}} must be an integer from 1 to {most}, got {{@value}}",
        value=asked.colluders,
    )
    # Each site adds the noise of one of t - c honest survivors, so fewer survivors mean more noise from each.
    survivors = share_of("survivors", asked.survivors, sites)
    # All by default, which needs the least noise.
    survivors = sites if survivors is None else survivors
    require_survivors(sites, survivors=survivors, colluders=asked.colluders)
    return survivors, asked.colluders


def require_maskable(asked: FederatedParams, plan: MethodPlan, sites: int) -> None:
    """Refuse with masks what needs more than sums over enough sites."""
    if asked.trust != "masked":
        return
    require_param(
        asked.topology == "star", "{trust=masked} needs {topology=star}: nodes of a tree would see sums over few sites"
    )
    require_param(asked.calibration == "exact", "{trust=masked} has exact accounting only. Use {calibration=exact}")
    # Masks cancel in sums only.
    additive = [name for name in methods_at("sites") if METHODS[name].is_additive]
    require_param(
        plan.method in additive,
        f"{{trust=masked}} can only add, and {{method=}} does more. Use one of {', '.join(additive)}",
        method=plan.method,
    )
    require_param(
        asked.participation == "full",
        "{participation} with {trust=masked} would make sums over few sites. Use {participation=full}",
    )


def require_legal(
    asked: FederatedParams,
    plan: MethodPlan,
    participation: Participation | None,
    at_sites: Budget | None,
    at_hub: Budget | None,
    *,
    private: bool,
) -> None:
    """Refuse guarantees that cannot be kept, and settings without meaning."""
    method, leaf, published = plan.method, method_of(plan.method), asked.calibration == "paper"
    # After the first local step a site's product depends on its rows in ways that the hub's noise is not calibrated for.
    several = max(plan.steps, default=1) > 1
    require_param(
        not private or leaf.has_private_form,
        f"{{method={method}}} has no private form. Use {{method=auto}}, or {{epsilon=None}}",
    )
    require_param(
        not (several and at_hub is not None and not published),
        "{local_steps} above 1 with {epsilon} and {trust=}: local steps read rows, and noise at the hub does not cover them. "
        "Use {trust=site}, which charges every local step, or {local_steps=1}",
        trust=asked.trust,
    )
    require_param(
        not published or leaf.takes_local_steps,
        "{calibration=paper} is FedPower's noise, and this is {method=}. Use {method=fedpower}",
        method=method,
    )
    require_param(
        not published or not isinstance(asked.center, str),
        "{calibration=paper} has no private mean. Use {center=None}, or public numbers",
    )
    sampled = [name for name, one in METHODS.items() if one.takes_samples]
    require_param(
        participation is None or leaf.takes_samples,
        f"{{participation}} is for {' and '.join(sampled)}: {method} needs the same sites in every round",
    )
    require_param(participation is None or asked.topology == "star", "{participation} needs {topology=star}")
    require_param(
        asked.topology == "star" or leaf.runs_in_trees,
        "{method=} averages at the hub. Use {topology=star}, or {method=merge} for a tree",
        method=method,
    )
    require_param(
        participation is None or not asked.tolerance,
        "{tolerance} needs {participation=full}: the same sites drawn twice would look like convergence",
    )
    # With add/remove the sizes of sites are private, and a draw by size would reveal them.
    by_size = participation is not None and participation[0] == "with-replacement"
    require_param(
        not (by_size and private and not published) or Neighbours(asked.neighbours).count_is_public,
        "{participation=} draws sites by size, which {neighbours=add-remove} protects. Draw them without replacement, or use "
        "{neighbours=zero-out} or {neighbours=replace-one}, which make sizes public",
        participation=participation,
    )


def require_few_rounds(rounds: int | None, *, private: bool) -> None:
    """Refuse more rounds than a budget can be divided into."""
    require_param(
        rounds is None or not private or rounds <= _MOST_NOISY_ROUNDS,
        f"{{rounds}} must be an integer from 1 to {_MOST_NOISY_ROUNDS} with a budget, got {{@value}}",
        value=rounds,
    )


def require_enough(sizes: Mapping[str, float] | None, dim: int, rank: int, *, private: bool, published: bool) -> None:
    """Refuse too few columns and, if the numbers of rows are public, too few rows."""
    require(dim >= 2, "sites have 1 column, and principal components need at least 2")
    if sizes is None:
        return
    require_param(
        not published or min(sizes.values()) > 0,
        "{calibration=paper} divides by the number of rows of the smallest site, so every site must have rows",
    )
    # With a budget the number of rows may be private, and then no error may depend on it.
    if not private:
        total = sum(sizes.values())
        require(total >= 2, f"the sites have {total:g} rows together, and principal components need at least 2")
        require_param(
            total >= rank,
            "all sites together have fewer rows than {n_components=}. Ask for fewer components",
            n_components=rank,
        )
