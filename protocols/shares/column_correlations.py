"""Correlations of two parties' columns, rounded to 6 bits each, so that they reveal little about a single row.

Party A (role "active") has standardised columns X_A (n, d_A), and its partner B has standardised columns X_B (n, d_B)
about the same n rows. The correlations X_A^T X_B / n are computed as additive shares: random-looking matrices h_A at A
and h_B at B, whose sum modulo 2^L is the scaled product. Disclosed correlations are rounded to levels, multiples of
1/30. s is the number in the ring that represents one level.

1, 2. both  compute shares of X_A^T X_B (summed_products.py)
3. B -> A   floor((h_B + D) / s) mod 2^6       D: secret, uniform below s, new for every number
   A -> B   floor((h_A + D) / s) mod 2^6       with another D
   both     add the received number to their h / s, and divide by 30

Comments refer to these steps by number. The values received in steps 1 and 2 are ciphertexts under the other party's
key, or uniform. So each party learns d_A * d_B numbers of 6 bits, which D rounds up or down at random: their mean is
the correlation, their error is below 1/30, and its standard deviation is at most half of that. Exact correlations would
reveal more. If a column of A is 1 at one row and 0 at all others, its correlations are that row of X_B divided by
sqrt(n). After rounding, a value of one standard deviation in that row changes the correlation by 30 / sqrt(n) levels,
and the noise of rounding has a standard deviation of 0.41 levels. The row is thus readable for n = 1,000 and hidden for
n = 100,000. Hence there must be at least `MIN_CORRELATION_ROWS` rows, and at most one column for each `ROWS_PER_COLUMN`
rows.
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
"""The number of levels between the correlations 0 and 1: one less than 2^5 - 1, because rounding up may add one."""

CORRELATION_NOISE = 1 / (6 * CORRELATION_LEVELS**2)
"""The average variance that random rounding adds to a correlation."""

MIN_CORRELATION_ROWS = 1_000

ROWS_PER_COLUMN = 100


class RoundedProducts(DisclosingMessage, frozen=True):
    """The sender's shares of the correlations, rounded at random to 6 bits each (step 3)."""

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
    """How columns are encoded as integers, so that X_A^T X_B is the correlations in fixed point.

    A's columns have f_x fractional bits. B's columns are divided by n and scaled so that a correlation of 1 is 30
    levels, and the 2^L numbers of the ring are 64 levels.

    Attributes:
        rows: the number of rows n.
        f_x: the number of fractional bits of A's columns.
    """

    rows: int
    f_x: int = 10

    @property
    def bits(self) -> int:
        """The number of bits L of the ring: whole bytes, whose unneeded bits make B's columns more precise."""
        return -(-(self.f_x + math.ceil(math.log2(self.rows)) + 6) // 8) * 8

    @property
    def shift(self) -> int:
        """The number of lowest bits of a share that are less than one level."""
        return self.bits - CORRELATION_BITS

    def encode_active(self, X: Floats) -> Integers:
        """Return the columns X_A (n, d) of party A as integers."""
        return np.rint(np.ldexp(X, self.f_x)).astype(np.int64)

    def encode_partner(self, X: Floats) -> Integers:
        """Return the columns X_B (n, d) of party B as integers."""
        scale = CORRELATION_LEVELS / 2.0 ** (CORRELATION_BITS - 1) / self.rows
        return np.rint(np.ldexp(X * scale, self.bits - 1 - self.f_x)).astype(np.int64)


def rounded_correlations(context: PartyContext, blocks: Sequence[Floats], widths: Sequence[int]) -> list[Floats]:
    """Run one party's side of the protocol between two parties.

    Args:
        context: the party's channel to the others, the roles of all parties, and the meter of its costs.
        blocks: groups of this party's standardised columns, each an array (n, d); each group is correlated only with
            the other party's group of the same index.
        widths: the number of columns of each of the other party's groups.

    Returns:
        For each group, its correlations (d, d_other) with the other party's group of the same index.
    """
    encoding, is_active = CorrelationEncoding(len(blocks[0])), context.me == context.active
    encode = encoding.encode_active if is_active else encoding.encode_partner
    integers = [encode(X) for X in blocks]
    products, shares = summed_products(context, encoding.bits, integers, widths, "correlations")  # steps 1 and 2
    (peer,) = context.roles.others(context.me)
    correlations = _exchange(context, products, peer, encoding, shares)
    return [matrix if is_active else matrix.T for matrix in correlations]


def _exchange(
    context: PartyContext, products: Products, peer: str, encoding: CorrelationEncoding, shares: list[Words]
) -> list[Floats]:
    """Run step 3: send this party's rounded shares, receive the peer's, and return the correlations (d_A, d_B)."""
    ring, flat = ShareRing(CORRELATION_BITS), np.concatenate([share.ravel() for share in shares])
    record = DisclosureRecord(peer, "columns", len(flat), CORRELATION_BITS, about=(context.me,), group="correlations")
    permit = context.channel.permit(record)
    products.send(peer, RoundedProducts(ring.pack(_rounded(encoding, flat))), permit)  # step 3
    levels = unpack_words(peer, products.recv(peer, RoundedProducts).words, ring, flat.shape)  # step 3
    total = levels.astype(np.float64) + np.ldexp(flat.astype(np.float64), -encoding.shift)
    half = 2.0 ** (CORRELATION_BITS - 1)
    values = (np.mod(total + half, 2 * half) - half) / CORRELATION_LEVELS
    ends = np.cumsum([share.size for share in shares])[:-1]
    return [part.reshape(share.shape) for part, share in zip(np.split(values, ends), shares, strict=True)]


def _rounded(encoding: CorrelationEncoding, shares: Words) -> Words:
    """Return shares (any shape) as numbers of levels modulo 2^6, rounded up or down at random."""
    below = Prg.fresh("dither of correlations").array(shares.shape, np.uint64) >> np.uint64(64 - encoding.shift)
    return ((shares + below) >> np.uint64(encoding.shift)) & np.uint64(2**CORRELATION_BITS - 1)
