"""`StreamingPCA`: rows that arrive over time are checked and gathered in `buffer`, and a `Stream` takes blocks and releases."""
