"""A party larger than one machine: its rows in partitions at the workers of an engine.

    client = distributed.Client("tls://scheduler.example.org:8786", security=security)
    shop = partition_party("shop", "shop.table", DaskBackend(client))
    join(job, shop, "peers.toml")

The table is one that `store_table` wrote, in a folder that every worker and the party's own process read. Each worker
loads one partition of it, a stretch of the file, and keeps it. With all rows in a batch (`batch_size = "all"`) a worker
gets its blocks of [[g]] and gives back ciphertexts, which are added up; forward outputs, moments and X^T X come back as
they are, a block of rows or one d x d at a time. On shares it makes the products of its rows with ciphertexts and with
shares (`securevfl.protocols.shares.remote_columns`). The process that holds the party's line to the others reads ids
and labels, and from the file samples of rows, and batches that are smaller than the table.

No row leaves a worker: a partition that an engine moves, or puts aside, travels as where to read it.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import cast

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.base.chunked_matrix import ChunkedMatrix, RowChunk
from securevfl.data.external_table import ExternalTable, ScaledExternalRows, runs
from securevfl.data.scaling import Scaling
from securevfl.data.schedule import Rows
from securevfl.data.store import StoredParty, StoredTable
from securevfl.data.table_header import TableHeader, read_header, verify_checksum
from securevfl.errors import TableError
from securevfl.runtime.worker_backend import RemoteObject, RemotePart, WorkerBackend


class Partition(ExternalTable):
    """Rows of a stored table, from place `start` to `stop` of its file, in this process's memory.

    TableError if the file is another than that of the party's own process. It travels as where to read it.
    """

    def __init__(self, path: Path, start: int, stop: int, stamp: str) -> None:
        head = read_header(path)
        if _stamp(head) != stamp:
            raise TableError(
                f"{path}: the table of the party's own process was expected, it was stored anew; run again"
            )
        self._made_by = path, start, stop, stamp
        self._rows = StoredTable(path, head).stretch(start, stop)
        self.shape = stop - start, head.shape[1]

    def __reduce__(self) -> tuple[type[Partition], tuple[Path, int, int, str]]:
        return Partition, self._made_by

    def __sizeof__(self) -> int:
        return self._rows.nbytes

    def __getitem__(self, rows: Rows | slice) -> Floats:
        return self._rows[rows].astype(np.float64)

    def tall(self, rows: Rows, scaling: Scaling) -> ChunkedMatrix:
        return ChunkedMatrix.local(ScaledExternalRows(self, rows, scaling))


def _stamp(head: TableHeader) -> str:
    """Equal where the same rows lie at the same places."""
    return f"{head.content} {head.stamp}"


class PartitionedTable(ExternalTable):
    """Rows at workers, partition k of them from place edges[k] of the file to edges[k + 1]."""

    apart = True

    def __init__(self, table: StoredTable, edges: list[int], placed: list[RemoteObject[Partition]]) -> None:
        self.shape = table.shape
        self.edges = edges
        self._table, self._placed = table, placed

    def __getitem__(self, rows: Rows | slice) -> Floats:
        return self._table[rows]

    def tall(self, rows: Rows, scaling: Scaling) -> ChunkedMatrix | None:
        """None for rows in another order than that of the file."""
        rows = self._table.places(rows)
        if not len(rows) or not (np.diff(rows) > 0).all():
            return None
        cuts = np.searchsorted(rows, self.edges).tolist()
        parts = [
            RemotePart(start, stop - start, placed.derive(stretch_of, runs(rows[start:stop] - first), scaling))
            for start, stop, first, placed in zip(cuts, cuts[1:], self.edges, self._placed, strict=False)
            if stop > start
        ]
        return ChunkedMatrix(parts, self.shape[1])


def stretch_of(partition: Partition, rows: Rows | slice, scaling: Scaling) -> RowChunk:
    """Wrap these rows of a partition, scaled when they are read, as a stretch."""
    return RowChunk(ScaledExternalRows(partition, rows, scaling))


class PartitionedParty(StoredParty):
    """A party whose columns are at the workers of an engine. What it is besides is read from its stored table."""

    def __init__(self, name: str, stored: StoredTable, head: TableHeader, table: PartitionedTable) -> None:
        super().__init__(name, stored, head)
        self.X = cast(Floats, table)  # training asks of X its shape, its length, X[rows] and X.tall


def partition_party(
    name: str, table: str | Path, engine: WorkerBackend, *, partitions: int | None = None, rows: int | None = None
) -> PartitionedParty:
    """Create the party of a stored table whose rows go to the engine's workers.

    The rows go in as many partitions as the engine has workers unless told otherwise: in so many `partitions`, or in
    some of so many `rows` each, dealt to the workers in turn. On shares 16,384 rows are best, those of a block of the
    protocol: each block is then at one worker, and parts that grow are at all of them. TableError for more partitions
    than rows; DataError if the table is none, is not whole or has changed.
    """
    path = Path(table).resolve()
    verify_checksum(path)
    head = read_header(path)
    workers = engine.workers
    count = -(-head.rows // rows) if rows else partitions or len(workers)
    if not 0 < count <= head.rows:
        raise TableError(f"{path}: 1 to {head.rows} partitions were expected, {count} came; ask for fewer")
    whole = np.arange(count + 1) * rows if rows else np.linspace(0, head.rows, count + 1).astype(int)
    edges = np.minimum(whole, head.rows).tolist()
    placed = [
        engine.place(workers[k % len(workers)], Partition, path, start, stop, _stamp(head))
        for k, (start, stop) in enumerate(pairwise(edges))
    ]
    stored = StoredTable(path, head)
    return PartitionedParty(name, stored, head, PartitionedTable(stored, edges, placed))
