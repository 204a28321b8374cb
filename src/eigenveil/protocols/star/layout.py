"""Who reports to whom: sites around a hub, or in a tree of a given fan-out (FPCA Alg. 1, Fig. 1).

And who takes part in a round: all sites, or a few drawn anew each time (FedPower section 3.2, Alg. 3). The draws are public: the
hub makes them, and every transcript names the sites drawn. So no amplification of privacy is claimed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, final

from eigenveil.errors import require
from eigenveil.protocols.messages import LONGEST_NAME

if TYPE_CHECKING:
    # For types only: devices do without it.
    from numpy.random import Generator

__all__ = ["Layout", "Sampling", "star", "tree"]


@final
@dataclass(frozen=True, slots=True)
class Layout:
    """For the hub and each inner node, the names directly below it, each with the sites behind it, in site order.

    `levels` is a node's distance from the hub.
    """

    hub: str
    below: dict[str, dict[str, tuple[str, ...]]]
    levels: dict[str, int]

    @property
    def nodes(self) -> tuple[str, ...]:
        """The inner nodes."""
        return tuple(name for name in self.below if name != self.hub)

    def above(self) -> dict[str, str]:
        """For each node and site, the node or hub it reports to."""
        return {name: parent for parent, children in self.below.items() for name in children}


def star(sites: Sequence[str], *, hub: str = "hub") -> Layout:
    """Every site reports to the hub.

    >>> star(["a", "b"]).below
    {'hub': {'a': ('a',), 'b': ('b',)}}
    """
    _require_names(sites, hub)
    return Layout(hub, {hub: {site: (site,) for site in sites}}, {hub: 0})


def tree(sites: Sequence[str], *, fanout: int, hub: str = "hub") -> Layout:
    """At most `fanout` names below the hub and below each node; sites that follow each other share a node.

    >>> layout = tree(["a", "b", "c"], fanout=2)
    >>> layout.below["hub"]
    {'node 1': ('a', 'b'), 'c': ('c',)}
    >>> layout.above()["a"], layout.levels["node 1"]
    ('node 1', 1)
    """
    require(fanout >= 2, f"fanout must be at least 2, got {fanout}")
    _require_names(sites, hub)
    below: dict[str, dict[str, tuple[str, ...]]] = {}
    level: dict[str, tuple[str, ...]] = {site: (site,) for site in sites}
    count = 0
    # From the sites upwards, one level at a time, until few enough names are left for the hub.
    while len(level) > fanout:
        names, upper = list(level), {}
        for start in range(0, len(names), fanout):
            group = names[start : start + fanout]
            if len(group) == 1:
                # A node over a single name would only pass messages on.
                upper[group[0]] = level[group[0]]
                continue
            count += 1
            below[f"node {count}"] = {name: level[name] for name in group}
            upper[f"node {count}"] = tuple(site for name in group for site in level[name])
        level = upper
    below[hub] = level
    return Layout(hub, below, _levels(below, hub))


def _levels(below: dict[str, dict[str, tuple[str, ...]]], hub: str) -> dict[str, int]:
    levels: dict[str, int] = {}
    row, depth = [hub], 0
    while row:
        levels |= dict.fromkeys(row, depth)
        row = [name for parent in row for name in below[parent] if name in below]
        depth += 1
    return levels


def _require_names(sites: Sequence[str], hub: str) -> None:
    require(len(sites) > 0, "at least one site is needed, got none")
    require(len(set(sites)) == len(sites), "two sites have the same name; give each its own")
    short = all(0 < len(site) <= LONGEST_NAME for site in sites)
    require(short, f"the name of a site must have 1 to {LONGEST_NAME} characters")
    # Messages are addressed by name alone, so such a site would get those of the hub or of a node.
    taken = [site for site in sites if site == hub or site.startswith("node ")]
    require(not taken, f"a site cannot be called {', '.join(taken[:1])}: hubs and nodes have that name")


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
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
