"""`StreamingPCA`: rows that arrive over time.

Users call `pca`. The checked parameters are in `spec`. Rows are checked and gathered into blocks in `buffer`, and `stream` takes
the blocks and releases. What came from other streams is in `merged`, and the state on disk in `state_file`. It may import
what `estimators` may, and gets its trackers from `trackers`.
"""
