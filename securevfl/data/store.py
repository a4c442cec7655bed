"""Tables larger than memory: a Parquet file read once into a file of plain rows, and a party that reads from that.

    shop = store_table("shop", "shop.parquet", "shop.table", rows=read_rows("shop.parquet", of=n), job=job)
    shop = open_table("shop", "shop.table")                       # the same party, another day

1. The Parquet file is read in batches; each row goes to the bucket that its place lies in. The checks of `Party` run
   over the batches as they pass.
2. Each bucket is put in order and appended to the table.

Both read and write in sequence. Rows lie in the order in which the job's batches come (its partition is fixed), so a
batch is one read; without a job they lie in shared order, and a batch is a read a row. Any rows can be asked of any
table: the job only makes it fast.

The table is a head (`securevfl.data.store`) and then rows, float32 where that is exact for every column and
float64 elsewhere. It shows what the Parquet file shows: keep it where that is kept.
"""

from __future__ import annotations

import fcntl
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
from securevfl.base.chunked_matrix import ChunkedMatrix
from securevfl.base.files import make_private_folder
from securevfl.data.content_digest import ContentDigest, row_weights
from securevfl.data.external_table import ExternalTable, ScaledExternalRows
from securevfl.data.id_keys import ID_DIGEST, Keys, order_digest
from securevfl.data.parquet_source import ParquetSource
from securevfl.data.party import Party, split
from securevfl.data.readers import named
from securevfl.data.register import PIECE, Register
from securevfl.data.scaling import Scaling
from securevfl.data.schedule import Batched, Rows
from securevfl.data.table_header import TableHeader, file_digest, read_header, verify_checksum, write_header
from securevfl.errors import DataError, TableError

WHOLE = 128 << 20  # bytes of a batch that is read at a time
BUCKET = 32 << 20  # bytes of rows that are put in order at a time

OnProgress = Callable[[int, int], None]


class StoredTable(ExternalTable):
    """Rows on disk. Reads are plain reads, no memory map: mapped pages would count as this process's memory."""

    def __init__(self, path: Path, head: TableHeader) -> None:
        self.shape = head.shape
        self._kind = head.kind
        self._offset = head.rows_at
        self._place = head.place
        self._path = path
        self._file = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)

    def __getitem__(self, rows: Rows | slice) -> Floats:
        at = self.places(rows)
        if len(at) and not 0 <= at.min() <= at.max() < len(self):
            raise IndexError(f"{self._path}: rows below {len(self)} were expected")
        found = self._rising(at, np.empty((len(at), self.shape[1]), self._kind), self._offset)
        return found.astype(np.float64, copy=False)

    def places(self, rows: Rows | slice) -> Rows:
        """Return where these rows (k,) lie in the file."""
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(len(self)))
        return np.asarray(rows) if self._place is None else self._place[rows]

    def stretch(self, start: int, stop: int) -> NDArray[Any]:
        """Read the rows (k x d) that lie from place `start` to `stop`, in the kind of number that the file holds."""
        return self._rising(np.arange(start, stop), np.empty((stop - start, self.shape[1]), self._kind), self._offset)

    def tall(self, rows: Rows, scaling: Scaling) -> ChunkedMatrix | None:
        """None for rows of at most `WHOLE` bytes."""
        if len(rows) * self.shape[1] * 8 <= WHOLE:
            return None
        return ChunkedMatrix.local(ScaledExternalRows(self, rows, scaling))

    def keys(self, rows: Rows, offset: int) -> Keys:
        """Read the digests (k x ID_DIGEST) of these rows from the file, where they begin `offset` bytes in."""
        return self._rising(rows, np.empty((len(rows), ID_DIGEST), np.uint8), offset)

    def numbers(self, offset: int) -> Rows:
        """Read one whole number for each row (n,) from the file, starting `offset` bytes in."""
        read = np.empty(len(self), "<i8")
        self._fill(read.data.cast("B"), offset)
        return read.astype(np.intp, copy=False)

    def digests(self, offset: int) -> Iterator[Keys]:
        """Read a digest for each row (k x ID_DIGEST at a time) from the file, starting `offset` bytes in."""
        for start in range(0, len(self), PIECE):
            read = np.empty((min(PIECE, len(self) - start), ID_DIGEST), np.uint8)
            self._fill(read.data.cast("B"), offset + start * ID_DIGEST)
            yield read

    def _rising(self, at: Rows, read: NDArray[Any], offset: int) -> NDArray[Any]:
        """Fill `read` with the lines at these places of what begins at `offset`, neighbours by one read."""
        if not len(at):
            return read
        steps = np.diff(at)
        order = None if (steps == 1).all() else np.argsort(at)
        at, steps = (at, steps) if order is None else (at[order], np.diff(at[order]))
        flat, size = read.data.cast("B"), read.itemsize * read.shape[1]
        edges = [0, *(np.flatnonzero(steps != 1) + 1).tolist(), len(at)]
        for (start, stop), place in zip(pairwise(edges), at[edges[:-1]].tolist(), strict=True):
            self._fill(flat[start * size : stop * size], offset + place * size)
        if order is None:
            return read
        lines = np.empty_like(read)
        lines[order] = read
        return lines

    def _fill(self, buffer: memoryview, offset: int) -> None:
        while buffer:
            count = os.preadv(self._file, [buffer], offset)
            if not count:
                raise TableError(f"{self._path}: more rows were expected, the file was cut; store the table again")
            buffer, offset = buffer[count:], offset + count


class StoredParty(Party):
    """A party whose columns stay on disk. It has no ids: its rows are in shared order already."""

    def __init__(self, name: str, table: StoredTable, head: TableHeader) -> None:
        self.name = name
        self.columns = head.columns
        self.constant = head.constant
        self.X = cast(Floats, table)  # training asks of X its shape, its length and X[rows]
        self.y = head.y
        self.ids, self.keys = None, None
        self._head, self._table = head, table

    @property
    def named(self) -> bool:
        return True

    def keys_of(self, rows: Rows) -> list[bytes]:
        return split(self._table.keys(np.asarray(rows), self._head.ids_at))

    @property
    def order(self) -> bytes:
        return self._head.order

    @property
    def register(self) -> Register:
        table, head = self._table, self._head
        return Register(len(table), head.key, table.numbers(head.register_at), lambda: table.digests(head.ids_at))

    @property
    def content(self) -> str:
        return self._head.content


def store_table(
    name: str,
    parquet: str | Path,
    table: str | Path,
    *,
    rows: Rows | None = None,
    job: Batched | None = None,
    id_column: str = "id",
    label_column: str = "y",
    on_progress: OnProgress | None = None,
) -> StoredParty:
    """Write the rows of a Parquet file into `table`, whole or not at all, and return the party that reads from it.

    A table that is there already, of the same file, rows and job, is taken as it is.

    rows: row numbers of the file in the order that all parties share (`securevfl.organisations.align`); as they stand
    in the file without. job: whose batches the table will serve. on_progress(rows read, of). Disk: the table, 64
    bytes a
    row and `BUCKET` bytes. Raises DataError as `read_party` does, and where the disk lacks room.
    """
    parquet, table = Path(parquet), Path(table)
    if rows is not None:
        rows = np.asarray(rows)
    stamp = _stamp(parquet, rows, job, id_column, label_column)
    with suppress(DataError):
        if read_header(table).stamp == stamp:
            return open_table(name, table)
    source = ParquetSource(name, parquet, id_column=id_column, label_column=label_column)
    with _drafts(table) as folder, _writing(table):
        _write(source, folder, rows, job, stamp, on_progress).replace(table)
    return open_table(name, table)


def copy_to_temporary_table(
    name: str,
    parquet: str | Path,
    *,
    rows: Rows | None = None,
    job: Batched | None = None,
    id_column: str = "id",
    label_column: str = "y",
    chosen: Sequence[str] | None = None,
    on_progress: OnProgress | None = None,
) -> StoredParty:
    """`store_table` for this process alone: the table, beside the Parquet file, has no name and is gone with the party.

    chosen: these columns alone, for a prediction (`ParquetSource`).
    """
    parquet = Path(parquet)
    source = ParquetSource(name, parquet, id_column=id_column, label_column=label_column, chosen=chosen)
    table = table_path(parquet)
    with _drafts(table) as folder, _writing(table):
        return open_table(name, _write(source, folder, rows, job, "", on_progress))


def table_path(parquet: str | Path) -> Path:
    """Return the path of a Parquet file's stored table: a file beside it."""
    return Path(f"{parquet}.table")


def _stamp(parquet: Path, rows: Rows | None, job: Batched | None, id_column: str, label_column: str) -> str:
    """Equal where a table of the Parquet file would be equal."""
    with named(parquet):
        found = parquet.stat()
    facts = [found.st_size, found.st_mtime_ns, id_column, label_column]
    facts += [] if job is None else [job.batch_size, job.test_fraction, job.split]  # what `_batch_order` depends on
    stamp = hashlib.sha256(json.dumps(facts).encode())
    if rows is not None:
        stamp.update(np.ascontiguousarray(rows).data)
    return stamp.hexdigest()


def _write(
    source: ParquetSource,
    folder: Path,
    rows: Rows | None,
    job: Batched | None,
    stamp: str,
    on_progress: OnProgress | None,
) -> Path:
    """Write the table as a file in the folder, and return its path."""
    keys = source.keys()
    y = source.labels()
    rows = (
        np.arange(source.rows, dtype=np.intp) if rows is None else validate_row_numbers(source.path, rows, source.rows)
    )
    keys = keys[rows]
    register = _spooled(Register.of_ids(keys), folder / "ids", keys)
    order = place = None
    if job is not None:  # rows batch after batch, and then those held out
        schedule = job.schedule(register)
        order = np.concatenate([schedule.flow, schedule.test])
        place = np.empty(len(order), "<i8")
        place[order] = np.arange(len(order))
    digest = order_digest(keys)
    del keys
    buckets = _Buckets(folder, len(rows), source)
    _check_room(source.path, folder, buckets.room + 56 * len(rows))
    at = np.full(source.rows, -1, dtype=np.int64)
    at[rows if order is None else rows[order]] = np.arange(len(rows))
    weights = np.zeros(source.rows, np.uint64)
    weights[rows] = row_weights(register)
    sums = ContentDigest(len(source.columns))
    read = 0
    for X in source.numbers():
        buckets.put(at[read : read + len(X)], X)
        sums.add(X, weights[read : read + len(X)])
        read += len(X)
        if on_progress is not None:
            on_progress(read, source.rows)
    draft = folder / "table"
    with os.fdopen(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600), "w+b") as file:
        head = TableHeader(
            columns=source.columns,
            constant=source.constant,
            rows=len(rows),
            kind=source.kind,
            y=None if y is None else y[rows],
            place=place,
            order=digest,
            key=register.key,
            content=sums.digest(),
            stamp=stamp,
        )
        write_header(file, head, register)
        buckets.empty_into(file)
        file.flush()
        file.write(file_digest(file, file.tell()))
        file.flush()
        os.fsync(file.fileno())
    return draft


def _spooled(register: Register, path: Path, keys: Keys) -> Register:
    """Return the register with its ids read from a file, which takes them: they need not stay in memory."""
    keys.tofile(path)

    def pieces() -> Iterator[Keys]:
        for start in range(0, register.rows, PIECE):
            yield np.fromfile(path, np.uint8, PIECE * ID_DIGEST, offset=start * ID_DIGEST).reshape(-1, ID_DIGEST)

    return replace(register, ids=pieces)


def _check_room(parquet: Path, folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise DataError(
            f"{parquet}: {needed / 1e9:.1f} GB of free disk were expected for a copy to read from, {folder.parent} has "
            f"{free / 1e9:.1f} GB; make room, or move the file to a larger disk"
        )


@contextmanager
def _drafts(table: Path) -> Iterator[Path]:
    """Make a folder beside the table that is removed at the end; first remove those that killed processes left
    behind."""
    with _writing(table):
        make_private_folder(table.parent)
        for left in table.parent.glob(f".{glob.escape(table.name)}.*.parts"):
            _remove_if_left(left)
        folder = Path(tempfile.mkdtemp(prefix=f".{table.name}.", suffix=".parts", dir=table.parent))
        lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # falls with the process
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _remove_if_left(folder: Path) -> None:
    with suppress(OSError):
        lock = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)


def open_table(name: str, table: str | Path) -> StoredParty:
    """Open the party of a table that `store_table` wrote, which is read once to its end (a GB a second). Raises
    DataError if the file is no such table, is not whole or has changed."""
    path = Path(table)
    verify_checksum(path)
    head = read_header(path)
    return StoredParty(name, StoredTable(path, head), head)


class _Buckets:
    """Rows on their way: a file for each stretch of places, in no order within."""

    def __init__(self, folder: Path, rows: int, source: ParquetSource) -> None:
        self._record = np.dtype([("at", "<i8"), ("x", source.kind, (len(source.columns),))])
        most = max(BUCKET, rows * self._record.itemsize // 256)  # so that files stay few
        self._each = max(1, most // self._record.itemsize)
        self._rows = rows
        self._folder = folder
        self._count = -(-rows // self._each)
        self.room = (rows + min(rows, self._each)) * self._record.itemsize  # bytes of disk, most

    def put(self, at: NDArray[np.int64], X: NDArray[Any]) -> None:
        kept = np.flatnonzero(at >= 0)
        kept = kept[np.argsort(at[kept])]
        records = np.empty(len(kept), self._record)
        records["at"], records["x"] = at[kept], X[kept]
        edges = np.searchsorted(records["at"], np.arange(self._count + 1) * self._each)
        for bucket in np.flatnonzero(np.diff(edges)).tolist():
            with (self._folder / str(bucket)).open("ab") as file:
                records[edges[bucket] : edges[bucket + 1]].tofile(file)

    def empty_into(self, file: BinaryIO) -> None:
        """Append all rows to the file, each at its place, and delete each bucket once it is read."""
        for bucket in range(self._count):
            path, start = self._folder / str(bucket), bucket * self._each
            records = np.fromfile(path, self._record)
            ordered = np.empty(
                (min(self._each, self._rows - start), self._record["x"].shape[0]), self._record["x"].base
            )
            ordered[records["at"] - start] = records["x"]
            ordered.tofile(file)
            path.unlink()


def validate_row_numbers(of_file: Path, rows: Rows, of: int) -> Rows:
    """Return row numbers that belong to a file of `of` rows. TableError if they do not."""
    rows = np.asarray(rows)
    if rows.ndim != 1 or rows.dtype.kind not in "iu" or not len(rows) or len(np.unique(rows)) < len(rows):
        raise TableError(f"{of_file}: a list of different row numbers was expected; align again")
    if not 0 <= rows.min() <= rows.max() < of:
        raise TableError(f"{of_file}: row numbers below {of} were expected; the data file has changed, align again")
    return rows.astype(np.intp, copy=False)


@contextmanager
def _writing(table: Path) -> Iterator[None]:
    try:
        yield
    except OSError as cause:
        raise DataError(f"{table}: room to write a table was expected there ({cause.strerror})") from None
