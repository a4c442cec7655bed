"""SEAL objects to and from arrays of residues: the one place that knows the serialisation format of SEAL."""

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

from securevfl.crypto.lattice.residue_bytes import Residues
from securevfl.crypto.share_ring import Words
from securevfl.errors import CryptoError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

SEAL_SEED_BYTES = 64

_HEADER = struct.Struct("<HBBBBHQ")

_MAGIC = 0xA15E

_MEMBERS = struct.Struct("<32s?QQQdQ")

_PLAIN_MEMBERS = struct.Struct("<32sQd")

_COUNT = struct.Struct("<Q")

_BLAKE2XB = 1

_SEEDED_TAIL = _HEADER.size + 1 + SEAL_SEED_BYTES


@contextmanager
def _scratch() -> Iterator[tuple[int, str]]:
    """Open a file that only this process can name, gone when the block ends."""
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
        return os.pread(fd, os.fstat(fd).st_size, 0)


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
                f"{what}: SEAL refused it as malformed or not of these parameters; ask for it again"
            ) from error
    return obj


def _array(residues: Residues, version: tuple[int, int]) -> bytes:
    size = _HEADER.size + _COUNT.size + residues.nbytes
    return _HEADER.pack(_MAGIC, _HEADER.size, *version, 0, 0, size) + _COUNT.pack(residues.size) + residues.tobytes()


class SealIO:
    """Moves objects of one context in and out."""

    def __init__(self, context: Any) -> None:
        self._context = context
        saved = _saved(context.key_context_data().parms())
        self._version = (saved[3], saved[4])

    def _inflate(self, obj: Any, size: int) -> bytes:
        """Return the `size` bytes behind the header of what SEAL saves."""
        saved = _saved(obj)
        body = zstd.decompress(saved[_HEADER.size :]) if saved[5] else saved[_HEADER.size :]
        if len(body) != size:
            raise CryptoError(
                f"SEAL saves {len(body)} bytes where {size} were expected; install the SEAL of tenseal 0.3"
            )
        return body

    def residues(self, obj: Any, shape: tuple[int, int, int]) -> Residues:
        """Read the residues of a ciphertext whose shape the caller knows."""
        start = _MEMBERS.size + _HEADER.size + _COUNT.size
        body = self._inflate(obj, start + 8 * math.prod(shape))
        return np.frombuffer(body, np.uint64, offset=start).reshape(shape)

    def plain_residues(self, plain: Any, shape: tuple[int, int]) -> Residues:
        """Read the array of a plaintext, of coefficients (1, count) or residues in NTT form (primes, N)."""
        start = _PLAIN_MEMBERS.size + _HEADER.size + _COUNT.size
        body = self._inflate(plain, start + 8 * math.prod(shape))
        return np.frombuffer(body, np.uint64, offset=start).reshape(shape)

    def seeded_residues(self, obj: Any, shape: tuple[int, int]) -> tuple[Residues, bytes]:
        """First polynomial (primes, N) and the seed of the second, of what `encrypt_symmetric(plain)` returns."""
        start, count = _MEMBERS.size + _HEADER.size + _COUNT.size, math.prod(shape)
        body = self._inflate(obj, start + 8 * count + _SEEDED_TAIL)
        if body[-SEAL_SEED_BYTES - 1] != _BLAKE2XB:
            raise CryptoError(
                "SEAL seeds its ciphertexts with another generator than Blake2xb; use SEAL's default build"
            )
        return np.frombuffer(body, np.uint64, count, offset=start).reshape(shape), body[-SEAL_SEED_BYTES:]

    def ciphertext(self, parms_id: Sequence[int], residues: Residues, *, ntt: bool) -> Any:
        """Build a ciphertext from (2, primes, N) residues. CryptoError if one is not below its prime."""
        body = _members(parms_id, ntt, residues.shape) + _array(residues, self._version)
        return _load(seal.Ciphertext, self._context, body, self._version, "ciphertext")

    def seeded(self, parms_id: Sequence[int], residues: Residues, seed: bytes) -> Any:
        """Build a ciphertext in coefficients from its first polynomial (primes, N) and the seed of the second."""
        body = _members(parms_id, False, (2, *residues.shape)) + _array(residues, self._version)
        body += _HEADER.pack(_MAGIC, _HEADER.size, *self._version, 0, 0, _SEEDED_TAIL) + bytes([_BLAKE2XB]) + seed
        return _load(seal.Ciphertext, self._context, body, self._version, "seeded ciphertext")

    def plaintext(self, coefficients: Words) -> Any:
        """Build a plaintext of up to N coefficients below t."""
        body = _PLAIN_MEMBERS.pack(bytes(32), coefficients.size, 1.0) + _array(coefficients, self._version)
        return _load(seal.Plaintext, self._context, body, self._version, "plaintext")

    def public_key(self, residues: Residues) -> Any:
        """Build a public key from both of its polynomials (2, key primes, N) in NTT form."""
        body = _members(self._context.key_parms_id(), True, residues.shape) + _array(residues, self._version)
        return _load(seal.PublicKey, self._context, body, self._version, "public key")

    def secret_key(self, residues: Residues) -> Any:
        """Build a secret key from its residues (key primes, N) in NTT form."""
        parms_id = struct.pack("<4Q", *self._context.key_parms_id())
        body = _PLAIN_MEMBERS.pack(parms_id, residues.size, 1.0) + _array(residues, self._version)
        return _load(seal.SecretKey, self._context, body, self._version, "secret key")


def _members(parms_id: Sequence[int], ntt: bool, shape: tuple[int, ...]) -> bytes:
    polynomials, primes, degree = shape
    return _MEMBERS.pack(struct.pack("<4Q", *parms_id), ntt, polynomials, degree, primes, 1.0, 1)
