"""Which mechanism or method, in how many rounds, from public numbers alone."""
