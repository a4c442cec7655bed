"""Which rows each table of a ledger has: sets of rows under the ledger's own key, a bit a row.

A party knows its own rows, and nothing that a peer says or leaves out changes which of them two jobs share. The sets
lie in a folder beside the ledger, a file for each table, written once:

    marks   8 bytes for each row that no table before it had, rising: the row's place is `first` plus its place here
    bits    a bit for each place before `first`: whether the table has that row too

A row's mark is the first half of the AES encryption of its id's digest (`securevfl.data.register`) under a key of the
ledger: it means nothing beside another ledger. Two of 10,000,000 rows have one mark once in 300,000 times, and count as
one row then. The ledger keeps the digest of each file.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from securevfl.base.files import atomic_writer
from securevfl.crypto.key_derivation import derive_key
from securevfl.data.id_keys import ID_DIGEST
from securevfl.data.register import Register
from securevfl.errors import DataError

RowTags = NDArray[np.uint64]
Bits = NDArray[np.uint8]  # packed, 8 places a byte

MAX_BLOCK_BYTES = 16 << 20  # bytes of bits, of all tables together, that are read at a time
WEIGHED_BYTES = 1 << 8  # bytes of bits that are weighed at a time, so that they stay in the cache
READ_BYTES = 1 << 20  # bytes that are read and digested at a time


@dataclass(frozen=True)
class RowSet:
    """The places of a table's rows: `new` places from `first` on, the rest by bits of the file with this digest."""

    first: int
    new: int
    digest: str

    @property
    def end(self) -> int:
        """The first place behind its own, a multiple of 8: places begin at whole bytes."""
        return self.first + -(-self.new // 8) * 8

    @property
    def size(self) -> int:
        """The length of its file, in bytes."""
        return 8 * self.new + self.first // 8


@dataclass(frozen=True)
class TableRows:
    """Rows of one table: by place those that other tables may have (packed), and marks of those that none has."""

    bits: Bits
    new: RowTags


class RowSets:
    """The row sets of a ledger, in a folder, under a key that follows from the ledger's salt."""

    def __init__(self, folder: Path, salt: bytes) -> None:
        self.folder = folder
        self._key = derive_key(salt, "marks of rows")

    def members(self, register: Register, sets: Mapping[str, RowSet]) -> TableRows:
        """Find the rows of a register with ids among the places of these sets, whose files are read and checked."""
        marks = self._marks(register)
        seen = np.zeros(len(marks), bool)
        bits = np.zeros(_end(sets) // 8, np.uint8)
        for name, each in sets.items():
            own = np.concatenate([np.zeros(0, bool), *self._held(name, each, marks, seen)])
            packed = np.packbits(own)
            bits[each.first // 8 : each.first // 8 + len(packed)] = packed
        return TableRows(bits, marks[~seen])

    def known(self, name: str, sets: Mapping[str, RowSet]) -> TableRows:
        """Return the rows of a table that has a set; DataError if not all files are whole."""
        bits, own = np.zeros(_end(sets) // 8, np.uint8), sets[name]
        self.check(sets)
        self._read(name, own, 0, bits[: own.end // 8])
        return TableRows(bits, np.empty(0, np.uint64))

    def check(self, sets: Mapping[str, RowSet]) -> None:
        """DataError unless the files of these sets are whole."""
        for name, each in sets.items():
            for _ in self._pieces(name, each):
                pass

    def write(self, name: str, members: TableRows) -> RowSet:
        """Write the set of a table to a file of its own, and return what the ledger keeps of it."""
        digest = hashlib.sha256()
        with atomic_writer(self._path(name)) as file:
            for piece in (members.new.astype("<u8", copy=False).view(np.uint8), members.bits):
                file.write(piece.data)
                digest.update(piece.data)
        own = RowSet(8 * len(members.bits), len(members.new), digest.hexdigest())
        self.check({name: own})
        return own

    def count_shared(self, own: TableRows, sets: Mapping[str, RowSet]) -> dict[str, int]:
        """Count the rows that a table shares with each of these."""
        counts = dict.fromkeys(sets, 0)
        for start, block in self._blocks(own, sets):
            both = np.bitwise_count(block & own.bits[start : start + block.shape[1]])
            for name, count in zip(sets, both.sum(axis=1, dtype=np.int64).tolist(), strict=True):
                counts[name] += count
        return counts

    def worst(self, own: TableRows, sets: Mapping[str, RowSet], weights: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Find the row of a table whose weights add up to most, and return which of the sets have it.

        weights: k weights of each of the sets (k x sets), none below 0. Each of the k has a row of its own in what is
        returned (k x sets).
        """
        whole = weights.astype(np.float32)
        most, has = np.zeros(len(whole), np.float32), np.zeros(whole.shape, bool)
        enough = whole.sum(axis=1) * np.float32(1 - 1e-6)
        for start, block in self._blocks(own, sets):
            for at in range(0, block.shape[1], WEIGHED_BYTES):
                if (most >= enough).all():  # some row is in all of them
                    return has
                mine = own.bits[start + at : start + min(at + WEIGHED_BYTES, block.shape[1])]
                rows = np.unpackbits(block[:, at : at + WEIGHED_BYTES] & mine, axis=1)
                sums = whole @ rows.astype(np.float32)
                top = sums.argmax(axis=1)
                for k in np.flatnonzero(sums[np.arange(len(top)), top] > most):
                    most[k], has[k] = sums[k, top[k]], rows[:, top[k]]
        return has

    def _path(self, name: str) -> Path:
        return self.folder / name

    def _marks(self, register: Register) -> RowTags:
        """Return the marks of all rows, rising."""
        assert register.ids is not None, "rows are known by ids"
        cipher = Cipher(algorithms.AES(self._key), modes.ECB()).encryptor()  # noqa: S305 a permutation of digests
        marks, at = np.empty(register.rows, np.uint64), 0
        for digests in register.ids():
            encrypted = np.frombuffer(cipher.update(digests.tobytes()), "<u8")
            marks[at : at + len(digests)] = encrypted[:: ID_DIGEST // 8]
            at += len(digests)
        marks.sort()
        repeated = marks[1:] == marks[:-1]
        return np.concatenate([marks[:1], marks[1:][~repeated]]) if repeated.any() else marks

    def _held(self, name: str, own: RowSet, marks: RowTags, seen: NDArray[np.bool_]) -> Iterator[NDArray[np.bool_]]:
        """Whether each row that has its place in this set is among the marks, which are noted as seen."""
        left = own.new
        for piece in self._pieces(name, own):
            theirs = piece[: 8 * left].view("<u8").astype(np.uint64, copy=False)
            left -= len(theirs)
            if not len(theirs):
                continue
            low, high = np.searchsorted(marks, theirs[[0, -1]])
            near = marks[low : high + 1]
            if not len(near):
                yield np.zeros(len(theirs), bool)
                continue
            at = np.minimum(np.searchsorted(near, theirs), len(near) - 1)
            held = near[at] == theirs
            seen[low + at[held]] = True
            yield held

    def _pieces(self, name: str, own: RowSet) -> Iterator[Bits]:
        """Yield the bytes of a set's file, its length checked at first and its digest at the end."""
        digest = hashlib.sha256()
        try:
            with self._path(name).open("rb") as file:
                if os.fstat(file.fileno()).st_size != own.size:
                    raise _damaged(self._path(name))
                while piece := file.read(READ_BYTES):
                    digest.update(piece)
                    yield np.frombuffer(piece, np.uint8)
        except OSError as cause:
            raise _damaged(self._path(name), f" ({cause.strerror})") from None
        if not hmac.compare_digest(digest.hexdigest(), own.digest):
            raise _damaged(self._path(name))

    def _blocks(self, own: TableRows, sets: Mapping[str, RowSet]) -> Iterator[tuple[int, Bits]]:
        """Yield the bits of all these sets (sets x bytes) a stretch at a time, with the byte that it begins at."""
        step = max(WEIGHED_BYTES, MAX_BLOCK_BYTES // max(1, len(sets)))
        for start in range(0, len(own.bits), step):
            block = np.zeros((len(sets), min(step, len(own.bits) - start)), np.uint8)
            for row, (name, each) in zip(block, sets.items(), strict=True):
                self._read(name, each, start, row)
            yield start, block

    def _read(self, name: str, own: RowSet, start: int, into: Bits) -> None:
        """Fill in the bits of one set from byte `start` on; those behind its end stay as they are."""
        before = max(0, min(own.first // 8 - start, len(into)))
        if before:
            try:
                with self._path(name).open("rb") as file:
                    file.seek(8 * own.new + start)
                    read = file.read(before)
            except OSError as cause:
                raise _damaged(self._path(name), f" ({cause.strerror})") from None
            if len(read) != before:
                raise _damaged(self._path(name))
            into[:before] = np.frombuffer(read, np.uint8)
        last = own.first // 8 - start + own.new // 8
        into[before : max(before, last)] = 0xFF
        if own.new % 8 and 0 <= last < len(into):
            into[last] = (0xFF00 >> own.new % 8) & 0xFF


def _end(sets: Mapping[str, RowSet]) -> int:
    return max((each.end for each in sets.values()), default=0)


def _damaged(path: Path, why: str = "") -> DataError:
    return DataError(
        f"{path}: the rows of a table as its ledger has noted them were expected{why}, and are not there or damaged; "
        "put a copy of this folder back that goes with the ledger, or move both away: counting begins anew then"
    )
