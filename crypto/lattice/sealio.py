"""SEAL objects to and from arrays of residues: the one place that knows SEAL's serialisation format.

`tenseal.sealapi` saves to and loads from file paths only, and always compresses (zstd) when it saves. An object passes
through an anonymous file in memory that is closed at once; no secret key is ever written.

What travels between parties is not SEAL's format but plain residues, packed into as many bytes as their prime needs. So
a peer cannot hand SEAL a header, a size or a compressed stream of its choosing: every byte of the header is written
here, the array has the size the parameters ask for, and SEAL's validated `load` then checks that each residue is below
its prime.

The format (SEAL 4, `Serialization::SEALHeader`, `Ciphertext::save_members`, `DynArray::save_members`):

    header      magic A15E, header size 16, version (2 bytes), compression, 0, total size (u64)
    ciphertext  parms_id (32), in NTT form (1), polynomials, N, primes (u64 each), scale (f64), correction (u64), array
    plaintext   parms_id (32), N times primes (u64), scale (f64), array; a secret key is one at the key's parms_id
    array       header, count (u64), residues (u64 each)
    seeded      a ciphertext whose array holds the first polynomial only, then header, generator (1), seed (64)
"""

from __future__ import annotations

import os
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import tenseal.sealapi as seal
from numpy.typing import NDArray

from securevfl.errors import CryptoError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

Residues = NDArray[np.uint64]

SEED_BYTES = 64
_HEADER = struct.Struct("<HBBBBHQ")
_MAGIC = 0xA15E
_MEMBERS = struct.Struct("<32s?QQQdQ")
_PLAIN_MEMBERS = struct.Struct("<32sQd")
_COUNT = struct.Struct("<Q")
_BLAKE2XB = 1
_SEEDED_TAIL = _HEADER.size + 1 + SEED_BYTES


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
    """Moves ciphertexts and public keys of one context in and out. Residues are (polynomials, primes, N) uint64."""

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
        """Read the residues of a ciphertext or a public key whose shape the caller knows."""
        start = _MEMBERS.size + _HEADER.size + _COUNT.size
        body = self._inflate(obj, start + 8 * int(np.prod(shape)))
        return np.frombuffer(body, np.uint64, offset=start).reshape(shape)

    def plain_residues(self, plain: Any, shape: tuple[int, int]) -> Residues:
        """Read the residues (primes, N) of a plaintext in NTT form."""
        start = _PLAIN_MEMBERS.size + _HEADER.size + _COUNT.size
        body = self._inflate(plain, start + 8 * int(np.prod(shape)))
        return np.frombuffer(body, np.uint64, offset=start).reshape(shape)

    def seeded_residues(self, obj: Any, shape: tuple[int, int]) -> tuple[Residues, bytes]:
        """First polynomial (primes, N) and the seed of the second, of what SEAL returns to be saved.

        `encrypt_symmetric(plain)` and `encrypt_zero_symmetric(parms_id)` do.
        """
        start = _MEMBERS.size + _HEADER.size + _COUNT.size
        count = int(np.prod(shape))
        body = self._inflate(obj, start + 8 * count + _SEEDED_TAIL)
        if body[-SEED_BYTES - 1] != _BLAKE2XB:
            raise CryptoError(
                "SEAL seeds its ciphertexts with another generator than Blake2xb; use SEAL's default build"
            )
        return np.frombuffer(body, np.uint64, count, offset=start).reshape(shape), body[-SEED_BYTES:]

    def _members(self, parms_id: Sequence[int], ntt: bool, polynomials: int, shape: tuple[int, ...]) -> bytes:
        primes, degree = shape[-2:]
        return _MEMBERS.pack(struct.pack("<4Q", *parms_id), ntt, polynomials, degree, primes, 1.0, 1)

    def ciphertext(self, parms_id: Sequence[int], residues: Residues, *, ntt: bool) -> Any:
        """Build a ciphertext of scale 1 from (2, primes, N) residues. CryptoError if one is not below its prime."""
        body = self._members(parms_id, ntt, len(residues), residues.shape) + _array(residues, self._version)
        return _load(seal.Ciphertext, self._context, body, self._version, "ciphertext")

    def seeded_ciphertext(self, parms_id: Sequence[int], residues: Residues, seed: bytes) -> Any:
        """Build a ciphertext in NTT form from its first polynomial (primes, N) and the seed of the second."""
        return _load(
            seal.Ciphertext, self._context, self._seeded(parms_id, residues, seed), self._version, "seeded ciphertext"
        )

    def public_key(self, residues: Residues, seed: bytes) -> Any:
        """Build a public key (b, a) from b (primes and special prime, N) and the seed of a, which SEAL expands here."""
        body = self._seeded(self._context.key_parms_id(), residues, seed)
        return _load(seal.PublicKey, self._context, body, self._version, "public key")

    def _seeded(self, parms_id: Sequence[int], residues: Residues, seed: bytes) -> bytes:
        body = self._members(parms_id, True, 2, residues.shape) + _array(residues, self._version)
        return body + _HEADER.pack(_MAGIC, _HEADER.size, *self._version, 0, 0, _SEEDED_TAIL) + bytes([_BLAKE2XB]) + seed

    def constant_key(self, value: int, primes: int, degree: int) -> Any:
        """Build a secret key that is the constant `value`: it is public, and serves to take ciphertexts apart."""
        residues = np.full((primes, degree), value, np.uint64)
        parms_id = struct.pack("<4Q", *self._context.key_parms_id())
        body = _PLAIN_MEMBERS.pack(parms_id, residues.size, 1.0) + _array(residues, self._version)
        return _load(seal.SecretKey, self._context, body, self._version, "constant key")


def width(prime: int) -> int:
    """Bytes that one residue of `prime` takes on the wire."""
    return (prime.bit_length() + 7) // 8


def packed_size(primes: Sequence[int], count: int) -> int:
    """Bytes that `count` residues of every prime take."""
    return count * sum(width(p) for p in primes)


def pack(residues: Residues, primes: Sequence[int]) -> bytes:
    """(..., primes, count) residues to bytes, little-endian, each as wide as its prime."""
    octets = np.ascontiguousarray(residues, np.dtype("<u8")).view(np.uint8).reshape(*residues.shape, 8)
    flat = octets.reshape(-1, *residues.shape[-2:], 8)
    return b"".join(row[i, :, : width(p)].tobytes() for row in flat for i, p in enumerate(primes))


def unpack(data: bytes | memoryview, primes: Sequence[int], count: int) -> Residues:
    """Read the (primes, count) residues at the start of `data`. CryptoError if there are too few bytes."""
    if len(data) < packed_size(primes, count):
        raise CryptoError(f"residues: expected {packed_size(primes, count)} bytes, got {len(data)}; the message is cut")
    octets = np.zeros((len(primes), count, 8), np.uint8)
    start = 0
    for row, p in zip(octets, primes, strict=True):
        w = width(p)
        row[:, :w] = np.frombuffer(data, np.uint8, count * w, offset=start).reshape(count, w)
        start += count * w
    return octets.view(np.dtype("<u8"))[..., 0].astype(np.uint64, copy=False)
