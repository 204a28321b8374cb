"""The public estimators, with scikit-learn's contract, and the small releases that prepare a fit.

Users, `recommend`, `network` and `commands` call them. They may import everything up to `plan` and `model`, and nothing above.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eigenveil.estimators.bounds.columns import find_column_bounds
    from eigenveil.estimators.bounds.rows import find_bounds
    from eigenveil.estimators.bounds.spectrum import released_spectrum
    from eigenveil.estimators.federated.pca import FederatedPCA
    from eigenveil.estimators.gossip.pca import GossipPCA
    from eigenveil.estimators.private import PrivatePCA
    from eigenveil.estimators.slots.stream import FederatedStream
    from eigenveil.estimators.streaming.pca import StreamingPCA

__all__ = [
    "FederatedPCA",
    "FederatedStream",
    "GossipPCA",
    "PrivatePCA",
    "StreamingPCA",
    "find_bounds",
    "find_column_bounds",
    "released_spectrum",
]

_HOMES = {
    "FederatedPCA": "federated.pca",
    "FederatedStream": "slots.stream",
    "GossipPCA": "gossip.pca",
    "PrivatePCA": "private",
    "StreamingPCA": "streaming.pca",
    "find_bounds": "bounds.rows",
    "find_column_bounds": "bounds.columns",
    "released_spectrum": "bounds.spectrum",
}


def __getattr__(name: str) -> Any:
    # Found on first use: a site of a network study needs modules of this package and no scikit-learn, which loads slowly.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
