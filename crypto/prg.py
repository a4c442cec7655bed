"""A pseudorandom generator (PRG): arrays of random-looking integers from a secret key, with ChaCha20 (RFC 8439).

A `Prg` has a key of 32 bytes and a label, and produces numbered streams. The ChaCha20 key is derived from both with
HKDF-Expand, so two labels with the same key give independent streams. The nonce of 16 bytes that the library
`cryptography` expects consists of

    bytes 0..3    a block counter that starts at 0 (little-endian)
    bytes 4..15   the number of the stream (little-endian)

The stream numbers of one object only increase, so it never uses the same key and nonce twice. Two objects with the same
key and label generate the same streams; two parties with a common key use this. Integers are little-endian on every
machine.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable
from typing import TypeVar

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms
from numpy.typing import NDArray

from securevfl.crypto.key_derivation import SYMMETRIC_KEY_BYTES, derive_key, derive_keys
from securevfl.crypto.secret import Secret
from securevfl.errors import CryptoError

Unsigned = TypeVar("Unsigned", np.uint16, np.uint32, np.uint64)

_STREAM_BYTES = 2**32 * 64  # length of a stream, since the block counter has 32 bits and a block 64 bytes
_ZEROS = memoryview(bytes(1 << 16))  # encrypting zeros yields the keystream; a chunk fits into the processor's cache


def random_words(count: int) -> NDArray[np.uint64]:
    """Draw uniformly random 64-bit words (count,), from ChaCha20 with a new random key of the operating system."""
    stream = Cipher(algorithms.ChaCha20(os.urandom(SYMMETRIC_KEY_BYTES), bytes(16)), mode=None).encryptor()
    return np.frombuffer(stream.update(bytes(8 * count)), np.uint64)


class Prg(Secret):
    """A generator of numbered streams of random-looking integers. Threads may share an object; processes must not.

    Args:
        key: the secret key of 32 bytes.
        label: the purpose of the streams; other labels give other streams.

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
        """Create a generator with a new random key of the operating system, which nobody else knows."""
        return cls(os.urandom(SYMMETRIC_KEY_BYTES), label)

    def array(
        self, shape: int | tuple[int, ...], dtype: type[Unsigned], *, number: int | None = None
    ) -> NDArray[Unsigned]:
        """Return a stream as an array of unsigned integers, which are uniform over the range of their type.

        Args:
            shape: shape of the array.
            dtype: uint16, uint32 or uint64.
            number: number of the stream; None for the next unused one.

        Returns:
            The array.

        Raises:
            CryptoError: if the stream was used or skipped before.
        """
        out = np.empty(shape, dtype)
        self.fill(out, number=number)
        return out

    def fill(self, out: NDArray[Unsigned], *, number: int | None = None) -> None:
        """Fill an existing array with the values that `array` would return.

        Args:
            out: a C-contiguous array of unsigned integers.
            number: number of the stream; None for the next unused one.

        Raises:
            CryptoError: if the array has the wrong type or is too large, or the stream was used or skipped before.
        """
        self.keystream(number=number).fill(out)

    def keystream(self, *, number: int | None = None) -> Keystream:
        """Return a stream whose values are read in several parts; see `array` for `number`."""
        nonce = bytes(4) + self._take(number).to_bytes(12, "little")
        return Keystream(Cipher(algorithms.ChaCha20(self._key, nonce), mode=None).encryptor())

    def _take(self, number: int | None) -> int:
        with self._lock:
            if os.getpid() != self._pid:
                raise _copied()
            chosen = self._next if number is None else number
            if chosen < self._next:
                raise CryptoError(
                    f"stream {chosen} was used or skipped before; the next unused stream is {self._next}",
                    code="SVFL-CRYPTO-REUSE",
                )
            self._next = chosen + 1
            return chosen


def first_streams(keys: Iterable[bytes], label: str) -> list[Keystream]:
    """Return stream 0 of a new `Prg` for each of many keys.

    This is faster than to create the generators. A second call with the same keys and label returns the same streams.

    Args:
        keys: secret keys of 32 bytes.
        label: the purpose of the streams.

    Returns:
        The streams.

    Raises:
        CryptoError: if a key has another length.
    """
    nonce = bytes(16)
    return [
        Keystream(Cipher(algorithms.ChaCha20(key, nonce), mode=None).encryptor())
        for key in derive_keys(keys, "prg", label)
    ]


class Keystream(Secret):
    """One stream of a `Prg`, read from its start on. One thread may use it at a time; other processes must not.

    Args:
        encryptor: the cipher at the start of the stream.
    """

    __slots__ = ("_encryptor", "_left", "_pid")

    def __init__(self, encryptor: CipherContext) -> None:
        self._encryptor, self._left, self._pid = encryptor, _STREAM_BYTES, os.getpid()

    def fill(self, out: NDArray[Unsigned]) -> None:
        """Fill an array with the next values of the stream.

        Args:
            out: a C-contiguous array of unsigned integers.

        Raises:
            CryptoError: if the array has the wrong type, the stream is too short, or belongs to another process.
        """
        if out.dtype.kind != "u" or not out.flags.c_contiguous:
            raise CryptoError(
                f"the output array of type {out.dtype} is not a C-contiguous array of unsigned integers",
                "copy it first",
                code="SVFL-CRYPTO-PARAMETERS",
            )
        if out.nbytes > self._left:
            raise CryptoError(
                f"an array of {out.nbytes} bytes exceeds one stream of {_STREAM_BYTES} bytes",
                "use several streams",
                code="SVFL-CRYPTO-PARAMETERS",
            )
        if os.getpid() != self._pid:
            raise _copied()
        self._left -= out.nbytes
        raw = out.reshape(-1).view(np.uint8).data
        for start in range(0, len(raw), len(_ZEROS)):
            chunk = raw[start : start + len(_ZEROS)]
            self._encryptor.update_into(_ZEROS[: len(chunk)], chunk)
        if sys.byteorder == "big":
            out.byteswap(inplace=True)


def _copied() -> CryptoError:
    return CryptoError(
        "a generator was copied into another process, where it would repeat its streams",
        "create a new one in that process",
        code="SVFL-CRYPTO-REUSE",
    )
