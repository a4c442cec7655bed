"""Encrypted products of matrices on a ring: the protocols, and arithmetic on residues that is exact with any BLAS."""
