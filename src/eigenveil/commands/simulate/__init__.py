"""The command `simulate`: one table dealt out to sites or peers, all in this process.

`commands` makes a command of it. It may import `estimators`, which run the fit, `runtimes` for faults, and shared parts.
"""
