"""What the gradient on the kernel does with rows of J, in whichever process holds them: encode and multiply.

Sample blocks are taken in groups of `PIECE`, as they travel. The values of a group's plaintexts are kept, as there is
room, in single precision, which holds residues of 24 bits about zero; what finds no room is made anew whenever it is
multiplied, some `TILE` coefficients at a time. A group that lies in two stretches has values in each, with zeros for
the rows of the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.base.tall import Sparse, Stretch
from securevfl.crypto.kernel import gradient_sizes
from securevfl.crypto.kernel.ciphertexts import uniform, unpack
from securevfl.crypto.kernel.gradient_sizes import SECONDS, GradientParameters
from securevfl.crypto.kernel.residues import Floats, Primes, joined, summed
from securevfl.crypto.kernel.ring_layout import RingLayout
from securevfl.crypto.kernel.transform import transform
from securevfl.crypto.lattice.row_encoding import Encoding, beside, scaled, span
from securevfl.crypto.prg import KEY_BYTES as SEED_BYTES
from securevfl.crypto.prg import Prg

__all__ = ["SLOT", "Groups", "KernelSums", "encode", "group_range", "multiply"]

TILE = 1 << 18  # coefficients of plaintexts that are transformed at a time
SLOT = "values of plaintexts on the kernel"  # where a stretch keeps them

Values = NDArray[np.float32]


def group_range(layout: RingLayout, group: int) -> range:
    """Return the sample blocks of a group."""
    return range(group * gradient_sizes.PIECE, min(layout.sample_blocks, (group + 1) * gradient_sizes.PIECE))


@dataclass(frozen=True)
class Groups:
    """Consecutive sample blocks of a message, in the groups that hold them: of each group what is sealed by output
    block, a seed and c0."""

    own: range
    sealed: dict[int, list[bytes]]

    @property
    def first(self) -> int:
        """The number of the first sample block."""
        return self.own.start

    @property
    def count(self) -> int:
        """The number of sample blocks of g that are held here."""
        return len(self.own)

    def some(self, blocks: range) -> Groups:
        """Return the part of these blocks that lies in the range `blocks`."""
        groups = range(blocks.start // gradient_sizes.PIECE, -(-blocks.stop // gradient_sizes.PIECE))
        return Groups(blocks, {group: sealed for group, sealed in self.sealed.items() if group in groups})

    def then(self, other: Groups) -> Groups:
        """Return these blocks and `other`, which follow them, as one."""
        return Groups(range(self.own.start, other.own.stop), self.sealed | other.sealed)


class KernelSums:
    """Sums of products by output block, (P, M, outputs + r, F) each, c0 over c1; None where nothing was multiplied.

    They are reduced when so many products are in them that one more might not be exact.
    """

    def __init__(self, primes: Primes, totals: list[Floats | None]) -> None:
        self._primes, self._totals = primes, totals
        self._terms = [0 if total is None else 1 for total in totals]

    def add(self, other: KernelSums) -> None:
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
        self._totals[output_block], self._terms[output_block] = summed(self._primes, total, terms, query, values)

    def add_columns(self, output_block: int, query: Floats, values: Values, columns: NDArray[np.intp], F: int) -> None:
        """Add a product as `add_product` does, where values are of these column blocks of F alone."""
        total = self._totals[output_block]
        if total is None:
            total = self._totals[output_block] = np.zeros((*query.shape[:3], F))
        part, _ = summed(self._primes, None, 0, query, values)
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


def _sums(bits: int, count: int, totals: list[Values | None]) -> KernelSums:
    return KernelSums(Primes(bits, count), [None if total is None else total.astype(np.float64) for total in totals])


class Kept:
    """A stretch's values by group, as many as there is room for."""

    def __init__(self, encoding: Encoding[RingLayout], room: int) -> None:
        self.encoding = encoding
        self.nbytes = 0
        self._room = room
        self._groups: dict[int, Values] = {}

    def get(self, group: int) -> Values | None:
        return self._groups.get(group)

    def fits(self, nbytes: int) -> bool:
        """Whether there is room for so many bytes more."""
        return self.nbytes + nbytes <= self._room

    def put(self, group: int, values: Values) -> None:
        self._groups[group] = values
        self.nbytes += values.nbytes


@dataclass(frozen=True)
class EncodedRows:
    """A stretch that begins at row `start`, and how it is encoded."""

    stretch: Stretch
    primes: Primes
    encoding: Encoding[RingLayout]
    start: int

    @property
    def layout(self) -> RingLayout:
        return self.encoding.layout

    @property
    def column_blocks(self) -> int:
        """F, the number of column blocks."""
        return self.layout.column_blocks(self.encoding.width)

    def own(self, group: int) -> range:
        """Return the sample blocks of a group that have rows here."""
        blocks, s = group_range(self.layout, group), self.layout.s
        stop = -(-(self.start + len(self.stretch)) // s)
        return range(max(blocks.start, self.start // s), min(blocks.stop, stop))

    def tiles(self, blocks: range) -> Iterator[tuple[slice, Values]]:
        """Return the values (P, M, some, F) of these sample blocks, and which of them, a tile at a time."""
        layout, ahead = self.layout, transform(self.primes, self.layout.points)
        step = max(1, TILE // (layout.points * self.column_blocks))
        for at in range(0, len(blocks), step):
            some = blocks[at : at + step]
            whole = scaled(self.stretch, self.encoding, self.start, some)
            plain = layout.plaintexts(whole, slice(0, len(some)))
            yield slice(at, at + len(some)), ahead.forward(plain).astype(np.float32)

    def made(self, blocks: range) -> Values:
        """All of them."""
        shape = len(self.primes), self.layout.points, len(blocks), self.column_blocks
        out: Values = np.empty(shape, np.float32)
        for some, values in self.tiles(blocks):
            out[:, :, some] = values
        return out

    def nbytes(self, blocks: range) -> int:
        """Bytes of the values of these sample blocks."""
        return 4 * len(self.primes) * self.layout.points * len(blocks) * self.column_blocks

    def sparse(self, rows: Sparse, block: int) -> tuple[NDArray[np.intp], Values]:
        """Return the column blocks in which everyone knows that a sample block may have entries, and its values
        there."""
        layout, encoding = self.layout, self.encoding
        begin, end = span(layout, self.start, len(rows), block)
        present, part = rows.part(begin - self.start, end - self.start)
        columns = np.concatenate([present, np.arange(len(encoding.scale), encoding.width)])
        touched = np.unique(columns // layout.columns)
        plain = np.zeros((layout.points, 1, len(touched)))
        sample = np.arange(begin, end) - block * layout.s
        at = columns % layout.columns * layout.s + layout.s - 1 - sample[:, None]
        unit = np.where(encoding.largest > 0, encoding.largest, 1.0)
        where = np.broadcast_to(np.searchsorted(touched, columns // layout.columns), at.shape)
        ints = np.rint(part / unit[present] * encoding.scale[present])
        plain[at, 0, where] = beside(ints, encoding.rho[present])
        return touched, transform(self.primes, layout.points).forward(plain).astype(np.float32)


def encode(
    stretch: Stretch,
    parameters: GradientParameters,
    encoding: Encoding[RingLayout],
    start: int,
    blocks: range,
    room: int,
) -> None:
    """Make the values of these sample blocks ready, as far as there is room. `start`: the stretch's first row."""
    rows, kept = EncodedRows(stretch, parameters.primes, encoding, start), _kept(stretch, encoding, room)
    if isinstance(stretch.rows, Sparse):
        return
    for group in range(blocks.start // gradient_sizes.PIECE, -(-blocks.stop // gradient_sizes.PIECE)):
        _keep(rows, kept, group)


def multiply(
    stretch: Stretch,
    parameters: GradientParameters,
    encoding: Encoding[RingLayout],
    start: int,
    blocks: Groups,
    room: int,
) -> KernelSums:
    """Return the products of these sample blocks of g with the stretch's rows, summed."""
    primes, layout = parameters.primes, encoding.layout
    rows, kept = EncodedRows(stretch, primes, encoding, start), _kept(stretch, encoding, room)
    sums = KernelSums(primes, [None] * layout.output_blocks)
    for group, sealed in blocks.sealed.items():
        whole, mine = group_range(layout, group), rows.own(group)
        taken = range(max(mine.start, blocks.own.start), min(mine.stop, blocks.own.stop))
        queries = [
            _query(primes, layout, outputs, part, len(whole), rows.column_blocks)[
                ..., taken.start - whole.start : taken.stop - whole.start
            ]
            for outputs, part in zip(layout.outputs, sealed, strict=True)
        ]
        if isinstance(stretch.rows, Sparse):
            for place, block in enumerate(taken):
                columns, values = rows.sparse(stretch.rows, block)
                for output_block, query in enumerate(queries):
                    sums.add_columns(output_block, query[..., place, None], values, columns, rows.column_blocks)
            continue
        ready = _keep(rows, kept, group)
        tiles = rows.tiles(taken) if ready is None else [(slice(0, len(taken)), ready[:, :, _within(taken, mine)])]
        for some, values in tiles:
            for output_block, query in enumerate(queries):
                sums.add_product(output_block, query[..., some], values)
    return sums


def _within(some: range, blocks: range) -> slice:
    return slice(some.start - blocks.start, some.stop - blocks.start)


def _query(primes: Primes, layout: RingLayout, outputs: slice, sealed: bytes, count: int, F: int) -> Floats:
    """(P, M, outputs + r, blocks): the ciphertexts of a group of so many sample blocks at each point, c0 over c1, for
    products with F column blocks."""
    width = outputs.stop - outputs.start
    first = unpack(primes, memoryview(sealed)[SEED_BYTES:], (layout.points, width, count))
    second = uniform(Prg(sealed[:SEED_BYTES], SECONDS), primes, (layout.points, layout.r, count))
    return joined(first, second, F)


def _keep(rows: EncodedRows, kept: Kept, group: int) -> Values | None:
    """Return the values of what the stretch has of a group, now kept if there is room; else None."""
    values = kept.get(group)
    blocks = rows.own(group)
    if values is None and kept.fits(rows.nbytes(blocks)):
        values = rows.made(blocks)
        kept.put(group, values)
    return values


def _kept(stretch: Stretch, encoding: Encoding[RingLayout], room: int) -> Kept:
    """Return the stretch's values of this encoding; those of another one go."""
    kept: Kept | None = stretch.kept.get(SLOT)
    if kept is None or not kept.encoding.same(encoding):
        kept = stretch.kept[SLOT] = Kept(encoding, room)
    return kept
