"""`GossipPCA`: peers without a hub, in one process."""
