"""Shares of W^T V modulo 2^L as products of matrices under RLWE encryption (BFV on crypto/kernel, N = 4096, L <= 56).

    0. holder      a key (b, a), a expanded from the coin; b alone is sent              `public`
    1. holder      V in coefficients modulo t = 2^L, c0 = round(q/t V) + e - a' s, with
                   a' expanded from a fresh seed, at the points of the layout           `encrypt`
    2. evaluator   at each point the ciphertexts times the values of W                  `product`
    3. evaluator   plus (b u + e0, a u + e1), u, e0, e1 fresh, and a mask r uniform
                   modulo q on each wanted coefficient, sends; keeps -round(t r / q)     `product`
    4. holder      c0 + c1 s, keeps round(t (r + q/t W^T V + e) / q)                     `open`

The mask is uniform over the whole modulus, so what the holder decrypts is uniform, noise included, and the unwanted
coefficients never leave: a masked product is a share already (as in the offline phase of Delphi, Mishra et al. 2020).
c1 of the reply has a u + e1 added, u and e1 fresh, which is uniform under RLWE for any key and any query that the
holder made, since a is uniform whoever the holder is; of c0 nothing is seen but what the mask covers. The holder gives
nothing back, so nothing is opened that could tell its key (Li and Micciancio 2021 does not apply).

The two shares sum to W^T V, or to one beside it where r comes close to a multiple of q/t: for a part E|e| t / q of the
values, e the noise: `error_rate`. All of q is in ciphertexts, there is no special prime: the encryption of zero adds
noise of some 240, beside that of the products. docs/proof.md has the parameters and what they rest on.

The protocol is one for every library that multiplies: `RingShares`, `RingHolder` and `RingEvaluator` say it, the kernel
and SEAL (bfv_product.py) encrypt, multiply, hide and decrypt.

Nothing branches on a secret: products take the same steps for zeros, and rejection depends on discarded words alone.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.crypto.kernel import blas_check
from securevfl.crypto.kernel.ciphertexts import KernelSecretKey, ProductHider, answer_size, column_groups
from securevfl.crypto.kernel.ntt import transform
from securevfl.crypto.kernel.residue_bytes import pack, packed_size, unpack
from securevfl.crypto.kernel.residue_products import Residues, add_product
from securevfl.crypto.kernel.residues import DEGREE, Primes
from securevfl.crypto.kernel.ring_keys import keypair, second_polynomial
from securevfl.crypto.kernel.ring_layout import RingLayout, choose_layout, milliseconds
from securevfl.crypto.kernel.ring_sampling import NOISE_STD, uniform
from securevfl.crypto.kernel.share_protocol import (
    FINGERPRINT_BYTES,
    MAX_SHARE_BITS,
    QUERY_HEADER,
    PreparedFactor,
    RingEvaluator,
    RingHolder,
    RingParameters,
    RingShares,
    same_rows,
)
from securevfl.crypto.key_derivation import SYMMETRIC_KEY_BYTES as SEED_BYTES
from securevfl.crypto.message_headers import check_length
from securevfl.crypto.prg import Prg
from securevfl.crypto.share_ring import Integers, Words
from securevfl.errors import ConfigError, CryptoError

MAX_MODULUS_BITS = 109  # bits of q: HomomorphicEncryption.org (2018), table 1, N = 4096, 128 bits, ternary secret
SECONDS = "public second polynomials of a query"  # whoever has the seed in it expands them
_TILE = 1 << 18  # coefficients of plaintexts that are transformed at a time


# The engine on small residues.


def primes_for(bits: int) -> Primes:
    """Choose the primes for shares of L bits: 3 of 24 bits to L = 40, 4 of 20 to 48, 4 of 23 above.

    31 to 36 bits are left for noise.
    """
    return Primes(24, 3) if bits <= 40 else Primes(20, 4) if bits <= 48 else Primes(23, 4)


class ShareParameters(RingParameters):
    """The primes for one L, and what both sides derive from them."""

    engine: ClassVar[str] = "shares on the kernel"
    magic: ClassVar[tuple[bytes, bytes, bytes]] = b"SKK2", b"SKV2", b"SKR2"
    zero: ClassVar[float] = NOISE_STD * math.sqrt(1 + 2 * DEGREE * 2 / 3)

    def __init__(self, bits: int) -> None:
        super().__init__(bits)
        self.primes = primes_for(bits)
        self.modulus, self.key_bits = self.primes.q, math.ceil(math.log2(self.primes.q))
        self.key_size, self.secret_size = packed_size(self.primes, DEGREE), DEGREE
        assert math.log2(self.primes.q) <= MAX_MODULUS_BITS, "more than the standard allows"

    def second(self, coin: bytes) -> Floats:
        """Return the second polynomial a (P, N) that this coin gives. CryptoError if the coin is of another length."""
        return second_polynomial(self.primes, self.coined(coin))

    def choose(self, n: int, c: int, d: int, uses: int = 1) -> RingLayout:
        return choose_layout(n, c, d, uses)

    def query_size(self, layout: RingLayout) -> int:
        return SEED_BYTES + layout.c * packed_size(self.primes, layout.points * layout.sample_blocks)

    def reply_size(self, layout: RingLayout, d: int) -> int:
        return answer_size(self.primes, layout, d)


_parameters = functools.lru_cache(maxsize=8)(ShareParameters)


class KernelHolder(RingHolder):
    """The party that owns V and a secret key on the kernel."""

    _parameters: ShareParameters

    def _new_key(self, coin: bytes) -> bytes:
        primes = self._parameters.primes
        secret, first = keypair(primes, self._parameters.second(coin))
        self._opener = KernelSecretKey(primes, secret)
        return pack(primes, first)

    def _secret(self) -> bytes:
        return self._opener.secret.astype(np.int8).tobytes()

    def _has_secret(self, secret: bytes) -> None:
        values = np.frombuffer(secret, np.int8).astype(np.float64)
        if np.abs(values).max() > 1:
            raise CryptoError("shares on the kernel: an exported key was expected, other bytes came; export it again")
        self._opener = KernelSecretKey(self._parameters.primes, values)

    def _sealed(self, layout: RingLayout, V: Words) -> Iterator[bytes]:
        parameters, primes = self._parameters, self._parameters.primes
        seed, prg = os.urandom(SEED_BYTES), Prg.fresh("errors of a query")
        seconds = Prg(seed, SECONDS)
        yield seed
        for outputs in layout.outputs:
            for blocks in layout.groups:
                words = primes.scaled(V[layout.rows(blocks), outputs], parameters.ring.bits)
                message = layout.messages(words, blocks)
                second = uniform(seconds, primes, (layout.points, layout.r, blocks.stop - blocks.start))
                yield self._opener.seal(layout, message, second, prg)

    def _opened(self, layout: RingLayout, d: int, view: memoryview) -> Iterator[tuple[slice, slice, Words]]:
        primes = self._parameters.primes
        for outputs in layout.outputs:
            width = outputs.stop - outputs.start
            for columns, values in self._opener.reveal(layout, width, d, view):
                yield columns, outputs, primes.nearest(values, self._parameters.ring.bits)
            view = view[answer_size(primes, replace(layout, c=width), d) :]


class PreparedWords(PreparedFactor):
    """Values of W at the points of a layout, residues (P, M, B, F)."""

    def __init__(self, parameters: ShareParameters, W: Integers, once: bool = False) -> None:
        """once: whether it serves for one product, so that values are made as they are multiplied, and none is
        kept."""
        super().__init__(parameters, W)
        self._once = once

    @property
    def nbytes(self) -> int:
        """Bytes of W and its values."""
        return int(self._W.nbytes + (0 if self._values is None else self._values.nbytes))

    def _made(self, layout: RingLayout) -> np.ndarray[Any, np.dtype[np.float32]]:
        shape = layout.points, layout.sample_blocks, layout.column_blocks(self.shape[1])
        out = np.empty((len(self._parameters.primes), *shape), np.float32)
        for blocks, values in self._residues_by_blocks(layout, self._W):
            out[:, :, blocks] = values
        return out

    def tiles(self, layout: RingLayout, blocks: slice, columns: slice) -> Iterator[tuple[slice, Residues]]:
        """Yield some sample blocks at a time, and their residues (P, M, some, F) for these column blocks, which hold
        these columns."""
        if self._once and layout.output_blocks == 1:
            self.check(min(layout.columns, self.shape[1]))
            yield from self._residues_by_blocks(layout, self._W[:, columns])
        else:
            yield slice(None), self.values(layout)[..., blocks]

    def _residues_by_blocks(self, layout: RingLayout, W: Integers) -> Iterator[tuple[slice, Floats]]:
        """Yield some sample blocks of W at a time, and their residues (P, M, some, F)."""
        primes, B, F = self._parameters.primes, layout.sample_blocks, layout.column_blocks(W.shape[1])
        ahead, wide = transform(primes, layout.points), self._largest >= min(primes.values) // 2
        step = max(1, _TILE // (layout.points * F))
        for start in range(0, B, step):
            blocks = slice(start, min(B, start + step))
            plain = layout.plaintexts(W, blocks)
            yield blocks, ahead.forward(primes.centred(plain) if wide else plain)


class KernelEvaluator(ProductHider, RingEvaluator):
    """The party that owns W, on the kernel."""

    _parameters: ShareParameters

    def _has_public(self, first: memoryview, coin: bytes) -> None:
        primes = self._parameters.primes
        self._has_key(primes, unpack(primes, first, (DEGREE,)), self._parameters.second(coin))

    def _prepared(self, W: Integers, once: bool) -> PreparedWords:
        return PreparedWords(self._parameters, W, once)

    def _places(self, layout: RingLayout, d: int) -> Iterator[tuple[slice, slice]]:
        return ((outputs, columns) for outputs in layout.outputs for _, columns in column_groups(layout, d))

    def _share(self, mask: Floats) -> Words:
        return self._primes.nearest(mask, self._parameters.ring.bits)

    def _totals(self, prepared: PreparedWords, layout: RingLayout, sealed: bytes) -> Iterator[Floats]:
        return _totals(self._parameters, prepared, layout, sealed)

    def hide(self, sealed: bytes, d: int, parts: Sequence[bytes]) -> tuple[bytes, Words]:
        primes, layout = self._parameters.primes, self._parameters.asked(sealed, self._key)
        shapes = [
            (layout.points, outputs.stop - outputs.start + layout.r, blocks.stop - blocks.start)
            for outputs in layout.outputs
            for blocks, _ in column_groups(layout, d)
        ]
        sizes = [packed_size(primes, math.prod(shape)) for shape in shapes]
        for part in parts:
            check_length(self._parameters.engine, b"SKT2", part, sum(sizes))

        def totals() -> Iterator[Floats]:
            for at, size, shape in zip(np.cumsum([0, *sizes]).tolist(), sizes, shapes, strict=False):
                yield np.sum([unpack(primes, memoryview(part)[at : at + size], shape) for part in parts], axis=0)

        return self._answer(layout, d, map(primes.reduce, totals()))


class KernelShares(RingShares):
    """Shares modulo 2^bits, 128-bit RLWE. ConfigError unless 8 <= bits <= 56 and the BLAS at hand is exact."""

    name: ClassVar[str] = "kernel"
    unlocked: ClassVar[bool] = True
    holders: ClassVar[type[RingHolder]] = KernelHolder
    evaluators: ClassVar[type[RingEvaluator]] = KernelEvaluator

    def __init__(self, bits: int = MAX_SHARE_BITS) -> None:
        if why := blas_check.blas_problem():
            raise ConfigError(f"shares on the kernel: {why}, or name the other library: {blas_check.SEAL_OPTION}")
        super().__init__(bits, _parameters)

    def multiply(self, W: Integers, sealed: bytes) -> bytes:
        parameters = self._parameters
        layout = parameters.asked(
            sealed, sealed[4 : 4 + FINGERPRINT_BYTES]
        )  # whoever hides the products checks the key
        same_rows(parameters, layout, len(W))
        totals = _totals(parameters, PreparedWords(parameters, np.ascontiguousarray(W), once=True), layout, sealed)
        return b"".join(pack(parameters.primes, total) for total in totals)

    def seconds(self, n: int, c: int, d: int) -> float:
        return milliseconds(choose_layout(n, c, d), d, line=0.0) / 1e3


def _totals(
    parameters: ShareParameters, prepared: PreparedWords, layout: RingLayout, sealed: bytes
) -> Iterator[Floats]:
    """Yield the products (P, M, outputs + r, blocks) of a query, by groups of outputs and then of columns: residues
    about zero, nothing drawn."""
    primes, d, start = parameters.primes, prepared.shape[1], QUERY_HEADER.size + SEED_BYTES
    size, seconds = (
        packed_size(primes, layout.points * layout.sample_blocks),
        Prg(sealed[QUERY_HEADER.size : start], SECONDS),
    )
    for outputs in layout.outputs:
        view = memoryview(sealed)[start + outputs.start * size :]
        query = _query(primes, layout, outputs.stop - outputs.start, view, seconds)
        for blocks, columns in column_groups(layout, d):
            total, terms = None, 0
            for some, values in prepared.tiles(layout, blocks, columns):
                total, terms = add_product(primes, total, terms, query[..., some], values)
            assert total is not None, "W has rows, so something was multiplied"
            yield primes.reduce(total)


def _query(
    primes: Primes, layout: RingLayout, width: int, view: memoryview, seconds: Prg
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """(P, M, width + r, B): the ciphertexts of so many outputs at each point, c0 over c1."""
    r = layout.r
    out = np.empty((len(primes), layout.points, width + r, layout.sample_blocks), np.float32)
    for blocks in layout.groups:
        count = blocks.stop - blocks.start
        out[:, :, :width, blocks] = unpack(primes, view, (layout.points, width, count))
        out[:, :, width:, blocks] = uniform(seconds, primes, (layout.points, r, count))
        view = view[packed_size(primes, layout.points * width * count) :]
    return out
