"""SEAL objects to and from arrays of residues: the only module that knows SEAL's serialisation format.

`tenseal.sealapi` only saves to and loads from file paths, and always compresses (zstd). An object passes through an
anonymous file in memory that is closed at once, so no secret key is ever written to disk.

Parties do not exchange SEAL's format but plain residues, each in the bytes that its prime needs. A peer therefore
cannot choose a header, a size or a compressed stream for SEAL: this module writes every byte of the header, the
parameters determine the size of the array, and SEAL's validated `load` checks that each residue is below its prime.

The format (SEAL 4, `Serialization::SEALHeader`, `Ciphertext::save_members`, `DynArray::save_members`):

    header      magic A15E, header size 16, version (2 bytes), compression, 0, total size (u64)
    ciphertext  parms_id (32), in NTT form (1), polynomials, N, primes (u64 each), scale (f64), correction (u64),
    array
    plaintext   parms_id (32), N times primes (u64), scale (f64), array; a secret key is one at the key's parms_id
    array       header, count (u64), residues (u64 each)
    seeded      a ciphertext whose array has the first polynomial only, then header, generator (1), seed (64)

Residues are (polynomials, primes, N) uint64.
"""

from __future__ import annotations

import math
import os
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import tenseal.sealapi as seal

from securevfl.base.platform_files import read_at
from securevfl.crypto.lattice.residue_encoding import Residues
from securevfl.crypto.share_ring import Words
from securevfl.errors import CryptoError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

SEAL_SEED_BYTES = 64
"""Length of the seed of a ciphertext."""

_HEADER = struct.Struct("<HBBBBHQ")

_MAGIC = 0xA15E

_MEMBERS = struct.Struct("<32s?QQQdQ")

_PLAIN_MEMBERS = struct.Struct("<32sQd")

_COUNT = struct.Struct("<Q")

_BLAKE2XB = 1

_SEEDED_TAIL = _HEADER.size + 1 + SEAL_SEED_BYTES


@contextmanager
def _scratch() -> Iterator[tuple[int, str]]:
    """Open a file that only this process can name and that disappears when the block ends."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("securevfl", os.MFD_CLOEXEC)
        try:
            yield fd, f"/proc/self/fd/{fd}"
        finally:
            os.close(fd)
    else:
        with tempfile.NamedTemporaryFile() as file:
            yield file.fileno(), file.name


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
    """Conversion of the objects of one context.

    Args:
        context: the context.
    """

    def __init__(self, context: Any) -> None:
        self._context = context
        saved = _saved(context.key_context_data().parms())
        self._version = (saved[3], saved[4])

    def _inflate(self, obj: Any, size: int) -> bytes:
        """Return the `size` bytes after the header of a saved object."""
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
        """Return the residues of a ciphertext of a known shape."""
        start = _MEMBERS.size + _HEADER.size + _COUNT.size
        body = self._inflate(obj, start + 8 * math.prod(shape))
        return np.frombuffer(body, np.uint64, offset=start).reshape(shape)

    def plain_residues(self, plain: Any, shape: tuple[int, int]) -> Residues:
        """Return the coefficients (1, count) of a plaintext, or its residues (primes, N) in NTT form."""
        start = _PLAIN_MEMBERS.size + _HEADER.size + _COUNT.size
        body = self._inflate(plain, start + 8 * math.prod(shape))
        return np.frombuffer(body, np.uint64, offset=start).reshape(shape)

    def seeded_residues(self, obj: Any, shape: tuple[int, int]) -> tuple[Residues, bytes]:
        """Return the first polynomial (primes, N) and the seed of the second one for an `encrypt_symmetric` result."""
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
        """Return a ciphertext of residues (2, primes, N); CryptoError if a residue is not below its prime."""
        body = _members(parms_id, ntt, residues.shape) + _array(residues, self._version)
        return _load(seal.Ciphertext, self._context, body, self._version, "ciphertext")

    def seeded(self, parms_id: Sequence[int], residues: Residues, seed: bytes) -> Any:
        """Return a ciphertext in coefficients with this first polynomial (primes, N) and the seed of the second one."""
        body = _members(parms_id, False, (2, *residues.shape)) + _array(residues, self._version)
        body += _HEADER.pack(_MAGIC, _HEADER.size, *self._version, 0, 0, _SEEDED_TAIL) + bytes([_BLAKE2XB]) + seed
        return _load(seal.Ciphertext, self._context, body, self._version, "seeded ciphertext")

    def plaintext(self, coefficients: Words) -> Any:
        """Return a plaintext of up to N coefficients below t."""
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
