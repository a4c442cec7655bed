"""J^T [[g]] with SEAL (BFV, N = 4096): another implementation of the arithmetic of `crypto.kernel.row_products`.

`row_products` explains who learns what. Plaintexts are modulo t = 2^59: an integer x at the scale of g is encrypted as
t x / q, rounded. SEAL decrypts round(t (w + D) / q), which contains the dither D and is rounded once more to q / 2^drop
levels, coefficient by coefficient. q has 93 bits and two primes; a third prime removes most of the noise of an
encryption of zero.

SEAL refuses a product that is zero: a block of J without entries is multiplied as a block with one unit, and the
product is discarded.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.crypto.kernel import ring_layout
from securevfl.crypto.kernel.residues import DEGREE
from securevfl.crypto.kernel.ring_layout import RingLayout
from securevfl.crypto.kernel.row_parameters import Profile, RowParameters
from securevfl.crypto.kernel.row_products import RowEvaluator, RowHolder, RowScheme
from securevfl.crypto.lattice.lattice_shares import blocks
from securevfl.crypto.lattice.polynomial_ring import SPECIAL_NOISE, SealProductHider, SealRing, SealSecretKey
from securevfl.crypto.lattice.residue_encoding import Residues, pack, packed_size
from securevfl.crypto.prg import Prg

LATTICE_GRADIENT_ENGINE = "lattice"
"""Name of the engine in error messages."""
LATTICE_PROFILE = Profile((47, 46, 16), 72, 68, 2.0**21, SPECIAL_NOISE)
_PLAIN_BITS = 59  # of t, the largest size that SEAL accepts
_UP_MS, _DOWN_MS, _PRODUCT_MS = 1.8, 3.8, 0.08  # on one core; only the ratios matter
_LIMB_BITS = 24  # of a part of a dither


def _milliseconds(layout: RingLayout, d: int, uses: int, openings: int) -> float:
    """Estimate the milliseconds of products on one core, for both sides; plaintexts are cached."""
    B, F = layout.sample_blocks, layout.column_blocks(d)
    return layout.output_blocks * (B * _UP_MS + openings * (F * _DOWN_MS + B * F * _PRODUCT_MS))


class LatticeGradientParameters(RowParameters):
    """The ring of a profile and the numbers that follow from it."""

    engine: ClassVar[str] = LATTICE_GRADIENT_ENGINE
    magic: ClassVar[tuple[bytes, bytes, bytes, bytes]] = b"SLK3", b"SLG3", b"SLB4", b"SLO4"

    def __init__(self, profile: Profile = LATTICE_PROFILE) -> None:
        self.ring = SealRing(profile.bits, _PLAIN_BITS)
        super().__init__(profile, self.ring.q)
        self.key_size, self.key_bits = packed_size(self.ring.key_primes, DEGREE), sum(profile.bits)

    def second(self, seed: bytes) -> Residues:
        """Expand the second polynomial a of a key from its seed."""
        return self.ring.second(Prg(seed, "public second polynomial of a key"))

    def choose(self, n: int, c: int, d: int, openings: int) -> RingLayout:
        """See `RowParameters.choose`."""
        return ring_layout.choose_layout(n, c, d, openings=openings, cost=_milliseconds)

    def sealed_size(self, layout: RingLayout, width: int, blocks: int) -> int:
        """See `RowParameters.sealed_size`."""
        return blocks * self.ring.sealed_size(layout, width)

    def answer_size(self, layout: RingLayout, d: int) -> int:
        """See `RowParameters.answer_size`."""
        return self.ring.answer_size(layout, d)

    def query(self, layout: RingLayout, width: int, sealed: bytes, blocks: int, F: int) -> NDArray[Any]:
        """See `RowParameters.query`."""
        size, view = self.ring.sealed_size(layout, width), memoryview(sealed)
        return _array(self.ring.unsealed(layout, width, view[b * size : (b + 1) * size]) for b in range(blocks))

    def room(self, layout: RingLayout, blocks: int, F: int) -> tuple[NDArray[Any], int]:
        """See `RowParameters.room`."""
        return np.empty((blocks, F), object), blocks * F * DEGREE * len(self.ring.primes) * 8

    def plaintexts(self, layout: RingLayout, plain: Floats) -> NDArray[Any]:
        """Return plaintexts (blocks, F), and whether each has an entry."""
        columns = plain.reshape(len(plain), -1).T
        return _array(self.ring.plaintext(layout, column) for column in columns).reshape(plain.shape[1:])

    def sums(self, layout: RingLayout) -> CiphertextSums:
        """See `RowParameters.sums`."""
        return CiphertextSums(self, [{} for _ in layout.outputs])


def _array(objects: Iterator[Any]) -> NDArray[Any]:
    items = list(objects)
    array = np.empty(len(items), object)
    array[:] = items
    return array


class CiphertextSums:
    """Sums of products by output block and column block; column blocks without entries have no sum.

    Args:
        parameters: the parameters of the engine.
        totals: ciphertexts by column block, for each output block.
    """

    def __init__(self, parameters: LatticeGradientParameters, totals: list[dict[int, Any]]) -> None:
        self._parameters, self._totals = parameters, totals

    def add(self, other: CiphertextSums) -> None:
        """Add other sums, entry by entry."""
        for output_block, terms in enumerate(other.reduced()):
            for column, term in terms.items():
                self._add(output_block, column, term)

    def add_product(self, output_block: int, query: NDArray[Any], plaintexts: NDArray[Any]) -> None:
        """Add the products of a query (blocks,) and plaintexts (blocks, F)."""
        self.add_columns(output_block, query, plaintexts, np.arange(plaintexts.shape[1]), 0)

    def add_columns(
        self, output_block: int, query: NDArray[Any], plaintexts: NDArray[Any], columns: NDArray[np.intp], F: int
    ) -> None:
        """Add products with plaintexts (blocks, len(columns)) of some of the F column blocks."""
        for column, plains in zip(columns.tolist(), plaintexts.T, strict=True):
            term = self._parameters.ring.inner(query.tolist(), plains.tolist())
            if term is not None:
                self._add(output_block, column, term)

    def _add(self, output_block: int, column: int, term: Any) -> None:
        totals = self._totals[output_block]
        if column in totals:
            self._parameters.ring.evaluator.add_inplace(totals[column], term)
        else:
            totals[column] = term

    def reduced(self) -> list[dict[int, Any]]:
        """Return the sums; SEAL's ciphertexts are always reduced."""
        return self._totals

    def __reduce__(self) -> tuple[Any, ...]:
        ring = self._parameters.ring
        residues = [{k: ring.io.residues(term, ring.shape) for k, term in row.items()} for row in self._totals]
        return _sums, (self._parameters, residues)


def _sums(parameters: LatticeGradientParameters, residues: list[dict[int, Residues]]) -> CiphertextSums:
    io, level = parameters.ring.io, parameters.ring.level
    totals = [{k: io.ciphertext(level, term, ntt=True) for k, term in row.items()} for row in residues]
    return CiphertextSums(parameters, totals)


def dither(prg: Prg, primes: list[int], bits: int, shape: tuple[int, ...]) -> Residues:
    """Draw residues (primes, *shape) of a sum of three integers uniform below 2^bits minus its mean; 24 | bits."""
    limbs = prg.array((bits // _LIMB_BITS, 3, *shape), np.uint32) & np.uint32(2**_LIMB_BITS - 1)
    sums = limbs.sum(axis=1, dtype=np.uint64).astype(object)
    integers = sum(limb << _LIMB_BITS * number for number, limb in enumerate(sums)) - 3 * 2 ** (bits - 1)
    return np.stack([np.asarray(integers % p, np.uint64) for p in primes])


class LatticeHolder(RowHolder):
    """The party with g and a secret key of SEAL."""

    _parameters: LatticeGradientParameters

    def _new_key(self, seed: bytes) -> bytes:
        ring = self._parameters.ring
        secret, first = ring.keypair(self._parameters.second(seed))
        self._secret_key = SealSecretKey(ring, secret)
        return pack(first, ring.key_primes)

    def _sealed(self, layout: RingLayout, g: Floats, blocks: slice, prg: Prg) -> bytes:
        words = np.rint(g * (2.0**_PLAIN_BITS / self._parameters.modulus)).astype(np.int64).view(np.uint64)
        messages = layout.messages((words & np.uint64(2**_PLAIN_BITS - 1))[None], blocks)[0]
        return b"".join(self._secret_key.seal(layout, messages[..., b]) for b in range(blocks.stop - blocks.start))

    def _levels(
        self, layout: RingLayout, width: int, d: int, view: memoryview, prg: Prg
    ) -> Iterator[tuple[slice, Floats]]:
        moduli = self._parameters.ring.primes
        for _, columns in blocks(layout, d, width):
            shape = columns.stop - columns.start, width
            words = self._secret_key.reveal(layout, shape, view, self._dither(prg, shape))
            signed = (words << np.uint64(64 - _PLAIN_BITS)).view(np.int64)
            yield columns, np.rint(signed * (self._parameters.levels / 2.0**64))
            view = view[packed_size(moduli, DEGREE) + packed_size(moduli, math.prod(shape)) :]

    def _dither(self, prg: Prg, shape: tuple[int, int]) -> Residues:
        """Draw residues (primes, *shape) of D, the sum of three integers uniform below 2^k minus its mean."""
        return dither(prg, self._parameters.ring.primes, self._parameters.profile.k, shape)


class LatticeEvaluator(SealProductHider, RowEvaluator):
    """The party that has J and hides its products with SEAL."""

    _parameters: LatticeGradientParameters

    def _has_public(self, first: memoryview, seed: bytes) -> None:
        self._has_key(self._parameters.ring, first, self._parameters.second(seed))

    def _answer(
        self, layout: RingLayout, total: dict[int, Any], d: int, width: int, prg: Prg
    ) -> Iterator[tuple[bytes, slice, Floats]]:
        ring = self._parameters.ring
        for number, (_, columns) in enumerate(blocks(layout, d, width)):
            mask = self._uniform(prg, (columns.stop - columns.start, width))
            fractions = (ring.numbers(mask) / ring.q).astype(np.float64)
            yield ring.answer(layout, total.get(number), self._zero(), mask), columns, fractions


class LatticeGradient(RowScheme):
    """J^T [[g]] with SEAL under 128-bit RLWE.

    Args:
        columns: expected width of J.

    Raises:
        ConfigError: if the width is impossible.
    """

    name: ClassVar[str] = "lattice"
    holders: ClassVar[type[RowHolder]] = LatticeHolder
    evaluators: ClassVar[type[RowEvaluator]] = LatticeEvaluator

    def __init__(self, *, columns: int = 32) -> None:
        super().__init__(LatticeGradientParameters(), columns)
