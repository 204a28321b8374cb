"""Published streaming methods with the `Tracker` interface, for comparison. None is private: each keeps raw data.

Benchmarks and tests call them; nothing that users call does. They may import `trackers` and below.
"""

from eigenveil.papers.trackers.block_power import BlockPower, BlockPowerState
from eigenveil.papers.trackers.frequent_directions import FrequentDirections, FrequentDirectionsState
from eigenveil.papers.trackers.row_updates import Grouse, GrouseState, Oja, OjaState
from eigenveil.papers.trackers.spirit import Spirit, SpiritState

__all__ = [
    "BlockPower",
    "BlockPowerState",
    "FrequentDirections",
    "FrequentDirectionsState",
    "Grouse",
    "GrouseState",
    "Oja",
    "OjaState",
    "Spirit",
    "SpiritState",
]
