"""Checks of the library itself, and mutants of it that they catch: `pytest --pyargs securevfl.selfcheck`."""
