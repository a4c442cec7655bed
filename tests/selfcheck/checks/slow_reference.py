"""Keys, streams and hashes of the library, computed again from their specifications and without its code.

Keys are HKDF (RFC 5869) by HMAC alone, streams are one piece of ChaCha20 (RFC 8439), hashes are BLAKE2b (RFC 7693), and
numbers below a limit are computed from random bytes as `secrets` does.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator, Sequence

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray


def context(*parts: str | bytes | int) -> bytes:
    """Return parts, each preceded by its type and length."""
    encoded = b""
    for part in parts:
        kind = b"s" if isinstance(part, str) else b"i" if isinstance(part, int) else b"b"
        raw = part if isinstance(part, bytes) else str(part).encode()
        encoded += kind + len(raw).to_bytes(4, "little") + raw
    return encoded


def derived(key: bytes, *parts: str | bytes | int) -> bytes:
    """Derive a key of 32 bytes for one context."""
    return hmac.digest(key, context("securevfl", *parts) + b"\x01", "sha256")


def keystream(key: bytes, label: str, number: int, size: int) -> bytes:
    """Return this many bytes of stream `number` under a key and a label."""
    nonce = bytes(4) + number.to_bytes(12, "little")
    cipher = Cipher(algorithms.ChaCha20(derived(key, "prg", label), nonce), mode=None)
    return cipher.encryptor().update(bytes(size))


def stream(key: bytes, label: str, number: int, like: NDArray[np.unsignedinteger]) -> NDArray[np.unsignedinteger]:
    """Return the stream as an array of the shape and type of another array."""
    raw = keystream(key, label, number, like.nbytes)
    return np.frombuffer(raw, like.dtype.newbyteorder("<")).reshape(like.shape)


def agreed(private: X25519PrivateKey, peer_public: bytes, *, session: str, party: str, peer: str, domain: str) -> bytes:
    """Derive the key of two parties: X25519, then HKDF-SHA256 without salt, over session, domain, names and public
    keys."""
    shared = private.exchange(X25519PublicKey.from_public_bytes(peer_public))
    first, second = sorted([(party, private.public_key().public_bytes_raw()), (peer, peer_public)])
    info = context("securevfl", "agreement", session, domain, *first, *second)
    return hmac.digest(hmac.digest(bytes(32), shared, "sha256"), info + b"\x01", "sha256")


def below(draws: Iterator[bytes], limit: int) -> int:
    """Return the number below `limit` that `secrets.randbelow` makes of these draws; -1 if they are of another size."""
    bits = limit.bit_length()
    while True:
        draw = next(draws, b"")
        if len(draw) != (bits + 7) // 8:
            return -1
        number = int.from_bytes(draw, "big") >> (8 * len(draw) - bits)
        if number < limit:
            return number


def blake(data: bytes, *, size: int = 16, key: bytes = b"", purpose: bytes = b"") -> bytes:
    """Return BLAKE2b of one row."""
    return hashlib.blake2b(data, digest_size=size, key=key, person=purpose).digest()


def blakes(rows: Sequence[bytes], *, size: int = 16, key: bytes = b"", purpose: bytes = b"") -> NDArray[np.uint64]:
    """Return the words (n, size / 8) of the digest of each row."""
    raw = b"".join(blake(row, size=size, key=key, purpose=purpose) for row in rows)
    return np.frombuffer(raw, "<u8").reshape(-1, size // 8).astype(np.uint64, copy=False)


def blocks(key: bytes, rows: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return AES of each row (n, 2) separately."""
    cipher = Cipher(algorithms.AES(key), modes.ECB())
    raw = b"".join(cipher.encryptor().update(row.tobytes()) for row in rows)
    return np.frombuffer(raw, np.uint64).reshape(-1, 2)
