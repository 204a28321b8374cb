"""`PrivatePCA`: one curator has all rows. Users call `pca`, and `curator` has the steps of a fit."""
