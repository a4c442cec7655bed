"""Encryption, hiding of products, and decryption with this package's arithmetic, for shares.py and gradient.py.

Polynomials have N = 4096 coefficients modulo q, stored as residues modulo P primes, or as their values at M points
(ntt.py). s is the secret key and (b, a) the public key. A query contains encrypted messages m, as pairs of polynomials
(c0, a') with c0 = m + e - a' * s: e are small errors, and a' is computed from a seed. The evaluator multiplies both
polynomials by its matrix. An answer contains the product plus an encryption of zero, (b * u + e0, a * u + e1), with new
random u, e0 and e1. Of the first polynomial, only the wanted coefficients, those with results, are masked and sent. In
gradient.py, each of them plus a mask that is uniform modulo q is sent. In shares.py, the masked coefficients are
computed from a public seed, which is sent; the mask is the difference between them and the product. docs/proof.md
explains why an answer reveals nothing else. A layout (ring_layout.py) divides matrices into blocks: r outputs in a
block, and F blocks of columns.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.crypto.kernel.ntt import multiplication_matrices, transform
from securevfl.crypto.kernel.residue_bytes import pack, packed_size, unpack
from securevfl.crypto.kernel.residue_products import add_product, multiply_residues
from securevfl.crypto.kernel.residues import DEGREE, Primes
from securevfl.crypto.kernel.ring_layout import BLOCKS_PER_GROUP, RingLayout
from securevfl.crypto.kernel.ring_sampling import errors, ternary, uniform
from securevfl.crypto.key_derivation import SYMMETRIC_KEY_BYTES
from securevfl.crypto.prg import Prg
from securevfl.crypto.secret import Secret

REPLY_FIRST_LABEL = "public first polynomials of a reply"
"""Label of the generator that computes the wanted coefficients of c0 from the seed in a reply."""


def column_groups(layout: RingLayout, d: int) -> Iterator[tuple[slice, slice]]:
    """Yield a slice of blocks, and the slice of their columns, for each group of column blocks in an answer."""
    F = layout.column_blocks(d)
    for start in range(0, F, BLOCKS_PER_GROUP):
        stop = min(F, start + BLOCKS_PER_GROUP)
        yield slice(start, stop), slice(start * layout.columns, min(d, stop * layout.columns))


def answer_size(primes: Primes, layout: RingLayout, d: int) -> int:
    """Return the number of bytes of the ciphertexts in an answer for d columns."""
    blocks = layout.output_blocks * layout.column_blocks(d)
    return blocks * packed_size(primes, DEGREE) + packed_size(primes, layout.c * d)


def seeded_answer_size(primes: Primes, layout: RingLayout, d: int) -> int:
    """Return the number of bytes of the ciphertexts in an answer that contains seeds instead of coefficients of c0."""
    groups = sum(1 for _ in column_groups(layout, d))
    blocks = layout.output_blocks * layout.column_blocks(d)
    return blocks * packed_size(primes, DEGREE) + layout.output_blocks * groups * SYMMETRIC_KEY_BYTES


def new_seed() -> bytes:
    """Draw the public seed of a group of ciphertexts; it must be fresh for each group, because it determines masks."""
    return os.urandom(SYMMETRIC_KEY_BYTES)


def masked_first(primes: Primes, seed: bytes, shape: tuple[int, ...]) -> Floats:
    """Compute masked coefficients of c0 (P, *shape), uniform modulo each prime, from a public seed of 32 bytes."""
    return uniform(Prg(seed, REPLY_FIRST_LABEL), primes, shape)


def wanted_coefficients(primes: Primes, layout: RingLayout, values: Floats) -> Floats:
    """Return the coefficients with results (P, columns, outputs) of polynomials with the values (P, M, outputs, F)."""
    coefficients = transform(primes, layout.points).back(values, layout.wanted)
    return coefficients.transpose(0, 3, 1, 2).reshape(len(primes), -1, values.shape[2])


class KernelSecretKey(Secret):
    """A secret key that encrypts queries and decrypts answers.

    Args:
        primes: the prime moduli: a number is stored as its remainder modulo each of them.
        secret: the coefficients of s (N,), which are -1, 0 or 1.
    """

    def __init__(self, primes: Primes, secret: Floats) -> None:
        self._primes, self.secret = primes, secret
        self._by_secret = functools.lru_cache(maxsize=2)(functools.partial(multiplication_matrices, primes, secret))

    def seal(self, layout: RingLayout, message: Floats, second: Floats, prg: Prg) -> bytes:
        """Encrypt messages: return their polynomials c0.

        Args:
            layout: the division of matrices into blocks (`ring_layout.py`).
            message: the coefficients of the messages as residues (P, M, outputs, blocks), which are changed in place.
            second: the values of the polynomials a' (P, M, r, blocks).
            prg: the pseudorandom generator of the errors.

        Returns:
            The polynomials c0 as bytes.
        """
        primes, width = self._primes, message.shape[2]
        message += errors(prg, message.shape[1:])
        values = transform(primes, layout.points).forward(message)
        hidden, _ = add_product(primes, None, 0, self._by_secret(layout.r)[:, :, :width], second)
        values -= hidden
        return pack(primes, primes.reduce(values))

    def decrypted(self, layout: RingLayout, first: Floats, second: Floats, prg: Prg) -> Floats:
        """Return the coefficients of z = c0 + a' * s + e with a fresh error e.

        Args:
            layout: the division of matrices into blocks (`ring_layout.py`).
            first: the values of the polynomials c0 (P, M, outputs, blocks).
            second: the values of the polynomials a' (P, M, r, blocks).
            prg: the pseudorandom generator of the errors.

        Returns:
            The coefficients that contain entries of a message, as residues (P, rows of a block, outputs, blocks).
        """
        primes, width = self._primes, first.shape[2]
        hidden, _ = add_product(primes, None, 0, self._by_secret(layout.r)[:, :, :width], second)
        total = primes.reduce(first + hidden)
        message = transform(primes, layout.points).back(total, np.arange(layout.s))
        return primes.reduce(message + errors(prg, message.shape[1:]))

    def reveal(
        self, layout: RingLayout, width: int, d: int, view: memoryview, *, seeded: bool = False
    ) -> Iterator[tuple[slice, Floats]]:
        """Decrypt an evaluator's answer for one block of outputs.

        Args:
            layout: the division of matrices into blocks (`ring_layout.py`).
            width: number of outputs in the block.
            d: number of columns.
            view: the bytes of the answer from this block on.
            seeded: whether the answer contains seeds in place of the wanted coefficients of c0.

        Yields:
            A slice of columns, and the decrypted coefficients for them as residues (P, columns, outputs).
        """
        primes = self._primes
        for blocks, columns in column_groups(layout, d):
            count, column_count = blocks.stop - blocks.start, columns.stop - columns.start
            second = unpack(primes, view, (layout.points, layout.r, count))
            view = view[packed_size(primes, DEGREE * count) :]
            if seeded:
                first = masked_first(primes, bytes(view[:SYMMETRIC_KEY_BYTES]), (column_count, width))
                view = view[SYMMETRIC_KEY_BYTES:]
            else:
                first = unpack(primes, view, (column_count, width))
                view = view[packed_size(primes, column_count * width) :]
            hidden = wanted_coefficients(
                primes, layout, multiply_residues(primes, self._by_secret(layout.r)[:, :, :width], second)
            )
            yield columns, primes.reduce(first + hidden[:, :column_count])


def _multiplier(primes: Primes, first: Floats, second: Floats, r: int, width: int) -> Floats:
    """Return matrices (P, M, width + r, r): the upper `width` rows multiply by b of a public key, the lower r by a.

    This is a function and not a method, because the cache of a method would refer to its object, so that old keys would
    stay in memory until the garbage collector finds the reference cycle.
    """
    b, a = (multiplication_matrices(primes, polynomial, r) for polynomial in (first, second))
    return np.concatenate([b[:, :, :width], a], axis=2)


class ProductHider:
    """Base class of an evaluator, which hides its products with the public key (b, a) before it sends them."""

    def _has_key(self, primes: Primes, first: Floats, second: Floats) -> None:
        self._primes, self._polynomials = primes, (first, second)
        self._by_key = functools.lru_cache(maxsize=2)(functools.partial(_multiplier, primes, first, second))

    def _hidden(self, layout: RingLayout, total: Floats, shape: tuple[int, int], prg: Prg) -> tuple[bytes, Floats]:
        """Hide products with an encryption of zero and a mask.

        Args:
            layout: the division of matrices into blocks (`ring_layout.py`).
            total: the values of the products (P, M, outputs + r, blocks), with c0 above c1.
            shape: the numbers of columns and outputs.
            prg: the pseudorandom generator of all randomness.

        Returns:
            The bytes for the answer, and the mask as residues (P, *shape).
        """
        primes, mask = self._primes, self._uniform(prg, shape)
        first, second = self._encrypted(layout, total, shape, prg)
        return pack(primes, second) + pack(primes, primes.reduce(first + mask)), mask

    def _encrypted(self, layout: RingLayout, total: Floats, shape: tuple[int, int], prg: Prg) -> tuple[Floats, Floats]:
        """Add an encryption of zero to products; return c0 at the wanted coefficients (P, *shape), and c1."""
        primes, (columns, width) = self._primes, shape
        total = primes.reduce(self._zero(layout, width, prg, total.shape[3]) + total)
        first = wanted_coefficients(primes, layout, total[:, :, :width])[:, :columns]
        return first + errors(prg, shape), total[:, :, width:]

    def _zero(self, layout: RingLayout, width: int, prg: Prg, count: int) -> Floats:
        """Return values of (b * u, a * u + e1) for new random u and e1 (P, M, width + r, count), for `count` blocks.

        They are not reduced modulo the primes. `_encrypted` adds e0 to the wanted coefficients later.
        """
        primes, r = self._primes, layout.r
        ring, shape = transform(primes, layout.points), (layout.points, r, count)
        # transforming u and e1 in one call is faster than in two
        drawn = ring.forward(np.concatenate([ternary(prg, shape), errors(prg, shape)], axis=-1))
        total, _ = add_product(primes, None, 0, self._by_key(r, width), drawn[..., :count])
        total[:, :, width:] += drawn[..., count:]
        return total

    def _uniform(self, prg: Prg, shape: tuple[int, ...]) -> Floats:
        return uniform(prg, self._primes, shape)
