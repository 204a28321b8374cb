"""`GossipPCA`: peers without a hub, in one process.

Users call `pca`. `spec` checks the parameters and makes a `GossipSpec`. `parties` makes each peer from it, `simulation` runs
them, and `guarantee` states what holds. `network` makes the same peers for real organisations.
"""
