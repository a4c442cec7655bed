"""Conversion of keys and ciphertexts from and to those of `phe` (python-paillier), with which tests compare ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from securevfl.base.extras import import_extra
from securevfl.crypto.paillier.paillier_keys import PublicKey, SecretKey
from securevfl.errors import KeyMismatch


def _phe() -> Any:
    return import_extra("phe", "phe", "keys and ciphertexts of phe")


def public_to_phe(public: PublicKey) -> Any:
    """Convert a public key to a `phe.PaillierPublicKey` with the same n. It has no place for h."""
    return _phe().PaillierPublicKey(int(public.n))


def secret_from_phe(private: Any) -> SecretKey:
    """Make a key with the primes of a `phe.PaillierPrivateKey`. CryptoError or ConfigError if they are unfit."""
    return SecretKey.from_primes(int(private.p), int(private.q))


def to_phe(public: PublicKey, ciphertexts: Sequence[int]) -> list[Any]:
    """Convert to `phe.EncryptedNumber` of integers (exponent 0). Raise CryptoError unless all are units mod n^2."""
    phe, key = _phe(), public_to_phe(public)
    return [phe.EncryptedNumber(key, int(c)) for c in public.check_units(ciphertexts)]


def from_phe(public: PublicKey, encrypted: Sequence[Any]) -> list[int]:
    """Raw ciphertexts of `phe.EncryptedNumber`s, re-randomised by phe where it has not yet done so. The caller keeps
    their exponents.

    KeyMismatch if one belongs to another n; CryptoError unless all are units mod n^2.
    """
    if any(int(number.public_key.n) != public.n for number in encrypted):
        raise KeyMismatch("a phe ciphertext belongs to another key; encrypt it under this one")
    return [int(c) for c in public.check_units(number.ciphertext() for number in encrypted)]
