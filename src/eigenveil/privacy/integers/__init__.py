"""Sums of integers modulo 2^64: the lattice, and what a site sends under masks."""
