"""A ledger on disk: what was spent, on whom, and what is left, through crashes and in several processes.

`Ledger.open` and `--ledger` charge it before noise is drawn, agents of studies before an answer leaves, and
`eigenveil ledger` shows it. It may import `data`, `core` and `errors`.
"""
