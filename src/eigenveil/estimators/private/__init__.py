"""`PrivatePCA`: one curator has all rows.

Users and the command `fit` call `pca`, and `curator` has the steps of a fit. It may import what `estimators` may, except
federated, gossip and streaming estimators.
"""
