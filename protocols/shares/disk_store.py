"""What has been made ahead, kept on disk until its visit comes: each visit's record is handed out once.

A mask used twice gives residuals away, so on disk a record is marked spent, and the mark is down, before the record
is in anyone's hands. A process that finds a chunk with a spent mark throws it away, whatever was left of it. Marks
are written for a few visits at a time: a record marked and not used is lost, which costs work and no secrecy.

A folder can be used twice all the same, and three things stand against it. One process at a time has it (a lock). A
chunk counts as long as its file is the one that was written: one that was copied or put back from a backup has
another inode or time of creation, and is thrown away. And its name is spent elsewhere too, at every party
(`spent_names`). What none of these sees is a machine that is put back whole, with all its disks, by every party that
has the other masks.

Files of a folder (mode 0600 in 0700; a record holds masks, so keep the folder where the party's columns are kept):

    chunk-N.ready   name, base (16 bytes each), first visit, count (u64), records as they were made, and at the end an
                    index: visit, part, start, length (u64 each) and a digest (16 bytes) of each; how many there are
                    (u64), and a digest of head and index (16)
    chunk-N.bound   inode and time of creation of chunk-N.ready, in nanoseconds (u64 each)
    chunk-N.spent   how many of its records are spent (u64)
    lock            is locked by the process that has the folder
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import struct
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from securevfl.base.files import atomic_writer, restrict_to_owner, write_atomic
from securevfl.errors import ConfigError
from securevfl.protocols.shares.preprocessing_store import CHUNK_HEADER, PreprocessingChunk, PreprocessingStore

_MARK_BATCH = 16  # records marked spent at a time

_U64 = struct.Struct("<Q")

_BOUND = struct.Struct("<2Q")

_DIGEST = 16  # bytes

_INDEX = struct.Struct(f"<4Q{_DIGEST}s")

RecordIndex = dict[tuple[int, int], tuple[int, int, bytes]]  # start, length and digest by visit and part


class DiskStore(PreprocessingStore):
    """Records in a folder, until `close`. What an earlier process had begun to spend is removed, and what is not the
    file that was written; `untouched` lists the rest.

    ConfigError if another process, or another store of this one, has the folder.
    """

    def __init__(self, folder: Path, limit: int = 1 << 33) -> None:
        super().__init__(limit)
        self._folder = folder
        self._places: dict[int, RecordIndex] = {}
        self._let_go = weakref.finalize(self, os.close, lock_folder(folder))
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
            (name, base, first, count), _ = _read_head(path)
            number = int(path.stem.removeprefix("chunk-"))
            if not self._is_bound(number):
                self._remove(number)
                continue
            self._chunks[number] = PreprocessingChunk(name, base, first, count, path.stat().st_size)

    @property
    def unused_chunks(self) -> tuple[int, ...]:
        """Chunks of which nothing is spent."""
        return tuple(sorted(number for number, chunk in self._chunks.items() if chunk.next == 0))

    def _write(self, number: int, head: bytes, records: Iterable[tuple[int, int, bytes]]) -> None:
        made, start = list[bytes](), len(head)
        with atomic_writer(self._path(number, "ready")) as file:
            file.write(head)
            for place, part, data in records:
                file.write(data)
                made.append(_INDEX.pack(place, part, start, len(data), _digest(data)))
                start += len(data)
            index = b"".join([*made, _U64.pack(len(made))])
            file.write(index + _digest(head + index))
        write_atomic(self._path(number, "bound"), file_identity(self._path(number, "ready")))

    def _spend(self, number: int, place: int) -> None:
        if place % _MARK_BATCH == 0:
            write_atomic(self._path(number, "spent"), _U64.pack(place + _MARK_BATCH))

    def _read(self, number: int, place: int, part: int, *, last: bool = False) -> bytes:
        path = self._path(number, "ready")
        if number not in self._places:
            self._places[number] = _read_head(path)[1]
        start, size, digest = self._places[number][place, part]
        with open(path, "rb") as file:
            file.seek(start)
            record = file.read(size)
        if _digest(record) != digest:
            raise _damaged(path)
        return record

    def _remove(self, number: int) -> None:
        self._places.pop(number, None)
        for kind in ("ready", "bound", "spent"):  # records first: a mark without them does no harm
            self._path(number, kind).unlink(missing_ok=True)

    def _path(self, number: int, kind: Literal["ready", "spent", "bound"]) -> Path:
        return self._folder / f"chunk-{number}.{kind}"

    def _is_bound(self, number: int) -> bool:
        """Whether the file of a chunk is the one that was written."""
        bound = self._path(number, "bound")
        return bound.exists() and bound.read_bytes() == file_identity(self._path(number, "ready"))

    def close(self) -> None:
        self._let_go()


def _read_head(path: Path) -> tuple[tuple[bytes, bytes, int, int], RecordIndex]:
    """Read name, base, first visit and count of a chunk, and where its records are. ConfigError if these are not as
    they were written."""
    tail, size = _U64.size + _DIGEST, path.stat().st_size
    if size < CHUNK_HEADER.size + tail:
        raise _damaged(path)
    with open(path, "rb") as file:
        head = file.read(CHUNK_HEADER.size)
        file.seek(size - tail)
        end = file.read(tail)
        (count,) = _U64.unpack_from(end)
        if size < CHUNK_HEADER.size + count * _INDEX.size + tail:
            raise _damaged(path)
        file.seek(size - tail - count * _INDEX.size)
        index = file.read(count * _INDEX.size)
    if _digest(head + index + end[: _U64.size]) != end[_U64.size :]:
        raise _damaged(path)
    places = {
        (place, part): (start, length, digest) for place, part, start, length, digest in _INDEX.iter_unpack(index)
    }
    if size != CHUNK_HEADER.size + sum(length for _, length, _ in places.values()) + len(index) + tail:
        raise _damaged(path)
    return CHUNK_HEADER.unpack(head), places


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()[:_DIGEST]


def _damaged(path: Path) -> ConfigError:
    return ConfigError(f"{path}: work done ahead was expected there, the file is damaged; remove it")


def lock_folder(folder: Path) -> int:
    """Return the lock of a folder, which falls with the process. ConfigError if it is held already."""
    restrict_to_owner(folder)
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


def file_identity(path: Path) -> bytes:
    """Return what tells a file from a copy of it: its inode, and when it came to be, as nothing changes it later."""
    found = path.stat()
    return _BOUND.pack(found.st_ino, found.st_ctime_ns)
