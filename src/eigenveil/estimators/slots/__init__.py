"""`FederatedStream`: components of streams at many sites, which are always there.

Users call `stream`. What was asked, checked and public, is in `spec`, and `parties` makes hub, nodes and sites from it: in
one process for `simulation`, and each by itself over a network. `answer` is what everybody may see at any time. `spec` and
`parties` are light, because a device loads them: without scikit-learn, pandas and pyarrow. It may
import what `estimators` may, except `federated` and `gossip`.
"""
