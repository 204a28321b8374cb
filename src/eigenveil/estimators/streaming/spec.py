"""`StreamSpec`: the checked parameters of a stream, and the guarantee under them."""

from dataclasses import dataclass
from typing import Any, final

from eigenveil.core.accounting import Budget
from eigenveil.core.ledger import Charge
from eigenveil.core.unit import Neighbours, PrivacyUnit
from eigenveil.errors import require_param
from eigenveil.estimators.checks import budget_of, seed_of
from eigenveil.estimators.settings import asked_settings
from eigenveil.estimators.streaming.merged import Merged
from eigenveil.params import StreamingParams
from eigenveil.plan import StreamPlan, plan_stream
from eigenveil.privacy import Guarantee, GuaranteeFacts
from eigenveil.privacy.facts import COMPONENTS, NO_PRIVACY, OneDevice, Person, StreamRows
from eigenveil.tasks.fit.bounds import RowBounds
from eigenveil.trackers import EnergyBounds, published_as, publishing

__all__ = ["StreamSpec", "require_sense", "stream_guarantee", "terms_of"]


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StreamSpec:
    """What a stream was asked for, checked and public. A model records `settings`."""

    rank: int
    oversample: int
    budget: Budget | None
    bounds: RowBounds
    neighbours: Neighbours
    person_blocks: int
    person: str | None
    center: bool
    forget: float
    adapt: EnergyBounds | None
    plan: StreamPlan
    horizon: int | None
    seed: int | None
    settings: dict[str, Any]

    @property
    def protects(self) -> Person:
        """Who is protected."""
        return Person(place="stream", grouped=self.person is not None, most=self.person_blocks, column=self.person)

    @property
    def unit(self) -> PrivacyUnit:
        """What every charge of the stream protects."""
        return self.protects.protected(self.neighbours)


def require_sense(asked: StreamingParams) -> None:
    """Refuse parameters that contradict each other, whatever the rows."""
    budget = budget_of(asked.epsilon, asked.delta)
    needs_horizon = published_as(asked.publish).needs_horizon
    require_param(
        needs_horizon or asked.horizon is None,
        f"{{horizon}} is for {publishing(lambda kind: kind.needs_horizon)}, got {{@given}}",
        given=asked.horizon,
    )
    require_param(
        # The budget is divided in advance over as many releases as the horizon needs.
        not needs_horizon or budget is None or asked.horizon is not None,
        f"{{horizon}} is required for {{publish={asked.publish}}}. Give a public upper limit on the number of rows",
    )
    require_param(
        asked.missing == "refuse" or budget is not None,
        "{missing} is for a private stream. Without privacy gaps are filled from the directions found so far: leave it out",
    )
    for name in ("horizon", "noise_target", "person"):
        given = getattr(asked, name) is not None
        require_param(not given or budget is not None, f"{{{name}}} is for a private stream. Leave it out")


def terms_of(
    asked: StreamingParams,
    dim: int,
    *,
    sparse: bool,
    plan: StreamPlan | None = None,
    names: tuple[str, ...] | None = None,
) -> StreamSpec:
    """The spec of a stream of `dim` columns, from checked parameters. A resumed stream keeps its `plan`.

    The columns may have `names`.
    """
    require_sense(asked)
    rank, budget, neighbours = asked.n_components, budget_of(asked.epsilon, asked.delta), Neighbours(asked.neighbours)
    # Only now, because the first rows say how many columns there are.
    require_param(rank <= dim, f"{{n_components=}} must be at most the number of columns, {dim}", n_components=rank)
    # Ten more directions gave a sine of 0.002 at d = 1000, k = 10 and a spectrum of 1/i (decision 6). A wider sketch
    # does more for less than a second power step.
    oversample = max(10, rank) if asked.oversample is None else asked.oversample
    bounds = RowBounds.of(asked, dim, private=budget is not None, sparse=sparse, names=names)
    if plan is None:
        plan = plan_stream(
            dim=dim,
            rank=rank,
            oversample=oversample,
            budget=budget,
            neighbours=neighbours,
            publish=asked.publish,
            center=asked.center is not None,
            adapt=asked.adapt is not None,
            forget=asked.forget < 1,
            block=asked.block_size,
            horizon=asked.horizon,
            person_blocks=asked.person_blocks,
            noise_target=asked.noise_target,
            memory_limit=asked.memory_limit,
            sparse=sparse,
            bound=bounds.find,
            units=bounds.units,
        )
    return StreamSpec(
        rank=rank,
        oversample=oversample,
        budget=budget,
        bounds=bounds,
        neighbours=neighbours,
        person_blocks=asked.person_blocks,
        person=asked.person,
        center=asked.center is not None,
        forget=asked.forget,
        adapt=None if asked.adapt is None else EnergyBounds(*asked.adapt),
        plan=plan,
        horizon=asked.horizon,
        seed=seed_of(asked.random_state),
        settings=asked_settings(asked),
    )


def stream_guarantee(
    terms: StreamSpec, charges: tuple[Charge, ...], merged: Merged | None, *, rows: int, bound: float | None
) -> Guarantee:
    """The guarantee of everything that a stream of `rows` rows so far has released, and of what it took over from others.

    `bound` is the norm to clip at, None as long as the first block has not found it.
    """
    if terms.budget is None:
        return Guarantee.none(NO_PRIVACY["stream"])
    epsilon, delta = terms.budget.epsilon, terms.budget.delta
    if merged is not None:
        # People in another stream have that stream's guarantee, so the weaker one holds for all.
        epsilon, delta = max(epsilon, merged.epsilon), max(delta, merged.delta)
    plan = terms.plan
    return GuaranteeFacts(
        budget=Budget(epsilon, delta),
        protects=terms.protects,
        neighbours=terms.neighbours,
        rows=StreamRows(
            norm=bound,
            found=terms.bounds.find,
            units=terms.bounds.units,
            scale=terms.bounds.scale is not None,
            around="the mean" if terms.center else "zero",
            block=plan.block,
            first=plan.first_block,
            horizon=terms.horizon,
            origin=terms.bounds.origin is not None and terms.bounds.low is None,
            columns=terms.bounds.low is not None,
            merged=1 if merged is None else len(merged.streams) + 1,
            gaps=None if terms.bounds.gaps is None else terms.bounds.gaps.rule,
        ),
        seen_by=OneDevice(plan.reason, plan.kind.schedule),
        released=COMPONENTS + terms.bounds.released,
        charges=charges,
        # One seeded stream is enough: anyone who knows its seed can subtract its noise from the result.
        reproducible=terms.seed is not None or (merged is not None and merged.seeded),
        people=float(rows),
    ).guarantee()
