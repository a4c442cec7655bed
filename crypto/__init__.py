"""Primitives: no network, no learning. Imports as `securevfl.crypto`."""

if __name__ != "securevfl.crypto":
    raise ImportError(f"import this package as securevfl.crypto, not as {__name__!r}")
