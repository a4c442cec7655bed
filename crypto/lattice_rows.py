"""What the lattice engine does with rows of J, in whichever process holds them: measure, encode, multiply.

    norms      what the fixed-point scale of each column follows from; adds up over stretches of rows
    encode     the plaintexts of some sample blocks, kept as far as there is room for them
    multiply   their products with ciphertexts of g, summed over the blocks

Sums over blocks are ciphertexts that add up over stretches. A sample block that lies in two stretches has a plaintext
in each, with zeros for the rows of the other. What finds no room is encoded anew whenever it is multiplied: memory is
`room`, and some `CHUNK` plaintexts on their way.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tenseal.sealapi as seal
from numpy.typing import NDArray

from securevfl.crypto import sealio
from securevfl.crypto.lattice_layout import Layout
from securevfl.crypto.lattice_profile import Parameters
from securevfl.crypto.scheme import Floats
from securevfl.crypto.tall import Sparse, Stretch
from securevfl.errors import RangeError

CHUNK = 256  # plaintexts encoded at a time
_SLOT = "lattice plaintexts"  # where a stretch keeps them


@dataclass(frozen=True)
class Norms:
    """Of each column (d,): its largest |x|, and sums of squares and of |x| relative to that."""

    largest: Floats
    squares: Floats
    absolute: Floats


def norms(stretch: Stretch) -> Norms:
    """Of the columns of a stretch. RangeError if one is not finite."""
    return merged(_norms(X) for _, X in stretch.blocks())


def _norms(X: Floats) -> Norms:
    largest = np.abs(X).max(axis=0)
    if not np.isfinite(largest).all():
        raise RangeError("lattice: J has values that are not finite; drop or impute them first")
    unit = np.abs(X) / np.where(largest > 0, largest, 1.0)
    return Norms(largest, (unit**2).sum(axis=0), unit.sum(axis=0))


def merged(found: Iterable[Norms]) -> Norms:
    """Norms of all rows together."""
    each = list(found)
    largest = np.max([one.largest for one in each], axis=0)
    unit = np.where(largest > 0, largest, 1.0)
    shares = [one.largest / unit for one in each]
    squares = sum(share**2 * one.squares for share, one in zip(shares, each, strict=True))
    absolute = sum(share * one.absolute for share, one in zip(shares, each, strict=True))
    return Norms(largest, np.asarray(squares), np.asarray(absolute))


@dataclass(frozen=True)
class Encoding:
    """How J becomes integers in coefficients: the layout, each column's largest |x|, and the integers to that (d,)."""

    layout: Layout
    largest: Floats
    scale: Floats

    @classmethod
    def of(cls, layout: Layout, parameters: Parameters, found: Norms) -> Encoding:
        """Columns scaled to integers of norm T / sqrt(f) and sum L at most; a column of 0/1 without any rounding."""
        zero = found.largest == 0
        T, d = parameters.profile.T, len(found.largest)
        euclid, absolute = np.sqrt(found.squares) + zero, found.absolute + zero
        scale = np.minimum(T / math.sqrt(min(layout.columns, d)) / euclid, parameters.column_cap(layout) / absolute)
        return cls(layout, found.largest, np.where(scale > 1, np.floor(scale), scale))

    @property
    def worth(self) -> Floats:
        """(d,): worth of one integer in each column."""
        return self.largest / self.scale

    def same(self, other: Encoding) -> bool:
        """Whether plaintexts of the one are those of the other, for the same J."""
        return (self.layout.s, self.layout.columns) == (other.layout.s, other.layout.columns)


@dataclass(frozen=True)
class Blocks:
    """Consecutive sample blocks of a message: the first one, and [output block][sample block] sealed parts as bytes."""

    first: int
    sealed: list[list[bytes]]

    @property
    def count(self) -> int:
        """How many sample blocks."""
        return len(self.sealed[0])

    def some(self, blocks: range) -> Blocks:
        """These of them."""
        return Blocks(blocks.start, [row[blocks.start - self.first : blocks.stop - self.first] for row in self.sealed])

    def then(self, other: Blocks) -> Blocks:
        """These, and the others that follow them."""
        return Blocks(self.first, [row + more for row, more in zip(self.sealed, other.sealed, strict=True)])


class Sums:
    """Ciphertexts [output block][column block], None where nothing was multiplied; they travel between processes as
    residues."""

    def __init__(self, parameters: Parameters, ciphertexts: list[list[Any]]) -> None:
        self.ciphertexts = ciphertexts
        self._parameters = parameters

    def add(self, other: Sums) -> None:
        """Adds another one, entry by entry."""
        evaluator = self._parameters.ring.evaluator
        for row, more in zip(self.ciphertexts, other.ciphertexts, strict=True):
            for column, term in enumerate(more):
                if row[column] is None:
                    row[column] = term
                elif term is not None:
                    evaluator.add_inplace(row[column], term)

    def __reduce__(self) -> tuple[Any, ...]:
        ring = self._parameters.ring
        shape = (2, len(ring.primes), ring.degree)
        residues = [
            [None if cipher is None else ring.io.residues(cipher, shape) for cipher in row] for row in self.ciphertexts
        ]
        return _sums, (self._parameters, residues)


def _sums(parameters: Parameters, residues: list[list[sealio.Residues | None]]) -> Sums:
    ring = parameters.ring
    found = [
        [None if each is None else ring.io.ciphertext(ring.level, each, ntt=True) for each in row] for row in residues
    ]
    return Sums(parameters, found)


class Plaintexts:
    """A stretch's plaintexts by sample block, [column block] each, as many blocks as there is room for."""

    def __init__(self, encoding: Encoding, room: int, size: int) -> None:
        self.encoding = encoding
        self._size = size * encoding.layout.column_blocks(len(encoding.scale))  # bytes of a block's plaintexts
        self._blocks: dict[int, list[Any]] = {}
        self._room = room

    @property
    def nbytes(self) -> int:
        """What they take."""
        return len(self._blocks) * self._size

    def get(self, block: int) -> list[Any] | None:
        return self._blocks.get(block)

    def full(self) -> bool:
        """Whether there is no room for one more block."""
        return self.nbytes + self._size > self._room

    def put(self, block: int, plains: list[Any]) -> None:
        """Keeps the plaintexts of a block if there is room."""
        if not self.full():
            self._blocks[block] = plains


def kept_bytes(stretch: Stretch) -> int:
    """What the plaintexts of a stretch take."""
    kept: Plaintexts | None = stretch.kept.get(_SLOT)
    return 0 if kept is None else kept.nbytes


def encode(stretch: Stretch, parameters: Parameters, encoding: Encoding, start: int, blocks: range, room: int) -> None:
    """Makes the plaintexts of these sample blocks ready, as far as there is room. `start`: the stretch's first row."""
    kept = _kept(stretch, parameters, encoding, room)
    missing = [block for block in blocks if kept.get(block) is None]
    step = _step(encoding)
    for at in range(0, len(missing), step):
        if kept.full():
            return
        some = missing[at : at + step]
        for block, plains in zip(some, _encoded(stretch, parameters, encoding, start, some), strict=True):
            kept.put(block, plains)


def multiply(
    stretch: Stretch, parameters: Parameters, encoding: Encoding, start: int, blocks: Blocks, room: int
) -> Sums:
    """The products of these sample blocks of g with the stretch's rows, summed: one ciphertext an output and column
    block."""
    kept = _kept(stretch, parameters, encoding, room)
    evaluator, term = parameters.ring.evaluator, seal.Ciphertext()
    sums: list[list[Any]] = [[] for _ in blocks.sealed]
    step = _step(encoding)
    for at in range(0, blocks.count, step):
        places = range(at, min(blocks.count, at + step))
        missing = [blocks.first + place for place in places if kept.get(blocks.first + place) is None]
        fresh = dict(zip(missing, _encoded(stretch, parameters, encoding, start, missing), strict=True))
        for place in places:
            block = blocks.first + place
            plains = fresh[block] if block in fresh else kept.get(block) or []
            for row, sealed in zip(sums, blocks.sealed, strict=True):
                up = unsealed(parameters, sealed[place])
                row.extend([None] * (len(plains) - len(row)))
                for column, plain in enumerate(plains):
                    if plain is None:
                        continue
                    if row[column] is None:
                        row[column] = _product(evaluator, up, plain)
                        continue
                    evaluator.multiply_plain(up, plain, term)
                    evaluator.add_inplace(row[column], term)
        for block, plains in fresh.items():
            kept.put(block, plains)
    return Sums(parameters, sums)


def unsealed(parameters: Parameters, part: bytes) -> Any:
    """The ciphertext of one sealed part of a message."""
    ring = parameters.ring
    residues = sealio.unpack(part, ring.primes, ring.degree)
    return ring.io.seeded_ciphertext(ring.level, residues, part[-sealio.SEED_BYTES :])


def _product(evaluator: Any, up: Any, plain: Any) -> Any:
    total = seal.Ciphertext()
    evaluator.multiply_plain(up, plain, total)
    return total


def _kept(stretch: Stretch, parameters: Parameters, encoding: Encoding, room: int) -> Plaintexts:
    """The stretch's plaintexts of this encoding; those of another one go."""
    kept: Plaintexts | None = stretch.kept.get(_SLOT)
    if kept is None or not kept.encoding.same(encoding):
        ring = parameters.ring
        kept = stretch.kept[_SLOT] = Plaintexts(encoding, room, ring.degree * len(ring.primes) * 8)
    return kept


def _step(encoding: Encoding) -> int:
    """How many sample blocks are encoded at a time."""
    return max(1, CHUNK // encoding.layout.column_blocks(len(encoding.scale)))


def _encoded(
    stretch: Stretch, parameters: Parameters, encoding: Encoding, start: int, blocks: Sequence[int]
) -> list[list[Any]]:
    """Plaintexts [sample block][column block] of the stretch's rows."""
    if not blocks:
        return []
    layout, d = encoding.layout, len(encoding.scale)
    unit = np.where(encoding.largest > 0, encoding.largest, 1.0)
    rows = np.zeros((len(blocks), layout.s, d))
    for place, block in enumerate(blocks):
        begin, end = max(start, block * layout.s), min(start + len(stretch), (block + 1) * layout.s)
        own = stretch.rows[slice(begin - start, end - start)] / unit * encoding.scale
        rows[place, begin - block * layout.s : end - block * layout.s] = own
    integers = np.rint(layout.plaintexts(rows.reshape(-1, d)))
    # SEAL raises on a product with a zero polynomial, which would show where J is zero.
    integers[..., layout.s - 1] += ~integers.any(axis=-1)
    touched = _touched(stretch, encoding, start, blocks)
    plains = np.full(touched.shape, None)
    plains[touched] = parameters.ring.encode(integers[touched])
    return [list(column) for column in plains.T]


def _touched(stretch: Stretch, encoding: Encoding, start: int, blocks: Sequence[int]) -> NDArray[np.bool_]:
    """Which polynomials [column block][sample block] are multiplied at all: where everyone knows of zeros, none is.

    The first of each column block always is, so that every reply is a ciphertext.
    """
    layout, d = encoding.layout, len(encoding.scale)
    touched = np.ones((layout.column_blocks(d), len(blocks)), bool)
    if isinstance(stretch.rows, Sparse):
        for place, block in enumerate(blocks):
            begin, end = max(start, block * layout.s), min(start + len(stretch), (block + 1) * layout.s)
            columns = stretch.rows.columns(begin - start, end - start)
            touched[:, place] = block == 0
            touched[columns // layout.columns, place] = True
    return touched
