"""Work ahead of a training on shares: every product of a chunk of visits, and its transfers, before the first visit.

The *holders* are A, who has the labels (active), and B, its partner; every party k has columns. theta_k is shared:
s_k is at party k, r_kh at each holder h other than k, theta_k = s_k + sum_h r_kh. The residual of a visit is
g = psi_A + psi_B + delta: psi_h is a fresh keystream of holder h, delta is what B tells in the visit. A product of
W_k^T psi_h leaves a share v_kh at h. So r and psi are functions of masks alone, known to whom they belong before any
visit: every product is of a random vector (as in the offline phase of Delphi, Mishra et al. 2020). Visits of one batch
share its plaintexts: a batch that comes E times in a chunk is one product with E c outputs. For each chunk, k != h:

0. h -> k   the holder's public keys, new for the chunk, one for steps and one for sums
1. h <-> k  products W_k^T psi_h of all visits (share_products.py)    => shares at k, v_kh at h
2. h        r_kh before each visit: a fixed rule of the v_kh of the visits before (share_numbers.py)
3. h <-> k  products X_k r_kh before each visit                        => shares at k and at h
4. A, B     transfers for every row of every visit (table_transfers.py)

Rows come in blocks of `BLOCK`, a public size, and products, transfers and records are of a block: what is in memory
does not grow with the batch. Sums over blocks are exact modulo 2^L, so for the same
masks the weights are those of a batch in one piece, but for the products' unit rounding.

Two round trips a chunk and group of blocks. All that is received is a ciphertext under another's key or uniform, so all
learn sizes: n, d, c, the visits and L.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import struct
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from securevfl.base.files import append_whole, close_to_others, make_private, write_whole, writing_whole
from securevfl.crypto.batch_cache import Shelf
from securevfl.crypto.prg import Prg
from securevfl.crypto.share_ring import Integers, ShareRing, Words
from securevfl.crypto.share_scheme import ShareHolder, ShareScheme
from securevfl.errors import ConfigError, FrameError, ProtocolError
from securevfl.protocols.declared import Declared, Reveal
from securevfl.protocols.seat import Seat
from securevfl.protocols.shares import share_products, table_transfers
from securevfl.protocols.shares.share_numbers import LinearRule, Numbers
from securevfl.protocols.shares.share_products import Elsewhere, Evaluators, Work
from securevfl.protocols.shares.table_transfers import BaseTransfers, Met
from securevfl.runtime import eventlog
from securevfl.runtime.codec import Message

# What has been made ahead, kept until its visit comes: each visit's record is handed out once.
#
# A mask used twice gives residuals away, so on disk a record is marked spent, and the mark is down, before the record
# is in anyone's hands. A process that finds a chunk with a spent mark throws it away, whatever was left of it. Marks
# are written for a few visits at a time: a record marked and not used is lost, which costs work and no secrecy.
#
# A folder can be used twice all the same, and three things stand against it. One process at a time has it (a lock). A
# chunk counts as long as its file is the one that was written: one that was copied or put back from a backup has
# another inode or time of creation, and is thrown away. And its name is spent elsewhere too, at every party
# (`spent_names`). What none of these sees is a machine that is put back whole, with all its disks, by every party that
# has the other masks.
#
# Files of a folder (mode 0600 in 0700; a record holds masks, so keep the folder where the party's columns are kept):
#
#     chunk-N.ready   name, base (16 bytes each), first visit, count (u64), records as they were made, and at the end an
#                     index: visit, part, start, length (u64 each) and a digest (16 bytes) of each; how many there are
#                     (u64), and a digest of head and index (16)
#     chunk-N.bound   inode and time of creation of chunk-N.ready, in nanoseconds (u64 each)
#     chunk-N.spent   how many of its records are spent (u64)
#     lock            is locked by the process that has the folder


NAME_BYTES = 16
_MARKED = 16  # records marked spent at a time
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
        with writing_whole(self._path(number, "ready")) as file:
            file.write(head)
            for place, part, data in records:
                file.write(data)
                made.append(_INDEX.pack(place, part, start, len(data), _digest(data)))
                start += len(data)
            index = b"".join([*made, _U64.pack(len(made))])
            file.write(index + _digest(head + index))
        write_whole(self._path(number, "bound"), _made(self._path(number, "ready")))

    def _spend(self, number: int, place: int) -> None:
        if place % _MARKED == 0:
            write_whole(self._path(number, "spent"), _U64.pack(place + _MARKED))

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
        return bound.exists() and bound.read_bytes() == _made(self._path(number, "ready"))

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


# What is made ahead, and how.


BLOCK = 1 << 14  # rows
_AT_ONCE = 1 << 19  # values of psi whose products are on their way at a time


class RowBlock(NamedTuple):
    """A block of a batch: some of its rows, of which `start` is the first."""

    batch: int
    start: int
    stop: int

    @property
    def rows(self) -> int:
        """The number of rows of this block."""
        return self.stop - self.start


Factors = Callable[[RowBlock], tuple[Integers, Integers] | tuple[Elsewhere, Elsewhere]]  # X and W (n x d) of a block
ByBatch = dict[int, Words]
ByPiece = dict[int, Words]  # by the number of the block in `Terms.pieces`


def declares() -> list[Declared]:
    """Declare what the messages reveal. Roles: active, partner, passive (any party that is neither)."""
    return [*share_products.declares(), *table_transfers.declares()]


@dataclass(frozen=True)
class Terms:
    """What the parties of a training on shares have agreed: sizes and the rule.

    `rows` are the batches' n, by number; `columns` the parties' d, by name; `outputs` is c; `chunks` is how many chunks
    there will be about, `partner` the holder beside the active party, `intercept` the party whose last weight is one,
    `block` how many rows a block has.
    """

    numbers: Numbers
    rows: tuple[int, ...]
    columns: Mapping[str, int]
    partner: str
    rule: LinearRule
    outputs: int = 1
    chunks: int = 1
    intercept: str = ""
    block: int = BLOCK

    @cached_property
    def pieces(self) -> tuple[RowBlock, ...]:
        """The row blocks of all batches, in order."""
        return tuple(
            RowBlock(batch, start, min(rows, start + self.block))
            for batch, rows in enumerate(self.rows)
            for start in range(0, rows, self.block)
        )

    def pieces_of(self, batch: int) -> range:
        """Return the numbers of a batch's blocks."""
        first = sum(-(-rows // self.block) for rows in self.rows[:batch])
        return range(first, first + -(-self.rows[batch] // self.block))

    def __post_init__(self) -> None:
        if self.rule.m != self.numbers.m:
            raise ConfigError(
                f"shares: coefficients of {self.numbers.m} bits were agreed, the rule has {self.rule.m}; set m alike"
            )

    def rule_of(self, name: str) -> LinearRule:
        """Return the rule for this party's weights."""
        return self.rule.sparing() if name == self.intercept else self.rule


@dataclass(frozen=True, repr=False)
class VisitAhead:
    """What one party has ready for a block in one visit. Serves once.

    `own`: psi (n x c), at a holder; `sums`: its shares of X r (n x c), all added up; `transfer`: at a holder, what
    table_transfers.py stores. With the first block of a visit, of all of its rows, `step`: its shares of W^T psi
    (d x c), all added up, and `left`: at a holder v (d x c) of every other party.
    """

    piece: RowBlock
    own: Words
    step: Words
    sums: Words
    left: Mapping[str, Words]
    transfer: tuple[bytes, ...]


class _Record(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A `VisitAhead` as it is stored, but for psi, which stands before it; it crosses no line."""

    piece: int
    step: bytes
    sums: bytes
    left: dict[str, bytes]
    transfer: tuple[bytes, ...]


_RECORDS = msgspec.msgpack.Decoder(_Record)


def _stored(data: bytes) -> _Record:
    """FrameError if it is not what was stored."""
    try:
        return _RECORDS.decode(data)
    except (msgspec.DecodeError, ValueError):
        raise FrameError("a stored visit was expected, its bytes are damaged; make the chunk anew") from None


class Ahead:
    """One party's side, whichever it is."""

    def __init__(
        self,
        seat: Seat,
        terms: Terms,
        scheme: ShareScheme,
        factors: Factors,
        store: Ready,
        *,
        apart: bool = False,
        base: BaseTransfers | None = None,
    ) -> None:
        """scheme: what multiplies; store: where the records go. apart: whether factors lie in other processes. base:
        this session's base transfers, which are made before work goes on beside other conversations."""
        self._seat, self._terms, self._factors, self.store, self._apart = seat, terms, factors, store, apart
        self._names = SpentNames(seat.desk.chunks)
        self._ring = ShareRing(terms.numbers.bits)
        own = replace(seat, lane=f"{seat.lane}/ahead")
        self.met = Met(own, terms.partner, scheme, terms.numbers, base)
        total = sum(terms.columns.values())
        self._width = -(-total * (len(seat.parties) - 1) // len(seat.parties))  # of a factor that psi meets, about
        self._prg = Prg.fresh("masks of a training on shares")
        self._shelves = Shelf(), Shelf()
        self._visits = 0
        self.holds = seat.me in (seat.active, terms.partner)
        others = [name for name in seat.parties if name != seat.me and self.holds]
        zero = {name: np.zeros((terms.columns[name], terms.outputs), np.uint64) for name in others}
        self._r = {name: terms.rule_of(name).start(theta) for name, theta in zero.items()}

    def meet(self) -> Seat:
        """Greet every party, and return this party's seat at the work ahead, with a lane of its own."""
        return self.met.products.seat

    @property
    def pair_keys(self) -> Mapping[str, bytes]:
        """The secret keys of this session that the party shares, 32 bytes with every other party."""
        return self.met.products.pair_keys

    def go_by(self, terms: Terms) -> None:
        """Set the rule of what is made from now on."""
        self._terms = terms

    def go_on(self, visits: int, r: Mapping[str, Words]) -> None:
        """Set where the training is, and the states of the others' r there: what is made next goes on from that."""
        self._visits, self._r = visits, dict(r)

    def make(self, chunk: int, visits: Sequence[int]) -> None:
        """Make chunk number `chunk`, for visits to these batches in this order, and store it."""
        ring, terms, products = self._ring, self._terms, self.met.products
        first, base = self._visits, self._base()
        counts = {batch: visits.count(batch) for batch in dict.fromkeys(visits)}
        holders, evaluators = products.keys(chunk, ("steps", "sums"))  # 0
        vectors = self._vectors(counts)
        places: dict[int, list[int]] = {batch: [] for batch in counts}
        for place, batch in enumerate(visits):
            places[batch].append(place)
        sizes = ((terms.pieces[piece].rows, count) for piece, count in vectors.items())
        work = products.work(2 * sum(products.scheme.seconds(rows, count, self._width) for rows, count in sizes))

        def records() -> Iterator[tuple[int, int, bytes]]:
            """Yield, for each block and visit, psi while its products are under way, and the rest once it is made."""
            steps, left = yield from self._steps(work, vectors, places, holders, evaluators[0])  # 1
            before = {name: self._walk(name, visits, counts, values) for name, values in left.items()}  # 2
            for group in self._groups(vectors):
                sums = self._sums(work, group, before, holders, evaluators[1])  # 3
                made = [(piece, e) for piece in group for e in range(counts[terms.pieces[piece].batch])]
                rows = [terms.pieces[piece].rows * terms.outputs for piece, _ in made]
                ends = self.met.transfers
                transfers = ends.made(rows) if ends is not None else (() for _ in made)  # 4
                for (piece, e), transfer in zip(made, transfers, strict=True):
                    batch, start, _ = terms.pieces[piece]
                    outputs, whole = self._outputs(e), start == 0
                    record = _Record(
                        piece,
                        ring.pack(steps[batch][:, outputs]) if whole else b"",
                        ring.pack(sums[piece][:, outputs]),
                        {name: ring.pack(values[batch][:, outputs]) for name, values in left.items() if whole},
                        transfer,
                    )
                    yield places[batch][e], 2 * self._part(piece) + 1, msgspec.msgpack.encode(record)

        name = products.coin(self._seat.active, chunk, "name")[:NAME_BYTES]
        self.store.keep(chunk, name, first, len(visits), records(), base=base)
        self._visits += len(visits)

    def _vectors(self, counts: Mapping[int, int]) -> dict[int, int]:
        """How many vectors the products of each block have."""
        terms = self._terms
        return {piece: count * terms.outputs for batch, count in counts.items() for piece in terms.pieces_of(batch)}

    def _groups(self, vectors: Mapping[int, int]) -> Iterator[dict[int, int]]:
        """Divide blocks, with their numbers of vectors, into groups whose products are on their way at a time."""
        group, values = dict[int, int](), 0
        for piece, count in vectors.items():
            size = self._terms.pieces[piece].rows * count
            if group and values + size > _AT_ONCE:
                yield group
                group, values = {}, 0
            group[piece], values = count, values + size
        if group:
            yield group

    def ready(self, number: int, visits: int) -> bytes:
        """Return the name of chunk `number` if it can be used now, else an empty one.

        It can if it is here, untouched, never begun under this name, for so many visits, and rests on this party's
        state.
        """
        if number not in self.store.numbers:
            return b""
        chunk = self.store.chunk(number)
        if self._names.holds(chunk.name):
            why = "this work ahead was gone through before, its folder was put back or copied; it is made anew"
            eventlog.warn(self._seat.me, "spent", {"chunk": number, "reason": why})
            return b""
        fits = (chunk.next, chunk.first, chunk.count) == (0, self._visits, visits) and chunk.base == self._base()
        return chunk.name if fits else b""

    def drop_from(self, first: int) -> None:
        """Forgets the chunks of this number and later ones."""
        for number in self.store.numbers:
            if number >= first:
                self.store.drop(number)

    def pass_over(self, number: int) -> None:
        """Goes on from behind a chunk that is ready and stays so: what is made next rests on it."""
        ring, terms = self._ring, self._terms
        for place in range(self.store.chunk(number).count):
            left = _stored(self.store.peek(number, place, 1)).left
            for name, data in left.items():
                v = ring.unpack(data, (terms.columns[name], terms.outputs))
                self._r[name] = ring.reduce(terms.rule_of(name).step(self._r[name], v, self._visits))
            self._visits += 1

    def fits(self, visits: int) -> bool:
        """Whether there is room for a chunk of so many visits beside what is kept."""
        kept = [self.store.chunk(number) for number in self.store.numbers]
        return visits * max((chunk.size / chunk.count for chunk in kept), default=0.0) <= self.store.room

    def _base(self) -> bytes:
        """Return a digest of this party's states of the others' r, on which the next chunk rests, for its own file."""
        digest = hashlib.sha256(self._visits.to_bytes(8, "little"))
        for name in sorted(self._r):
            digest.update(name.encode() + np.ascontiguousarray(self._r[name], "<u8").tobytes())
        return digest.digest()[:NAME_BYTES]

    def take(self, chunk: int, place: int, part: int = 0) -> VisitAhead:
        """Take what is ready for a block of a visit, one after the other; with the first one the visit is spent from
        now on, and with the first visit of a chunk the chunk's name.

        ProtocolError if it is spent already.
        """
        if place == part == 0:
            self._names.spend(self.store.chunk(chunk).name)
        own, terms, ring = self.store.take(chunk, place, 2 * part), self._terms, self._ring
        record = _stored(self.store.take(chunk, place, 2 * part + 1))
        piece = terms.pieces[record.piece]
        n, c = piece.rows, terms.outputs
        return VisitAhead(
            piece,
            ring.unpack(own, (n, c) if own else (0, c)),
            ring.unpack(record.step, (terms.columns[self._seat.me] if record.step else 0, c)),
            ring.unpack(record.sums, (n, c)),
            {name: ring.unpack(data, (terms.columns[name], c)) for name, data in record.left.items()},
            record.transfer,
        )

    def _outputs(self, place: int) -> slice:
        """Locate the outputs of a batch's visit number `place`."""
        return slice(place * self._terms.outputs, (place + 1) * self._terms.outputs)

    def _steps(
        self,
        work: Work,
        vectors: Mapping[int, int],
        places: Mapping[int, Sequence[int]],
        holders: Sequence[ShareHolder],
        evaluators: Evaluators,
    ) -> Generator[tuple[int, int, bytes], None, tuple[ByBatch, dict[str, ByBatch]]]:
        """Compute this party's shares of W^T psi, added up (d x E c), and v by party where it is a holder; yield psi of
        each block and visit, to be kept."""
        products, terms, ring, width = self.met.products, self._terms, self._ring, self._width
        own: ByBatch = {}
        left: dict[str, ByBatch] = {name: {} for name in products.asked}
        for group in self._groups(vectors):
            psi = {
                piece: ring.uniform(self._prg, (terms.pieces[piece].rows, group[piece])) for piece in group if holders
            }
            if holders:
                products.ask(work, products.asked, holders[0], psi, columns=lambda piece: width, uses=terms.chunks)
            for piece in group:
                for e, place in enumerate(places[terms.pieces[piece].batch]):
                    packed = ring.pack(psi[piece][:, self._outputs(e)]) if holders else b""
                    yield place, 2 * self._part(piece), packed
            self._add_up(own, self._answered(work, 0, evaluators, group))
            for name in products.asked:
                shapes = {piece: (terms.columns[name], count) for piece, count in group.items()}
                self._add_up(left[name], products.opened(work, holders[0], name, shapes))
        return self._lifted(own), {name: self._lifted(values) for name, values in left.items()}

    def _part(self, piece: int) -> int:
        """Return which block of its batch a block is."""
        return self._terms.pieces[piece].start // self._terms.block

    def _add_up(self, total: ByBatch, shares: ByPiece) -> None:
        """Add shares of blocks to those of their batches."""
        for piece, share in shares.items():
            batch = self._terms.pieces[piece].batch
            total[batch] = self._ring.reduce(total[batch] + share) if batch in total else share

    def _lifted(self, changes: ByBatch) -> ByBatch:
        """Multiply shares of W^T psi by what W is smaller by in smaller batches."""
        lifts = {batch: np.uint64(self._terms.numbers.lift(self._terms.rows[batch])) for batch in changes}
        return {batch: self._ring.reduce(words << lifts[batch]) for batch, words in changes.items()}

    def _sums(
        self,
        work: Work,
        group: Mapping[int, int],
        before: Mapping[str, ByBatch],
        holders: Sequence[ShareHolder],
        evaluators: Evaluators,
    ) -> ByPiece:
        """Add up this party's shares of all X r that it takes part in (n x E c), by block of a group."""
        products, terms = self.met.products, self._terms
        for name, values in before.items():
            r = {piece: values[terms.pieces[piece].batch] for piece in group}
            products.ask(work, [name], holders[1], r, columns=lambda piece: terms.pieces[piece].rows, uses=terms.chunks)
        total = self._answered(work, 1, evaluators, group)
        shapes = {piece: (terms.pieces[piece].rows, count) for piece, count in group.items()}
        for name in before:
            for piece, share in products.opened(work, holders[1], name, shapes).items():
                total[piece] = self._ring.reduce(total[piece] + share)
        return total

    def _answered(self, work: Work, purpose: int, evaluators: Evaluators, vectors: Mapping[int, int]) -> ByPiece:
        """Answers about W (purpose 0) or X transposed (1) of blocks; plaintexts are kept if there are more chunks, but
        of batches of several blocks."""

        def factor(piece: int) -> Integers | Elsewhere:
            X, W = self._factors(self._terms.pieces[piece])
            return X.T if purpose else W

        several = max(self._terms.rows) > self._terms.block
        shelf = self._shelves[purpose] if self._terms.chunks > 1 and not several else None
        return self.met.products.answer(work, evaluators, vectors, factor, shelf=shelf, apart=self._apart)

    def _walk(self, name: str, visits: Sequence[int], counts: Mapping[int, int], left: ByBatch) -> ByBatch:
        """r of a party before each visit (d x E c)."""
        rule, d, c = self._terms.rule_of(name), self._terms.columns[name], self._terms.outputs
        before = {batch: np.empty((d, count * c), np.uint64) for batch, count in counts.items()}
        seen = dict.fromkeys(counts, 0)
        for visit, batch in enumerate(visits, self._visits):
            e, seen[batch] = self._outputs(seen[batch]), seen[batch] + 1
            before[batch][:, e] = self._ring.reduce(rule.theta(self._r[name], visit))
            self._r[name] = self._ring.reduce(rule.step(self._r[name], left[batch][:, e], visit))
        return before


# Which stretches of a training on shares have work ready at all its parties, from this session or an earlier one.
#
# 1. all -> all   the name of the chunk that is ready for the next visits, or nothing
# 2. all -> all   nothing, after the last visit
#
# A chunk is gone through if all have one of the same name, which no two chunks have in common; else all throw away what
# they have from there on and make a new one, as later ones rest on it. Names are no secrets: digests of nonces that all
# parties have. By 2 everyone's last state is on disk, so that whoever is killed from there on comes back with the same
# model, of which the same rows may be asked about again.


class ChunkName(Message, frozen=True):
    """The message that names the chunk a party has ready: 16 bytes, or none."""

    name: bytes


def declares_ready() -> list[Declared]:
    """Declare what the messages reveal. Roles: active, partner, passive (any party that is neither)."""
    return [Declared(ChunkName, *pair, Reveal("public")) for pair in share_products.PAIRS]


def is_ready(seat: Seat, ahead: Ahead, number: int, visits: int) -> bool:
    """Whether all parties have chunk `number` for so many visits, made together and untouched. What does not fit is
    thrown away."""
    own = ahead.ready(number, visits)
    names = [own, *_exchanged(seat, own)]
    same = bool(own) and len(set(names)) == 1
    if not same:
        ahead.drop_from(number)
    return same


def all_ended(seat: Seat) -> None:
    """Wait until every party has come to the end of the training."""
    _exchanged(seat, b"")  # 2


def _exchanged(seat: Seat, own: bytes) -> list[bytes]:
    others = [name for name in seat.parties if name != seat.me]
    for name in others:
        seat.channel.send(name, ChunkName(own), seat.lane)  # 1
    return [seat.channel.recv(name, ChunkName, seat.lane).name for name in others]  # 1
