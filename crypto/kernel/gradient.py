"""J^T [[g]] as products of matrices: the arithmetic of `row_products` on small residues in doubles (N = 4096).

`row_products` explains who learns what. There is no special prime, and decryption is exact: only the wanted
coefficients are decrypted modulo q, the dither is added modulo q, and the result is the rounded fraction of q. q is the
product of four primes of 24 bits and has 96 bits, three more than with SEAL, so decrypted values are finer by that
factor. The dither has the same size. It hides the noise e J of standard deviation at most sqrt(10.5) T and the noise of
an encryption of zero. Without a special prime, the latter is about 240, compared with 2^22.

Plaintexts are stored in single precision, which holds centred residues of 24 bits. Nothing branches on a secret:
products perform the same steps for zeros, and the time of rejection sampling depends on discarded words alone.
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
"""Name of the engine in error messages."""
SEALED_SECOND_LABEL = "public second polynomials of a sealed residual"
"""Label of the generator that expands the seed in an encrypted g."""
_PRODUCTS_PER_BATCH = 8  # approximate number of products with the same plaintexts

KERNEL_PROFILE = Profile((24, 24, 24, 24), 72, 68, 2.0**21, NOISE_STD * math.sqrt(1 + 2 * DEGREE * 2 / 3))

Values = NDArray[np.float32]


class GradientParameters(RowParameters):
    """The primes of a profile and the numbers that follow from them."""

    engine: ClassVar[str] = KERNEL_GRADIENT_ENGINE
    magic: ClassVar[tuple[bytes, bytes, bytes, bytes]] = b"SGK2", b"SGG2", b"SGB2", b"SGO1"

    def __init__(self, profile: Profile = KERNEL_PROFILE) -> None:
        self.primes = Primes(profile.bits[0], len(profile.bits))
        super().__init__(profile, self.primes.q)
        assert math.log2(self.primes.q) <= MAX_MODULUS_BITS, "the modulus is larger than the standard allows"
        self.key_size, self.key_bits = packed_size(self.primes, DEGREE), math.ceil(math.log2(self.primes.q))

    def second(self, seed: bytes) -> Floats:
        """Expand the second polynomial a (P, N) of a key from its seed."""
        return uniform(Prg(seed, "public second polynomial of a key"), self.primes, (DEGREE,))

    def choose(self, n: int, c: int, d: int, openings: int) -> RingLayout:
        """See `RowParameters.choose`."""
        return choose_layout(n, c, d, _PRODUCTS_PER_BATCH, openings)

    def sealed_size(self, layout: RingLayout, width: int, blocks: int) -> int:
        """See `RowParameters.sealed_size`."""
        return SYMMETRIC_KEY_BYTES + packed_size(self.primes, layout.points * width * blocks)

    def answer_size(self, layout: RingLayout, d: int) -> int:
        """See `RowParameters.answer_size`."""
        return answer_size(self.primes, layout, d)

    def query(self, layout: RingLayout, width: int, sealed: bytes, blocks: int, F: int) -> Floats:
        """Read the ciphertexts at each point, c0 above c1: (P, M, outputs + r, blocks)."""
        first = unpack(self.primes, memoryview(sealed)[SYMMETRIC_KEY_BYTES:], (layout.points, width, blocks))
        second = uniform(
            Prg(sealed[:SYMMETRIC_KEY_BYTES], SEALED_SECOND_LABEL), self.primes, (layout.points, layout.r, blocks)
        )
        return stack_halves(first, second, F)

    def room(self, layout: RingLayout, blocks: int, F: int) -> tuple[Values, int]:
        """See `RowParameters.room`."""
        shape = len(self.primes), layout.points, blocks, F
        return np.empty(shape, np.float32), 4 * math.prod(shape)

    def plaintexts(self, layout: RingLayout, plain: Floats) -> Values:
        """Return the values (P, M, blocks, F) of plaintexts."""
        return transform(self.primes, layout.points).forward(plain).astype(np.float32)

    def sums(self, layout: RingLayout) -> ResidueSums:
        """See `RowParameters.sums`."""
        return ResidueSums(self.primes, [None] * layout.output_blocks)


class ResidueSums:
    """Sums of products by output block, which are reduced when another product might not be exact.

    Args:
        primes: the primes.
        totals: the sum (P, M, outputs + r, F) of each output block, c0 above c1; None if nothing was multiplied.
    """

    def __init__(self, primes: Primes, totals: list[Floats | None]) -> None:
        self._primes, self._totals = primes, totals
        self._terms = [0 if total is None else 1 for total in totals]

    def add(self, other: ResidueSums) -> None:
        """Add other sums, entry by entry."""
        for number, summand in enumerate(other.reduced()):
            total = self._totals[number]
            if summand is None:
                continue
            self._totals[number] = summand if total is None else self._primes.reduce(total) + summand
            self._terms[number] = 2

    def add_product(self, output_block: int, query: Floats, values: Values) -> None:
        """Add the product of a query (P, M, outputs + r, blocks) and values (P, M, blocks, F)."""
        total, terms = self._totals[output_block], self._terms[output_block]
        self._totals[output_block], self._terms[output_block] = add_product(self._primes, total, terms, query, values)

    def add_columns(self, output_block: int, query: Floats, values: Values, columns: NDArray[np.intp], F: int) -> None:
        """Add a product with values (P, M, blocks, len(columns)) of some of the F column blocks."""
        total = self._totals[output_block]
        if total is None:
            total = self._totals[output_block] = np.zeros((*query.shape[:3], F))
        product, _ = add_product(self._primes, None, 0, query, values)
        total[..., columns] = self._primes.reduce(
            np.ascontiguousarray(total[..., columns] + self._primes.reduce(product))
        )

    def reduced(self) -> list[Floats | None]:
        """Return the sums as centred residues."""
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
    """The party with g and a secret key on the kernel."""

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
        """Return (w + D) / 2^drop, rounded, for residues of w (P, *shape); the dither is added exactly."""
        parameters, primes = self._parameters, self._parameters.primes
        dithered = primes.reduce(values + self._dither(prg, values.shape[1:]))
        return np.rint(primes.fraction(dithered) * parameters.levels)

    def _dither(self, prg: Prg, shape: tuple[int, ...]) -> Floats:
        """Draw residues (P, *shape) of D, the sum of three integers uniform below 2^k minus its mean."""
        return dither(prg, self._parameters.primes, self._parameters.profile.k, shape)


class KernelGradientEvaluator(ProductHider, RowEvaluator):
    """The party that has J and hides its products on the kernel."""

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
    """J^T [[g]] on small residues in doubles.

    Args:
        columns: expected width of J.

    Raises:
        ConfigError: if the width is impossible, or the BLAS of this machine is not suitable.
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
