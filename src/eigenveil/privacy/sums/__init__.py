"""Sums over rows that may be released: rows are clipped and brought onto a public grid, added up exactly, and come with
their sensitivity."""
