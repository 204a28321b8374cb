"""Components of streams: the `Tracker` interface and the trackers that follow it."""

from eigenveil.tracking.base import NOTHING_ASKED, Tracker, require_exact, require_rows
from eigenveil.tracking.block import BlockState, BlockTracker
from eigenveil.tracking.rank import EnergyBounds
from eigenveil.tracking.sketch import Sketch, merge_sketches

__all__ = [
    "NOTHING_ASKED",
    "BlockState",
    "BlockTracker",
    "EnergyBounds",
    "Sketch",
    "Tracker",
    "merge_sketches",
    "require_exact",
    "require_rows",
]
