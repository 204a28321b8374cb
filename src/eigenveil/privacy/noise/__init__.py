"""Where noise comes from: the cryptographic stream, rounded normals, the lattice of a release, and noise that cancels
between pairs."""
