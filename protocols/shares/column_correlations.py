"""Correlations of two parties' columns: each party learns 6 bits of each sum over all rows, nothing about one row.

A has X_A (n, d_A) and B has X_B (n, d_B), standardised. s is the spacing of two levels, 1/30 of a correlation.

1, 2. both  shares of X_A^T X_B (summed_products.py)
3. B -> A   floor((h_B + D) / s) mod 2^6       D: secret, uniform below s, fresh for every number
   A -> B   floor((h_A + D) / s) mod 2^6       likewise
   both     add the received number to their h / s, and divide by 30

The values received in steps 1 and 2 are ciphertexts under the other party's key, or uniform. So each party learns d_A
d_B numbers of 6 bits, rounded up or down at random: the mean is the correlation, the error is below 1/30, and its
standard deviation at most half of that. An exact correlation would reveal more: if a column of A is 1 at one row and 0
at all others, it is that row of X_B divided by the root of n. Rounded, such a number has a signal of 30 / sqrt(n)
levels for a value of one standard deviation, against noise of 0.41 levels: much at n = 1,000, little at n = 100,000.
Hence there must be at least `MIN_CORRELATION_ROWS` rows, and at most one column for each `ROWS_PER_COLUMN` rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.base.roles import ACTIVE, PARTNER
from securevfl.crypto.prg import Prg
from securevfl.crypto.share_ring import Integers, ShareRing, Words
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.shares import summed_products as summed_products_module
from securevfl.protocols.shares.share_products import Products, unpack_words
from securevfl.protocols.shares.summed_products import summed_products
from securevfl.runtime.disclosure_gate import DisclosingMessage, DisclosureRecord

CORRELATION_BITS = 6

CORRELATION_LEVELS = 30
"""Levels from a correlation of 0 to one of 1: one less than 2^5 - 1, because rounding may add one."""

CORRELATION_NOISE = 1 / (6 * CORRELATION_LEVELS**2)
"""The average variance of rounding."""

MIN_CORRELATION_ROWS = 1_000

ROWS_PER_COLUMN = 100


class RoundedProducts(DisclosingMessage, frozen=True):
    """The sender's shares of correlations, rounded at random to words of 6 bits."""

    words: bytes


def declares() -> list[MessageDeclaration]:
    """Declare sender, receiver and disclosure of each message. Roles: active (the requesting party) and partner."""
    output = Reveal("output", "correlations of its columns with the sender's, rounded at random to 6 bits")
    return [
        *summed_products_module.declares(),
        MessageDeclaration(RoundedProducts, PARTNER, ACTIVE, output),
        MessageDeclaration(RoundedProducts, ACTIVE, PARTNER, output),
    ]


@dataclass(frozen=True)
class CorrelationEncoding:
    """The fixed-point encoding of products over n rows.

    A's columns have f_x fractional bits. B's columns are divided by n and scaled so that 2^L represents two
    correlations of 1, and 30 levels represent one.

    Attributes:
        rows: n.
        f_x: the fractional bits of A's columns.
    """

    rows: int
    f_x: int = 10

    @property
    def bits(self) -> int:
        """L, rounded up to whole bytes; the additional bits make B's columns more precise."""
        return -(-(self.f_x + math.ceil(math.log2(self.rows)) + 6) // 8) * 8

    @property
    def shift(self) -> int:
        """The number of bits of a share below one level."""
        return self.bits - CORRELATION_BITS

    def encode_active(self, X: Floats) -> Integers:
        """Return X_A (n, d) as integers."""
        return np.rint(np.ldexp(X, self.f_x)).astype(np.int64)

    def encode_partner(self, X: Floats) -> Integers:
        """Return X_B (n, d) as integers."""
        scale = CORRELATION_LEVELS / 2.0 ** (CORRELATION_BITS - 1) / self.rows
        return np.rint(np.ldexp(X * scale, self.bits - 1 - self.f_x)).astype(np.int64)


def rounded_correlations(context: PartyContext, blocks: Sequence[Floats], widths: Sequence[int]) -> list[Floats]:
    """Run one party's side, in a context of two parties.

    Args:
        context: this party's context.
        blocks: this party's blocks of standardised columns (n, d).
        widths: the number of columns of each of the other party's blocks.

    Returns:
        The correlations (d, d_other) of each block with the other party's block of the same index.
    """
    encoding, is_active = CorrelationEncoding(len(blocks[0])), context.me == context.active
    encode = encoding.encode_active if is_active else encoding.encode_partner
    integers = [encode(X) for X in blocks]
    products, shares = summed_products(context, encoding.bits, integers, widths, "correlations")  # 1, 2
    (peer,) = context.roles.others(context.me)
    correlations = _exchange(context, products, peer, encoding, shares)
    return [matrix if is_active else matrix.T for matrix in correlations]


def _exchange(
    context: PartyContext, products: Products, peer: str, encoding: CorrelationEncoding, shares: list[Words]
) -> list[Floats]:
    """Send the rounded shares (d_A, d_B), receive the peer's, and return the correlations."""
    ring, flat = ShareRing(CORRELATION_BITS), np.concatenate([share.ravel() for share in shares])
    record = DisclosureRecord(peer, "columns", len(flat), CORRELATION_BITS, about=(context.me,), group="correlations")
    permit = context.channel.permit(record)
    products.send(peer, RoundedProducts(ring.pack(_rounded(encoding, flat))), permit)  # 3
    levels = unpack_words(peer, products.recv(peer, RoundedProducts).words, ring, flat.shape)  # 3
    total = levels.astype(np.float64) + np.ldexp(flat.astype(np.float64), -encoding.shift)
    half = 2.0 ** (CORRELATION_BITS - 1)
    values = (np.mod(total + half, 2 * half) - half) / CORRELATION_LEVELS
    ends = np.cumsum([share.size for share in shares])[:-1]
    return [part.reshape(share.shape) for part, share in zip(np.split(values, ends), shares, strict=True)]


def _rounded(encoding: CorrelationEncoding, shares: Words) -> Words:
    """Return shares (any shape) as levels, rounded up or down at random."""
    below = Prg.fresh("dither of correlations").array(shares.shape, np.uint64) >> np.uint64(64 - encoding.shift)
    return ((shares + below) >> np.uint64(encoding.shift)) & np.uint64(2**CORRELATION_BITS - 1)
