"""Which method, in how many rounds, from public numbers alone.

Estimators ask before every fit, and `plan.forecast` asks for what it rehearses. It may import
`plan.spectrum`, `tasks` and what they may.
"""
