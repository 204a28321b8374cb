"""Small private releases that prepare a fit: a bound on row norms, ranges of columns, and the spectrum."""
