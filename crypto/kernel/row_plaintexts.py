"""What an evaluator does with rows of J, in whichever process holds them: encode and multiply.

Sample blocks are taken in groups of `BLOCKS_PER_PIECE`, as they travel. The plaintexts of a group are kept, as there is
room; what finds none is made anew whenever it is multiplied, some `TILE_COEFFICIENTS` coefficients at a time. A group
that lies in two stretches has plaintexts in each, with zeros for the rows of the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.base.chunked_matrix import RowChunk, SparseRows
from securevfl.crypto.kernel.opening_checks import append_checks
from securevfl.crypto.kernel.ring_layout import RingLayout
from securevfl.crypto.kernel.row_encoding import RowEncoding, block_rows, encoded_rows
from securevfl.crypto.kernel.row_parameters import RowParameters

BLOCKS_PER_PIECE = 16  # sample blocks that are sealed together, and in a message where g goes in several

TILE_COEFFICIENTS = 1 << 18  # coefficients of plaintexts that are made at a time

PLAINTEXT_CACHE_KEY = "plaintexts of rows"  # where a stretch keeps them


def blocks_of_piece(layout: RingLayout, group: int) -> range:
    """Return the sample blocks of a group."""
    return range(group * BLOCKS_PER_PIECE, min(layout.sample_blocks, (group + 1) * BLOCKS_PER_PIECE))


@dataclass(frozen=True)
class SealedBlocks:
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

    def some(self, blocks: range) -> SealedBlocks:
        """Return the part of these blocks that lies in the range `blocks`."""
        groups = range(blocks.start // BLOCKS_PER_PIECE, -(-blocks.stop // BLOCKS_PER_PIECE))
        return SealedBlocks(blocks, {group: sealed for group, sealed in self.sealed.items() if group in groups})

    def then(self, other: SealedBlocks) -> SealedBlocks:
        """Return these blocks and `other`, which follow them, as one."""
        return SealedBlocks(range(self.own.start, other.own.stop), self.sealed | other.sealed)


class PlaintextCache:
    """A stretch's plaintexts by group, as many as there is room for."""

    def __init__(self, encoding: RowEncoding, room: int) -> None:
        self.encoding = encoding
        self.nbytes = 0
        self.room = room
        self.groups: dict[int, NDArray[Any]] = {}


@dataclass(frozen=True)
class EncodedRows:
    """A stretch that begins at row `start`, and how it is encoded."""

    stretch: RowChunk
    parameters: RowParameters
    encoding: RowEncoding
    start: int
    kept: PlaintextCache

    @classmethod
    def of(
        cls, stretch: RowChunk, parameters: RowParameters, encoding: RowEncoding, start: int, room: int
    ) -> EncodedRows:
        """Return the rows with what the stretch keeps of this encoding; plaintexts of another one go."""
        kept: PlaintextCache | None = stretch.cache.get(PLAINTEXT_CACHE_KEY)
        if kept is None or not kept.encoding.same(encoding):
            kept = stretch.cache[PLAINTEXT_CACHE_KEY] = PlaintextCache(encoding, room)
        return cls(stretch, parameters, encoding, start, kept)

    @property
    def layout(self) -> RingLayout:
        return self.encoding.layout

    @property
    def column_blocks(self) -> int:
        """F, the number of column blocks."""
        return self.layout.column_blocks(self.encoding.width)

    def blocks_of(self, group: int) -> range:
        """Return the sample blocks of a group that have rows here."""
        blocks, s = blocks_of_piece(self.layout, group), self.layout.s
        stop = -(-(self.start + len(self.stretch)) // s)
        return range(max(blocks.start, self.start // s), min(blocks.stop, stop))

    def tiles(self, blocks: range) -> Iterator[tuple[slice, NDArray[Any]]]:
        """Yield which of these sample blocks, a tile at a time, and their plaintexts."""
        step = max(1, TILE_COEFFICIENTS // (self.layout.points * self.column_blocks))
        for at in range(0, len(blocks), step):
            some = blocks[at : at + step]
            whole = encoded_rows(self.stretch, self.encoding, self.start, some)
            plain = self.layout.plaintexts(whole, slice(0, len(some)))
            yield slice(at, at + len(some)), self.parameters.plaintexts(self.layout, plain)

    def group(self, group: int) -> NDArray[Any] | None:
        """Return the plaintexts of what the stretch has of a group, now kept if there is room; else None."""
        if group in self.kept.groups:
            return self.kept.groups[group]
        blocks = self.blocks_of(group)
        out, size = self.parameters.room(self.layout, len(blocks), self.column_blocks)
        if self.kept.nbytes + size > self.kept.room:
            return None
        for some, plaintexts in self.tiles(blocks):
            out[..., some, :] = plaintexts
        self.kept.groups[group] = out
        self.kept.nbytes += size
        return out

    def sparse(self, rows: SparseRows, block: int) -> tuple[NDArray[np.intp], NDArray[Any]]:
        """Return the column blocks in which everyone knows that a sample block may have entries, and its plaintexts
        there."""
        layout, encoding = self.layout, self.encoding
        begin, end = block_rows(layout, self.start, len(rows), block)
        present, part = rows.part(begin - self.start, end - self.start)
        columns = np.concatenate([present, np.arange(len(encoding.scale), encoding.width)])
        touched = np.unique(columns // layout.columns)
        plain = np.zeros((layout.points, 1, len(touched)))
        sample = np.arange(begin, end) - block * layout.s
        at = columns % layout.columns * layout.s + layout.s - 1 - sample[:, None]
        unit = np.where(encoding.largest > 0, encoding.largest, 1.0)
        where = np.broadcast_to(np.searchsorted(touched, columns // layout.columns), at.shape)
        ints = np.rint(part / unit[present] * encoding.scale[present])
        plain[at, 0, where] = append_checks(ints, encoding.rho[present])
        return touched, self.parameters.plaintexts(layout, plain)


def encode_rows(
    stretch: RowChunk, parameters: RowParameters, encoding: RowEncoding, start: int, blocks: range, room: int
) -> None:
    """Make the plaintexts of these sample blocks ready, as far as there is room. `start`: the stretch's first row."""
    rows = EncodedRows.of(stretch, parameters, encoding, start, room)
    if not isinstance(stretch.rows, SparseRows):
        for group in range(blocks.start // BLOCKS_PER_PIECE, -(-blocks.stop // BLOCKS_PER_PIECE)):
            rows.group(group)


def multiply_rows(
    stretch: RowChunk, parameters: RowParameters, encoding: RowEncoding, start: int, blocks: SealedBlocks, room: int
) -> Any:
    """Return the products of these sample blocks of g with the stretch's rows, summed."""
    layout, rows = encoding.layout, EncodedRows.of(stretch, parameters, encoding, start, room)
    sums, F = parameters.sums(layout), rows.column_blocks
    for group, sealed in blocks.sealed.items():
        whole, mine = blocks_of_piece(layout, group), rows.blocks_of(group)
        taken = range(max(mine.start, blocks.own.start), min(mine.stop, blocks.own.stop))
        queries = [
            parameters.query(layout, outputs.stop - outputs.start, part, len(whole), F)[..., _within(taken, whole)]
            for outputs, part in zip(layout.outputs, sealed, strict=True)
        ]
        if isinstance(stretch.rows, SparseRows):
            for place, block in enumerate(taken):
                columns, plaintexts = rows.sparse(stretch.rows, block)
                for output_block, query in enumerate(queries):
                    sums.add_columns(output_block, query[..., place, None], plaintexts, columns, F)
            continue
        ready = rows.group(group)
        tiles = rows.tiles(taken) if ready is None else [(slice(0, len(taken)), ready[..., _within(taken, mine), :])]
        for some, plaintexts in tiles:
            for output_block, query in enumerate(queries):
                sums.add_product(output_block, query[..., some], plaintexts)
    return sums


def _within(some: range, blocks: range) -> slice:
    return slice(some.start - blocks.start, some.stop - blocks.start)


def cached_bytes(stretch: RowChunk) -> int:
    """Return how many bytes the kept plaintexts of a stretch take."""
    return stretch.cache[PLAINTEXT_CACHE_KEY].nbytes if PLAINTEXT_CACHE_KEY in stretch.cache else 0
