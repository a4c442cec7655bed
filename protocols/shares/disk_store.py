"""A store on disk for the random numbers that a training on shares has computed in advance; it returns each just once.

A chunk is the material (random masks and products with them) for a number of iterations, which the parties computed
together. Each chunk is one file. A record is the material for one block of rows in one iteration. If a mask were used
twice, it would reveal residuals. The store therefore writes to disk that an iteration is used before it returns the
iteration's first record. It does this for 16 iterations at a time. A process that opens a folder discards every chunk
that an earlier process has begun to use. That costs recomputation, not security.

Three measures prevent that a folder is used twice. A lock lets only one process at a time use it. A copied or restored
file of a chunk is discarded, because its inode or ctime differs from those of the file that was written. And every
party also stores the names of used chunks in another file (`spent_chunks`). If a whole machine is restored with all of
its disks, at all parties that have the masks, these measures do not detect it.

The folder contains these files, which only their owner can read. Records contain masks, so the folder must be protected
like the party's columns:

    chunk-N.ready   a header: name and base (16 bytes each), first iteration and number of iterations (u64 each);
                    the records; an index, with iteration, block, start, length (u64 each) and digest (16 bytes) of each
                    record; the number of records (u64), and a digest of header and index (16 bytes)
    chunk-N.bound   inode and ctime in nanoseconds (u64 each) of chunk-N.ready
    chunk-N.spent   the number of iterations that are marked as used (u64)
    lock            locked by the process that uses the folder
"""

from __future__ import annotations

import hashlib
import os
import struct
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from securevfl.base.files import atomic_writer, restrict_to_owner, write_atomic
from securevfl.base.platform_files import lock_exclusive
from securevfl.errors import ConfigError
from securevfl.protocols.shares.preprocessing_store import (
    CHUNK_HEADER,
    PreprocessingChunk,
    PreprocessingStore,
    Record,
)

MAX_STORED_BYTES = 1 << 33
_MARKED_ITERATIONS = 16  # number of iterations that one write to disk marks as used
_U64 = struct.Struct("<Q")
_IDENTITY = struct.Struct("<2Q")
_DIGEST_BYTES = 16
_INDEX_ENTRY = struct.Struct(f"<4Q{_DIGEST_BYTES}s")

RecordIndex = dict[tuple[int, int], tuple[int, int, bytes]]
"""Start, length and digest of each record in a file, by its iteration and part."""


class DiskStore(PreprocessingStore):
    """A store in a folder, which this process locks until `close`.

    The constructor removes chunks that an earlier process has begun to use, and files that were copied or restored.

    Args:
        folder: the folder of the store; it is created if it does not exist.
        limit: the maximum number of bytes of all records together.

    Raises:
        ConfigError: another process or store uses the folder, or a file is damaged.
    """

    on_disk = True

    def __init__(self, folder: Path, limit: int = MAX_STORED_BYTES) -> None:
        super().__init__(limit)
        self._folder = folder
        self._indices: dict[int, RecordIndex] = {}
        self._unlock = weakref.finalize(self, os.close, _lock_folder(folder))
        try:
            self._load()
        except BaseException:
            self.close()
            raise

    def _load(self) -> None:
        """Read the descriptions of the stored chunks, and remove chunks that must not be used."""
        for path in sorted(self._folder.glob("chunk-*.spent")):
            self._remove(int(path.stem.removeprefix("chunk-")))
        for path in sorted(self._folder.glob("chunk-*.ready")):
            (name, base, first, count), _ = _read_index(path)
            number = int(path.stem.removeprefix("chunk-"))
            if not self._is_original(number):
                self._remove(number)
                continue
            self._chunks[number] = PreprocessingChunk(name, base, first, count, path.stat().st_size)

    @property
    def unused_chunks(self) -> tuple[int, ...]:
        """The numbers of those chunks whose records are all unused."""
        return tuple(sorted(number for number, chunk in self._chunks.items() if chunk.next == 0))

    def _write(self, number: int, header: bytes, records: Iterable[Record]) -> None:
        entries, start = list[bytes](), len(header)
        with atomic_writer(self._path(number, "ready")) as file:
            file.write(header)
            for iteration, part, data in records:
                file.write(data)
                entries.append(_INDEX_ENTRY.pack(iteration, part, start, len(data), _digest(data)))
                start += len(data)
            index = b"".join([*entries, _U64.pack(len(entries))])
            file.write(index + _digest(header + index))
        write_atomic(self._path(number, "bound"), file_identity(self._path(number, "ready")))

    def _mark_used(self, number: int, iteration: int) -> None:
        if iteration % _MARKED_ITERATIONS == 0:
            write_atomic(self._path(number, "spent"), _U64.pack(iteration + _MARKED_ITERATIONS))

    def _read(self, number: int, iteration: int, part: int, *, last: bool = False) -> bytes:
        path = self._path(number, "ready")
        if number not in self._indices:
            self._indices[number] = _read_index(path)[1]
        start, size, digest = self._indices[number][iteration, part]
        with open(path, "rb") as file:
            file.seek(start)
            record = file.read(size)
        if _digest(record) != digest:
            raise _damaged(path)
        return record

    def _remove(self, number: int) -> None:
        self._indices.pop(number, None)
        # in this order, so that an interruption never leaves records without their marks in .spent
        for kind in ("ready", "bound", "spent"):
            self._path(number, kind).unlink(missing_ok=True)

    def _path(self, number: int, kind: Literal["ready", "spent", "bound"]) -> Path:
        return self._folder / f"chunk-{number}.{kind}"

    def _is_original(self, number: int) -> bool:
        """Return whether the file of a chunk is the one that the store wrote, and not a copy."""
        bound = self._path(number, "bound")
        return bound.exists() and bound.read_bytes() == file_identity(self._path(number, "ready"))

    def close(self) -> None:
        """Release the lock of the folder, so that another process may use it."""
        self._unlock()


def _read_index(path: Path) -> tuple[tuple[bytes, bytes, int, int], RecordIndex]:
    """Return the header and the index of a chunk's file.

    Args:
        path: the file of a chunk, chunk-N.ready.

    Returns:
        The header (name, base, first iteration, number of iterations), and the index.

    Raises:
        ConfigError: the file is damaged.
    """
    tail, size = _U64.size + _DIGEST_BYTES, path.stat().st_size
    if size < CHUNK_HEADER.size + tail:
        raise _damaged(path)
    with open(path, "rb") as file:
        header = file.read(CHUNK_HEADER.size)
        file.seek(size - tail)
        end = file.read(tail)
        (count,) = _U64.unpack_from(end)
        if size < CHUNK_HEADER.size + count * _INDEX_ENTRY.size + tail:
            raise _damaged(path)
        file.seek(size - tail - count * _INDEX_ENTRY.size)
        index = file.read(count * _INDEX_ENTRY.size)
    if _digest(header + index + end[: _U64.size]) != end[_U64.size :]:
        raise _damaged(path)
    entries = {
        (iteration, part): (start, length, digest)
        for iteration, part, start, length, digest in _INDEX_ENTRY.iter_unpack(index)
    }
    if size != CHUNK_HEADER.size + sum(length for _, length, _ in entries.values()) + len(index) + tail:
        raise _damaged(path)
    return CHUNK_HEADER.unpack(header), entries


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()[:_DIGEST_BYTES]


def _damaged(path: Path) -> ConfigError:
    return ConfigError(
        f"the preprocessing file {path} is damaged",
        "remove it; it is generated again",
        code="SVFL-FILE-DAMAGED",
        path=str(path),
    )


def check_unlocked(folder: Path) -> None:
    """Raise ConfigError if another process uses a preprocessing folder; a missing folder is not an error."""
    if folder.exists():
        os.close(_lock_folder(folder))


def _lock_folder(folder: Path) -> int:
    """Lock a folder, and return the file descriptor of the lock. The lock ends with the process at the latest.

    Args:
        folder: the folder with the files of the preprocessed chunks.

    Returns:
        The file descriptor.

    Raises:
        ConfigError: another process uses the folder.
    """
    restrict_to_owner(folder)
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        lock_exclusive(lock, wait=False)
    except OSError:
        os.close(lock)
        raise ConfigError(
            f"another process uses the preprocessing folder {folder}",
            "wait until that process has finished, or name another folder (--ahead)",
            code="SVFL-FILE-IN-USE",
            path=str(folder),
        ) from None
    return lock


def file_identity(path: Path) -> bytes:
    """Return inode and ctime of a file as bytes; a copy of the file has other ones."""
    status = path.stat()
    return _IDENTITY.pack(status.st_ino, status.st_ctime_ns)
