"""`GossipPCA`: peers without a hub, in one process.

`pca` is what people call. `rules` rounds parameters into a `request`, `parties` makes each peer from it,
`simulation` runs them, and `guarantee` says what holds. `network` makes the same peers for real
organisations.
"""
