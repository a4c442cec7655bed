"""A party's own table: name, columns, ids and, at one of them, labels. Checked when it is made."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from copy import copy
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from securevfl.base.arrays import Floats
from securevfl.base.roles import Role
from securevfl.data.columns import Columns, Levels, columns_of
from securevfl.data.content_digest import CHUNK, ContentDigest, row_weights
from securevfl.data.id_keys import ID_DIGEST, Keys, id_keys, order_digest
from securevfl.data.preparation import FittedPreparation
from securevfl.data.register import Register
from securevfl.data.validation import check_extremes, check_labels, index_ids, some
from securevfl.errors import IdError, PartiesError, TableError

ALIGN = "align them: parties = vfl.align(parties)"


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
    dates: frozenset[str] = frozenset()  # the columns of dates, as days since 1970-01-01
    percents: frozenset[str] = frozenset()  # the columns of numbers that were written as percentages
    preparation: FittedPreparation | None = None  # how X came to be, once a job has prepared it
    weights: Floats | None = None  # of each row (n,), once a job has taken them out of the columns
    exposure: Floats | None = None  # likewise
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
        self.X, self.columns, self.levels, self.dates = own.X, own.names, own.levels, own.dates
        self.percents = own.percents
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
        """True if the party is the one that holds the labels."""
        return self.y is not None

    @property
    def labels(self) -> NDArray[Any]:
        """The labels (n,) of a party that has them. Raises PartiesError at one that has none."""
        if self.y is None:
            raise PartiesError(f"party {self.name}: labels were expected, it has none; give y to the party that leads")
        return self.y

    @property
    def table(self) -> Columns:
        """The party's columns with their names and levels."""
        return Columns(self.X, self.columns, self.levels, self.dates, self.percents)

    def prepared(self, by: FittedPreparation) -> Party:
        """Return a copy of this party with the columns that this preparation makes. Raises TableError if a value is
        missing in one that has no place for it."""
        own = copy(self)
        own.X, own.columns, own.levels, own.preparation = by.apply(self.table), by.features, {}, by
        own.dates = frozenset()
        return own

    def weighed(self, by: FittedPreparation) -> Party:
        """Return a copy of this prepared party with weights of evidence in place of the numbers of its bins."""
        own = copy(self)
        own.X, own.preparation = by.weigh(self.X), by
        return own

    def with_column_as(self, use: Literal["weights", "exposure"], column: str) -> Party:
        """Return a copy of this party with this column taken out and used as the weights, or the exposures, of its
        rows. Raises TableError if there is no such column of numbers, or no other column beside it."""
        if column not in self.columns or column in self.levels or len(self.columns) < 2:
            what, key = ("weights", "weights.column") if use == "weights" else ("exposures", "exposure")
            raise TableError(
                f"party {self.name}: a column {column} of numbers was expected beside others, as {what} of the rows; "
                f"correct {key}"
            )
        own = self.without([column])
        setattr(own, use, self.X[:, self.columns.index(column)])
        return own

    def without(self, columns: Sequence[str]) -> Party:
        """Return a copy of this party without these columns. Raises TableError if none is left."""
        left = [j for j, name in enumerate(self.columns) if name not in columns]
        if not left:
            raise TableError(f"party {self.name}: columns beside those left out were expected, none is left; keep some")
        own = copy(self)
        own.X, own.columns = self.X[:, left], [self.columns[j] for j in left]
        own.levels = {name: levels for name, levels in self.levels.items() if name not in columns}
        own.dates = self.dates.difference(columns)
        own.constant = [name for name in self.constant if name not in columns]
        return own

    @property
    def named(self) -> bool:
        """Whether its rows have ids, by which they are known later."""
        return self.keys is not None

    def keys_of(self, rows: NDArray[np.intp]) -> list[bytes]:
        """Return what names each of these rows (k): digests of their ids, or their numbers in a table without ids."""
        return [b"row %d" % row for row in rows] if self.keys is None else split(self.keys[rows])

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
        sums = ContentDigest(self.X.shape[1])
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
        """Return a copy of this party that has these rows alone, in this order."""
        taken = object.__new__(Party)
        vars(taken).update(vars(self))
        for name in ("X", "y", "ids", "keys", "weights", "exposure"):
            value = getattr(self, name)
            setattr(taken, name, None if value is None else value[rows])
        return taken


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


def split(keys: Keys) -> list[bytes]:
    """Return each digest as bytes."""
    whole = keys.tobytes()
    return [whole[at : at + ID_DIGEST] for at in range(0, len(whole), ID_DIGEST)]


def _name(name: str) -> str:
    if not name or not name.replace("-", "").replace("_", "").isalnum():
        raise PartiesError(f"party {name!r}: a name of letters, digits, - and _ was expected; rename it")
    return name


def _extremes(name: str, own: Columns) -> tuple[Floats, Floats]:
    """Return the least and the largest value (d,) of each column, missing values left out, since it may be these that
    vary. TableError names columns that are empty."""
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
    """Check that the parties fit together, and return the one that leads, which is the first with labels, and the
    others. Raises DataError if they do not fit.

    Whether they make a run of a given job is for the job's method to say (`Family.assign_roles`).
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
        raise TableError(f"the same rows at every party were expected, counts are {sizes}; {ALIGN}")
    first: Keys | None = None
    for party in parties:
        if party.keys is None:
            continue
        first = party.keys if first is None else first
        if not np.array_equal(party.keys, first):
            raise IdError(f"the same ids in the same order were expected, {party.name} differs; {ALIGN}")
    return active[0], [party for party in parties if party is not active[0]]


def register_of(parties: Sequence[Party]) -> Register:
    """Return the register by which rows are drawn in a job of these parties: the lead's ids if every party with columns
    has ids, else the numbers of the rows."""
    lead = parties[0]
    return lead.register if all(party.order for party in parties if party.columns) else Register.of_numbers(len(lead))
