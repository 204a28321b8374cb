"""`FederatedPCA`: sites around a hub or in a tree, in one process.

Users call `pca`. The parameters become a `FederatedSpec`, and `Parties` makes each party from it. For real organisations
`network` makes the same parties. It may import what `estimators` may, except `gossip` and `slots`.
"""
