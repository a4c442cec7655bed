"""Encrypted products and sums under Paillier: keys, packing, powers, and the bytes that travel."""
