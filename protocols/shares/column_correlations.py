"""Correlations of two parties' columns, of which each learns 6 bits: sums over all rows, and nothing about one row.

A has X_A (n x d_A) and B has X_B (n x d_B), standardised; s is the distance of two levels, 1/30 of a correlation.

1, 2. both  shares of X_A^T X_B (summed_products.py)
3. B -> A   floor((h_B + D) / s) mod 2^6       D secret, uniform below s, new for every number
   A -> B   floor((h_A + D) / s) mod 2^6       likewise
   each     own h / s and what came, over 30

What comes in 1 and 2 is a ciphertext under another's key or uniform, so each learns d_A d_B numbers
of 6 bits, rounded up or down at random: the mean is the correlation, the error less than 1/30, its deviation half of
that at most. An exact one would tell more: where a column of A's is 1 at one row and 0 at all others, it is that row
of X_B over the root of n. Rounded so, such a number has a signal of 30 / sqrt(n) steps for a value of one deviation,
against noise of .41: much at n = 1,000, little at n = 100,000. So there must be FEWEST rows, and no more than a column
for each ROWS_PER_COLUMN of them.
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
from securevfl.protocols.shares import summed_products as summed_products_of
from securevfl.protocols.shares.share_products import Products, unpack_words
from securevfl.protocols.shares.summed_products import summed_products
from securevfl.runtime.disclosure_gate import DisclosingMessage, DisclosureRecord

CORRELATION_BITS = 6
CORRELATION_LEVELS = 30  # from a correlation of 0 to one of 1: one less than 2^5 - 1, for what rounding adds
CORRELATION_NOISE = 1 / (6 * CORRELATION_LEVELS**2)  # variance of a rounding, on average
MIN_CORRELATION_ROWS = 1_000  # rows
ROWS_PER_COLUMN = 100


class RoundedProducts(DisclosingMessage, frozen=True):
    """The sender's shares of correlations, cut to words of 6 bits and rounded at random."""

    words: bytes


def declares() -> list[MessageDeclaration]:
    """Declare what the messages reveal. Roles: active (who asks) and partner."""
    told = Reveal("output", "correlations of its columns with the sender's, rounded at random to 6 bits")
    made = summed_products_of.declares()
    return [
        *made,
        MessageDeclaration(RoundedProducts, PARTNER, ACTIVE, told),
        MessageDeclaration(RoundedProducts, ACTIVE, PARTNER, told),
    ]


@dataclass(frozen=True)
class CorrelationEncoding:
    """The agreed sizes of products over n rows: A's columns at 10 bits, B's over n at f_w, so that 2^L is two
    correlations of 1 and 30 levels are one."""

    rows: int
    f_x: int = 10

    @property
    def bits(self) -> int:
        """L, filled up to whole bytes: what that adds makes B's columns finer."""
        return -(-(self.f_x + math.ceil(math.log2(self.rows)) + 6) // 8) * 8

    @property
    def shift(self) -> int:
        """How many bits of a share lie below one level."""
        return self.bits - CORRELATION_BITS

    def asked(self, X: Floats) -> Integers:
        """X_A (n x d) as integers."""
        return np.rint(np.ldexp(X, self.f_x)).astype(np.int64)

    def answering(self, X: Floats) -> Integers:
        """X_B (n x d) as integers, over the number of rows and at 30 levels for a correlation of 1."""
        scale = CORRELATION_LEVELS / 2.0 ** (CORRELATION_BITS - 1) / self.rows
        return np.rint(np.ldexp(X * scale, self.bits - 1 - self.f_x)).astype(np.int64)


def rounded_correlations(context: PartyContext, blocks: Sequence[Floats], widths: Sequence[int]) -> list[Floats]:
    """One party's side, at a context of two, whose active party asks: the correlations (d x d_other) of each of its
    blocks
    (n x d, standardised) with the other's block of the same number, of so many columns."""
    numbers, asks = CorrelationEncoding(len(blocks[0])), context.me == context.active
    own = [numbers.asked(X) if asks else numbers.answering(X) for X in blocks]
    products, shares = summed_products(context, numbers.bits, own, widths, "correlations")  # 1, 2
    (peer,) = context.roles.others(context.me)
    found = _told(context, products, peer, numbers, shares)
    return [each if asks else each.T for each in found]


def _told(
    context: PartyContext, products: Products, peer: str, numbers: CorrelationEncoding, shares: list[Words]
) -> list[Floats]:
    """Tell the peer this party's shares (d_A x d_B) as levels, and put what it tells to them."""
    coarse, flat = ShareRing(CORRELATION_BITS), np.concatenate([share.ravel() for share in shares])
    permit = context.channel.permit(
        DisclosureRecord(peer, "columns", len(flat), CORRELATION_BITS, about=(context.me,), group="correlations")
    )
    products.send(peer, RoundedProducts(coarse.pack(_rounded(numbers, flat))), permit)  # 3
    level = unpack_words(peer, products.recv(peer, RoundedProducts).words, coarse, flat.shape)  # 3
    whole = level.astype(np.float64) + np.ldexp(flat.astype(np.float64), -numbers.shift)
    half = 2.0 ** (CORRELATION_BITS - 1)
    values = (np.mod(whole + half, 2 * half) - half) / CORRELATION_LEVELS
    places = np.cumsum([share.size for share in shares])[:-1]
    return [part.reshape(share.shape) for part, share in zip(np.split(values, places), shares, strict=True)]


def _rounded(numbers: CorrelationEncoding, shares: Words) -> Words:
    """Shares (any shape) as levels, rounded up or down at random."""
    below = Prg.fresh("dither of correlations").array(shares.shape, np.uint64) >> np.uint64(64 - numbers.shift)
    return ((shares + below) >> np.uint64(numbers.shift)) & np.uint64(2**CORRELATION_BITS - 1)
