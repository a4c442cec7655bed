"""Tables larger than memory: a Parquet file read once into a file of plain rows, and a party that reads from that.

    shop = store_table("shop", "shop.parquet", "shop.table", rows=read_rows("shop.parquet", of=n), job=job)
    shop = open_table("shop", "shop.table")                       # the same party, another day

1. The Parquet file is read in batches; each row goes to the bucket that its place lies in. The checks of `Party` run
   over the batches as they pass.
2. Each bucket is put in order and appended to the table.

Both read and write in sequence. Rows lie in the order in which the job's batches come (its partition is fixed), so a
batch is one read; without a job they lie in shared order, and a batch is a read a row. Any rows can be asked of any
table: the job only makes it fast.

The table is a header in JSON, labels, places, and rows from `offset` on, float32 where that is exact for every column
and float64 elsewhere. It shows what the Parquet file shows: keep it where that is kept.
"""

from __future__ import annotations

import json
import os
import shutil
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from securevfl.crypto.scheme import Floats
from securevfl.data import check_kind, check_names, ids_of, is_row_index, labels_of, named
from securevfl.errors import DataError, IdError, TableError
from securevfl.job import Job
from securevfl.party import ID_DIGEST, Party, check_extremes, check_labels, id_digest, order_digest
from securevfl.schedule import Rows, Schedule

MAGIC = b"securevfl.table/1\n"
BATCH = 32 << 20  # bytes of Parquet rows in memory at a time
BUCKET = 128 << 20  # bytes of rows that are put in order at a time
ALIGNMENT = 4096


class StoredTable:
    """Rows on disk that read like an array: `shape`, `len` and X[rows], which are copies in float64.

    Reads are plain reads, no memory map: mapped pages would count as this process's memory.
    """

    ndim = 2

    def __init__(
        self, path: Path, offset: int, shape: tuple[int, int], kind: np.dtype[Any], place: Rows | None
    ) -> None:
        self.shape = shape
        self._kind = kind
        self._offset = offset
        self._place = place
        self._path = path
        self._file = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Rows | slice) -> Floats:
        """These rows (k x d)."""
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(len(self)))
        at = np.asarray(rows) if self._place is None else self._place[rows]
        if len(at) and not 0 <= at.min() <= at.max() < len(self):
            raise IndexError(f"{self._path}: rows below {len(self)} were expected")
        if len(at) < 2 or (np.diff(at) == 1).all():
            return self._runs(at)
        order = np.argsort(at)
        table = np.empty((len(at), self.shape[1]))
        table[order] = self._runs(at[order])
        return table

    def _runs(self, at: Rows) -> Floats:
        """Rows at rising places, neighbours by one read."""
        read = np.empty((len(at), self.shape[1]), self._kind)
        if not len(at):
            return read.astype(np.float64)
        flat, size = read.data.cast("B"), self._kind.itemsize * self.shape[1]
        edges = [0, *(np.flatnonzero(np.diff(at) != 1) + 1).tolist(), len(at)]
        for (start, stop), place in zip(pairwise(edges), at[edges[:-1]].tolist(), strict=True):
            self._fill(flat[start * size : stop * size], self._offset + place * size)
        return read.astype(np.float64, copy=False)

    def _fill(self, buffer: memoryview, offset: int) -> None:
        while buffer:
            count = os.preadv(self._file, [buffer], offset)
            if not count:
                raise TableError(f"{self._path}: more rows were expected, the file was cut; store the table again")
            buffer, offset = buffer[count:], offset + count


class StoredParty(Party):
    """A party whose columns stay on disk. It has no ids: its rows are in shared order already."""

    def __init__(self, name: str, table: StoredTable, columns: list[str], y: NDArray[Any] | None, order: bytes) -> None:
        self.name = name
        self.columns = columns
        self.X = cast(Floats, table)  # training asks of X its shape, its length and X[rows]
        self.y = y
        self.ids = None
        self._order = order

    @property
    def order(self) -> bytes:
        return self._order


def store_table(
    name: str,
    parquet: str | Path,
    table: str | Path,
    *,
    rows: Rows | None = None,
    job: Job | None = None,
    id_column: str = "id",
    label_column: str = "y",
) -> StoredParty:
    """Writes the rows of a Parquet file into `table`, whole or not at all, and returns the party that reads from it.

    rows: row numbers of the file in the order that all parties share (`securevfl.alignment`); as they stand in the
    file without. job: whose batches the table will serve. Disk: twice the table while it is made. Raises DataError
    as `read_party` does.
    """
    parquet, table = Path(parquet), Path(table)
    with named(parquet):
        source = _Source(name, parquet, id_column, label_column)
        keys = source.keys()
        y = source.labels()
        rows = np.arange(source.rows, dtype=np.intp) if rows is None else _checked(rows, source.rows)
    order = None if job is None else _batch_order(job, len(rows))
    header: dict[str, Any] = {
        "columns": source.columns,
        "rows": len(rows),
        "kind": source.kind.str,
        "labels": y is not None,
        "places": order is not None,
        "order": order_digest([keys[rows].tobytes()]).hex(),
    }
    del keys
    draft, parts = (table.with_name(f".{table.name}.{os.getpid()}{end}") for end in ("", ".parts"))
    try:
        with _writing(table):
            table.parent.mkdir(parents=True, exist_ok=True)
            parts.mkdir(mode=0o700)
        buckets = _Buckets(parts, table, len(rows), source)
        at = np.full(source.rows, -1, dtype=np.int64)
        at[rows if order is None else rows[order]] = np.arange(len(rows))
        with named(parquet):
            source.pour(at, buckets)
        with _writing(table), os.fdopen(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
            _write_head(file, header, None if y is None else y[rows], order)
            buckets.empty_into(file)
            file.flush()
            os.fsync(file.fileno())
            draft.replace(table)
    finally:
        draft.unlink(missing_ok=True)
        shutil.rmtree(parts, ignore_errors=True)
    return open_table(name, table)


def open_table(name: str, table: str | Path) -> StoredParty:
    """The party of a table that `store_table` wrote. DataError if it is none or is not whole."""
    path = Path(table)
    try:
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise ValueError
            header = json.loads(file.readline())
            kind, shape = np.dtype(header["kind"]), (int(header["rows"]), len(header["columns"]))
            y = np.load(file, allow_pickle=False) if header["labels"] else None
            place = np.load(file, allow_pickle=False) if header["places"] else None
            offset = -(-file.tell() // ALIGNMENT) * ALIGNMENT
            if file.seek(0, os.SEEK_END) != offset + shape[0] * shape[1] * kind.itemsize:
                raise ValueError
        return StoredParty(
            name, StoredTable(path, offset, shape, kind, place), header["columns"], y, bytes.fromhex(header["order"])
        )
    except OSError as cause:
        raise DataError(f"{path}: a stored table was expected there ({cause.strerror}); store it first") from None
    except (ValueError, KeyError, TypeError, EOFError):
        raise DataError(f"{path}: a whole table of {MAGIC.decode().strip()} was expected; store it again") from None


class _Source:
    """The Parquet file."""

    def __init__(self, name: str, path: Path, id_column: str, label_column: str) -> None:
        import pyarrow as pa
        from pyarrow import parquet

        try:
            # column chunks in pieces: a row group may be as large as the file
            self._file = parquet.ParquetFile(path, buffer_size=1 << 18, pre_buffer=False)
        except pa.ArrowException:
            raise TableError("a Parquet file was expected; it is none, or it is damaged") from None
        schema = self._file.schema_arrow
        names = [column for column in schema.names if not is_row_index(column)]
        check_names(names, id_column)
        self._name, self._id, self._label = name, id_column, label_column
        self.columns = [column for column in names if column not in (id_column, label_column)]
        self.labelled = label_column in names
        self.rows = int(self._file.metadata.num_rows)
        if not self.columns:
            raise TableError("at least one column beside ids and labels was expected, none came; add columns")
        if not self.rows:
            raise TableError("rows were expected below the header, none came; export the table again")
        for column in self.columns:
            check_kind(column, schema.field(column).type)
        exact = {pa.float16(), pa.float32(), pa.bool_(), pa.int8(), pa.int16(), pa.uint8(), pa.uint16()}
        narrow = all(schema.field(column).type in exact for column in self.columns)
        self.kind = np.dtype("<f4" if narrow else "<f8")

    def keys(self) -> NDArray[np.uint8]:
        """A digest (rows x 16) of every id. IdError if one is missing, none, or occurs twice."""
        column = self._file.read(columns=[self._id])[self._id]
        if column.null_count:
            ids_of(column, self._id)
        keys = np.empty((self.rows, ID_DIGEST), np.uint8)
        row = 0
        for batch in column.chunks:
            for start in range(0, len(batch), 1 << 16):
                ids = batch.slice(start, 1 << 16).to_pylist()
                digests = b"".join(id_digest(self._name, value) for value in ids)
                keys[row : row + len(ids)] = np.frombuffer(digests, np.uint8).reshape(-1, ID_DIGEST)
                row += len(ids)
        _, counts = np.unique(keys.view(f"V{ID_DIGEST}"), return_counts=True)
        if twice := int((counts > 1).sum()):
            raise IdError(
                f"party {self._name}: unique ids were expected, {twice} ids occur more than once; keep one row of each"
            )
        return keys

    def labels(self) -> NDArray[Any] | None:
        """Labels of all rows, checked."""
        if not self.labelled:
            return None
        y = labels_of(self._file.read(columns=[self._label]), self._label, typed=True)
        return None if y is None else check_labels(self._name, y, self.rows)

    def pour(self, at: NDArray[np.int64], buckets: _Buckets) -> None:
        """Hands every row to its bucket; `at` (rows,) says which place it takes, -1 none. Raises what `Party` does."""
        import pyarrow as pa

        d = len(self.columns)
        low, high, nulls = np.full(d, np.inf), np.full(d, -np.inf), np.zeros(d, np.int64)
        row = 0
        try:
            for batch in self._file.iter_batches(batch_size=max(1, BATCH // (8 * d)), columns=self.columns):
                X = np.empty((len(batch), d), self.kind)
                for j, name in enumerate(self.columns):
                    column = batch.column(name)
                    nulls[j] += column.null_count
                    X[:, j] = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
                low, high = np.minimum(low, X.min(axis=0)), np.maximum(high, X.max(axis=0))
                buckets.put(at[row : row + len(batch)], X)
                row += len(batch)
        except pa.ArrowException:
            raise TableError("a whole Parquet file was expected, it is damaged; export it again") from None
        empty = [self.columns[j] for j in np.flatnonzero(nulls == self.rows)]
        if empty:
            raise TableError(f"columns with values were expected, column {empty[0]} is empty; drop it")
        check_extremes(self._name, low, high, self.columns, self.rows)


class _Buckets:
    """Rows on their way: a file for each stretch of places, in no order within."""

    def __init__(self, folder: Path, table: Path, rows: int, source: _Source) -> None:
        self._record = np.dtype([("at", "<i8"), ("x", source.kind, (len(source.columns),))])
        most = max(BUCKET, rows * self._record.itemsize // 256)  # so that files stay few
        self._each = max(1, most // self._record.itemsize)
        self._rows = rows
        self._folder = folder
        self._table = table
        self._count = -(-rows // self._each)

    def put(self, at: NDArray[np.int64], X: NDArray[Any]) -> None:
        kept = np.flatnonzero(at >= 0)
        kept = kept[np.argsort(at[kept])]
        records = np.empty(len(kept), self._record)
        records["at"], records["x"] = at[kept], X[kept]
        edges = np.searchsorted(records["at"], np.arange(self._count + 1) * self._each)
        with _writing(self._table):
            for bucket in np.flatnonzero(np.diff(edges)).tolist():
                with (self._folder / str(bucket)).open("ab") as file:
                    records[edges[bucket] : edges[bucket + 1]].tofile(file)

    def empty_into(self, file: BinaryIO) -> None:
        """Appends all rows, each to its place."""
        for bucket in range(self._count):
            path, start = self._folder / str(bucket), bucket * self._each
            records = np.fromfile(path, self._record)
            ordered = np.empty(
                (min(self._each, self._rows - start), self._record["x"].shape[0]), self._record["x"].base
            )
            ordered[records["at"] - start] = records["x"]
            ordered.tofile(file)
            path.unlink()


def _write_head(file: BinaryIO, header: dict[str, Any], y: NDArray[Any] | None, order: Rows | None) -> None:
    file.write(MAGIC + json.dumps(header).encode() + b"\n")
    if y is not None:
        np.save(file, y, allow_pickle=False)
    if order is not None:
        place = np.empty(len(order), "<i8")
        place[order] = np.arange(len(order))
        np.save(file, place, allow_pickle=False)
    file.write(bytes(-file.tell() % ALIGNMENT))
    file.flush()


def _batch_order(job: Job, rows: int) -> Rows:
    """Shared rows, batch after batch, and then those held out."""
    schedule = Schedule(
        rows,
        batch_size=job.batch_size,
        epochs=job.epochs,
        seed=job.seed,
        test_fraction=job.test_fraction,
        reshuffle=job.reshuffle,
    )
    return np.concatenate([schedule.flow, schedule.test])


def _checked(rows: Rows, of: int) -> Rows:
    rows = np.asarray(rows)
    if rows.ndim != 1 or rows.dtype.kind not in "iu" or not len(rows) or len(np.unique(rows)) < len(rows):
        raise TableError("a list of different row numbers was expected; align again")
    if not 0 <= rows.min() <= rows.max() < of:
        raise TableError(f"row numbers below {of} were expected; the data file has changed, align again")
    return rows.astype(np.intp, copy=False)


@contextmanager
def _writing(table: Path) -> Iterator[None]:
    try:
        yield
    except OSError as cause:
        raise DataError(f"{table}: room to write a table was expected there ({cause.strerror})") from None
