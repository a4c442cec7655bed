"""Encoding of the rows of J as polynomials, and their products with an encrypted g, in the process that has the rows.

The rows of J and g are divided into blocks ("sample blocks", ring_layout.py), and the columns of J into F blocks. A
plaintext is a block of J, encoded as a polynomial. A *chunk* is the rows of J that one process stores. A *piece* is a
group of `BLOCKS_PER_PIECE` consecutive sample blocks, which one message with encrypted rows of g contains. The
plaintexts of a piece are cached if they fit within a limit. Otherwise they are computed whenever they are needed, about
`TILE_COEFFICIENTS` coefficients at a time. If the rows of a piece are in two chunks, both have plaintexts for it, with
zeros for the rows of the other chunk.
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
"""Number of sample blocks that are encrypted together, and that a message contains if g is sent in several messages."""
TILE_COEFFICIENTS = 1 << 18
"""Number of coefficients of plaintexts that are computed at a time."""
PLAINTEXT_CACHE_KEY = "plaintexts of rows"
"""The key under which a chunk's cache contains its plaintexts."""


def blocks_of_piece(layout: RingLayout, piece: int) -> range:
    """Return which blocks of rows (samples) a piece of the ciphertext of g contains."""
    return range(piece * BLOCKS_PER_PIECE, min(layout.sample_blocks, (piece + 1) * BLOCKS_PER_PIECE))


def pieces_of(blocks: range) -> range:
    """Return the pieces that contain these sample blocks."""
    return range(blocks.start // BLOCKS_PER_PIECE, -(-blocks.stop // BLOCKS_PER_PIECE))


def starts_piece(block: int) -> bool:
    """Return whether a piece begins with this sample block."""
    return block % BLOCKS_PER_PIECE == 0


@dataclass(frozen=True)
class SealedBlocks:
    """Consecutive encrypted sample blocks of g.

    Attributes:
        blocks: the numbers of the sample blocks.
        pieces: for each piece that contains some of them, the bytes of its ciphertexts for each block of outputs.
    """

    blocks: range
    pieces: dict[int, list[bytes]]

    def some(self, blocks: range) -> SealedBlocks:
        """Return a copy with only those sample blocks that have these numbers."""
        numbers = pieces_of(blocks)
        return SealedBlocks(blocks, {piece: sealed for piece, sealed in self.pieces.items() if piece in numbers})

    def then(self, other: SealedBlocks) -> SealedBlocks:
        """Return these sample blocks, followed by the sample blocks of `other`."""
        return SealedBlocks(range(self.blocks.start, other.blocks.stop), self.pieces | other.pieces)


class PlaintextCache:
    """The cached plaintexts of a chunk, by the number of the piece.

    Args:
        encoding: the encoding of the plaintexts.
        max_bytes: limit of the cache in bytes.
    """

    def __init__(self, encoding: RowEncoding, max_bytes: int) -> None:
        self.encoding = encoding
        self.nbytes = 0
        self.max_bytes = max_bytes
        self.pieces: dict[int, NDArray[Any]] = {}


@dataclass(frozen=True)
class EncodedRows:
    """A chunk of rows of J, with its encoding and its cached plaintexts. `start` is the number of its first row."""

    chunk: RowChunk
    parameters: RowParameters
    encoding: RowEncoding
    start: int
    cache: PlaintextCache

    @classmethod
    def of(
        cls, chunk: RowChunk, parameters: RowParameters, encoding: RowEncoding, start: int, max_bytes: int
    ) -> EncodedRows:
        """Return a chunk with its cache of plaintexts; a new cache replaces one with plaintexts of another encoding.

        Args:
            chunk: the rows of J that this process stores.
            parameters: the public parameters of the encryption scheme, such as its moduli.
            encoding: how the columns of J are scaled to integers, and which columns are check columns.
            start: number of the chunk's first row.
            max_bytes: limit of a new cache in bytes.

        Returns:
            The chunk with its cache.
        """
        cache: PlaintextCache | None = chunk.cache.get(PLAINTEXT_CACHE_KEY)
        if cache is None or not cache.encoding.same(encoding):
            cache = chunk.cache[PLAINTEXT_CACHE_KEY] = PlaintextCache(encoding, max_bytes)
        return cls(chunk, parameters, encoding, start, cache)

    @property
    def layout(self) -> RingLayout:
        """The division of g and J into blocks for which J was encoded."""
        return self.encoding.layout

    @property
    def column_blocks(self) -> int:
        """The number F of column blocks."""
        return self.layout.column_blocks(self.encoding.width)

    def blocks_of(self, piece: int) -> range:
        """Return the numbers of those sample blocks of a piece that have rows in this chunk."""
        blocks, s = blocks_of_piece(self.layout, piece), self.layout.s
        stop = -(-(self.start + len(self.chunk)) // s)
        return range(max(blocks.start, self.start // s), min(blocks.stop, stop))

    def tiles(self, blocks: range) -> Iterator[tuple[slice, NDArray[Any]]]:
        """Compute plaintexts; yield a slice of `blocks`, and the plaintexts of these, for a few blocks at a time."""
        step = max(1, TILE_COEFFICIENTS // (self.layout.points * self.column_blocks))
        for start in range(0, len(blocks), step):
            tile = blocks[start : start + step]
            integers = encoded_rows(self.chunk, self.encoding, self.start, tile)
            plain = self.layout.plaintexts(integers, slice(0, len(tile)))
            yield slice(start, start + len(tile)), self.parameters.plaintexts(self.layout, plain)

    def plaintexts_of(self, piece: int) -> NDArray[Any] | None:
        """Return the plaintexts of a piece for this chunk's rows, and cache them; None if they do not fit."""
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
        """Return the plaintexts of a sample block of sparse rows, without the column blocks that are zero in its rows.

        Args:
            rows: the sparse rows of the chunk.
            block: number of the sample block.

        Returns:
            The indices of the other column blocks, and the plaintexts. The positions of zeros are public.
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
    """Compute and cache the plaintexts of some sample blocks, as far as they fit into the cache.

    Args:
        chunk: the rows of J that this process stores.
        parameters: the public parameters of the encryption scheme, such as its moduli.
        encoding: how the columns of J are scaled to integers, and which columns are check columns.
        start: number of the chunk's first row.
        blocks: the numbers of the sample blocks.
        max_bytes: limit of the cache in bytes.
    """
    rows = EncodedRows.of(chunk, parameters, encoding, start, max_bytes)
    if not isinstance(chunk.rows, SparseRows):
        for piece in pieces_of(blocks):
            rows.plaintexts_of(piece)


def multiply_rows(
    chunk: RowChunk, parameters: RowParameters, encoding: RowEncoding, start: int, sealed: SealedBlocks, max_bytes: int
) -> Any:
    """Multiply encrypted sample blocks of g by a chunk's rows of J, and add up the products.

    Args:
        chunk: the rows of J that this process stores.
        parameters: the public parameters of the encryption scheme, such as its moduli.
        encoding: how the columns of J are scaled to integers, and which columns are check columns.
        start: number of the chunk's first row.
        sealed: encrypted sample blocks of g.
        max_bytes: limit of the cache of plaintexts in bytes.

    Returns:
        The sums, an object of `RowParameters.sums`.
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
    """Return the number of bytes of a chunk's cached plaintexts."""
    return chunk.cache[PLAINTEXT_CACHE_KEY].nbytes if PLAINTEXT_CACHE_KEY in chunk.cache else 0
