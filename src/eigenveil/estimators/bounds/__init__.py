"""Small private releases that prepare a fit: a bound on row norms, ranges of columns, and the spectrum.

The commands `bounds` and `spectrum` call them, and so do users. They may import what estimators may.
"""
