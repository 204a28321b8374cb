"""The declarations: `groups` that several estimators share, and one module for each estimator, command and file.

To add a parameter, add a `param(...)` here and use it. Everything else is derived. Estimators, commands and study files use them,
mostly through `params`. They may import the machinery of `params` and `errors`, and nothing else.
"""
