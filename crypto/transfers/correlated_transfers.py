"""Correlated transfers: additive shares of a bit of the receiver times numbers of the sender, modulo 2^L.

For each transfer, the receiver has a bit c, and the sender numbers w_1 to w_k. They obtain shares of c * w_i:

    both        one transfer 1-of-2 with the choice c (field_transfers.py): the sender has two keys, and the receiver
                has the one with the number c. Each key is expanded to k words p_i
    sender      sends y_i = p_i(0) - p_i(1) + w_i; its share is -p_i(0)
    receiver    its share is p_i(c) + c * y_i, which is p_i(0) + c * w_i

The receiver lacks the key 1 - c, whose words hide w_i. The sender receives nothing but the message of the transfers,
which looks uniform. A key has 128 bits and is the hash H of a row of Q or V under a tweak that no other transfer of the
session has, and further tweaks expand it. One block of 128 bits yields as many words as it holds, such as three of 40
bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from securevfl.crypto.share_ring import ShareRing, Words
from securevfl.crypto.transfers.field_transfers import SenderBlock, TransferReceiver, TransferSender
from securevfl.crypto.transfers.ot_extension import Octets
from securevfl.crypto.transfers.punctured_seeds import Leaves
from securevfl.crypto.transfers.row_hash import BLOCK_WORDS, RowHash, tweaks

_BLOCK_BITS = 128
_TRANSFERS_AT_ONCE = 4096  # transfers whose words are computed at a time, so that they fit into the cache


def _words(hashed: RowHash, x: Words, start: int, count: int, ring: ShareRing) -> Words:
    """Expand keys to words.

    Args:
        hashed: computes the hash H.
        x: the rows of Q or V (m, 2).
        start: number of the first row in the session.
        count: number of words of each key.
        ring: the integers modulo 2^L.

    Returns:
        The words (m, count), below 2^L.
    """
    in_block = _BLOCK_BITS // ring.bits
    blocks = -(-count // in_block)
    tweak = np.repeat(tweaks(start, len(x), 0)[:, None], blocks, axis=1)
    tweak[:, :, 1] |= np.arange(blocks, dtype=np.uint64) << np.uint64(8)
    low, high = np.moveaxis(hashed(x[:, None, :], tweak).reshape(len(x), blocks, BLOCK_WORDS), -1, 0)
    out = np.empty((len(x), blocks, in_block), np.uint64)
    for number in range(in_block):
        shift = number * ring.bits
        if shift >= 64:
            word = high >> np.uint64(shift - 64)
        else:
            word = low >> np.uint64(shift)
            if shift + ring.bits > 64:
                word |= high << np.uint64(64 - shift)
        out[:, :, number] = word & ring.mask
    return out.reshape(len(x), -1)[:, :count]


class CorrelatedReceiver(TransferReceiver):
    """The receiver, which has the bits.

    Args:
        seeds: the 8 seeds of each block of seeds, of 32 bytes.
        coin: 32 public bytes that no other session uses.
        ring: the integers modulo 2^L.
        count: the number k of words of each transfer.
    """

    __slots__ = ("_count", "_ring")

    def __init__(self, seeds: Sequence[Leaves], coin: bytes, ring: ShareRing, count: int) -> None:
        super().__init__(seeds, coin, 1, 8)
        self._ring, self._count = ring, count

    def request(self, bits: Octets) -> tuple[bytes, Words]:
        """Begin transfers with the choices `bits` (m,), 0 or 1.

        Args:
            bits: the choices.

        Returns:
            The message for the sender, and the words p(c) of each transfer (m, k), for `shares`.
        """
        message, block = self.extend(len(bits), bits)
        return message, block.pads

    def _pads(self, v: Words, start: int, choices: Octets) -> Words:
        """Return the words of each transfer (m, k), from V (1, m, 2)."""
        out = np.empty((len(choices), self._count), np.uint64)
        for first in range(0, len(out), _TRANSFERS_AT_ONCE):
            part = slice(first, first + _TRANSFERS_AT_ONCE)
            out[part] = _words(self._hash, v[0, part], start + first, self._count, self._ring)
        return out


class CorrelatedSender(TransferSender):
    """The sender, which has the numbers.

    Args:
        secret: the number Delta_i of each of the 43 blocks of seeds, one byte each.
        seeds: the seeds of each of these blocks; seed number Delta_i is empty.
        coin: 32 public bytes that no other session uses.
        ring: the integers modulo 2^L.
        count: the number k of words of each transfer.
    """

    __slots__ = ("_count", "_ring")

    def __init__(self, secret: bytes, seeds: Sequence[Leaves], coin: bytes, ring: ShareRing, count: int) -> None:
        super().__init__(secret, seeds, coin, 1, 8)
        self._ring, self._count = ring, count

    def accept(self, rows: int, message: bytes) -> CorrelatedBlock:
        """Process the receiver's message for the next `rows` transfers.

        CryptoError is raised if the message has the wrong length or fails the check; the session must end then.
        """
        block = self.extend(rows, message)
        assert isinstance(block, CorrelatedBlock), "this class creates no other blocks"
        return block

    def _block(self, start: int, q: Words) -> CorrelatedBlock:
        return CorrelatedBlock(self._hash, start, q, self._secret, self._ring, self._count)


class CorrelatedBlock(SenderBlock):
    """The sender's keys of some consecutive transfers.

    Args:
        hashed: computes the hash H of rows.
        start: number of the first row.
        q: the rows of Q, each as two 64-bit words (1, rows, 2).
        secret: the number Delta_i of each of the 43 blocks of seeds, one byte each.
        ring: the integers modulo 2^L.
        count: the number k of words of each transfer.
    """

    __slots__ = ("_count", "_ring")

    def __init__(self, hashed: RowHash, start: int, q: Words, secret: bytes, ring: ShareRing, count: int) -> None:
        super().__init__(hashed, 1, 8, start, q, secret)
        self._ring, self._count = ring, count

    def words(self, first: int, last: int) -> tuple[Words, Words]:
        """Return p(0) and p(1) of the transfers `first` to `last` (exclusive), each (last - first, k)."""
        q = self._q[0, first:last]
        shifted = q ^ np.repeat(self._multiples[1][None], len(q), axis=0)
        start = self._start + first
        one, other = (_words(self._hash, x, start, self._count, self._ring) for x in (q, shifted))
        return one, other
