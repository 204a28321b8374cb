"""Benchmarks of streams and small devices."""
