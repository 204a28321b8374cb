"""The commands `bounds` and `spectrum`."""
