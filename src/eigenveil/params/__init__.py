"""One declaration of each parameter: its name, type, default, range, help, and where it appears.

Estimators inherit these classes and with them their constructors. Commands, study files, policies, plans, model settings and
docstrings are derived from the same declarations. This package imports nothing but `errors`.
"""

from eigenveil.params.bounds import BoundsParams, ColumnBoundsParams
from eigenveil.params.declare import Param, checked, declared, param, parameters, takes
from eigenveil.params.federated import FederatedParams
from eigenveil.params.gossip import GossipParams
from eigenveil.params.plan import PlanParams
from eigenveil.params.private import PrivateParams
from eigenveil.params.recommend import InteractionsParams, ReadingParams, RecommenderParams
from eigenveil.params.simulate import SimulateParams
from eigenveil.params.spectrum import SpectrumParams
from eigenveil.params.streaming import StreamingParams

__all__ = [
    "BoundsParams",
    "ColumnBoundsParams",
    "FederatedParams",
    "GossipParams",
    "InteractionsParams",
    "Param",
    "PlanParams",
    "PrivateParams",
    "ReadingParams",
    "RecommenderParams",
    "SimulateParams",
    "SpectrumParams",
    "StreamingParams",
    "checked",
    "declared",
    "param",
    "parameters",
    "takes",
]
