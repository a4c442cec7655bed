"""Shares of W^T V modulo 2^L on SEAL (BFV, N = 4096, L <= 56): the arithmetic of `crypto.kernel.shares` in a library.

The protocol, the layout and what is told are said there. Here V is encrypted modulo t = 2^L by SEAL, which draws errors
and expands a' from a seed of its own; W is multiplied and zero encrypted by SEAL; the mask is drawn and divided here. q
is as large as L asks for, two primes of whole bytes with at least 32 bits between q and t (36 at L = 56), so that some
2^-16 to 2^-20 of the values are off by one. A third prime divides most of the noise of an encryption of zero away.

Zeros in W change no step: a block without any entry is multiplied as one with a unit, and the product thrown away.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any, ClassVar

from securevfl.crypto.kernel import ring_layout
from securevfl.crypto.kernel.residues import DEGREE
from securevfl.crypto.kernel.ring_layout import RingLayout
from securevfl.crypto.kernel.share_protocol import (
    MAX_SHARE_BITS,
    QUERY_HEADER,
    PreparedFactor,
    RingEvaluator,
    RingHolder,
    RingParameters,
    RingShares,
)
from securevfl.crypto.lattice.polynomial_ring import SPECIAL_NOISE, SealProductHider, SealRing, SealSecretKey
from securevfl.crypto.lattice.residue_bytes import Residues, pack, packed_size, unpack
from securevfl.crypto.lattice.seal_io import SEAL_SEED_BYTES
from securevfl.crypto.prg import Prg
from securevfl.crypto.share_ring import Integers, Words

_ROOM = 32  # bits of q / t that are left for the noise, at least
_MOST_PRIME, _SPECIAL = 46, 17  # bits; 46 + 46 + 17 is the most for 128-bit security

# Milliseconds of one core, both ends: a ciphertext up (encrypt, save, load, transform), one down (transform back,
# encryption of zero, save, load, decrypt), a product with its sum, a plaintext made; and of a line of 150 Mbps for the
# 45 kB of either ciphertext. Only their ratios matter.
LINE_MS = 2.4
UP_MS, DOWN_MS, PRODUCT_MS, PREPARE_MS = 1.3, 2.5, 0.07, 0.2


def milliseconds(layout: RingLayout, d: int, uses: int = 1, openings: int = 1) -> float:
    """About what a product takes of one core, both ends, and of a line."""
    B, F, Q = layout.sample_blocks, layout.column_blocks(d), layout.output_blocks
    up = B * (UP_MS + LINE_MS * layout.c / (Q * layout.r))
    return Q * (up + openings * (F * (DOWN_MS + LINE_MS) + B * F * PRODUCT_MS)) + B * F * PREPARE_MS / uses


def primes(bits: int) -> tuple[int, int, int]:
    """Sizes of the primes for L, the special one last."""
    size = min(_MOST_PRIME, -(-(bits + _ROOM) // 16) * 8)
    return size, size, _SPECIAL


class BfvParameters(RingParameters):
    """The ring of SEAL for one L, and what both sides derive from it."""

    engine: ClassVar[str] = "lattice shares"
    magic: ClassVar[tuple[bytes, bytes, bytes]] = b"SSK1", b"SSV2", b"SSR2"
    zero: ClassVar[float] = SPECIAL_NOISE

    def __init__(self, bits: int) -> None:
        super().__init__(bits)
        self.bfv = SealRing(primes(bits), bits)
        self.modulus, self.key_bits = self.bfv.q, sum(primes(bits))
        self.key_size = self.secret_size = packed_size(self.bfv.key_primes, DEGREE)

    def second(self, coin: bytes) -> Residues:
        """Return the second polynomial a of the public key that this coin gives."""
        return self.bfv.second(Prg(self.coined(coin), "public second polynomial of a key"))

    def choose(self, n: int, c: int, d: int, uses: int = 1) -> RingLayout:
        return ring_layout.choose_layout(n, c, d, uses, cost=milliseconds)

    def query_size(self, layout: RingLayout) -> int:
        one = packed_size(self.bfv.primes, layout.points * layout.c) + layout.output_blocks * SEAL_SEED_BYTES
        return layout.sample_blocks * one

    def reply_size(self, layout: RingLayout, d: int) -> int:
        return self.bfv.answer_size(layout, d)


_parameters = functools.lru_cache(maxsize=8)(BfvParameters)


class LatticeShareHolder(RingHolder):
    """The party that owns V and a secret key of SEAL."""

    _parameters: BfvParameters

    def _new_key(self, coin: bytes) -> bytes:
        bfv = self._parameters.bfv
        secret, first = bfv.keypair(self._parameters.second(coin))
        self._own = SealSecretKey(bfv, secret)
        return pack(first, bfv.key_primes)

    def _secret(self) -> bytes:
        return pack(self._own.residues, self._parameters.bfv.key_primes)

    def _has_secret(self, secret: bytes) -> None:
        bfv = self._parameters.bfv
        self._own = SealSecretKey(bfv, unpack(secret, bfv.key_primes, DEGREE))

    def _sealed(self, layout: RingLayout, V: Words) -> Iterator[bytes]:
        for outputs in layout.outputs:
            for block in range(layout.sample_blocks):
                some = slice(block, block + 1)
                yield self._own.seal(layout, layout.messages(V[None, layout.rows(some), outputs], some)[0, ..., 0])

    def _opened(self, layout: RingLayout, d: int, view: memoryview) -> Iterator[tuple[slice, slice, Words]]:
        moduli = self._parameters.bfv.primes
        for outputs, columns in blocks(layout, d):
            shape = columns.stop - columns.start, outputs.stop - outputs.start
            yield columns, outputs, self._own.reveal(layout, shape, view)
            view = view[packed_size(moduli, DEGREE) + packed_size(moduli, math.prod(shape)) :]


def blocks(layout: RingLayout, d: int, width: int = 0) -> Iterator[tuple[slice, slice]]:
    """Yield outputs (all, or so many) and columns of each ciphertext of an answer, in the order they travel."""
    for outputs in [slice(0, width)] if width else layout.outputs:
        for at in range(0, d, layout.columns):
            yield outputs, slice(at, min(d, at + layout.columns))


class PreparedPlaintexts(PreparedFactor):
    """Plaintexts (B x F) of W, and whether there is an entry in each."""

    @property
    def nbytes(self) -> int:
        """Bytes of W and its plaintexts."""
        count = 0 if self._values is None else sum(map(len, self._values))
        return int(self._W.nbytes) + count * DEGREE * len(self._parameters.bfv.primes) * 8

    def _made(self, layout: RingLayout) -> list[list[tuple[Any, bool]]]:
        made = []
        for block in range(layout.sample_blocks):
            plain = layout.plaintexts(self._W, slice(block, block + 1))[:, 0]
            made.append([self._parameters.bfv.plaintext(layout, column) for column in plain.T])
        return made


class LatticeShareEvaluator(SealProductHider, RingEvaluator):
    """The party that owns W, on SEAL."""

    _parameters: BfvParameters

    def _has_public(self, first: memoryview, coin: bytes) -> None:
        self._has_key(self._parameters.bfv, first, self._parameters.second(coin))

    def _prepared(self, W: Integers, once: bool) -> PreparedPlaintexts:
        return PreparedPlaintexts(self._parameters, W)

    def _places(self, layout: RingLayout, d: int) -> Iterator[tuple[slice, slice]]:
        return blocks(layout, d)

    def _totals(self, prepared: PreparedPlaintexts, layout: RingLayout, sealed: bytes) -> Iterator[Any]:
        bfv, view, plains = self._parameters.bfv, memoryview(sealed)[QUERY_HEADER.size :], prepared.values(layout)
        for outputs in layout.outputs:
            width, ups = outputs.stop - outputs.start, []
            size = bfv.sealed_size(layout, width)
            for _ in range(layout.sample_blocks):
                ups.append(bfv.unsealed(layout, width, view[:size]))
                view = view[size:]
            for column in zip(*plains, strict=True):
                yield bfv.inner(ups, column)

    def _hidden(self, layout: RingLayout, total: Any, shape: tuple[int, int], prg: Prg) -> tuple[bytes, Residues]:
        mask = self._uniform(prg, shape)
        return self._parameters.bfv.answer(layout, total, self._zero(), mask), mask

    def _share(self, mask: Residues) -> Words:
        return self._parameters.bfv.nearest(mask)


class LatticeShares(RingShares):
    """Shares modulo 2^bits on SEAL, 128-bit RLWE. ConfigError unless 8 <= bits <= 56."""

    name: ClassVar[str] = "lattice"
    holders: ClassVar[type[RingHolder]] = LatticeShareHolder
    evaluators: ClassVar[type[RingEvaluator]] = LatticeShareEvaluator

    def __init__(self, bits: int = MAX_SHARE_BITS) -> None:
        super().__init__(bits, _parameters)

    def seconds(self, n: int, c: int, d: int) -> float:
        return milliseconds(self._parameters.choose(n, c, d), d) / 1e3
