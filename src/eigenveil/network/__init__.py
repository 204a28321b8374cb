"""Studies across organisations: who takes part, on what terms, under whose policy, and what was spent.

The commands of parties, keys and studies call it. `runtimes.grpc` carries the bytes; the parties are the same
ones that a simulation runs in one process. It may import `estimators`, which make them, and all below.
"""
