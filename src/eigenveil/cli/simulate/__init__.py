"""The command `simulate`: one table dealt out to sites or peers, all in this process.

`cli` makes a command of it. It may import `estimators`, which run the fit, `runtimes` for faults, and the shared parts of `cli`.
"""
