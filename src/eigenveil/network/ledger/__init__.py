"""A site's ledger on disk: what was spent, on whom, and what is left, through crashes.

Agents charge it before an answer leaves; `eigenveil ledger` shows it. It may import `network.identity` and below, never
`network.agents`.
"""
