"""Benchmarks of bounds and units that are found privately."""
