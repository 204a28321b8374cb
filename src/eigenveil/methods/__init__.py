"""The ways to find components, one file each.

Planners, estimators and the recommender call it. It may import `tasks`, `protocols.pooled` and below.
"""
