"""Correlated oblivious transfers: the receiver has rows t_i and random bits r_i, the sender q_i = t_i ^ r_i * s.

They are extended from 128 slow *base transfers* by fast symmetric cryptography (Ishai, Kilian, Nissim, Petrank 2003).
Rows have 128 bits, ^ is XOR, s (128 bits) is a secret of the sender, and r (one bit for each of m rows) one of the
receiver:

    base transfers   the receiver has 128 pairs of seeds; of pair j the sender has the seed number s_j
    T, T'            bit matrices (m, 128): column j is a pseudorandom stream from the first or second seed of pair j
    receiver         sends U, a bit matrix with the columns T_j ^ T'_j ^ r, and the check below
    sender           computes Q, with the columns T_j if s_j = 0, and T'_j ^ U_j if s_j = 1. So row i is q_i = t_i ^
                     r_i * s, with row t_i of T

U is uniform to the sender, which has only one of T_j and T'_j. If a receiver puts different r into different columns of
U, it could learn bits of s from its rows. The check (Roy 2022, "SoftSpokenOT", section 5, after Keller, Orsini, Scholl
2015) detects this unless it guesses these bits. h is GHASH, a universal hash that is linear over GF(2), under a key
that is a hash of U. The receiver sends h(r) and all h(T_j). The sender tests whether h(Q_j) ^ h(T_j) = s_j * h(r) for
all j. 128 additional random transfers make h(r) uniform.

Transfers are generated in blocks of rows. All q_i and t_i differ by multiples of the same s, so they must be hashed
with distinct numbers before they are used as keys. A vector OLE (vole.py) uses these transfers; tables are read with
those of field_transfers.py, which need fewer bytes.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Iterable, Sequence

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import NDArray

from securevfl.crypto.prg import Prg
from securevfl.crypto.secret import Secret
from securevfl.crypto.share_ring import Words
from securevfl.crypto.transfers.bit_matrices import transpose_bits
from securevfl.errors import ConfigError, CryptoError

ROW_BASES = 128
"""Number of base transfers, which is the number of bits of the sender's secret s."""
SECRET_BYTES = ROW_BASES // 8
MAX_BLOCK_ROWS = 1 << 22
"""Largest number of rows of a block."""
CHECK_BYTES = 16
"""Length of a check value of the consistency check, at the end of a message."""
ROW_TRANSFER_LABEL = "transfers by rows"
"""Label from which keyed streams are derived."""

Octets = NDArray[np.uint8]


def fresh_secret() -> tuple[bytes, list[bool]]:
    """Return a new random s, as 16 bytes and as the 128 choices of the base transfers."""
    secret = os.urandom(SECRET_BYTES)
    return secret, np.unpackbits(np.frombuffer(secret, np.uint8), bitorder="little").astype(bool).tolist()


def message_bytes(rows: int) -> int:
    """Return the length in bytes of the receiver's message for a block."""
    return ROW_BASES * _column_octets(rows) + CHECK_BYTES * (ROW_BASES + 1)


def _column_octets(rows: int) -> int:
    """Return the length in bytes of a column: its bits padded to blocks of 16 bytes, and the 128 additional ones."""
    return -(-rows // ROW_BASES) * CHECK_BYTES + CHECK_BYTES


class TransferEndpoint(Secret):
    """The state that sender and receiver have in common: the numbers of the next block and row.

    Args:
        coin: 32 public bytes that no other session uses.
    """

    __slots__ = ("_blocks", "_coin", "_rows")

    def __init__(self, coin: bytes) -> None:
        self._coin = coin
        self._blocks = 0
        self._rows = 0

    def _next(self, rows: int) -> tuple[int, int]:
        """Return the number of the next block and the number of its first row, and advance both."""
        if not 1 <= rows <= MAX_BLOCK_ROWS:
            raise ConfigError(
                f"a block of oblivious transfers cannot have {rows} rows",
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


class OtReceiver(TransferEndpoint):
    """The receiver, which has the rows t and the choices r.

    Args:
        pairs: 128 pairs of new seeds (32 bytes each) from base transfers.
        coin: 32 public bytes that no other session uses.
    """

    __slots__ = ("_first", "_second")

    def __init__(self, pairs: Sequence[tuple[bytes, bytes]], coin: bytes) -> None:
        super().__init__(coin)
        self._first = [Prg(first, ROW_TRANSFER_LABEL) for first, _ in pairs]
        self._second = [Prg(second, ROW_TRANSFER_LABEL) for _, second in pairs]

    @staticmethod
    def choice_bytes(rows: int) -> int:
        """Return the number of random bytes that `correlated` needs for this number of rows."""
        return _column_octets(rows)

    def correlated(self, rows: int, choices: bytes) -> tuple[bytes, Octets, Words]:
        """Generate the next block.

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

    def _columns(self, number: int, r: Octets) -> tuple[bytes, Octets]:
        """Return the message of a block with the bits r, and the columns of T."""
        columns = _streams(self._first, number, len(r))
        corrections = _streams(self._second, number, len(r))
        corrections ^= columns
        corrections ^= r
        check = self._tags(number, corrections.data.cast("B"), [r, *columns])
        return b"".join([corrections.data, check]), columns


class OtSender(TransferEndpoint):
    """The sender, which has the secret s and the rows q.

    Args:
        secret: the secret s (16 bytes), from `fresh_secret`.
        seeds: results of the base transfers: of each pair of seeds, the one that a bit of s selects.
        coin: 32 public bytes that no other session uses.
    """

    __slots__ = ("_secret", "_seeds")

    def __init__(self, secret: bytes, seeds: Sequence[bytes], coin: bytes) -> None:
        super().__init__(coin)
        self._secret = np.frombuffer(secret, np.uint8)
        self._seeds = [Prg(seed, ROW_TRANSFER_LABEL) for seed in seeds]

    def correlated(self, rows: int, message: bytes) -> Words:
        """Process the receiver's message for the next block.

        Args:
            rows: number of rows of the block.
            message: the receiver's message.

        Returns:
            The rows q (rows, 2) as words.

        Raises:
            CryptoError: if the message has the wrong length or fails the check; the session must end then.
        """
        number, _ = self._next(rows)
        return self._columns(number, rows, message)

    def _columns(self, number: int, rows: int, message: bytes) -> Words:
        """Return the rows q (rows, 2) of a block as words, after the check."""
        if len(message) != message_bytes(rows):
            raise CryptoError(
                f"received {len(message)} bytes of oblivious transfers instead of {message_bytes(rows)}",
                "use the same job at both parties",
                code="SVFL-PROTOCOL-SIZE",
            )
        octets = _column_octets(rows)
        corrections = memoryview(message)[: ROW_BASES * octets]
        chosen = np.unpackbits(self._secret, bitorder="little").astype(bool)
        columns = _streams(self._seeds, number, octets)
        received = np.frombuffer(corrections, np.uint8).reshape(ROW_BASES, octets)
        for column, correction, mask in zip(columns, received, chosen * np.uint8(255), strict=True):
            column ^= correction & mask
        self._check(number, corrections, message[ROW_BASES * octets :], columns, chosen)
        return transpose_bits(columns)[:rows]

    def _check(
        self, number: int, corrections: memoryview, check: bytes, columns: Octets, chosen: NDArray[np.bool_]
    ) -> None:
        zero = np.zeros(columns.shape[1], np.uint8)
        tags = np.frombuffer(self._tags(number, corrections, [zero, *columns]), np.uint8)
        tags, sent = tags.reshape(-1, CHECK_BYTES), np.frombuffer(check, np.uint8).reshape(-1, CHECK_BYTES)
        expected = tags[1:] ^ np.where(chosen[:, None], sent[0] ^ tags[0], 0).astype(np.uint8)
        if not hmac.compare_digest(expected.tobytes(), sent[1:].tobytes()):
            raise CryptoError(
                "the receiver of oblivious transfers used different choices in different columns",
                code="SVFL-PROTOCOL-CHEATING",
            )


def _streams(prgs: Sequence[Prg], number: int, octets: int) -> Octets:
    """Return the pseudorandom columns (128, octets) of block `number`, one from each generator."""
    columns = np.empty((ROW_BASES, octets // 8), np.uint64)
    for column, prg in zip(columns, prgs, strict=True):
        prg.fill(column, number=number)
    return columns.view(np.uint8)
