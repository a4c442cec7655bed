"""Conversion of SEAL's objects to and from numpy arrays; the only module that knows SEAL's file format.

A polynomial of SEAL has N coefficients or values, each as residues modulo several primes: an array of uint64
(polynomials, primes, N). The Python binding `tenseal.sealapi` can only save objects to files and load them, and always
compresses them (zstd). Objects therefore pass through an anonymous file in memory, which is closed at once, so no
secret key is ever written to disk.

Parties do not send SEAL's format to each other but plain residues, each in the bytes that its prime needs. So a peer
cannot choose a header, a size or a compressed stream for SEAL. This module writes every byte of the header, the
parameters determine the size of the array, and SEAL's validating `load` checks that each residue is below its prime.

The file format (SEAL 4, `Serialization::SEALHeader`, `Ciphertext::save_members`, `DynArray::save_members`), with sizes
in bytes; parms_id is SEAL's digest of the parameters:

    header      magic number A15E (2), header size 16 (1), version (2), compression (1), 0 (2), total size (8)
    ciphertext  header, parms_id (32), whether in NTT form (1), polynomials, N, primes (8 each), scale (8), correction
                factor (8), array
    plaintext   header, parms_id (32), N * primes (8), scale (8), array; a secret key has the parms_id of keys
    array       header, count (8), residues (8 each)
    seeded      a ciphertext whose array has only the first polynomial; then a header, generator (1), seed (64)
"""

from __future__ import annotations

import math
import os
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import tenseal.sealapi as seal

from securevfl.base.platform_files import read_at
from securevfl.crypto.lattice.residue_encoding import Residues
from securevfl.crypto.share_ring import Words
from securevfl.errors import ConfigError, CryptoError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

SEAL_SEED_BYTES = 64
"""Length in bytes of the seed from which SEAL computes the second polynomial of a ciphertext."""

_HEADER = struct.Struct("<HBBBBHQ")

_MAGIC = 0xA15E

_MEMBERS = struct.Struct("<32s?QQQdQ")

_PLAIN_MEMBERS = struct.Struct("<32sQd")

_COUNT = struct.Struct("<Q")

_BLAKE2XB = 1

_SEEDED_TAIL = _HEADER.size + 1 + SEAL_SEED_BYTES


@contextmanager
def _scratch() -> Iterator[tuple[int, str]]:
    """Open an anonymous file in memory; yield its descriptor and path. Raise ConfigError if the system has none."""
    if not hasattr(os, "memfd_create"):
        raise ConfigError(
            "SEAL needs anonymous files in memory, which this system lacks: keys would be written to disk",
            'use library = "own", or run on Linux',
            code="SVFL-CRYPTO-LIBRARY",
        )
    fd = os.memfd_create("securevfl", os.MFD_CLOEXEC)
    try:
        yield fd, f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


def _saved(obj: Any) -> bytes:
    with _scratch() as (fd, path):
        obj.save(path)
        return read_at(fd, os.fstat(fd).st_size, 0)


def _load(make: Callable[[], Any], context: Any, body: bytes, version: tuple[int, int], what: str) -> Any:
    header = _HEADER.pack(_MAGIC, _HEADER.size, *version, 0, 0, _HEADER.size + len(body))
    obj = make()
    with _scratch() as (fd, path):
        with os.fdopen(os.dup(fd), "wb", buffering=0) as file:
            file.write(header + body)
        try:
            obj.load(context, path)
        except (ValueError, RuntimeError) as error:
            raise CryptoError(
                f"SEAL refuses a {what}: it is malformed or has other parameters", code="SVFL-CRYPTO-CIPHERTEXT"
            ) from error
    return obj


def _array(residues: Residues, version: tuple[int, int]) -> bytes:
    size = _HEADER.size + _COUNT.size + residues.nbytes
    return _HEADER.pack(_MAGIC, _HEADER.size, *version, 0, 0, size) + _COUNT.pack(residues.size) + residues.tobytes()


class SealIO:
    """Conversion of the objects of one context of SEAL.

    Args:
        context: the context, which determines N and the primes.
    """

    def __init__(self, context: Any) -> None:
        self._context = context
        saved = _saved(context.key_context_data().parms())
        self._version = (saved[3], saved[4])

    def _inflate(self, obj: Any, size: int) -> bytes:
        """Save an object, and return the `size` bytes after its header, decompressed."""
        saved = _saved(obj)
        body = zstd.decompress(saved[_HEADER.size :]) if saved[5] else saved[_HEADER.size :]
        if len(body) != size:
            raise CryptoError(
                f"SEAL has saved {len(body)} bytes instead of {size}",
                "install tenseal 0.3",
                code="SVFL-CRYPTO-LIBRARY",
            )
        return body

    def residues(self, obj: Any, shape: tuple[int, int, int]) -> Residues:
        """Return the residues of a ciphertext, which must have this shape (polynomials, primes, N)."""
        start = _MEMBERS.size + _HEADER.size + _COUNT.size
        body = self._inflate(obj, start + 8 * math.prod(shape))
        return np.frombuffer(body, np.uint64, offset=start).reshape(shape)

    def plain_residues(self, plain: Any, shape: tuple[int, int]) -> Residues:
        """Return the coefficients (1, count) of a plaintext, or the residues (primes, N) of one in NTT form."""
        start = _PLAIN_MEMBERS.size + _HEADER.size + _COUNT.size
        body = self._inflate(plain, start + 8 * math.prod(shape))
        return np.frombuffer(body, np.uint64, offset=start).reshape(shape)

    def seeded_residues(self, obj: Any, shape: tuple[int, int]) -> tuple[Residues, bytes]:
        """Return the first polynomial (primes, N) of a symmetric encryption, and the seed of its second polynomial."""
        start, count = _MEMBERS.size + _HEADER.size + _COUNT.size, math.prod(shape)
        body = self._inflate(obj, start + 8 * count + _SEEDED_TAIL)
        if body[-SEAL_SEED_BYTES - 1] != _BLAKE2XB:
            raise CryptoError(
                "SEAL uses another generator than Blake2xb for its seeds",
                "use SEAL's default build",
                code="SVFL-CRYPTO-LIBRARY",
            )
        return np.frombuffer(body, np.uint64, count, offset=start).reshape(shape), body[-SEAL_SEED_BYTES:]

    def ciphertext(self, parms_id: Sequence[int], residues: Residues, *, ntt: bool) -> Any:
        """Return a ciphertext with these residues (2, primes, N). Raise CryptoError if one is not below its prime."""
        body = _members(parms_id, ntt, residues.shape) + _array(residues, self._version)
        return _load(seal.Ciphertext, self._context, body, self._version, "ciphertext")

    def seeded(self, parms_id: Sequence[int], residues: Residues, seed: bytes) -> Any:
        """Return a ciphertext in coefficient form, from its first polynomial (primes, N) and the second one's seed."""
        body = _members(parms_id, False, (2, *residues.shape)) + _array(residues, self._version)
        body += _HEADER.pack(_MAGIC, _HEADER.size, *self._version, 0, 0, _SEEDED_TAIL) + bytes([_BLAKE2XB]) + seed
        return _load(seal.Ciphertext, self._context, body, self._version, "seeded ciphertext")

    def plaintext(self, coefficients: Words) -> Any:
        """Return a plaintext with up to N coefficients below the plaintext modulus t."""
        body = _PLAIN_MEMBERS.pack(bytes(32), coefficients.size, 1.0) + _array(coefficients, self._version)
        return _load(seal.Plaintext, self._context, body, self._version, "plaintext")

    def public_key(self, residues: Residues) -> Any:
        """Return a public key with both polynomials (2, key primes, N) in NTT form."""
        body = _members(self._context.key_parms_id(), True, residues.shape) + _array(residues, self._version)
        return _load(seal.PublicKey, self._context, body, self._version, "public key")

    def secret_key(self, residues: Residues) -> Any:
        """Return a secret key with residues (key primes, N) in NTT form."""
        parms_id = struct.pack("<4Q", *self._context.key_parms_id())
        body = _PLAIN_MEMBERS.pack(parms_id, residues.size, 1.0) + _array(residues, self._version)
        return _load(seal.SecretKey, self._context, body, self._version, "secret key")


def _members(parms_id: Sequence[int], ntt: bool, shape: tuple[int, ...]) -> bytes:
    polynomials, primes, degree = shape
    return _MEMBERS.pack(struct.pack("<4Q", *parms_id), ntt, polynomials, degree, primes, 1.0, 1)
