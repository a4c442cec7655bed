"""A party and its table: its name, columns, ids and, at one of the parties, labels.

An exposure is the time, or the number of units, that a row's label covers, such as the months of an insurance contract.
Weights of rows are factors of their losses.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from securevfl.base.arrays import Floats
from securevfl.base.roles import Role
from securevfl.data.column_types import Types, read_types
from securevfl.data.columns import Categories, Columns, columns_of
from securevfl.data.content_digest import MAX_CHUNK_VALUES, ContentDigest, digest_weights
from securevfl.data.duplicates import Duplicates, check_duplicates, unique_rows
from securevfl.data.id_keys import ID_DIGEST, Keys, id_digests, order_digest
from securevfl.data.preparation import FittedPreparation
from securevfl.data.prepared_table import MemoryTable, PreparedTable
from securevfl.data.register import Register
from securevfl.data.row_matching import ids_of_rows, match_values
from securevfl.data.validation import check_extremes, check_labels, index_of, name_list, names_rows, unmasked
from securevfl.errors import IdError, PartiesError, TableError

MAX_PREPARED_BYTES = 256 << 20
"""Bytes of prepared columns of a table in memory; the rows of a larger prepared table are converted when read."""
ALIGN = "align the tables with parties = vfl.align(parties)"


class Party:
    """One organisation and its table, as a user passes it to a training.

    The table may be an array, or a frame with column names: of pandas, polars (lazy ones too), pyarrow or DuckDB, a
    dict of columns, or anything with an Arrow stream. A frame's index provides the ids if it has a name or differs from
    0 to n - 1. The attribute `X` holds numbers only: a text is stored as its position in the `categories` of its
    column, and a missing value as NaN, until a job prepares the columns (`securevfl.data.preparation`).

    Args:
        name: letters, digits, - and _.
        X: the table (n, d) of numbers, texts and dates.
        y: the labels (n,), at exactly one party of a job.
        ids: the ids (n,) on which rows are joined.
        columns: d column names; or for some columns of a frame their types, as in
            {"branch": "category", "income": {"type": "number", "missing": ["-999", "?"]}}
            (`securevfl.data.column_types.ColumnType`).
        aligned: True states that the rows of all parties are in the same order, so that no ids are needed.
        duplicates: how to treat several rows of one id: "refuse" them (an error), or use the "first" or the "last".
        model: the party's module in a job with neural networks (`securevfl.TorchModel`).

    Attributes:
        X: the table (n, d) as float64.
        y: the labels (n,), or None.
        ids: the ids (n,), or None.
        keys: digests of the ids (n, ID_DIGEST), or None.
        columns: the d column names.
        constant: names of the columns that do not vary; they get no weight.
        categories: the sorted texts of each text column, by name.
        dates: names of the date columns, which hold days since 1970-01-01.
        percents: names of the numeric columns that were written as percentages.
        types: the types of the columns (`securevfl.data.column_types`).
        preparation: the preparation that produced X; None before a job has prepared the table.
        weights: weights of the rows (n,), if a job uses a column as weights.
        exposure: exposures of the rows (n,), if a job uses a column as exposures.
        file_rows: the position (n,) of each row in the table that the party was created from, for messages; None if
            they are the same.
        role: the party's role in a run; None lets the protocol derive it from the labels.

    Raises:
        IdError: if there are no ids, and `aligned` is not set.
    """

    categories: Categories = MappingProxyType({})
    dates: frozenset[str] = frozenset()
    percents: frozenset[str] = frozenset()
    types: Types = MappingProxyType({})
    preparation: FittedPreparation | None = None
    weights: Floats | None = None
    exposure: Floats | None = None
    model: object = None
    role: Role | None = None
    file_rows: NDArray[np.intp] | None = None

    def __init__(
        self,
        name: str,
        X: ArrayLike | Columns,
        y: ArrayLike | None = None,
        *,
        ids: Sequence[Any] | NDArray[Any] | None = None,
        columns: Sequence[str] | Mapping[str, Any] | None = None,
        aligned: bool = False,
        duplicates: Duplicates = "refuse",
        model: object = None,
    ) -> None:
        self.name = _checked_name(name)
        self.model = model
        declared = read_types(columns) if isinstance(columns, Mapping) else {}
        names = None if isinstance(columns, Mapping) else columns
        table = columns_of(name, X, names, declared=declared)
        index = ids_of_rows(X)
        labels = None if y is None else check_labels(name, _labels_of_rows(name, y, index, ids), len(table.X))
        self.ids: NDArray[Any] | None = None
        self.keys: Keys | None = None
        if ids is None and not aligned:
            ids = index
            if ids is None:
                raise IdError(
                    f"party {name} has no ids, by which the rows of all parties are matched",
                    "pass ids, or aligned=True if the rows of all parties are in the same order",
                    code="SVFL-ID-MISSING",
                    party=name,
                )
        if ids is not None:
            self.ids, self.keys = _ids_and_keys(name, ids, len(table.X))
            unique = unique_rows(f"party {name}", self.keys, check_duplicates(duplicates))
            if unique is not None:
                table = replace(table, X=table.X[unique.rows])
                labels = None if labels is None else labels[unique.rows]
                self.ids, self.keys = self.ids[unique.rows], self.keys[unique.rows]
            self.file_rows = None if unique is None else unique.rows
        self.y = labels
        self.X, self.columns, self.categories, self.dates = table.X, table.names, table.categories, table.dates
        self.percents, self.types = table.percents, table.types
        self.constant = check_extremes(name, *_extremes(name, table), table.names, len(table.X))

    @property
    def active(self) -> bool:
        """True if the party has the labels."""
        return self.y is not None

    @property
    def labels(self) -> NDArray[Any]:
        """The labels (n,) of the active party.

        Raises:
            PartiesError: if the party has no labels.
        """
        if self.y is None:
            raise PartiesError(
                f"party {self.name} has no labels",
                "pass y to the active party",
                code="SVFL-PARTIES-LABELS",
                party=self.name,
            )
        return self.y

    @property
    def table(self) -> Columns:
        """The party's columns with their names and types."""
        return Columns(self.X, self.columns, self.categories, self.dates, self.percents, self.types)

    def prepared(self, by: FittedPreparation, *, max_bytes: int = MAX_PREPARED_BYTES) -> Party:
        """Return a copy of this party whose columns a fitted preparation has converted.

        Args:
            by: the preparation.
            max_bytes: a larger prepared table is not computed as a whole; its rows are converted whenever they are
                read.

        Returns:
            The copy.
        """
        party = copy(self)
        party.X, party.preparation = self._prepared_by(by, max_bytes), by
        party.columns, party.categories = by.features, {}
        party.dates = frozenset()
        return party

    def with_woe_weights(self, by: FittedPreparation) -> Party:
        """Return a copy of this prepared party in which each bin number is replaced by the bin's weight of evidence."""
        party = copy(self)
        party.X, party.preparation = by.weigh(self.X), by
        return party

    def with_column_as(self, use: Literal["weights", "exposure"], column: str) -> Party:
        """Return a copy of this party that uses a numeric column as weights or exposures of its rows.

        Args:
            use: the attribute that receives the column, "weights" or "exposure".
            column: the column, which is removed from the table.

        Returns:
            The copy.

        Raises:
            TableError: if there is no such numeric column, or no other column.
        """
        if column not in self.columns or column in self.categories or len(self.columns) < 2:
            what, key = ("weights", "weights.column") if use == "weights" else ("exposures", "exposure")
            raise TableError(
                f"party {self.name}: column {column!r} cannot be used as {what} of the rows: it must be a numeric "
                "column of this party, and the party needs at least one other column",
                f"name another column as {key} in the job, or add columns",
                code="SVFL-TABLE-COLUMNS",
                party=self.name,
                column=column,
            )
        party = self.without([column])
        setattr(party, use, self._column(self.columns.index(column)))
        return party

    def _prepared_by(self, by: FittedPreparation, max_bytes: int) -> Floats:
        """Return the columns (n, d) as this preparation converts them.

        If they have more than `max_bytes` bytes, return a table that converts rows only when they are read.
        """
        # a table with weights of evidence is always an array, in which bin numbers are later replaced by weights
        if by.steps and not by.has_evidence and 8 * len(self) * by.width > max_bytes:
            return cast(Floats, PreparedTable(MemoryTable(self.X), by, self.table))
        return by.apply(self.table)

    def _select_columns(self, positions: Sequence[int]) -> Floats:
        """Return the columns (n, c) at these positions."""
        return self.X[:, positions]

    def _column(self, position: int) -> Floats:
        """Return the column (n,) at this position."""
        return self.X[:, position]

    def without(self, columns: Sequence[str]) -> Party:
        """Return a copy of this party without these columns.

        Args:
            columns: names to leave out; names that the table does not have are ignored.

        Returns:
            The copy.

        Raises:
            TableError: if no column is left.
        """
        remaining = [j for j, name in enumerate(self.columns) if name not in columns]
        if not remaining:
            raise TableError(
                f"party {self.name} has no columns left after {name_list(list(columns))} are left out",
                "keep at least one column",
                code="SVFL-TABLE-EMPTY",
                party=self.name,
            )
        party = copy(self)
        party.X, party.columns = self._select_columns(remaining), [self.columns[j] for j in remaining]
        party.categories = {name: texts for name, texts in self.categories.items() if name not in columns}
        party.dates, party.percents = self.dates.difference(columns), self.percents.difference(columns)
        party.types = {name: kind for name, kind in self.types.items() if name not in columns}
        party.constant = [name for name in self.constant if name not in columns]
        return party

    @property
    def has_ids(self) -> bool:
        """Whether the rows have ids, by which they can be recognised in later jobs and predictions."""
        return self.keys is not None

    def keys_of(self, rows: NDArray[np.intp]) -> list[bytes]:
        """Return for each row (k,) the digest of its id, or its row number in a table without ids, as bytes."""
        return [b"row %d" % row for row in rows] if self.keys is None else split(self.keys[rows])

    @property
    def order(self) -> bytes:
        """Digest of the ids in their order, which parties compare; empty without ids."""
        return b"" if self.keys is None else order_digest(self.keys)

    @property
    def register(self) -> Register:
        """The ids, and numbers derived from them that select the rows of batches (`securevfl.data.register`)."""
        return Register.of_numbers(len(self)) if self.keys is None else Register.of_ids(self.keys)

    @property
    def content(self) -> str:
        """Digest (32 hexadecimal digits) of the values of all columns, equal for any order of columns and rows.

        A text contributes its position among the categories of its column.
        """
        register, step = self.register, max(1, MAX_CHUNK_VALUES // self.X.shape[1])
        digest = ContentDigest(self.X.shape[1])
        weights = digest_weights(register)
        for start in range(0, len(self), step):
            digest.add(self.X[start : start + step], weights[start : start + step])
        return digest.digest()

    @property
    def digest(self) -> bytes:
        """Digest (32 bytes) of the table: values, labels, ids, names, declared special codes and bins, row order."""
        categories = {column: list(texts) for column, texts in self.categories.items()}
        table = hashlib.sha256(f"{len(self)} {self.columns} {self.content} {categories}".encode() + self.order)
        if codes_and_bins := {name: (kind.special, kind.bins) for name, kind in self.types.items() if kind.is_divided}:
            table.update(repr(sorted(codes_and_bins.items())).encode())
        if self.y is not None:
            table.update(self.y.dtype.str.encode() + np.ascontiguousarray(self.y).tobytes())
        return table.digest()

    def __len__(self) -> int:
        return len(self.X)

    def __repr__(self) -> str:
        labels = ", labels" if self.active else ""
        return f"Party({self.name!r}, {len(self)} rows x {len(self.columns)} columns{labels})"

    def row_name(self, position: int) -> str:
        """Name the row at a position for a message, by its number from 1 in the table that the party was read from."""
        row = position if self.file_rows is None else int(self.file_rows[position])
        return f"row {row + 1} of the table of {self.name}"

    def take(self, rows: NDArray[np.intp]) -> Party:
        """Return a copy of this party with these rows (k,) in this order.

        If these are all rows in their present order, the copy shares the arrays of this party.
        """
        party = object.__new__(Party)
        vars(party).update(vars(self))
        if np.array_equal(rows, np.arange(len(self))):
            return party
        party.file_rows = rows if self.file_rows is None else self.file_rows[rows]
        for name in ("X", "y", "ids", "keys", "weights", "exposure"):
            value = getattr(self, name)
            setattr(party, name, None if value is None else value[rows])
        return party


class Helper(Party):
    """A party without a table, such as a server that adds sums or a holder of decryption keys.

    Args:
        name: letters, digits, - and _.
        role: a role that the job's protocol knows.
    """

    def __init__(self, name: str, role: Role) -> None:
        self.name = _checked_name(name)
        self.role = role
        self.X = np.empty((0, 0))
        self.columns, self.constant = [], []
        self.y = None
        self.ids, self.keys = None, None

    @property
    def content(self) -> str:
        """An empty string, since there are no columns."""
        return ""

    def __repr__(self) -> str:
        return f"Helper({self.name!r}, {self.role!r})"


def split(keys: Keys) -> list[bytes]:
    """Return the digests (n, ID_DIGEST) as a list of n byte strings."""
    digests = keys.tobytes()
    return [digests[start : start + ID_DIGEST] for start in range(0, len(digests), ID_DIGEST)]


def _checked_name(name: str) -> str:
    if not name or not name.replace("-", "").replace("_", "").isalnum():
        raise PartiesError(
            f"{name!r} is not a valid name of a party",
            "use letters, digits, - and _",
            code="SVFL-PARTIES-NAME",
            party=name,
        )
    return name


def _extremes(name: str, table: Columns) -> tuple[Floats, Floats]:
    """Return the minimum and maximum (d,) of each column over its present values.

    For a column with one value and missing values, return its maximum plus 1. It then does not count as constant, since
    a job may add a 0/1 column that marks where it is missing.
    """
    gaps = np.isnan(table.X)
    if not gaps.any():
        return table.X.min(axis=0), table.X.max(axis=0)
    empty = [table.names[j] for j in np.flatnonzero(gaps.all(axis=0)).tolist()]
    if empty:
        raise TableError(
            f"party {name} has columns without values: {name_list(empty)}",
            code="SVFL-TABLE-EMPTY-COLUMN",
            party=name,
            columns=empty,
        )
    low, high = np.nanmin(table.X, axis=0), np.nanmax(table.X, axis=0)
    return low, np.where(gaps.any(axis=0) & (low == high), high + 1, high)


def _labels_of_rows(
    name: str, y: ArrayLike, index: NDArray[Any] | None, ids: Sequence[Any] | NDArray[Any] | None
) -> ArrayLike:
    """Return labels in the order of the table's rows.

    If the labels are a series, its index is matched with the index of the table, or with the ids if the table has no
    index. Labels without an index of ids are returned unchanged.
    """
    label_index = index_of(y)
    if label_index is None:
        return y
    if index is not None:
        return match_values(f"party {name}: the labels", y, index)
    if names_rows(label_index):
        ids = None if ids is None else np.asarray(ids)
        return match_values(f"party {name}: the labels", y, ids)
    return y


def _ids_and_keys(name: str, ids: Sequence[Any] | NDArray[Any], rows: int) -> tuple[NDArray[Any], Keys]:
    """Return ids as an array, and their digests."""
    array = np.asarray(unmasked(ids))
    if array.shape != (rows,):
        raise TableError(
            f"party {name} has {rows} rows and ids of shape {array.shape}",
            "pass one id for each row",
            code="SVFL-TABLE-SHAPE",
            party=name,
        )
    return array, id_digests(name, [array])


def check_parties(parties: Sequence[Party]) -> tuple[Party, list[Party]]:
    """Check that the tables of a job's parties fit together.

    Whether the parties fit a given job is checked by its protocol family.

    Args:
        parties: the parties of a job.

    Returns:
        The active party (the first one with labels), and all others.

    Raises:
        PartiesError: if there are fewer than two parties, names are repeated, or no party has labels.
        TableError: if the tables have different numbers of rows.
        IdError: if the ids or their order differ.
    """
    check_are_parties(parties)
    names = [party.name for party in parties]
    if len(parties) < 2:
        raise PartiesError(
            f"the job has {len(parties)} party and needs two or more" if parties else "the job has no parties",
            "add the other organisations",
            code="SVFL-PARTIES-COUNT",
        )
    if len(set(names)) < len(names):
        raise PartiesError(
            f"two parties have the same name: {', '.join(names)}", "rename one of them", code="SVFL-PARTIES-NAME"
        )
    active = [party for party in parties if party.active]
    if not active:
        raise PartiesError("no party has labels", "pass y to one Party", code="SVFL-PARTIES-LABELS")
    sizes = {party.name: len(party) for party in parties if not isinstance(party, Helper)}
    if len(set(sizes.values())) > 1:
        raise TableError(
            f"the parties' tables have different numbers of rows: {sizes}", ALIGN, code="SVFL-TABLE-ROW-COUNT"
        )
    first: Keys | None = None
    for party in parties:
        if party.keys is None:
            continue
        first = party.keys if first is None else first
        if not np.array_equal(party.keys, first):
            raise IdError(
                f"party {party.name} has other ids than the first party, or the same ones in another order",
                ALIGN,
                code="SVFL-ID-ORDER",
                party=party.name,
            )
    return active[0], [party for party in parties if party is not active[0]]


def check_are_parties(parties: object) -> None:
    """Raise PartiesError unless `parties` is a list or another collection of parties."""
    if not isinstance(parties, Collection) or isinstance(parties, str):
        raise PartiesError(
            f"a {type(parties).__name__} is no list of parties",
            "pass a list with a vfl.Party for each organisation",
            code="SVFL-PARTIES-COUNT",
        )
    for party in parties:
        check_is_party(party)


def check_is_party(party: object) -> None:
    """Raise PartiesError if `party` is something else, such as a table that was not wrapped in a `Party`."""
    if not isinstance(party, Party):
        raise PartiesError(
            f"a {type(party).__name__} is no party",
            'wrap each table: vfl.Party("bank", table, labels), and vfl.Party("shop", table)',
            code="SVFL-PARTIES-ROLE",
        )


def register_of(parties: Sequence[Party]) -> Register:
    """Return the register of a job: the identities of its rows, from which all parties derive the same batches.

    The identities are the first party's ids if every party with columns has ids, and row numbers otherwise; see
    `securevfl.data.register`.
    """
    lead = parties[0]
    return lead.register if all(party.order for party in parties if party.columns) else Register.of_numbers(len(lead))
