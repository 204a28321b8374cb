"""`GossipPCA`: peers without a hub. The parameters become a `GossipSpec`, and `PeerParties` makes each peer from it."""
