"""The command `plan`: what a budget will buy, from public numbers.

`commands` makes a command of it, and `eigenveil.plan` does the forecasting. It may import `plan`, `show` and the shared parts of
`commands`.
"""
