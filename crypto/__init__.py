"""Cryptographic primitives: functions of bytes and arrays, which know nothing about messages or about learning.

Import this package as `securevfl.crypto`.
"""

if __name__ != "securevfl.crypto":
    raise ImportError(f"import this package as securevfl.crypto, not as {__name__!r}")
