"""Keyed pseudorandom arrays: the ChaCha20 keystream (RFC 8439) as unsigned integers.

A `Prg` has a 32-byte key and a label. The ChaCha20 key is derived from both with HKDF-Expand, so two labels under one
key give independent streams. The 16-byte nonce that `cryptography` expects consists of

    bytes 0..3    block counter, starts at 0 (little-endian)
    bytes 4..15   number of the stream (little-endian)

Stream numbers of one object only increase, so the object never uses a pair of key and nonce twice. Two objects with the
same key and label generate the same streams, which is what two parties with a common key need. Integers are
little-endian on every machine.
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
    """Draw uniform 64-bit words (count,) from a ChaCha20 keystream under a fresh key of the operating system."""
    stream = Cipher(algorithms.ChaCha20(os.urandom(SYMMETRIC_KEY_BYTES), bytes(16)), mode=None).encryptor()
    return np.frombuffer(stream.update(bytes(8 * count)), np.uint64)


class Prg(Secret):
    """Numbered keystreams under one key and label. Threads may share it, processes may not.

    Args:
        key: 32 bytes.
        label: the purpose of the streams.

    Raises:
        CryptoError: if the key has another length.
    """

    __slots__ = ("_key", "_lock", "_next", "_pid")

    def __init__(self, key: bytes, label: str) -> None:
        self._key = derive_key(key, "prg", label)
        self._next = 0
        self._lock = threading.Lock()
        self._pid = os.getpid()

    @classmethod
    def fresh(cls, label: str) -> Prg:
        """Create a generator under a fresh key of the operating system, which nobody else knows."""
        return cls(os.urandom(SYMMETRIC_KEY_BYTES), label)

    def array(
        self, shape: int | tuple[int, ...], dtype: type[Unsigned], *, number: int | None = None
    ) -> NDArray[Unsigned]:
        """Return a stream as an array of unsigned integers, uniform over the range of their type.

        Args:
            shape: shape of the array.
            dtype: uint16, uint32 or uint64.
            number: number of the stream; None for the next one.

        Returns:
            The array.

        Raises:
            CryptoError: if the number was used or skipped before.
        """
        out = np.empty(shape, dtype)
        self.fill(out, number=number)
        return out

    def fill(self, out: NDArray[Unsigned], *, number: int | None = None) -> None:
        """Fill an existing array with the values that `array` would return.

        Args:
            out: a C-contiguous array of unsigned integers.
            number: number of the stream; None for the next one.

        Raises:
            CryptoError: if the array is of another kind or too large, or the number was used or skipped before.
        """
        if out.dtype.kind != "u" or not out.flags.c_contiguous:
            raise CryptoError(
                f"the output array of type {out.dtype} is not a C-contiguous array of unsigned integers",
                "copy it first",
                code="SVFL-CRYPTO-PARAMETERS",
            )
        if out.nbytes > _STREAM_BYTES:
            raise CryptoError(
                f"an array of {out.nbytes} bytes exceeds one stream of {_STREAM_BYTES} bytes",
                "use several streams",
                code="SVFL-CRYPTO-PARAMETERS",
            )
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
                    "a generator was copied into another process, where it would repeat its streams",
                    "create a new one in that process",
                    code="SVFL-CRYPTO-REUSE",
                )
            chosen = self._next if number is None else number
            if chosen < self._next:
                raise CryptoError(
                    f"stream {chosen} was used or skipped before; the next unused stream is {self._next}",
                    code="SVFL-CRYPTO-REUSE",
                )
            self._next = chosen + 1
            return chosen
