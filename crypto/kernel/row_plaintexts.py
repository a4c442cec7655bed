"""What an evaluator does with rows of J in the process that holds them: encode and multiply.

Sample blocks are processed in pieces of `BLOCKS_PER_PIECE`, as they are sent. The plaintexts of a piece are cached
within a limit. Others are computed whenever they are multiplied, about `TILE_COEFFICIENTS` coefficients at a time. If
the rows of a piece are in two chunks, both have plaintexts of it, with zeros for the rows of the other chunk.
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

BLOCKS_PER_PIECE = 16
"""Sample blocks that are encrypted together, and that one message contains if g is sent in several."""
TILE_COEFFICIENTS = 1 << 18
"""Coefficients of plaintexts that are computed at a time."""
PLAINTEXT_CACHE_KEY = "plaintexts of rows"
"""Key of the plaintexts in the cache of a chunk."""


def blocks_of_piece(layout: RingLayout, piece: int) -> range:
    """Return the sample blocks of a piece."""
    return range(piece * BLOCKS_PER_PIECE, min(layout.sample_blocks, (piece + 1) * BLOCKS_PER_PIECE))


def pieces_of(blocks: range) -> range:
    """Return the pieces that contain these sample blocks."""
    return range(blocks.start // BLOCKS_PER_PIECE, -(-blocks.stop // BLOCKS_PER_PIECE))


def starts_piece(block: int) -> bool:
    """Return whether a piece begins with this sample block."""
    return block % BLOCKS_PER_PIECE == 0


@dataclass(frozen=True)
class SealedBlocks:
    """Consecutive encrypted sample blocks.

    Attributes:
        blocks: numbers of the sample blocks.
        pieces: for each piece that contains some of them, the ciphertexts of each output block: a seed and c0.
    """

    blocks: range
    pieces: dict[int, list[bytes]]

    def some(self, blocks: range) -> SealedBlocks:
        """Return those in a range of sample blocks."""
        numbers = pieces_of(blocks)
        return SealedBlocks(blocks, {piece: sealed for piece, sealed in self.pieces.items() if piece in numbers})

    def then(self, other: SealedBlocks) -> SealedBlocks:
        """Return these blocks and the blocks that follow them."""
        return SealedBlocks(range(self.blocks.start, other.blocks.stop), self.pieces | other.pieces)


class PlaintextCache:
    """Cached plaintexts of a chunk by piece.

    Args:
        encoding: the encoding of the plaintexts.
        max_bytes: limit of the cache.
    """

    def __init__(self, encoding: RowEncoding, max_bytes: int) -> None:
        self.encoding = encoding
        self.nbytes = 0
        self.max_bytes = max_bytes
        self.pieces: dict[int, NDArray[Any]] = {}


@dataclass(frozen=True)
class EncodedRows:
    """A chunk that begins at row `start`, its encoding, and its cached plaintexts."""

    chunk: RowChunk
    parameters: RowParameters
    encoding: RowEncoding
    start: int
    cache: PlaintextCache

    @classmethod
    def of(
        cls, chunk: RowChunk, parameters: RowParameters, encoding: RowEncoding, start: int, max_bytes: int
    ) -> EncodedRows:
        """Return the rows with the chunk's cache; plaintexts of another encoding are removed.

        Args:
            chunk: the chunk.
            parameters: the parameters of the engine.
            encoding: the encoding.
            start: number of the chunk's first row.
            max_bytes: limit of a new cache.

        Returns:
            The rows.
        """
        cache: PlaintextCache | None = chunk.cache.get(PLAINTEXT_CACHE_KEY)
        if cache is None or not cache.encoding.same(encoding):
            cache = chunk.cache[PLAINTEXT_CACHE_KEY] = PlaintextCache(encoding, max_bytes)
        return cls(chunk, parameters, encoding, start, cache)

    @property
    def layout(self) -> RingLayout:
        """The layout of the encoding."""
        return self.encoding.layout

    @property
    def column_blocks(self) -> int:
        """The number F of column blocks."""
        return self.layout.column_blocks(self.encoding.width)

    def blocks_of(self, piece: int) -> range:
        """Return the sample blocks of a piece that have rows in this chunk."""
        blocks, s = blocks_of_piece(self.layout, piece), self.layout.s
        stop = -(-(self.start + len(self.chunk)) // s)
        return range(max(blocks.start, self.start // s), min(blocks.stop, stop))

    def tiles(self, blocks: range) -> Iterator[tuple[slice, NDArray[Any]]]:
        """Yield slices of these sample blocks and their plaintexts, a tile at a time."""
        step = max(1, TILE_COEFFICIENTS // (self.layout.points * self.column_blocks))
        for start in range(0, len(blocks), step):
            tile = blocks[start : start + step]
            integers = encoded_rows(self.chunk, self.encoding, self.start, tile)
            plain = self.layout.plaintexts(integers, slice(0, len(tile)))
            yield slice(start, start + len(tile)), self.parameters.plaintexts(self.layout, plain)

    def plaintexts_of(self, piece: int) -> NDArray[Any] | None:
        """Return the plaintexts of this chunk's part of a piece, which are then cached; None if they do not fit."""
        if piece in self.cache.pieces:
            return self.cache.pieces[piece]
        blocks = self.blocks_of(piece)
        out, size = self.parameters.room(self.layout, len(blocks), self.column_blocks)
        if self.cache.nbytes + size > self.cache.max_bytes:
            return None
        for tile, plaintexts in self.tiles(blocks):
            out[..., tile, :] = plaintexts
        self.cache.pieces[piece] = out
        self.cache.nbytes += size
        return out

    def sparse(self, rows: SparseRows, block: int) -> tuple[NDArray[np.intp], NDArray[Any]]:
        """Return the plaintexts of a sample block in the column blocks that may have entries.

        Args:
            rows: the rows of the chunk.
            block: number of the sample block.

        Returns:
            Numbers of the column blocks, which are public, and the plaintexts.
        """
        layout, encoding = self.layout, self.encoding
        begin, end = block_rows(layout, self.start, len(rows), block)
        present, entries = rows.part(begin - self.start, end - self.start)
        columns = np.concatenate([present, np.arange(len(encoding.scale), encoding.width)])
        touched = np.unique(columns // layout.columns)
        plain = np.zeros((layout.points, 1, len(touched)))
        sample = np.arange(begin, end) - block * layout.s
        powers = columns % layout.columns * layout.s + layout.s - 1 - sample[:, None]
        unit = np.where(encoding.largest > 0, encoding.largest, 1.0)
        index = np.broadcast_to(np.searchsorted(touched, columns // layout.columns), powers.shape)
        integers = np.rint(entries / unit[present] * encoding.scale[present])
        plain[powers, 0, index] = append_checks(integers, encoding.rho[present])
        return touched, self.parameters.plaintexts(layout, plain)


def encode_rows(
    chunk: RowChunk, parameters: RowParameters, encoding: RowEncoding, start: int, blocks: range, max_bytes: int
) -> None:
    """Compute and cache the plaintexts of sample blocks, within the limit.

    Args:
        chunk: the chunk.
        parameters: the parameters of the engine.
        encoding: the encoding.
        start: number of the chunk's first row.
        blocks: the sample blocks.
        max_bytes: limit of the cache.
    """
    rows = EncodedRows.of(chunk, parameters, encoding, start, max_bytes)
    if not isinstance(chunk.rows, SparseRows):
        for piece in pieces_of(blocks):
            rows.plaintexts_of(piece)


def multiply_rows(
    chunk: RowChunk, parameters: RowParameters, encoding: RowEncoding, start: int, sealed: SealedBlocks, max_bytes: int
) -> Any:
    """Multiply encrypted sample blocks of g by the rows of a chunk.

    Args:
        chunk: the chunk.
        parameters: the parameters of the engine.
        encoding: the encoding.
        start: number of the chunk's first row.
        sealed: the encrypted sample blocks.
        max_bytes: limit of the cache of plaintexts.

    Returns:
        The sums of the products.
    """
    layout, rows = encoding.layout, EncodedRows.of(chunk, parameters, encoding, start, max_bytes)
    sums, F = parameters.sums(layout), rows.column_blocks
    for piece, ciphertexts in sealed.pieces.items():
        every, local = blocks_of_piece(layout, piece), rows.blocks_of(piece)
        blocks = range(max(local.start, sealed.blocks.start), min(local.stop, sealed.blocks.stop))
        queries = [
            parameters.query(layout, outputs.stop - outputs.start, ciphertext, len(every), F)[
                ..., _within(blocks, every)
            ]
            for outputs, ciphertext in zip(layout.outputs, ciphertexts, strict=True)
        ]
        if isinstance(chunk.rows, SparseRows):
            for index, block in enumerate(blocks):
                columns, plaintexts = rows.sparse(chunk.rows, block)
                for output_block, query in enumerate(queries):
                    sums.add_columns(output_block, query[..., index, None], plaintexts, columns, F)
            continue
        cached = rows.plaintexts_of(piece)
        tiles = (
            rows.tiles(blocks) if cached is None else [(slice(0, len(blocks)), cached[..., _within(blocks, local), :])]
        )
        for tile, plaintexts in tiles:
            for output_block, query in enumerate(queries):
                sums.add_product(output_block, query[..., tile], plaintexts)
    return sums


def _within(blocks: range, every: range) -> slice:
    return slice(blocks.start - every.start, blocks.stop - every.start)


def cached_bytes(chunk: RowChunk) -> int:
    """Return the bytes of the cached plaintexts of a chunk."""
    return chunk.cache[PLAINTEXT_CACHE_KEY].nbytes if PLAINTEXT_CACHE_KEY in chunk.cache else 0
