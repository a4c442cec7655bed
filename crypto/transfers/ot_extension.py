"""Oblivious transfer extension: for each row, the sender gets 2^b random pads and the receiver one of them.

An oblivious transfer gives the sender some random numbers ("pads", of 64 bits) and the receiver a random index chi
(the choice) and the pad with this index; neither learns more. Here a transfer selects one of 2^b pads, for each of many
rows. It is computed from b transfers that select one of two keys each, m = b * rows in all. These are extended from 128
slow *base transfers* by fast symmetric cryptography (Ishai, Kilian, Nissim, Petrank 2003). ^ is XOR, s (128 bits) is a
secret of the sender, r (m bits) one of the receiver; b bits of r form the choice of a row, lowest bit first:

    base transfers   the receiver has 128 pairs of seeds; of pair j the sender has the seed number s_j
    T, T'            bit matrices (m, 128): column j is a pseudorandom stream from the first or second seed of pair j
    receiver         sends U, a bit matrix with the columns T_j ^ T'_j ^ r, and the check below
    sender           computes Q, with the columns T_j if s_j = 0, and T'_j ^ U_j if s_j = 1. So row i is q_i = t_i ^
                     r_i * s, with row t_i of T
    keys             sender: key_i(0) = H(q_i, i), key_i(1) = H(q_i ^ s, i);  receiver: key_i(r_i) = H(t_i, i)
    pads of a row    pad(j) = H(XOR of the row's b keys that the bits of j select; row, j), the low 64 bits

The hash H (`RowHash`) is necessary because all q_i and t_i differ by multiples of the same s: without it, the receiver
could compute the XOR of the keys of two transfers that it did not choose. After hashing with their numbers, the keys
that the receiver does not know are as good as independent, and every pad except the chosen one depends on such a key.

U is uniform to the sender, which has only one of T_j and T'_j. If a receiver puts different r into different columns of
U, it could learn bits of s from its pads. The check (Roy 2022, "SoftSpokenOT", section 5, after Keller, Orsini, Scholl
2015) detects this unless it guesses these bits. h is GHASH, a universal hash that is linear over GF(2), under a key
that is a hash of U. The receiver sends h(r) and all h(T_j). The sender tests whether h(Q_j) ^ h(T_j) = s_j * h(r) for
all j. 128 additional random transfers make h(r) uniform.

Transfers are generated in blocks of rows. Rows are numbered over all blocks, so that no input of H repeats.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

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
"""Number of base transfers, which is the number of bits of the sender's secret s."""
SECRET_BYTES = BASE_TRANSFERS // 8
MAX_BLOCK_ROWS = 1 << 22
"""Largest number of rows of a block."""
TAG_BYTES = 16
"""Length of a check value of the consistency check, at the end of a message."""
STREAM_LABEL = "transfers by rows"
"""Label from which keyed streams and the key of the hash H are derived."""
_ROWS_AT_ONCE = 1024  # rows whose 2^b pads the sender computes at a time, so that they fit into the cache
_CHOSEN_ROWS_AT_ONCE = 4096  # rows whose chosen pads the receiver computes at a time
KEY_TWEAK, PAD_TWEAK = 1, 2
"""Numbers that distinguish the inputs of H for keys and for pads."""

Octets = NDArray[np.uint8]


def fresh_secret() -> tuple[bytes, list[bool]]:
    """Return a new random s, as 16 bytes and as the 128 choices of the base transfers."""
    secret = os.urandom(SECRET_BYTES)
    return secret, np.unpackbits(np.frombuffer(secret, np.uint8), bitorder="little").astype(bool).tolist()


def message_bytes(rows: int, bits: int) -> int:
    """Return the length in bytes of the receiver's message for a block."""
    return BASE_TRANSFERS * _column_octets(rows, bits) + TAG_BYTES * (BASE_TRANSFERS + 1)


def _column_octets(rows: int, bits: int) -> int:
    """Return the length in bytes of a column: its bits padded to blocks of 16 bytes, and the 128 additional ones."""
    return -(-rows * bits // BASE_TRANSFERS) * TAG_BYTES + TAG_BYTES


class _Endpoint(Secret):
    """The state that sender and receiver have in common: the numbers of the next block and row, and the hash."""

    __slots__ = ("_bits", "_blocks", "_coin", "_hash", "_rows")

    def __init__(self, coin: bytes, bits: int) -> None:
        if not 1 <= bits <= 8:
            raise ConfigError(
                f"a transfer cannot select one of 2^{bits} entries",
                "use 1 to 8 bits",
                code="SVFL-CRYPTO-PARAMETERS",
            )
        self._bits = bits
        self._coin = coin
        self._hash = RowHash(derive_key(coin, STREAM_LABEL, bits)[:16])
        self._blocks = 0
        self._rows = 0

    def _next(self, rows: int) -> tuple[int, int]:
        """Return the number of the next block and the number of its first row, and advance both."""
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
        """Return 16 bytes for each column: h of the column under a key that depends on U, plus a constant."""
        hashed = hashlib.sha256(self._coin + number.to_bytes(8, "little"))
        hashed.update(corrections)
        challenge = hashed.digest()
        ghash = AESGCM(challenge[:16])
        return b"".join(ghash.encrypt(challenge[16:28], b"", column.data) for column in columns)


@dataclass(frozen=True, repr=False)
class ReceiverBlock:
    """The receiver's results for a block of rows.

    Attributes:
        choices: the choice chi of each row (rows,), below 2^b.
        pads: the pad with this index for each row (rows,), 64 bits.
    """

    choices: Octets
    pads: Words


class OtReceiver(_Endpoint):
    """The receiver, which gets one pad of each row.

    Args:
        pairs: 128 pairs of new seeds (32 bytes each) from base transfers.
        coin: 32 public bytes that no other session uses.
        bits: the number b, from 1 to 8; a transfer selects one of 2^b pads.

    Raises:
        ConfigError: if `bits` is out of range.
    """

    __slots__ = ("_first", "_second")

    def __init__(self, pairs: Sequence[tuple[bytes, bytes]], coin: bytes, bits: int) -> None:
        super().__init__(coin, bits)
        self._first = [Prg(first, STREAM_LABEL) for first, _ in pairs]
        self._second = [Prg(second, STREAM_LABEL) for _, second in pairs]

    @staticmethod
    def choice_bytes(rows: int) -> int:
        """Return the number of random bytes that `correlated` needs for this number of rows."""
        return _column_octets(rows, 1)

    def correlated(self, rows: int, choices: bytes) -> tuple[bytes, Octets, Words]:
        """Generate the next block for b = 1 without hashing: the sender gets rows q = t ^ r * s.

        Args:
            rows: number of rows.
            choices: secret random bytes; `choice_bytes` gives their number.

        Returns:
            The message for the sender; the choices r (rows,), 0 or 1; and the rows t (rows, 2) as words.
        """
        number, _ = self._next(rows)
        message, columns = self._columns(number, np.frombuffer(choices, np.uint8))
        bits = np.unpackbits(np.frombuffer(choices, np.uint8), count=rows, bitorder="little")
        return message, bits, transpose_bits(columns)[:rows]

    def extend(self, rows: int) -> tuple[bytes, ReceiverBlock]:
        """Generate the next block with this number of rows; return the message for the sender, and the results."""
        number, start = self._next(rows)
        r = np.frombuffer(os.urandom(_column_octets(rows, self._bits)), np.uint8)
        message, columns = self._columns(number, r)
        bits = np.unpackbits(r, count=rows * self._bits, bitorder="little").reshape(rows, self._bits)
        choices = np.packbits(bits, axis=1, bitorder="little")[:, 0]
        return message, ReceiverBlock(choices, self._pads(transpose_bits(columns), start, choices))

    def _columns(self, number: int, r: Octets) -> tuple[bytes, Octets]:
        """Return the message of a block with the bits r, and the columns of T."""
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
            keys = self._hash(t[first * bits : (first + rows) * bits], tweaks(number * bits, rows * bits, KEY_TWEAK))
            total = _xor(keys.reshape(rows, bits, BLOCK_WORDS))
            tweak = tweaks(number, rows, PAD_TWEAK)
            tweak[:, 1] |= chosen.astype(np.uint64) << np.uint64(8)
            pads[first : first + rows] = self._hash(total, tweak)[:, 0]
        return pads


class OtSender(_Endpoint):
    """The sender, which gets all 2^b pads of each row.

    Args:
        secret: the secret s (16 bytes), from `fresh_secret`.
        seeds: results of the base transfers: of each pair of seeds, the one that a bit of s selects.
        coin: 32 public bytes that no other session uses.
        bits: the number b, from 1 to 8; a transfer selects one of 2^b pads.

    Raises:
        ConfigError: if `bits` is out of range.
    """

    __slots__ = ("_secret", "_seeds")

    def __init__(self, secret: bytes, seeds: Sequence[bytes], coin: bytes, bits: int) -> None:
        super().__init__(coin, bits)
        self._secret = np.frombuffer(secret, np.uint8)
        self._seeds = [Prg(seed, STREAM_LABEL) for seed in seeds]

    def correlated(self, rows: int, message: bytes) -> Words:
        """Return q (rows, 2) of the next block for b = 1 (`OtReceiver.correlated`). Raise CryptoError like `extend`."""
        number, _ = self._next(rows)
        return self._columns(number, rows, message)

    def extend(self, rows: int, message: bytes) -> SenderBlock:
        """Process the receiver's message for the next block.

        Args:
            rows: number of rows of the block.
            message: the receiver's message.

        Returns:
            The block, from which pads can be computed.

        Raises:
            CryptoError: if the message has the wrong length or fails the check; the session must end then.
        """
        number, start = self._next(rows)
        q, s = self._columns(number, rows, message), self._secret.view("<u8").astype(np.uint64)
        return SenderBlock(self._hash, self._bits, start, q, s)

    def _columns(self, number: int, rows: int, message: bytes) -> Words:
        """Return the rows q (rows * b, 2) of a block as words, after the check."""
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
        tags, sent = tags.reshape(-1, TAG_BYTES), np.frombuffer(check, np.uint8).reshape(-1, TAG_BYTES)
        expected = tags[1:] ^ np.where(chosen[:, None], sent[0] ^ tags[0], 0).astype(np.uint8)
        if not hmac.compare_digest(expected.tobytes(), sent[1:].tobytes()):
            raise CryptoError(
                "the receiver of oblivious transfers used different choices in different columns",
                code="SVFL-PROTOCOL-CHEATING",
            )


class SenderBlock(Secret):
    """The sender's results for a block. Pads are computed on request, because they need 2^b words for each row.

    Args:
        hashed: the hash H.
        bits: the number b.
        start: number of the first row.
        q: the rows q (rows * b, 2) as words.
        s: the secret s (2,) as words.
    """

    __slots__ = ("_bits", "_hash", "_q", "_s", "_start", "rows")

    def __init__(self, hashed: RowHash, bits: int, start: int, q: Words, s: Words) -> None:
        self._hash, self._bits, self._start, self._q, self._s = hashed, bits, start, q, s
        self.rows = len(q) // bits

    def stored(self, first: int, last: int) -> tuple[bytes, ...]:
        """Return rows `first` to `last` (exclusive) of this block as secret bytes, which `restored` reads."""
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

    def pads(self, first: int, last: int, dtype: type[np.unsignedinteger] = np.uint64) -> NDArray[Any]:
        """Return the pads (2^b, last - first) of rows `first` to `last` (exclusive) of this block.

        Args:
            first: the first row.
            last: the row after the last one.
            dtype: the type of the pads; a type of fewer than 64 bits contains the lowest bits of each pad.

        Returns:
            The pads.
        """
        out = np.empty((2**self._bits, last - first), dtype)
        numbers = tweaks(self._start + first, min(_ROWS_AT_ONCE, last - first), PAD_TWEAK)
        tweak = np.repeat(numbers[None], 2**self._bits, axis=0)
        tweak[:, :, 1] |= (np.arange(2**self._bits, dtype=np.uint64) << np.uint64(8))[:, None]
        for start in range(first, last, _ROWS_AT_ONCE):
            stop = min(start + _ROWS_AT_ONCE, last)
            out[:, start - first : stop - first] = self._pads(start, stop, tweak[:, : stop - start])
            tweak[:, :, 0] += np.uint64(_ROWS_AT_ONCE)
        return out

    def _pads(self, first: int, last: int, numbered: Words) -> Words:
        """Return the pads of rows `first` to `last`; `numbered` (2^b, rows, 2) are the tweaks of H for the pads."""
        bits, rows = self._bits, last - first
        q = self._q[first * bits : last * bits]
        tweak = tweaks((self._start + first) * bits, rows * bits, KEY_TWEAK)
        zeros, ones = (self._hash(x, tweak).reshape(rows, bits, BLOCK_WORDS) for x in (q, q ^ self._s))
        mixed = np.empty((2**bits, rows, BLOCK_WORDS), np.uint64)
        mixed[0] = _xor(zeros)
        for bit in range(bits):
            np.bitwise_xor(mixed[: 1 << bit], zeros[:, bit] ^ ones[:, bit], out=mixed[1 << bit : 2 << bit])
        return self._hash(mixed, numbered)[..., 0]


def _streams(prgs: Sequence[Prg], number: int, octets: int) -> Octets:
    """Return the pseudorandom columns (128, octets) of block `number`, one from each generator."""
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
