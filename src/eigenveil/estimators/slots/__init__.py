"""`FederatedStream`: components of streams at many sites, which are always there.

Users call `stream`. Devices load `parties`, without scikit-learn, pandas and pyarrow. `answer` is what all parties
may see at any time. It may import what `estimators` may, except `federated` and `gossip`.
"""
