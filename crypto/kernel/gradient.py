"""Encrypted products J^T g by this package's arithmetic: polynomials as residues modulo small primes, in float64.

The key holder encrypts g (n, c), and the evaluator multiplies it by its matrix J (n, d). `row_products` explains the
protocol and who learns what. Polynomials have N = 4096 coefficients modulo q, the product of four primes of 24 bits, so
q has 96 bits. A ciphertext is a pair of polynomials (c0, c1). Polynomials are multiplied by their values at M points
(ntt.py). Of a decrypted polynomial, only the coefficients with entries of J^T g are computed ("wanted" ones). The
holder adds a random number, the dither, to each of them modulo q, divides the result by 2^drop (`Profile.drop`) and
rounds it. The dither hides the noise in decrypted values. One part of the noise is the error in g's encryption,
multiplied by J; its standard deviation is at most sqrt(10.5) * T for the bound T on J. The other part has a standard
deviation of about 240 and is the noise of the encryption of zero that the evaluator adds.

A layout (ring_layout.py) divides rows of g and J into blocks, the columns of J into F blocks, and the columns of g
("outputs") into blocks of r. Arrays of residues begin with axes for the P primes and the M points. Encoded rows of J
are stored in float32, which represents residues of 24 bits exactly. No step depends on secret values: products perform
the same steps for zeros, and the time of rejection sampling depends only on rejected random numbers.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.crypto.kernel import blas_check
from securevfl.crypto.kernel.ciphertexts import KernelSecretKey, ProductHider, answer_size, column_groups
from securevfl.crypto.kernel.ntt import transform
from securevfl.crypto.kernel.residue_bytes import pack, packed_size, unpack
from securevfl.crypto.kernel.residue_products import add_product, stack_halves
from securevfl.crypto.kernel.residues import DEGREE, MAX_MODULUS_BITS, Primes
from securevfl.crypto.kernel.ring_keys import keypair
from securevfl.crypto.kernel.ring_layout import RingLayout, choose_layout
from securevfl.crypto.kernel.ring_sampling import NOISE_STD, dither, uniform
from securevfl.crypto.kernel.row_parameters import Profile, RowParameters
from securevfl.crypto.kernel.row_products import RowEvaluator, RowHolder, RowScheme
from securevfl.crypto.key_derivation import SYMMETRIC_KEY_BYTES
from securevfl.crypto.prg import Prg
from securevfl.errors import ConfigError

KERNEL_GRADIENT_ENGINE = "gradient on the kernel"
"""Name of this implementation in error messages."""
SEALED_SECOND_LABEL = "public second polynomials of a sealed residual"
"""Label of the generator that computes the second polynomials of an encrypted g from the seed in its message."""
_PRODUCTS_PER_BATCH = 8  # approximate number of products with the same encoded J; it affects the layout

KERNEL_PROFILE = Profile((24, 24, 24, 24), 72, 68, 2.0**21, NOISE_STD * math.sqrt(1 + 2 * DEGREE * 2 / 3))

Values = NDArray[np.float32]


class GradientParameters(RowParameters):
    """The parameters of the scheme: the primes whose product is q, and the sizes of messages that follow from them."""

    engine: ClassVar[str] = KERNEL_GRADIENT_ENGINE
    magic: ClassVar[tuple[bytes, bytes, bytes, bytes]] = b"SGK2", b"SGG2", b"SGB2", b"SGO1"

    def __init__(self, profile: Profile = KERNEL_PROFILE) -> None:
        self.primes = Primes(profile.bits[0], len(profile.bits))
        super().__init__(profile, self.primes.q)
        assert math.log2(self.primes.q) <= MAX_MODULUS_BITS, "the modulus is larger than the standard allows"
        self.key_size, self.key_bits = packed_size(self.primes, DEGREE), math.ceil(math.log2(self.primes.q))

    def second(self, seed: bytes) -> Floats:
        """Compute the second polynomial a (P, N) of a public key from its seed."""
        return uniform(Prg(seed, "public second polynomial of a key"), self.primes, (DEGREE,))

    def choose(self, n: int, c: int, d: int, openings: int) -> RingLayout:
        """Return the fastest layout for g and J; see `RowParameters.choose`."""
        return choose_layout(n, c, d, _PRODUCTS_PER_BATCH, openings)

    def sealed_size(self, layout: RingLayout, width: int, blocks: int) -> int:
        """Return the number of bytes of encrypted row blocks; see `RowParameters.sealed_size`."""
        return SYMMETRIC_KEY_BYTES + packed_size(self.primes, layout.points * width * blocks)

    def answer_size(self, layout: RingLayout, d: int) -> int:
        """Return the number of bytes of a blinded product; see `RowParameters.answer_size`."""
        return answer_size(self.primes, layout, d)

    def query(self, layout: RingLayout, width: int, sealed: bytes, blocks: int, F: int) -> Floats:
        """Read encrypted rows for `width` outputs (P, M, width + r, blocks), c0 above c1; see `RowParameters.query`."""
        first = unpack(self.primes, memoryview(sealed)[SYMMETRIC_KEY_BYTES:], (layout.points, width, blocks))
        second = uniform(
            Prg(sealed[:SYMMETRIC_KEY_BYTES], SEALED_SECOND_LABEL), self.primes, (layout.points, layout.r, blocks)
        )
        return stack_halves(first, second, F)

    def room(self, layout: RingLayout, blocks: int, F: int) -> tuple[Values, int]:
        """Return an array to be filled with encoded row blocks, and its size in bytes; see `RowParameters.room`."""
        shape = len(self.primes), layout.points, blocks, F
        return np.empty(shape, np.float32), 4 * math.prod(shape)

    def plaintexts(self, layout: RingLayout, plain: Floats) -> Values:
        """Return the values (P, M, blocks, F) of polynomials at M points; see `RowParameters.plaintexts`."""
        return transform(self.primes, layout.points).forward(plain).astype(np.float32)

    def sums(self, layout: RingLayout) -> ResidueSums:
        """Return an object that adds up encrypted products; see `RowParameters.sums`."""
        return ResidueSums(self.primes, [None] * layout.output_blocks)


class ResidueSums:
    """Sums of encrypted products, one for each block of outputs (columns of g).

    Sums are reduced modulo the primes when they might become too large to be exact in float64.

    Args:
        primes: the prime moduli: a number is stored as its remainder modulo each of them.
        totals: for each block of outputs, residues (P, M, outputs + r, F), with c0 above c1; None if nothing was added.
    """

    def __init__(self, primes: Primes, totals: list[Floats | None]) -> None:
        self._primes, self._totals = primes, totals
        self._terms = [0 if total is None else 1 for total in totals]

    def add(self, other: ResidueSums) -> None:
        """Add the sums of encrypted products with other rows of J."""
        for number, summand in enumerate(other.reduced()):
            total = self._totals[number]
            if summand is None:
                continue
            self._totals[number] = summand if total is None else self._primes.reduce(total) + summand
            self._terms[number] = 2

    def add_product(self, output_block: int, query: Floats, values: Values) -> None:
        """Add the product of encrypted row blocks (P, M, outputs + r, blocks) and encoded ones (P, M, blocks, F)."""
        total, terms = self._totals[output_block], self._terms[output_block]
        self._totals[output_block], self._terms[output_block] = add_product(self._primes, total, terms, query, values)

    def add_columns(self, output_block: int, query: Floats, values: Values, columns: NDArray[np.intp], F: int) -> None:
        """Add a product with only those of the F column blocks whose numbers are in `columns`."""
        total = self._totals[output_block]
        if total is None:
            total = self._totals[output_block] = np.zeros((*query.shape[:3], F))
        product, _ = add_product(self._primes, None, 0, query, values)
        total[..., columns] = self._primes.reduce(
            np.ascontiguousarray(total[..., columns] + self._primes.reduce(product))
        )

    def reduced(self) -> list[Floats | None]:
        """Return the sums, reduced modulo the primes to residues around 0."""
        for total in self._totals:
            if total is not None:
                self._primes.reduce(total)
        return self._totals

    def __reduce__(self) -> tuple[Any, ...]:
        small = [None if total is None else total.astype(np.float32) for total in self.reduced()]
        return _sums, (self._primes.bits, len(self._primes), small)


def _sums(bits: int, count: int, totals: list[Values | None]) -> ResidueSums:
    return ResidueSums(Primes(bits, count), [None if total is None else total.astype(np.float64) for total in totals])


class KernelGradientHolder(RowHolder):
    """The party with g and a secret key, with this package's arithmetic."""

    _parameters: GradientParameters

    def _new_key(self, seed: bytes) -> bytes:
        primes = self._parameters.primes
        secret, first = keypair(primes, self._parameters.second(seed))
        self._opener = KernelSecretKey(primes, secret)
        return pack(primes, first)

    def _sealed(self, layout: RingLayout, g: Floats, blocks: slice, prg: Prg) -> bytes:
        primes, seed = self._parameters.primes, os.urandom(SYMMETRIC_KEY_BYTES)
        message = layout.messages(primes.whole(g), blocks)
        second = uniform(Prg(seed, SEALED_SECOND_LABEL), primes, (layout.points, layout.r, blocks.stop - blocks.start))
        return seed + self._opener.seal(layout, message, second, prg)

    def _levels(
        self, layout: RingLayout, width: int, d: int, view: memoryview, prg: Prg
    ) -> Iterator[tuple[slice, Floats]]:
        for columns, values in self._opener.reveal(layout, width, d, view):
            yield columns, self._rounded(prg, values)

    def _rounded(self, prg: Prg, values: Floats) -> Floats:
        """Add a new dither D to decrypted w, given as residues (P, *shape), and return (w + D) / 2^drop, rounded."""
        parameters, primes = self._parameters, self._parameters.primes
        dithered = primes.reduce(values + self._dither(prg, values.shape[1:]))
        return np.rint(primes.fraction(dithered) * parameters.levels)

    def _dither(self, prg: Prg, shape: tuple[int, ...]) -> Floats:
        """Draw a dither D: the sum of three integers below 2^`Profile.k`, minus its mean, as residues (P, *shape)."""
        return dither(prg, self._parameters.primes, self._parameters.profile.k, shape)


class KernelGradientEvaluator(ProductHider, RowEvaluator):
    """The party that has J, with this package's arithmetic."""

    _parameters: GradientParameters

    def _has_public(self, first: memoryview, seed: bytes) -> None:
        primes = self._parameters.primes
        self._has_key(primes, unpack(primes, first, (DEGREE,)), self._parameters.second(seed))

    def _answer(
        self, layout: RingLayout, total: Floats | None, d: int, width: int, prg: Prg
    ) -> Iterator[tuple[bytes, slice, Floats]]:
        assert total is not None, "J has rows, so there is a product"
        for blocks, columns in column_groups(layout, d):
            answer, mask = self._hidden(layout, total[..., blocks], (columns.stop - columns.start, width), prg)
            yield answer, columns, self._primes.fraction(mask)


class KernelGradient(RowScheme):
    """The scheme for encrypted products J^T g, with this package's arithmetic.

    Args:
        columns: expected number of columns of J.

    Raises:
        ConfigError: if the number is not positive, or the BLAS of this machine is not suitable.
    """

    name: ClassVar[str] = "kernel"
    holders: ClassVar[type[RowHolder]] = KernelGradientHolder
    evaluators: ClassVar[type[RowEvaluator]] = KernelGradientEvaluator

    def __init__(self, *, columns: int = 32) -> None:
        if problem := blas_check.blas_problem():
            raise ConfigError(
                f"{KERNEL_GRADIENT_ENGINE}: {problem}", blas_check.BLAS_REMEDY, code="SVFL-CRYPTO-LIBRARY"
            )
        super().__init__(GradientParameters(), columns)
