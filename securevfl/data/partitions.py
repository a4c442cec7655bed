"""A party whose table is larger than one machine: Dask workers each hold a *partition*, a range of its rows.

    client = distributed.Client("tls://scheduler.example.org:8786", security=security)
    shop = partition_party("shop", "shop.table", DaskBackend(client))
    join(job, shop, "peers.toml")

`store_table` writes the table to a folder that all workers and the party's main process can read. Each worker loads one
partition into its memory and computes with its rows: products with encrypted or shared residuals, model outputs, and
moments. It returns results, never rows. The main process is connected to the other parties; it reads ids, labels,
samples of rows and small batches. If Dask moves a partition, it transfers only the path and range of its rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import cast

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.base.chunked_matrix import ChunkedMatrix, RowChunk
from securevfl.data.external_table import ExternalTable, ScaledExternalRows, as_slice
from securevfl.data.scaling import Scaling
from securevfl.data.schedule import Rows
from securevfl.data.store import StoredParty, StoredTable
from securevfl.data.table_header import TableHeader, read_header, verify_checksum
from securevfl.errors import TableError
from securevfl.runtime.worker_backend import RemoteObject, RemotePart, WorkerBackend


class Partition(ExternalTable):
    """Rows of a stored table in the memory of one worker. A pickled partition contains only where to read its rows.

    Args:
        path: the stored table.
        start: position of the first row.
        stop: position behind the last row.
        stamp: a digest of the stored table that the main process has opened, to detect that the file was replaced.

    Raises:
        TableError: if the file is another table.
    """

    def __init__(self, path: Path, start: int, stop: int, stamp: str) -> None:
        header = read_header(path)
        if _stamp(header) != stamp:
            raise TableError(
                f"{path} was stored again since this party's process opened it",
                "start the run again",
                code="SVFL-TABLE-CHANGED",
                file=str(path),
            )
        self._arguments = path, start, stop, stamp
        self._rows = StoredTable(path, header).read_range(start, stop)
        self.shape = stop - start, header.shape[1]

    def __reduce__(self) -> tuple[type[Partition], tuple[Path, int, int, str]]:
        return Partition, self._arguments

    def __sizeof__(self) -> int:
        return self._rows.nbytes

    def __getitem__(self, rows: Rows | slice) -> Floats:
        return self._rows[rows].astype(np.float64)

    def scaled_matrix(self, rows: Rows, scaling: Scaling) -> ChunkedMatrix:
        """Return these rows, scaled, as a matrix that is read in chunks."""
        return ChunkedMatrix.local(ScaledExternalRows(self, rows, scaling))


def _stamp(header: TableHeader) -> str:
    """Return a digest that is equal for stored tables with the same rows in the same positions of the file."""
    return f"{header.content} {header.stamp}"


class PartitionedTable(ExternalTable):
    """A table whose rows are at workers: partition k has positions edges[k] to edges[k + 1] - 1 of the file."""

    is_remote = True

    def __init__(self, table: StoredTable, edges: list[int], placed: list[RemoteObject[Partition]]) -> None:
        self.shape = table.shape
        self.edges = edges
        self._table, self._placed = table, placed

    def __getitem__(self, rows: Rows | slice) -> Floats:
        return self._table[rows]

    def blocks(self, rows: Rows) -> Iterator[Floats]:
        """Yield these rows in blocks (k, d) from the file."""
        return self._table.blocks(rows)

    def select(self, rows: Rows, columns: Sequence[int]) -> Floats:
        """Return these columns of these rows (k, c) from the file."""
        return self._table.select(rows, columns)

    def scaled_matrix(self, rows: Rows, scaling: Scaling) -> ChunkedMatrix | None:
        """Return a matrix of the rows, which workers scale and multiply; None if rows are not in the file's order."""
        positions = self._table.positions(rows)
        if not len(positions) or not (np.diff(positions) > 0).all():
            return None
        cuts = np.searchsorted(positions, self.edges).tolist()
        parts = [
            RemotePart(
                start,
                stop - start,
                placed.derive(scaled_rows, as_slice(positions[start:stop] - first), scaling),
            )
            for start, stop, first, placed in zip(cuts, cuts[1:], self.edges, self._placed, strict=False)
            if stop > start
        ]
        return ChunkedMatrix(parts, self.shape[1])


def scaled_rows(partition: Partition, rows: Rows | slice, scaling: Scaling) -> RowChunk:
    """Return rows of a partition as a chunk that scales them when they are read."""
    return RowChunk(ScaledExternalRows(partition, rows, scaling))


class PartitionedParty(StoredParty):
    """A party whose columns are in the memory of workers. Ids, labels and samples are read from its stored table."""

    def __init__(self, name: str, stored: StoredTable, header: TableHeader, table: PartitionedTable) -> None:
        super().__init__(name, stored, header)
        # this is not an array, but training uses only its shape, its length, X[rows] and X.scaled_matrix
        self.X = cast(Floats, table)


def partition_party(
    name: str, table: str | Path, engine: WorkerBackend, *, partitions: int | None = None, rows: int | None = None
) -> PartitionedParty:
    """Create the party of a stored table whose rows are distributed to the workers of an engine.

    For a training on secret shares, partitions of 16,384 rows are best. The protocol multiplies blocks of that size, so
    each block is at one worker, and a random subset of blocks keeps all workers busy.

    Args:
        name: name of the party.
        table: the stored table.
        engine: the cluster, such as a `DaskBackend`.
        partitions: the number of partitions; by default one for each worker.
        rows: the number of rows of a partition, instead of `partitions`; the workers get partitions in turn.

    Returns:
        The party. DataError if the table is not a complete stored table, or was altered.

    Raises:
        TableError: if there would be more partitions than rows.
    """
    path = Path(table).resolve()
    verify_checksum(path)
    header = read_header(path)
    workers = engine.workers
    count = -(-header.rows // rows) if rows else partitions or len(workers)
    if not 0 < count <= header.rows:
        raise TableError(
            f"{path} with {header.rows} rows cannot be divided into {count} partitions",
            f"ask for 1 to {header.rows} partitions",
            code="SVFL-TABLE-SHAPE",
            file=str(path),
        )
    bounds = np.arange(count + 1) * rows if rows else np.linspace(0, header.rows, count + 1).astype(int)
    edges = np.minimum(bounds, header.rows).tolist()
    placed = [
        engine.place(workers[k % len(workers)], Partition, path, start, stop, _stamp(header))
        for k, (start, stop) in enumerate(pairwise(edges))
    ]
    stored = StoredTable(path, header)
    return PartitionedParty(name, stored, header, PartitionedTable(stored, edges, placed))
