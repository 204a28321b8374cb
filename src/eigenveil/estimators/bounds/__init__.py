"""Small releases that prepare a fit: bounds of rows and columns, and the spectrum."""
