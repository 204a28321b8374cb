"""What data scientists hold in their hands: estimators with scikit-learn's contract."""

from eigenveil.estimators.federated_pca import FederatedPCA
from eigenveil.estimators.gossip_pca import GossipPCA
from eigenveil.estimators.private_pca import PrivatePCA
from eigenveil.estimators.streaming_pca import StreamingPCA

__all__ = ["FederatedPCA", "GossipPCA", "PrivatePCA", "StreamingPCA"]
