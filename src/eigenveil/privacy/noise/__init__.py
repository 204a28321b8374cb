"""Where noise comes from: the cryptographic stream, rounded normals drawn from it exactly, and the lattice of a
release.

Mechanisms call it, and nobody else adds noise. It may import `linalg` and `errors`, and knows no rows.
"""
