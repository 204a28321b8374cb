"""`FederatedPCA`: sites around a hub, in one process."""
