"""Baselines: summaries of a party's training columns, with which tools such as `securevfl drift` compare new rows.

A numeric column is summarised by counts at about a hundred points, quantiles of its values: how many rows are below
each point, and how many are at or below it. A text column is summarised by the number of rows of its most frequent
texts (categories). The summary is stored in the party's part of the model and is never sent.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.base.config import Config
from securevfl.data.columns import Columns
from securevfl.data.external_table import ExternalTable
from securevfl.data.schedule import Rows

MAX_BASELINE_ROWS = 50_000
"""Maximum number of training rows from which a summary is computed."""
MAX_EXTERNAL_BASELINE_ROWS = 4096
"""The same maximum for a table that is on disk or at worker processes."""
POINTS = 100
"""Number of points of a numeric column."""
MAX_CATEGORIES = 100
"""Maximum number of texts of a text column that are counted separately."""
SCORE_COLUMN = "(score)"
"""The column name under which the model's scores are summarised."""


class Baseline(Config):
    """Summary of one column of the training rows.

    Attributes:
        column: the name of the column.
        rows: the number of rows.
        missing: the number of rows without a value.
        points: increasing quantiles of a numeric column.
        below: the number of rows at or below each point.
        under: the number of rows strictly below each point; `below` also counts rows equal to it.
        categories: the number of rows of each frequent category of a text column; None for numeric columns.
        others: the number of rows with any other text.
    """

    column: str
    rows: int
    missing: int
    points: tuple[float, ...] = ()
    below: tuple[int, ...] = ()
    under: tuple[int, ...] = ()
    categories: dict[str, int] | None = None
    others: int = 0


def max_baseline_rows(X: Floats | ExternalTable) -> int:
    """Return the maximum number of training rows from which a table's columns are summarised."""
    return MAX_EXTERNAL_BASELINE_ROWS if isinstance(X, ExternalTable) else MAX_BASELINE_ROWS


def baselines(table: Columns, rows: Rows) -> list[Baseline]:
    """Summarise each column of a table by its training rows, or by a sample of them spread evenly over the table."""
    if not table.names:  # a helper is a party without a table
        return []
    X = table.X[rows]
    return [
        categorical_baseline(name, X[:, j], table.categories[name])
        if name in table.categories
        else numeric_baseline(name, X[:, j])
        for j, name in enumerate(table.names)
    ]


def numeric_baseline(column: str, values: Floats) -> Baseline:
    """Summarise a numeric column (n,), in which missing values are NaN."""
    present = np.sort(values[~np.isnan(values)])
    ranks = np.floor(np.linspace(0, 1, POINTS + 1) * (len(present) - 1)).astype(
        np.intp
    )  # equals np.quantile(..., method="lower"), which takes values that occur in the column
    points = np.unique(present[ranks]) if len(present) else present
    return Baseline(
        column=column,
        rows=len(values),
        missing=len(values) - len(present),
        points=tuple(points.tolist()),
        below=tuple(np.searchsorted(present, points, side="right").tolist()),
        under=tuple(np.searchsorted(present, points, side="left").tolist()),
    )


def categorical_baseline(
    column: str, positions: Floats, categories: tuple[str, ...], max_categories: int = MAX_CATEGORIES
) -> Baseline:
    """Summarise a text column.

    Args:
        column: name of the column.
        positions: the positions (n,) of its texts among `categories`, NaN if missing.
        categories: the texts.
        max_categories: number of the most frequent texts that are counted singly.

    Returns:
        The summary.
    """
    missing = np.isnan(positions)
    counts = np.bincount(positions[~missing].astype(np.intp), minlength=len(categories))
    frequent = np.argsort(-counts, kind="stable")[:max_categories]
    rows = {categories[position]: int(counts[position]) for position in frequent.tolist() if counts[position]}
    return Baseline(
        column=column,
        rows=len(positions),
        missing=int(missing.sum()),
        categories=rows,
        others=int(counts.sum()) - sum(rows.values()),
    )


def counts_at_points(values: NDArray[Any], points: tuple[float, ...]) -> tuple[Floats, Floats]:
    """Return for each point how many of the values (m,) are <= the point, and how many are < the point."""
    ordered, edges = np.sort(values), np.asarray(points)
    below, under = (np.searchsorted(ordered, edges, side=side) for side in ("right", "left"))
    return below.astype(np.float64), under.astype(np.float64)
