"""Forecasts what a fit would find, by rehearsing it on an artificial table with the same spectrum, and recommends a
method.

The command `plan` calls it, and so can you. It runs the real tasks with real noise, so it cannot drift from the
estimators. It may import `plan.choose` and all that `plan` may.
"""
