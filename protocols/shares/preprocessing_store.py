"""Stores of preprocessing: each record is handed out once."""

from __future__ import annotations

import struct
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from securevfl.errors import ConfigError, ProtocolError

NAME_BYTES = 16

CHUNK_HEADER = struct.Struct(f"<{NAME_BYTES}s{NAME_BYTES}sQQ")


@dataclass
class PreprocessingChunk:
    """A chunk of records: its name, the same at all parties that made it together and no other's, a digest of what its
    party had when it was made (`base`), the visit of the training that its first record is for, for how many visits it
    has records, its size in bytes, and the place of the next visit and of the next part of the one before it.
    """

    name: bytes
    base: bytes
    first: int
    count: int
    size: int
    next: int = 0
    part: int = 0


class PreprocessingStore(ABC):
    """A bounded store of records, by chunk and place."""

    def __init__(self, limit: int) -> None:
        """limit: bytes of records that may be kept."""
        self._limit = limit
        self._lock = threading.Lock()  # chunks come and go in two threads
        self._chunks: dict[int, PreprocessingChunk] = {}

    @property
    def chunk_numbers(self) -> tuple[int, ...]:
        """The chunks that are here, spent or not."""
        with self._lock:
            return tuple(sorted(self._chunks))

    @property
    def free_bytes(self) -> int:
        """Bytes of records that there is room for."""
        with self._lock:
            return self._limit - sum(chunk.size for chunk in self._chunks.values())

    def put(
        self, number: int, name: bytes, first: int, records: Sequence[bytes], *, base: bytes = bytes(NAME_BYTES)
    ) -> None:
        """Keep a chunk of visits of one part each, as `keep` does."""
        self.write(number, name, first, len(records), ((at, 0, each) for at, each in enumerate(records)), base=base)

    def write(
        self,
        number: int,
        name: bytes,
        first: int,
        count: int,
        records: Iterable[tuple[int, int, bytes]],
        *,
        base: bytes = bytes(NAME_BYTES),
    ) -> None:
        """Keep a chunk for so many visits, of records that come in any order, each with its visit's place and its part.

        ConfigError if it goes beyond the limit, ProtocolError if there is one of this number.
        """
        if number in self._chunks:
            raise ProtocolError(f"shares: chunk {number} was made twice; number chunks through")
        room, size = self.free_bytes, 0

        def counted() -> Iterator[tuple[int, int, bytes]]:
            nonlocal size
            for record in records:
                size += len(record[2])
                if size > room:
                    raise ConfigError(
                        f"shares: more than {room:,} bytes were made ahead, which is what is left of {self._limit:,}; "
                        "set protocol.shares.chunk lower"
                    )
                yield record

        self._write(number, CHUNK_HEADER.pack(name, base, first, count), counted())
        with self._lock:
            self._chunks[number] = PreprocessingChunk(name, base, first, count, size)

    def chunk(self, number: int) -> PreprocessingChunk:
        """Return what is known of a chunk. ProtocolError if it is not here."""
        if number not in self._chunks:
            raise ProtocolError(f"shares: chunk {number} is spent or not made; make a new chunk")
        return self._chunks[number]

    def take(self, number: int, place: int, part: int = 0) -> bytes:
        """Take a part of the record at `place`, in order; with its first part the visit is spent from now on.

        ProtocolError if that part is spent already, or not there.
        """
        chunk = self.chunk(number)
        if (place, part) not in ((chunk.next, 0), (chunk.next - 1, chunk.part)):
            raise ProtocolError(f"shares: visit {place} of chunk {number} is spent; make a new chunk")
        chunk.next, chunk.part = place + 1, part + 1
        if not part:
            self._spend(number, place)
        return self._read(number, place, part, last=True)

    def peek(self, number: int, place: int, part: int = 0) -> bytes:
        """Read a part of the record at `place`, for what has to be known of it before its visit; it stays as it is."""
        self.chunk(number)
        return self._read(number, place, part)

    def drop(self, number: int) -> None:
        """Forgets a chunk, spent or not."""
        self._remove(number)
        with self._lock:
            self._chunks.pop(number, None)

    def close(self) -> None:
        """Lets go of the folder, where there is one."""
        return

    @abstractmethod
    def _write(self, number: int, head: bytes, records: Iterable[tuple[int, int, bytes]]) -> None: ...

    @abstractmethod
    def _read(self, number: int, place: int, part: int, *, last: bool = False) -> bytes: ...

    def _spend(self, number: int, place: int) -> None:
        """Mark a visit spent, where that outlives the process."""
        return

    @abstractmethod
    def _remove(self, number: int) -> None: ...


class MemoryStore(PreprocessingStore):
    """Records of this process, gone with it."""

    def __init__(self, limit: int = 1 << 30) -> None:
        super().__init__(limit)
        self._records: dict[int, dict[tuple[int, int], bytes]] = {}

    def _write(self, number: int, head: bytes, records: Iterable[tuple[int, int, bytes]]) -> None:
        self._records[number] = {(place, part): data for place, part, data in records}

    def _read(self, number: int, place: int, part: int, *, last: bool = False) -> bytes:
        return self._records[number].pop((place, part)) if last else self._records[number][place, part]

    def _remove(self, number: int) -> None:
        self._records.pop(number, None)
