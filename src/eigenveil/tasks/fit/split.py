"""`Split`: how a fit divides its budget between mean, small totals and components; `Portion`: a part of a budget as a
mechanism; and `Extent`: how much a fit releases.
"""

from dataclasses import dataclass
from typing import Final, Self, final

from eigenveil.core.ledger import Slot
from eigenveil.core.mechanism import Bounded, Calibrated, Mechanism
from eigenveil.core.threads import Array
from eigenveil.errors import require

__all__ = ["Extent", "Portion", "Split", "split_budget"]

# The mean needs little: an error e in it adds n e e^T to the Gram matrix, far less than the noise there.
_MEAN_SHARE: Final = 0.1
# Reserved for up to three steps. What the search does not use goes to the components (docs/decisions/0005).
_SEARCH_SHARES: Final = (0.06, 0.08, 0.08)
_COUNT_SHARE: Final = 0.01
# Norms around the origin, the mean, norms around it, the mean inside the bound; and the last two up to five times more while the
# mean is poor (docs/decisions/0026-private-bounds.md). The first four take 10%, and anything from 6% to 15% does the same.
_BOUND_SHARES: Final = (0.015, 0.03, *(0.02, 0.035) * 6)
# Entries of columns in four rounds, of which the last gives the units, and the mean in these units. With .02 for the first two,
# noise passed for half of the people now and then where these are just enough.
_UNIT_SHARES: Final = (0.035, 0.03, 0.03, 0.14, 0.035)
# With a given center, norms around it are all there is to search for.
_NORMS_SHARE: Final = 0.03
_TRACE_SHARE: Final = 0.01
# Where entries may be missing: how many people have each. Among 500 people 2% left rates rough, and 10% cost too much
# where nothing is missing (benchmarks/missing.py).
_OBSERVED_SHARE: Final = 0.04


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Shares of mu^2: `mean` for each step of the search for mean and bound, `count` with one of them, `extra` for later totals.

    The number of people is released with step `counted_at`. Where entries may be missing, `observed` is for the counts of those
    that are there, with step `observed_at`, and `observed_later` is that part of `extra`. The components get what the steps leave
    unspent.
    """

    mean: tuple[float, ...]
    count: float
    extra: float
    counted_at: int = 0
    observed: float = 0.0
    observed_at: int = 0
    observed_later: float = 0.0

    def main(self, steps: int) -> float:
        """What the components get after this many steps."""
        beside = (self.count if steps > self.counted_at else 0.0) + (self.observed if steps > self.observed_at else 0.0)
        return 1.0 - sum(self.mean[:steps]) - beside - self.extra

    @property
    def for_observed(self) -> float:
        """What the counts of entries that are there get, whenever they are released."""
        return self.observed + self.observed_later

    @property
    def usual(self) -> int:
        """How many steps a search takes if nothing has to be repeated."""
        return min(len(self.mean), max(2, self.counted_at + 1))

    def step(self, step: int) -> float:
        """What one step of the search spends, with the count if that is released beside it."""
        beside = (self.count if step == self.counted_at else 0.0) + (self.observed if step == self.observed_at else 0.0)
        return self.mean[step] + beside


@final
@dataclass(frozen=True, slots=True)
class Extent:
    """How much a fit releases at most: the number of rounds, the numbers in one release, and the smallest share of mu^2."""

    rounds: int
    entries: int
    smallest: float

    @classmethod
    def of(
        cls,
        split: Split,
        *,
        dim: int,
        shares: tuple[float, ...],
        rounds: int,
        size: int,
        at_most: float = 1.0,
        searched: int = 0,
        observed: int = 0,
    ) -> Self:
        """The search in all its steps, components in `rounds` of `size` numbers with these `shares`, and totals.

        A step of the search for a bound releases `searched` numbers, and `observed` counts go along with a sum.
        """
        # The components get least when the search takes all its steps, and an extent must hold in every case.
        main = min(split.main(len(split.mean)), at_most)
        each = [*split.mean, *(main * share for share in shares), *([split.extra] if split.extra > 0 else [])]
        # A step of the search releases d sums, a count and the counts of entries in one vector.
        return cls(len(split.mean) + rounds + 1, max(size, dim + 1 + observed, searched), min(each))


def split_budget(
    *,
    mean: bool,
    search: bool,
    count: bool,
    trace: bool,
    bound: bool = False,
    units: bool = False,
    observed: bool = False,
) -> Split:
    """How a fit divides its budget, given which small totals it must release besides the components.

    With `search`, the mean may lie outside the first ball, so that further steps may be needed. With `bound`, the norm to clip at
    is searched for too, and with `units` the units of the columns. With `observed`, entries may be missing, and those that are
    there are counted.

    >>> round(split_budget(mean=True, search=False, count=True, trace=False).main(1), 6)
    0.89
    """
    steps: tuple[float, ...] = (_SEARCH_SHARES if search else (_MEAN_SHARE,)) if mean else ()
    if bound:
        steps = _BOUND_SHARES if mean else (_NORMS_SHARE,)
    if units:
        steps = _UNIT_SHARES
    # The count is released with the first sum of rows. It is a release of its own only where no mean is searched for.
    beside = _COUNT_SHARE if count and mean else 0.0
    alone = _COUNT_SHARE if count and not mean else 0.0
    seen = _OBSERVED_SHARE if observed else 0.0
    later = 0.0 if mean else seen
    extra = alone + (_TRACE_SHARE if trace else 0.0) + later
    # The second mean of a search for a bound is always released, and everybody is then counted beside it. In a search for units
    # the mean is the last step. Entries are counted with the first sum of rows, which is divided by these counts.
    last = len(_UNIT_SHARES) - 1
    return Split(
        mean=steps,
        count=beside,
        extra=extra,
        counted_at=last if units else 3 if bound else 0,
        observed=seen - later,
        observed_at=last if units else 1 if bound else 0,
        observed_later=later,
    )


@final
@dataclass(frozen=True, slots=True, eq=False)
class Portion(Mechanism):
    """A part of another mechanism's budget: shares of this one are shares of its `fraction` of mu^2.

    >>> from eigenveil.core.ledger import Ledger
    >>> from eigenveil.core.mechanism import Gaussian
    >>> from eigenveil.core.noise import Noise
    >>> half = Portion(Gaussian(multiplier=5.0, ledger=Ledger(epsilon=1.0, delta=1e-6), noise=Noise.seeded(1)), 0.25)
    >>> half.scale(1.0)
    10.0
    """

    whole: Mechanism
    fraction: float

    def __post_init__(self) -> None:
        require(0 < self.fraction <= 1, f"fraction must lie in (0, 1], got {self.fraction}")

    def release(self, private: Bounded, *, label: str, share: float = 1.0, slot: Slot | None = None) -> Array:
        """Released through the whole mechanism, for a smaller share."""
        return self.whole.release(private, label=label, share=share * self.fraction, slot=slot)

    def charged(
        self, sensitivity: float, size: int, *, label: str, share: float = 1.0, slot: Slot | None = None
    ) -> "Calibrated | None":
        """Charged to the whole mechanism, for a smaller share."""
        return self.whole.charged(sensitivity, size, label=label, share=share * self.fraction, slot=slot)

    def scale(self, sensitivity: float, *, share: float = 1.0) -> float:
        """The scale of the whole mechanism, for a smaller share."""
        return self.whole.scale(sensitivity, share=share * self.fraction)
