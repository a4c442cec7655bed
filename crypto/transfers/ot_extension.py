"""Random oblivious transfers 1-of-2^b by rows: the sender has 2^b pads for each row, the receiver a random one of them.

Ishai, Kilian, Nissim, Petrank 2003 extend 128 base transfers to m = b (rows) transfers of keys. Let s be 128 secret
bits of the sender and r the receiver's m bits; b bits of r are the choice chi of a row, lowest bit first.

    base transfers   the sender chooses s and has one seed of each of 128 pairs; the receiver has all seeds
    T, T'            bits (m, 128): column j is the PRG on seed 0, on seed 1, of pair j
    receiver         U: column j is T_j ^ T'_j ^ r; sends U and the check
    sender           Q: column j is T_j if s_j = 0, T'_j ^ U_j if it is 1; by rows q_i = t_i ^ r_i s
    keys             sender: K_i0 = H(q_i, i), K_i1 = H(q_i ^ s, i);  receiver: K_i,r_i = H(t_i, i)
    pads of a row    pad(j) = H(xor over its b transfers i of K_i,j_i ; row, j), the low 64 bits

All rows of Q and T differ by the same secret s, so keys must be hashed, each with its number, before they are combined
by XOR: without hashing, the XOR of two unknown keys of two transfers would be known. After hashing, the unknown keys of
a row are as good as independent, and every pad except the chosen one depends on at least one of them. H is `RowHash`.

U is uniform to the sender, who lacks T or T' in each column. A receiver whose columns of U contain different r would
learn bits of s from pads. It passes the *check* of Roy 2022 ("SoftSpokenOT", section 5), after Keller, Orsini, Scholl
2015, only with the probability of guessing these bits. h is a universal hash that is linear over GF(2), GHASH with a
key that is a hash of U. The receiver sends h(r) and all h(T_j), and the sender compares h(Q_j) ^ h(T_j) with s_j h(r).
A block of 128 random transfers at the end makes h(r) uniform.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import NDArray

from securevfl.crypto.key_derivation import derive_key
from securevfl.crypto.prg import Prg
from securevfl.crypto.secret import Secret
from securevfl.crypto.share_ring import Words
from securevfl.crypto.transfers.bit_matrices import transpose_bits
from securevfl.crypto.transfers.row_hash import BLOCK_WORDS, RowHash, tweaks
from securevfl.errors import ConfigError, CryptoError

BASE_TRANSFERS = 128
"""Number of base transfers and bits of s."""
SECRET_BYTES = BASE_TRANSFERS // 8
MAX_BLOCK_ROWS = 1 << 22
"""Largest number of rows in one block."""
_TAG = 16
_LABEL = "transfers by rows"
_ROWS_AT_ONCE = 1024  # rows whose pads are computed at a time
_CHOSEN_ROWS_AT_ONCE = 4096  # rows whose chosen pads are computed at a time
_KEYS, _PADS = 1, 2  # purposes of tweaks

Octets = NDArray[np.uint8]


def fresh_secret() -> tuple[bytes, list[bool]]:
    """Return s as 16 secret bytes and as the choices of the base transfers."""
    secret = os.urandom(SECRET_BYTES)
    return secret, np.unpackbits(np.frombuffer(secret, np.uint8), bitorder="little").astype(bool).tolist()


def message_bytes(rows: int, bits: int) -> int:
    """Return the bytes of the receiver's message for a block."""
    return BASE_TRANSFERS * _column_octets(rows, bits) + _TAG * (BASE_TRANSFERS + 1)


def _column_octets(rows: int, bits: int) -> int:
    """Return the bytes of a column: its transfers padded to blocks of GHASH, and one block of random transfers."""
    return -(-rows * bits // BASE_TRANSFERS) * _TAG + _TAG


class _Endpoint(Secret):
    """The state of both parties: numbers of blocks and rows, and the hash."""

    __slots__ = ("_bits", "_blocks", "_coin", "_hash", "_rows")

    def __init__(self, coin: bytes, bits: int) -> None:
        if not 1 <= bits <= 8:
            raise ConfigError(
                f"a transfer cannot choose among 2^{bits} entries",
                "use 1 to 8 bits",
                code="SVFL-CRYPTO-PARAMETERS",
            )
        self._bits = bits
        self._coin = coin
        self._hash = RowHash(derive_key(coin, _LABEL, bits)[:16])
        self._blocks = 0
        self._rows = 0

    def _next(self, rows: int) -> tuple[int, int]:
        """Return the number of the next block and that of its first row."""
        if not 1 <= rows <= MAX_BLOCK_ROWS:
            raise ConfigError(
                f"a block of transfers cannot have {rows} rows",
                f"use several blocks of 1 to {MAX_BLOCK_ROWS} rows",
                code="SVFL-CRYPTO-PARAMETERS",
            )
        number, first = self._blocks, self._rows
        self._blocks, self._rows = number + 1, first + rows
        return number, first

    def _tags(self, number: int, corrections: bytes | memoryview, columns: Iterable[Octets]) -> bytes:
        """Return h of each column, 16 bytes: GHASH under a key that depends on U, plus a constant."""
        hashed = hashlib.sha256(self._coin + number.to_bytes(8, "little"))
        hashed.update(corrections)
        challenge = hashed.digest()
        ghash = AESGCM(challenge[:16])
        return b"".join(ghash.encrypt(challenge[16:28], b"", column.data) for column in columns)


@dataclass(frozen=True, repr=False)
class ReceiverBlock:
    """A block of the receiver.

    Attributes:
        choices: the choices chi (rows,) below 2^b.
        pads: the chosen pad of each row (rows,), 64 bits.
    """

    choices: Octets
    pads: Words


class OtReceiver(_Endpoint):
    """The party that gets one pad of each row.

    Args:
        pairs: 128 pairs of fresh 32-byte seeds from base transfers.
        coin: 32 public bytes for this session alone.
        bits: b, from 1 to 8.

    Raises:
        ConfigError: if `bits` is out of range.
    """

    __slots__ = ("_first", "_second")

    def __init__(self, pairs: Sequence[tuple[bytes, bytes]], coin: bytes, bits: int) -> None:
        super().__init__(coin, bits)
        self._first = [Prg(first, _LABEL) for first, _ in pairs]
        self._second = [Prg(second, _LABEL) for _, second in pairs]

    @staticmethod
    def choice_bytes(rows: int) -> int:
        """Return how many bytes of choices `correlated` needs for rows of one bit."""
        return _column_octets(rows, 1)

    def correlated(self, rows: int, choices: bytes) -> tuple[bytes, Octets, Words]:
        """Return the next block of correlated rows of one bit: the sender has q = t ^ r s.

        Args:
            rows: number of rows.
            choices: random bytes, see `choice_bytes`.

        Returns:
            The message for the sender, the choices r (rows,), 0 or 1, and t (rows, 2).
        """
        number, _ = self._next(rows)
        message, columns = self._columns(number, np.frombuffer(choices, np.uint8))
        bits = np.unpackbits(np.frombuffer(choices, np.uint8), count=rows, bitorder="little")
        return message, bits, transpose_bits(columns)[:rows]

    def extend(self, rows: int) -> tuple[bytes, ReceiverBlock]:
        """Return the message for the sender of the next block of `rows` rows, and the block."""
        number, start = self._next(rows)
        r = np.frombuffer(os.urandom(_column_octets(rows, self._bits)), np.uint8)
        message, columns = self._columns(number, r)
        bits = np.unpackbits(r, count=rows * self._bits, bitorder="little").reshape(rows, self._bits)
        choices = np.packbits(bits, axis=1, bitorder="little")[:, 0]
        return message, ReceiverBlock(choices, self._pads(transpose_bits(columns), start, choices))

    def _columns(self, number: int, r: Octets) -> tuple[bytes, Octets]:
        """Return the message of a block with choices r, and the columns of T."""
        columns = _streams(self._first, number, len(r))
        corrections = _streams(self._second, number, len(r))
        corrections ^= columns
        corrections ^= r
        check = self._tags(number, corrections.data.cast("B"), [r, *columns])
        return b"".join([corrections.data, check]), columns

    def _pads(self, t: Words, start: int, choices: Octets) -> Words:
        pads, bits = np.empty(len(choices), np.uint64), self._bits
        for first in range(0, len(choices), _CHOSEN_ROWS_AT_ONCE):
            chosen = choices[first : first + _CHOSEN_ROWS_AT_ONCE]
            rows, number = len(chosen), start + first
            keys = self._hash(t[first * bits : (first + rows) * bits], tweaks(number * bits, rows * bits, _KEYS))
            total = _xor(keys.reshape(rows, bits, BLOCK_WORDS))
            tweak = tweaks(number, rows, _PADS)
            tweak[:, 1] |= chosen.astype(np.uint64) << np.uint64(8)
            pads[first : first + rows] = self._hash(total, tweak)[:, 0]
        return pads


class OtSender(_Endpoint):
    """The party that has all pads of each row.

    Args:
        secret: s, see `fresh_secret`.
        seeds: the seed of each pair that its bit of s chooses.
        coin: 32 public bytes for this session alone.
        bits: b, from 1 to 8.

    Raises:
        ConfigError: if `bits` is out of range.
    """

    __slots__ = ("_secret", "_seeds")

    def __init__(self, secret: bytes, seeds: Sequence[bytes], coin: bytes, bits: int) -> None:
        super().__init__(coin, bits)
        self._secret = np.frombuffer(secret, np.uint8)
        self._seeds = [Prg(seed, _LABEL) for seed in seeds]

    def correlated(self, rows: int, message: bytes) -> Words:
        """Return q (rows, 2) of the next block of one bit, from the receiver's message; CryptoError as `extend`."""
        number, _ = self._next(rows)
        return self._columns(number, rows, message)

    def extend(self, rows: int, message: bytes) -> SenderBlock:
        """Return the next block.

        Args:
            rows: number of rows.
            message: the receiver's message.

        Returns:
            The block.

        Raises:
            CryptoError: if the message has another length or fails the check; the session must end then.
        """
        number, start = self._next(rows)
        q, s = self._columns(number, rows, message), self._secret.view("<u8").astype(np.uint64)
        return SenderBlock(self._hash, self._bits, start, q, s)

    def _columns(self, number: int, rows: int, message: bytes) -> Words:
        """Return the transfers (rows b, 2) of a block."""
        if len(message) != message_bytes(rows, self._bits):
            raise CryptoError(
                f"received {len(message)} bytes of transfers instead of {message_bytes(rows, self._bits)}",
                "use the same job at both parties",
                code="SVFL-PROTOCOL-SIZE",
            )
        octets = _column_octets(rows, self._bits)
        corrections = memoryview(message)[: BASE_TRANSFERS * octets]
        chosen = np.unpackbits(self._secret, bitorder="little").astype(bool)
        columns = _streams(self._seeds, number, octets)
        received = np.frombuffer(corrections, np.uint8).reshape(BASE_TRANSFERS, octets)
        for column, correction, mask in zip(columns, received, chosen * np.uint8(255), strict=True):
            column ^= correction & mask
        self._check(number, corrections, message[BASE_TRANSFERS * octets :], columns, chosen)
        return transpose_bits(columns)[: rows * self._bits]

    def _check(
        self, number: int, corrections: memoryview, check: bytes, columns: Octets, chosen: NDArray[np.bool_]
    ) -> None:
        zero = np.zeros(columns.shape[1], np.uint8)
        tags = np.frombuffer(self._tags(number, corrections, [zero, *columns]), np.uint8)
        tags, sent = tags.reshape(-1, _TAG), np.frombuffer(check, np.uint8).reshape(-1, _TAG)
        expected = tags[1:] ^ np.where(chosen[:, None], sent[0] ^ tags[0], 0).astype(np.uint8)
        if not hmac.compare_digest(expected.tobytes(), sent[1:].tobytes()):
            raise CryptoError("the received columns contain different choices", code="SVFL-PROTOCOL-CHEATING")


class SenderBlock(Secret):
    """A block of the sender, whose pads are computed on request because they take 2^b words for each row.

    Args:
        hashed: the hash.
        bits: b.
        start: number of the first row.
        q: the transfers (rows b, 2).
        s: the secret s (2,).
    """

    __slots__ = ("_bits", "_hash", "_q", "_s", "_start", "rows")

    def __init__(self, hashed: RowHash, bits: int, start: int, q: Words, s: Words) -> None:
        self._hash, self._bits, self._start, self._q, self._s = hashed, bits, start, q, s
        self.rows = len(q) // bits

    def stored(self, first: int, last: int) -> tuple[bytes, ...]:
        """Return rows `first` to `last` as secret bytes for `restored`."""
        head = struct.pack("<BQ", self._bits, self._start + first)
        q = self._q[first * self._bits : last * self._bits]
        return head, self._hash.key, self._s.astype("<u8").tobytes(), q.astype("<u8", copy=False).tobytes()

    @classmethod
    def restored(cls, parts: tuple[bytes, ...]) -> SenderBlock:
        """Restore rows from the bytes that `stored` returned."""
        head, key, s, q = parts
        bits, start = struct.unpack("<BQ", head)
        words = (np.frombuffer(data, "<u8").astype(np.uint64, copy=False) for data in (q, s))
        return cls(RowHash(key), bits, start, next(words).reshape(-1, BLOCK_WORDS), next(words))

    def pads(self, first: int, last: int) -> Words:
        """Return the pads (2^b, last - first), 64 bits each, of rows `first` to `last` of this block."""
        out = np.empty((2**self._bits, last - first), np.uint64)
        numbers = tweaks(self._start + first, min(_ROWS_AT_ONCE, last - first), _PADS)
        tweak = np.repeat(numbers[None], 2**self._bits, axis=0)
        tweak[:, :, 1] |= (np.arange(2**self._bits, dtype=np.uint64) << np.uint64(8))[:, None]
        for start in range(first, last, _ROWS_AT_ONCE):
            stop = min(start + _ROWS_AT_ONCE, last)
            out[:, start - first : stop - first] = self._pads(start, stop, tweak[:, : stop - start])
            tweak[:, :, 0] += np.uint64(_ROWS_AT_ONCE)
        return out

    def _pads(self, first: int, last: int, numbered: Words) -> Words:
        """Return the pads of rows `first` to `last` for the tweaks `numbered` (2^b, rows, 2)."""
        bits, rows = self._bits, last - first
        q = self._q[first * bits : last * bits]
        tweak = tweaks((self._start + first) * bits, rows * bits, _KEYS)
        zeros, ones = (self._hash(x, tweak).reshape(rows, bits, BLOCK_WORDS) for x in (q, q ^ self._s))
        mixed = np.empty((2**bits, rows, BLOCK_WORDS), np.uint64)
        mixed[0] = _xor(zeros)
        for bit in range(bits):
            np.bitwise_xor(mixed[: 1 << bit], zeros[:, bit] ^ ones[:, bit], out=mixed[1 << bit : 2 << bit])
        return self._hash(mixed, numbered)[..., 0]


def _streams(prgs: Sequence[Prg], number: int, octets: int) -> Octets:
    """Return the columns (128, octets) of a block."""
    columns = np.empty((BASE_TRANSFERS, octets // 8), np.uint64)
    for column, prg in zip(columns, prgs, strict=True):
        prg.fill(column, number=number)
    return columns.view(np.uint8)


def _xor(keys: Words) -> Words:
    """Return the XOR of the keys (rows, bits, 2) of each row."""
    total = keys[:, 0].copy()
    for bit in range(1, keys.shape[1]):
        total ^= keys[:, bit]
    return total
