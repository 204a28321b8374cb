"""`eigenveil report`, and the option --report of other commands."""
