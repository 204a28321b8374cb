"""`FederatedPCA`: sites around a hub or in a tree. The parameters become a `FederatedSpec`, and `Parties` makes the parties."""
