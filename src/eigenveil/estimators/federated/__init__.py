"""`FederatedPCA`: sites around a hub or in a tree, in one process.

Users call `pca`. The parameters become a `FederatedSpec` in `spec`, checked by `rules`. Then `parties` makes each party from it,
`simulation` runs them, and `guarantee` states what holds. For real organisations `network` makes the same parties. It may
import what `estimators` may, except `gossip` and `slots`.
"""
