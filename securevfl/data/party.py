"""A party's own table: name, columns, ids and, at one of them, labels. Checked when it is made."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from copy import copy
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from securevfl.crypto.scheme import Floats
from securevfl.data.columns import Columns, Levels, columns_of
from securevfl.data.given import check_extremes, check_labels, index_ids, some
from securevfl.data.ids import Keys, id_keys, order_digest, shared_rows
from securevfl.data.preparation import Prepared
from securevfl.data.register import Register
from securevfl.errors import IdError, PartiesError, TableError
from securevfl.roles import Role

CHUNK = 1 << 21  # numbers at a time


class Party:
    """One organisation's side of the data.

    X (n x d) numbers and texts, y (n,) labels for the active party, ids (n,) what rows are joined on, columns: d names.
    `keys` are the digests of the ids (n x ID_DIGEST), `constant` names columns that do not vary, which get no weight.
    model: its own module in a job of neural parties (`securevfl.TorchModel`).
    A table with column names (pandas, polars, pyarrow) brings its own, and one whose index has a name or is not 0 to
    n - 1 brings its ids. aligned: there are no ids, as the rows of all parties are known to stand in the same order.
    As an attribute X holds numbers alone: a text as its place in the `levels` of its column, what is missing as NaN,
    until a job prepares them (`securevfl.data.preparation`).
    Raises DataError of the kind that fits, IdError where there are neither ids nor this word.
    """

    levels: Levels = MappingProxyType({})  # of the columns of texts, by name
    preparation: Prepared | None = None  # how X came to be, once a job has prepared it
    weights: Floats | None = None  # of each row (n,), once a job has taken them out of the columns
    model: object = None

    role: Role | None = None  # what it says it is in a run; else its method goes by its labels

    def __init__(
        self,
        name: str,
        X: ArrayLike | Columns,
        y: ArrayLike | None = None,
        *,
        ids: Sequence[Any] | NDArray[Any] | None = None,
        columns: Sequence[str] | None = None,
        aligned: bool = False,
        model: object = None,
    ) -> None:
        self.name = _name(name)
        self.model = model
        own = columns_of(name, X, columns)
        self.X, self.columns, self.levels = own.X, own.names, own.levels
        self.constant = check_extremes(name, *_extremes(name, own), own.names, len(own.X))
        self.y = None if y is None else check_labels(name, y, len(self.X))
        self.ids: NDArray[Any] | None = None
        self.keys: Keys | None = None
        if ids is None and not aligned:
            ids = index_ids(name, X, y)
            if ids is None:
                raise IdError(
                    f"party {name}: ids were expected, by which the rows of all parties are matched, none came; "
                    "pass ids, or aligned=True if all have their rows in one order"
                )
        if ids is not None:
            self.ids, self.keys = _ids(name, ids, len(self.X))

    @property
    def active(self) -> bool:
        """Whether it holds the labels."""
        return self.y is not None

    @property
    def table(self) -> Columns:
        """Its columns."""
        return Columns(self.X, self.columns, self.levels)

    def prepared(self, by: Prepared) -> Party:
        """The same party with the columns that this preparation makes. TableError if a value is missing in one that has
        no place for it."""
        own = copy(self)
        own.X, own.columns, own.levels, own.preparation = by.apply(self.table), by.features, {}, by
        return own

    def weighed(self, by: Prepared) -> Party:
        """The same party once the weights of evidence of its bins are known, in place of the numbers of these."""
        own = copy(self)
        own.X, own.preparation = by.weigh(self.X), by
        return own

    def weighed_by(self, column: str) -> Party:
        """The same party with this column as the weights of its rows. TableError if it has none of this name, or no
        other."""
        if column not in self.columns or column in self.levels or len(self.columns) < 2:
            raise TableError(
                f"party {self.name}: a column {column} of numbers was expected beside others, as weights of the rows; "
                "correct weights.column"
            )
        own, at = copy(self), self.columns.index(column)
        own.weights = self.X[:, at]
        own.X, own.columns = np.delete(self.X, at, axis=1), [name for name in self.columns if name != column]
        own.constant = [name for name in self.constant if name != column]
        return own

    @property
    def order(self) -> bytes:
        """A digest of its ids in their order, by which parties compare; empty without ids."""
        return b"" if self.keys is None else order_digest(self.keys)

    @property
    def register(self) -> Register:
        """What its rows are drawn by: the ids, or the numbers of the rows without ids."""
        return Register.of_numbers(len(self)) if self.keys is None else Register.of_ids(self.keys)

    @property
    def content(self) -> str:
        """32 hex digits that change with the columns, and neither with their order nor with that of the rows.

        Texts count as their places among the levels.
        """
        register, step = self.register, max(1, CHUNK // self.X.shape[1])
        sums = ColumnSums(self.X.shape[1])
        weights = row_weights(register)
        for start in range(0, len(self), step):
            sums.add(self.X[start : start + step], weights[start : start + step])
        return sums.digest()

    @property
    def digest(self) -> bytes:
        """32 bytes that change with any value, label, id or column of the table, and with the order of its rows."""
        levels = {column: list(texts) for column, texts in self.levels.items()}
        table = hashlib.sha256(f"{len(self)} {self.columns} {self.content} {levels}".encode() + self.order)
        if self.y is not None:
            table.update(self.y.dtype.str.encode() + np.ascontiguousarray(self.y).tobytes())
        return table.digest()

    def __len__(self) -> int:
        return len(self.X)

    def __repr__(self) -> str:
        labels = ", labels" if self.active else ""
        return f"Party({self.name!r}, {len(self)} rows x {len(self.columns)} columns{labels})"

    def take(self, rows: NDArray[np.intp]) -> Party:
        """The same party with these rows, in this order."""
        kept = object.__new__(Party)
        kept.name, kept.columns, kept.levels, kept.X = self.name, self.columns, self.levels, self.X[rows]
        kept.preparation, kept.constant, kept.model = self.preparation, self.constant, self.model
        kept.weights = None if self.weights is None else self.weights[rows]
        kept.y = None if self.y is None else self.y[rows]
        kept.ids = None if self.ids is None else self.ids[rows]
        kept.keys = None if self.keys is None else self.keys[rows]
        return kept


class Helper(Party):
    """A party without a table: a server, say, or a holder of keys. `role` is a word that its job's method knows."""

    def __init__(self, name: str, role: Role) -> None:
        self.name = _name(name)
        self.role = role
        self.X = np.empty((0, 0))
        self.columns, self.constant = [], []
        self.y = None
        self.ids, self.keys = None, None

    @property
    def content(self) -> str:
        return ""

    def __repr__(self) -> str:
        return f"Helper({self.name!r}, {self.role!r})"


def _name(name: str) -> str:
    if not name or not name.replace("-", "").replace("_", "").isalnum():
        raise PartiesError(f"party {name!r}: a name of letters, digits, - and _ was expected; rename it")
    return name


class ColumnSums:
    """A digest of columns from blocks of rows in any order: sums over the rows, modulo 2^64, of a random weight of each
    row times each half of a value's 64 bits.

    Sums of other columns differ but for one case in 2^32 (multiply-shift hashing, Dietzfelbinger 1996). It guards
    against mistakes and not against people.
    """

    def __init__(self, columns: int) -> None:
        self._sums = np.zeros((columns, 2), np.uint64)

    def add(self, X: NDArray[Any], weights: NDArray[np.uint64]) -> None:
        """Takes rows (k x d) and their weights (k,), 0 for rows that do not count."""
        halves = np.ascontiguousarray(X, np.float64).view(np.uint32).astype(np.uint64)
        self._sums += np.einsum("i,ij->j", weights, halves).reshape(-1, 2)

    def digest(self) -> str:
        """32 hex digits."""
        columns = sorted(column.astype("<u8").tobytes() for column in self._sums)
        return hashlib.sha256(b"".join(columns)).hexdigest()[:32]


def row_weights(register: Register) -> NDArray[np.uint64]:
    """What `ColumnSums` takes the rows of a table by: random numbers (n,) that go with their ids."""
    return register.numbers("content")


def _extremes(name: str, own: Columns) -> tuple[Floats, Floats]:
    """The least and largest (d,) of each column, apart where values are missing: that may be what varies. TableError
    names columns that are empty."""
    gaps = np.isnan(own.X)
    if not gaps.any():
        return own.X.min(axis=0), own.X.max(axis=0)
    empty = [own.names[j] for j in np.flatnonzero(gaps.all(axis=0)).tolist()]
    if empty:
        raise TableError(f"party {name}: columns with values were expected, empty: {some(empty)}; drop them")
    low, high = np.nanmin(own.X, axis=0), np.nanmax(own.X, axis=0)
    return low, np.where(gaps.any(axis=0) & (low == high), high + 1, high)


def _ids(name: str, ids: Sequence[Any] | NDArray[Any], rows: int) -> tuple[NDArray[Any], Keys]:
    """Ids as an array, and their digests."""
    own = np.asarray(ids)
    if own.shape != (rows,):
        raise TableError(f"party {name}: one id for each of {rows} rows was expected, shape {own.shape} came")
    return own, id_keys(name, [own])


def check_parties(parties: Sequence[Party]) -> tuple[Party, list[Party]]:
    """The party that leads, which is the first with labels, and the others. DataError if they do not fit together.

    Whether they make a run of a job its method says (`Method.cast`).
    """
    names = [party.name for party in parties]
    if len(parties) < 2:
        raise PartiesError(f"two or more parties were expected, {len(parties)} came; add the other organisations")
    if len(set(names)) < len(names):
        raise PartiesError(f"parties of different names were expected, {', '.join(names)} came; rename one")
    active = [party for party in parties if party.active]
    if not active:
        raise PartiesError("exactly one party with labels was expected, with labels: none; pass y to one Party only")
    sizes = {party.name: len(party) for party in parties if not isinstance(party, Helper)}
    if len(set(sizes.values())) > 1:
        raise TableError(f"the same rows at every party were expected, counts are {sizes}; align them: vfl.align")
    first: Keys | None = None
    for party in parties:
        if party.keys is None:
            continue
        first = party.keys if first is None else first
        if not np.array_equal(party.keys, first):
            raise IdError(f"the same ids in the same order were expected, {party.name} differs; align them: vfl.align")
    return active[0], [party for party in parties if party is not active[0]]


def register_of(parties: Sequence[Party]) -> Register:
    """What the rows of these parties are drawn by in a job: their ids if every party has them, else their numbers."""
    lead = parties[0]
    return lead.register if all(party.order for party in parties if party.columns) else Register.of_numbers(len(lead))


def align(parties: Sequence[Party]) -> tuple[list[Party], dict[str, list[str]]]:
    """Joins the tables on their ids, for parties that sit in one process.

    Ids of different types meet as `crypto.curve.canonical_id` says. Returns the parties with the shared rows in the
    active party's order, and for each party the ids that others have and it lacks, in the others' spelling. IdError
    if a party has no ids or nothing is shared. Between organisations use private alignment.
    """
    for party in parties:
        if party.ids is None:
            raise IdError(f"party {party.name}: ids were expected to join on, none came; name the id column")
    ids = {party.name: (party.ids, party.keys) for party in parties if party.keys is not None}
    lead = next((party for party in parties if party.active), parties[0])
    rows, missing = join_ids(ids, lead.name)
    return [party.take(rows[party.name]) for party in parties], missing


def join_ids(
    ids: Mapping[str, tuple[Any, Keys]], lead: str
) -> tuple[dict[str, NDArray[np.intp]], dict[str, list[str]]]:
    """`align` of ids and their keys by party: the rows of each, and what each lacks."""
    rows, lacking = shared_rows({name: keys for name, (_, keys) in ids.items()}, lead)
    if not len(rows[lead]):
        raise IdError("at least one shared id was expected, there is none; is the right id column named?")
    return rows, {name: [str(ids[owner][0][row]) for owner, row in found] for name, found in lacking.items()}
