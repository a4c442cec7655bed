"""Cryptographic primitives: functions of bytes and arrays, without network or learning.

The package is imported as `securevfl.crypto`.
"""

if __name__ != "securevfl.crypto":
    raise ImportError(f"import this package as securevfl.crypto, not as {__name__!r}")
