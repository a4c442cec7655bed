"""The Paillier cryptosystem for encrypted products and sums: keys, packing, multi-exponentiation, message formats."""
