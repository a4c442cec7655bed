"""Tables larger than memory: a CSV or Parquet file is copied once into a *stored table*, from which a party reads.

    shop = store_table("shop", "shop.parquet", "shop.table", rows=read_rows("shop.parquet", of=n), job=job)
    shop = open_table("shop", "shop.table")                       # the same party, on another day

A stored table is a header (`securevfl.data.table_header`) and rows of fixed size, float32 if that is exact for every
column and float64 otherwise. Rows are in the order of the job's batches, so that a batch is one read; without a job
they are in the shared order of an alignment. It holds the same data as the original and needs the same protection.
Steps:
1. Decide the types of columns, and read the file in batches. Append each row to a *bucket*, a file for a range of rows.
2. Sort each bucket and append it to the table.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.base.files import make_private_folder
from securevfl.base.platform_files import lock_exclusive, read_into
from securevfl.data.arrow_dataset import parts_of
from securevfl.data.content_digest import ContentDigest, digest_weights
from securevfl.data.external_table import READ_VALUES, ExternalTable
from securevfl.data.id_keys import ID_DIGEST, Keys, order_digest
from securevfl.data.party import Party, split
from securevfl.data.preparation import FittedPreparation
from securevfl.data.prepared_table import PreparedTable, SelectedColumns
from securevfl.data.raw_columns import release_arrow_memory
from securevfl.data.read_options import ReadOptions
from securevfl.data.readers import errors_name
from securevfl.data.register import KEYS_PER_READ, Register
from securevfl.data.schedule import Batched, Rows
from securevfl.data.source_type import source_type
from securevfl.data.table_header import TableHeader, file_digest, read_header, verify_checksum, write_header
from securevfl.data.table_source import TableSource
from securevfl.errors import DataError, TableError

BUCKET_BYTES = 32 << 20
"""Number of bytes of rows that are sorted in memory at a time."""

OnProgress = Callable[[int, int], None]
"""A function that is called with the number of processed rows and the number of all rows."""


class StoredTable(ExternalTable):
    """A table on disk, read by file reads: the system would count memory-mapped pages as this process's memory."""

    def __init__(self, path: Path, header: TableHeader) -> None:
        self.shape = header.shape
        self._kind = header.kind
        self._offset = header.rows_at
        self._position = header.position
        self._path = path
        self._file = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)

    def __getitem__(self, rows: Rows | slice) -> Floats:
        positions = self.positions(rows)
        if len(positions) and not 0 <= positions.min() <= positions.max() < len(self):
            raise IndexError(f"{self._path}: a row number is not below {len(self)}")
        X = self._read(positions, np.empty((len(positions), self.shape[1]), self._kind), self._offset)
        return X.astype(np.float64, copy=False)

    def positions(self, rows: Rows | slice) -> Rows:
        """Return at which positions of the file the given rows (k,) are stored."""
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(len(self)))
        return np.asarray(rows) if self._position is None else self._position[rows]

    def read_range(self, start: int, stop: int) -> NDArray[Any]:
        """Return the rows (k, d) stored at positions `start` to `stop` - 1, as float32 or float64 like the file."""
        return self._read(np.arange(start, stop), np.empty((stop - start, self.shape[1]), self._kind), self._offset)

    def blocks(self, rows: Rows) -> Iterator[Floats]:
        """Yield the given rows in blocks (k, d) of k rows and d columns, each row once, in the order of the store."""
        chosen = np.zeros(len(self), bool)
        chosen[self.positions(rows)] = True
        for start, stop in self._ranges():
            yield self.read_range(start, stop)[chosen[start:stop]].astype(np.float64, copy=False)

    def select(self, rows: Rows, columns: Sequence[int]) -> Floats:
        """Return these columns of these rows (k, c); the file is read once, from its beginning to its end."""
        values = np.empty((len(self), len(columns)))
        for start, stop in self._ranges():
            values[start:stop] = self.read_range(start, stop)[:, list(columns)]
        return values[self.positions(rows)]

    def _ranges(self) -> Iterator[tuple[int, int]]:
        """Yield (start, stop) positions, for reading the file in steps of limited size."""
        step = max(1, READ_VALUES // max(1, self.shape[1]))
        return ((start, min(start + step, len(self))) for start in range(0, len(self), step))

    def keys(self, rows: Rows, offset: int) -> Keys:
        """Read the digests (k, ID_DIGEST) of rows from the file, where the digests begin at byte `offset`."""
        return self._read(rows, np.empty((len(rows), ID_DIGEST), np.uint8), offset)

    def numbers(self, offset: int) -> Rows:
        """Read one integer for each row (n,) from the file, from byte `offset` on."""
        numbers = np.empty(len(self), "<i8")
        self._fill(numbers.data.cast("B"), offset)
        return numbers.astype(np.intp, copy=False)

    def digests(self, offset: int) -> Iterator[Keys]:
        """Read a digest for each row from the file, from byte `offset` on, in pieces (k, ID_DIGEST)."""
        for start in range(0, len(self), KEYS_PER_READ):
            keys = np.empty((min(KEYS_PER_READ, len(self) - start), ID_DIGEST), np.uint8)
            self._fill(keys.data.cast("B"), offset + start * ID_DIGEST)
            yield keys

    def _read(self, positions: Rows, lines: NDArray[Any], offset: int) -> NDArray[Any]:
        """Read the records at these positions into the array `lines` and return it; record 0 is at byte `offset`."""
        if not len(positions):
            return lines
        steps = np.diff(positions)
        order = None if (steps == 1).all() else np.argsort(positions)
        if order is not None:
            positions, steps = positions[order], np.diff(positions[order])
        buffer, size = lines.data.cast("B"), lines.itemsize * lines.shape[1]
        edges = [0, *(np.flatnonzero(steps != 1) + 1).tolist(), len(positions)]
        for (start, stop), position in zip(pairwise(edges), positions[edges[:-1]].tolist(), strict=True):
            self._fill(buffer[start * size : stop * size], offset + position * size)
        if order is None:
            return lines
        ordered = np.empty_like(lines)
        ordered[order] = lines
        return ordered

    def _fill(self, buffer: memoryview, offset: int) -> None:
        while buffer:
            count = read_into(self._file, buffer, offset)
            if not count:
                raise TableError(
                    f"{self._path} was truncated while it was read",
                    "store the table again",
                    code="SVFL-TABLE-CHANGED",
                    file=str(self._path),
                )
            buffer, offset = buffer[count:], offset + count


class StoredParty(Party):
    """A party whose columns stay on disk, with rows in shared order. It has digests of the ids, but not the ids."""

    def __init__(self, name: str, table: StoredTable, header: TableHeader) -> None:
        self.name = name
        self.columns = header.columns
        self.constant = header.constant
        self.X = cast(Floats, table)  # training uses the shape and the length of X, and X[rows]
        self.y = header.y
        self.ids, self.keys = None, None
        self.categories, self.dates, self.types = header.categories, header.dates, header.types
        self.percents = frozenset(name for name, kind in header.types.items() if kind.kind == "percent")
        self._header, self._table = header, table

    @property
    def is_remote(self) -> bool:
        """Whether the rows are in the memory of workers, where columns can be neither prepared nor left out."""
        return cast(ExternalTable, self.X).is_remote

    def row_name(self, position: int) -> str:
        """Name the row at a position for a message, by its number from 1 among the rows that are stored."""
        return f"row {position + 1} of the rows of {self.name} that all parties share"

    @property
    def is_plain(self) -> bool:
        """Whether all columns are numbers without missing values."""
        return not (self._header.categories or self._header.dates or self._header.gaps)

    def _prepared_by(self, by: FittedPreparation, max_bytes: int) -> Floats:
        if not by.steps:
            return self.X
        return cast(Floats, PreparedTable(self._external(), by, self.table))

    def _select_columns(self, positions: Sequence[int]) -> Floats:
        return cast(Floats, SelectedColumns(self._external(), positions))

    def _column(self, position: int) -> Floats:
        return self._external().select(np.arange(len(self)), [position])[:, 0]

    def _external(self) -> ExternalTable:
        """Return the table on disk; raise TableError if its rows are at workers."""
        if self.is_remote:
            raise TableError(
                f"party {self.name}: worker processes store the rows, where columns can be neither prepared nor left "
                "out",
                "prepare the table before you store it, or train without workers",
                code="SVFL-TABLE-ON-DISK",
                party=self.name,
            )
        return cast(ExternalTable, self.X)

    @property
    def has_ids(self) -> bool:
        """Whether the rows have ids: always True, because the file contains digests of the ids."""
        return True

    def keys_of(self, rows: Rows) -> list[bytes]:
        """Return the digests of the ids of rows (k,)."""
        return split(self._table.keys(np.asarray(rows), self._header.ids_at))

    @property
    def order(self) -> bytes:
        """Digest of the ids in their order."""
        return self._header.order

    @property
    def register(self) -> Register:
        """The register of the rows (`securevfl.data.register`), which reads the digests of ids from the file."""
        table, header = self._table, self._header
        order = table.numbers(header.register_at)
        return Register(len(table), header.key, order, lambda: table.digests(header.ids_at))

    @property
    def content(self) -> str:
        """Digest of the columns, computed when the table was stored."""
        return self._header.content


def store_table(
    name: str,
    data: str | Path,
    table: str | Path,
    options: ReadOptions = ReadOptions(),
    *,
    rows: Rows | None = None,
    job: Batched | None = None,
    on_progress: OnProgress | None = None,
) -> StoredParty:
    """Copy the rows of a CSV or Parquet file into a stored table, atomically, and return the party that reads from it.

    If the file `table` already holds a copy with the same source, rows and job, it is used again. The copy needs disk
    space for the table, 64 bytes a row and BUCKET_BYTES.

    Args:
        name: name of the party.
        data: the source.
        table: the file to write.
        options: the columns to read, their types, and what happens to several rows of one id.
        rows: row numbers of the source in the order that all parties share (`securevfl.organisations.align`); by
            default all rows in their order, one for each id.
        job: the job for whose batches the rows are ordered.
        on_progress: called after each batch of rows.

    Returns:
        The party. A DataError (or a subclass) is raised if the source cannot be used or the disk lacks space.
    """
    data, table = Path(data), Path(table)
    if rows is not None:
        rows = np.asarray(rows)
    stamp = _stamp(data, options, rows, job)
    with suppress(DataError):
        if read_header(table).stamp == stamp:
            return open_table(name, table)
    source = source_type(data)(name, data, options)
    with _draft_folder(table) as folder, _write_errors(table):
        _write(source, folder, rows, job, stamp, on_progress).replace(table)
    return open_table(name, table)


def copy_to_temporary_table(
    name: str,
    data: str | Path,
    options: ReadOptions = ReadOptions(),
    *,
    rows: Rows | None = None,
    job: Batched | None = None,
    on_progress: OnProgress | None = None,
) -> StoredParty:
    """Copy the rows of a CSV or Parquet file into an unnamed stored table, which is deleted with the party.

    Args:
        name: name of the party.
        data: the source. The copy is on the same disk, or in the folder for temporary files if the folder of the source
            cannot be written.
        options: the columns to read, their types, and what happens to several rows of one id.
        rows: row numbers of the source in the order that all parties share; by default all rows in their order, one
            for each id.
        job: the job for whose batches the rows are ordered.
        on_progress: called after each batch of rows.

    Returns:
        The party. A DataError (or a subclass) is raised if the source cannot be used or the disk lacks space.
    """
    data = Path(data)
    source = source_type(data)(name, data, options)
    table = _writable_path(table_path(data))
    with _draft_folder(table) as folder, _write_errors(table):
        return open_table(name, _write(source, folder, rows, job, "", on_progress))


def _writable_path(table: Path) -> Path:
    """Return the path of a stored table, or one in the folder for temporary files if its folder cannot be written."""
    try:
        with tempfile.TemporaryDirectory(prefix=f".{table.name}.", dir=table.parent):
            return table
    except OSError:
        return Path(tempfile.gettempdir()) / table.name


def table_path(data: str | Path) -> Path:
    """Return the path of a data file's stored table: a file next to it."""
    return Path(f"{data}.table")


def _stamp(data: Path, options: ReadOptions, rows: Rows | None, job: Batched | None) -> str:
    """Return a digest of the source file, the reading options and the job; a stored table with it can be used again."""
    with errors_name(data):
        files = [(str(part), part.stat()) for part in parts_of(data)]
    facts: list[Any] = [[name, status.st_size, status.st_mtime_ns] for name, status in files]
    facts += options.facts
    facts += [] if job is None else [job.batch_size, job.test_fraction, job.split]  # these determine the batches
    stamp = hashlib.sha256(json.dumps(facts).encode())
    if rows is not None:
        stamp.update(np.ascontiguousarray(rows).data)
    return stamp.hexdigest()


def _write(
    source: TableSource,
    folder: Path,
    rows: Rows | None,
    job: Batched | None,
    stamp: str,
    on_progress: OnProgress | None,
) -> Path:
    """Write the table as a file in the folder, and return its path."""
    source.decide(folder)
    keys = source.keys()
    y = source.labels()
    rows = _rows_of(source, rows)
    keys = keys[rows]
    register = _with_spilled_ids(Register.of_ids(keys), folder / "ids", keys)
    order = position = None
    if job is not None:  # rows are stored batch after batch, followed by the held-out rows
        schedule = job.schedule(register)
        order = np.concatenate([schedule.batch_order, schedule.test])
        position = np.empty(len(order), "<i8")
        position[order] = np.arange(len(order))
    digest = order_digest(keys)
    del keys
    buckets = _Buckets(folder, len(rows), source)
    _check_space(source.path, folder, buckets.max_disk_bytes + 56 * len(rows))
    position_of = np.full(source.rows, -1, dtype=np.int64)
    position_of[rows if order is None else rows[order]] = np.arange(len(rows))
    weights = np.zeros(source.rows, np.uint64)
    weights[rows] = digest_weights(register)
    content = ContentDigest(len(source.columns))
    done = 0
    for X in source.numbers():
        buckets.put(position_of[done : done + len(X)], X)
        content.add(X, weights[done : done + len(X)])
        done += len(X)
        if on_progress is not None:
            on_progress(done, source.rows)
    release_arrow_memory(source.rows * len(source.columns))
    draft = folder / "table"
    with os.fdopen(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600), "w+b") as file:
        header = TableHeader(
            columns=source.columns,
            constant=source.constant,
            rows=len(rows),
            kind=source.kind,
            y=None if y is None else y[rows],
            position=position,
            order=digest,
            key=register.key,
            content=content.digest(),
            stamp=stamp,
            categories=source.table.categories,
            dates=source.table.dates,
            gaps=frozenset(source.gaps),
            types=source.table.types,
        )
        write_header(file, header, register)
        buckets.empty_into(file)
        file.flush()
        file.write(file_digest(file, file.tell()))
        file.flush()
        os.fsync(file.fileno())
    return draft


def _rows_of(source: TableSource, rows: Rows | None) -> Rows:
    """Return the numbers of the rows to copy: `rows`, or else all that remain after repeated ids were left out."""
    if rows is None:
        return np.arange(source.rows, dtype=np.intp) if source.unique is None else source.unique.rows
    rows = validate_row_numbers(source.path, rows, source.rows)
    if source.unique is not None:
        source.unique.positions_of(rows)  # this raises an error if `rows` contains a row that was left out
    return rows


def _with_spilled_ids(register: Register, path: Path, keys: Keys) -> Register:
    """Write the digests of the ids to a file, and return a register that reads them from there."""
    keys.tofile(path)

    def pieces() -> Iterator[Keys]:
        for start in range(0, register.rows, KEYS_PER_READ):
            count, offset = KEYS_PER_READ * ID_DIGEST, start * ID_DIGEST
            yield np.fromfile(path, np.uint8, count, offset=offset).reshape(-1, ID_DIGEST)

    return replace(register, ids=pieces)


def _check_space(data: Path, folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise DataError(
            f"{data}: a copy of the table needs {needed / 1e9:.1f} GB of disk space, and {folder.parent} has "
            f"{free / 1e9:.1f} GB",
            "free space, or move the file to a larger disk",
            code="SVFL-FILE-NO-SPACE",
            file=str(data),
        )


@contextmanager
def _draft_folder(table: Path) -> Iterator[Path]:
    """Create a temporary folder next to the table for the `with` block, and remove those that killed processes left."""
    with _write_errors(table):
        make_private_folder(table.parent)
        for abandoned in table.parent.glob(f".{glob.escape(table.name)}.*.parts"):
            _remove_if_abandoned(abandoned)
        folder = Path(tempfile.mkdtemp(prefix=f".{table.name}.", suffix=".parts", dir=table.parent))
        lock = os.open(folder, os.O_RDONLY)
    try:
        lock_exclusive(lock)  # the lock is released when the process ends, even if it is killed
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _remove_if_abandoned(folder: Path) -> None:
    with suppress(OSError):
        lock = os.open(folder, os.O_RDONLY)
        try:
            lock_exclusive(lock, wait=False)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)


def open_table(name: str, table: str | Path) -> StoredParty:
    """Open the party of a table that `store_table` wrote.

    The table is read once to verify its checksum, at about 1 GB a second.

    Args:
        name: name of the party.
        table: the stored table.

    Returns:
        The party. DataError if the file is not a complete stored table, or was altered.
    """
    path = Path(table)
    verify_checksum(path)
    header = read_header(path)
    return StoredParty(name, StoredTable(path, header), header)


class _Buckets:
    """Files that sort the rows of a table by position: each holds the rows of one range of positions, unsorted."""

    def __init__(self, folder: Path, rows: int, source: TableSource) -> None:
        self._record = np.dtype([("position", "<i8"), ("x", source.kind, (len(source.columns),))])
        # at most 256 buckets, because each is an open file
        bucket_bytes = max(BUCKET_BYTES, rows * self._record.itemsize // 256)
        self._bucket_rows = max(1, bucket_bytes // self._record.itemsize)
        self._rows = rows
        self._folder = folder
        self._count = -(-rows // self._bucket_rows)
        self.max_disk_bytes = (rows + min(rows, self._bucket_rows)) * self._record.itemsize

    def put(self, positions: NDArray[np.int64], X: NDArray[Any]) -> None:
        """Append rows X (k, d) to the buckets of their positions (k,); a row with position -1 is left out."""
        used = np.flatnonzero(positions >= 0)
        used = used[np.argsort(positions[used])]
        records = np.empty(len(used), self._record)
        records["position"], records["x"] = positions[used], X[used]
        edges = np.searchsorted(records["position"], np.arange(self._count + 1) * self._bucket_rows)
        for bucket in np.flatnonzero(np.diff(edges)).tolist():
            with (self._folder / str(bucket)).open("ab") as file:
                records[edges[bucket] : edges[bucket + 1]].tofile(file)

    def empty_into(self, file: BinaryIO) -> None:
        """Append all rows to the file in the order of their positions, and delete each bucket once it is read."""
        for bucket in range(self._count):
            path, start = self._folder / str(bucket), bucket * self._bucket_rows
            records = np.fromfile(path, self._record)
            size = min(self._bucket_rows, self._rows - start), self._record["x"].shape[0]
            ordered = np.empty(size, self._record["x"].base)
            ordered[records["position"] - start] = records["x"]
            ordered.tofile(file)
            path.unlink()


def validate_row_numbers(path: Path, rows: Rows, of: int) -> Rows:
    """Check row numbers that a file contains.

    Args:
        path: the file, for messages.
        rows: the row numbers.
        of: the number of rows of the data file.

    Returns:
        The row numbers as an integer array.

    Raises:
        TableError: if they are not distinct row numbers of a table of this size.
    """
    rows = np.asarray(rows)
    if rows.ndim != 1 or rows.dtype.kind not in "iu" or not len(rows) or len(np.unique(rows)) < len(rows):
        raise TableError(
            f"{path} does not contain distinct row numbers", "align again", code="SVFL-FILE-DAMAGED", file=str(path)
        )
    if not 0 <= rows.min() <= rows.max() < of:
        raise TableError(
            f"{path} contains row numbers that the data file with its {of} rows does not have: it has changed",
            "align again",
            code="SVFL-TABLE-CHANGED",
            file=str(path),
        )
    return rows.astype(np.intp, copy=False)


@contextmanager
def _write_errors(table: Path) -> Iterator[None]:
    """Raise DataError instead of errors of the operating system that occur while a table is written."""
    try:
        yield
    except OSError as cause:
        raise DataError(
            f"{table} cannot be written ({cause.strerror})",
            "free space, move the data file to a folder that can be written, or set TMPDIR to one for temporary copies",
            code="SVFL-FILE-UNUSABLE",
            file=str(table),
        ) from None
