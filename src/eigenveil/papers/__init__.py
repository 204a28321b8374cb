"""What exists only to compare with: other people's trackers, published noise scales, D-DP-PM as printed, the
leakage estimate.

No guarantee rests on anything in here. Estimators call it where somebody asks for `calibration="paper"` or
`noise="published"`, and so do benchmarks. It may import `tracking` and all below it.
"""
