"""Sums over rows that may be released: rows are clipped, rounded onto a public grid and added up exactly.

`domain.py` clips rows; `bounded.py` returns each sum as a `Bounded`, with its proved sensitivity. Tasks call it where the
rows are. It may import `privacy.noise` for its lattice, `privacy.sensitivity`, `data` and `linalg`.
"""
