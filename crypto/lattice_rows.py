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

from securevfl.crypto import sealio
from securevfl.crypto.lattice_layout import Layout
from securevfl.crypto.lattice_profile import Parameters
from securevfl.crypto.scheme import Floats
from securevfl.crypto.tall import Sparse, Stretch
from securevfl.errors import RangeError

CHUNK = 256  # plaintexts encoded at a time
READ = 512  # rows with known zeros that are measured at a time
_SLOT = "lattice plaintexts"  # where a stretch keeps them


@dataclass(frozen=True)
class Norms:
    """Of each column (d,): its largest |x|, and sums of squares and of |x| relative to that."""

    largest: Floats
    squares: Floats
    absolute: Floats


def norms(stretch: Stretch) -> Norms:
    """Of the columns of a stretch. RangeError if one is not finite."""
    if isinstance(stretch.rows, Sparse):
        return _sparse_norms(stretch.rows)
    return merged(_norms(X) for _, X in stretch.blocks())


def _sparse_norms(rows: Sparse) -> Norms:
    """Of rows that are read without their zeros, `READ` at a time: of more, the columns are not as few."""
    n, d = rows.shape
    found = []
    for start in range(0, n, READ):
        columns, part = rows.part(start, min(n, start + READ))
        one, whole = _norms(part), np.zeros((3, d))
        whole[:, columns] = one.largest, one.squares, one.absolute
        found.append(Norms(*whole))
    return merged(found)


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
    if isinstance(stretch.rows, Sparse):
        return _encoded_sparse(stretch.rows, parameters, encoding, start, blocks)
    unit = np.where(encoding.largest > 0, encoding.largest, 1.0)
    rows = np.zeros((len(blocks), layout.s, d))
    for place, block in enumerate(blocks):
        begin, end = _span(layout, start, len(stretch), block)
        own = stretch.rows[slice(begin - start, end - start)] / unit * encoding.scale
        rows[place, begin - block * layout.s : end - block * layout.s] = own
    found = layout.plaintexts(rows.reshape(-1, d))
    plains = parameters.ring.encode(_integers(layout, found.reshape(-1, layout.degree)))
    return [plains[place :: len(blocks)] for place in range(len(blocks))]


def _encoded_sparse(
    rows: Sparse, parameters: Parameters, encoding: Encoding, start: int, blocks: Sequence[int]
) -> list[list[Any]]:
    """`_encoded` of rows in which everyone knows of zeros: a polynomial of nothing else is None, and not multiplied.

    The first block has all of them, so that every reply is a ciphertext.
    """
    layout, unit = encoding.layout, np.where(encoding.largest > 0, encoding.largest, 1.0)
    every = layout.column_blocks(len(encoding.scale))
    found, polynomials = [[None] * every for _ in blocks], []
    for block in blocks:
        begin, end = _span(layout, start, len(rows), block)
        columns, part = rows.part(begin - start, end - start)
        touched = np.arange(every) if block == 0 else np.unique(columns // layout.columns)
        coefficients = np.zeros((len(touched), layout.degree))
        sample = np.arange(begin, end) - block * layout.s
        at = columns % layout.columns * layout.s + layout.s - 1 - sample[:, None]
        coefficients[np.searchsorted(touched, columns // layout.columns), at] = (
            part / unit[columns] * encoding.scale[columns]
        )
        polynomials.append((touched, coefficients))
    plains = iter(parameters.ring.encode(_integers(layout, np.concatenate([each for _, each in polynomials]))))
    for own, (touched, _) in zip(found, polynomials, strict=True):
        for column in touched:
            own[column] = next(plains)
    return found


def _span(layout: Layout, start: int, rows: int, block: int) -> tuple[int, int]:
    """From and to which row of the matrix a sample block reaches, of a stretch that begins at `start`."""
    return max(start, block * layout.s), min(start + rows, (block + 1) * layout.s)


def _integers(layout: Layout, polynomials: Floats) -> Floats:
    """Whole coefficients (m x N), none of the polynomials zero: SEAL raises on a product with a zero polynomial, which
    would show where J is zero."""
    found: Floats = np.rint(polynomials)
    found[:, layout.s - 1] += ~found.any(axis=1)
    return found
