"""What the lattice engine does with rows of J, in whichever process holds them: encode and multiply.

    encode     the plaintexts of some sample blocks, kept as far as there is room for them
    multiply   their products with ciphertexts of g, summed over the blocks

Sums over blocks are ciphertexts that add up over stretches. A sample block that lies in two stretches has a plaintext
in each, with zeros for the rows of the other. What finds no room is encoded anew whenever it is multiplied: memory is
`room`, and some `CHUNK` plaintexts on their way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tenseal.sealapi as seal

from securevfl.base.arrays import Floats
from securevfl.base.tall import Sparse, Stretch
from securevfl.crypto.lattice import sealio
from securevfl.crypto.lattice.layout import Layout
from securevfl.crypto.lattice.profile import Parameters
from securevfl.crypto.lattice.row_encoding import Encoding, beside, scaled, span

CHUNK = 256  # plaintexts encoded at a time
SLOT = "lattice plaintexts"  # where a stretch keeps them


@dataclass(frozen=True)
class Blocks:
    """Consecutive sample blocks of a message: the first one, and [output block][sample block] sealed parts as bytes."""

    first: int
    sealed: list[list[bytes]]

    @property
    def count(self) -> int:
        """The number of sample blocks of g that are held here."""
        return len(self.sealed[0])

    def some(self, blocks: range) -> Blocks:
        """Return the part of these blocks that lies in the range `blocks`."""
        return Blocks(blocks.start, [row[blocks.start - self.first : blocks.stop - self.first] for row in self.sealed])

    def then(self, other: Blocks) -> Blocks:
        """Return these blocks and `other`, which follow them, as one."""
        return Blocks(self.first, [row + more for row, more in zip(self.sealed, other.sealed, strict=True)])


class Sums:
    """Ciphertexts [output block][column block], None where nothing was multiplied; they travel between processes as
    residues."""

    def __init__(self, parameters: Parameters, ciphertexts: list[list[Any]]) -> None:
        self.ciphertexts = ciphertexts
        self._parameters = parameters

    def add(self, other: Sums) -> None:
        """Add another one, entry by entry."""
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

    def __init__(self, encoding: Encoding[Layout], room: int, size: int) -> None:
        self.encoding = encoding
        self._size = size * encoding.layout.column_blocks(encoding.width)  # bytes of a block's plaintexts
        self._blocks: dict[int, list[Any]] = {}
        self._room = room

    @property
    def nbytes(self) -> int:
        """The bytes that the kept plaintexts take in memory."""
        return len(self._blocks) * self._size

    def get(self, block: int) -> list[Any] | None:
        return self._blocks.get(block)

    def full(self) -> bool:
        """Whether there is no room for one more block."""
        return self.nbytes + self._size > self._room

    def put(self, block: int, plains: list[Any]) -> None:
        """Keep the plaintexts of a block if there is room."""
        if not self.full():
            self._blocks[block] = plains


def encode(
    stretch: Stretch, parameters: Parameters, encoding: Encoding[Layout], start: int, blocks: range, room: int
) -> None:
    """Make the plaintexts of these sample blocks ready, as far as there is room. `start`: the stretch's first row."""
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
    stretch: Stretch, parameters: Parameters, encoding: Encoding[Layout], start: int, blocks: Blocks, room: int
) -> Sums:
    """Sum the products of these sample blocks of g with the stretch's rows: a ciphertext an output and column block."""
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
    """Read the ciphertext of one sealed part of a message."""
    ring = parameters.ring
    residues = sealio.unpack(part, ring.primes, ring.degree)
    return ring.io.seeded_ciphertext(ring.level, residues, part[-sealio.SEED_BYTES :])


def _product(evaluator: Any, up: Any, plain: Any) -> Any:
    total = seal.Ciphertext()
    evaluator.multiply_plain(up, plain, total)
    return total


def _kept(stretch: Stretch, parameters: Parameters, encoding: Encoding[Layout], room: int) -> Plaintexts:
    """Return the stretch's plaintexts of this encoding; those of another encoding are dropped."""
    kept: Plaintexts | None = stretch.kept.get(SLOT)
    if kept is None or not kept.encoding.same(encoding):
        ring = parameters.ring
        kept = stretch.kept[SLOT] = Plaintexts(encoding, room, ring.degree * len(ring.primes) * 8)
    return kept


def _step(encoding: Encoding[Layout]) -> int:
    """How many sample blocks are encoded at a time."""
    return max(1, CHUNK // encoding.layout.column_blocks(encoding.width))


def _encoded(
    stretch: Stretch, parameters: Parameters, encoding: Encoding[Layout], start: int, blocks: Sequence[int]
) -> list[list[Any]]:
    """Plaintexts [sample block][column block] of the stretch's rows."""
    if not blocks:
        return []
    layout = encoding.layout
    if isinstance(stretch.rows, Sparse):
        return _encoded_sparse(stretch.rows, parameters, encoding, start, blocks)
    found = layout.plaintexts(scaled(stretch, encoding, start, blocks))
    plains = parameters.ring.encode(_integers(layout, found.reshape(-1, layout.degree)))
    return [plains[place :: len(blocks)] for place in range(len(blocks))]


def _encoded_sparse(
    rows: Sparse, parameters: Parameters, encoding: Encoding[Layout], start: int, blocks: Sequence[int]
) -> list[list[Any]]:
    """Encode, as `_encoded` does, rows whose zeros everyone knows: a polynomial of zeros alone is None, not multiplied.

    The first block has all of its polynomials, so that every reply is a ciphertext.
    """
    layout, unit = encoding.layout, np.where(encoding.largest > 0, encoding.largest, 1.0)
    every, d = layout.column_blocks(encoding.width), len(encoding.scale)
    found: list[list[Any]] = [[None] * every for _ in blocks]
    polynomials = []
    for block in blocks:
        begin, end = span(layout, start, len(rows), block)
        present, part = rows.part(begin - start, end - start)
        columns = np.concatenate([present, np.arange(d, encoding.width)])
        ints = beside(np.rint(part / unit[present] * encoding.scale[present]), encoding.rho[present])
        touched = np.arange(every) if block == 0 else np.unique(columns // layout.columns)
        coefficients = np.zeros((len(touched), layout.degree))
        sample = np.arange(begin, end) - block * layout.s
        at = columns % layout.columns * layout.s + layout.s - 1 - sample[:, None]
        coefficients[np.searchsorted(touched, columns // layout.columns), at] = ints
        polynomials.append((touched, coefficients))
    plains = iter(parameters.ring.encode(_integers(layout, np.concatenate([each for _, each in polynomials]))))
    for own, (touched, _) in zip(found, polynomials, strict=True):
        for column in touched:
            own[column] = next(plains)
    return found


def _integers(layout: Layout, polynomials: Floats) -> Floats:
    """Return these (m x N), none of them zero: SEAL raises on a product with a zero polynomial, which would show where
    J is zero."""
    polynomials[:, layout.s - 1] += ~polynomials.any(axis=1)
    return polynomials
