"""Sites around a hub, or in a tree below it: who asks, who answers, and what is said in one round.

`runtimes` carries its messages; `estimators.federated` and `network` make its parties. It may import `protocols.party` and
below.
"""
