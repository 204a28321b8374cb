"""What a fit would find: rehearsals on a made-up table with the same spectrum, and the advice drawn from them.

The command `plan` calls it, and so may you. It runs the real tasks with real noise, so that it cannot drift
from the estimators. It may import `plan.choose`.
"""
