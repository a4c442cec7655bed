"""Encrypted products J^T g with the library SEAL: another implementation for `securevfl.crypto.kernel.row_products`.

The key holder encrypts g, and the evaluator multiplies it by its matrix J. `row_products` explains the protocol and who
learns what. SEAL encrypts messages modulo t = 2^59, in polynomials with N = 4096 coefficients modulo q (BFV scheme). An
integer x at the scale of g is encrypted as round(t * x / q). For a decrypted value w and the random dither D, which
hides the noise in w, SEAL returns round(t * (w + D) / q). It is rounded once more to q / 2^drop levels, each
coefficient separately. q is the product of two primes and has 93 bits; a third prime removes most of the noise of an
encryption of zero. Rows are divided into blocks, outputs (columns of g) into blocks, and columns of J into F blocks
(ring_layout.py).

SEAL refuses to compute a product that is zero, so a block of J with only zeros is multiplied as the polynomial 1, and
the product is discarded.
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
"""Name of this implementation in error messages."""
LATTICE_PROFILE = Profile((47, 46, 16), 72, 68, 2.0**21, SPECIAL_NOISE)
_PLAIN_BITS = 59  # t = 2^59 is the largest power of two that SEAL accepts
# estimated milliseconds on one core for a ciphertext to the evaluator, one back, and a product; only ratios matter
_UP_MS, _DOWN_MS, _PRODUCT_MS = 1.8, 3.8, 0.08
_LIMB_BITS = 24  # long integers of a dither are drawn in parts of this number of bits


def _milliseconds(layout: RingLayout, d: int, uses: int, openings: int) -> float:
    """Estimate the milliseconds of computing products, for both parties on one core, with an encoded J in the cache."""
    B, F = layout.sample_blocks, layout.column_blocks(d)
    return layout.output_blocks * (B * _UP_MS + openings * (F * _DOWN_MS + B * F * _PRODUCT_MS))


class LatticeGradientParameters(RowParameters):
    """The parameters of the scheme: SEAL's context, and the sizes of messages that follow from it."""

    engine: ClassVar[str] = LATTICE_GRADIENT_ENGINE
    magic: ClassVar[tuple[bytes, bytes, bytes, bytes]] = b"SLK3", b"SLG3", b"SLB4", b"SLO4"

    def __init__(self, profile: Profile = LATTICE_PROFILE) -> None:
        self.ring = SealRing(profile.bits, _PLAIN_BITS)
        super().__init__(profile, self.ring.q)
        self.key_size, self.key_bits = packed_size(self.ring.key_primes, DEGREE), sum(profile.bits)

    def second(self, seed: bytes) -> Residues:
        """Compute the second polynomial a of a public key from its seed."""
        return self.ring.second(Prg(seed, "public second polynomial of a key"))

    def choose(self, n: int, c: int, d: int, openings: int) -> RingLayout:
        """Return the fastest layout for g and J; see `RowParameters.choose`."""
        return ring_layout.choose_layout(n, c, d, openings=openings, cost=_milliseconds)

    def sealed_size(self, layout: RingLayout, width: int, blocks: int) -> int:
        """Return the number of bytes of encrypted row blocks; see `RowParameters.sealed_size`."""
        return blocks * self.ring.sealed_size(layout, width)

    def answer_size(self, layout: RingLayout, d: int) -> int:
        """Return the number of bytes of a blinded product; see `RowParameters.answer_size`."""
        return self.ring.answer_size(layout, d)

    def query(self, layout: RingLayout, width: int, sealed: bytes, blocks: int, F: int) -> NDArray[Any]:
        """Read encrypted row blocks; see `RowParameters.query`."""
        size, view = self.ring.sealed_size(layout, width), memoryview(sealed)
        return _array(self.ring.unsealed(layout, width, view[b * size : (b + 1) * size]) for b in range(blocks))

    def room(self, layout: RingLayout, blocks: int, F: int) -> tuple[NDArray[Any], int]:
        """Return an array to be filled with encoded row blocks, and its size in bytes; see `RowParameters.room`."""
        return np.empty((blocks, F), object), blocks * F * DEGREE * len(self.ring.primes) * 8

    def plaintexts(self, layout: RingLayout, plain: Floats) -> NDArray[Any]:
        """Return polynomials of SEAL (blocks, F), each with a flag for "not zero"; see `RowParameters.plaintexts`."""
        columns = plain.reshape(len(plain), -1).T
        return _array(self.ring.plaintext(layout, column) for column in columns).reshape(plain.shape[1:])

    def sums(self, layout: RingLayout) -> CiphertextSums:
        """Return an object that adds up encrypted products; see `RowParameters.sums`."""
        return CiphertextSums(self, [{} for _ in layout.outputs])


def _array(objects: Iterator[Any]) -> NDArray[Any]:
    items = list(objects)
    array = np.empty(len(items), object)
    array[:] = items
    return array


class CiphertextSums:
    """Sums of encrypted products, one for each block of outputs and block of columns that is not zero.

    Args:
        parameters: the parameters of the implementation.
        totals: for each block of outputs, the sums by number of the column block.
    """

    def __init__(self, parameters: LatticeGradientParameters, totals: list[dict[int, Any]]) -> None:
        self._parameters, self._totals = parameters, totals

    def add(self, other: CiphertextSums) -> None:
        """Add the sums of encrypted products with other rows of J."""
        for output_block, terms in enumerate(other.reduced()):
            for column, term in terms.items():
                self._add(output_block, column, term)

    def add_product(self, output_block: int, query: NDArray[Any], plaintexts: NDArray[Any]) -> None:
        """Add the products of encrypted row blocks (blocks,) and encoded ones (blocks, F), for all F column blocks."""
        self.add_columns(output_block, query, plaintexts, np.arange(plaintexts.shape[1]), 0)

    def add_columns(
        self, output_block: int, query: NDArray[Any], plaintexts: NDArray[Any], columns: NDArray[np.intp], F: int
    ) -> None:
        """Add products with only those of the F column blocks whose numbers are in `columns`."""
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
        """Return the encrypted sums. They are already reduced modulo q, because SEAL reduces after each operation."""
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
    """Draw dithers: sums of three integers that are uniform below 2^bits, minus their mean.

    Args:
        prg: the generator.
        primes: the prime moduli: a number is stored as its remainder modulo each of them.
        bits: number of bits, a multiple of 24.
        shape: shape of the array of dithers.

    Returns:
        Residues (primes, *shape) of the dithers.
    """
    limbs = prg.array((bits // _LIMB_BITS, 3, *shape), np.uint32) & np.uint32(2**_LIMB_BITS - 1)
    sums = limbs.sum(axis=1, dtype=np.uint64).astype(object)
    integers = sum(limb << _LIMB_BITS * number for number, limb in enumerate(sums)) - 3 * 2 ** (bits - 1)
    return np.stack([np.asarray(integers % p, np.uint64) for p in primes])


class LatticeHolder(RowHolder):
    """The party with g and a secret key, with SEAL."""

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
        """Draw a dither D: the sum of three integers uniform below 2^k (`Profile.k`), minus its mean, as residues."""
        return dither(prg, self._parameters.ring.primes, self._parameters.profile.k, shape)


class LatticeEvaluator(SealProductHider, RowEvaluator):
    """The evaluator, the party that has J: it multiplies an encrypted g by J with SEAL."""

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
    """The scheme for encrypted products J^T g with SEAL, with 128-bit security under RLWE.

    Args:
        columns: expected number of columns of J.

    Raises:
        ConfigError: if the number is not positive.
    """

    name: ClassVar[str] = "lattice"
    holders: ClassVar[type[RowHolder]] = LatticeHolder
    evaluators: ClassVar[type[RowEvaluator]] = LatticeEvaluator

    def __init__(self, *, columns: int = 32) -> None:
        super().__init__(LatticeGradientParameters(), columns)
