"""Shared products W^T V modulo 2^L with the library SEAL: another implementation of `securevfl.crypto.kernel.shares`.

A holder has a matrix V (n, c) and a secret key, and an evaluator has a matrix W (n, d). They obtain random-looking
matrices (d, c) that add up to the product. Columns of V are called outputs. A query is the holder's message with the
encrypted V, and a reply is the evaluator's answer. A key has a coin, a public random seed that both parties determine.
`crypto.kernel.shares` describes the protocol, the layout of blocks in polynomials, and who learns what.

Here SEAL does the encryption (BFV scheme with N = 4096 coefficients): it encrypts V modulo t = 2^L, multiplies by W,
and encrypts zero. This module draws the mask and computes the share from it. The modulus q is the product of two
primes. It has at least 32 bits more than t (36 for L = 56), so that a fraction of 2^-16 to 2^-20 of the results is off
by one. A third prime removes most of the noise of an encryption of zero.

Zeros in W do not change any step: a block of zeros is multiplied as the polynomial 1, and the product is discarded.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any, ClassVar

from securevfl.crypto.kernel import ring_layout
from securevfl.crypto.kernel.residues import DEGREE
from securevfl.crypto.kernel.ring_layout import LINE_MS, RingLayout
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
from securevfl.crypto.lattice.residue_encoding import Residues, pack, packed_size, unpack
from securevfl.crypto.lattice.seal_io import SEAL_SEED_BYTES
from securevfl.crypto.prg import Prg
from securevfl.crypto.share_ring import Integers, Words

_MIN_NOISE_BITS = 32  # q has at least this number of bits more than t
_MAX_PRIME_BITS, _SPECIAL_BITS = 46, 17  # 46 + 46 + 17 = 109 bits, the largest modulus for 128-bit security

# estimated milliseconds on one core for both parties; only their ratios matter
_UP_MS = 1.3  # milliseconds to encrypt, save, load and transform a ciphertext for the evaluator
_DOWN_MS = 2.5  # milliseconds to transform a product, add an encryption of zero, save, load and decrypt
_PRODUCT_MS = 0.07  # milliseconds to multiply two polynomials and add the product to a sum
_PREPARE_MS = 0.2  # milliseconds to encode a block of W


def milliseconds(layout: RingLayout, d: int, uses: int = 1, openings: int = 1) -> float:
    """Estimate the milliseconds of a product with SEAL, for computation by both parties and for transmission.

    Args:
        layout: the division of matrices into blocks (`ring_layout.py`).
        d: number of columns of W.
        uses: number of V that are multiplied by the same W, which is encoded once.
        openings: number of products that are computed with each V.

    Returns:
        The time in milliseconds.
    """
    B, F, Q = layout.sample_blocks, layout.column_blocks(d), layout.output_blocks
    up = B * (_UP_MS + LINE_MS * layout.c / (Q * layout.r))
    return Q * (up + openings * (F * (_DOWN_MS + LINE_MS) + B * F * _PRODUCT_MS)) + B * F * _PREPARE_MS / uses


def primes(bits: int) -> tuple[int, int, int]:
    """Return the bits of the three primes for shares of `bits` bits; SEAL uses the last only while it encrypts."""
    size = min(_MAX_PRIME_BITS, -(-(bits + _MIN_NOISE_BITS) // 16) * 8)
    return size, size, _SPECIAL_BITS


class BfvParameters(RingParameters):
    """SEAL's context for shares of L bits, and the sizes of messages that follow from it."""

    engine: ClassVar[str] = "lattice shares"
    magic: ClassVar[tuple[bytes, bytes, bytes]] = b"SSK1", b"SSV2", b"SSR2"
    zero: ClassVar[float] = SPECIAL_NOISE

    def __init__(self, bits: int) -> None:
        super().__init__(bits)
        self.bfv = SealRing(primes(bits), bits)
        self.modulus, self.key_bits = self.bfv.q, sum(primes(bits))
        self.key_size = self.secret_size = packed_size(self.bfv.key_primes, DEGREE)

    def second(self, coin: bytes) -> Residues:
        """Compute the second polynomial a of a public key from its coin."""
        return self.bfv.second(Prg(self.coined(coin), "public second polynomial of a key"))

    def choose(self, n: int, c: int, d: int, uses: int = 1) -> RingLayout:
        """Return the fastest layout for V and W; see `RingParameters.choose`."""
        return ring_layout.choose_layout(n, c, d, uses, cost=milliseconds)

    def query_size(self, layout: RingLayout) -> int:
        """Return the number of bytes of a query; see `RingParameters.query_size`."""
        one = packed_size(self.bfv.primes, layout.points * layout.c) + layout.output_blocks * SEAL_SEED_BYTES
        return layout.sample_blocks * one

    def reply_size(self, layout: RingLayout, d: int) -> int:
        """Return the number of bytes of a reply; see `RingParameters.reply_size`."""
        return self.bfv.answer_size(layout, d)


_parameters = functools.lru_cache(maxsize=8)(BfvParameters)


class LatticeShareHolder(RingHolder):
    """The party that has V and a secret key, with SEAL."""

    _parameters: BfvParameters

    def _new_key(self, coin: bytes) -> bytes:
        bfv = self._parameters.bfv
        secret, first = bfv.keypair(self._parameters.second(coin))
        self._secret_key = SealSecretKey(bfv, secret)
        return pack(first, bfv.key_primes)

    def _secret(self) -> bytes:
        return pack(self._secret_key.residues, self._parameters.bfv.key_primes)

    def _has_secret(self, secret: bytes) -> None:
        bfv = self._parameters.bfv
        self._secret_key = SealSecretKey(bfv, unpack(secret, bfv.key_primes, DEGREE))

    def _sealed(self, layout: RingLayout, V: Words) -> Iterator[bytes]:
        for outputs in layout.outputs:
            for block in range(layout.sample_blocks):
                samples = slice(block, block + 1)
                message = layout.messages(V[None, layout.rows(samples), outputs], samples)
                yield self._secret_key.seal(layout, message[0, ..., 0])

    def _opened(self, layout: RingLayout, d: int, view: memoryview) -> Iterator[tuple[slice, slice, Words]]:
        moduli = self._parameters.bfv.primes
        for outputs, columns in blocks(layout, d):
            shape = columns.stop - columns.start, outputs.stop - outputs.start
            yield columns, outputs, self._secret_key.reveal(layout, shape, view)
            view = view[packed_size(moduli, DEGREE) + packed_size(moduli, math.prod(shape)) :]


def blocks(layout: RingLayout, d: int, width: int = 0) -> Iterator[tuple[slice, slice]]:
    """Yield, for each ciphertext in a reply, the slices of outputs and of columns of W that it contains, in order.

    Args:
        layout: the division of matrices into blocks (`ring_layout.py`).
        d: number of columns of W, the evaluator's matrix.
        width: number of outputs if the reply contains one block of outputs only; 0 if it contains all outputs.

    Yields:
        A slice of outputs and a slice of columns.
    """
    for outputs in [slice(0, width)] if width else layout.outputs:
        for start in range(0, d, layout.columns):
            yield outputs, slice(start, min(d, start + layout.columns))


class PreparedPlaintexts(PreparedFactor):
    """W as polynomials of SEAL, one for each row block and column block, each with a flag: True if not zero."""

    @property
    def nbytes(self) -> int:
        """Memory of W and of its encoded polynomials, in bytes."""
        count = 0 if self._values is None else sum(map(len, self._values))
        return int(self._W.nbytes) + count * DEGREE * len(self._parameters.bfv.primes) * 8

    def _plaintexts(self, layout: RingLayout) -> list[list[tuple[Any, bool]]]:
        plaintexts = []
        for block in range(layout.sample_blocks):
            plain = layout.plaintexts(self._W, slice(block, block + 1))[:, 0]
            plaintexts.append([self._parameters.bfv.plaintext(layout, column) for column in plain.T])
        return plaintexts


class LatticeShareEvaluator(SealProductHider, RingEvaluator):
    """The evaluator, the party that has W: it multiplies an encrypted V by W with SEAL."""

    _parameters: BfvParameters

    def _has_public(self, first: memoryview, coin: bytes) -> None:
        self._has_key(self._parameters.bfv, first, self._parameters.second(coin))

    def _prepared(self, W: Integers, once: bool) -> PreparedPlaintexts:
        return PreparedPlaintexts(self._parameters, W)

    def _positions(self, layout: RingLayout, d: int) -> Iterator[tuple[slice, slice]]:
        return blocks(layout, d)

    def _totals(self, prepared: PreparedPlaintexts, layout: RingLayout, sealed: bytes) -> Iterator[Any]:
        bfv, view, plains = self._parameters.bfv, memoryview(sealed)[QUERY_HEADER.size :], prepared.values(layout)
        for outputs in layout.outputs:
            width, ciphertexts = outputs.stop - outputs.start, []
            size = bfv.sealed_size(layout, width)
            for _ in range(layout.sample_blocks):
                ciphertexts.append(bfv.unsealed(layout, width, view[:size]))
                view = view[size:]
            for column in zip(*plains, strict=True):
                yield bfv.inner(ciphertexts, column)

    def _hidden(self, layout: RingLayout, total: Any, shape: tuple[int, int], prg: Prg) -> tuple[bytes, Residues]:
        mask = self._uniform(prg, shape)
        return self._parameters.bfv.answer(layout, total, self._zero(), mask), mask

    def _share(self, mask: Residues) -> Words:
        return self._parameters.bfv.nearest(mask)


class LatticeShares(RingShares):
    """The scheme for shared products modulo 2^bits with SEAL, with 128-bit security under RLWE.

    Args:
        bits: the number of bits L of a share, from 8 to 56.

    Raises:
        ConfigError: if the number of bits is out of range.
    """

    name: ClassVar[str] = "lattice"
    holders: ClassVar[type[RingHolder]] = LatticeShareHolder
    evaluators: ClassVar[type[RingEvaluator]] = LatticeShareEvaluator

    def __init__(self, bits: int = MAX_SHARE_BITS) -> None:
        super().__init__(bits, _parameters)

    def with_bits(self, bits: int) -> LatticeShares:
        """Return the scheme for exact products modulo 2^bits."""
        return LatticeShares(bits)

    def seconds(self, n: int, c: int, d: int) -> float:
        """Estimate the seconds of a product; see `ShareScheme.seconds`."""
        return milliseconds(self._parameters.choose(n, c, d), d) / 1e3
