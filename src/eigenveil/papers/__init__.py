"""What exists to compare with: other people's trackers, published noise scales, D-DP-PM as printed, the leakage
estimate."""
