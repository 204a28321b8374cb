"""What a stream was asked for: the parameters of `StreamingPCA`, checked, and what is promised under them, in words."""

from dataclasses import dataclass
from typing import Any, Final, Literal, final

import numpy as np

from eigenveil.errors import require
from eigenveil.estimators.checks import budget_of, is_real, require_integer, require_one_of, seed_of
from eigenveil.estimators.merged import Merged
from eigenveil.plan import StreamPlan, plan_stream
from eigenveil.privacy import Budget, Charge, Guarantee, GuaranteeFacts, Ledger, Neighbours
from eigenveil.privacy.facts import COMPONENTS, NO_PRIVACY, OneDevice, Person, StreamRows
from eigenveil.tasks.fit.bounds import RowBounds
from eigenveil.tracking import EnergyBounds

__all__ = ["StreamTerms", "promise", "require_parameters", "terms_of"]

_ANEW: Final[dict[str, Literal["", "at every synchronisation", "after every block"]]] = {
    "sketch": "",
    "products": "at every synchronisation",
    "slices": "after every block",
    "tree": "after every block",
}


@final
@dataclass(frozen=True, slots=True, eq=False)
class StreamTerms:
    """What was asked for, in checked and public terms."""

    rank: int
    oversample: int
    budget: Budget | None
    bounds: RowBounds
    neighbours: Neighbours
    person_blocks: int
    center: bool
    forget: float
    adapt: EnergyBounds | None
    plan: StreamPlan
    horizon: int | None
    seed: int | None


def require_parameters(asked: Any) -> None:
    """Refuse parameters of `asked`, a `StreamingPCA`, that no rows could make right."""
    budget = budget_of(asked.epsilon, asked.delta)
    require_integer("n_components", asked.n_components, least=1, optional=False)
    require(is_real(asked.forget) and 0 < asked.forget <= 1, f"forget must lie in (0, 1], got {asked.forget!r}")
    require_integer("block_size", asked.block_size, least=1)
    require_integer("oversample", asked.oversample, least=0)
    require_one_of("publish", asked.publish, ("sync", "block", "continual"))
    require_one_of("neighbours", asked.neighbours, ("zero-out", "replace-one"))
    require_integer("horizon", asked.horizon, least=1)
    require_integer("person_blocks", asked.person_blocks, least=1, optional=False)
    require_integer("memory_limit", asked.memory_limit, least=1)
    require(isinstance(asked.center, bool | np.bool_), f"center must be True or False, got {asked.center!r}")
    require(asked.ledger is None or isinstance(asked.ledger, Ledger), "ledger must be an eigenveil.Ledger")
    continual = asked.publish == "continual" and budget is not None
    require(
        not continual or asked.horizon is not None,
        "horizon is required for publish='continual': at most how many rows will come, a public number",
    )
    require(
        continual or asked.horizon is None, "horizon is for a private stream with publish='continual'; leave it out"
    )
    require(
        asked.noise_target is None or (budget is not None and is_real(asked.noise_target) and asked.noise_target > 0),
        f"noise_target must be a positive number, for a private stream, got {asked.noise_target!r}",
    )
    _energy_bounds(asked.adapt)


def terms_of(asked: Any, dim: int, *, sparse: bool, plan: StreamPlan | None = None) -> StreamTerms:
    """The terms of a stream of `dim` columns; `plan` is that of a resumed one."""
    require_parameters(asked)
    rank, budget, neighbours = (
        int(asked.n_components),
        budget_of(asked.epsilon, asked.delta),
        Neighbours(asked.neighbours),
    )
    require(rank <= dim, f"n_components={rank} must be at most the number of columns, {dim}")
    oversample = max(10, rank) if asked.oversample is None else int(asked.oversample)
    adapt, horizon = _energy_bounds(asked.adapt), None if asked.horizon is None else int(asked.horizon)
    if plan is None:
        plan = plan_stream(
            dim=dim,
            rank=rank,
            oversample=oversample,
            budget=budget,
            neighbours=neighbours,
            publish=asked.publish,
            center=bool(asked.center),
            adapt=adapt is not None,
            forget=asked.forget < 1,
            block=None if asked.block_size is None else int(asked.block_size),
            horizon=horizon,
            person_blocks=int(asked.person_blocks),
            noise_target=asked.noise_target,
            memory_limit=None if asked.memory_limit is None else int(asked.memory_limit),
            sparse=sparse,
        )
    return StreamTerms(
        rank=rank,
        oversample=oversample,
        budget=budget,
        bounds=RowBounds.check(
            dim,
            private=budget is not None,
            row_bound=asked.row_bound,
            column_bounds=None,
            origin=asked.origin,
            mean_bound=None,
            scale=None,
            sparse=sparse,
        ),
        neighbours=neighbours,
        person_blocks=int(asked.person_blocks),
        center=bool(asked.center),
        forget=float(asked.forget),
        adapt=adapt,
        plan=plan,
        horizon=horizon,
        seed=seed_of(asked.random_state),
    )


def promise(terms: StreamTerms, charges: tuple[Charge, ...], merged: Merged | None) -> Guarantee:
    """What is promised of all that a stream on these terms has released, and of what it took over from others."""
    if terms.budget is None:
        return Guarantee.none(NO_PRIVACY["stream"])
    epsilon, delta = terms.budget.epsilon, terms.budget.delta
    if merged is not None:
        # Whoever is in another stream is promised what that one promised.
        epsilon, delta = max(epsilon, merged.epsilon), max(delta, merged.delta)
    plan = terms.plan
    return GuaranteeFacts(
        budget=Budget(epsilon, delta),
        protects=Person(place="stream", most=terms.person_blocks),
        neighbours=terms.neighbours,
        rows=StreamRows(
            norm=terms.bounds.row_bound,
            around="the mean" if terms.center else "zero",
            block=plan.block,
            first=plan.first_block,
            reason=plan.reason,
            horizon=terms.horizon,
            origin=terms.bounds.origin is not None,
            merged=1 if merged is None else len(merged.streams) + 1,
        ),
        seen_by=OneDevice(_ANEW[plan.way]),
        released=COMPONENTS,
        charges=charges,
        reproducible=terms.seed is not None or (merged is not None and merged.seeded),
    ).guarantee()


def _energy_bounds(adapt: Any) -> EnergyBounds | None:
    if adapt is None:
        return None
    try:
        low, high = (float(bound) for bound in adapt)
    except (TypeError, ValueError):
        raise ValueError(f"adapt must be None or a pair (low, high) of fractions, got {adapt!r}") from None
    try:
        return EnergyBounds(low, high)
    except ValueError as error:
        raise ValueError(f"{error} as adapt") from None
