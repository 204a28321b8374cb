"""What attackers get, as demonstrations: FedPower's two examples and membership inference, with and without privacy."""
