"""The declarations themselves: `groups` that several estimators share, and one file for each estimator, command
and file.

To add a parameter, add a `param(...)` here and use it. Everything else is derived. May import the machinery
of `params` and nothing else.
"""
