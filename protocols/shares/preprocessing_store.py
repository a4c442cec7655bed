"""Stores for the precomputed material of a training on shares, which return each record just once.

The material consists of random masks and of products with them, which the parties computed in advance. A chunk is the
material for a number of iterations that was computed together. A record is the material for one block of rows in one
iteration (a "part" of the iteration). Records of an iteration are taken in order. Taking the first one marks the whole
iteration as used, because records contain random masks, and a mask that is used twice reveals residuals.
"""

from __future__ import annotations

import struct
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from securevfl.errors import ConfigError, ProtocolError

NAME_BYTES = 16

CHUNK_HEADER = struct.Struct(f"<{NAME_BYTES}s{NAME_BYTES}sQQ")
"""Name, base, first iteration and number of iterations of a chunk; see `PreprocessingChunk`."""

Record = tuple[int, int, bytes]
"""Index of an iteration in its chunk, index of the part in the iteration, and the data."""


@dataclass
class PreprocessingChunk:
    """The description of a stored chunk.

    Attributes:
        name: a random name, the same at all parties that generated the chunk together.
        base: a digest of the party's shares before the chunk; the chunk can be used only after the same state.
        first: the number of the training's iteration that uses the first records.
        count: the number of iterations for which the chunk has material.
        size: the size of its records in bytes.
        next: the index in the chunk of the first iteration that is not used yet.
        part: for the iteration before `next`, the index of its first part that is not used yet.
    """

    name: bytes
    base: bytes
    first: int
    count: int
    size: int
    next: int = 0
    part: int = 0


class PreprocessingStore(ABC):
    """Base class of stores, which have a maximum size. Records are identified by chunk, iteration and part.

    Args:
        limit: the maximum number of bytes of all records together.

    Attributes:
        on_disk: whether the chunks outlive the process.
        limit: the maximum number of bytes of all records together.
    """

    on_disk = False

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lock = threading.Lock()  # the thread that generates chunks adds them while the training removes used ones
        self._chunks: dict[int, PreprocessingChunk] = {}

    @property
    def chunk_numbers(self) -> tuple[int, ...]:
        """The numbers of the stored chunks, used or not."""
        with self._lock:
            return tuple(sorted(self._chunks))

    @property
    def free_bytes(self) -> int:
        """The number of bytes that can still be stored."""
        with self._lock:
            return self.limit - sum(chunk.size for chunk in self._chunks.values())

    def put(
        self, number: int, name: bytes, first: int, records: Sequence[bytes], *, base: bytes = bytes(NAME_BYTES)
    ) -> None:
        """Store a chunk whose iterations have a single block of rows, and so a single record each; see `write`."""
        parts = ((index, 0, record) for index, record in enumerate(records))
        self.write(number, name, first, len(records), parts, base=base)

    def write(
        self,
        number: int,
        name: bytes,
        first: int,
        count: int,
        records: Iterable[Record],
        *,
        base: bytes = bytes(NAME_BYTES),
    ) -> None:
        """Store a chunk.

        Args:
            number: the number of the chunk; chunks of a training are counted from 0.
            name: the name of the chunk.
            first: the number of the training's iteration that uses the first records.
            count: the number of iterations for which the chunk has material.
            records: the records, in any order.
            base: a digest of the party's shares before the chunk.

        Raises:
            ConfigError: the records exceed the limit of the store.
            ProtocolError: the store already has a chunk with this number.
        """
        if number in self._chunks:
            raise ProtocolError(
                f"shares: preprocessing chunk {number} (random numbers for some epochs) was generated twice",
                "number chunks consecutively",
                code="SVFL-STATE",
            )
        available, size = self.free_bytes, 0

        def counted() -> Iterator[Record]:
            nonlocal size
            for record in records:
                size += len(record[2])
                if size > available:
                    raise ConfigError(
                        "shares: a preprocessing chunk (random numbers for some epochs) needs more than "
                        f"{available:,} bytes, the free part of the limit of {self.limit:,}",
                        "reduce protocol.shares.chunk",
                        code="SVFL-JOB-TOO-LARGE",
                        bytes=available,
                    )
                yield record

        self._write(number, CHUNK_HEADER.pack(name, base, first, count), counted())
        with self._lock:
            self._chunks[number] = PreprocessingChunk(name, base, first, count, size)

    def chunk(self, number: int) -> PreprocessingChunk:
        """Return the description of a stored chunk.

        Args:
            number: the number of the chunk; chunks of a training are counted from 0.

        Returns:
            The description of the chunk: its name, iterations and size.

        Raises:
            ProtocolError: the chunk is not stored.
        """
        if number not in self._chunks:
            raise ProtocolError(
                f"shares: preprocessing chunk {number} (random numbers for some epochs) was used already, or was never "
                "generated",
                "generate a new chunk",
                code="SVFL-PROTOCOL-REPEATED",
            )
        return self._chunks[number]

    def take(self, number: int, iteration: int, part: int = 0) -> bytes:
        """Return a record and mark it as used.

        Records must be taken in order. Taking the first part of an iteration marks the whole iteration as used.

        Args:
            number: the number of the chunk; chunks of a training are counted from 0.
            iteration: the index of the iteration in the chunk.
            part: the index of the record, and of its block of rows, in the iteration.

        Returns:
            The data of the record.

        Raises:
            ProtocolError: the record was used already, or is not the next one.
        """
        chunk = self.chunk(number)
        if (iteration, part) not in ((chunk.next, 0), (chunk.next - 1, chunk.part)):
            raise ProtocolError(
                f"shares: the random numbers of iteration {iteration} in preprocessing chunk {number} were already "
                "used",
                "generate a new chunk",
                code="SVFL-PROTOCOL-REPEATED",
            )
        chunk.next, chunk.part = iteration + 1, part + 1
        if not part:
            self._mark_used(number, iteration)
        return self._read(number, iteration, part, last=True)

    def peek(self, number: int, iteration: int, part: int = 0) -> bytes:
        """Return the data of a record without marking its iteration as used."""
        self.chunk(number)
        return self._read(number, iteration, part)

    def drop(self, number: int) -> None:
        """Delete a chunk of stored material, used or not."""
        self._remove(number)
        with self._lock:
            self._chunks.pop(number, None)

    def close(self) -> None:
        """Release the folder of the store, if it has one."""
        return

    @abstractmethod
    def _write(self, number: int, header: bytes, records: Iterable[Record]) -> None: ...

    @abstractmethod
    def _read(self, number: int, iteration: int, part: int, *, last: bool = False) -> bytes: ...

    def _mark_used(self, number: int, iteration: int) -> None:
        """Record on disk that an iteration is used, if the store is on disk."""
        return

    @abstractmethod
    def _remove(self, number: int) -> None: ...


class MemoryStore(PreprocessingStore):
    """A store in memory. Its records are lost when the process ends."""

    def __init__(self, limit: int = 1 << 30) -> None:
        super().__init__(limit)
        self._records: dict[int, dict[tuple[int, int], bytes]] = {}

    def _write(self, number: int, header: bytes, records: Iterable[Record]) -> None:
        self._records[number] = {(iteration, part): data for iteration, part, data in records}

    def _read(self, number: int, iteration: int, part: int, *, last: bool = False) -> bytes:
        records = self._records[number]
        return records.pop((iteration, part)) if last else records[iteration, part]

    def _remove(self, number: int) -> None:
        self._records.pop(number, None)
