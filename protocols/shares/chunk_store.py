"""What has been made ahead, kept until its visit comes: each visit's record is handed out once.

A mask used twice gives residuals away, so on disk a record is marked spent, and the mark is down, before the record is
in anyone's hands. A process that finds a chunk with a spent mark throws it away, whatever was left of it. Marks are
written for a few visits at a time: a record marked and not used is lost, which costs work and no secrecy.

A folder can be used twice all the same, and three things stand against it. One process at a time has it (a lock). A
chunk counts as long as its file is the one that was written: one that was copied or put back from a backup has another
inode or time of creation, and is thrown away. And its name is spent elsewhere too, at every party (`spent_names`). What
none of these sees is a machine that is put back whole, with all its disks, by every party that has the other masks.

Files of a folder (mode 0600 in 0700; a record holds masks, so keep the folder where the party's columns are kept):

    chunk-N.ready   name, base (16 bytes each), first visit, count (u64), offsets (u64 each, count + 1), a digest of
                    each record (16 bytes), a digest of all of this (16), records
    chunk-N.bound   inode and time of creation of chunk-N.ready, in nanoseconds (u64 each)
    chunk-N.spent   how many of its records are spent (u64)
    lock            is locked by the process that has the folder
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import struct
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from securevfl.base.files import close_to_others, write_whole, writing_whole
from securevfl.errors import ConfigError, ProtocolError

__all__ = ["NAME_BYTES", "Chunk", "InMemory", "OnDisk", "Ready"]

NAME_BYTES = 16
_AT_ONCE = 16  # records marked spent at a time
_U64 = struct.Struct("<Q")
_BOUND = struct.Struct("<2Q")
_HEAD = struct.Struct(f"<{NAME_BYTES}s{NAME_BYTES}sQQ")
_DIGEST = 16  # bytes


@dataclass
class Chunk:
    """A chunk of records: its name, the same at all parties that made it together and no other's, a digest of what its
    party had when it was made (`base`), the visit of the training that its first record is for, how many records it
    has, its size in bytes, and the place of the next record.
    """

    name: bytes
    base: bytes
    first: int
    count: int
    size: int
    next: int = 0


class Ready(ABC):
    """A bounded store of records, by chunk and place."""

    def __init__(self, limit: int) -> None:
        """limit: bytes of records that may be kept."""
        self._limit = limit
        self._lock = threading.Lock()  # chunks come and go in two threads
        self._chunks: dict[int, Chunk] = {}

    @property
    def numbers(self) -> tuple[int, ...]:
        """The chunks that are here, spent or not."""
        with self._lock:
            return tuple(sorted(self._chunks))

    @property
    def room(self) -> int:
        """Bytes of records that there is room for."""
        with self._lock:
            return self._limit - sum(chunk.size for chunk in self._chunks.values())

    def put(
        self, number: int, name: bytes, first: int, records: Sequence[bytes], *, base: bytes = bytes(NAME_BYTES)
    ) -> None:
        """Keep a chunk. ConfigError if it goes beyond the limit, ProtocolError if there is one of this number."""
        size = sum(map(len, records))
        if number in self._chunks:
            raise ProtocolError(f"shares: chunk {number} was made twice; number chunks through")
        if size > self.room:
            raise ConfigError(
                f"shares: {size:,} bytes made ahead do not fit in what is left of {self._limit:,}; set "
                "protocol.shares.chunk lower"
            )
        self._write(number, _HEAD.pack(name, base, first, len(records)), records)
        with self._lock:
            self._chunks[number] = Chunk(name, base, first, len(records), size)

    def chunk(self, number: int) -> Chunk:
        """Return what is known of a chunk. ProtocolError if it is not here."""
        if number not in self._chunks:
            raise ProtocolError(f"shares: chunk {number} is spent or not made; make a new chunk")
        return self._chunks[number]

    def take(self, number: int, place: int) -> bytes:
        """Take the record at `place`, in order; it is spent from now on.

        ProtocolError if the record is spent already, or not there.
        """
        chunk = self.chunk(number)
        if place != chunk.next:
            raise ProtocolError(f"shares: visit {place} of chunk {number} is spent; make a new chunk")
        chunk.next += 1
        return self._spend(number, place)

    def peek(self, number: int, place: int) -> bytes:
        """Read the record at `place`, for what has to be known of it before its visit; it stays as it is."""
        self.chunk(number)
        return self._read(number, place)

    def drop(self, number: int) -> None:
        """Forgets a chunk, spent or not."""
        self._remove(number)
        with self._lock:
            self._chunks.pop(number, None)

    def close(self) -> None:
        """Lets go of the folder, where there is one."""
        return

    @abstractmethod
    def _write(self, number: int, head: bytes, records: Sequence[bytes]) -> None: ...

    @abstractmethod
    def _read(self, number: int, place: int) -> bytes: ...

    @abstractmethod
    def _spend(self, number: int, place: int) -> bytes: ...

    @abstractmethod
    def _remove(self, number: int) -> None: ...


class InMemory(Ready):
    """Records of this process, gone with it."""

    def __init__(self, limit: int = 1 << 30) -> None:
        super().__init__(limit)
        self._records: dict[int, list[bytes]] = {}

    def _write(self, number: int, head: bytes, records: Sequence[bytes]) -> None:
        self._records[number] = list(records)

    def _read(self, number: int, place: int) -> bytes:
        return self._records[number][place]

    def _spend(self, number: int, place: int) -> bytes:
        record, self._records[number][place] = self._records[number][place], b""
        return record

    def _remove(self, number: int) -> None:
        self._records.pop(number, None)


class OnDisk(Ready):
    """Records in a folder, until `close`. What an earlier process had begun to spend is removed, and what is not the
    file that was written; `untouched` lists the rest.

    ConfigError if another process, or another store of this one, has the folder.
    """

    def __init__(self, folder: Path, limit: int = 1 << 33) -> None:
        super().__init__(limit)
        self._folder = folder
        self._let_go = weakref.finalize(self, os.close, _locked(folder))
        try:
            self._take_in()
        except BaseException:
            self.close()
            raise

    def _take_in(self) -> None:
        """Find what is there, and remove what cannot be gone on with."""
        for path in sorted(self._folder.glob("chunk-*.spent")):
            self._remove(int(path.stem.removeprefix("chunk-")))
        for path in sorted(self._folder.glob("chunk-*.ready")):
            name, base, first, count = _head(path)
            number = int(path.stem.removeprefix("chunk-"))
            if not self._is_bound(number):
                self._remove(number)
                continue
            self._chunks[number] = Chunk(name, base, first, count, path.stat().st_size)

    @property
    def untouched(self) -> tuple[int, ...]:
        """Chunks of which nothing is spent."""
        return tuple(sorted(number for number, chunk in self._chunks.items() if chunk.next == 0))

    def _write(self, number: int, head: bytes, records: Sequence[bytes]) -> None:
        offsets = [_HEAD.size + _table_bytes(len(records))]
        for record in records:
            offsets.append(offsets[-1] + len(record))
        table = b"".join([*map(_U64.pack, offsets), *map(_digest, records)])
        with writing_whole(self._ready(number)) as file:
            file.write(head + table + _digest(head + table))
            file.writelines(records)
        write_whole(self._bound(number), _made(self._ready(number)))

    def _spend(self, number: int, place: int) -> bytes:
        if place % _AT_ONCE == 0:
            write_whole(self._spent(number), _U64.pack(place + _AT_ONCE))
        return self._read(number, place)

    def _read(self, number: int, place: int) -> bytes:
        count = self.chunk(number).count
        with open(self._ready(number), "rb") as file:
            file.seek(_HEAD.size + _U64.size * place)
            start, stop = struct.unpack("<2Q", file.read(2 * _U64.size))
            file.seek(_HEAD.size + _U64.size * (count + 1) + _DIGEST * place)
            digest = file.read(_DIGEST)
            file.seek(start)
            record = file.read(stop - start)
        if _digest(record) != digest:
            raise _damaged(self._ready(number))
        return record

    def _remove(self, number: int) -> None:
        self._ready(number).unlink(missing_ok=True)  # first: a mark without records does no harm
        self._bound(number).unlink(missing_ok=True)
        self._spent(number).unlink(missing_ok=True)

    def _ready(self, number: int) -> Path:
        return self._folder / f"chunk-{number}.ready"

    def _spent(self, number: int) -> Path:
        return self._folder / f"chunk-{number}.spent"

    def _bound(self, number: int) -> Path:
        return self._folder / f"chunk-{number}.bound"

    def _is_bound(self, number: int) -> bool:
        """Whether the file of a chunk is the one that was written."""
        bound = self._bound(number)
        return bound.exists() and bound.read_bytes() == _made(self._ready(number))

    def close(self) -> None:
        self._let_go()


def _head(path: Path) -> tuple[bytes, bytes, int, int]:
    """Read name, base, first visit and count of a chunk. ConfigError if they, or the table of its records, are not as
    they were written."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        head = file.read(_HEAD.size)
        if len(head) < _HEAD.size:
            raise _damaged(path)
        name, base, first, count = _HEAD.unpack(head)
        rest = file.read(_table_bytes(count)) if _table_bytes(count) <= size else b""
    table, digest = rest[:-_DIGEST], rest[-_DIGEST:]
    if not rest or _digest(head + table) != digest or _U64.unpack_from(table, _U64.size * count)[0] != size:
        raise _damaged(path)
    return name, base, first, count


def _table_bytes(count: int) -> int:
    """Return how long the table of so many records is, with its digest."""
    return _U64.size * (count + 1) + _DIGEST * (count + 1)


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()[:_DIGEST]


def _damaged(path: Path) -> ConfigError:
    return ConfigError(f"{path}: work done ahead was expected there, the file is damaged; remove it")


def _locked(folder: Path) -> int:
    """Return the lock of a folder, which falls with the process. ConfigError if it is held already."""
    close_to_others(folder)
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise ConfigError(
            f"{folder}: work done ahead that nobody else uses was expected, another process has it; wait until that "
            "has ended, or name another folder (--ahead)"
        ) from None
    return lock


def _made(path: Path) -> bytes:
    """Return what tells a file from a copy of it: its inode, and when it came to be, as nothing changes it later."""
    found = path.stat()
    return _BOUND.pack(found.st_ino, found.st_ctime_ns)
