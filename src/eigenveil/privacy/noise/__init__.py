"""Where noise comes from: the cryptographic stream, rounded normals drawn from it exactly, and the lattice of a release.

Only mechanisms call it: noise is drawn here and added in `privacy/mechanism.py` and `privacy/integers/`. It may import `linalg`
and `errors`, and never sees rows.
"""
