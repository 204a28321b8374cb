"""A ledger on disk: what was spent, on whom, and what is left, through crashes and in several processes.

`Ledger.open` and `--ledger` charge it before noise is drawn, agents before an answer leaves, and `eigenveil ledger` shows it.
"""
