"""`FederatedPCA`: sites around a hub or in a tree, in one process.

Users call `pca`. `spec` and `rules` check the parameters and make a `FederatedSpec`. `parties` makes each party from it,
`simulation` runs them, and `guarantee` states what holds. `network` makes the same parties for real organisations.
"""
