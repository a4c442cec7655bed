"""Shared products W^T V modulo 2^L, computed under lattice-based encryption (BFV scheme) by this package's arithmetic.

The holder has a matrix V (n, c) and a secret key, and the evaluator a matrix W (n, d) of small integers. They obtain
random-looking matrices (d, c) modulo 2^L, L <= 56, whose sum is W^T V.

All values are polynomials with 4096 coefficients, modulo x^4096 + 1 and modulo q, a product of a few primes
(residues.py); t = 2^L. A matrix is divided into blocks that are the coefficients of polynomials (ring_layout.py), so
that a product of polynomials contains the wanted entries of W^T V in some of its coefficients. There are B blocks of
rows, F blocks of the columns of W, and blocks of r columns of V ("outputs"). Polynomials are multiplied by multiplying
their values at M points (ntt.py), modulo each of P primes. s is the secret key, a polynomial with coefficients -1, 0
and 1; e, e0, e1 are small random errors, and u is a random polynomial like s:

    0. holder      a public key (b, a) with b = -(a * s + e); a is computed from a coin, b is sent  `public`
    1. holder      ciphertexts (c0, a') with c0 = round(q/t * V) + e - a' * s; a' is computed from a
                   seed, which is sent with c0; a uniform V is computed from a seed as well
                   (seeded_vectors.py)                                          `encrypt`, `encrypt_uniform`
    2. evaluator   multiplies both polynomials of each ciphertext by those of W, and adds up        `product`
    3. evaluator   adds an encryption of zero, (b * u + e0, a * u + e1), which yields (x0, c1); draws
                   a seed and computes a number c0, uniform modulo q, from it for each wanted
                   coefficient; sends the seed and c1; its share is -round(t * r / q) with the mask
                   r = c0 - x0                                                                      `product`
    4. holder      decrypts w = c0 + c1 * s = r + q/t * W^T V + noise; its share is round(t * w / q)  `open`

The protocol is the same for every library that multiplies (`share_protocol`). `KernelShares` documents who learns what.
"""

from __future__ import annotations

import functools
import math
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.crypto.kernel import blas_check
from securevfl.crypto.kernel.ciphertexts import (
    KernelSecretKey,
    ProductHider,
    column_groups,
    masked_first,
    new_seed,
    seeded_answer_size,
)
from securevfl.crypto.kernel.ntt import transform
from securevfl.crypto.kernel.residue_bytes import pack, packed_size, unpack
from securevfl.crypto.kernel.residue_products import Residues, add_product
from securevfl.crypto.kernel.residues import DEGREE, MAX_MODULUS_BITS, Primes
from securevfl.crypto.kernel.ring_keys import keypair, second_polynomial
from securevfl.crypto.kernel.ring_layout import RingLayout, choose_layout, milliseconds
from securevfl.crypto.kernel.ring_sampling import NOISE_STD, uniform
from securevfl.crypto.kernel.seeded_vectors import (
    Remainders,
    is_seedable,
    pack_remainders,
    remainder_limit,
    remainders,
    remainders_size,
    unpack_remainders,
)
from securevfl.crypto.kernel.share_protocol import (
    EXACT_DEVIATION,
    FINGERPRINT_BYTES,
    MAX_SHARE_BITS,
    QUERY_HEADER,
    PreparedFactor,
    ProductTotal,
    RingEvaluator,
    RingHolder,
    RingParameters,
    RingShares,
    check_noise,
    check_same_rows,
)
from securevfl.crypto.key_derivation import SYMMETRIC_KEY_BYTES
from securevfl.crypto.message_headers import check_length, read_header
from securevfl.crypto.prg import Prg
from securevfl.crypto.share_ring import Integers, Words
from securevfl.crypto.share_scheme import ShareScheme
from securevfl.errors import ConfigError, CryptoError

QUERY_SECOND_LABEL = "public second polynomials of a query"
"""Label of the generator that computes the polynomials a' from the seed in a query."""
SHORT_PRIMES = (20, 2), (24, 2)
"""Bits and number of the primes of schemes with a larger error, in the order in which `KernelShares.within` tries them.
"""
QUERY_FIRST_LABEL = "public first polynomials of a query"
"""Label of the generator that computes the polynomials c0* from the seed in a seeded query."""
SEEDED_QUERY = b"SKU1"
"""The letters at the beginning of a query that contains a seed and remainders (seeded_vectors.py)."""
PART_HEADER = struct.Struct("<d")
"""Header of the part of a product that another process of the same party has computed: the deviation of its noise."""
_TILE_COEFFICIENTS = 1 << 18  # coefficients of W that are transformed at a time, to limit memory


def primes_for(bits: int) -> Primes:
    """Return the primes of q for shares of L bits, so that q has 31 to 36 bits more than t, which the noise needs.

    Args:
        bits: the number of bits L of a share.

    Returns:
        Three primes of 24 bits up to L = 40, four of 20 bits up to 48, and four of 23 bits above.
    """
    return Primes(24, 3) if bits <= 40 else Primes(20, 4) if bits <= 48 else Primes(23, 4)


class ShareParameters(RingParameters):
    """The primes of q for one L, and the sizes that depend on them.

    Args:
        bits: the number of bits L of a share.
        primes: the bits and the number of the primes; those of `primes_for` if omitted. q may be smaller than t = 2^L:
            the last bits of shares and products are then noise.
        tolerance: the largest standard deviation of the noise of a product, in units of the last bit of a share.
    """

    engine: ClassVar[str] = "shares on the kernel"
    magic: ClassVar[tuple[bytes, bytes, bytes]] = b"SKK2", b"SKV2", b"SKR3"
    zero: ClassVar[float] = NOISE_STD * math.sqrt(1 + 2 * DEGREE * 2 / 3)

    def __init__(self, bits: int, primes: tuple[int, int] | None = None, tolerance: float = EXACT_DEVIATION) -> None:
        super().__init__(bits, tolerance)
        self.primes = primes_for(bits) if primes is None else Primes(*primes)
        self.modulus, self.key_bits = self.primes.q, math.ceil(math.log2(self.primes.q))
        self.key_size, self.secret_size = packed_size(self.primes, DEGREE), DEGREE
        assert math.log2(self.primes.q) <= MAX_MODULUS_BITS, "the modulus is larger than the standard allows"

    def second(self, coin: bytes) -> Floats:
        """Compute the polynomial a of a public key from its coin, as residues (P, N) modulo P primes.

        Raise CryptoError if the coin has the wrong length.
        """
        return second_polynomial(self.primes, self.coined(coin))

    def choose(self, n: int, c: int, d: int, uses: int = 1) -> RingLayout:
        """Return the fastest layout for V and W; see `RingParameters.choose`."""
        return choose_layout(n, c, d, uses)

    def query_size(self, layout: RingLayout) -> int:
        """Return the number of bytes of a query; see `RingParameters.query_size`."""
        return SYMMETRIC_KEY_BYTES + layout.c * packed_size(self.primes, layout.points * layout.sample_blocks)

    def asked(self, sealed: bytes, key: bytes) -> RingLayout:
        """Return the layout of a query, which may be one of `KernelHolder.encrypt_uniform`."""
        if sealed[:4] != SEEDED_QUERY:
            return super().asked(sealed, key)
        layout = self.layout(*read_header(self.engine, QUERY_HEADER, SEEDED_QUERY, sealed, key))
        if not is_seedable(self.primes, self.ring.bits, layout):
            raise _other_blocks(self)
        check_length(self.engine, SEEDED_QUERY, sealed, QUERY_HEADER.size + self.seeded_query_size(layout))
        return layout

    def seeded_query_size(self, layout: RingLayout) -> int:
        """Return the number of bytes of a query of `KernelHolder.encrypt_uniform`, without its header."""
        return SYMMETRIC_KEY_BYTES + remainders_size(self.primes, self.ring.bits, layout.n * layout.c)

    def reply_size(self, layout: RingLayout, d: int) -> int:
        """Return the number of bytes of a reply; see `RingParameters.reply_size`."""
        return seeded_answer_size(self.primes, layout, d)


def _other_blocks(parameters: ShareParameters) -> CryptoError:
    return CryptoError(
        f"{parameters.engine}: an encrypted query is divided into other blocks than agreed",
        "use the same version at all parties",
        code="SVFL-CRYPTO-CIPHERTEXT",
    )


_parameters = functools.lru_cache(maxsize=16)(ShareParameters)


class KernelHolder(RingHolder):
    """The party that has V and a secret key, with this package's arithmetic."""

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
            raise CryptoError(
                "shares on the kernel: the bytes are not a stored secret key",
                "export the key again",
                code="SVFL-CRYPTO-KEY",
            )
        self._opener = KernelSecretKey(self._parameters.primes, values)

    def _sealed(self, layout: RingLayout, V: Words) -> Iterator[bytes]:
        parameters, primes = self._parameters, self._parameters.primes
        seed, prg = os.urandom(SYMMETRIC_KEY_BYTES), Prg.fresh("errors of a query")
        seconds = Prg(seed, QUERY_SECOND_LABEL)
        yield seed
        for outputs in layout.outputs:
            for blocks in layout.groups:
                words = primes.scaled(V[layout.rows(blocks), outputs], parameters.ring.bits)
                message = layout.messages(words, blocks)
                second = uniform(seconds, primes, (layout.points, layout.r, blocks.stop - blocks.start))
                yield self._opener.seal(layout, message, second, prg)

    def encrypt_uniform(self, n: int, c: int, *, columns: int, uses: int = 1, rows: int = 0) -> tuple[bytes, Words]:
        """Draw a uniform V and encrypt it; see `ShareHolder.encrypt_uniform`, and seeded_vectors.py for the message."""
        primes, bits = self._parameters.primes, self._parameters.ring.bits
        layout = self._layout(n, c, columns, uses, rows)
        if not is_seedable(primes, bits, layout):
            return super().encrypt_uniform(n, c, columns=columns, uses=uses, rows=rows)
        header = QUERY_HEADER.pack(SEEDED_QUERY, self._key, n, c, layout.r, layout.s)
        while True:
            seed = new_seed()
            V, rho = self._expanded(layout, seed)
            if np.abs(rho).max() <= remainder_limit(primes, bits):
                return header + seed + pack_remainders(primes, bits, rho), V

    def _expanded(self, layout: RingLayout, seed: bytes) -> tuple[Words, Remainders]:
        """Compute V (n, c) and its remainders (n, c) from a seed and this party's secret key."""
        primes, bits, prg = self._parameters.primes, self._parameters.ring.bits, Prg.fresh("errors of a query")
        firsts, seconds = Prg(seed, QUERY_FIRST_LABEL), Prg(seed, QUERY_SECOND_LABEL)
        V, rho = np.empty((layout.n, layout.c), np.uint64), np.empty((layout.n, layout.c), np.int64)
        for outputs in layout.outputs:
            for blocks in layout.groups:
                shape, count = (layout.points, outputs.stop - outputs.start), blocks.stop - blocks.start
                first = uniform(firsts, primes, (*shape, count))
                second = uniform(seconds, primes, (layout.points, layout.r, count))
                z = self._opener.decrypted(layout, first, second, prg)  # (P, s, outputs, blocks)
                words = primes.nearest(z, bits)
                left = remainders(primes, primes.reduce(z - primes.scaled(words, bits)))
                rows = layout.rows(blocks)
                for target, part in ((V, words), (rho, left)):
                    joined = part.transpose(2, 0, 1).reshape(-1, shape[1])
                    target[rows, outputs] = joined[: rows.stop - rows.start]
        return V, rho

    def _opened(self, layout: RingLayout, d: int, view: memoryview) -> Iterator[tuple[slice, slice, Words]]:
        primes = self._parameters.primes
        for outputs in layout.outputs:
            width = outputs.stop - outputs.start
            for columns, values in self._opener.reveal(layout, width, d, view, seeded=True):
                yield columns, outputs, primes.nearest(values, self._parameters.ring.bits)
            view = view[seeded_answer_size(primes, replace(layout, c=width), d) :]


class PreparedWords(PreparedFactor):
    """W as values of polynomials: residues (P, M, B, F) for P primes, M points, B row blocks and F column blocks.

    Args:
        parameters: the public parameters of the encryption scheme, such as its moduli.
        W: signed integers (n, d).
        once: whether W is used for one product only, so that values are computed when they are needed and not cached.
    """

    def __init__(self, parameters: ShareParameters, W: Integers, once: bool = False) -> None:
        super().__init__(parameters, W)
        self._once = once

    @property
    def nbytes(self) -> int:
        """Memory of W and of its cached values, in bytes."""
        return int(self._W.nbytes + (0 if self._values is None else self._values.nbytes))

    def _plaintexts(self, layout: RingLayout) -> np.ndarray[Any, np.dtype[np.float32]]:
        shape = layout.points, layout.sample_blocks, layout.column_blocks(self.shape[1])
        out = np.empty((len(self._parameters.primes), *shape), np.float32)
        for blocks, values in self._residues_by_blocks(layout, self._W):
            out[:, :, blocks] = values
        return out

    def tiles(self, layout: RingLayout, blocks: slice, columns: slice) -> Iterator[tuple[slice, Residues]]:
        """Yield the values of W for some columns, in parts of a few blocks of rows.

        Args:
            layout: the division of matrices into blocks (`ring_layout.py`).
            blocks: the column blocks.
            columns: the columns of W in these blocks.

        Yields:
            A slice of row blocks, and their values as residues (P, M, row blocks of the slice, F).
        """
        if self._once and layout.output_blocks == 1:
            self.check(min(layout.columns, self.shape[1]))
            yield from self._residues_by_blocks(layout, self._W[:, columns])
        else:
            yield slice(None), self.values(layout)[..., blocks]

    def _residues_by_blocks(self, layout: RingLayout, W: Integers) -> Iterator[tuple[slice, Floats]]:
        """Yield slices of the row blocks of W, and their values as residues (P, M, row blocks of the slice, F)."""
        primes, B, F = self._parameters.primes, layout.sample_blocks, layout.column_blocks(W.shape[1])
        ring, wide = transform(primes, layout.points), self._largest >= min(primes.values) // 2
        step = max(1, _TILE_COEFFICIENTS // (layout.points * F))
        for start in range(0, B, step):
            blocks = slice(start, min(B, start + step))
            plain = layout.plaintexts(W, blocks)
            yield blocks, ring.forward(primes.centred(plain) if wide else plain)


class KernelEvaluator(ProductHider, RingEvaluator):
    """The party that has W, with this package's arithmetic."""

    _parameters: ShareParameters

    def _has_public(self, first: memoryview, coin: bytes) -> None:
        primes = self._parameters.primes
        self._has_key(primes, unpack(primes, first, (DEGREE,)), self._parameters.second(coin))

    def _prepared(self, W: Integers, once: bool) -> PreparedWords:
        return PreparedWords(self._parameters, W, once)

    def _positions(self, layout: RingLayout, d: int) -> Iterator[tuple[slice, slice]]:
        return ((outputs, columns) for outputs in layout.outputs for _, columns in column_groups(layout, d))

    def _hidden(self, layout: RingLayout, total: Floats, shape: tuple[int, int], prg: Prg) -> tuple[bytes, Floats]:
        """Hide products, with wanted coefficients of c0 from a fresh public seed; see `RingEvaluator._hidden`."""
        primes, seed = self._primes, new_seed()
        first, second = self._encrypted(layout, total, shape, prg)
        return pack(primes, second) + seed, primes.reduce(masked_first(primes, seed, shape) - first)

    def _share(self, mask: Floats) -> Words:
        return self._primes.nearest(mask, self._parameters.ring.bits)

    def _totals(self, prepared: PreparedWords, layout: RingLayout, sealed: bytes) -> Iterator[Floats]:
        return _totals(self._parameters, prepared, layout, sealed)

    def multiply(self, prepared: PreparedWords, sealed: bytes) -> ProductTotal:
        """Multiply W with an encrypted V, and do not hide the product; see `ShareEvaluator.multiply`."""
        parameters, (n, d) = self._parameters, prepared.shape
        layout = parameters.asked(sealed, self._key)
        check_same_rows(parameters, layout, n)
        values = list(self._totals(prepared, layout, sealed))
        return ProductTotal(layout, d, values, prepared.deviation(min(layout.columns, d)))

    def add(self, total: ProductTotal, product: ProductTotal) -> None:
        """Add a product to another one in place; see `ShareEvaluator.add`. Raises CryptoError for another layout."""
        if replace(product.layout, n=total.layout.n) != total.layout or product.columns != total.columns:
            raise CryptoError(
                f"{self._parameters.engine}: encrypted queries about the same batch are divided into different blocks",
                "use the same version at all parties",
                code="SVFL-CRYPTO-CIPHERTEXT",
            )
        total.deviation = math.hypot(total.deviation, product.deviation)
        check_noise(self._parameters, total.deviation)
        for values, summand in zip(total.values, product.values, strict=True):
            values += summand
            self._primes.reduce(values)

    def join(self, sealed: bytes, d: int, parts: Sequence[bytes]) -> ProductTotal:
        """Add up products of different rows that workers computed, and check the noise; see `ShareEvaluator.join`."""
        primes, layout = self._parameters.primes, self._parameters.asked(sealed, self._key)
        shapes = [
            (layout.points, outputs.stop - outputs.start + layout.r, blocks.stop - blocks.start)
            for outputs in layout.outputs
            for blocks, _ in column_groups(layout, d)
        ]
        sizes = [packed_size(primes, math.prod(shape)) for shape in shapes]
        for part in parts:
            check_length(self._parameters.engine, b"SKT2", part, PART_HEADER.size + sum(sizes))
        # parts have different rows, and each bound is one for all n rows with the largest entry of its part
        deviation = max(PART_HEADER.unpack_from(part)[0] for part in parts)
        check_noise(self._parameters, deviation)

        def totals() -> Iterator[Floats]:
            starts = np.cumsum([PART_HEADER.size, *sizes]).tolist()
            for start, size, shape in zip(starts, sizes, shapes, strict=False):
                yield np.sum([unpack(primes, memoryview(part)[start : start + size], shape) for part in parts], axis=0)

        return ProductTotal(layout, d, list(map(primes.reduce, totals())), deviation)


class KernelShares(RingShares):
    """The scheme for shared products modulo 2^bits, with 128-bit security under RLWE.

    In step 3, the evaluator replaces a coefficient x0 of the encrypted product by a number c0 from a seed. c0 is
    uniform modulo q and independent of x0, so the mask r = c0 - x0 is uniform, and the holder decrypts uniform values,
    noise included. The coefficients that contain no result are never sent. A masked product is already a share (as in
    the offline phase of Delphi, Mishra et al. 2020). The second polynomial c1 of the reply contains a * u + e1, which
    looks uniform under the RLWE (ring learning with errors) assumption for any key and any query of the holder, because
    no holder can choose a. The seed in the reply is a new random number. The holder sends nothing back, so nothing that
    it decrypts can reveal its key (the attack of Li and Micciancio 2021 does not apply).

    The sum of the two shares differs from W^T V by one if r is close to a multiple of q/t. That happens for a fraction
    E|noise| * t / q of the values (`error_rate`). The encryption of zero adds noise with a standard deviation of about
    240. If the last bits of products do not matter, `KernelShares.within` selects primes with a smaller q, even below
    t. All steps remain the same; a result then has an error of E|noise| * t / q units of its last bit, and both
    parties' shares are multiples of t / q, rounded. Each party checks that the noise stays within the agreed tolerance.
    docs/proof.md has the parameters and their assumptions.

    No step depends on secret values: products perform the same steps for zeros, and the time of rejection sampling
    depends only on rejected random numbers.

    Args:
        bits: the number of bits L of a share, from 8 to 56.
        primes: the bits and the number of the primes of q, if products may have a larger error; see `within`.
        tolerance: the largest standard deviation of that error, in units of the last bit of a share.

    Attributes:
        primes: the primes of q.
        tolerance: the largest standard deviation of a product's error.

    Raises:
        ConfigError: if the number of bits is out of range, or the BLAS of this machine is not suitable.
    """

    name: ClassVar[str] = "kernel"
    unlocked: ClassVar[bool] = True
    adds_products: ClassVar[bool] = True
    holders: ClassVar[type[RingHolder]] = KernelHolder
    evaluators: ClassVar[type[RingEvaluator]] = KernelEvaluator

    def __init__(
        self,
        bits: int = MAX_SHARE_BITS,
        primes: tuple[int, int] | None = None,
        tolerance: float = EXACT_DEVIATION,
    ) -> None:
        if problem := blas_check.blas_problem():
            raise ConfigError(f"shares on the kernel: {problem}", blas_check.BLAS_REMEDY, code="SVFL-CRYPTO-LIBRARY")
        super().__init__(bits, lambda bits: _parameters(bits, primes, tolerance))
        self.primes: Primes = self._parameters.primes
        self.tolerance, self._selected_primes = tolerance, primes

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.bits, self._selected_primes, self.tolerance)

    def with_bits(self, bits: int) -> KernelShares:
        """Return the scheme for exact products modulo 2^bits."""
        return KernelShares(bits)

    def within(
        self, tolerance: float, largest: int, shapes: Sequence[tuple[int, int, int]], *, uses: int = 1
    ) -> ShareScheme:
        """Return a scheme with fewer or smaller primes, if its noise is small enough; see `ShareScheme.within`."""
        for primes in SHORT_PRIMES:
            scheme = KernelShares(self.bits, primes, tolerance)
            if scheme._parameters.modulus < self._parameters.modulus and all(
                scheme.deviation(n, c, d, largest, uses) <= tolerance for n, c, d in shapes
            ):
                return scheme
        return self

    def deviation(self, n: int, c: int, d: int, largest: int, uses: int = 1) -> float:
        """Return an upper bound on the standard deviation of a result's error, in units of the last bit of a share.

        Args:
            n: number of rows of V and W.
            c: number of columns of V.
            d: number of columns of W.
            largest: largest absolute value of an entry of W.
            uses: number of V that are multiplied by the same W.

        Returns:
            The upper bound.
        """
        columns = min(d, self._parameters.choose(n, c, d, uses).columns)
        return float(self._parameters.noise(n * columns, largest))

    def check_query(self, sealed: bytes, shape: tuple[int, int], *, columns: int, uses: int, rows: int) -> None:
        """Check the layout of an encrypted V; see `ShareScheme.check_query`."""
        (n, c), parameters = shape, self._parameters
        layout = parameters.asked(sealed, sealed[4 : 4 + FINGERPRINT_BYTES])
        check_same_rows(parameters, layout, n)
        if layout != replace(parameters.choose(rows or n, c, columns, uses), n=n):
            raise _other_blocks(parameters)

    def multiply(self, W: Integers, sealed: bytes) -> bytes:
        """Multiply W with an encrypted V, without a key and without randomness; see `ShareScheme.multiply`."""
        parameters = self._parameters
        layout = parameters.asked(sealed, sealed[4 : 4 + FINGERPRINT_BYTES])
        check_same_rows(parameters, layout, len(W))
        prepared = PreparedWords(parameters, np.ascontiguousarray(W), once=True)
        deviation = PART_HEADER.pack(prepared.deviation(min(layout.columns, prepared.shape[1])))
        totals = _totals(parameters, prepared, layout, sealed)
        return deviation + b"".join(pack(parameters.primes, total) for total in totals)

    def seconds(self, n: int, c: int, d: int) -> float:
        """Estimate the seconds of a product; see `ShareScheme.seconds`."""
        return milliseconds(choose_layout(n, c, d), d, line=0.0) / 1e3


def _totals(
    parameters: ShareParameters, prepared: PreparedWords, layout: RingLayout, sealed: bytes
) -> Iterator[Floats]:
    """Multiply a query by W, and yield the products by blocks of outputs and then by groups of column blocks.

    Args:
        parameters: the public parameters of the encryption scheme, such as its moduli.
        prepared: W, encoded as polynomials.
        layout: the division of matrices into blocks (`ring_layout.py`).
        sealed: the holder's message with encrypted V.

    Yields:
        Residues (P, M, outputs + r, column blocks): a row of c0 for each output, and then r rows of c1.
    """
    primes, d, start = parameters.primes, prepared.shape[1], QUERY_HEADER.size + SYMMETRIC_KEY_BYTES
    seeded, seed = sealed[:4] == SEEDED_QUERY, sealed[QUERY_HEADER.size : start]
    firsts = Prg(seed, QUERY_FIRST_LABEL)
    rho = np.zeros((0, layout.c), np.int64)
    if seeded:
        count = layout.n * layout.c
        rho = unpack_remainders(primes, parameters.ring.bits, sealed[start:], count).reshape(layout.n, layout.c)
    size, seconds = (
        packed_size(primes, layout.points * layout.sample_blocks),
        Prg(seed, QUERY_SECOND_LABEL),
    )
    for outputs in layout.outputs:
        width = outputs.stop - outputs.start
        if seeded:
            query = _seeded_query(primes, layout, rho[:, outputs], firsts, seconds)
        else:
            view = memoryview(sealed)[start + outputs.start * size :]
            query = _query(primes, layout, width, view, seconds)
        for blocks, columns in column_groups(layout, d):
            total, terms = None, 0
            for samples, values in prepared.tiles(layout, blocks, columns):
                total, terms = add_product(primes, total, terms, query[..., samples], values)
            assert total is not None, "W has rows, so there is a product"
            yield primes.reduce(total)


def _query(
    primes: Primes, layout: RingLayout, width: int, view: memoryview, seconds: Prg
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Read the ciphertexts of one block of `width` outputs as residues (P, M, width + r, B), with c0 above c1."""
    r = layout.r
    out = np.empty((len(primes), layout.points, width + r, layout.sample_blocks), np.float32)
    for blocks in layout.groups:
        count = blocks.stop - blocks.start
        out[:, :, :width, blocks] = unpack(primes, view, (layout.points, width, count))
        out[:, :, width:, blocks] = uniform(seconds, primes, (layout.points, r, count))
        view = view[packed_size(primes, layout.points * width * count) :]
    return out


def _seeded_query(
    primes: Primes, layout: RingLayout, rho: Remainders, firsts: Prg, seconds: Prg
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Compute the ciphertexts of a seeded query for one block of outputs with remainders (n, width); see `_query`."""
    r, width, ring = layout.r, rho.shape[1], transform(primes, layout.points)
    out = np.empty((len(primes), layout.points, width + r, layout.sample_blocks), np.float32)
    for blocks in layout.groups:
        count = blocks.stop - blocks.start
        message = layout.messages(primes.centred(rho[layout.rows(blocks)]), blocks)
        first = uniform(firsts, primes, (layout.points, width, count))
        out[:, :, :width, blocks] = primes.reduce(first - ring.forward(message))
        out[:, :, width:, blocks] = uniform(seconds, primes, (layout.points, r, count))
    return out
