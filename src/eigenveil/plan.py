"""The planner: from public numbers alone, what each mechanism would cost in memory and noise, and which one to take.

Serves every "auto". It never sees a row; the number of people enters only where the caller declared it public.
"""

import math
from dataclasses import dataclass
from typing import Final, Literal, final

import numpy as np

from eigenveil.errors import require
from eigenveil.linalg import Array
from eigenveil.privacy import Budget, Neighbours, gram_sensitivity
from eigenveil.tasks import geometric_shares
from eigenveil.tracking.sums import MEAN_SHARE

__all__ = ["Choice", "Plan", "Split", "StreamPlan", "first_block", "plan_stream", "predict", "split_budget"]

MEMORY_LIMIT: Final = 1 << 30
# Each power product gets this many times the budget of the one before it: benchmarks/power_shares.py.
GROWTH: Final = 1.6
TURNS: Final = 4
EXACT_TURNS: Final = 24
# The mean needs little: an error e in it adds n e e^T to the Gram matrix, far below the noise that is there anyway.
_MEAN_SHARE: Final = 0.1
_SEARCH_SHARES: Final = (0.06, 0.08, 0.08)
_COUNT_SHARE: Final = 0.01
_TRACE_SHARE: Final = 0.01

# A stream looks for its mean in the first block alone, to place the ball; the mean itself comes with every release.
STREAM_MEAN_SHARES: Final = (0.05, 0.05, 0.05)
_BLOCK: Final = 512
_LARGEST_BLOCK: Final = 1 << 14
# How far off, in radii, the mean of a first block may be.
_PLACED: Final = 0.2
# Up to this many columns per direction kept, all d x d products are no more numbers than a sketch may have.
_FEW_COLUMNS: Final = 8

Mechanisms = Literal["auto", "covariance", "power"]
Publish = Literal["sync", "block", "continual"]
Way = Literal["sketch", "products", "slices", "tree"]


@final
@dataclass(frozen=True, slots=True)
class Choice:
    """One way to do it. `noise` is the spectral norm to expect of the noise on the Gram matrix, in units of row_bound^2;
    `captured` the share of the best possible variance to expect, None where the number of people is not public."""

    mechanism: Literal["covariance", "power"]
    noise: float
    memory: int
    captured: float | None
    width: int
    shares: tuple[float, ...]

    def __str__(self) -> str:
        guess = "" if self.captured is None else f", captured variance about {self.captured:.2f}"
        return f"{self.mechanism}: noise {self.noise:.3g} row_bound^2, {self.memory / 2**20:.3g} MiB{guess}"


@final
@dataclass(frozen=True, slots=True)
class Plan:
    """What was considered, what was chosen and why, all from public numbers."""

    chosen: Choice
    considered: tuple[Choice, ...]
    reason: str


def predict(
    *,
    dim: int,
    rank: int,
    budget: Budget | None,
    mechanism: Mechanisms = "auto",
    neighbours: Neighbours = Neighbours.ADD_REMOVE,
    people: int | None = None,
    spectrum: Array | None = None,
    oversample: int | None = None,
    iterations: int | None = None,
    memory_limit: int = MEMORY_LIMIT,
) -> Plan:
    """Compare the mechanisms for `rank` of `dim` components and choose one, or explain the one that was asked for.

    `spectrum` is a guess at the Gram eigenvalues over their sum, by default 1/i, with rows filling half their ball;
    it matters only for `captured`.

    >>> plan = predict(dim=100, rank=5, budget=Budget(1.0, 1e-6))
    >>> plan.chosen.mechanism
    'covariance'
    >>> predict(dim=50_000, rank=5, budget=Budget(1.0, 1e-6)).chosen.mechanism
    'power'
    """
    require(1 <= rank <= dim, f"rank must lie in 1..{dim}, got {rank}")
    width = _width(dim, rank, oversample, exact=budget is None)
    turns = iterations if iterations is not None else (EXACT_TURNS if budget is None else TURNS)
    shares = geometric_shares(turns, growth=GROWTH)
    sigma = 0.0 if budget is None else gram_sensitivity(1.0, neighbours) / budget.mu
    last = sigma / math.sqrt(shares[-1])
    eigenvalues = _eigenvalues(dim, people, spectrum)
    covariance = Choice(
        "covariance",
        noise=sigma * math.sqrt(2 * dim),
        memory=4 * dim * dim * 8,
        captured=_captured(eigenvalues, rank, sigma / math.sqrt(2), dim),
        width=rank,
        shares=(1.0,),
    )
    power = Choice(
        "power",
        noise=last * (math.sqrt(dim) + math.sqrt(width)),
        memory=6 * dim * width * 8,
        captured=_captured(eigenvalues, rank, last, dim),
        width=width,
        shares=shares,
    )
    chosen, reason = _choose(mechanism, covariance, power, memory_limit)
    return Plan(chosen, (covariance, power), reason)


def _choose(mechanism: Mechanisms, covariance: Choice, power: Choice, limit: int) -> tuple[Choice, str]:
    if mechanism != "auto":
        chosen = covariance if mechanism == "covariance" else power
        return chosen, f"{mechanism} was asked for"
    allowed = f"{limit / 2**20:.0f} MiB allowed"
    if covariance.memory <= limit:
        reason = "it is exact"
        if covariance.noise > 0:
            reason = f"its noise is {power.noise / covariance.noise:.1f} times lower than that of the power method"
        return covariance, f"covariance: {reason}, and it fits ({covariance.memory / 2**20:.1f} of {allowed})"
    return (
        power,
        f"power: the covariance would need {covariance.memory / 2**20:.0f} MiB, more than the {allowed}",
    )


def _width(dim: int, rank: int, oversample: int | None, *, exact: bool) -> int:
    if oversample is None:
        # Under noise a wide block pays for itself; without noise it only has to hold the space.
        oversample = max(10, rank) if exact else max(10, 3 * rank)
    return min(dim, rank + oversample)


def _eigenvalues(dim: int, people: int | None, spectrum: Array | None) -> Array | None:
    """Guessed Gram eigenvalues, (dim,), in units of row_bound^2."""
    if people is None:
        return None
    require(people >= 1, f"people must be at least 1, got {people}")
    shape = 1.0 / np.arange(1, dim + 1) if spectrum is None else np.asarray(spectrum, dtype=np.float64)
    require(len(shape) <= dim, f"spectrum has {len(shape)} values for {dim} columns")
    require(
        bool((shape >= 0).all()) and 0 < shape.sum() < math.inf, "spectrum must be finite, not negative, not all zero"
    )
    guess: Array = 0.5 * people * np.sort(shape)[::-1] / shape.sum()
    return guess


def _captured(eigenvalues: Array | None, rank: int, entry: float, dim: int) -> float | None:
    """Expected captured variance when entries of the noise have size `entry`: the spiked-matrix overlaps.

    A direction of eigenvalue v keeps 1 - dim entry^2 / v^2 of itself, and nothing below v = sqrt(dim) entry.
    """
    if eigenvalues is None:
        return None
    top = eigenvalues[:rank]
    with np.errstate(divide="ignore", invalid="ignore"):
        kept = np.where(top > 0, np.maximum(0.0, 1 - dim * entry**2 / top**2), 0.0)
    floor = rank * eigenvalues.sum() / dim / top.sum()
    return float(max((kept * top).sum() / top.sum(), min(1.0, floor)))


@final
@dataclass(frozen=True, slots=True)
class Split:
    """Shares of mu^2: `mean` for each step of the search for the mean, `count` beside the first, `extra` for later totals.

    What the steps leave unspent goes to the components.
    """

    mean: tuple[float, ...]
    count: float
    extra: float

    def main(self, steps: int) -> float:
        """What the components get after this many steps."""
        return 1.0 - sum(self.mean[:steps]) - (self.count if steps else 0.0) - self.extra


def split_budget(*, mean: bool, search: bool, count: bool, trace: bool) -> Split:
    """How a fit divides its budget, given which small totals it must release beside the components.

    `search` says that the mean may lie outside the first ball it is looked for in, so that further steps may be needed.

    >>> round(split_budget(mean=True, search=False, count=True, trace=False).main(1), 6)
    0.89
    """
    steps = (_SEARCH_SHARES if search else (_MEAN_SHARE,)) if mean else ()
    beside = _COUNT_SHARE if count and mean else 0.0
    alone = _COUNT_SHARE if count and not mean else 0.0
    return Split(steps, beside, alone + (_TRACE_SHARE if trace else 0.0))


@final
@dataclass(frozen=True, slots=True)
class StreamPlan:
    """How a stream is followed: in which `way`, in blocks of how many rows, in how many bytes, and why.

    The first block may be longer. `horizon_blocks` is 0 where the stream has no end that matters.
    """

    way: Way
    block: int
    first_block: int
    horizon_blocks: int
    memory: int
    reason: str


def first_block(*, noise_target: float, mu: float, neighbours: Neighbours) -> int:
    """The fewest rows whose average product has noise of standard deviation at most `noise_target`, in units of row_bound^2.

    FPCA Lemma 2.2 turned the right way up: its bracket is the noise on a sum, and dividing by n brings it under the
    target when n is at least bracket / target. The bracket here is the exact one, sensitivity / mu.

    >>> first_block(noise_target=0.01, mu=Budget(1.0, 1e-5).mu, neighbours=Neighbours.ZERO_OUT)
    374
    """
    require(0 < noise_target < math.inf, f"noise_target must be positive and finite, got {noise_target}")
    return math.ceil(gram_sensitivity(1.0, neighbours) / (mu * noise_target))


def plan_stream(
    *,
    dim: int,
    rank: int,
    oversample: int,
    budget: Budget | None,
    neighbours: Neighbours,
    publish: Publish,
    center: bool,
    adapt: bool,
    forget: bool,
    block: int | None,
    horizon: int | None,
    person_blocks: int,
    noise_target: float | None,
    memory_limit: int | None,
    sparse: bool = False,
) -> StreamPlan:
    """How to follow a stream of `dim` columns, from public numbers alone.

    A limit that is given is kept or refused. Without one, 1 GiB decides between ways, and refuses only the tree, which has
    no smaller form. Blocks of sparse rows are not counted: how much they hold is not known beforehand.

    >>> few = dict(rank=2, oversample=10, neighbours=Neighbours.ZERO_OUT, center=True, adapt=False, forget=False)
    >>> more = dict(block=None, horizon=None, person_blocks=1, noise_target=None, memory_limit=None)
    >>> plan_stream(dim=20, budget=Budget(1.0, 1e-6), publish="sync", **few, **more).way
    'products'
    >>> plan_stream(dim=50_000, budget=Budget(1.0, 1e-6), publish="sync", **few, **more).way
    'slices'
    """
    limit = MEMORY_LIMIT if memory_limit is None else memory_limit
    width = min(rank + oversample, dim)
    way, reason = _way(dim, width, budget, publish, adapt=adapt or forget, block=block or _BLOCK, limit=limit)
    size = block if block is not None else _default_block(dim, width, budget, way, center=center)
    if block is None and memory_limit is not None and not sparse:
        size = max(1, min(size, (limit // 8 - _held(dim, width, way, 0)) // (2 * dim)))
    first = size
    require(
        noise_target is None or way == "slices",
        f"noise_target is for a stream that is released block by block (publish='block'), and this one is not: {reason}",
    )
    if budget is not None and noise_target is not None:
        # The mean takes its shares first, and a person may be in several blocks.
        left = budget.mu * math.sqrt((1 - sum(STREAM_MEAN_SHARES)) * (1 - MEAN_SHARE) if center else 1.0)
        each = left / math.sqrt(person_blocks)
        first = max(size, first_block(noise_target=noise_target, mu=each, neighbours=neighbours))
    blocks = 0 if horizon is None else -(-horizon // size)
    memory = 8 * (_held(dim, width, way, blocks) + (0 if sparse else 2 * first * dim))
    require(
        memory <= limit or (memory_limit is None and way != "tree"),
        f"this stream needs about {memory / 2**20:.3g} MiB ({way}, blocks of {first} rows) and memory_limit allows "
        f"{limit / 2**20:.3g} MiB; {_ADVICE[way]}",
    )
    return StreamPlan(way, size, first, blocks, memory, reason)


_ADVICE: Final[dict[Way, str]] = {
    "sketch": "take a smaller block_size, oversample or n_components, or allow more",
    "products": "take a smaller block_size, or allow more",
    "slices": "take a smaller block_size, a larger noise_target, or allow more",
    "tree": 'publish="block" needs no d x d sums, publish="sync" fewer of them; or allow more',
}


def _way(
    dim: int, width: int, budget: Budget | None, publish: Publish, *, adapt: bool, block: int, limit: int
) -> tuple[Way, str]:
    small = 8 * (_held(dim, width, "products", 0) + 2 * min(_BLOCK, dim) * dim)
    size = f"{small / 2**20:.3g} of {limit / 2**20:.4g} MiB"
    if budget is None:
        # Four d x d matrices and a piece of a block, in no more numbers than a sketch and a second block would take.
        # A mean that moves far while old rows fade would leave only rounding of sums around the first one.
        few = dim <= _FEW_COLUMNS * width and 4 * dim + min(block, 128) <= _FEW_COLUMNS * width + block
        if few and not adapt and small <= limit:
            return (
                "products",
                f"{dim} columns are few for {width} directions, so all products are kept and nothing is lost",
            )
        return "sketch", f"the leading {width} directions are kept and brought up to date block by block"
    if publish == "continual":
        return "tree", "the estimate is public after every block, from a binary tree of releases"
    if publish == "block":
        return "slices", "every block is released on its own, a few columns of its products at a time"
    if small <= limit:
        return "products", f"one release per synchronisation: the d x d sum fits ({size}), and its noise is paid once"
    return "slices", f"every block is released on its own: the d x d sum does not fit ({size})"


def _held(dim: int, width: int, way: Way, blocks: int) -> int:
    """Numbers held beside the block, with what a step makes on the way."""
    match way:
        case "sketch":
            return 8 * dim * width
        case "slices":
            return 12 * dim * max(width, 64)
        case "products":
            return 6 * dim * dim
        case "tree":
            return (2 * blocks.bit_length() + 6) * dim * dim


def _default_block(dim: int, width: int, budget: Budget | None, way: Way, *, center: bool) -> int:
    size = max(_BLOCK, 2 * width)
    if budget is not None and center:
        # Long enough for the first block's mean to place the ball.
        needed = math.sqrt(dim) / (budget.mu * math.sqrt(STREAM_MEAN_SHARES[0]) * _PLACED)
        size = max(size, min(math.ceil(needed), max(2 * dim, (1 << 20) // dim)))
    if way == "slices":
        # Every block pays for noise of its own, so blocks are as long as a d x d matrix would be.
        size = max(size, min(_LARGEST_BLOCK, dim))
    return size
