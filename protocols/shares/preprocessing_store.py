"""Stores of preprocessed records: each record is handed out once.

A chunk has one record for each part of each iteration. Records of an iteration are taken in order, and taking the first
one marks the iteration as used, because a mask that is used twice reveals residuals.
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
"""Name, base, first iteration and number of iterations of a chunk."""

Record = tuple[int, int, bytes]
"""Index of an iteration in its chunk, index of the part, and the data."""


@dataclass
class PreprocessingChunk:
    """A chunk of stored records.

    Attributes:
        name: the name of the chunk, the same at all parties that generated it together, and unique.
        base: a digest of the state from which the party generated the chunk.
        first: the iteration of the training that the first record belongs to.
        count: the number of iterations.
        size: the number of bytes.
        next: the index of the next iteration.
        part: the index of the next part of the iteration before.
    """

    name: bytes
    base: bytes
    first: int
    count: int
    size: int
    next: int = 0
    part: int = 0


class PreprocessingStore(ABC):
    """A bounded store of records, by chunk, iteration and part.

    Args:
        limit: the maximum number of bytes of all records.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()  # one thread adds chunks while another one removes them
        self._chunks: dict[int, PreprocessingChunk] = {}

    @property
    def chunk_numbers(self) -> tuple[int, ...]:
        """The numbers of the stored chunks, used or not."""
        with self._lock:
            return tuple(sorted(self._chunks))

    @property
    def free_bytes(self) -> int:
        """The number of bytes that may be added."""
        with self._lock:
            return self._limit - sum(chunk.size for chunk in self._chunks.values())

    def put(
        self, number: int, name: bytes, first: int, records: Sequence[bytes], *, base: bytes = bytes(NAME_BYTES)
    ) -> None:
        """Store a chunk whose iterations have one part each; see `write`."""
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
            number: the number of the chunk.
            name: the name of the chunk.
            first: the iteration of the training that the chunk begins with.
            count: the number of iterations.
            records: the records, in any order.
            base: a digest of the state from which the chunk was generated.

        Raises:
            ConfigError: the records exceed the limit of the store.
            ProtocolError: there is a chunk with this number.
        """
        if number in self._chunks:
            raise ProtocolError(
                f"shares: preprocessing chunk {number} was generated twice",
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
                        f"shares: preprocessing exceeds {available:,} bytes, which remain of {self._limit:,}",
                        "reduce protocol.shares.chunk",
                        code="SVFL-JOB-TOO-LARGE",
                        bytes=available,
                    )
                yield record

        self._write(number, CHUNK_HEADER.pack(name, base, first, count), counted())
        with self._lock:
            self._chunks[number] = PreprocessingChunk(name, base, first, count, size)

    def chunk(self, number: int) -> PreprocessingChunk:
        """Return the description of a chunk.

        Args:
            number: number of the chunk.

        Returns:
            The description of the chunk.

        Raises:
            ProtocolError: the chunk is not stored.
        """
        if number not in self._chunks:
            raise ProtocolError(
                f"shares: preprocessing chunk {number} was used, or was never generated",
                "generate a new chunk",
                code="SVFL-PROTOCOL-REPEATED",
            )
        return self._chunks[number]

    def take(self, number: int, iteration: int, part: int = 0) -> bytes:
        """Return a record and mark it as used.

        Records are taken in order. Taking the first part of an iteration marks the whole iteration as used.

        Args:
            number: the number of the chunk.
            iteration: the index of the iteration in the chunk.
            part: the index of the part.

        Returns:
            The record.

        Raises:
            ProtocolError: the record was used already, or is not the next one.
        """
        chunk = self.chunk(number)
        if (iteration, part) not in ((chunk.next, 0), (chunk.next - 1, chunk.part)):
            raise ProtocolError(
                f"shares: iteration {iteration} of preprocessing chunk {number} was used already",
                "generate a new chunk",
                code="SVFL-PROTOCOL-REPEATED",
            )
        chunk.next, chunk.part = iteration + 1, part + 1
        if not part:
            self._mark_used(number, iteration)
        return self._read(number, iteration, part, last=True)

    def peek(self, number: int, iteration: int, part: int = 0) -> bytes:
        """Return a record without marking it as used."""
        self.chunk(number)
        return self._read(number, iteration, part)

    def drop(self, number: int) -> None:
        """Remove a chunk, used or not."""
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
        """Mark an iteration as used, if the mark has to outlive the process."""
        return

    @abstractmethod
    def _remove(self, number: int) -> None: ...


class MemoryStore(PreprocessingStore):
    """Records in memory, which are lost when the process ends."""

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
