"""The commands below `recommend`."""
