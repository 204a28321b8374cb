"""Streaming methods by others, behind the `Tracker` interface, to compare with. None is private: each keeps raw data."""

from eigenveil.baselines.block_power import BlockPower, BlockPowerState
from eigenveil.baselines.frequent_directions import FrequentDirections, FrequentDirectionsState
from eigenveil.baselines.grouse import Grouse, GrouseState
from eigenveil.baselines.oja import Oja, OjaState
from eigenveil.baselines.spirit import Spirit, SpiritState

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
