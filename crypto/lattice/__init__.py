"""Encrypted products and sums with Microsoft SEAL, behind the interfaces of the kernel."""
