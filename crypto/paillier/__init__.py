"""Encrypted products and sums with Paillier: keys, packing, multi-exponentiation and message formats."""
