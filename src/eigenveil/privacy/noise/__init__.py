"""Where noise comes from: the cryptographic stream, rounded normals drawn from it exactly, and the lattice of a release.

Mechanisms draw noise here, and add it in `privacy/mechanism.py` and `privacy/integers/`. Tasks and protocols use the lattice.
It may import `linalg` and `errors`, and never sees rows.
"""
