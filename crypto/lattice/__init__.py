"""Encrypted products and sums in SEAL, behind the interface of the kernel."""
