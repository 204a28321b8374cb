"""A site's ledger on disk: what was spent, on whom, and what is left, through crashes."""
