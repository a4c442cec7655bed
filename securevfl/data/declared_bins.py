"""Bins that a party declares for a column: edges of numbers, or groups of texts that count as one category.

    columns = { income = { type = "number", bins = [1000, 2000, 5000] }, town = { bins = [["Ulm", "Bonn"], ["Jena"]] } }

Declared edges replace the quantiles that the job's options `bins` or `woe` (weights of evidence) would compute. Texts
in no group share the bin of rare texts. Missing texts have their own bin if they are frequent and in no group.

A bin with few training rows has no reliable weight, and its weight of evidence would reveal labels. The party then gets
an error with the number of too small bins, so that it can merge them. Messages contain no edge and no text, because
these are often values of the table.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.data.column_transforms import (
    MISSING_CATEGORY,
    CodeTransform,
    ColumnTransform,
    OneHotTransform,
    SpecialCodes,
    is_ordinary,
)
from securevfl.data.column_types import Edges, Groups, group_name
from securevfl.data.validation import name_list
from securevfl.data.woe import CategoricalWoe, NumericWoe, Woe, add_bins_of_codes, frequent_codes
from securevfl.errors import DataNotice, TableError

MIN_DECLARED_ROWS = 5
"""Minimum number of training rows of a declared bin, if the job has no weights of evidence with a larger minimum."""


def check_bin_rows(party: str, column: str, rows: Sequence[int], min_rows: float) -> None:
    """Raise TableError unless each declared bin of a column has enough training rows.

    Args:
        party: the party, for messages.
        column: the name of the column.
        rows: the number of training rows of each bin.
        min_rows: the minimum.
    """
    if small := sum(count < min_rows for count in rows):
        raise TableError(
            f"party {party}: {small} of the {len(rows)} declared bins of column {column!r} have fewer than {min_rows} "
            "training rows",
            "merge them with others; `securevfl bins` lists the rows of each bin",
            code="SVFL-TABLE-BINS",
            party=party,
            column=column,
        )


def count_in_bins(present: Floats, edges: Edges) -> list[int]:
    """Return how many of the values (m,) are in each bin; a bin contains its lower edge but not its upper one."""
    bins = np.searchsorted(np.array(edges), present, side="right")
    return np.bincount(bins, minlength=len(edges) + 1).tolist()


def declared_woe_bins(
    party: str, column: str, values: Floats, edges: Edges, *, gaps: bool, options: Woe, codes: SpecialCodes
) -> NumericWoe:
    """Return the declared bins of a numeric column for weights of evidence.

    Args:
        party: the party, for messages.
        column: the name of the column.
        values: the values of the column in the training rows (n,).
        edges: the declared edges.
        gaps: whether a value is missing in any row, training or not.
        options: the job's options for weights of evidence: the number of bins and their smallest number of rows.
        codes: the special codes.

    Returns:
        The bins, without weights. Raises TableError if they are too many or too small.
    """
    check_bin_rows(party, column, count_in_bins(values[is_ordinary(values, codes)], edges), options.rows)
    alone = frequent_codes(values, codes, options, len(codes))
    bins = add_bins_of_codes(column, values, edges, gaps=gaps, options=options, codes=codes, alone=alone)
    _check_bin_count(party, column, bins.bins, options)
    if rare := len(codes) - len(alone):
        _warn_of_shared_bin(party, f"{rare} special codes of column {column!r}", "other values", options.rows)
    if 0 < (missing := int(np.isnan(values).sum())) < options.rows:
        what = f"the {missing} missing values of column {column!r}"
        _warn_of_shared_bin(party, what, "the median", options.rows)
    return bins


def declared_text_woe(
    party: str, column: str, counts: Mapping[str, int], groups: Groups, options: Woe
) -> CategoricalWoe:
    """Return the declared bins of a text column for weights of evidence.

    Args:
        party: the party, for messages.
        column: the name of the column.
        counts: the training rows of each text, and those of missing texts under MISSING_CATEGORY.
        groups: the declared groups.
        options: the job's options for weights of evidence: the number of bins and their smallest number of rows.

    Returns:
        The bins, without weights. Raises TableError if they are too many or too small.
    """
    rows, others = _count_categories(party, column, counts, groups, min_rows=options.rows, min_missing=options.rows)
    other = len(rows) if others >= options.rows else int(np.argmax(list(rows.values())))
    _warn_of_shared_texts(party, column, counts, rows, others, options.rows)
    bins = CategoricalWoe(column=column, categories=tuple(rows), other=other, groups=groups)
    _check_bin_count(party, column, bins.bins, options)
    return bins


def declared_text_columns(
    party: str, column: str, counts: Mapping[str, int], groups: Groups, *, as_codes: bool, min_missing: float
) -> ColumnTransform:
    """Return the transform of a text column with declared groups to 0/1 columns, or to integer codes.

    Args:
        party: the party, for messages.
        column: the name of the column.
        counts: the training rows of each text, and those of missing texts under MISSING_CATEGORY.
        groups: the declared groups.
        as_codes: whether the job encodes texts as integers.
        min_missing: the minimum number of training rows for which missing texts are a category.

    Returns:
        The transform. Raises TableError if a group has too few training rows.
    """
    rows, others = _count_categories(party, column, counts, groups, min_rows=MIN_DECLARED_ROWS, min_missing=min_missing)
    frequent = sorted(rows, key=lambda name: -rows[name])
    if not as_codes:
        _warn_of_shared_texts(party, column, counts, rows, others, MIN_DECLARED_ROWS)
    if as_codes:
        return CodeTransform(column=column, categories=tuple(frequent), groups=groups)
    remaining = tuple(name for name in rows if name != frequent[0])
    other = others >= MIN_DECLARED_ROWS
    return OneHotTransform(column=column, base=frequent[0], categories=remaining, other=other, groups=groups)


def _count_categories(
    party: str, column: str, counts: Mapping[str, int], groups: Groups, *, min_rows: float, min_missing: float
) -> tuple[dict[str, int], int]:
    """Return the training rows of each category, first those of groups in declared order, and of all other texts.

    Missing texts are a category if no group contains them and they are in at least `min_missing` rows.
    """
    rows = {group_name(group): sum(counts.get(text, 0) for text in group) for group in groups}
    check_bin_rows(party, column, list(rows.values()), min_rows)
    _warn_of_absent_texts(party, column, counts, groups)
    missing = counts.get(MISSING_CATEGORY, 0)
    if missing >= min_missing and missing and all(MISSING_CATEGORY not in group for group in groups):
        rows[MISSING_CATEGORY] = missing
    return rows, sum(counts.values()) - sum(rows.values())


def nearest_text(text: str, texts: Iterable[str]) -> str | None:
    """Return the text that a misspelled text probably stands for, or None if none is similar.

    Args:
        text: the misspelled text.
        texts: the possible texts.

    Returns:
        The text that differs by capitals and blanks only, or else the one with the most letters in common.
    """
    by_form = {other.strip().casefold(): other for other in sorted(texts, reverse=True)}
    close = difflib.get_close_matches(text.strip().casefold(), by_form, n=1)
    return by_form[close[0]] if close else None


def _warn_of_absent_texts(party: str, column: str, counts: Mapping[str, int], groups: Groups) -> None:
    """Warn of declared texts that no row of the column has; they may be misspelled."""
    known = [text for text in counts if text != MISSING_CATEGORY]
    absent = {
        text: (number, place)
        for number, group in enumerate(groups, 1)
        for place, text in enumerate(group, 1)
        if text not in counts
    }
    if not absent:
        return
    declared = {text for group in groups for text in group}
    similar = sum(nearest_text(text, set(known) - declared) is not None for text in absent)
    places = name_list([f"text {place} of bin {number}" for number, place in absent.values()], 3)
    hint = f", and {similar} of them are similar to texts of the column that are in no bin" if similar else ""
    warnings.warn(
        f"party {party}: {len(absent)} of {len(declared)} texts in the declared bins of column {column!r} occur in no "
        f"row ({places}){hint}. "
        "Check their spelling: `securevfl bins` prints them with the most similar texts",
        DataNotice,
        stacklevel=6,
    )


def _warn_of_shared_texts(
    party: str, column: str, counts: Mapping[str, int], rows: Mapping[str, int], others: int, min_rows: float
) -> None:
    """Warn if texts outside all declared bins, or missing texts, have no bin of their own.

    Args:
        party: the party, for messages.
        column: the name of the column.
        counts: the training rows of each text, and those of missing texts under MISSING_CATEGORY.
        rows: the training rows of each category.
        others: the training rows of all other texts.
        min_rows: the minimum number of training rows of a bin.
    """
    missing = 0 if MISSING_CATEGORY in rows else counts.get(MISSING_CATEGORY, 0)
    missing = min(missing, others)  # missing texts may be in a declared bin
    if 0 < others < min_rows:
        what = f"the {others} rows of column {column!r} with texts outside the declared bins or without a text"
        _warn_of_shared_bin(party, what, "the most frequent bin", min_rows)
    elif 0 < missing < others:
        what = f"the {missing} missing texts of column {column!r}"
        _warn_of_shared_bin(party, what, "the texts outside the declared bins", min_rows)


def _warn_of_shared_bin(party: str, what: str, with_what: str, min_rows: float) -> None:
    warnings.warn(
        f"party {party}: {what} share a bin with {with_what}, because they are in fewer than {min_rows:g} training "
        "rows",
        DataNotice,
        stacklevel=6,
    )


def _check_bin_count(party: str, column: str, bins: int, options: Woe) -> None:
    """Raise TableError if a column has more bins than the job's option `prepare.woe.bins` allows."""
    if bins > options.slots:
        raise TableError(
            f"party {party}: column {column!r} has {bins} bins with those of missing values and special codes, and the "
            f"job allows {options.slots}",
            f"merge bins, or set prepare.woe.bins to {bins - 1} in the job of all parties",
            code="SVFL-TABLE-BINS",
            party=party,
            column=column,
        )
