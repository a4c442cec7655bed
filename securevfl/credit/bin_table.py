"""The bins of a column: rows, labels, weight of evidence and information value of each, to choose bins by hand.

    rate    share of the positive class among the rows of the bin; the positive class is the undesired one
    WoE     weight of evidence: the log odds of the positive class in the bin, relative to all rows
            (`securevfl.data.woe`). A job with `prepare.woe` gets the same value if these rows are its training rows
    IV      the bin's part of the column's information value, which measures how well the bins separate both classes

The bins are those that the column declares, quantiles, or bins with monotone rates (`securevfl.credit.monotone_bins`).
Missing values and each special code (a number with a meaning, such as -999) always have a bin here, however few rows
they have. All figures are about one party's columns and labels and are computed locally: nothing is sent.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.credit.description import positive_class
from securevfl.credit.monotone_bins import monotone_edges
from securevfl.data.bin_edges import format_number
from securevfl.data.column_transforms import MISSING_CATEGORY, OTHER_CATEGORY, SpecialCodes, is_ordinary
from securevfl.data.column_types import ColumnType, Edges, Groups, group_name
from securevfl.data.columns import Columns
from securevfl.data.declared_bins import nearest_text
from securevfl.data.party import Party, check_is_party
from securevfl.data.preparation import category_counts, read_columns
from securevfl.data.woe import CategoricalWoe, NumericWoe, Woe, number_bins, text_bins
from securevfl.display import html
from securevfl.errors import ConfigError, TableError
from securevfl.models.class_labels import class_name
from securevfl.organisations.toml_writer import to_toml_line

HEADINGS = ["number", "bin", "rows", "share"]
LABEL_HEADINGS = ["positive", "rate", "WoE", "IV"]


@dataclass(frozen=True)
class ColumnBin:
    """One bin of a column.

    Attributes:
        bin: its name: an interval, texts, a special code, (missing) or (other).
        rows: number of rows in the bin.
        share: the bin's share of all rows.
        positives: number of its rows of the positive class; None if the party has no labels of two classes.
        rate: share of the positive class in the bin; None without labels of two classes, or for a bin without rows.
        weight: weight of evidence; None without labels of two classes.
        iv: the bin's part of the information value; None without labels of two classes.
        note: a remark about the bin, such as that it has few rows.
    """

    bin: str
    rows: int
    share: float
    positives: int | None
    rate: float | None
    weight: float | None
    iv: float | None
    note: str


@dataclass(frozen=True)
class BinTable:
    """The bins of one column of a party.

    Attributes:
        party: the name of the party.
        column: the name of the column.
        kind: the declared type of the column, including these bins.
        positive: name of the positive class; None without labels of two classes.
        iv: the information value of the column; None without labels of two classes.
        bins: the bins in order.
    """

    party: str
    column: str
    kind: ColumnType
    positive: str | None
    iv: float | None
    bins: tuple[ColumnBin, ...]

    @property
    def heads(self) -> list[str]:
        """The headings of the table of bins."""
        return [*HEADINGS, *(LABEL_HEADINGS if self.positive is not None else []), "note"]

    def cells(self) -> list[list[html.Cell]]:
        """Return the table of bins under `heads`."""
        rows = list[list[html.Cell]]()
        for number, one in enumerate(self.bins, 1):
            figures: list[html.Cell] = [one.positives, one.rate, one.weight, one.iv]
            with_labels = figures if self.positive is not None else []
            rows.append([number, one.bin, one.rows, one.share, *with_labels, one.note])
        return rows

    @property
    def head(self) -> str:
        """A line that summarises the table."""
        rows = sum(one.rows for one in self.bins)
        summary = f"{self.column}: {rows:,} rows in {len(self.bins)} bins"
        return summary if self.positive is None else f"{summary}; positive class {self.positive}, IV {self.iv:.4f}"

    @property
    def declaration(self) -> dict[str, Any]:
        """The declaration of the column with these bins, as its entry under `columns`."""
        keys = self.kind.model_dump(exclude_defaults=True, exclude={"origin"}, mode="json")
        bins = [int(edge) if isinstance(edge, float) and edge.is_integer() else edge for edge in keys.pop("bins", [])]
        return keys | ({"bins": bins} if bins else {})

    @property
    def declaration_line(self) -> str:
        """The declaration as a line of a file for --columns, or under [columns.PARTY] of a job file."""
        return to_toml_line(self.column, self.declaration)

    def plain(self) -> dict[str, Any]:
        """Return the table as plain data for JSON."""
        figures = {"party": self.party, "column": self.column, "positive": self.positive, "iv": self.iv}
        return figures | {"bins": [vars(one) for one in self.bins], "declaration": self.declaration}

    def page(self) -> str:
        """Return the table as an HTML page."""
        title = f"Bins of {self.column}"
        body = [
            f"<h1>{html.escape(title)}</h1>",
            f"<p>{html.escape(self.head)}.</p>",
            '<p class="soft">Figures of this party\'s table and labels; every reader of the page sees them.</p>',
            html.section("Bins", html.table(self.heads, self.cells())),
            html.section("Declaration", f"<p><code>{html.escape(self.declaration_line)}</code></p>"),
        ]
        return html.page(title, body)

    def __str__(self) -> str:
        """Return the table as JSON."""
        return json.dumps(self.plain(), indent=2)

    def _repr_html_(self) -> str:
        return html.table(self.heads, self.cells())


def bin_table(
    party: Party,
    column: str,
    *,
    bins: Sequence[float] | Sequence[Sequence[str]] | None = None,
    monotone: bool = False,
    merge: Sequence[Sequence[int]] = (),
    max_bins: int = 10,
    min_rows: int = 50,
    positive: str | None = None,
) -> BinTable:
    """Return the bins of a column with their rows, rates, weights of evidence and information values.

    Nothing is sent to anyone.

    Args:
        party: the party. If it has no labels of two classes, only rows are counted.
        column: the name of the column.
        bins: edges of numbers, or lists of texts that share a bin. By default the bins that the column's declaration
            states; without these, quantiles of numbers, or one bin for each of the most frequent texts.
        monotone: whether to choose bins along which the rate only rises or only falls.
        merge: numbers of bins to merge, from 1, for each group: [[2, 3]] merges the second and the third bin.
        max_bins: the maximum number of quantile or monotone bins, or of texts with a bin.
        min_rows: the minimum number of rows of such a bin.
        positive: the name of the positive class, as a job names it; by default 1, true, yes or the rarer class.

    Returns:
        The bins. Their `declaration` fixes them for a training.

    Raises:
        TableError: if the column does not exist, holds dates, or has no values.
        ConfigError: if the bins do not fit the column.
        LabelError: if `positive` is given without labels of two classes; ClassError if it is not one of them.
    """
    check_is_party(party)
    table = party.table
    if column not in table.names:
        raise TableError(
            f"party {party.name} has no column {column!r}",
            "name one of its columns; `securevfl describe` lists them",
            code="SVFL-TABLE-COLUMNS",
            column=column,
        )
    kind, positive_label = table.type_of(column), positive_class(party, positive)
    if kind.kind == "date":
        raise TableError(
            f"party {party.name}: column {column!r} holds dates, which have no bins",
            "declare it as a category, or replace it by a number such as the age in days",
            code="SVFL-TABLE-TYPE",
            column=column,
        )
    if bins is not None:
        kind = kind.model_copy(update={"bins": bins})
    if monotone and (positive_label is None or kind.kind == "category" or kind.bins):
        raise ConfigError(
            "monotone bins need a column of numbers without other bins, and labels of two classes at this party",
            "leave out monotone, or the bins of the column",
            code="SVFL-COMMAND-USAGE",
        )
    ((_, values),) = read_columns(table.X, np.arange(len(table.X)), [table.names.index(column)])
    is_positive = None if positive_label is None else np.asarray(party.y == positive_label)
    options = Woe(bins=max_bins, rows=min_rows)
    codes = table.special_codes(column)
    if not is_ordinary(values, codes).any():
        raise TableError(
            f"party {party.name}: column {column!r} has no values",
            "choose a column with values",
            code="SVFL-TABLE-EMPTY-COLUMN",
            party=party.name,
            column=column,
        )
    step: NumericWoe | CategoricalWoe
    if column in table.categories:
        step, names = _text_bins(table, column, values, kind.groups, merge, options)
        kind = kind.model_copy(update={"bins": step.groups})
    else:
        edges = kind.edges
        present = values[is_ordinary(values, codes)]
        if monotone and is_positive is not None:
            chosen = is_positive[is_ordinary(values, codes)]
            edges = monotone_edges(present, chosen, bins=max_bins, min_rows=min_rows)
        elif not edges:
            edges = number_bins(column, present, False, options).edges
        step, names = _number_bins(column, values, _merged_edges(edges, merge), codes)
        kind = kind.model_copy(update={"bins": step.edges})
    numbers = step.bin_numbers(values, table.categories.get(column, ())).astype(np.intp)
    counted, iv = _count(numbers, names, is_positive, step, options)
    counted = _with_absent_texts(counted, kind.groups, table.categories.get(column, ()))
    named = None if positive_label is None else class_name(positive_label)
    return BinTable(party.name, column, kind, named, iv, counted)


def _with_absent_texts(bins: Sequence[ColumnBin], groups: Groups, texts: Sequence[str]) -> tuple[ColumnBin, ...]:
    """Add a note to each bin with a text that occurs in no row; the note suggests the most similar text that occurs."""
    undeclared = set(texts).difference(*groups)
    noted = list(bins)
    for number, group in enumerate(groups):
        notes = [noted[number].note] if noted[number].note else []
        for text in group:
            if text not in texts and text != MISSING_CATEGORY:
                similar = nearest_text(text, undeclared)
                notes.append(f"no row has {text!r}" + ("" if similar is None else f"; is it {similar!r}?"))
        noted[number] = replace(noted[number], note="; ".join(notes))
    return tuple(noted)


def _number_bins(column: str, values: Floats, edges: Edges, codes: SpecialCodes) -> tuple[NumericWoe, list[str]]:
    """Return bins between edges and a bin for missing values and for each special code, and the names of all bins."""
    names = [f"[{format_number(low)}, {format_number(high)})" for low, high in pairwise((-np.inf, *edges, np.inf))]
    special_bins = tuple(range(len(names), len(names) + len(codes)))
    names += [code for code, _ in codes]
    missing = len(names) if np.isnan(values).any() else None
    if missing is not None:
        names.append(MISSING_CATEGORY)
    return NumericWoe(column=column, edges=edges, missing=missing, special=codes, special_bins=special_bins), names


def _text_bins(
    table: Columns, column: str, values: Floats, groups: Groups, merge: Sequence[Sequence[int]], options: Woe
) -> tuple[CategoricalWoe, list[str]]:
    """Return the bins of a text column and their names: one bin for each group of texts, and one for all other texts.

    Args:
        table: the party's columns.
        column: the name of the column.
        values: the column (n,), as positions in the list of its texts.
        groups: the declared groups of texts; without them, each of the most frequent texts has a bin.
        merge: numbers of bins to merge, from 1.
        options: the number and size of bins.

    Returns:
        The bins and their names. If the groups contain all texts, the bin for other texts has no rows and no name.
    """
    counts = category_counts(values, table.categories[column])
    present = {text: rows for text, rows in counts.items() if text != MISSING_CATEGORY}
    declared = groups or tuple((text,) for text in text_bins(column, present, options).categories)
    texts = [list(group) for group in declared]
    if counts[MISSING_CATEGORY] and not any(MISSING_CATEGORY in group for group in texts):
        texts.append([MISSING_CATEGORY])
    others = set(present).difference(*texts)
    other = len(texts) + 1
    for group in _checked_merge(merge, len(texts) + bool(others)):
        merged = [] if other in group else [text for number in group for text in texts[number - 1]]
        for number in group:
            if number != other:
                texts[number - 1] = []
        if merged:
            texts[group[0] - 1] = merged
    remaining = tuple(tuple(group) for group in texts if group)
    if not remaining:
        raise ConfigError(
            "merge: no bin remains besides the one of all other texts", "merge fewer bins", code="SVFL-COMMAND-USAGE"
        )
    names = [group_name(group) for group in remaining]
    grouped = {text for group in remaining for text in group}
    has_others = any(rows and text not in grouped for text, rows in counts.items())
    step = CategoricalWoe(column=column, categories=tuple(names), other=len(names), groups=remaining)
    return step, [*names, *([OTHER_CATEGORY] if has_others else [])]


def _merged_edges(edges: Edges, merge: Sequence[Sequence[int]]) -> Edges:
    """Return the edges without those that separate bins to be merged."""
    removed = set[int]()
    remedy = "to put a special code into the bin of missing values, list it under missing in the column's declaration"
    for group in _checked_merge(merge, len(edges) + 1, remedy):
        if group != list(range(group[0], group[-1] + 1)):
            raise ConfigError(
                "merge: bins of numbers that are merged must be neighbours",
                "merge for example 2-4",
                code="SVFL-COMMAND-USAGE",
            )
        removed |= set(group[:-1])
    return tuple(edge for number, edge in enumerate(edges, 1) if number not in removed)


def _checked_merge(merge: Sequence[Sequence[int]], bins: int, remedy: str = "") -> list[list[int]]:
    """Return the groups of bins to merge, each sorted; ConfigError unless they are different bins from 1 to `bins`."""
    groups = [sorted(set(group)) for group in merge]
    every = [number for group in groups for number in group]
    if any(len(group) < 2 for group in groups):
        raise ConfigError(
            "merge: a group of fewer than two different bins merges nothing",
            "merge for example 1,3, or leave it out",
            code="SVFL-COMMAND-USAGE",
        )
    if len(set(every)) < len(every) or not all(1 <= number <= bins for number in every):
        raise ConfigError(
            f"merge: name bins from 1 to {bins}, each of them once",
            remedy or "merge for example 1,3",
            code="SVFL-COMMAND-USAGE",
        )
    return groups


def _count(
    numbers: NDArray[np.intp],
    names: Sequence[str],
    is_positive: NDArray[np.bool_] | None,
    step: NumericWoe | CategoricalWoe,
    options: Woe,
) -> tuple[tuple[ColumnBin, ...], float | None]:
    """Return the bins with their figures, and the information value of the column.

    Args:
        numbers: the number of each row's bin (n,).
        names: the name of each bin.
        is_positive: whether each row is of the positive class (n,); None without labels of two classes.
        step: the bins.
        options: the smoothing of weights, and the number of rows below which a bin gets a note.

    Returns:
        The bins and the information value.
    """
    rows = np.bincount(numbers, minlength=len(names))
    share = rows / len(numbers)
    notes = [f"fewer than {options.rows} rows" if count < options.rows else "" for count in rows.tolist()]
    if is_positive is None:
        unlabelled = zip(names, rows.tolist(), share.tolist(), notes, strict=True)
        return tuple(ColumnBin(bin, n, part, None, None, None, None, note) for bin, n, part, note in unlabelled), None
    positives = np.bincount(numbers[is_positive], minlength=len(names))
    weighted = step.with_counts(positives, rows, options)
    weights = np.array(weighted.weights)
    shares = positives / positives.sum() - (rows - positives) / (rows - positives).sum()
    bins = tuple(
        ColumnBin(name, int(n), float(part), int(p), float(p / n) if n else None, float(weight), float(iv), note)
        for name, n, part, p, weight, iv, note in zip(
            names, rows, share, positives, weights, shares * weights, notes, strict=True
        )
    )
    return bins, weighted.iv
