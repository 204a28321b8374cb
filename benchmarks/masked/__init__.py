"""Benchmarks of masked sums: what they cost, and how accurate they are."""
