"""Every error that securevfl raises on purpose.

    SecureVFLError
    |-- ConfigError         a job, a key size or an option that cannot be used
    |   `-- LeakageError    a choice that protects nothing, or a leak the job has not accepted
    |-- DataError           a party's table, labels or ids
    |-- ProtocolError       the peer broke the protocol (wrong message, altered frame, other job)
    |-- TransportError      a peer is away, refused, or too late
    `-- CryptoError
        |-- RangeError      a value outside the agreed fixed-point range
        `-- KeyMismatch     a ciphertext or key that does not belong together

A message says who, what was expected, what came and what to do. It never shows a value of anyone's data.
"""

from __future__ import annotations

__all__ = [
    "ConfigError",
    "CryptoError",
    "DataError",
    "KeyMismatch",
    "LeakageError",
    "ProtocolError",
    "RangeError",
    "SecureVFLError",
    "TransportError",
]


class SecureVFLError(Exception):
    """Base of all of them."""


class ConfigError(SecureVFLError):
    """A job, a key size or an option that cannot be used."""


class LeakageError(ConfigError):
    """The job would reveal more than it has accepted."""


class DataError(SecureVFLError):
    """A party's table, labels or ids."""


class ProtocolError(SecureVFLError):
    """The peer broke the protocol."""


class TransportError(SecureVFLError):
    """A peer is away, refused, or too late."""


class CryptoError(SecureVFLError):
    """A key, a ciphertext or a plaintext that cannot be used."""


class RangeError(CryptoError):
    """A value outside the agreed fixed-point range."""


class KeyMismatch(CryptoError):
    """A ciphertext or key that does not belong together."""
