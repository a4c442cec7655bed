"""Lift of secret shares from k bits to L bits: the label party and its partner compute the carry of their shares.

Two parties, A (which has the labels) and B (its partner), share a number u: A has a random-looking integer a and B an
integer b of k bits each, whose sum modulo 2^k is u. They need such shares of u modulo 2^L, for L > k. The *lift*
computes them without revealing u. As integers, u = a + b - w * 2^k with a carry w of 0 or 1. The lift saves traffic: B
reads entries from tables of short numbers (k bits), and only the entries that it has read become long numbers (L bits).

The top bit of u must be 0: u < 2^(k-1). Then w is 1 exactly if the top bit of a or the top bit of b is 1:

    a, b both below 2^(k-1)     a + b < 2^k, so there is no carry
    a or b at least 2^(k-1)     without a carry, a + b = u would be at least 2^(k-1)

A has a random mask a + alpha * 2^k of L bits, with alpha of L - k bits. c_a is 1 - (the top bit of a), so that 1 - w =
c_a * (1 - (the top bit of b)). From an oblivious transfer, A has two random pads p_0 and p_1 of L - k bits, and B has a
random bit c and p_c:

1. B -> A   e = c ^ (the top bit of b)
2. A -> B   Y_j = c_a * [j = e] - alpha - p_j    for j = 0 and 1, modulo 2^(L-k)
   B        its share g_B = b + (Y_c + p_c - 1) * 2^k

c equals e exactly if the top bit of b is 0, so Y_c + p_c = (1 - w) - alpha. Therefore g_B = b - (w + alpha) * 2^k, and
g_B + (a + alpha * 2^k) = u modulo 2^L.

A receives e, which is uniform because c is: c must not be used for anything else. B receives two
uniform words: alpha covers Y_c, and p_(1-c), which B does not know, covers the other one. This holds for any e that B
sends: a false e makes B's share wrong, and reveals nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from securevfl.crypto.share_ring import ShareRing, Words
from securevfl.errors import RangeError

Bits = NDArray[np.uint8]
"""One bit for each number, as 0 or 1."""

_ONE = np.uint64(1)


class SplitMask(NamedTuple):
    """A's random mask a + alpha * 2^k of each of m numbers, split into its low and its high bits (m,).

    Attributes:
        low: a, the lowest k bits of each mask (m,).
        high: alpha, the upper L - k bits of each mask (m,).
    """

    low: Words
    high: Words


class CarryLift:
    """The lift: turns two parties' shares modulo 2^k of some numbers into shares modulo 2^L.

    Args:
        short_bits: k, the number of bits of a share before the lift.
        ring: the integers modulo 2^L, to which the shares belong after the lift.

    Raises:
        RangeError: L does not exceed k.

    Attributes:
        short_ring: the integers modulo 2^k, to which the shares belong before the lift.
        high_ring: the integers modulo 2^(L-k), to which pads and words of step 2 belong.
    """

    def __init__(self, short_bits: int, ring: ShareRing) -> None:
        if not 1 <= short_bits < ring.bits:
            raise RangeError(
                f"shares of {short_bits} bits cannot be extended to {ring.bits} bits",
                "use fewer bits for entries of the lookup table than for shares",
                code="SVFL-CRYPTO-PARAMETERS",
            )
        self._ring, self.short_ring = ring, ShareRing(short_bits)
        self.high_ring = ShareRing(ring.bits - short_bits)
        self._shift, self._top = np.uint64(short_bits), np.uint64(short_bits - 1)

    def split(self, mask: Words) -> SplitMask:
        """Split A's masks, integers modulo 2^L, into a and alpha."""
        reduced = self._ring.reduce(mask)
        return SplitMask(self.short_ring.reduce(reduced), reduced >> self._shift)

    def join(self, mask: SplitMask) -> Words:
        """Return A's masks as integers modulo 2^L, from their low and high bits."""
        return self._ring.reduce(mask.low + (mask.high << self._shift))

    def top_bits(self, words: Words) -> Bits:
        """Return the highest bit of each integer of k bits."""
        return (words >> self._top).astype(np.uint8)

    def request(self, b: Words, c: Bits) -> Bits:
        """Return e, B's message of step 1, from its shares b of k bits and its random bits c."""
        return self.top_bits(b) ^ c

    def answer(self, mask: SplitMask, e: Bits, pads: Words) -> Words:
        """Return Y (2, m), A's message of step 2.

        Args:
            mask: A's masks of m numbers.
            e: B's message of step 1 (m,).
            pads: p_0 and p_1 of each number (2, m).

        Returns:
            The words Y_0 and Y_1 of each number.
        """
        words = -(mask.high + pads)
        c_a = _ONE - self.top_bits(mask.low)
        words[0] += c_a & (e.astype(np.uint64) - _ONE)  # all bits are 1 if e is 0
        words[1] += c_a & e
        return self.high_ring.reduce(words)

    def finish(self, b: Words, c: Bits, pad: Words, answer: Words) -> Words:
        """Return g_B, B's shares modulo 2^L.

        Args:
            b: B's shares of k bits (m,).
            c: B's random bits (m,).
            pad: the pads p_c (m,).
            answer: A's message of step 2 (2, m).

        Returns:
            The shares (m,).
        """
        high = answer[c, np.arange(len(c))] + pad - _ONE
        return self._ring.reduce(b + (high << self._shift))
