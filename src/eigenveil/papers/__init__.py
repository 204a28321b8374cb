"""Code for comparison only: published trackers, merges and noise scales, D-DP-PM as printed, the leakage estimate.

No guarantee rests on anything here. Commands, the audit and benchmarks call it, and estimators for `calibration="paper"` or
`noise="published"`. Nothing else may. It may import the estimators and all below them.
"""
