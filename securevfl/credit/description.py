"""Description of a party's table before a training: how each column was read, its values, and related columns.

    missing     share of rows without a value
    different   number of different values
    commonest   share of rows with the most common value; missing counts as a value
    far         share of values more than three interquartile ranges outside the quartiles (Tukey 1977, far out)
    VIF         variance inflation, 1 / (1 - R^2), of a numeric column regressed on the party's other numeric columns;
                at most MOST_VIF
    IV          information value: how well the column, divided into bins, separates two classes (`securevfl.data.woe`)
    AUC         of the column as the only predictor of the positive class; below 0.5 if small numbers predict it

All figures are about one party's columns and labels and are computed locally: nothing is sent.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.data.column_transforms import SpecialCodes, code_columns, is_ordinary
from securevfl.data.column_types import decided_from_values
from securevfl.data.columns import Columns
from securevfl.data.external_table import row_blocks
from securevfl.data.party import Party, check_is_party
from securevfl.data.preparation import MIN_TAIL_DISTANCE, category_counts, read_columns
from securevfl.data.woe import BinIndicators, Woe, number_bins, text_bins
from securevfl.display import html
from securevfl.errors import LabelError
from securevfl.models.class_labels import class_name, find_classes
from securevfl.models.metrics import area_under_curve
from securevfl.models.standard_losses import LogisticLoss

Kind = Literal["number", "text", "date", "percent", "currency"]

FAR_IN_IQR = 3.0
"""A value is far out if it is more than this many interquartile ranges outside the quartiles."""
NEARLY_CONSTANT_SHARE = 0.99
"""A column is nearly constant if at least this share of the rows has the same value."""
MOST_VIF = 1e6
MAX_VIF_COLUMNS = 2_000
"""Maximum number of numeric columns for which VIF is computed."""
DESCRIPTION_HEADINGS = [
    "column",
    "read as",
    "by",
    "missing",
    "different",
    "commonest",
    "least",
    "25 %",
    "median",
    "75 %",
    "most",
    "far",
]


@dataclass(frozen=True)
class ColumnFigures:
    """Figures of one column.

    Attributes:
        column: name of the column.
        kind: the type as which the column was read, such as "number" or "date".
        missing: share of rows without a value.
        different: number of different values.
        commonest: share of rows with the most common value; missing counts as a value.
        quartiles: minimum, 25 %, median, 75 % and maximum of numbers, None for texts; dates are days since 1970-01-01.
        far: share of values more than three interquartile ranges outside the quartiles.
        vif: variance inflation factor among the party's columns; None for texts and constants.
        iv: information value; None without labels of two classes.
        auc: AUC of the column alone; None without labels of two classes.
        notes: remarks about the column, such as that it is constant.
        origin: what decided the type: a declaration, the type in the file, or the values.
    """

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
    origin: str = "file"

    @property
    def shown(self) -> list[html.Cell]:
        """The five quartiles as cells of a table: dates for a date column, and empty cells for a column of texts."""
        if self.quartiles is None:
            return [None] * 5
        return [_day(quartile) for quartile in self.quartiles] if self.kind == "date" else list(self.quartiles)


@dataclass(frozen=True)
class Description:
    """Description of a party's table.

    Attributes:
        party: name of the party.
        rows: number of rows.
        doubled: number of rows that are equal to an earlier row in all columns.
        positive: name of the positive class, to which AUC refers, and its share of the rows; None without labels of two
            classes.
        columns: figures of the columns.
        decided: a text that states how many columns of each type have this type because of their values, and not by a
            declaration or by the file's format.
        unlabelled: number of rows without a label, in a table with a column of labels.
    """

    party: str
    rows: int
    doubled: int
    positive: tuple[str, float] | None
    columns: tuple[ColumnFigures, ...]
    decided: str = ""
    unlabelled: int = 0

    @property
    def heads(self) -> list[str]:
        """The headings of the table of figures."""
        return [*DESCRIPTION_HEADINGS, "VIF", *(["IV", "AUC"] if self.positive else []), "notes"]

    def cells(self) -> list[list[html.Cell]]:
        """Return the table of figures under `heads`, with one row for each column of the party."""
        return [
            [
                column.column,
                column.kind,
                column.origin,
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
        """A line that summarises the party's table."""
        summary = f"{self.rows:,} rows, {len(self.columns)} columns, {self.doubled:,} rows that repeat an earlier one"
        if self.decided:
            summary = f"{summary}; types decided from values: {self.decided}"
        if self.unlabelled:
            summary = f"{summary}; {self.unlabelled:,} rows have no label, so a training refuses them"
        return (
            summary
            if self.positive is None
            else f"{summary}; {self.positive[0]} is {self.positive[1]:.2%} of the labels"
        )

    def plain(self) -> dict[str, Any]:
        """Return the description as plain data for JSON, dates as texts."""
        positive = None if self.positive is None else {"class": self.positive[0], "share": self.positive[1]}
        columns = [vars(column) | {"quartiles": column.quartiles and column.shown} for column in self.columns]
        table = {
            "party": self.party,
            "rows": self.rows,
            "doubled": self.doubled,
            "positive": positive,
            "decided": self.decided,
            "unlabelled": self.unlabelled,
        }
        return table | {"columns": columns}

    def page(self) -> str:
        """Return the description as an HTML page."""
        body = [
            f"<h1>Columns of {html.escape(self.party)}</h1>",
            f"<p>{html.escape(self.head)}.</p>",
            '<p class="soft">Figures of this party\'s table; every reader of the page sees them. VIF is among these '
            "columns alone, and IV and AUC are of each column by itself.</p>",
            html.section("Columns", html.table(self.heads, self.cells())),
        ]
        return html.page(f"Columns of {self.party}", body)

    def __str__(self) -> str:
        """Return the description as JSON."""
        return json.dumps(self.plain(), indent=2)

    def _repr_html_(self) -> str:
        return html.table(self.heads, self.cells())


def describe(
    party: Party, labelled: Party | None = None, *, positive: str | None = None, empty: Sequence[str] = ()
) -> Description:
    """Describe this party's table, column by column. Nothing is sent to anyone.

    Args:
        party: the party.
        labelled: if some rows have no label, the same party with only the rows that have one; None if all rows have
            one.
        positive: the name of the positive class, as a job names it; by default 1, true, yes or the rarer class.
        empty: names of the file's columns without values. A `Party` cannot contain these, so they are listed last.

    Returns:
        The description. Information value and AUC are those of the rows with a label.

    Raises:
        LabelError: if `positive` is given without labels of two classes.
        ClassError: if no label is of the class `positive`.
    """
    check_is_party(party)
    labelled = party if labelled is None else labelled
    table, positive_label = party.table, positive_class(labelled, positive)
    X, rows, at = table.X, np.arange(len(table.X)), range(len(table.names))
    twins, vif = _twins(table, X), _inflation(table, X)
    is_positive = None if positive_label is None else labelled.y == positive_label
    columns = list[ColumnFigures]()
    for j, values in read_columns(X, rows, at):
        column = _figures(table, values, j, vif.get(j), twins.get(j))
        if is_positive is not None:
            known = values if labelled is party else labelled.X[:, j]
            column = _with_power(column, table, known, is_positive)
        columns.append(column)
    columns += [_empty_column(name) for name in empty]
    doubled = len(X) - len(np.unique(_digests_of_rows(X)))
    named = None if is_positive is None else (class_name(positive_label), float(is_positive.mean()))
    unlabelled = len(party) - len(labelled)
    return Description(party.name, len(X), doubled, named, tuple(columns), decided_from_values(table.types), unlabelled)


def positive_class(party: Party, positive: str | None = None) -> Any:
    """Return the positive class of a party's labels.

    Args:
        party: the party.
        positive: the name of the positive class, as a job names it; by default 1, true, yes or the rarer class.

    Returns:
        The class; None if the party has no labels of two classes.

    Raises:
        LabelError: if `positive` is given without labels of two classes.
        ClassError: if no label is of the class `positive`.
    """
    if party.y is None or len(np.unique(party.y)) != 2:
        if positive is not None:
            raise LabelError(
                f"party {party.name} has no labels of two classes, and {positive!r} is named as the positive one",
                "name the column of labels with --label, or leave --positive out",
                code="SVFL-LABEL-CLASSES",
                party=party.name,
            )
        return None
    return find_classes(party.name, LogisticLoss(), party.y, positive)[1]


def _with_power(column: ColumnFigures, table: Columns, values: Floats, is_positive: NDArray[np.bool_]) -> ColumnFigures:
    """Return the figures of a column with the information value and the AUC of its labelled rows (n,)."""
    name = column.column
    iv, auc = _iv_and_auc(name, values, table.categories.get(name), is_positive, table.special_codes(name))
    return replace(column, iv=iv, auc=auc)


def _figures(table: Columns, values: Floats, j: int, vif: float | None, twin: str | None) -> ColumnFigures:
    name, rows = table.names[j], len(values)
    lacks, levels = np.isnan(values), table.categories.get(table.names[j])
    codes = table.special_codes(name)
    present = values[is_ordinary(values, codes)]
    counts = np.unique(present, return_counts=True)[1]
    rows_of_codes = code_columns(values, codes).sum(axis=0).astype(int).tolist()
    commonest = max(int(counts.max(initial=0)), int(lacks.sum()), *rows_of_codes) / rows
    quartiles, far, notes = None, None, list[str]()
    if codes:
        notes.append(f"special codes in {sum(rows_of_codes) / rows:.1%}")
    if commonest >= NEARLY_CONSTANT_SHARE:
        notes.append("constant" if commonest == 1 else "nearly constant")
    if levels is None and len(present):
        quartiles = tuple(np.quantile(present, [0, 0.25, 0.5, 0.75, 1]).tolist())
        low, median, high = quartiles[1:4]
        reach = FAR_IN_IQR * (high - low)
        far = float(((present < low - reach) | (present > high + reach)).mean())
        if 0 < MIN_TAIL_DISTANCE * (high - low) < np.abs(present - median).max():
            notes.append("far tails")
    elif len(counts) == len(present) > 1:
        notes.append("each text once")
    if twin is not None:
        notes.append(f"same as {twin}")
    elif vif == MOST_VIF:
        notes.append("a sum of others")
    kind = _kind(table, name)
    return ColumnFigures(
        name,
        kind,
        float(lacks.mean()),
        len(counts),
        commonest,
        quartiles,
        far,
        vif,
        None,
        None,
        tuple(notes),
        table.type_of(name).origin,
    )


def _empty_column(name: str) -> ColumnFigures:
    """Return the figures of a column without values: the missing value is the most common value of all rows."""
    notes = ("no values: a training refuses the column",)
    return ColumnFigures(name, "number", 1.0, 0, 1.0, None, None, None, None, None, notes, "values")


def _kind(table: Columns, name: str) -> Kind:
    if name in table.categories:
        return "text"
    kind = table.type_of(name).kind
    return "text" if kind == "category" else kind


def _iv_and_auc(
    name: str,
    values: Floats,
    levels: Sequence[str] | None,
    is_positive: NDArray[np.bool_],
    codes: SpecialCodes,
) -> tuple[float | None, float | None]:
    """Return the information value of a column and its AUC; None if they are undefined.

    The AUC ranks rows by the numbers of the column, or for texts by the weights of evidence of their bins.
    """
    lacks, options = ~is_ordinary(values, codes), Woe()
    if lacks.all():
        return None, None
    if levels is None:
        step: Any = number_bins(name, values, bool(np.isnan(values).any()), options, codes)
    else:
        step = text_bins(name, category_counts(values, tuple(levels)), options)
    places = step.bin_numbers(values, tuple(levels or ()))
    bins = BinIndicators(places[:, None], step.bins)
    weighed = step.with_counts(bins.positives(is_positive), bins.rows, options)
    if levels is not None:
        return weighed.iv, area_under_curve(is_positive, weighed.weigh(places))
    auc = area_under_curve(is_positive[~lacks], values[~lacks])
    return weighed.iv, None if np.isnan(auc) else auc


def _inflation(table: Columns, X: Floats) -> dict[int, float]:
    """Return the VIF of each numeric column that varies, by its position.

    Missing values are replaced by the median. The result is empty if there are fewer than two such columns, or too
    many.
    """
    at = [j for j, name in enumerate(table.names) if name not in table.categories]
    if not 2 <= len(at) <= MAX_VIF_COLUMNS:
        return {}
    codes = [table.special_codes(name) for name in table.names]
    columns = read_columns(X, np.arange(len(X)), at)
    moments = [_moments(np.where(is_ordinary(values, codes[j]), values, np.nan)) for j, values in columns]
    centre, deviation, fill = (np.array(figures) for figures in zip(*moments, strict=True))
    varies = deviation > 0
    gram = np.zeros((int(varies.sum()),) * 2)
    for block in row_blocks(X):
        numbers = table.without_codes(block, at)
        numbers = (np.where(np.isnan(numbers), fill, numbers) - centre)[:, varies] / deviation[varies]
        gram += numbers.T @ numbers
    values, vectors = np.linalg.eigh(gram / len(X))
    inflation = np.minimum((vectors**2 / np.maximum(values, 1e-10)).sum(axis=1), MOST_VIF)
    return dict(zip(np.array(at)[varies].tolist(), inflation.tolist(), strict=True))


def _moments(values: Floats) -> tuple[float, float, float]:
    """Return mean, deviation and median of a column (n,) whose missing values are replaced by the median.

    The deviation is 0 if it is at most 1e-12 of the largest value.
    """
    lacks = np.isnan(values)
    median = float(np.median(values[~lacks])) if not lacks.all() else 0.0
    filled = np.where(lacks, median, values)
    deviation = float(filled.std())
    varies = deviation > 1e-12 * float(np.abs(filled).max(initial=0.0))
    return float(filled.mean()), deviation if varies else 0.0, median


def _twins(table: Columns, X: Floats) -> dict[int, str]:
    """Return, for each column that repeats an earlier one, the name of the earlier one."""
    seen: dict[tuple[bytes, tuple[str, ...]], str] = {}  # the first column with these values, by a digest of them
    twins = {}
    for j, column in read_columns(X, np.arange(len(X)), range(len(table.names))):
        values, name = column + 0.0, table.names[j]  # turns -0.0 into 0.0, so that equal columns have equal bytes
        key = hashlib.sha256(values.tobytes()).digest(), tuple(table.categories.get(name, ()))
        if key in seen:
            twins[j] = seen[key]
        else:
            seen[key] = name
    return twins


def _digests_of_rows(X: Floats) -> NDArray[Any]:
    """Return a digest of 16 bytes for each row, in any order; memory holds the digests and one block of rows."""
    digests = bytearray()
    for block in row_blocks(X):
        for row in np.ascontiguousarray(block, np.float64) + 0.0:  # turns -0.0 into 0.0, so that equal rows match
            digests += hashlib.blake2b(row, digest_size=16).digest()
    return np.frombuffer(digests, np.dtype((np.void, 16)))


def _day(days: float) -> str:
    return str(np.datetime64("1970-01-01") + np.timedelta64(int(np.floor(days)), "D"))
