"""What data scientists hold in their hands: estimators with scikit-learn's contract, and small releases that prepare a fit."""

from eigenveil.estimators.federated_pca import FederatedPCA
from eigenveil.estimators.find_bounds import find_bounds
from eigenveil.estimators.find_column_bounds import find_column_bounds
from eigenveil.estimators.gossip_pca import GossipPCA
from eigenveil.estimators.private_pca import PrivatePCA
from eigenveil.estimators.released_spectrum import released_spectrum
from eigenveil.estimators.streaming_pca import StreamingPCA

__all__ = [
    "FederatedPCA",
    "GossipPCA",
    "PrivatePCA",
    "StreamingPCA",
    "find_bounds",
    "find_column_bounds",
    "released_spectrum",
]
