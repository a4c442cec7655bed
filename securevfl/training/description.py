"""What a party sees of its own table before a training: how each column was read, what it holds, and what goes with it.

    missing     share of rows without a value
    different   different values
    commonest   share of rows that have the commonest value, missing being one
    far         share of values more than three quartile distances outside the quartiles (Tukey 1977, far out)
    VIF         variance inflation, 1 / (1 - R^2) of a column of numbers on the party's others, gaps at the median;
                at most MOST_VIF. Columns of other parties are not in it
    IV          information value of the column in bins (`securevfl.data.woe`), where there are labels of two
                classes
    AUC         of the column alone, for the positive class: of its numbers where it has any, below .5 if smaller ones
                go with that class; of texts by the weights of evidence of their bins, from the same rows

All of it is about one party's own columns and labels, and is worked out where they are: nothing is sent.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.data.columns import Columns
from securevfl.data.correlations import standardised
from securevfl.data.party import Party
from securevfl.data.preparation import MIN_TAIL_DISTANCE, category_counts
from securevfl.data.woe import BinIndicators, Woe, number_bins, text_bins
from securevfl.display import html
from securevfl.models.class_labels import class_name, find_classes
from securevfl.models.metrics import area_under_curve
from securevfl.models.standard_losses import LogisticLoss

Kind = Literal["number", "text", "date", "percent"]

FAR = 3.0  # quartile distances
NEARLY = 0.99  # of the rows have one value
MOST_VIF = 1e6
WIDEST = 2_000  # columns of numbers, whose VIF is worked out
HEADS = ["column", "read as", "missing", "different", "commonest", "least", "25 %", "median", "75 %", "most", "far"]


@dataclass(frozen=True)
class ColumnFigures:
    """One column. quartiles: least, 25 %, median, 75 % and most of its numbers, None for texts; dates are days since
    1970-01-01. iv and auc are None without labels of two classes, vif for texts and constants."""

    column: str
    kind: Kind
    missing: float
    different: int
    commonest: float
    quartiles: tuple[float, ...] | None
    far: float | None
    vif: float | None
    iv: float | None
    auc: float | None
    notes: tuple[str, ...]

    @property
    def shown(self) -> list[html.Cell]:
        """The quartiles as they are read: dates as dates."""
        if self.quartiles is None:
            return [None] * 5
        return [_day(quartile) for quartile in self.quartiles] if self.kind == "date" else list(self.quartiles)


@dataclass(frozen=True)
class Description:
    """A party's table. doubled: rows that repeat an earlier one in all columns. positive: the class that AUC is of, of
    two, with its share of the rows; None where there are no such labels."""

    party: str
    rows: int
    doubled: int
    positive: tuple[str, float] | None
    columns: tuple[ColumnFigures, ...]

    @property
    def heads(self) -> list[str]:
        """The headings of the table, one for each column."""
        return [*HEADS, "VIF", *(["IV", "AUC"] if self.positive else []), "notes"]

    def cells(self) -> list[list[html.Cell]]:
        """Return a row for each column, under `heads`."""
        return [
            [
                column.column,
                column.kind,
                column.missing,
                column.different,
                column.commonest,
                *column.shown,
                column.far,
                column.vif,
            ]
            + ([column.iv, column.auc] if self.positive else [])
            + [", ".join(column.notes)]
            for column in self.columns
        ]

    @property
    def head(self) -> str:
        """A line about the whole table."""
        said = f"{self.rows:,} rows, {len(self.columns)} columns, {self.doubled:,} rows that repeat an earlier one"
        return said if self.positive is None else f"{said}; {self.positive[0]} is {self.positive[1]:.2%} of the labels"

    def plain(self) -> dict[str, Any]:
        """Return the description as JSON holds it, dates as texts."""
        positive = None if self.positive is None else {"class": self.positive[0], "share": self.positive[1]}
        columns = [vars(column) | {"quartiles": column.quartiles and column.shown} for column in self.columns]
        table = {"party": self.party, "rows": self.rows, "doubled": self.doubled, "positive": positive}
        return table | {"columns": columns}

    def page(self) -> str:
        """Assemble the drift into one file of HTML."""
        body = [
            f"<h1>Columns of {html.escape(self.party)}</h1>",
            f"<p>{html.escape(self.head)}.</p>",
            '<p class="soft">Figures of this party\'s own table: whoever sees the page sees them. VIF is among these '
            "columns alone, and IV and AUC are of each column by itself.</p>",
            html.section("Columns", html.table(self.heads, self.cells())),
        ]
        return html.page(f"Columns of {self.party}", body)

    def __str__(self) -> str:
        return json.dumps(self.plain(), indent=2)

    def _repr_html_(self) -> str:
        return html.table(self.heads, self.cells())


def describe(party: Party) -> Description:
    """Say what this party's own table holds, column by column. Nothing is sent to anyone."""
    table, positive = party.table, _positive(party)
    X = np.asarray(table.X)
    twins, vif = _twins(table, X), _inflation(table, X)
    marked = None if positive is None else party.y == positive
    columns = tuple(_figures(table, X[:, j], j, vif.get(j), twins.get(j), marked) for j in range(len(table.names)))
    doubled = len(X) - len(np.unique(_bytes_of_rows(X)))
    named = None if marked is None else (class_name(positive), float(marked.mean()))
    return Description(party.name, len(X), doubled, named, columns)


def _positive(party: Party) -> Any:
    """Return the positive one of two classes, None if the party has no labels of two."""
    if party.y is None or len(np.unique(party.y)) != 2:
        return None
    return find_classes(party.name, LogisticLoss(), party.y)[1]


def _figures(
    table: Columns, values: Floats, j: int, vif: float | None, twin: str | None, marked: NDArray[np.bool_] | None
) -> ColumnFigures:
    name, rows = table.names[j], len(values)
    lacks, levels = np.isnan(values), table.categories.get(table.names[j])
    present = values[~lacks]
    counts = np.unique(present, return_counts=True)[1]
    commonest = max(int(counts.max(initial=0)), int(lacks.sum())) / rows
    quartiles, far, notes = None, None, []
    if commonest >= NEARLY:
        notes.append("constant" if commonest == 1 else "nearly constant")
    if levels is None and len(present):
        quartiles = tuple(np.quantile(present, [0, 0.25, 0.5, 0.75, 1]).tolist())
        low, median, high = quartiles[1:4]
        reach = FAR * (high - low)
        far = float(((present < low - reach) | (present > high + reach)).mean())
        if 0 < MIN_TAIL_DISTANCE * (high - low) < np.abs(present - median).max():
            notes.append("far tails")
    elif len(counts) == len(present) > 1:
        notes.append("each text once")
    if twin is not None:
        notes.append(f"same as {twin}")
    elif vif == MOST_VIF:
        notes.append("a sum of others")
    iv, auc = (None, None) if marked is None else _says(name, values, levels, marked)
    kind = _kind(table, name)
    return ColumnFigures(
        name, kind, float(lacks.mean()), len(counts), commonest, quartiles, far, vif, iv, auc, tuple(notes)
    )


def _kind(table: Columns, name: str) -> Kind:
    if name in table.categories:
        return "text"
    return "date" if name in table.dates else "percent" if name in table.percents else "number"


def _says(
    name: str, values: Floats, levels: Sequence[str] | None, marked: NDArray[np.bool_]
) -> tuple[float | None, float | None]:
    """Return the information value of a column, and its AUC; None where they can't be told."""
    lacks, options = np.isnan(values), Woe()
    if lacks.all():
        return None, None
    if levels is None:
        step: Any = number_bins(name, values, bool(lacks.any()), options)
    else:
        step = text_bins(name, category_counts(values, tuple(levels)), options)
    places = step.bin_numbers(values, tuple(levels or ()))
    bins = BinIndicators(places[:, None], step.bins)
    weighed = step.with_counts(bins.positives(marked), bins.rows, options)
    if levels is not None:
        return weighed.iv, area_under_curve(marked, weighed.weigh(places))
    auc = area_under_curve(marked[~lacks], values[~lacks])
    return weighed.iv, None if np.isnan(auc) else auc


def _inflation(table: Columns, X: Floats) -> dict[int, float]:
    """Return the VIF of each column of numbers that varies, by its place; empty of too many or fewer than two."""
    at = [j for j, name in enumerate(table.names) if name not in table.categories]
    if not 2 <= len(at) <= WIDEST:
        return {}
    own = X[:, at].copy()
    for column in own.T:
        lacks = np.isnan(column)
        if lacks.any():
            column[lacks] = np.median(column[~lacks]) if not lacks.all() else 0.0
    Z, varies = standardised(own)
    values, vectors = np.linalg.eigh(Z.T @ Z / len(Z))
    found = np.minimum((vectors**2 / np.maximum(values, 1e-10)).sum(axis=1), MOST_VIF)
    return dict(zip(np.array(at)[varies].tolist(), found.tolist(), strict=True))


def _twins(table: Columns, X: Floats) -> dict[int, str]:
    """Return, for the place of each column that repeats an earlier one, the name of that one."""
    seen: dict[tuple[bytes, tuple[str, ...]], str] = {}  # by a digest of its values
    found = {}
    for j, name in enumerate(table.names):
        values = np.ascontiguousarray(X[:, j]) + 0.0  # one zero
        key = hashlib.sha256(values.tobytes()).digest(), tuple(table.categories.get(name, ()))
        if key in seen:
            found[j] = seen[key]
        else:
            seen[key] = name
    return found


def _bytes_of_rows(X: Floats) -> NDArray[Any]:
    """Each row as one value, alike for rows that are."""
    whole = np.ascontiguousarray(X, np.float64) + 0.0
    return whole.view(np.dtype((np.void, whole.shape[1] * 8))).ravel()


def _day(days: float) -> str:
    return str(np.datetime64("1970-01-01") + np.timedelta64(int(np.floor(days)), "D"))
