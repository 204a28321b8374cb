"""Engines: where rows can be that are not in this process, each an implementation of `eigenveil.core.rows.RowsElsewhere`.

`pieces.py` is what happens at a piece of a table, on every engine that splits tables into pieces. `pool.py` reads ranges of
files in several processes of this machine. Estimators and commands call this package. It may import `data`, `linalg`, `params`
and `errors`.
"""
