"""Benchmarks of peers without a hub: GossipPCA."""
