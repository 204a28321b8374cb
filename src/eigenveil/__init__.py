"""Eigenveil: private PCA for data that cannot be pooled, with a guarantee you can check, audit and sign.

>>> import numpy as np
>>> from eigenveil import PrivatePCA
>>> rows = np.random.default_rng(0).standard_normal((5000, 8)) * [4, 2, 1, 1, 1, 1, 1, 1]
>>> pca = PrivatePCA(2, epsilon=1.0, delta=1e-6).fit(rows)
>>> pca.components_.shape
(2, 8)
>>> print(pca.guarantee_.headline)
(1, 1e-06)-differential privacy for each person, who has one row
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eigenveil.data.engines.gpu import rows_on_device
    from eigenveil.data.engines.pool import rows_in_processes
    from eigenveil.data.rows import Symmetric
    from eigenveil.errors import (
        BudgetExceeded,
        EigenveilError,
        EngineLost,
        ModelFileError,
        ParameterError,
        PeerError,
        PeersLost,
        ProtocolError,
        QuorumLost,
        StateFileError,
        UnitMismatch,
    )
    from eigenveil.estimators import (
        FederatedPCA,
        FederatedStream,
        GossipPCA,
        PrivatePCA,
        StreamingPCA,
        find_bounds,
        find_column_bounds,
        released_spectrum,
    )
    from eigenveil.ledger.store import Ledger, LedgerError
    from eigenveil.linalg import Subspace, merge, merge_all
    from eigenveil.linalg.graphs import Graph
    from eigenveil.model import Model
    from eigenveil.privacy.guarantee import Guarantee
    from eigenveil.recommend import PrivateRecommender
    from eigenveil.runtimes.local import Faults

__version__ = "0.2.0.dev0"

__all__ = [
    "BudgetExceeded",
    "EigenveilError",
    "EngineLost",
    "Faults",
    "FederatedPCA",
    "FederatedStream",
    "GossipPCA",
    "Graph",
    "Guarantee",
    "Ledger",
    "LedgerError",
    "Model",
    "ModelFileError",
    "ParameterError",
    "PeerError",
    "PeersLost",
    "PrivatePCA",
    "PrivateRecommender",
    "ProtocolError",
    "QuorumLost",
    "StateFileError",
    "StreamingPCA",
    "Subspace",
    "Symmetric",
    "UnitMismatch",
    "__version__",
    "find_bounds",
    "find_column_bounds",
    "merge",
    "merge_all",
    "released_spectrum",
    "rows_in_processes",
    "rows_on_device",
]

_HOMES = {
    "BudgetExceeded": "errors",
    "EigenveilError": "errors",
    "EngineLost": "errors",
    "ModelFileError": "errors",
    "ParameterError": "errors",
    "PeerError": "errors",
    "PeersLost": "errors",
    "ProtocolError": "errors",
    "QuorumLost": "errors",
    "StateFileError": "errors",
    "UnitMismatch": "errors",
    "FederatedPCA": "estimators",
    "FederatedStream": "estimators",
    "GossipPCA": "estimators",
    "PrivatePCA": "estimators",
    "StreamingPCA": "estimators",
    "find_bounds": "estimators",
    "find_column_bounds": "estimators",
    "released_spectrum": "estimators",
    "PrivateRecommender": "recommend",
    "Graph": "linalg.graphs",
    "Subspace": "linalg",
    "merge": "linalg",
    "merge_all": "linalg",
    "Model": "model",
    "Guarantee": "privacy.guarantee",
    "Ledger": "ledger.store",
    "LedgerError": "ledger.store",
    "Symmetric": "data.rows",
    "rows_in_processes": "data.engines.pool",
    "rows_on_device": "data.engines.gpu",
    "Faults": "runtimes.local",
}


def __getattr__(name: str) -> Any:
    # Names are found on first use, so that `eigenveil --help` does not wait for scikit-learn.
    if name not in _HOMES:
        raise AttributeError(f"module 'eigenveil' has no attribute {name!r}")
    return getattr(import_module(f"eigenveil.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    # For completion: Python knows of no name that has not been used yet.
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
