"""Products of encrypted vectors on a ring: their protocol, and our arithmetic, exact on any BLAS."""
