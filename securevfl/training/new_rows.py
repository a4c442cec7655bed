"""New rows of one party for a prediction, in blocks, from an array or from a file of any size.

A Parquet file of numbers is read block by block. It is also read once before that, so that all its problems are
reported before anything is sent. If an alignment has stored a row order next to it, it is first copied into that order
(`securevfl.data.store.copy_to_temporary_table`). Other files, and those that the model prepares, are stored in memory,
and so are ids and their digests while they are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from securevfl.base.arrays import Floats
from securevfl.data.arrow_dataset import is_arrow
from securevfl.data.columns import Columns
from securevfl.data.composite_ids import IdColumns
from securevfl.data.id_keys import id_keys, order_digest
from securevfl.data.load import read_order
from securevfl.data.parquet_source import ParquetSource
from securevfl.data.read_options import ReadOptions
from securevfl.data.readers import errors_name, read_table
from securevfl.data.register import Rows
from securevfl.data.row_matching import ids_of_rows
from securevfl.data.store import OnProgress, copy_to_temporary_table
from securevfl.errors import IdError, TableError
from securevfl.training.model_part import ModelPart

SCORED_ROWS_PER_BLOCK = 16_384  # number of rows of a block
NO_TABLE = -1  # value of `NewRows.count` for a party without a table, whose number of rows is not known


@dataclass(frozen=True)
class NewRows:
    """New rows of one party, which are read block by block.

    Attributes:
        count: number of rows.
        order: digest of the ids in their order, by which parties check that their rows agree; empty without ids.
        blocks: yields the ids (list, or None) and the numbers (`SCORED_ROWS_PER_BLOCK`, d) of each block, checked but
            not scaled. The last block is shorter.
        key: the id columns of a file.
        written: for each id, the unchanged values of the id columns, if ids are composed of them
            (`data.composite_ids`).
        file_rows: the position (m,) of each row in its file; None if the rows have the order of the file.
    """

    count: int
    order: bytes
    blocks: Callable[[], Iterator[tuple[list[Any] | None, NDArray[Any]]]]
    key: IdColumns | None = None
    written: Mapping[Any, Any] = field(default_factory=dict, repr=False)
    file_rows: Rows | None = None


@dataclass(frozen=True)
class IndexedRows:
    """A party's rows in memory, from which rows are selected by id.

    Attributes:
        name: name of the party.
        ids: ids of any type.
        X: numbers (m, d), checked but not scaled.
        key: the id columns of a file.
        written: for each id, the unchanged values of the id columns, if ids are composed of them.
        file_rows: the position (m,) of each row in its file; None if the rows have the order of the file.
    """

    name: str
    ids: list[Any]
    X: NDArray[Any]
    key: IdColumns | None = None
    written: Mapping[Any, Any] = field(default_factory=dict, repr=False)
    file_rows: Rows | None = None

    @classmethod
    def of(cls, name: str, rows: NewRows) -> IndexedRows:
        """Collect all rows.

        Args:
            name: name of the party, for the error.
            rows: the rows, by block.

        Returns:
            The rows with an index of their ids.

        Raises:
            IdError: if there are no rows, or they have no ids.
        """
        blocks = list(rows.blocks())
        ids = [row_id for block_ids, _ in blocks if block_ids is not None for row_id in block_ids]
        if not ids:
            raise IdError(
                f"party {name}: there are no rows with ids", "name the id column", code="SVFL-ID-MISSING", party=name
            )
        return cls(name, ids, np.concatenate([X for _, X in blocks]), rows.key, rows.written, rows.file_rows)

    def take(self, order: NDArray[np.intp]) -> NewRows:
        """Return the rows at these positions, in this order."""
        ids, X = [self.ids[row] for row in order.tolist()], self.X[order]
        digest = order_digest(id_keys(self.name, [ids]))
        return NewRows(len(X), digest, lambda: _zipped(_slices(X), ids), self.key, self.written)


def no_rows(count: int = NO_TABLE) -> NewRows:
    """Return `count` rows without columns, for a party without a table; by default their number is not known."""
    starts = range(0, count, SCORED_ROWS_PER_BLOCK)
    sizes = [min(SCORED_ROWS_PER_BLOCK, count - start) for start in starts]  # a list, since blocks may be read twice
    return NewRows(count, b"", lambda: ((None, np.empty((size, 0))) for size in sizes))


def rows_of_array(part: ModelPart, X: ArrayLike | Columns, ids: Sequence[Any] | NDArray[Any] | None) -> NewRows:
    """Return rows from an array.

    Args:
        part: the party's part of the model.
        X: rows (m, d) or one row (d,); columns are found by name if X has names.
        ids: the ids of the rows; by default the index of a frame, if it has a name or differs from 0 to m - 1.

    Returns:
        The rows.

    Raises:
        TableError: if the number of ids differs from the number of rows.
    """
    table = part.table(X)
    row_ids = ids_of_rows(X, ids)
    if row_ids is not None and row_ids.shape != (len(table),):
        raise TableError(
            f"party {part.name}: the ids have shape {row_ids.shape}, and there are {len(table)} rows",
            "pass one id for each row",
            code="SVFL-TABLE-SHAPE",
            party=part.name,
        )
    order = b"" if row_ids is None else order_digest(id_keys(part.name, [row_ids]))
    return NewRows(len(table), order, lambda: _zipped(_slices(table), None if row_ids is None else row_ids.tolist()))


def rows_of_file(
    part: ModelPart,
    path: Path,
    options: ReadOptions = ReadOptions(),
    *,
    on_progress: OnProgress | None = None,
    ordered: bool = True,
) -> NewRows:
    """Return the columns of the training from a file.

    Args:
        part: the party's part of the model, which has the columns and their types.
        path: the file.
        options: the id column, and what happens to several rows of one id.
        on_progress: called with the number of rows that are read, and of all rows, of a Parquet file.
        ordered: whether to use the row order next to the file, if there is one.

    Returns:
        The rows.

    Raises:
        IdError: if the file has no ids.
    """
    types = part.preparation.types
    chosen = replace(options, chosen=part.columns)
    if is_arrow(path) and not part.preparation.steps and all(kind.is_plain for kind in types.values()):
        return _parquet(part, path, chosen, on_progress, ordered=ordered)
    table = read_table(path, replace(chosen, label_column="", known=types))
    if table.ids is None:
        raise IdError(f"{path}: the file has no ids", "add an array ids", code="SVFL-ID-MISSING", path=str(path))
    order = read_order(path, len(table.ids) if table.unique is None else table.unique.total) if ordered else None
    file_rows = table.unique.rows if order is None and table.unique is not None else order
    with errors_name(path):
        columns, ids = table.columns, table.ids
        if order is not None:
            order = order if table.unique is None else table.unique.positions_of(order)
            columns, ids = replace(columns, X=columns.X[order]), ids[order]
        written = dict(zip(table.ids.tolist(), table.written or (), strict=False))
        return replace(rows_of_array(part, columns, ids), key=table.key, written=written, file_rows=file_rows)


def _parquet(
    part: ModelPart, path: Path, options: ReadOptions, on_progress: OnProgress | None, *, ordered: bool
) -> NewRows:
    source = ParquetSource(part.name, path, options)
    order = read_order(path, source.rows) if ordered else None
    if order is None and source.unique is not None:
        order = source.unique.rows
    if order is not None:
        stored = copy_to_temporary_table(part.name, path, options, rows=order, on_progress=on_progress)
        ids = source.ids().combine_chunks().take(order)
        blocks = partial(_zipped_slices, stored.X, ids)
        return NewRows(len(stored), stored.order, blocks, source.key, _written(source), order)
    digest = order_digest(source.keys())
    read = 0
    for X in source.numbers():
        read += len(X)
        if on_progress is not None:
            on_progress(read, source.rows)
    ids = source.ids()
    return NewRows(
        source.rows,
        digest,
        lambda: _zipped(_even(source.numbers(SCORED_ROWS_PER_BLOCK)), ids),
        source.key,
        _written(source),
    )


def _written(source: ParquetSource) -> dict[Any, Any]:
    """Return for each id the values of the id columns as the file has them; {} if ids are not composed of several."""
    values = source.written()
    return {} if values is None else dict(zip(source.ids().to_pylist(), values, strict=True))


def _zipped_slices(X: Floats, ids: Any) -> Iterator[tuple[list[Any] | None, NDArray[Any]]]:
    return _zipped(_slices(X), ids)


def _zipped(blocks: Iterable[NDArray[Any]], ids: Any) -> Iterator[tuple[list[Any] | None, NDArray[Any]]]:
    """Yield each block of rows together with its ids, taken in order from a list or an Arrow array of all ids."""
    start = 0
    for X in blocks:
        block_ids = None if ids is None else ids[start : start + len(X)]
        yield block_ids if block_ids is None or isinstance(block_ids, list) else block_ids.to_pylist(), X
        start += len(X)


def _slices(X: Floats) -> Iterator[Floats]:
    return (X[start : start + SCORED_ROWS_PER_BLOCK] for start in range(0, len(X), SCORED_ROWS_PER_BLOCK))


def _even(batches: Iterable[NDArray[Any]]) -> Iterator[NDArray[Any]]:
    """Yield the rows of batches of any size again in blocks of `SCORED_ROWS_PER_BLOCK` rows; the last is shorter."""
    pieces: list[NDArray[Any]] = []
    count = 0
    for batch in batches:
        for piece in np.split(batch, range(SCORED_ROWS_PER_BLOCK - count, len(batch), SCORED_ROWS_PER_BLOCK)):
            pieces.append(piece)
            count += len(piece)
            if count == SCORED_ROWS_PER_BLOCK:
                yield np.concatenate(pieces)
                pieces, count = [], 0
    if count:
        yield np.concatenate(pieces)
