"""The commands `bounds` and `spectrum`, and the option --bounds, which reads what the first one wrote.

`commands` makes commands of them; `fit` and `stream` read bounds here. It may import `estimators.bounds`, which computes, and the
shared parts of `commands`.
"""
