"""`StreamingPCA`: rows that come in time.

`pca` is what people call, `stream` holds blocks and releases, `state_file` the state on disk.
"""
