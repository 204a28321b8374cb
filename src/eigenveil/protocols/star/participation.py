"""Who takes part in a round: all sites, or a few drawn anew each time (FedPower section 3.2, Alg. 3).

The draws are public: the hub makes them, and every transcript names the sites drawn. So no amplification of privacy is claimed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, final

from eigenveil.errors import require

if TYPE_CHECKING:
    # For types only: devices do without it.
    from numpy.random import Generator

__all__ = ["Sampling"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Sampling:
    """Draws of `count` sites a round. Scheme 1 draws "with-replacement" by size, scheme 2 "without-replacement" evenly.

    `sizes`, the number of rows of each site, are public. Parts are sums over rows, G_i Z. Scheme 1's mean over the draws of
    G_i Z / s_i is a sum with weights c_i / s_i, where site i was drawn c_i times. Scheme 2's is a plain sum. `factor` scales
    both to the sum over all sites, which they equal in expectation.
    """

    scheme: Literal["with-replacement", "without-replacement"]
    count: int
    sizes: Mapping[str, float]
    rng: "Generator"

    def __post_init__(self) -> None:
        require(
            self.count >= 1 and (self.scheme == "with-replacement" or self.count <= len(self.sizes)),
            f"participation must draw from 1 to {len(self.sizes)} sites, got {self.count}",
        )
        require(min(self.sizes.values()) >= 0 and sum(self.sizes.values()) > 0, "sizes of sites must be positive")

    def draw(self, sites: Sequence[str]) -> dict[str, float]:
        """The sites of `sites` that take part, in their order, with how often each was drawn."""
        if self.scheme == "without-replacement":
            chosen = set(self.rng.choice(len(sites), size=min(self.count, len(sites)), replace=False).tolist())
            return {site: 1.0 for place, site in enumerate(sites) if place in chosen}
        # Only sites that are left: draws must not go to those that dropped out.
        whole = sum(self.sizes[site] for site in sites)
        require(whole > 0, "the sites that are left have no rows")
        counts = self.rng.multinomial(self.count, [self.sizes[site] / whole for site in sites])
        return {site: float(times) for site, times in zip(sites, counts, strict=True) if times > 0}

    def weights(self, drawn: Mapping[str, float]) -> dict[str, float]:
        """The weight of each site's part in the sum."""
        if self.scheme == "without-replacement":
            return dict(drawn)
        return {site: times / self.sizes[site] for site, times in drawn.items()}

    def factor(self, drawn: Mapping[str, float], gave: Sequence[str], sites: Sequence[str]) -> float:
        """The factor of the weighted sum over the sites that `gave` a part."""
        if self.scheme == "without-replacement":
            # Over the sites that gave a part. A site that was drawn and stays silent must not shrink the estimate.
            return len(sites) / len(gave)
        return sum(self.sizes[site] for site in sites) / sum(drawn[site] for site in gave)
