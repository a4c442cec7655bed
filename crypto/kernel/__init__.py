"""Products of encrypted vectors as products of matrices: residues of small primes in float64, exact on any BLAS."""
