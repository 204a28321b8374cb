"""One declaration of each parameter: its name, type, default, range, help, and where it appears.

Estimators inherit these classes and with them their constructors. Commands, study files, policies, plans, model settings and
docstrings are derived from the same declarations: all of them import this package. It imports `errors` alone, so that
`--help` answers at once.
"""

from eigenveil.params.declarations.federated import FederatedParams, GossipParams
from eigenveil.params.declarations.groups import ColumnsParams
from eigenveil.params.declarations.plan import PlanParams, SimulateParams
from eigenveil.params.declarations.private import BoundsParams, ColumnBoundsParams, PrivateParams, SpectrumParams
from eigenveil.params.declarations.recommend import InteractionsParams, ReadingParams, RecommenderParams
from eigenveil.params.declarations.streaming import SlotStreamParams, StreamingParams
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
