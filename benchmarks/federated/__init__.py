"""Benchmarks of sites around a hub: FederatedPCA."""
