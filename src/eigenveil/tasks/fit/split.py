"""`Split`: how a fit divides its budget between mean, small totals and components; and `Extent`: how much it releases."""

from dataclasses import dataclass
from typing import Final, Self, final

__all__ = ["Extent", "Split", "split_budget"]

# The mean needs little: an error e in it adds n e e^T to the Gram matrix, far less than the noise there.
_MEAN_SHARE: Final = 0.1
# Reserved for up to three steps. What the search does not use goes to the components (docs/decisions/0005).
_SEARCH_SHARES: Final = (0.06, 0.08, 0.08)
_COUNT_SHARE: Final = 0.01
_TRACE_SHARE: Final = 0.01


@final
@dataclass(frozen=True, slots=True)
class Split:
    """Shares of mu^2: `mean` for each step of the search for the mean, `count` with the first, `extra` for later totals.

    The components get what the steps leave unspent.
    """

    mean: tuple[float, ...]
    count: float
    extra: float

    def main(self, steps: int) -> float:
        """What the components get after this many steps."""
        return 1.0 - sum(self.mean[:steps]) - (self.count if steps else 0.0) - self.extra


@final
@dataclass(frozen=True, slots=True)
class Extent:
    """How much a fit releases at most: the number of rounds, the numbers in one release, and the smallest share of mu^2."""

    rounds: int
    entries: int
    smallest: float

    @classmethod
    def of(
        cls, split: Split, *, dim: int, shares: tuple[float, ...], rounds: int, size: int, at_most: float = 1.0
    ) -> Self:
        """The search for the mean in all its steps, components in `rounds` of `size` numbers with these `shares`, and totals."""
        # The components get least when the search takes all its steps, and an extent must hold in every case.
        main = min(split.main(len(split.mean)), at_most)
        each = [*split.mean, *(main * share for share in shares), *([split.extra] if split.extra > 0 else [])]
        # A step of the search releases d sums and a count in one vector.
        return cls(len(split.mean) + rounds + 1, max(size, dim + 1), min(each))


def split_budget(*, mean: bool, search: bool, count: bool, trace: bool) -> Split:
    """How a fit divides its budget, given which small totals it must release besides the components.

    With `search`, the mean may lie outside the first ball, so that further steps may be needed.

    >>> round(split_budget(mean=True, search=False, count=True, trace=False).main(1), 6)
    0.89
    """
    steps = (_SEARCH_SHARES if search else (_MEAN_SHARE,)) if mean else ()
    # The count is released with the first sum of rows. It is a release of its own only where no mean is searched for.
    beside = _COUNT_SHARE if count and mean else 0.0
    alone = _COUNT_SHARE if count and not mean else 0.0
    return Split(steps, beside, alone + (_TRACE_SHARE if trace else 0.0))
