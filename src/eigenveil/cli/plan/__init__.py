"""The command `plan`: what a budget will buy, from public numbers.

`cli` makes a command of it, and `eigenveil.plan` does the forecasting. It may import `plan`, `report` and the shared parts of
`cli`.
"""
