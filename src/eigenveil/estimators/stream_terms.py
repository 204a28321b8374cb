"""What a stream was asked for: the parameters of `StreamingPCA`, checked, and what is promised under them, in words."""

from dataclasses import dataclass
from typing import Final, final

from eigenveil.errors import require_param
from eigenveil.estimators.checks import budget_of, seed_of
from eigenveil.estimators.merged import Merged
from eigenveil.params import StreamingParams
from eigenveil.plan import StreamPlan, plan_stream
from eigenveil.privacy import Budget, Charge, Guarantee, Neighbours, rows_are_cut
from eigenveil.tasks.fit.bounds import RowBounds
from eigenveil.tracking import EnergyBounds

__all__ = ["StreamTerms", "promise", "require_sense", "terms_of"]

_WHEN: Final = {
    "sketch": "",
    "products": "all of them anew at every synchronisation",
    "slices": "all of them anew after every block",
    "tree": "all of them anew after every block",
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


def require_sense(asked: StreamingParams) -> None:
    """Refuse checked parameters that no rows could make right together."""
    budget = budget_of(asked.epsilon, asked.delta)
    require_param(
        asked.publish != "continual" or budget is None or asked.horizon is not None,
        "{horizon} is required for {publish=continual}: at most how many rows will come, a public number",
    )
    for name in ("horizon", "noise_target"):
        given = getattr(asked, name) is not None
        require_param(not given or budget is not None, f"{{{name}}} is for a private stream; leave it out")


def terms_of(asked: StreamingParams, dim: int, *, sparse: bool, plan: StreamPlan | None = None) -> StreamTerms:
    """The terms of a stream of `dim` columns, from checked parameters; `plan` is that of a resumed one."""
    require_sense(asked)
    rank, budget, neighbours = asked.n_components, budget_of(asked.epsilon, asked.delta), Neighbours(asked.neighbours)
    require_param(rank <= dim, f"{{n_components=}} must be at most the number of columns, {dim}", n_components=rank)
    oversample = max(10, rank) if asked.oversample is None else asked.oversample
    if plan is None:
        plan = plan_stream(
            dim=dim,
            rank=rank,
            oversample=oversample,
            budget=budget,
            neighbours=neighbours,
            publish=asked.publish,
            center=asked.center,
            adapt=asked.adapt is not None,
            forget=asked.forget < 1,
            block=asked.block_size,
            horizon=asked.horizon,
            person_blocks=asked.person_blocks,
            noise_target=asked.noise_target,
            memory_limit=asked.memory_limit,
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
        person_blocks=asked.person_blocks,
        center=asked.center,
        forget=asked.forget,
        adapt=None if asked.adapt is None else EnergyBounds(*asked.adapt),
        plan=plan,
        horizon=asked.horizon,
        seed=seed_of(asked.random_state),
    )


def promise(terms: StreamTerms, charges: tuple[Charge, ...], merged: Merged | None) -> Guarantee:
    """What is promised of all that a stream on these terms has released, and of what it took over from others."""
    if terms.budget is None:
        return Guarantee.none("a stream without privacy was asked for")
    epsilon, delta = terms.budget.epsilon, terms.budget.delta
    if merged is not None:
        # Whoever is in another stream is promised what that one promised.
        epsilon, delta = max(epsilon, merged.epsilon), max(delta, merged.delta)
    most = terms.person_blocks
    unit = "each person, who has one row of the stream"
    if most > 1:
        unit = f"each person, who has at most one row in a block and rows in at most {most} blocks"
    return Guarantee(
        epsilon=epsilon,
        delta=delta,
        unit=unit,
        neighbours=terms.neighbours.words,
        against="anybody who sees all that was released, at every time, and knows everything but one person's rows; "
        "the device that follows the stream sees the rows, and its unreleased state is raw data",
        released=(
            "components",
            "mean",
            "spectrum",
            "explained variance and its ratio",
            "the rank",
            _WHEN[terms.plan.way],
        ),
        assumptions=tuple(_assumptions(terms, merged)),
        calibration="exact Gaussian composition (Balle and Wang 2018), over disjoint slots of the stream only those "
        "that one person can be in; the epsilon is the budget fixed before the stream began",
        caveats=tuple(_caveats(terms, merged)),
        charges=charges,
    )


def _assumptions(terms: StreamTerms, merged: Merged | None) -> list[str]:
    plan = terms.plan
    found = [
        "no person has more than one row"
        if terms.person_blocks == 1
        else f"no person has two rows in one block, or rows in more than {terms.person_blocks} blocks",
        rows_are_cut(terms.bounds.row_bound),
        f"the number of rows, that a block is {plan.block} rows in the order they came (the first {plan.first_block}), "
        "and when synchronisations happen are public and do not depend on anybody's row",
        "that all entries are finite, and the number, names and types of the columns, are public",
        f"how it is released: {plan.reason}",
        "this stream alone: the same people in another stream or fit are a further cost, which a shared ledger adds up",
    ]
    if terms.horizon is not None:
        found.append(f"the stream has at most {terms.horizon} rows, a public number")
    if terms.bounds.origin is not None:
        found.append("the origin is public")
    if merged is not None:
        found.append(
            f"nobody is in two of the {len(merged.streams) + 1} streams that were merged, each of which cut rows to its own "
            "bound and had its own blocks"
        )
    return found


def _caveats(terms: StreamTerms, merged: Merged | None) -> list[str]:
    if terms.seed is not None or (merged is not None and merged.seeded):
        return ["reproducible, not private: the noise came from a known seed and can be subtracted"]
    return []
