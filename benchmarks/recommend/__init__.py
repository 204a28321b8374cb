"""Benchmarks of the recommender."""
