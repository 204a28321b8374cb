"""`eigenveil report`, and the option --report of other commands.

`cli` makes a command of it, and commands that fit something write their reports with `output`. It may import `report`, which
makes and draws them, and the shared parts of `cli`.
"""
