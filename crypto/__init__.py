"""Cryptographic primitives: functions of bytes and arrays, independent of messages between parties and of learning.

Import this package as `securevfl.crypto`.
"""

if __name__ != "securevfl.crypto":
    raise ImportError(f"import this package as securevfl.crypto, not as {__name__!r}")
