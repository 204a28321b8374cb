"""The public estimators, with scikit-learn's contract, and the small releases that prepare a fit.

Users, `recommend`, `network` and `cli` call them. They may import everything up to `plan` and `model`, and nothing above.
"""

from eigenveil.estimators.bounds.columns import find_column_bounds
from eigenveil.estimators.bounds.rows import find_bounds
from eigenveil.estimators.bounds.spectrum import released_spectrum
from eigenveil.estimators.federated.pca import FederatedPCA
from eigenveil.estimators.gossip.pca import GossipPCA
from eigenveil.estimators.private.pca import PrivatePCA
from eigenveil.estimators.streaming.pca import StreamingPCA

__all__ = [
    "FederatedPCA",
    "GossipPCA",
    "PrivatePCA",
    "StreamingPCA",
    "find_bounds",
    "find_column_bounds",
    "released_spectrum",
]
