"""What has been made ahead, kept until its visit comes: each visit's record is handed out once.

A mask used twice gives residuals away, so on disk a record is marked spent, and the mark is down, before the record is
in anyone's hands. A process that finds a chunk with a spent mark throws it away, whatever was left of it. Marks are
written for a few visits at a time: a record marked and not used is lost, which costs work and no secrecy.

A folder can be used twice all the same, and three things stand against it. One process at a time has it (a lock). A
chunk counts as long as its file is the one that was written: one that was copied or put back from a backup has another
inode or time of creation, and is thrown away. And its name is spent elsewhere too, at every party (`spent_names`). What
none of these sees is a machine that is put back whole, with all its disks, by every party that has the other masks.

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
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from securevfl.base.files import append_whole, close_to_others, make_private, write_whole, writing_whole
from securevfl.errors import ConfigError, ProtocolError

NAME_BYTES = 16
_AT_ONCE = 16  # records marked spent at a time
_U64 = struct.Struct("<Q")
_BOUND = struct.Struct("<2Q")
_HEAD = struct.Struct(f"<{NAME_BYTES}s{NAME_BYTES}sQQ")
_DIGEST = 16  # bytes
_INDEX = struct.Struct(f"<4Q{_DIGEST}s")

Places = dict[tuple[int, int], tuple[int, int, bytes]]  # start, length and digest by visit and part


@dataclass
class Chunk:
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
        """Keep a chunk of visits of one part each, as `keep` does."""
        self.keep(number, name, first, len(records), ((at, 0, each) for at, each in enumerate(records)), base=base)

    def keep(
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
        room, size = self.room, 0

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

        self._write(number, _HEAD.pack(name, base, first, count), counted())
        with self._lock:
            self._chunks[number] = Chunk(name, base, first, count, size)

    def chunk(self, number: int) -> Chunk:
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


class InMemory(Ready):
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


class OnDisk(Ready):
    """Records in a folder, until `close`. What an earlier process had begun to spend is removed, and what is not the
    file that was written; `untouched` lists the rest.

    ConfigError if another process, or another store of this one, has the folder.
    """

    def __init__(self, folder: Path, limit: int = 1 << 33) -> None:
        super().__init__(limit)
        self._folder = folder
        self._places: dict[int, Places] = {}
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
            (name, base, first, count), _ = _read_head(path)
            number = int(path.stem.removeprefix("chunk-"))
            if not self._is_bound(number):
                self._remove(number)
                continue
            self._chunks[number] = Chunk(name, base, first, count, path.stat().st_size)

    @property
    def untouched(self) -> tuple[int, ...]:
        """Chunks of which nothing is spent."""
        return tuple(sorted(number for number, chunk in self._chunks.items() if chunk.next == 0))

    def _write(self, number: int, head: bytes, records: Iterable[tuple[int, int, bytes]]) -> None:
        made, start = list[bytes](), len(head)
        with writing_whole(self._ready(number)) as file:
            file.write(head)
            for place, part, data in records:
                file.write(data)
                made.append(_INDEX.pack(place, part, start, len(data), _digest(data)))
                start += len(data)
            index = b"".join([*made, _U64.pack(len(made))])
            file.write(index + _digest(head + index))
        write_whole(self._bound(number), _made(self._ready(number)))

    def _spend(self, number: int, place: int) -> None:
        if place % _AT_ONCE == 0:
            write_whole(self._spent(number), _U64.pack(place + _AT_ONCE))

    def _read(self, number: int, place: int, part: int, *, last: bool = False) -> bytes:
        path = self._ready(number)
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


def _read_head(path: Path) -> tuple[tuple[bytes, bytes, int, int], Places]:
    """Read name, base, first visit and count of a chunk, and where its records are. ConfigError if these are not as
    they were written."""
    tail, size = _U64.size + _DIGEST, path.stat().st_size
    if size < _HEAD.size + tail:
        raise _damaged(path)
    with open(path, "rb") as file:
        head = file.read(_HEAD.size)
        file.seek(size - tail)
        end = file.read(tail)
        (count,) = _U64.unpack_from(end)
        if size < _HEAD.size + count * _INDEX.size + tail:
            raise _damaged(path)
        file.seek(size - tail - count * _INDEX.size)
        index = file.read(count * _INDEX.size)
    if _digest(head + index + end[: _U64.size]) != end[_U64.size :]:
        raise _damaged(path)
    places = {
        (place, part): (start, length, digest) for place, part, start, length, digest in _INDEX.iter_unpack(index)
    }
    if size != _HEAD.size + sum(length for _, length, _ in places.values()) + len(index) + tail:
        raise _damaged(path)
    return _HEAD.unpack(head), places


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


# Which chunks of work ahead a party has begun to go through: their names, kept away from the chunks themselves.
#
# A chunk is a folder's, and a folder can be put back from a backup, at one party or at all. Names are spent in a file
# of another place, beside the disclosure ledger: a chunk is begun once for each name, whoever has it again. Every party
# keeps its own, so that one whose folder was put back, and its peers, refuse what they have gone through. A name is a
# digest of nonces that all parties have, and no secret.
#
# A line is a name and a digest of all of the file up to it, in hex, so that a name that is no longer what was written
# is noticed; lines that an earlier version wrote have no digest of their own and are in that of the next. A last line
# that is cut off was never told: its process has ended while it wrote, or the disk was full.
#
# Where folder and names are put back together, as by a snapshot of the whole machine, nothing on the machine can tell.


Digest = Any  # what hashlib makes


class SpentNames:
    """The names in a file, or without a path those of this object.

    StorageError if the file cannot be written, ConfigError if it is damaged.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._names: set[str] = set()

    def holds(self, name: bytes) -> bool:
        """Whether a chunk of this name has been begun."""
        with self._locked() as file:
            self._take_in(file)
        return name.hex() in self._names

    def spend(self, name: bytes) -> None:
        """Note that a chunk is begun, on disk when this returns. ProtocolError if it has been before."""
        with self._locked() as file:
            before, end = self._take_in(file)
            if name.hex() in self._names:
                raise ProtocolError(
                    "shares: a chunk that this party has begun before is spent, its folder was put back or copied; "
                    "make a new chunk"
                )
            if file is not None and self._path is not None:
                os.ftruncate(file, end)  # of what was cut off nothing was told
                append_whole(file, _line(before, name.hex().encode()) + b"\n", self._path)
            self._names.add(name.hex())

    def _take_in(self, file: int | None) -> tuple[Digest, int]:
        """Take in what other processes have added, and return a digest of the whole lines and their length."""
        before, checked = hashlib.sha256(), False
        if file is None:
            return before, 0
        with open(os.dup(file), "rb") as opened:
            opened.seek(0)
            whole = opened.read()
        *lines, last = whole.split(b"\n")
        for line in lines:
            name = line[: 2 * NAME_BYTES]
            if line == _line(before, name):
                checked = True
            elif checked or line != name or len(name) < 2 * NAME_BYTES:  # as an earlier version wrote them
                raise self._damaged()
            self._names.add(name.decode("ascii", "replace"))
            before.update(line + b"\n")
        name = last[: 2 * NAME_BYTES]
        if name.strip(b"0123456789abcdef") or not _line(before, name).startswith(last):
            raise self._damaged()
        return before, len(whole) - len(last)

    def _damaged(self) -> ConfigError:
        return ConfigError(
            f"{self._path}: the names of spent work ahead as they were written were expected, the file is damaged; put "
            "a copy back, or move it away with all work done ahead (--ahead) and make that anew"
        )

    @contextmanager
    def _locked(self) -> Iterator[int | None]:
        """Return the file, open and changed by nobody else meanwhile."""
        if self._path is None:
            yield None
            return
        make_private(self._path.parent)
        file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)  # falls with the process
            yield file
        finally:
            os.close(file)


def _line(before: Digest, name: bytes) -> bytes:
    """Return the line of a name in hex after those that were digested before, without its end."""
    upto = before.copy()
    upto.update(name)
    digest: str = upto.hexdigest()
    return name + b" " + digest[:16].encode()
