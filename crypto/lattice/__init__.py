"""Encrypted products and sums with the library Microsoft SEAL, as an alternative to `securevfl.crypto.kernel`."""
