"""Runs written down: everything a party received, and everything it learned."""
