"""A Parquet file read piece by piece: ids, labels, and numbers in batches, with the checks and errors of `Party`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.data.composite_ids import id_columns
from securevfl.data.id_keys import Keys, id_keys
from securevfl.data.readers import (
    arrow,
    arrow_ids,
    check_kind,
    labels_of,
    named,
    open_parquet,
    parquet_names,
    read_parquet,
    table_columns,
)
from securevfl.data.validation import check_extremes, check_finite, check_labels
from securevfl.errors import TableError

BATCH = 8 << 20  # bytes of rows in memory at a time
_IDS = 1 << 16  # ids turned into objects at a time


class ParquetSource:
    """The table of party `name` in a Parquet file: `rows`, its `columns`, and whether it is `labelled`.

    `kind` is float32 where that is exact for every column, float64 elsewhere. chosen: these columns in this order, for
    a prediction: no labels, and columns may be constant. Raises DataError as `read_party` does.
    """

    def __init__(
        self, name: str, path: Path, *, id_column: str, label_column: str = "", chosen: Sequence[str] | None = None
    ) -> None:
        self.path = path
        self._name, self._id, self._label = name, id_column, label_column
        self._chosen = chosen is not None
        self.constant: list[str] = []  # known once all numbers have been read
        with named(path):
            pa = arrow()
            # column chunks in pieces: a row group may be as large as the file
            self._file = open_parquet(self.path, buffer_size=1 << 18, pre_buffer=False)
            schema = self._file.schema_arrow
            names = parquet_names(self._file, self._id)
            self._key = id_columns(self._id, names)
            self.columns = table_columns(names, self._key, self._label, chosen)
            self.labelled = self._label in names
            self.rows = int(self._file.metadata.num_rows)
            if not self.rows:
                raise TableError("rows were expected below the header, none came; export the table again")
            for column in self.columns:
                check_kind(column, schema.field(column).type)
            exact = {pa.float16(), pa.float32(), pa.bool_(), pa.int8(), pa.int16(), pa.uint8(), pa.uint16()}
            narrow = all(schema.field(column).type in exact for column in self.columns)
            self.kind = np.dtype("<f4" if narrow else "<f8")

    def ids(self) -> Any:
        """Read the ids of all rows as an Arrow array in chunks. IdError if one is missing."""
        with named(self.path):
            return arrow_ids(read_parquet(self._file, self._key.names), self._key)

    def keys(self) -> Keys:
        """Digest the ids of all rows. IdError if one is missing, none, or occurs twice."""
        column = self.ids()
        with named(self.path):
            return id_keys(self._name, (column.slice(start, _IDS).to_pylist() for start in range(0, len(column), _IDS)))

    def labels(self) -> NDArray[Any] | None:
        """Labels of all rows, checked."""
        if not self.labelled:
            return None
        with named(self.path):
            y = labels_of(read_parquet(self._file, [self._label]), self._label)
            return check_labels(self._name, y, self.rows)

    def numbers(self, most: int | None = None) -> Iterator[NDArray[Any]]:
        """All rows in batches (at most `most` x d) of `kind`. Raises what `Party` does, at the end."""
        with named(self.path):
            yield from self._numbers(most)

    def _numbers(self, most: int | None) -> Iterator[NDArray[Any]]:
        pa = arrow()
        d = len(self.columns)
        low, high, nulls = np.full(d, np.inf), np.full(d, -np.inf), np.zeros(d, np.int64)
        size = max(1, BATCH // (8 * d))
        try:
            for batch in self._file.iter_batches(min(size, most or size), columns=self.columns):
                X = np.empty((len(batch), d), self.kind)
                for j, name in enumerate(self.columns):
                    column = batch.column(name)
                    nulls[j] += column.null_count
                    X[:, j] = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
                low, high = np.minimum(low, X.min(axis=0)), np.maximum(high, X.max(axis=0))
                yield X
        except pa.ArrowException:
            raise TableError("a whole Parquet file was expected, it is damaged; export it again") from None
        if self._chosen:
            check_finite(self._name, np.isfinite(low) & np.isfinite(high), self.columns)
            return
        empty = [self.columns[j] for j in np.flatnonzero(nulls == self.rows)]
        if empty:
            raise TableError(f"columns with values were expected, column {empty[0]} is empty; drop it")
        self.constant = check_extremes(self._name, low, high, self.columns, self.rows)
