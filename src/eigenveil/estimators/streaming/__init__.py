"""`StreamingPCA`: rows that come in time, blocks and releases, and the state on disk."""
