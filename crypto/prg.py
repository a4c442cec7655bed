"""Keyed pseudorandom arrays: the ChaCha20 keystream (RFC 8439) read as unsigned integers.

A `Prg` is a 32-byte key and a label. The label enters the ChaCha20 key through HKDF-Expand, so two labels under one
key give independent streams and labels of any length cannot collide. The 16-byte nonce that `cryptography` wants is

    bytes 0..3    block counter, starts at 0 (little-endian)
    bytes 4..15   number of the stream (little-endian)

Numbers of one object only go up, so no (key, nonce) serves twice within it; two objects made from the same key and
label repeat each other, which is what two parties that share a key need. Integers are little-endian on every machine.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import TypeVar

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

from securevfl.crypto.key_derivation import SYMMETRIC_KEY_BYTES, derive_key
from securevfl.crypto.secret import Secret
from securevfl.errors import CryptoError

Unsigned = TypeVar("Unsigned", np.uint16, np.uint32, np.uint64)

_STREAM_BYTES = 2**32 * 64  # a 32-bit block counter of 64-byte blocks
_ZEROS = memoryview(bytes(1 << 16))  # a chunk that stays in the cache


def random_words(count: int) -> NDArray[np.uint64]:
    """Draw `count` uniform words of 64 bits: a ChaCha20 keystream under a fresh key from the operating system."""
    stream = Cipher(algorithms.ChaCha20(os.urandom(SYMMETRIC_KEY_BYTES), bytes(16)), mode=None).encryptor()
    return np.frombuffer(stream.update(bytes(8 * count)), np.uint64)


class Prg(Secret):
    """Numbered keystreams under one key and label. May be shared by threads, not by processes."""

    __slots__ = ("_key", "_lock", "_next", "_pid")

    def __init__(self, key: bytes, label: str) -> None:
        """CryptoError if `key` is not 32 bytes."""
        self._key = derive_key(key, "prg", label)
        self._next = 0
        self._lock = threading.Lock()
        self._pid = os.getpid()

    @classmethod
    def fresh(cls, label: str) -> Prg:
        """Make a generator under a key from the operating system, known to nobody else."""
        return cls(os.urandom(SYMMETRIC_KEY_BYTES), label)

    def array(
        self, shape: int | tuple[int, ...], dtype: type[Unsigned], *, number: int | None = None
    ) -> NDArray[Unsigned]:
        """Stream `number` (the next one if None) as an array of uint16, uint32 or uint64, uniform over its range.

        CryptoError if the number has been used or passed over.
        """
        out = np.empty(shape, dtype)
        self.fill(out, number=number)
        return out

    def fill(self, out: NDArray[Unsigned], *, number: int | None = None) -> None:
        """Fill a C-contiguous array that exists already with what `array` would return."""
        if out.dtype.kind != "u" or not out.flags.c_contiguous:
            raise CryptoError(f"PRG output: expected a C-contiguous unsigned array, got {out.dtype}; copy it first")
        if out.nbytes > _STREAM_BYTES:
            raise CryptoError(f"PRG stream: at most {_STREAM_BYTES} bytes, got {out.nbytes}; take several streams")
        nonce = bytes(4) + self._take(number).to_bytes(12, "little")
        keystream = Cipher(algorithms.ChaCha20(self._key, nonce), mode=None).encryptor()
        raw = out.reshape(-1).view(np.uint8).data
        for start in range(0, len(raw), len(_ZEROS)):
            chunk = raw[start : start + len(_ZEROS)]
            keystream.update_into(_ZEROS[: len(chunk)], chunk)
        if sys.byteorder == "big":
            out.byteswap(inplace=True)

    def _take(self, number: int | None) -> int:
        with self._lock:
            if os.getpid() != self._pid:
                raise CryptoError(
                    "PRG: copied into another process, where it would repeat streams; make a new one there"
                )
            chosen = self._next if number is None else number
            if chosen < self._next:
                raise CryptoError(f"PRG: expected a stream number >= {self._next}, got {chosen}; streams serve once")
            self._next = chosen + 1
            return chosen
