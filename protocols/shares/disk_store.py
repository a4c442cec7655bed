"""A store of preprocessed records on disk: each record is handed out once, even across processes.

A mask that is used twice reveals residuals. On disk, a record is therefore marked as used, and the mark is flushed,
before the record is handed out. A process that finds a chunk with such a mark discards the whole chunk. Records are
marked in batches of 16. If the process dies, records that were marked but not used are discarded; that costs
recomputation, not security.

Three measures prevent that a folder is used twice. Only one process at a time uses it (a lock). A chunk is valid only
as long as its file is the one that was written: a copied or restored file has another inode or ctime, and is discarded.
And every party records the names of used chunks elsewhere (`spent_chunks`). These measures do not detect that a whole
machine is restored, with all of its disks, by every party that has the other masks.

Files of a folder. They are readable by the owner only. A record contains masks, so store the folder where the party's
columns are stored:

    chunk-N.ready   name, base (16 bytes each), first iteration, count (u64); the records; and an index at the end:
                    iteration, part, start, length (u64 each) and a digest (16 bytes) for each record; the number of
                    records (u64); a digest of header and index (16)
    chunk-N.bound   inode and ctime of chunk-N.ready, in nanoseconds (u64 each)
    chunk-N.spent   the number of used iterations (u64)
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

_MARKED_ITERATIONS = 16  # iterations that one mark covers
_U64 = struct.Struct("<Q")
_IDENTITY = struct.Struct("<2Q")
_DIGEST_BYTES = 16
_INDEX_ENTRY = struct.Struct(f"<4Q{_DIGEST_BYTES}s")

RecordIndex = dict[tuple[int, int], tuple[int, int, bytes]]
"""Start, length and digest of each record, by iteration and part."""


class DiskStore(PreprocessingStore):
    """Records in a folder, until `close`.

    Chunks that an earlier process has begun to use, and files that are not the ones that were written, are removed.

    Args:
        folder: the folder.
        limit: the maximum number of bytes of all records.

    Raises:
        ConfigError: another process or store uses the folder, or a file is damaged.
    """

    def __init__(self, folder: Path, limit: int = 1 << 33) -> None:
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
        """Read the chunks of the folder, and remove those that must not be used."""
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
        """The numbers of the chunks without a used record."""
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
        for kind in ("ready", "bound", "spent"):  # records first: a mark without records does no harm
            self._path(number, kind).unlink(missing_ok=True)

    def _path(self, number: int, kind: Literal["ready", "spent", "bound"]) -> Path:
        return self._folder / f"chunk-{number}.{kind}"

    def _is_original(self, number: int) -> bool:
        """Return whether the file of a chunk is the one that was written."""
        bound = self._path(number, "bound")
        return bound.exists() and bound.read_bytes() == file_identity(self._path(number, "ready"))

    def close(self) -> None:
        """Release the folder."""
        self._unlock()


def _read_index(path: Path) -> tuple[tuple[bytes, bytes, int, int], RecordIndex]:
    """Return header and index of a chunk's file.

    Args:
        path: the file.

    Returns:
        Name, base, first iteration and count; and the index.

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


def _lock_folder(folder: Path) -> int:
    """Return the file descriptor of the folder's lock, which the operating system releases with the process.

    Args:
        folder: the preprocessing folder.

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
    """Return the inode and ctime of the file, which distinguish it from a copy."""
    status = path.stat()
    return _IDENTITY.pack(status.st_ino, status.st_ctime_ns)
