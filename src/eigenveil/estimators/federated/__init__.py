"""`FederatedPCA`: sites around a hub or in a tree, in one process.

`pca` is what people call. `asking` and `rules` round parameters into a `request`, `parties` makes each party
from it, `simulation` runs them, and `guarantee` says what holds. `network` makes the same parties for real
organisations.
"""
