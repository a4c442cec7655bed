"""Checks of the library itself, and mutants of it that they catch: `make selfcheck`."""
