"""Oblivious transfers, their extensions, and the key-value stores that private alignment is made of."""
