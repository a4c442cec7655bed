"""The version of the package, where anything may read it without importing the rest."""

__version__ = "0.1.0"
