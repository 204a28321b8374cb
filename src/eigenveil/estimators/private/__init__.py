"""`PrivatePCA`: one holder of all rows. `pca` is what people call, `curator` the steps of a fit."""
