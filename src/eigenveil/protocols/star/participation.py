"""Who takes part in a round: everybody, or a few that are drawn anew each time (FedPower section 3.2, Alg. 3).

The draws are public and no amplification of privacy is claimed for them: the hub makes them, and every transcript names
who took part.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, final

from numpy.random import Generator

from eigenveil.errors import require

__all__ = ["Sampling"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Sampling:
    """Draws of `count` sites a round. Scheme 1 draws "with-replacement" by size, scheme 2 "without-replacement" evenly.

    `sizes`, the rows of each site, are public numbers. Parts are sums over rows, G_i Z, so scheme 1's mean over the draws of
    G_i Z / s_i is a sum with weights c_i / s_i, c_i being how often site i was drawn, and scheme 2's is a plain sum; `factor`
    brings both to the size of the sum over all sites, which they equal on average.
    """

    scheme: Literal["with-replacement", "without-replacement"]
    count: int
    sizes: Mapping[str, float]
    rng: Generator

    def __post_init__(self) -> None:
        require(
            self.count >= 1 and (self.scheme == "with-replacement" or self.count <= len(self.sizes)),
            f"participation must draw from 1 to {len(self.sizes)} sites, got {self.count}",
        )
        require(min(self.sizes.values()) >= 0 and sum(self.sizes.values()) > 0, "sizes of sites must be positive")

    def draw(self, sites: Sequence[str]) -> dict[str, float]:
        """Those of `sites` who take part, in their order, with how often each one was drawn."""
        if self.scheme == "without-replacement":
            chosen = set(self.rng.choice(len(sites), size=min(self.count, len(sites)), replace=False).tolist())
            return {site: 1.0 for place, site in enumerate(sites) if place in chosen}
        whole = sum(self.sizes[site] for site in sites)
        require(whole > 0, "the sites that are left have no rows")
        counts = self.rng.multinomial(self.count, [self.sizes[site] / whole for site in sites])
        return {site: float(times) for site, times in zip(sites, counts, strict=True) if times > 0}

    def weights(self, drawn: Mapping[str, float]) -> dict[str, float]:
        """How often each one's part counts in the sum."""
        if self.scheme == "without-replacement":
            return dict(drawn)
        return {site: times / self.sizes[site] for site, times in drawn.items()}

    def factor(self, drawn: Mapping[str, float], gave: Sequence[str], sites: Sequence[str]) -> float:
        """What the weighted sum over those who `gave` is multiplied by."""
        if self.scheme == "without-replacement":
            return len(sites) / len(gave)
        return sum(self.sizes[site] for site in sites) / sum(drawn[site] for site in gave)
