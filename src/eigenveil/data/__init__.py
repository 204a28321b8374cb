"""Rows and where they come from: tables, files, streams, archives, and which identifiers name a person.

Estimators and commands read data here; tasks and privacy know it only as `Rows`. It may import `linalg`,
`params` and `errors`.
"""
