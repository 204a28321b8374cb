"""Small releases that prepare a fit: a bound on rows, ranges of columns, and the spectrum, each found privately."""
