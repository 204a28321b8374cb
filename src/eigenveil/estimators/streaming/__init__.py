"""`StreamingPCA`: rows that arrive over time.

Users call `pca`. Rows are checked and gathered into blocks in `buffer`, and `stream` takes the blocks and releases. The state
on disk is in `state_file`. It may import what `estimators` may, and gets its trackers from `trackers`.
"""
