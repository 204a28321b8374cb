"""The command `stream`: rows from a file or a pipe, read once, with a state that can be resumed.

`commands` makes a command of it. It may import `estimators.streaming`, which does the work, and the shared parts of `commands`.
"""
