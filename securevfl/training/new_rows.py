"""New rows of one party for a prediction, in blocks: from an array, or from a file of any size.

A Parquet file of numbers is read block by block, and once before that: what is wrong with it is said before anything
is sent. If an alignment has left a row order beside it, it is first copied into that order
(`securevfl.data.store.copy_to_temporary_table`). Other files, and those that the model prepares, are held in memory. So
are the ids, and digests of them while they are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from securevfl.base.arrays import Floats
from securevfl.data.columns import Columns
from securevfl.data.id_keys import id_keys, order_digest
from securevfl.data.load import read_order
from securevfl.data.parquet_source import ParquetSource
from securevfl.data.readers import errors_name, read_table
from securevfl.data.store import OnProgress, copy_to_temporary_table
from securevfl.errors import IdError, TableError
from securevfl.training.model_part import ModelPart

ROWS_PER_BLOCK = 16_384  # rows
NO_TABLE = -1  # in place of a number of rows, of a party without a table


@dataclass(frozen=True)
class NewRows:
    """count: of rows. order: a digest of their ids, by which parties compare; empty without ids.

    blocks(): the ids (list, or None) and the numbers (BLOCK x d, the last one shorter), checked but not scaled.
    """

    count: int
    order: bytes
    blocks: Callable[[], Iterator[tuple[list[Any] | None, NDArray[Any]]]]


@dataclass(frozen=True)
class IndexedRows:
    """A party's rows in memory, to be picked by their ids: ids of any type, numbers (m x d), checked but not scaled."""

    name: str
    ids: list[Any]
    X: NDArray[Any]

    @classmethod
    def of(cls, name: str, rows: NewRows) -> IndexedRows:
        """All rows at once. IdError if there are none or they have no ids."""
        blocks = list(rows.blocks())
        ids = [each for own, _ in blocks if own is not None for each in own]
        if not ids:
            raise IdError(f"party {name}: rows with ids were expected, none came; name the column of ids")
        return cls(name, ids, np.concatenate([X for _, X in blocks]))

    def take(self, order: NDArray[np.intp]) -> NewRows:
        """Return these rows in this order, in blocks."""
        ids, X = [self.ids[row] for row in order.tolist()], self.X[order]
        return NewRows(len(X), order_digest(id_keys(self.name, [ids])), lambda: _zipped(_slices(X), ids))


def no_rows(count: int = NO_TABLE) -> NewRows:
    """Return the rows of a party without a table: as many as the others have, once that is known."""
    sizes = (min(ROWS_PER_BLOCK, count - start) for start in range(0, count, ROWS_PER_BLOCK))
    return NewRows(count, b"", lambda: ((None, np.empty((size, 0))) for size in sizes))


def rows_of_array(part: ModelPart, X: ArrayLike | Columns, ids: Sequence[Any] | NDArray[Any] | None) -> NewRows:
    """X (m x d) or one row (d,); with column names they are found by name. TableError or IdError."""
    table = part.table(X)
    own = None if ids is None else np.asarray(ids)
    if own is not None and own.shape != (len(table),):
        raise TableError(
            f"party {part.name}: one id for each of {len(table)} rows was expected, shape {own.shape} came"
        )
    order = b"" if own is None else order_digest(id_keys(part.name, [own]))
    return NewRows(len(table), order, lambda: _zipped(_slices(table), None if own is None else own.tolist()))


def rows_of_file(
    part: ModelPart, path: Path, *, id_column: str, on_progress: OnProgress | None = None, ordered: bool = True
) -> NewRows:
    """Return the columns of the training from a file, in the row order beside it if there is one and it is wanted
    (`ordered`): who picks rows by their ids has all of them.

    on_progress(rows read, of) of a Parquet file. DataError that names the file and what is missing or wrong.
    """
    if path.suffix == ".parquet" and not part.preparation.steps:
        return _parquet(part, path, id_column, on_progress, ordered=ordered)
    table = read_table(path, id_column=id_column, label_column="", chosen=part.columns, texts=part.preparation.texts)
    if table.ids is None:
        raise IdError(f"{path}: ids were expected, none came; add an array ids")
    order = read_order(path, len(table.columns.X)) if ordered else None
    with errors_name(path):
        if order is None:
            return rows_of_array(part, table.columns, table.ids)
        return rows_of_array(part, replace(table.columns, X=table.columns.X[order]), table.ids[order])


def _parquet(part: ModelPart, path: Path, id_column: str, on_progress: OnProgress | None, *, ordered: bool) -> NewRows:
    source = ParquetSource(part.name, path, id_column=id_column, chosen=part.columns)
    order = read_order(path, source.rows) if ordered else None
    if order is not None:
        stored = copy_to_temporary_table(
            part.name, path, rows=order, id_column=id_column, chosen=part.columns, on_progress=on_progress
        )
        ids = source.ids().combine_chunks().take(order)
        return NewRows(len(stored), stored.order, lambda: _zipped(_slices(stored.X), ids))
    digest = order_digest(source.keys())
    read = 0
    for X in source.numbers():
        read += len(X)
        if on_progress is not None:
            on_progress(read, source.rows)
    ids = source.ids()
    return NewRows(source.rows, digest, lambda: _zipped(_even(source.numbers(ROWS_PER_BLOCK)), ids))


def _zipped(blocks: Iterable[NDArray[Any]], ids: Any) -> Iterator[tuple[list[Any] | None, NDArray[Any]]]:
    """Blocks with their ids, a list or an Arrow array."""
    start = 0
    for X in blocks:
        own = None if ids is None else ids[start : start + len(X)]
        yield own if own is None or isinstance(own, list) else own.to_pylist(), X
        start += len(X)


def _slices(X: Floats) -> Iterator[Floats]:
    return (X[start : start + ROWS_PER_BLOCK] for start in range(0, len(X), ROWS_PER_BLOCK))


def _even(batches: Iterable[NDArray[Any]]) -> Iterator[NDArray[Any]]:
    """Yield the same rows, BLOCK at a time."""
    held: list[NDArray[Any]] = []
    count = 0
    for batch in batches:
        for piece in np.split(batch, range(ROWS_PER_BLOCK - count, len(batch), ROWS_PER_BLOCK)):
            held.append(piece)
            count += len(piece)
            if count == ROWS_PER_BLOCK:
                yield np.concatenate(held)
                held, count = [], 0
    if count:
        yield np.concatenate(held)
