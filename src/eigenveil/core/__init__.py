"""What a release rests on, and nothing else. What it costs: `unit`, `accounting`, `ledger`, `noise`, `mechanism`.

Why its sensitivity holds: `rows`, `threads`, `exact`, `domain`, `whole`, `sums`, `counts`. Everything above calls it. It imports
numpy, cryptography, the standard library and `eigenveil.errors`.
"""
