"""J^T [[g]] as products of matrices: the arithmetic of `row_products` on small residues in doubles (N = 4096).

Who learns what, and why not more, is said there. There is no special prime, and decryption is exact: only wanted
coefficients are decrypted, modulo q; the dither is added modulo q; what is returned is the rounded fraction of q. q is
the product of four primes of 24 bits, of 96 bits in all: three more than SEAL's, so that opened values are as much
finer. The dither has the same size, and what it hides is the same noise e J of standard deviation sqrt(10.5) T at most,
and that of an encryption of zero, which no special prime divides away: some 240, beside 2^22.

Plaintexts are kept in single precision, which holds residues of 24 bits about zero. Nothing branches on a secret:
products take the same steps for zeros, and rejection depends on discarded words alone.
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
from securevfl.crypto.kernel.residues import DEGREE, Primes
from securevfl.crypto.kernel.ring_keys import keypair
from securevfl.crypto.kernel.ring_layout import RingLayout, choose_layout
from securevfl.crypto.kernel.ring_sampling import NOISE_STD, dither, uniform
from securevfl.crypto.kernel.row_parameters import Profile, RowParameters
from securevfl.crypto.kernel.row_products import RowEvaluator, RowHolder, RowScheme
from securevfl.crypto.key_derivation import SYMMETRIC_KEY_BYTES as SEED_BYTES
from securevfl.crypto.prg import Prg
from securevfl.errors import ConfigError

ENGINE = "gradient on the kernel"  # in errors
MAX_MODULUS_BITS = 109  # bits of q: HomomorphicEncryption.org (2018), table 1, N = 4096, 128 bits, ternary secret
SECONDS = "public second polynomials of a sealed residual"  # whoever has the seed in it expands them
_USES = 8  # products that the plaintexts of a batch serve for, about

KERNEL_PROFILE = Profile((24, 24, 24, 24), 72, 68, 2.0**21, NOISE_STD * math.sqrt(1 + 2 * DEGREE * 2 / 3))

Values = NDArray[np.float32]


class GradientParameters(RowParameters):
    """A profile's primes and the numbers that follow from both."""

    engine: ClassVar[str] = ENGINE
    magic: ClassVar[tuple[bytes, bytes, bytes, bytes]] = b"SGK2", b"SGG2", b"SGB2", b"SGO1"

    def __init__(self, profile: Profile = KERNEL_PROFILE) -> None:
        self.primes = Primes(profile.bits[0], len(profile.bits))
        super().__init__(profile, self.primes.q)
        assert math.log2(self.primes.q) <= MAX_MODULUS_BITS, "more than the standard allows"
        self.key_size, self.key_bits = packed_size(self.primes, DEGREE), math.ceil(math.log2(self.primes.q))

    def second(self, seed: bytes) -> Floats:
        """Expand a (P, N) of a key from the seed in it."""
        return uniform(Prg(seed, "public second polynomial of a key"), self.primes, (DEGREE,))

    def choose(self, n: int, c: int, d: int, openings: int) -> RingLayout:
        return choose_layout(n, c, d, _USES, openings)

    def sealed_size(self, layout: RingLayout, width: int, blocks: int) -> int:
        return SEED_BYTES + packed_size(self.primes, layout.points * width * blocks)

    def answer_size(self, layout: RingLayout, d: int) -> int:
        return answer_size(self.primes, layout, d)

    def query(self, layout: RingLayout, width: int, sealed: bytes, blocks: int, F: int) -> Floats:
        """(P, M, outputs + r, blocks): the ciphertexts at each point, c0 over c1."""
        first = unpack(self.primes, memoryview(sealed)[SEED_BYTES:], (layout.points, width, blocks))
        second = uniform(Prg(sealed[:SEED_BYTES], SECONDS), self.primes, (layout.points, layout.r, blocks))
        return stack_halves(first, second, F)

    def room(self, layout: RingLayout, blocks: int, F: int) -> tuple[Values, int]:
        shape = len(self.primes), layout.points, blocks, F
        return np.empty(shape, np.float32), 4 * math.prod(shape)

    def plaintexts(self, layout: RingLayout, plain: Floats) -> Values:
        """Values (P, M, blocks, F)."""
        return transform(self.primes, layout.points).forward(plain).astype(np.float32)

    def sums(self, layout: RingLayout) -> ResidueSums:
        return ResidueSums(self.primes, [None] * layout.output_blocks)


class ResidueSums:
    """Sums of products by output block, (P, M, outputs + r, F) each, c0 over c1; None where nothing was multiplied.

    They are reduced when so many products are in them that one more might not be exact.
    """

    def __init__(self, primes: Primes, totals: list[Floats | None]) -> None:
        self._primes, self._totals = primes, totals
        self._terms = [0 if total is None else 1 for total in totals]

    def add(self, other: ResidueSums) -> None:
        """Add another one, entry by entry."""
        for place, more in enumerate(other.reduced()):
            own = self._totals[place]
            if more is None:
                continue
            self._totals[place] = more if own is None else self._primes.reduce(own) + more
            self._terms[place] = 2

    def add_product(self, output_block: int, query: Floats, values: Values) -> None:
        """Add query (P, M, outputs + r, blocks) times values (P, M, blocks, F)."""
        total, terms = self._totals[output_block], self._terms[output_block]
        self._totals[output_block], self._terms[output_block] = add_product(self._primes, total, terms, query, values)

    def add_columns(self, output_block: int, query: Floats, values: Values, columns: NDArray[np.intp], F: int) -> None:
        """Add a product as `add_product` does, where values are of these column blocks of F alone."""
        total = self._totals[output_block]
        if total is None:
            total = self._totals[output_block] = np.zeros((*query.shape[:3], F))
        part, _ = add_product(self._primes, None, 0, query, values)
        total[..., columns] = self._primes.reduce(np.ascontiguousarray(total[..., columns] + self._primes.reduce(part)))

    def reduced(self) -> list[Floats | None]:
        """Return the sums, each entry a residue about zero."""
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
    """Owns a secret key on the kernel."""

    _parameters: GradientParameters

    def _new_key(self, seed: bytes) -> bytes:
        primes = self._parameters.primes
        secret, first = keypair(primes, self._parameters.second(seed))
        self._opener = KernelSecretKey(primes, secret)
        return pack(primes, first)

    def _sealed(self, layout: RingLayout, g: Floats, blocks: slice, prg: Prg) -> bytes:
        primes, seed = self._parameters.primes, os.urandom(SEED_BYTES)
        message = layout.messages(primes.whole(g), blocks)
        second = uniform(Prg(seed, SECONDS), primes, (layout.points, layout.r, blocks.stop - blocks.start))
        return seed + self._opener.seal(layout, message, second, prg)

    def _levels(
        self, layout: RingLayout, width: int, d: int, view: memoryview, prg: Prg
    ) -> Iterator[tuple[slice, Floats]]:
        for columns, values in self._opener.reveal(layout, width, d, view):
            yield columns, self._rounded(prg, values)

    def _rounded(self, prg: Prg, values: Floats) -> Floats:
        """(w + D) / 2^drop, rounded, of residues of w (P, *shape): exact dither first, floats after."""
        parameters, primes = self._parameters, self._parameters.primes
        dithered = primes.reduce(values + self._dither(prg, values.shape[1:]))
        return np.rint(primes.fraction(dithered) * parameters.levels)

    def _dither(self, prg: Prg, shape: tuple[int, ...]) -> Floats:
        """Residues (P, *shape) of D: three integers uniform below 2^k, less their mean."""
        return dither(prg, self._parameters.primes, self._parameters.profile.k, shape)


class KernelGradientEvaluator(ProductHider, RowEvaluator):
    """The party that owns J, and hides its products on the kernel."""

    _parameters: GradientParameters

    def _has_public(self, first: memoryview, seed: bytes) -> None:
        primes = self._parameters.primes
        self._has_key(primes, unpack(primes, first, (DEGREE,)), self._parameters.second(seed))

    def _answer(
        self, layout: RingLayout, total: Floats | None, d: int, width: int, prg: Prg
    ) -> Iterator[tuple[bytes, slice, Floats]]:
        assert total is not None, "J has rows, so something was multiplied"
        for blocks, columns in column_groups(layout, d):
            part, mask = self._hidden(layout, total[..., blocks], (columns.stop - columns.start, width), prg)
            yield part, columns, self._primes.fraction(mask)


class KernelGradient(RowScheme):
    """J^T [[g]] on small residues in doubles. ConfigError for an impossible width, or a BLAS that is not exact."""

    name: ClassVar[str] = "kernel"
    holders: ClassVar[type[RowHolder]] = KernelGradientHolder
    evaluators: ClassVar[type[RowEvaluator]] = KernelGradientEvaluator

    def __init__(self, *, columns: int = 32) -> None:
        if why := blas_check.blas_problem():
            raise ConfigError(f"{ENGINE}: {why}, or name the other library: {blas_check.SEAL_OPTION}")
        super().__init__(GradientParameters(), columns)
