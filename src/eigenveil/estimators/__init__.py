"""What data scientists hold in their hands: estimators with scikit-learn's contract."""

from eigenveil.estimators.private_pca import PrivatePCA

__all__ = ["PrivatePCA"]
