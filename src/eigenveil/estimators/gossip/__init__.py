"""`GossipPCA`: peers without a hub, in one process.

Users call `pca`. The parameters become a `GossipSpec` in `spec`. Then `parties` makes each peer from it, `simulation` runs them,
and `guarantee` states what holds. For real organisations `network` makes the same peers. It may import what
`estimators` may, and checks that are shared with `federated`.
"""
