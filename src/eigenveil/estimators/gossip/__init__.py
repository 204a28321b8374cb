"""`GossipPCA`: peers without a hub, in one process.

Users call `pca`. The parameters become a `GossipSpec`, and `PeerParties` makes each peer from it. For real organisations
`network` makes the same peers. It may import what `estimators` may, and checks that are shared with `federated`.
"""
