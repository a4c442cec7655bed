"""Encrypted products and sums by lattices: polynomials under RLWE in SEAL, and their shares modulo 2^L."""
