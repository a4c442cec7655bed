"""A party larger than one machine: its rows in partitions at the workers of an engine.

    client = distributed.Client("tls://scheduler.example.org:8786", security=security)
    shop = partition_party("shop", "shop.table", DaskPlacing(client))
    join(job, shop, "peers.toml")

The table is one that `store_table` wrote, in a folder that every worker reads. Each worker loads one partition of its
rows (a stretch of the order that all parties share) and keeps it, scaled rows and prepared plaintexts of it. With all
rows in a batch (`batch_size = "all"`) a worker gets its blocks of [[g]] and gives back ciphertexts, which are added up;
forward outputs, moments and X^T X come back as they are, a block of rows or one d x d at a time. The process that
holds the party's line to the others reads ids and labels, and rows only of batches that are smaller than the table.

On shares every product meets masks of the party's own process, which workers must not see, so all rows would travel to
it in every visit: a job on shares refuses such a party.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.base.tall import BLOCK, Stretch, Tall
from securevfl.data.scaling import Outside, ScaledOutsideRows, Scaling, runs
from securevfl.data.schedule import Rows
from securevfl.data.store import Head, StoredParty, StoredTable, check_whole, read_head
from securevfl.errors import TableError
from securevfl.runtime.placing import Placed, PlacedPart, Placing


class PartitionedTable(Outside):
    """Rows at workers, partition k of them from row edges[k] to edges[k + 1]."""

    apart = True

    apart = True

    def __init__(self, shape: tuple[int, int], edges: list[int], placed: list[Placed[NDArray[Any]]]) -> None:
        self.shape = shape
        self.edges = edges
        self._placed = placed

    def __getitem__(self, rows: Rows | slice) -> Floats:
        at = np.arange(*rows.indices(len(self))) if isinstance(rows, slice) else np.asarray(rows)
        found = np.empty((len(at), self.shape[1]))
        coming = []
        for (start, stop), placed in zip(pairwise(self.edges), self._placed, strict=True):
            own = np.flatnonzero((at >= start) & (at < stop))
            if len(own):
                coming.append((own, placed.run(_rows, at[own] - start)))
        for own, part in coming:
            found[own] = part.result()[0]
        return found

    def tall(self, rows: Rows, scaling: Scaling) -> Tall | None:
        """None for rows in another order than theirs."""
        if len(rows) < 2 or not (np.diff(rows) > 0).all():
            return None
        cuts = np.searchsorted(rows, self.edges).tolist()
        parts = [
            PlacedPart(start, stop - start, placed.derive(stretch_of, runs(rows[start:stop] - first), scaling))
            for start, stop, first, placed in zip(cuts, cuts[1:], self.edges, self._placed, strict=False)
            if stop > start
        ]
        return Tall(parts, self.shape[1])


def load_rows(table: Path, start: int, stop: int) -> NDArray[Any]:
    """Read these rows of a stored table, in the kind of number that it holds."""
    head = read_head(table)
    stored = StoredTable(table, head)
    found = np.empty((stop - start, head.shape[1]), head.kind)
    step = max(1, BLOCK // head.shape[1])
    for at in range(start, stop, step):
        found[at - start : min(stop, at + step) - start] = stored[np.arange(at, min(stop, at + step))]
    return found


def stretch_of(table: NDArray[Any], rows: Rows | slice, scaling: Scaling) -> Stretch:
    """Wrap these rows of a partition, scaled when they are read, as a stretch."""
    return Stretch(ScaledOutsideRows(table, rows, scaling))


def _rows(table: NDArray[Any], rows: Rows) -> Floats:
    return table[rows].astype(np.float64)


class PartitionedParty(StoredParty):
    """A party whose columns are at the workers of an engine. What it is besides is read from its stored table."""

    def __init__(self, name: str, path: Path, head: Head, table: PartitionedTable) -> None:
        super().__init__(name, StoredTable(path, head), head)
        self.X = cast(Floats, table)  # training asks of X its shape, its length, X[rows] and X.tall


def partition_party(
    name: str, table: str | Path, engine: Placing, *, partitions: int | None = None
) -> PartitionedParty:
    """Create the party of a stored table whose rows go to the engine's workers.

    The rows go in as many partitions as the engine has workers unless told otherwise. TableError for more partitions
    than rows; DataError if the table is none, is not whole or has changed.
    """
    path = Path(table).resolve()
    check_whole(path)
    head = read_head(path)
    workers = engine.workers
    count = partitions or len(workers)
    if not 0 < count <= head.rows:
        raise TableError(f"{path}: 1 to {head.rows} partitions were expected, {count} came; ask for fewer")
    edges = np.linspace(0, head.rows, count + 1).astype(int).tolist()
    placed = [
        engine.place(workers[k % len(workers)], load_rows, path, start, stop)
        for k, (start, stop) in enumerate(pairwise(edges))
    ]
    return PartitionedParty(name, path, head, PartitionedTable(head.shape, edges, placed))
