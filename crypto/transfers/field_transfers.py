"""Oblivious transfers over the field of 8 elements: for each row, 2^b pads at the sender, and one at the receiver.

The sender has 2^b random numbers ("pads") for each row; the receiver has a random index chi (the choice) and the pad
with this index, and neither learns more. This is SoftSpokenOT (Roy 2022): it needs a third of the bytes of transfers
with single bits (ot_extension.py), because each of its 43 blocks of seeds has 8 seeds in place of 2. Transfers are
generated in blocks of rows, which have nothing to do with blocks of seeds. Elements of the field F_8 = F_2[z] / (z^3 +
z + 1) are numbers below 8, whose bits are the coefficients of 1, z and z^2. + is XOR.

    seeds          of each block i the receiver has 8 seeds, and the sender all but number Delta_i (punctured_seeds.py).
                   r_x is a pseudorandom bit for seed number x, one for each bit of each row
    receiver       u_i = sum of r_x over x, and v_i = sum of x * r_x, an element of F_8
    sender         w_i = sum of (x + Delta_i) * r_x, which is v_i + Delta_i * u_i. The factor of the unknown r is 0
    receiver       sends the correction u_i + chi, for the bits of chi, and the check below
    sender         q_i = w_i + Delta_i * correction = v_i + Delta_i * chi

So far chi is a bit. The bits of a row's index form symbols of up to 3 bits, the lowest bits first: with 6 bits, chi =
h + 8 l. A symbol is an element of F_8: with bits chi_0, chi_1 and chi_2 it is chi_0 + chi_1 z + chi_2 z^2, and the same
sums of q_i and v_i give Q and V of 43 elements, with Q = V + Delta * symbol. The first 128 of their 129 bits are used.

    keys           H(Q + x * Delta; row, symbol) for each value x of a symbol. The receiver has the one for the value
                   of its symbol, H(V; row, symbol)
    pads           each key is expanded to one word for each value of all other symbols of its row. A pad is the sum of
                   one word of one key of each symbol: with 6 bits, pad(h, l) = word l of key h of the first symbol +
                   word h of key l of the second symbol

`TransferSender` explains why other pads look random, and the check of the receiver.
"""

from __future__ import annotations

import hmac
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.crypto.key_derivation import derive_key
from securevfl.crypto.prg import first_streams
from securevfl.crypto.secret import Secret
from securevfl.crypto.share_ring import Words
from securevfl.crypto.transfers.bit_matrices import transpose_bits
from securevfl.crypto.transfers.ot_extension import CHECK_BYTES, Octets, TransferEndpoint
from securevfl.crypto.transfers.punctured_seeds import BLOCKS, ELEMENTS, SMALL_FIELD_BITS, Leaves, map_known
from securevfl.crypto.transfers.row_hash import BLOCK_WORDS, RowHash, tweaks
from securevfl.errors import ConfigError, CryptoError

PAD_TYPES: dict[int, type[np.unsignedinteger[Any]]] = {1: np.uint8, 2: np.uint16, 8: np.uint64}
"""The possible lengths of a pad in bytes, and the types of their arrays."""
COLUMNS = BLOCKS * SMALL_FIELD_BITS
"""Number of columns of bits of Q and V."""
_HASH_BITS = 128
FIELD_TRANSFER_LABEL = "transfers over the field of 8 elements"
"""Label from which keyed streams and the key of the hash H are derived."""
_ROWS_AT_ONCE = 2048  # rows whose pads the sender computes at a time, so that they fit into the cache
_CHOSEN_ROWS_AT_ONCE = 4096  # rows whose chosen pads the receiver computes at a time
_HEAD = struct.Struct(f"<BBQ{BLOCKS}s")


def symbol_widths(bits: int) -> tuple[int, ...]:
    """Return the number of bits of each symbol of an index of `bits` bits, the lowest symbol first."""
    count = -(-bits // SMALL_FIELD_BITS)
    return tuple(bits // count + (number < bits % count) for number in range(count))


def message_bytes(rows: int, bits: int) -> int:
    """Return the length in bytes of the receiver's message for a block of rows."""
    return BLOCKS * _column_octets(rows, bits) + CHECK_BYTES * (COLUMNS + 1)


def _plane_octets(rows: int) -> int:
    """Return the number of bytes that store one bit of each row, padded to a multiple of 16."""
    return -(-rows // _HASH_BITS) * CHECK_BYTES


def _column_octets(rows: int, bits: int) -> int:
    """Return the length in bytes of a column: bit 0 of all indices, then bit 1 and so on, and 128 additional bits."""
    return bits * _plane_octets(rows) + CHECK_BYTES


class _FieldEndpoint(TransferEndpoint):
    """Base class of sender and receiver: the symbols, the length of pads, and the hash H of rows."""

    __slots__ = ("_bits", "_hash", "_octets", "_widths")

    def __init__(self, coin: bytes, bits: int, pad_octets: int) -> None:
        if not 1 <= bits <= 8:
            raise ConfigError(
                f"an oblivious transfer cannot select one of 2^{bits} entries",
                "use 1 to 8 bits",
                code="SVFL-CRYPTO-PARAMETERS",
            )
        if pad_octets not in PAD_TYPES:
            raise ConfigError(
                f"pads, the random numbers that hide entries, cannot have {pad_octets} bytes",
                "use 1, 2 or 8 bytes",
                code="SVFL-CRYPTO-PARAMETERS",
            )
        super().__init__(coin)
        self._hash = RowHash(derive_key(coin, FIELD_TRANSFER_LABEL, bits, pad_octets)[:16])
        self._bits, self._widths, self._octets = bits, symbol_widths(bits), pad_octets

    @property
    def bits(self) -> int:
        """The number b; a transfer selects one of 2^b pads."""
        return self._bits

    def _symbol_rows(self, columns: Octets, rows: int) -> Words:
        """Return the first 128 bits of Q or V for each symbol and row (symbols, rows, 2), from all columns."""
        plane, start = _plane_octets(rows), 0
        planes = columns[:, :, : self._bits * plane].reshape(BLOCKS, SMALL_FIELD_BITS, self._bits, plane)
        out = np.empty((len(self._widths), rows, BLOCK_WORDS), np.uint64)
        for symbol, width in enumerate(self._widths):
            total = planes[:, :, start + width - 1].copy()
            for bit in reversed(range(start, start + width - 1)):
                total = _times_z(total) ^ planes[:, :, bit]
            start += width
            out[symbol] = transpose_bits(total.reshape(COLUMNS, plane)[:_HASH_BITS])[:rows]
        return out


def _times_z(elements: Octets) -> Octets:
    """Return z times each element. The second dimension contains an element's bits (blocks of seeds, 3, octets)."""
    low, middle, high = elements[:, 0], elements[:, 1], elements[:, 2]
    return np.stack([high, low ^ high, middle], axis=1)


def _sums(streams: Octets) -> tuple[Octets, tuple[Octets, Octets, Octets]]:
    """Return the sum of 8 streams (8, octets), and the three bits of the sum of x times stream number x."""
    pairs = streams[0::2] ^ streams[1::2]
    halves = pairs[0::2] ^ pairs[1::2]
    return halves[0] ^ halves[1], (np.bitwise_xor.reduce(streams[1::2]), pairs[1] ^ pairs[3], halves[1])


def _multiples(secret: bytes) -> Words:
    """Return the first 128 bits of x * Delta for each x of the field (8, 2)."""
    places = np.arange(SMALL_FIELD_BITS, dtype=np.uint8)
    powers = [np.frombuffer(secret, np.uint8)[:, None, None] >> places[:, None] & np.uint8(1)]
    for _ in range(SMALL_FIELD_BITS - 1):
        powers.append(_times_z(powers[-1]))
    factors = np.arange(ELEMENTS, dtype=np.uint8)[:, None] >> places & np.uint8(1)  # the bits of each x
    rows = factors @ np.stack(powers).reshape(SMALL_FIELD_BITS, COLUMNS) & np.uint8(1)
    packed = np.packbits(rows[:, :_HASH_BITS], axis=1, bitorder="little")
    return packed.view("<u8").astype(np.uint64)


def _expand(hashed: RowHash, x: Words, start: int, symbol: int, words: int, octets: int) -> NDArray[Any]:
    """Compute the keys of rows for one symbol, and expand each to words.

    Args:
        hashed: computes the hash H, whose values are the keys.
        x: the inputs of H, such as rows of V (.., rows, 2).
        start: number of the first row in the session.
        symbol: index of the symbol.
        words: number of words of each key.
        octets: number of bytes of a word.

    Returns:
        The words (.., rows, words).
    """
    blocks = -(-words * octets // (8 * BLOCK_WORDS))
    tweak = np.repeat(tweaks(start, x.shape[-2], symbol)[:, None], blocks, axis=1)
    tweak[:, :, 1] |= np.arange(blocks, dtype=np.uint64) << np.uint64(8)
    keys = hashed(x[..., None, :], tweak)
    data = keys.astype("<u8", copy=False).reshape(*x.shape[:-1], blocks * BLOCK_WORDS).view(f"<u{octets}")
    return data[..., :words].astype(PAD_TYPES[octets], copy=False)


@dataclass(frozen=True, repr=False)
class ReceiverBlock:
    """The receiver's results for a block of rows.

    Attributes:
        choices: the choice chi of each row (rows,), below 2^b.
        pads: the pad with this index for each row (rows,).
    """

    choices: Octets
    pads: NDArray[Any]


class TransferReceiver(_FieldEndpoint):
    """The receiver, which gets one pad of each row.

    Args:
        seeds: the 8 seeds of each block of seeds, of 32 bytes.
        coin: 32 public bytes that no other session uses.
        bits: the number b, from 1 to 8; a transfer selects one of 2^b pads.
        pad_octets: the length of a pad in bytes, a key of `PAD_TYPES`.

    Raises:
        ConfigError: if `bits` or `pad_octets` is out of range.
    """

    __slots__ = ("_streams",)

    def __init__(self, seeds: Sequence[Leaves], coin: bytes, bits: int, pad_octets: int) -> None:
        super().__init__(coin, bits, pad_octets)
        self._streams = [first_streams(block, FIELD_TRANSFER_LABEL) for block in seeds]

    def extend(self, rows: int, choices: Octets | None = None) -> tuple[bytes, ReceiverBlock]:
        """Generate the next block of `rows` rows; return the message for the sender, and the receiver's results.

        The choices are random, or those that the receiver gives (rows,), below 2^b. The sender cannot distinguish the
        two, because the pseudorandom sums u_i hide them in the message.
        """
        number, start = self._next(rows)
        size = _column_octets(rows, self._bits)
        chi = np.frombuffer(os.urandom(size), np.uint8)
        if choices is not None:
            chi = self._given(choices, chi)
        corrections = np.empty((BLOCKS, size), np.uint8)
        columns = np.empty((BLOCKS, SMALL_FIELD_BITS, size), np.uint8)
        words = np.empty((ELEMENTS, size // 8), np.uint64)
        for correction, column, streams in zip(corrections, columns, self._streams, strict=True):
            for out, stream in zip(words, streams, strict=True):
                stream.fill(out)
            u, v = _sums(words.view(np.uint8))
            np.bitwise_xor(u, chi, out=correction)
            column[0], column[1], column[2] = v
        sent = corrections.data.cast("B")
        check = self._tags(number, sent, [chi, *columns.reshape(COLUMNS, size)])
        planes = chi[:-CHECK_BYTES].reshape(self._bits, -1)
        bits = np.unpackbits(planes, axis=1, count=rows, bitorder="little")
        choices = np.packbits(bits.T, axis=1, bitorder="little")[:, 0]
        pads = self._pads(self._symbol_rows(columns, rows), start, choices)
        return b"".join([sent, check]), ReceiverBlock(choices, pads)

    def _given(self, choices: Octets, chi: Octets) -> Octets:
        """Return a column with the given choices (rows,) in place of the random ones of the column `chi`."""
        plane, column = _plane_octets(len(choices)), chi.copy()
        for bit in range(self._bits):
            packed = np.packbits(choices >> np.uint8(bit) & np.uint8(1), bitorder="little")
            column[bit * plane : bit * plane + len(packed)] = packed
        return column

    def _pads(self, v: Words, start: int, choices: Octets) -> NDArray[Any]:
        """Return the pad of each row (rows,), from V (symbols, rows, 2)."""
        pads = np.zeros(len(choices), PAD_TYPES[self._octets])
        words = 1 << self._bits
        for first in range(0, len(choices), _CHOSEN_ROWS_AT_ONCE):
            part = slice(first, first + _CHOSEN_ROWS_AT_ONCE)
            shift = 0
            for symbol, width in enumerate(self._widths):
                chosen = choices[part].astype(np.intp)
                others = (chosen >> (shift + width) << shift) | (chosen & ((1 << shift) - 1))
                keys = _expand(self._hash, v[symbol, part], start + first, symbol, words >> width, self._octets)
                pads[part] += keys[np.arange(len(chosen)), others]
                shift += width
        return pads


class TransferSender(_FieldEndpoint):
    """The sender, which gets all 2^b pads of each row.

    An index that the receiver has not chosen differs from chi in at least one symbol. The key of this symbol is H of V
    plus a non-zero multiple of Delta, which looks random to the receiver. The pad is a sum with a word of this key, and
    this word is part of no other pad. Hence all pads that the receiver has not chosen look random and independent.

    A receiver that puts different choices into different blocks of seeds could learn Delta from its pads. The check is
    that of ot_extension.py: h is GHASH, linear over bits, under a key that is a hash of all corrections. The receiver
    sends h(chi) and the hash of each of the three bits of v_i, and the sender tests whether h(q_i) + h(v_i) = Delta_i *
    h(chi), bit by bit. A block of seeds with other choices passes only if the receiver guesses all three bits of
    Delta_i. 128 further random bits make h(chi) uniform.

    Transfers are generated in blocks of rows, which are numbered over the session, so that no input of H repeats.

    Args:
        secret: the number Delta_i of each of the 43 blocks of seeds, one byte each.
        seeds: the seeds of each of these blocks; seed number Delta_i is empty.
        coin: 32 public bytes that no other session uses.
        bits: the number b, from 1 to 8; a transfer selects one of 2^b pads.
        pad_octets: the length of a pad in bytes, a key of `PAD_TYPES`.

    Raises:
        ConfigError: if `bits` or `pad_octets` is out of range.
    """

    __slots__ = ("_secret", "_streams")

    def __init__(self, secret: bytes, seeds: Sequence[Leaves], coin: bytes, bits: int, pad_octets: int) -> None:
        super().__init__(coin, bits, pad_octets)
        self._secret = secret
        streams = partial(first_streams, label=FIELD_TRANSFER_LABEL)
        self._streams = [map_known(block, streams, None) for block in seeds]

    def extend(self, rows: int, message: bytes) -> SenderBlock:
        """Process the receiver's message for the next block of rows.

        Args:
            rows: number of rows of the block.
            message: the receiver's message.

        Returns:
            The sender's results for the block; it computes pads from them on request.

        Raises:
            CryptoError: if the message has the wrong length or fails the check; the session must end then.
        """
        number, start = self._next(rows)
        if len(message) != message_bytes(rows, self._bits):
            raise CryptoError(
                f"received {len(message)} bytes of oblivious transfers instead of {message_bytes(rows, self._bits)}",
                "use the same job at both parties",
                code="SVFL-PROTOCOL-SIZE",
            )
        size = _column_octets(rows, self._bits)
        sent = memoryview(message)[: BLOCKS * size]
        corrections = np.frombuffer(sent, np.uint8).reshape(BLOCKS, size)
        columns = np.empty((BLOCKS, SMALL_FIELD_BITS, size), np.uint8)
        words = np.zeros((ELEMENTS, size // 8), np.uint64)
        for delta, correction, column, streams in zip(self._secret, corrections, columns, self._streams, strict=True):
            for x, stream in enumerate(streams):
                if stream is not None:  # the sender lacks seed number Delta, whose factor is 0
                    stream.fill(words[x ^ delta])
            _, w = _sums(words.view(np.uint8))
            for bit in range(SMALL_FIELD_BITS):
                np.bitwise_xor(w[bit], correction & np.uint8(255 * (delta >> bit & 1)), out=column[bit])
        self._check(number, sent, message[BLOCKS * size :], columns.reshape(COLUMNS, size))
        q = self._symbol_rows(columns, rows)
        return self._block(start, q)

    def _block(self, start: int, q: Words) -> SenderBlock:
        """Return the results for the rows of Q (symbols, rows, 2), the first of which has the number `start`."""
        return SenderBlock(self._hash, self._bits, self._octets, start, q, self._secret)

    def _check(self, number: int, corrections: memoryview, check: bytes, columns: Octets) -> None:
        chosen = np.array([delta >> bit & 1 for delta in self._secret for bit in range(SMALL_FIELD_BITS)], bool)
        zero = np.zeros(columns.shape[1], np.uint8)
        tags = np.frombuffer(self._tags(number, corrections, [zero, *columns]), np.uint8).reshape(-1, CHECK_BYTES)
        sent = np.frombuffer(check, np.uint8).reshape(-1, CHECK_BYTES)
        expected = tags[1:] ^ np.where(chosen[:, None], sent[0] ^ tags[0], 0).astype(np.uint8)
        if not hmac.compare_digest(expected.tobytes(), sent[1:].tobytes()):
            raise CryptoError(
                "the receiver of oblivious transfers used different choices in different blocks",
                code="SVFL-PROTOCOL-CHEATING",
            )


class SenderBlock(Secret):
    """The sender's results for some consecutive rows, from row `start` on.

    A row has 2^b pads, which together need much memory. They are therefore computed only when they are requested.

    Args:
        hashed: computes the hash H of rows.
        bits: the number b.
        octets: the length of a pad in bytes.
        start: number of the first row.
        q: the rows of Q, each as two 64-bit words (symbols, rows, 2).
        secret: the number Delta_i of each of the 43 blocks of seeds, one byte each.
    """

    __slots__ = ("_bits", "_hash", "_multiples", "_octets", "_q", "_secret", "_start", "_tiled", "_widths", "rows")

    def __init__(self, hashed: RowHash, bits: int, octets: int, start: int, q: Words, secret: bytes) -> None:
        self._hash, self._bits, self._octets, self._start, self._q = hashed, bits, octets, start, q
        self._widths, self._secret, self._multiples = symbol_widths(bits), secret, _multiples(secret)
        self.rows = q.shape[1]
        self._tiled: Words | None = None

    def stored(self, first: int, last: int) -> tuple[bytes, ...]:
        """Return rows `first` to `last` (exclusive) of this block as secret bytes, which `restored` reads."""
        head = _HEAD.pack(self._bits, self._octets, self._start + first, self._secret)
        return head, self._hash.key, self._q[:, first:last].astype("<u8", copy=False).tobytes()

    @classmethod
    def restored(cls, parts: tuple[bytes, ...]) -> SenderBlock:
        """Restore rows from the bytes that `stored` returned."""
        head, key, q = parts
        bits, octets, start, secret = _HEAD.unpack(head)
        shape = len(symbol_widths(bits)), -1, BLOCK_WORDS
        words = np.frombuffer(q, "<u8").astype(np.uint64, copy=False).reshape(shape)
        return cls(RowHash(key), bits, octets, start, words, secret)

    def pads(self) -> NDArray[Any]:
        """Return the pads (2^b, rows); those of a row are adjacent in memory."""
        out = np.empty((self.rows, 1 << self._bits), PAD_TYPES[self._octets])
        for first in range(0, self.rows, _ROWS_AT_ONCE):
            part = slice(first, min(first + _ROWS_AT_ONCE, self.rows))
            out[part] = self._pads(part)
        return out.T

    def _keys(self, rows: slice, symbol: int) -> NDArray[Any]:
        """Return the words of the keys for each value of a symbol (values, rows, words)."""
        size, count = 1 << self._widths[symbol], rows.stop - rows.start
        if self._tiled is None:  # XOR of arrays of one shape is much faster than with a broadcast pair of words
            self._tiled = np.repeat(self._multiples[:, None], min(self.rows, _ROWS_AT_ONCE), axis=1)
        inputs = self._q[symbol, rows] ^ self._tiled[:size, :count]
        words = (1 << self._bits) // size
        return _expand(self._hash, inputs, self._start + rows.start, symbol, words, self._octets)

    def _pads(self, rows: slice) -> NDArray[Any]:
        """Return the pads of some rows (rows, 2^b)."""
        count, octets = rows.stop - rows.start, self._octets
        total = np.zeros((count, 1 << self._bits), PAD_TYPES[octets])
        low = 1  # number of combinations of values of the lower symbols of an index
        for symbol, width in enumerate(self._widths):
            runs = self._keys(rows, symbol).view(f"V{low * octets}")  # `low` adjacent words are moved as one item
            total += np.ascontiguousarray(runs.transpose(1, 2, 0)).view(total.dtype).reshape(count, -1)
            low <<= width
        return total
