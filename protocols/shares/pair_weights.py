"""The weights of products of two parties' components ("pairs") in a training on secret shares, and their encoding.

A and B are the share holders. Each has small integers of every row, its components (`PairComponents` of the models).
The model has one input for every pair of a component of A and one of B: their product phi. The matrix of products Phi
(n, d) is shared, Phi = Phi_A + Phi_B, and so are its weights theta (d,). All numbers are integers modulo 2^P, the
ring of pairs. The gradient G_t = Phi^T g of iteration t, with the residuals g (n,), is not truncated, and theta is a
sum of all G_t with public integer factors:

    theta = -sum over t of k_t G_t      k_t: factor of step t by the update rule times `PairParams.scale`, rounded

A share holder h has a share G_h of G, and sends G_h - m_h to the other one, with a random mask m_h. So A learns
G - m_B, and B learns G - m_A. Hence there are two views of the same weights, and each needs no further message:

    theta = s_A + r_A     A has s_A = -sum of k_t (G_t - m_B), and B has r_A = -sum of k_t m_B
    theta = s_B + r_B     B has s_B = -sum of k_t (G_t - m_A), and A has r_B = -sum of k_t m_A

B draws m_B in advance, so it knows r_A before the iterations start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.crypto.share_ring import Integers, ShareRing, Words
from securevfl.errors import ConfigError
from securevfl.protocols.shares.fixed_point import FixedPointEncoding
from securevfl.protocols.shares.update_rules import LinearRule

LIMB_BITS = 14
"""Number of bits of a limb, the part of a word that an encrypted product multiplies at a time."""

_RING_BITS = 40, 48, 56
_MIN_SCALE = 3.0  # the shortest steps are rounded to multiples of 1 / scale, so to thirds or finer


@dataclass(frozen=True)
class PairParams:
    """The parameters of pairs on which the share holders agree.

    Attributes:
        active: the number of components of the active party.
        partner: the number of components of its partner.
        bits: the number of bits P of the ring of pairs.
        shift: log2 of the factor that turns a share modulo 2^P of a forward sum into a share modulo 2^L, the ring of
            the training: L - P.
        scale: the integer that represents a coefficient of 1 of the update rule in an iteration on the largest batch.
        rows: the number of rows of the largest batch.
    """

    active: int
    partner: int
    bits: int
    shift: int
    scale: float
    rows: int

    @classmethod
    def of(
        cls,
        encoding: FixedPointEncoding,
        *,
        active: int,
        partner: int,
        component: float,
        step: float,
        shortest: float = 1.0,
    ) -> PairParams:
        """Return the parameters with the smallest ring in which the rounded factors k_t are precise enough.

        Args:
            encoding: the fixed-point encoding of the training.
            active: the number of components of the active party.
            partner: the number of components of its partner.
            component: the value that the integer 1 represents in a component.
            step: the step size of the weights of pairs.
            shortest: the step size after a rollback, as a part of `step`; 1 if the training cannot roll back.

        Returns:
            The parameters.

        Raises:
            ConfigError: no ring is precise enough.
        """
        for bits in (*(size for size in _RING_BITS if size < encoding.bits), encoding.bits):
            shift = encoding.bits - bits
            fraction_bits = encoding.f_x + encoding.f_theta - shift
            scale = 2.0**fraction_bits * component**4 * step / (encoding.rows * encoding.residual_unit)
            if scale * shortest >= _MIN_SCALE:
                return cls(active, partner, bits, shift, scale, encoding.rows)
        raise ConfigError(
            f"pairs: the weights of products need more than {encoding.bits} bits for batches of {encoding.rows:,} rows",
            "set batch_size to fewer rows",
            code="SVFL-JOB-TOO-LARGE",
            rows=encoding.rows,
            bits=encoding.bits,
        )

    @property
    def products(self) -> int:
        """The number of products d, and so of weights."""
        return self.active * self.partner

    @cached_property
    def ring(self) -> ShareRing:
        """The ring of pairs."""
        return ShareRing(self.bits)

    @property
    def limbs(self) -> int:
        """The number of limbs of a word."""
        return -(-self.bits // LIMB_BITS)

    def factor(self, rows: int) -> np.uint64:
        """Return the factor of the gradient of a batch of this size: the size of the largest batch divided by it."""
        return np.uint64(round(self.rows / rows))

    def split(self, words: Words) -> Integers:
        """Return the limbs of words (.., n) as signed integers (limbs, .., n); word = sum of limb_i 2^(14 i)."""
        out, half = np.empty((self.limbs, *words.shape), np.int16), np.uint64(2 ** (LIMB_BITS - 1))
        left = words.copy()
        for limb in out:
            left += half  # the carry that makes limbs signed
            limb[...] = (left & np.uint64(2**LIMB_BITS - 1)).astype(np.int16) - np.int16(half)
            left >>= np.uint64(LIMB_BITS)
        return out

    def multiples(self, words: Words) -> Words:
        """Return the multiples of words (n, c) by which limbs are multiplied, one below the other (limbs * n, c)."""
        shifts = (np.uint64(LIMB_BITS * limb) for limb in range(self.limbs))
        return self.ring.reduce(np.concatenate([words << shift for shift in shifts]))

    def weights(self, rule: LinearRule, gradients: Words, *, result: bool = False) -> Words:
        """Return a view's share of the weights.

        Args:
            rule: the update rule of the training.
            gradients: the view's parts of the gradients (t, d): G - m at one share holder, or m at the other.
            result: whether to return the model in place of the point at which the next gradient is computed.

        Returns:
            The share (d,) modulo 2^P.
        """
        coefficients = rule.coefficients(len(gradients), result=result)
        return self.ring.reduce(-(self.integers(coefficients)[:, None] * gradients).sum(axis=0, dtype=np.uint64))

    def integers(self, coefficients: Sequence[float] | Floats) -> Words:
        """Return coefficients of the update rule as integers modulo 2^64."""
        return np.rint(np.asarray(coefficients, np.float64) * self.scale).astype(np.int64).view(np.uint64)


@dataclass(frozen=True, repr=False)
class PairShares:
    """One share holder's parts of all gradients of pairs so far, multiplied by `PairParams.factor`.

    Attributes:
        opened: G - m of each iteration (t, d), with the mask m of the other share holder.
        masks: this share holder's mask m of each iteration (t, d).
    """

    opened: Words
    masks: Words

    @classmethod
    def empty(cls, products: int) -> PairShares:
        """Return the state before the first iteration."""
        return cls(np.zeros((0, products), np.uint64), np.zeros((0, products), np.uint64))

    def extended(self, opened: Words, mask: Words) -> PairShares:
        """Return the state after one more iteration, whose parts are `opened` (d,) and `mask` (d,)."""
        return PairShares(np.vstack([self.opened, opened]), np.vstack([self.masks, mask]))
