"""Code for comparison only: published trackers, published noise scales, D-DP-PM as printed, the leakage estimate.

No guarantee rests on anything here. Estimators call it for `calibration="paper"` or `noise="published"`, and so do benchmarks. It
may import `tracking` and all below it.
"""
