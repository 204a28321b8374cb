"""Benchmarks of the planner: what it predicts, and how it chooses."""
