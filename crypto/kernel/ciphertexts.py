"""Encryption, answers and decryption on the kernel, which shares and sealed gradients have in common.

A query holds messages m of an output block at the points of its layout: c0 = m + e - a' s, a' expanded from a seed. An
answer holds c1 of products with (b u + e0, a u + e1) added, u, e0, e1 fresh, and of c0 the wanted coefficients alone,
under a mask uniform modulo q. Why that hides what it should is said in docs/proof.md.

*Draws.* Everything comes from a `Prg`, under a key from the operating system or, where both parties must find the same,
from a coin or seed. Uniform values are drawn by rejection, so how long that takes depends on words that are thrown away
and on none that is kept. An error is the bits set in 42 less 21, which is distributed as those set in 21 bits less
those in 21 others: a centred binomial distribution with standard deviation sqrt(10.5), as SEAL draws it.

*Bytes.* Residues travel in as many bytes as their primes need, primes of 20 bits two and two in five bytes. What
travels lies in [0, p). A residue of a peer that is not below its prime is refused, as is a message of another length,
so that every residue has one form alone.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.crypto.kernel.ntt import multiplication_matrices, transform
from securevfl.crypto.kernel.residue_bytes import pack, packed_size, unpack
from securevfl.crypto.kernel.residue_products import add_product, multiply_residues
from securevfl.crypto.kernel.residues import DEGREE, Primes
from securevfl.crypto.kernel.ring_layout import BLOCKS_PER_GROUP, RingLayout
from securevfl.crypto.kernel.ring_sampling import errors, ternary, uniform
from securevfl.crypto.prg import Prg
from securevfl.crypto.secret import Secret


def column_groups(layout: RingLayout, d: int) -> Iterator[tuple[slice, slice]]:
    """Column blocks by groups, as they travel in answers, and the columns that are in each."""
    F = layout.column_blocks(d)
    for at in range(0, F, BLOCKS_PER_GROUP):
        stop = min(F, at + BLOCKS_PER_GROUP)
        yield slice(at, stop), slice(at * layout.columns, min(d, stop * layout.columns))


def answer_size(primes: Primes, layout: RingLayout, d: int) -> int:
    """Bytes of the ciphertexts of an answer about d columns."""
    blocks = layout.output_blocks * layout.column_blocks(d)
    return blocks * packed_size(primes, DEGREE) + packed_size(primes, layout.c * d)


def wanted_coefficients(primes: Primes, layout: RingLayout, values: Floats) -> Floats:
    """Return what the wanted coefficients are (P, columns, outputs) of values (P, M, outputs, F): column after
    column."""
    found = transform(primes, layout.points).back(values, layout.wanted)
    return found.transpose(0, 3, 1, 2).reshape(len(primes), -1, values.shape[2])


class KernelSecretKey(Secret):
    """A secret key, and what is done with it."""

    def __init__(self, primes: Primes, secret: Floats) -> None:
        self._primes, self.secret = primes, secret
        self._by_secret = functools.lru_cache(maxsize=2)(functools.partial(multiplication_matrices, primes, secret))

    def seal(self, layout: RingLayout, message: Floats, second: Floats, prg: Prg) -> bytes:
        """c0 of messages (P, M, outputs, blocks), residues, for a' = `second` (P, M, r, blocks); errors from `prg`."""
        primes, width = self._primes, message.shape[2]
        message += errors(prg, message.shape[1:])
        values = transform(primes, layout.points).forward(message)
        hidden, _ = add_product(primes, None, 0, self._by_secret(layout.r)[:, :, :width], second)
        values -= hidden
        return pack(primes, primes.reduce(values))

    def reveal(self, layout: RingLayout, width: int, d: int, view: memoryview) -> Iterator[tuple[slice, Floats]]:
        """Columns, and what their coefficients (P, columns, outputs) decrypt to, of an output block of an answer."""
        primes = self._primes
        for blocks, columns in column_groups(layout, d):
            count, wanted = blocks.stop - blocks.start, columns.stop - columns.start
            second = unpack(primes, view, (layout.points, layout.r, count))
            view = view[packed_size(primes, DEGREE * count) :]
            first = unpack(primes, view, (wanted, width))
            view = view[packed_size(primes, wanted * width) :]
            hidden = wanted_coefficients(
                primes, layout, multiply_residues(primes, self._by_secret(layout.r)[:, :, :width], second)
            )
            yield columns, primes.reduce(first + hidden[:, :wanted])


def _multiplier(primes: Primes, first: Floats, second: Floats, r: int, width: int) -> Floats:
    """(P, M, width + r, r): what multiplies by b, so many of its rows, over what multiplies by a.

    Not a method: a cache of one would hold its object, and so each key of an epoch, until rings are looked for.
    """
    b, a = (multiplication_matrices(primes, each, r) for each in (first, second))
    return np.concatenate([b[:, :, :width], a], axis=2)


class ProductHider:
    """The evaluator's end of a key (b, a): hides products before they leave."""

    def _has_key(self, primes: Primes, first: Floats, second: Floats) -> None:
        self._primes, self._polynomials = primes, (first, second)
        self._by_key = functools.lru_cache(maxsize=2)(functools.partial(_multiplier, primes, first, second))

    def _hidden(self, layout: RingLayout, total: Floats, shape: tuple[int, int], prg: Prg) -> tuple[bytes, Floats]:
        """Return the answer to products (P, M, outputs + r, blocks), c0 over c1, of so many columns and outputs, and
        its mask (P, *shape)."""
        primes, (wanted, width) = self._primes, shape
        total = primes.reduce(self._zero(layout, width, prg, total.shape[3]) + total)
        mask = self._uniform(prg, shape)
        first = wanted_coefficients(primes, layout, total[:, :, :width])[:, :wanted]
        first = primes.reduce(first + errors(prg, shape) + mask)
        return pack(primes, total[:, :, width:]) + pack(primes, first), mask

    def _zero(self, layout: RingLayout, width: int, prg: Prg, count: int) -> Floats:
        """(b u, a u + e1) (P, M, width + r, count) for fresh u and e1, not reduced; e0 is added where c0 leaves."""
        primes, r = self._primes, layout.r
        ahead, shape = transform(primes, layout.points), (layout.points, r, count)
        drawn = ahead.forward(np.concatenate([ternary(prg, shape), errors(prg, shape)], axis=-1))  # one call for both
        total, _ = add_product(primes, None, 0, self._by_key(r, width), drawn[..., :count])
        total[:, :, width:] += drawn[..., count:]
        return total

    def _uniform(self, prg: Prg, shape: tuple[int, ...]) -> Floats:
        return uniform(prg, self._primes, shape)
