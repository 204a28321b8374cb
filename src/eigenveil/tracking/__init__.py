"""Components of streams in one pass: the `Tracker` interface and its trackers, with and without privacy.

Streaming estimators call it. It may import `tasks` and all below it.
"""

from eigenveil.linalg.sketch import Sketch, merge_sketches
from eigenveil.tracking.base import NOTHING_ASKED, SketchTracker, Tracker, require_exact, require_rows
from eigenveil.tracking.block import BlockState, BlockTracker
from eigenveil.tracking.gram import GramState, GramTracker
from eigenveil.tracking.rank import EnergyBounds
from eigenveil.tracking.sliced import SlicedState, SlicedTracker
from eigenveil.tracking.sums import Sums, SumTerms
from eigenveil.tracking.tree import TreeState, TreeTracker

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
