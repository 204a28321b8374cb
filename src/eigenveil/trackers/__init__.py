"""Components of streams in one pass: the `Tracker` interface and its trackers, with and without privacy.

Streaming estimators call it. It may import `tasks` and all below it.
"""

from eigenveil.linalg.sketch import Sketch, merge_sketches
from eigenveil.trackers.base import NOTHING_ASKED, SketchTracker, Tracker, require_exact, require_rows
from eigenveil.trackers.products import GramState, GramTracker
from eigenveil.trackers.rank import EnergyBounds
from eigenveil.trackers.sketch import BlockState, BlockTracker
from eigenveil.trackers.slices import SlicedState, SlicedTracker
from eigenveil.trackers.sums import Sums, SumTerms
from eigenveil.trackers.tree import TreeState, TreeTracker

__all__ = [
    "NOTHING_ASKED",
    "BlockState",
    "BlockTracker",
    "EnergyBounds",
    "GramState",
    "GramTracker",
    "Sketch",
    "SketchTracker",
    "SlicedState",
    "SlicedTracker",
    "SumTerms",
    "Sums",
    "Tracker",
    "TreeState",
    "TreeTracker",
    "merge_sketches",
    "require_exact",
    "require_rows",
]
