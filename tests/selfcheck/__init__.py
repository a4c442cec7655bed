"""Checks of the library itself, and mutants (deliberate errors in its code) that they detect: `make selfcheck`."""
