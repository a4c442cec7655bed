"""Arithmetic modulo 2^L on uint64 words, L <= 64: what shares are made of.

Sums wrap by themselves. A product of a matrix of small integers with uniform words is no task for numpy's own integer
product, which uses no BLAS: the words are cut into limbs of l bits so short that no sum of a product leaves the 53 bits
of a float64, n max|A| 2^l < 2^53, and the products of the limbs, exact in floats, are put together again modulo 2^64.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.crypto.prg import Prg
from securevfl.errors import ConfigError, RangeError

Words = NDArray[np.uint64]
Integers = NDArray[Any]  # signed integers of any size

_EXACT = 53  # bits of a float64
_WIDE = 1 << 20  # entries of a factor that are floats at a time


class ShareRing:
    """The integers modulo 2^bits. ConfigError unless 1 <= bits <= 64."""

    def __init__(self, bits: int) -> None:
        if not 1 <= bits <= 64:
            raise ConfigError(f"shares: the ring has 2^1 to 2^64 elements, 2^{bits} was asked for")
        self.bits = bits
        self.mask = np.uint64(2**bits - 1)
        self.octets = -(-bits // 8)
        sizes = [size for size in (8, 4, 2, 1) if self.octets & size]
        self._planes = list(zip(np.cumsum([0, *sizes]).tolist(), sizes, strict=False))
        self._short = bits < 16 and bits % 8 > 0  # bits of short words lie side by side, so that no bit is always 0

    def reduce(self, words: Words) -> Words:
        """Reduce the words (any shape) modulo 2^bits."""
        return words & self.mask

    def of(self, integers: Integers) -> Words:
        """Signed integers (any shape) as elements of the ring."""
        return np.ascontiguousarray(integers, np.int64).view(np.uint64) & self.mask

    def signed(self, words: Words) -> Integers:
        """Return the representatives in [-2^(bits-1), 2^(bits-1)) of elements of the ring."""
        spare = 64 - self.bits
        return (words << np.uint64(spare)).view(np.int64) >> np.int64(spare)

    def uniform(self, prg: Prg, shape: int | tuple[int, ...], *, number: int | None = None) -> Words:
        """Stream `number` of `prg` (the next one if None) as uniform elements."""
        return prg.array(shape, np.uint64, number=number) >> np.uint64(64 - self.bits)

    def size(self, count: int) -> int:
        """How many bytes so many elements are packed in."""
        return -(-count * self.bits // 8) if self._short else count * self.octets

    def pack(self, words: Words) -> bytes:
        """Elements as little-endian bytes, as few as the ring needs each: all low parts, then all higher ones; those of
        fewer than 16 bits side by side."""
        flat = words.reshape(-1)
        if self._short:
            octets = flat.astype("<u2").view(np.uint8).reshape(-1, 2)
            places = np.unpackbits(octets, axis=1, count=self.bits, bitorder="little")
            return np.packbits(places, bitorder="little").tobytes()
        packing = IncrementalPacking(self, flat.shape)
        packing.put(slice(None), flat)
        return packing.packed()

    def planes(self, octets: NDArray[np.uint8], shape: tuple[int, ...]) -> list[tuple[np.uint64, NDArray[Any]]]:
        """Return the parts of elements of this shape in the octets they are packed in, each with the bits below it."""
        count, parts = math.prod(shape), []
        for at, size in self._planes:
            plane = octets[at * count : (at + size) * count].view(f"<u{size}").reshape(shape)
            parts.append((np.uint64(8 * at), plane))
        return parts

    def unpack(self, data: bytes, shape: tuple[int, ...], where: tuple[Any, ...] = ()) -> Words:
        """Read the elements that `pack` wrote, or those of them at an index `where` into `shape`.

        RangeError if the length does not fit the shape, or an element is 2^bits or more.
        """
        count = int(np.prod(shape))
        if len(data) != self.size(count):
            raise RangeError(
                f"shares: {self.size(count)} bytes of shares were expected, {len(data)} came; the message is cut"
            )
        if self._short:
            # so many short words (count,). RangeError if a bit is set beyond the last
            places = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
            if places[count * self.bits :].any():
                raise RangeError("shares: a bit beyond the last word came; the peer runs other software or is cheating")
            octets = np.zeros((count, 2), np.uint8)
            packed = np.packbits(places[: count * self.bits].reshape(count, self.bits), axis=1, bitorder="little")
            octets[:, : packed.shape[1]] = packed
            return octets.reshape(-1).view("<u2").astype(np.uint64).reshape(shape)[where]
        words: Words = np.zeros((), np.uint64)
        for at, size in self._planes:
            plane = np.frombuffer(data, f"<u{size}", count, offset=at * count).reshape(shape)[where]
            words = words | plane.astype(np.uint64) << np.uint64(8 * at)
        if (words > self.mask).any():
            raise RangeError("shares: a word beyond the ring came; the peer runs other software or is cheating")
        return words


class IncrementalPacking:
    """Elements (of a shape) that are packed some at a time, as `ShareRing.pack` packs all; of 16 bits or more."""

    def __init__(self, ring: ShareRing, shape: tuple[int, ...]) -> None:
        self._octets = np.empty(ring.size(math.prod(shape)), np.uint8)
        self._planes = ring.planes(self._octets, shape)

    def put(self, where: Any, words: Words) -> None:
        """Pack the elements at an index `where` into the shape."""
        for shift, plane in self._planes:
            plane[where] = words >> shift if shift else words

    def packed(self) -> bytes:
        """Return all of them."""
        return self._octets.tobytes()


def narrowest_integers(integers: Integers) -> Integers:
    """Convert the numbers to integers of 2 or 4 bytes each, if they fit."""
    low, high = (int(integers.min()), int(integers.max())) if integers.size else (0, 0)
    for kind in (np.int16, np.int32):
        if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
            return integers.astype(kind, copy=False)
    return integers


class IntegerFactor:
    """A fixed matrix A (m x n) of small integers, ready for products modulo 2^bits.

    RangeError if A is not a matrix of whole numbers or so large that a limb would have fewer than 8 bits.
    """

    def __init__(self, ring: ShareRing, A: Integers) -> None:
        if A.ndim != 2 or 0 in A.shape or A.dtype.kind != "i":
            raise RangeError(f"shares: a factor is a matrix of signed integers, got shape {A.shape} of {A.dtype}")
        self.ring = ring
        self.shape = A.shape
        self._step = max(1, _WIDE // A.shape[1])  # rows
        self._entries = np.ascontiguousarray(A, np.float64) if len(A) <= self._step else A
        self._largest = max(1, int(A.max()), -int(A.min()))
        for inner in A.shape:
            self._limb(inner)

    def _limb(self, inner: int) -> int:
        limb = _EXACT - (inner * self._largest).bit_length()
        if limb < 8:
            raise RangeError("shares: a factor has entries too large for its size; use fewer bits of fixed point")
        return limb

    def times(self, words: Words) -> Words:
        """Multiply the words (n x c) by A, modulo 2^bits."""
        return np.concatenate([self._product(block, words, words.shape[0]) for _, block in self._blocks()])

    def transpose_times(self, words: Words) -> Words:
        """A^T words for words (m x c), modulo 2^bits."""
        total = np.zeros((self.shape[1], words.shape[1]), np.uint64)
        for rows, block in self._blocks():
            total += self._product(block.T, words[rows], words.shape[0])
        return total & self.ring.mask

    def _blocks(self) -> Iterator[tuple[slice, NDArray[np.float64]]]:
        """Rows of A as floats."""
        for start in range(0, self.shape[0], self._step):
            rows = slice(start, start + self._step)
            yield rows, self._entries[rows].astype(np.float64, copy=False)

    def _product(self, A: NDArray[np.float64], words: Words, inner: int) -> Words:
        limb = self._limb(inner)
        limbs = -(-self.ring.bits // limb)
        limb = -(-self.ring.bits // limbs)
        low = np.uint64(2**limb - 1)
        total = np.zeros((A.shape[0], words.shape[1]), np.uint64)
        for column, sums in zip(words.T, total.T, strict=True):
            for shift in range(0, limb * limbs, limb):  # one vector at a time: a BLAS wakes threads for thin matrices
                part = A @ ((column >> np.uint64(shift)) & low).astype(np.float64)
                sums += part.astype(np.int64).view(np.uint64) << np.uint64(shift)
        return total & self.ring.mask
