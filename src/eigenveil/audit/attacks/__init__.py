"""Demonstrations of what attackers get: FedPower's two examples and membership inference, with and without privacy.

`eigenveil audit --demonstrate` and the tests call it. It may import what `audit` may.
"""
