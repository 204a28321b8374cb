"""`eigenveil report`, and the option --report of other commands.

`commands` makes a command of it, and commands that fit something write their reports with `output`. It may import `show`, which
makes and draws them, and the shared parts of `commands`.
"""
