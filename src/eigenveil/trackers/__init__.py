"""Components of streams in one pass: the `Tracker` interface and its trackers, with and without privacy.

A new tracker is a file with a `KIND`, and its line in the registry. Plans and streaming estimators call it, and so do state files
and reports. Other people's trackers are in `papers.trackers`: no stream may have them, so they have no kind. It may import
`tasks` and all below it.
"""

from collections.abc import Callable
from typing import Final

from eigenveil.linalg.sketch import Sketch, merge_sketches
from eigenveil.trackers import products, sketch, slices, tree
from eigenveil.trackers.base import (
    NOTHING_ASKED,
    SketchTracker,
    StreamRequest,
    Tracker,
    TrackerKind,
    TrackerTerms,
    require_exact,
    require_rows,
)
from eigenveil.trackers.products import GramTracker
from eigenveil.trackers.sketch import BlockTracker
from eigenveil.trackers.slices import SlicedTracker
from eigenveil.trackers.sums import EnergyBounds, Sums, SumTerms
from eigenveil.trackers.tree import TreeTracker

__all__ = [
    "NOTHING_ASKED",
    "PUBLISH",
    "TRACKERS",
    "BlockTracker",
    "EnergyBounds",
    "GramTracker",
    "Sketch",
    "SketchTracker",
    "SlicedTracker",
    "StreamRequest",
    "SumTerms",
    "Sums",
    "Tracker",
    "TrackerKind",
    "TrackerTerms",
    "TreeTracker",
    "merge_sketches",
    "published_as",
    "publishing",
    "require_exact",
    "require_rows",
]

# A stream has the first of these that suits it.
TRACKERS: Final[dict[str, TrackerKind]] = {kind.name: kind for kind in (products.KIND, slices.KIND, tree.KIND, sketch.KIND)}
# The words of `publish`.
PUBLISH: Final = tuple(kind.publishes for kind in TRACKERS.values() if kind.publishes)


def publishing(claim: Callable[[TrackerKind], bool]) -> str:
    """The words of `publish` whose trackers are as claimed, in a message."""
    choices = [kind.publishes for kind in TRACKERS.values() if kind.publishes and claim(kind)]
    return " or ".join(f"{{publish={word}}}" for word in choices)


def published_as(word: str) -> TrackerKind:
    """The tracker that releases as this word of `publish` says."""
    return next(kind for kind in TRACKERS.values() if kind.publishes == word)
