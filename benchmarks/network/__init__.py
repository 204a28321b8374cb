"""Benchmarks of studies over a network: rounds, kills and floods."""
