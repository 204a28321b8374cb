"""Demonstrations of what attackers get: FedPower's two examples and membership inference, with and without privacy."""
