"""Mutants: deliberate errors in the library's code, each with the check that must detect it."""
