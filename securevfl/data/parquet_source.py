"""A Parquet file that is read in pieces: ids, labels, and batches of numbers, with the checks and errors of `Party`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.data.composite_ids import IdColumns, id_columns
from securevfl.data.id_keys import Keys, id_keys
from securevfl.data.raw_columns import Place, check_kind
from securevfl.data.readers import (
    arrow,
    arrow_ids,
    category_names,
    errors_name,
    labels_of,
    open_parquet,
    parquet_names,
    read_parquet,
    stored_names,
    table_columns,
    written_ids,
)
from securevfl.data.validation import check_extremes, check_finite, check_labels
from securevfl.errors import TableError

BATCH_BYTES = 8 << 20
"""Number of bytes of rows that are in memory at a time."""
_IDS_PER_READ = 1 << 16  # number of ids that are converted to Python objects at a time


class ParquetSource:
    """A party's table in a Parquet file.

    Args:
        name: the party.
        path: the file.
        id_column: the id column, or a list of columns as `--id` accepts it.
        label_column: the label column, at the active party.
        chosen: the columns to read, in this order, for a prediction: then labels are not read, and columns may be
            constant.
        drop: columns that are not read.

    Attributes:
        rows: the number of rows.
        columns: the names of the columns.
        labelled: whether the file has the label column.
        kind: float32 if that is exact for every column, float64 otherwise.
        constant: the columns that do not vary, once all numbers have been read.

    Raises:
        TableError: if the file has no rows. DataError, as in `read_party`, if it cannot be used.
    """

    def __init__(
        self,
        name: str,
        path: Path,
        *,
        id_column: str,
        label_column: str = "",
        chosen: Sequence[str] | None = None,
        drop: Sequence[str] = (),
    ) -> None:
        self.path = path
        self._name, self._id, self._label = name, id_column, label_column
        self._chosen = chosen is not None
        self.constant: list[str] = []
        with errors_name(path):
            pa = arrow()
            # column chunks are read in small buffers, because a row group may be as large as the file
            self._file = open_parquet(self.path, buffer_size=1 << 18, pre_buffer=False)
            schema = self._file.schema_arrow
            names = parquet_names(self._file, self._id)
            self._key = id_columns(self._id, names)
            self.columns = table_columns(names, self._key, self._label, chosen, drop)
            self.labelled = self._label in names
            self._label = self._label if self.labelled else ""
            self.rows = int(self._file.metadata.num_rows)
            if not self.rows:
                raise TableError(
                    "the table has no rows below its header", "export the table again", code="SVFL-TABLE-EMPTY"
                )
            self._stored = stored_names(self._file)
            kinds = [schema.field(self._stored[column]).type for column in self.columns]
            categories = category_names(self._file)
            for column, kind in zip(self.columns, kinds, strict=True):
                is_category = self._stored[column] in categories
                check_kind(Place(None, column), pa.dictionary(pa.int32(), kind) if is_category else kind)
            exact = {pa.float16(), pa.float32(), pa.bool_(), pa.int8(), pa.int16(), pa.uint8(), pa.uint16()}
            narrow = all(kind in exact for kind in kinds)
            self.kind = np.dtype("<f4" if narrow else "<f8")

    def ids(self) -> Any:
        """Read the ids of all rows as a chunked Arrow array; IdError if one is missing."""
        with errors_name(self.path):
            return arrow_ids(read_parquet(self._file, self._key.names), self._key)

    @property
    def key(self) -> IdColumns:
        """The id columns."""
        return self._key

    def written(self) -> list[Any] | None:
        """Return the unchanged values of the id columns, if ids are composed of them by a rule; otherwise None."""
        with errors_name(self.path):
            return written_ids(read_parquet(self._file, self._key.names), self._key) if self._key.by_rule else None

    def keys(self) -> Keys:
        """Return the digests of the ids of all rows; IdError if one is missing, invalid or repeated."""
        column = self.ids()
        with errors_name(self.path):
            starts = range(0, len(column), _IDS_PER_READ)
            return id_keys(self._name, (column.slice(start, _IDS_PER_READ).to_pylist() for start in starts))

    def labels(self) -> NDArray[Any] | None:
        """Return the checked labels of all rows, or None without a label column."""
        if not self.labelled:
            return None
        with errors_name(self.path):
            y = labels_of(read_parquet(self._file, [self._label]), self._label)
            return check_labels(self._name, y, self.rows)

    def numbers(self, max_rows: int | None = None) -> Iterator[NDArray[Any]]:
        """Yield all rows in batches (at most `max_rows`, d) of `kind`. The checks of `Party` run after the last one."""
        with errors_name(self.path):
            yield from self._numbers(max_rows)

    def _numbers(self, max_rows: int | None) -> Iterator[NDArray[Any]]:
        pa = arrow()
        d = len(self.columns)
        low, high, nulls = np.full(d, np.inf), np.full(d, -np.inf), np.zeros(d, np.int64)
        size = max(1, BATCH_BYTES // (8 * d))
        stored = [self._stored[name] for name in self.columns]
        try:
            for batch in self._file.iter_batches(min(size, max_rows or size), columns=stored):
                X = np.empty((len(batch), d), self.kind)
                for j, name in enumerate(self.columns):
                    column = batch.column(self._stored[name])
                    nulls[j] += column.null_count
                    X[:, j] = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
                low, high = np.minimum(low, X.min(axis=0)), np.maximum(high, X.max(axis=0))
                yield X
        except pa.ArrowException:
            raise TableError("the Parquet file is damaged", "export it again", code="SVFL-TABLE-UNREADABLE") from None
        if self._chosen:
            check_finite(self._name, np.isfinite(low) & np.isfinite(high), self.columns)
            return
        empty = [self.columns[j] for j in np.flatnonzero(nulls == self.rows)]
        if empty:
            raise TableError(f"column {empty[0]!r} has no values", code="SVFL-TABLE-EMPTY-COLUMN", column=empty[0])
        self.constant = check_extremes(self._name, low, high, self.columns, self.rows)
