"""Arithmetic modulo 2^L, for L up to 64, on words of type uint64: the values of secret shares.

The integers modulo 2^L are called the ring. Sums of uint64 arrays wrap modulo 2^64, and need only be reduced. Products
of a matrix A of small integers with words would be slow in numpy, because integer products do not use BLAS. Each word
is therefore divided into limbs of a few bits, so that every sum in a product of A with limbs is below 2^53 and thus
exact in float64: n * max|A| * 2^(bits of a limb) < 2^53 for sums of n terms. The products are then added up modulo
2^64.
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
Integers = NDArray[Any]  # signed integers of 2, 4 or 8 bytes

_EXACT_BITS = 53  # a float64 represents all integers up to 2^53 exactly
_FLOAT_ENTRIES = 1 << 20  # entries of a matrix that are converted to floats at a time


class ShareRing:
    """The integers modulo 2^bits.

    Args:
        bits: the number of bits L, from 1 to 64.

    Raises:
        ConfigError: if the number of bits is out of range.

    Attributes:
        mask: the largest element, 2^bits - 1.
        octets: number of bytes of a packed element, if it has 16 bits or more.
    """

    def __init__(self, bits: int) -> None:
        if not 1 <= bits <= 64:
            raise ConfigError(
                f"secret shares cannot have {bits} bits", "use 1 to 64 bits", code="SVFL-CRYPTO-PARAMETERS"
            )
        self.bits = bits
        self.mask = np.uint64(2**bits - 1)
        self.octets = -(-bits // 8)
        sizes = [size for size in (8, 4, 2, 1) if self.octets & size]
        self._planes = list(zip(np.cumsum([0, *sizes]).tolist(), sizes, strict=False))
        self._short = bits < 16 and bits % 8 > 0  # packed bit by bit, because padding bits would not look random

    def reduce(self, words: Words) -> Words:
        """Return words of any shape, reduced modulo 2^bits."""
        return words & self.mask

    def of(self, integers: Integers) -> Words:
        """Return signed integers of any shape as elements of the ring."""
        return np.ascontiguousarray(integers, np.int64).view(np.uint64) & self.mask

    def signed(self, words: Words) -> Integers:
        """Return elements as signed integers in [-2^(bits-1), 2^(bits-1))."""
        spare = 64 - self.bits
        return (words << np.uint64(spare)).view(np.int64) >> np.int64(spare)

    def uniform(self, prg: Prg, shape: int | tuple[int, ...], *, number: int | None = None) -> Words:
        """Return uniformly random elements from stream `number` of a generator, or from its next stream if None."""
        return prg.array(shape, np.uint64, number=number) >> np.uint64(64 - self.bits)

    def size(self, count: int) -> int:
        """Return the number of bytes of `count` packed elements."""
        return -(-count * self.bits // 8) if self._short else count * self.octets

    def pack(self, words: Words) -> bytes:
        """Pack elements of any shape into bytes: first the lowest bytes of all elements, then their higher bytes.

        Elements of fewer than 16 bits are packed bit by bit instead.

        Args:
            words: the elements.

        Returns:
            The bytes.
        """
        flat = words.reshape(-1)
        if self._short:
            octets = flat.astype("<u2").view(np.uint8).reshape(-1, 2)
            bits = np.unpackbits(octets, axis=1, count=self.bits, bitorder="little")
            return np.packbits(bits, bitorder="little").tobytes()
        packing = IncrementalPacking(self, flat.shape)
        packing.put(slice(None), flat)
        return packing.packed()

    def planes(self, octets: NDArray[np.uint8], shape: tuple[int, ...]) -> list[tuple[np.uint64, NDArray[Any]]]:
        """Return views of packed elements by planes; a plane contains the same 1, 2, 4 or 8 bytes of every element.

        Args:
            octets: the packed elements.
            shape: the shape of the elements.

        Returns:
            For each plane, the position of its lowest bit in an element, and the view.
        """
        count, views = math.prod(shape), []
        for at, size in self._planes:
            plane = octets[at * count : (at + size) * count].view(f"<u{size}").reshape(shape)
            views.append((np.uint64(8 * at), plane))
        return views

    def unpack(self, data: bytes, shape: tuple[int, ...], where: tuple[Any, ...] = ()) -> Words:
        """Read elements that `pack` wrote.

        Args:
            data: the bytes.
            shape: shape of the elements.
            where: an index into an array of this shape, to read only some of the elements.

        Returns:
            The elements.

        Raises:
            RangeError: if the length does not fit the shape, or an element is 2^bits or larger.
        """
        count = int(np.prod(shape))
        if len(data) != self.size(count):
            raise RangeError(
                f"received {len(data)} bytes of shares instead of {self.size(count)}",
                "check that all parties run the same job and version",
                code="SVFL-PROTOCOL-SIZE",
            )
        if self._short:
            bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
            if bits[count * self.bits :].any():
                raise RangeError("received shares with unused bits that are not 0", code="SVFL-PROTOCOL-VALUES")
            octets = np.zeros((count, 2), np.uint8)
            packed = np.packbits(bits[: count * self.bits].reshape(count, self.bits), axis=1, bitorder="little")
            octets[:, : packed.shape[1]] = packed
            return octets.reshape(-1).view("<u2").astype(np.uint64).reshape(shape)[where]
        words: Words = np.zeros((), np.uint64)
        for at, size in self._planes:
            plane = np.frombuffer(data, f"<u{size}", count, offset=at * count).reshape(shape)[where]
            words = words | plane.astype(np.uint64) << np.uint64(8 * at)
        if self.bits < 8 * self.octets and (words > self.mask).any():
            raise RangeError(f"received a share that is not below 2^{self.bits}", code="SVFL-PROTOCOL-VALUES")
        return words


class IncrementalPacking:
    """Packs an array of ring elements into bytes, a part of the array at a time.

    The bytes are those of `ShareRing.pack` for the whole array. Elements must have at least 16 bits.

    Args:
        ring: the ring of the elements.
        shape: shape of the array of all elements.
    """

    def __init__(self, ring: ShareRing, shape: tuple[int, ...]) -> None:
        self._octets = np.empty(ring.size(math.prod(shape)), np.uint8)
        self._planes = ring.planes(self._octets, shape)

    def put(self, where: Any, words: Words) -> None:
        """Pack the elements `words` at the index `where` of the array."""
        for shift, plane in self._planes:
            plane[where] = words >> shift if shift else words

    def packed(self) -> bytes:
        """Return the bytes of all packed elements."""
        return self._octets.tobytes()


def narrowest_integers(integers: Integers) -> Integers:
    """Convert integers to int16, or else to int32, if their values fit; otherwise return them unchanged."""
    low, high = (int(integers.min()), int(integers.max())) if integers.size else (0, 0)
    for dtype in (np.int16, np.int32):
        if np.iinfo(dtype).min <= low and high <= np.iinfo(dtype).max:
            return integers.astype(dtype, copy=False)
    return integers


class IntegerFactor:
    """A matrix of small integers, prepared for products with words modulo 2^bits.

    Args:
        ring: the integers modulo 2^bits.
        A: the matrix (m, n).

    Raises:
        RangeError: if A is not a matrix of signed integers, or if its size and entries are so large that a limb would
            have fewer than 8 bits.
    """

    def __init__(self, ring: ShareRing, A: Integers) -> None:
        if A.ndim != 2 or 0 in A.shape or A.dtype.kind != "i":
            raise RangeError(
                f"shares can be multiplied by a matrix of signed integers only, not by one of {A.dtype} with shape "
                f"{A.shape}",
                code="SVFL-CRYPTO-SHAPE",
            )
        self.ring = ring
        self.shape = A.shape
        self._step = max(1, _FLOAT_ENTRIES // A.shape[1])  # number of rows that are converted to floats at a time
        self._entries = np.ascontiguousarray(A, np.float64) if len(A) <= self._step else A
        self._largest = max(1, int(A.max()), -int(A.min()))
        for inner in A.shape:
            self._limb(inner)

    def _limb(self, inner: int) -> int:
        limb = _EXACT_BITS - (inner * self._largest).bit_length()
        if limb < 8:
            raise RangeError(
                "the matrix by which shares are multiplied has entries that are too large for its size",
                "use fewer fixed-point bits",
                code="SVFL-CRYPTO-RANGE",
            )
        return limb

    def times(self, words: Words) -> Words:
        """Return the product A @ words (m, c) modulo 2^bits, for words (n, c)."""
        return np.concatenate([self._product(block, words, words.shape[0]) for _, block in self._blocks()])

    def transpose_times(self, words: Words) -> Words:
        """Return the product A^T @ words (n, c) modulo 2^bits, for words (m, c)."""
        total = np.zeros((self.shape[1], words.shape[1]), np.uint64)
        for rows, block in self._blocks():
            total += self._product(block.T, words[rows], words.shape[0])
        return total & self.ring.mask

    def _blocks(self) -> Iterator[tuple[slice, NDArray[np.float64]]]:
        """Yield A in blocks of rows: the slice of row numbers, and the rows as floats."""
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
            for shift in range(0, limb * limbs, limb):  # one vector at a time, since BLAS starts threads for matrices
                product = A @ ((column >> np.uint64(shift)) & low).astype(np.float64)
                sums += product.astype(np.int64).view(np.uint64) << np.uint64(shift)
        return total & self.ring.mask
