"""`PrivatePCA`: one holder of all rows."""
