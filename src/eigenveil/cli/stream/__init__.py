"""The command `stream`."""
