"""How a stream is followed: its tracker, blocks, memory and shares of the budget, from public numbers alone."""

import math
from dataclasses import dataclass, replace
from typing import Final, final

from eigenveil.core.accounting import Budget
from eigenveil.core.unit import Neighbours, gram_sensitivity
from eigenveil.errors import require_param
from eigenveil.plan.choose import MEMORY_LIMIT
from eigenveil.tasks.fit.gaps import Split, split_budget
from eigenveil.tasks.fit.units import ENTRIES
from eigenveil.trackers import TRACKERS, StreamRequest, TrackerKind, publishing
from eigenveil.trackers.sums import MEAN_SHARE

# A stream finds a rough mean in its first block alone, to clip around it. The mean itself comes with every release.
STREAM_MEAN_SHARES: Final = (0.05, 0.05, 0.05)
# Entries are counted in the first block alone, so they get more than in a fit of a whole table.
STREAM_GAPS_SHARE: Final = 0.05
_BLOCK: Final = 512
# The largest error, in units of row_bound, that the mean of the first block may have.
_PLACED: Final = 0.2
# The fewest rows of a first block that a bound is found in, times mu. A search refuses less than two thirds of them.
_FOR_A_BOUND: Final = 150.0
# The same where units of d columns are found, times mu over sqrt(d).
_FOR_UNITS: Final = 135.0
# A search that did not reach the mean continues in this many times the rows of a first block: each pass is as many times finer.
_SEARCHED_AGAIN: Final = 8


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPlan:
    """How a stream is followed: the `tracker`, the rows of a `block`, the `memory` in bytes, and why.

    The first block may be longer. `horizon_blocks` is 0 where the plan does not depend on where the stream ends. If the rows of
    the first block lie too far out to find their mean in it, up to `search_rows` are kept and searched. Zero is for no more than
    that block.
    """

    tracker: str
    block: int
    first_block: int
    horizon_blocks: int
    memory: int
    reason: str
    search_rows: int = 0

    @property
    def kind(self) -> TrackerKind:
        """The tracker, before it is made."""
        return TRACKERS[self.tracker]

    def block_of(self, row: int) -> int:
        """The block that a row falls into, both counted from 0. A synchronisation does not move the ends of blocks."""
        return 0 if row < self.first_block else 1 + (row - self.first_block) // self.block


def first_block(*, noise_target: float, mu: float, neighbours: Neighbours) -> int:
    """The fewest rows whose average product has noise of standard deviation at most `noise_target`, in units of
    row_bound^2.

    This corrects the inequality of FPCA Lemma 2.2. Its bracket is the noise on a sum, so dividing by n meets the
    target when n is at least bracket / target. The bracket here is the exact one, sensitivity / mu.

    >>> first_block(noise_target=0.01, mu=Budget(1.0, 1e-5).mu, neighbours=Neighbours.ZERO_OUT)
    374
    """
    good = 0 < noise_target < math.inf
    require_param(good, "{noise_target} must be positive and finite, got {@value}", value=noise_target)
    return math.ceil(gram_sensitivity(1.0, neighbours) / (mu * noise_target))


def stream_split(*, center: bool, bound: bool, units: bool = False, observed: bool = False, count: bool = False) -> Split:
    """The shares of the search in the first block: for the mean, with `bound` the norm to clip at, with `units` those.

    Where values may be missing, entries that are `observed`, or complete rows, are counted once, in that block.
    """
    if bound or units:
        split = split_budget(mean=center, search=False, count=count, trace=False, bound=bound, units=units)
    else:
        split = Split(mean=STREAM_MEAN_SHARES if center else (), count=0.0, extra=0.0)
    if not (observed or count):
        return split
    # Without a mean to go along with, they are a release of their own.
    beside, alone = (STREAM_GAPS_SHARE, 0.0) if center else (0.0, STREAM_GAPS_SHARE)
    return replace(
        split,
        count=beside if count else 0.0,
        extra=alone,
        observed=beside if observed else 0.0,
        observed_at=4 if units else 1 if bound else 0,
        observed_later=alone,
    )


def plan_stream(
    *,
    dim: int,
    rank: int,
    oversample: int,
    budget: Budget | None,
    neighbours: Neighbours,
    publish: str,
    center: bool,
    adapt: bool,
    forget: bool,
    block: int | None,
    horizon: int | None,
    person_blocks: int,
    noise_target: float | None,
    memory_limit: int | None,
    sparse: bool = False,
    bound: bool = False,
    units: bool = False,
) -> StreamPlan:
    """How to follow a stream of `dim` columns, from public numbers alone.

    A given memory limit is kept or refused. Without one, 1 GiB decides between trackers and refuses only the tree,
    which has no smaller form. Blocks of sparse rows are not counted, because their size is not known beforehand. With
    `bound`, the first block must be long enough to find a row bound in, and with `units`, to find units in.

    >>> few = dict(rank=2, oversample=10, neighbours=Neighbours.ZERO_OUT, center=True, adapt=False, forget=False)
    >>> more = dict(block=None, horizon=None, person_blocks=1, noise_target=None, memory_limit=None)
    >>> plan_stream(dim=20, budget=Budget(1.0, 1e-6), publish="sync", **few, **more).tracker
    'products'
    >>> plan_stream(dim=50_000, budget=Budget(1.0, 1e-6), publish="sync", **few, **more).tracker
    'slices'
    """
    limit = MEMORY_LIMIT if memory_limit is None else memory_limit
    width = min(rank + oversample, dim)
    criteria = StreamRequest(
        dim=dim,
        width=width,
        private=budget is not None,
        publish=publish,
        fades=adapt or forget,
        block=block or _BLOCK,
        limit=limit,
    )
    kind, reason = next((kind, why) for kind in TRACKERS.values() if (why := kind.suits(criteria)) is not None)
    size = block if block is not None else _default_block(dim, width, budget, kind, center=center)
    if block is None and memory_limit is not None and not sparse:
        # A given limit shrinks the block: what the tracker keeps cannot shrink, and a block and its copy take 2 d
        # numbers a row.
        size = max(1, min(size, (limit // 8 - kind.numbers(dim, width, 0)) // (2 * dim)))
    first = size
    require_param(
        noise_target is None or kind.apart,
        "{noise_target} is for a stream that is released block by block. Use "
        f"{publishing(lambda kind: kind.apart)}, or leave it out: {reason}",
    )
    if budget is not None and noise_target is not None:
        # The search takes its shares first. A person in several blocks divides the rest over them.
        searched = stream_split(center=center, bound=bound, units=units)
        left = budget.mu * math.sqrt((1 - sum(searched.mean)) * (1 - MEAN_SHARE) if center else 1 - sum(searched.mean))
        each = left / math.sqrt(person_blocks)
        first = max(size, first_block(noise_target=noise_target, mu=each, neighbours=neighbours))
    if budget is not None and bound:
        first = max(first, math.ceil(_FOR_A_BOUND / budget.mu))
    if budget is not None and units:
        first = max(first, math.ceil(_FOR_UNITS * math.sqrt(dim) / budget.mu))
    blocks = 0 if horizon is None else -(-horizon // size)
    # The counts of a search for units are gone before the tracker begins.
    held = max(kind.numbers(dim, width, blocks), 2 * ENTRIES.count * dim if units else 0)
    memory = 8 * (held + (0 if sparse else 2 * first * dim))
    require_param(
        memory <= limit or (memory_limit is None and kind.has_smaller),
        f"this stream needs about {memory / 2**20:.3g} MiB ({kind.name}, blocks of {first} rows), and {{memory_limit}} "
        f"allows {limit / 2**20:.3g} MiB. {kind.smaller}",
    )
    # Somebody in several blocks has a row in each, and a search must not see two of them. Others have one row in all.
    again = 0
    if budget is not None and bound and center and person_blocks == 1:
        room = _SEARCHED_AGAIN * first if sparse else (limit // 8 - held) // (2 * dim)
        again = max(0, min(_SEARCHED_AGAIN * first, room))
    return StreamPlan(
        tracker=kind.name,
        block=size,
        first_block=first,
        horizon_blocks=blocks,
        memory=memory,
        reason=reason,
        search_rows=again if again > first else 0,
    )


def _default_block(dim: int, width: int, budget: Budget | None, kind: TrackerKind, *, center: bool) -> int:
    size = max(_BLOCK, 2 * width)
    if budget is not None and center:
        # Long enough for the first block's mean to be a useful place to clip around.
        needed = math.sqrt(dim) / (budget.mu * math.sqrt(STREAM_MEAN_SHARES[0]) * _PLACED)
        size = max(size, min(math.ceil(needed), max(2 * dim, (1 << 20) // dim)))
    return kind.block_size(size, dim)
