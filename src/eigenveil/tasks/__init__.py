"""What is computed. Each task is written once and runs in every protocol that its type allows.

Protocols, estimators and planners call it. To add a task, read `base.py`; `methods/covariance.py` is the shortest example.
It may import `privacy`, `data`, `linalg`, `params` and `errors`.
"""
