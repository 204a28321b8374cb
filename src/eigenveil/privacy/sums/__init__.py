"""Sums over rows that tasks ask for: exact where privacy is claimed (`eigenveil.core.sums`), floating point where none is.

`bounded.py` chooses. `histories.py` clips histories of users, and `device/` adds up rows on a GPU. Tasks call it where the rows
are. It may import `core`, `data` and `linalg`.
"""
