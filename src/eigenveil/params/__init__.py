"""One declaration of each parameter: its name, type, default, range, help, and where it appears.

Estimators inherit these classes and with them their constructors. Commands, study files, policies, plans, model settings and
docstrings are derived from the same declarations: all of them import this package. It imports `errors` alone, so that
`--help` answers at once.
"""

from eigenveil.params.declarations.bounds import BoundsParams, ColumnBoundsParams, SpectrumParams
from eigenveil.params.declarations.federated import FederatedParams
from eigenveil.params.declarations.gossip import GossipParams
from eigenveil.params.declarations.plan import PlanParams
from eigenveil.params.declarations.private import PrivateParams
from eigenveil.params.declarations.reading import ColumnsParams
from eigenveil.params.declarations.recommend import InteractionsParams, ReadingParams, RecommenderParams
from eigenveil.params.declarations.simulate import SimulateParams
from eigenveil.params.declarations.slots import SlotStreamParams
from eigenveil.params.declarations.streaming import StreamingParams
from eigenveil.params.declare import Param, checked, declared, param, parameters, takes

__all__ = [
    "BoundsParams",
    "ColumnBoundsParams",
    "ColumnsParams",
    "FederatedParams",
    "GossipParams",
    "InteractionsParams",
    "Param",
    "PlanParams",
    "PrivateParams",
    "ReadingParams",
    "RecommenderParams",
    "SimulateParams",
    "SlotStreamParams",
    "SpectrumParams",
    "StreamingParams",
    "checked",
    "declared",
    "param",
    "parameters",
    "takes",
]
