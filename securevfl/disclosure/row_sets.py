"""Which rows each table of a disclosure ledger has, stored as sets of positions with one bit for each row.

The ledger has to know how many rows two of its tables share. Each distinct row of all tables has:
    tag       8 of the 16 bytes of the encrypted digest of the row's id. The key belongs to the ledger, so that tags of
              two ledgers cannot be compared
    position  a number; the rows of a new table that no earlier table has get positions from `first` on
The ledger's file has one *set* for each table, which never changes:
    tags      the tags of the rows that no earlier table has, ascending; a row's position is `first` plus its index here
    bits      one bit for each position before `first`: 1 if the table has that row too

Among 10,000,000 rows, two have the same tag with probability 1 in 300,000; they then count as one row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from securevfl.account.database import AccountDatabase, Tables
from securevfl.crypto.key_derivation import derive_key
from securevfl.data.id_keys import ID_DIGEST
from securevfl.data.register import Register
from securevfl.errors import DataError

RowTags = NDArray[np.uint64]
Bits = NDArray[np.uint8]
"""Bits of 8 positions in each byte."""

ROW_SET_TABLES = """
CREATE TABLE IF NOT EXISTS row_sets (name TEXT, piece INTEGER, content BLOB NOT NULL, PRIMARY KEY (name, piece));
CREATE TABLE IF NOT EXISTS shared_rows (name TEXT, other TEXT, rows INTEGER NOT NULL, PRIMARY KEY (name, other));
"""
"""A set is stored in pieces, because SQLite can read the middle of a value only by reading it from its beginning. Two
tables that share rows are stored in `shared_rows` in both orders."""
PIECE_BYTES = 1 << 17
"""Size of a stored piece of a set in bytes."""
MAX_BLOCK_BYTES = 16 << 20
"""Maximum number of bytes that are read at a time from the bits of all sets together."""
WEIGHED_BYTES = 1 << 8
"""Number of bytes of each set that `worst` processes at a time, so few that the data stay in the processor's cache."""
READ_BYTES = 1 << 20
"""Number of bytes of a set that are read or written at a time."""


@dataclass(frozen=True)
class RowSet:
    """The positions of one table's rows: some positions of earlier tables, and a range of new ones.

    Attributes:
        first: the first of the positions of rows that no earlier table has.
        new: number of rows that no earlier table has. Bits in the stored set mark the table's other rows.
    """

    first: int
    new: int

    @property
    def end(self) -> int:
        """The first position of the next table, a multiple of 8, because the bits of a table begin at a whole byte."""
        return self.first + -(-self.new // 8) * 8

    @property
    def size(self) -> int:
        """Number of bytes of the stored set."""
        return 8 * self.new + self.first // 8


@dataclass(frozen=True)
class TableRows:
    """The rows of one table while it is compared with the sets of other tables.

    Attributes:
        bits: one bit for each position of the ledger: 1 if the table has that row.
        new: tags of the table's rows that no table in the ledger has.
    """

    bits: Bits
    new: RowTags


class RowSets:
    """The row sets of a ledger.

    Args:
        database: the ledger's file.
        salt: the ledger's salt (a secret key), from which the key of the tags is derived.
    """

    def __init__(self, database: AccountDatabase, salt: bytes) -> None:
        self._database = database
        self._key = derive_key(salt, "marks of rows")

    def members(self, register: Register, sets: Mapping[str, RowSet]) -> TableRows:
        """Find the rows of a table with these ids in the sets of other tables, given by table name."""
        tags = self._tags(register)
        seen = np.zeros(len(tags), bool)
        bits = np.zeros(_end(sets) // 8, np.uint8)
        for name, row_set in sets.items():
            contained = np.concatenate([np.zeros(0, bool), *self._contained(name, row_set, tags, seen)])
            packed = np.packbits(contained)
            bits[row_set.first // 8 : row_set.first // 8 + len(packed)] = packed
        return TableRows(bits, tags[~seen])

    def known(self, name: str, sets: Mapping[str, RowSet]) -> TableRows:
        """Return the rows of a table whose set the ledger's file already contains.

        Args:
            name: name of the table, which is also that of its set.
            sets: the row set of each table of the ledger, by the table's name.

        Returns:
            The table's rows as bits; `new` is empty.
        """
        bits, row_set = np.zeros(_end(sets) // 8, np.uint8), sets[name]
        self._read(name, row_set, 0, bits[: row_set.end // 8])
        return TableRows(bits, np.empty(0, np.uint64))

    def write(self, tables: Tables, name: str, members: TableRows) -> RowSet:
        """Write the set of a table, and return the positions of its rows, which the ledger stores.

        Args:
            tables: the SQL tables of the ledger's file, in a transaction that need not survive a killed process.
            name: name of the table, which is also that of its set.
            members: its rows, as bits by position, and the tags of rows that no earlier table has.

        Returns:
            The positions of the table's rows.
        """
        row_set = RowSet(8 * len(members.bits), len(members.new))
        new_bytes = members.new.astype("<u8", copy=False).view(np.uint8)
        tables.execute("DELETE FROM row_sets WHERE name = ?", (name,))
        for piece, start in enumerate(range(0, row_set.size, PIECE_BYTES)):
            end = start + PIECE_BYTES
            first_bit = max(0, start - len(new_bytes))
            bits = members.bits[first_bit : max(0, end - len(new_bytes))]
            content = new_bytes[start:end].tobytes() + bits.tobytes()
            tables.execute("INSERT INTO row_sets VALUES (?, ?, ?)", (name, piece, content))
        return row_set

    def store_shared(self, tables: Tables, name: str, counts: Mapping[str, int]) -> None:
        """Store how many rows a table shares with each of some other tables, in place of earlier numbers.

        Args:
            tables: the tables of the ledger's file, in the transaction that writes the table's set.
            name: name of the table.
            counts: the number of shared rows by the name of the other table.
        """
        tables.execute("DELETE FROM shared_rows WHERE name = ? OR other = ?", (name, name))
        pairs = [(*pair, count) for other, count in counts.items() for pair in ((name, other), (other, name))]
        tables.executemany("INSERT INTO shared_rows VALUES (?, ?, ?)", pairs)

    def stored_shared(self, name: str) -> dict[str, int]:
        """Return the stored numbers of rows that a table shares with other tables, by the name of the other table."""
        with self._database.reading() as tables:
            return dict(tables.execute("SELECT other, rows FROM shared_rows WHERE name = ?", (name,)).fetchall())

    def count_shared(self, rows: TableRows, sets: Mapping[str, RowSet]) -> dict[str, int]:
        """Return how many rows a table shares with each of these sets."""
        counts = dict.fromkeys(sets, 0)
        for start, block in self._blocks(rows, sets):
            shared = np.bitwise_count(block & rows.bits[start : start + block.shape[1]])
            for name, count in zip(sets, shared.sum(axis=1, dtype=np.int64).tolist(), strict=True):
                counts[name] += count
        return counts

    def worst(self, rows: TableRows, sets: Mapping[str, RowSet], weights: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Find the most disclosed row of a table, and return the sets that contain it.

        Each set has a weight: the amount that is disclosed about each of its rows. The amount for a row is the sum of
        the weights of all sets that contain it.

        Args:
            rows: the rows of the table.
            sets: the row sets of the ledger's tables.
            weights: k vectors of weights (k, sets), none negative. The search is done for each vector.

        Returns:
            For each vector, whether each set contains the row with the largest amount (k, sets).
        """
        weights32 = weights.astype(np.float32)
        largest, has_row = np.zeros(len(weights32), np.float32), np.zeros(weights32.shape, bool)
        upper_bound = weights32.sum(axis=1) * np.float32(1 - 1e-6)
        for start, block in self._blocks(rows, sets):
            for offset in range(0, block.shape[1], WEIGHED_BYTES):
                if (largest >= upper_bound).all():  # a row that is in all sets has the largest possible sum
                    return has_row
                table_bits = rows.bits[start + offset : start + min(offset + WEIGHED_BYTES, block.shape[1])]
                contains = np.unpackbits(block[:, offset : offset + WEIGHED_BYTES] & table_bits, axis=1)
                totals = weights32 @ contains.astype(np.float32)
                top = totals.argmax(axis=1)
                for k in np.flatnonzero(totals[np.arange(len(top)), top] > largest):
                    largest[k], has_row[k] = totals[k, top[k]], contains[:, top[k]]
        return has_row

    def _tags(self, register: Register) -> RowTags:
        """Return the distinct tags of all rows of a table, ascending."""
        assert register.ids is not None, "rows are identified by ids"
        cipher = Cipher(algorithms.AES(self._key), modes.ECB()).encryptor()  # noqa: S305 a permutation of digests
        tags, start = np.empty(register.rows, np.uint64), 0
        for digests in register.ids():
            encrypted = np.frombuffer(cipher.update(digests.tobytes()), "<u8")
            tags[start : start + len(digests)] = encrypted[:: ID_DIGEST // 8]
            start += len(digests)
        tags.sort()
        repeated = tags[1:] == tags[:-1]
        return np.concatenate([tags[:1], tags[1:][~repeated]]) if repeated.any() else tags

    def _contained(
        self, name: str, row_set: RowSet, tags: RowTags, seen: NDArray[np.bool_]
    ) -> Iterator[NDArray[np.bool_]]:
        """Yield, in pieces, whether the table has each of the set's new rows (those of no earlier table).

        The tags of the rows that it has are marked in `seen`.
        """
        left = row_set.new
        for piece in self._pieces(name, row_set):
            set_tags = piece[: 8 * left].view("<u8").astype(np.uint64, copy=False)
            left -= len(set_tags)
            if not len(set_tags):
                continue
            low, high = np.searchsorted(tags, set_tags[[0, -1]])
            candidates = tags[low : high + 1]
            if not len(candidates):
                yield np.zeros(len(set_tags), bool)
                continue
            index = np.minimum(np.searchsorted(candidates, set_tags), len(candidates) - 1)
            contained = candidates[index] == set_tags
            seen[low + index[contained]] = True
            yield contained

    def _pieces(self, name: str, row_set: RowSet) -> Iterator[Bits]:
        """Yield the content of a set in pieces of `READ_BYTES` bytes."""
        for start in range(0, row_set.size, READ_BYTES):
            yield np.frombuffer(self._content(name, row_set, start, READ_BYTES), np.uint8)

    def _content(self, name: str, row_set: RowSet, start: int, count: int) -> bytes:
        """Return up to `count` bytes of a set's content from byte `start` on (fewer if the content ends before).

        Args:
            name: name of the table, which is also that of its set.
            row_set: its positions.
            start: the first byte.
            count: number of bytes.

        Returns:
            The bytes.

        Raises:
            DataError: if the set is missing or has another length.
        """
        end = min(start + count, row_set.size)
        pieces = []
        with self._database.reading() as tables:
            for piece in range(start // PIECE_BYTES, -(-end // PIECE_BYTES)):
                select = "SELECT content FROM row_sets WHERE name = ? AND piece = ?"
                record = tables.execute(select, (name, piece)).fetchone()
                if record is None or len(record[0]) != min(PIECE_BYTES, row_set.size - piece * PIECE_BYTES):
                    raise _damaged(self._database)
                pieces.append(record[0])
        skipped = start % PIECE_BYTES
        return b"".join(pieces)[skipped : skipped + end - start]

    def _blocks(self, rows: TableRows, sets: Mapping[str, RowSet]) -> Iterator[tuple[int, Bits]]:
        """Yield blocks of positions: the number of a block's first byte, and the bits of all sets (sets, bytes)."""
        step = max(WEIGHED_BYTES, MAX_BLOCK_BYTES // max(1, len(sets)))
        for start in range(0, len(rows.bits), step):
            block = np.zeros((len(sets), min(step, len(rows.bits) - start)), np.uint8)
            for set_bits, (name, row_set) in zip(block, sets.items(), strict=True):
                self._read(name, row_set, start, set_bits)
            yield start, block

    def _read(self, name: str, row_set: RowSet, start: int, into: Bits) -> None:
        """Copy the bits of one set, from byte `start` on, into the array `into`; bytes beyond the set's end stay 0."""
        stored = max(0, min(row_set.first // 8 - start, len(into)))
        if stored:
            data = self._content(name, row_set, 8 * row_set.new + start, stored)
            into[:stored] = np.frombuffer(data, np.uint8)
        last = row_set.first // 8 - start + row_set.new // 8
        into[stored : max(stored, last)] = 0xFF
        if row_set.new % 8 and 0 <= last < len(into):
            into[last] = (0xFF00 >> row_set.new % 8) & 0xFF


def _end(sets: Mapping[str, RowSet]) -> int:
    return max((row_set.end for row_set in sets.values()), default=0)


def _damaged(database: AccountDatabase) -> DataError:
    return DataError(
        f"{database.path}: the rows of a table are missing in this disclosure ledger",
        "restore the newest backup of this file",
        code="SVFL-LEDGER-DAMAGED",
        path=str(database.path),
    )
