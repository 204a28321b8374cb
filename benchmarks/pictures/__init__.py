"""Pictures in the docs, drawn by the package itself."""
