"""Summary of a party's training columns, to which `securevfl.data.drift` compares new rows.

A numeric column is summarised by the number of rows, the number of missing values, and the number of rows below, and
at or below, each of about a hundred points. A text column is summarised by the number of rows of its most frequent
values. The summary is stored in the party's part of the model and is never sent.
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

ROWS = 50_000  # at most, of the training rows

OUTSIDE = 4096  # of them, where the table is not in this process's memory

POINTS = 100

LEVELS = 100  # of the commonest texts

SCORE = "(score)"  # what the scores are called among the columns


class Baseline(Config):
    """One column of the training rows: `rows` of them, of which `missing` lacked a value.

    points, below, under: rising numbers, and how many rows had at most, or less than, each; earlier files lack `under`.
    levels: rows by text, of a column of texts;
    `others` had another.
    """

    column: str
    rows: int
    missing: int
    points: tuple[float, ...] = ()
    below: tuple[int, ...] = ()
    under: tuple[int, ...] = ()
    levels: dict[str, int] | None = None
    others: int = 0


def most(X: Floats | ExternalTable) -> int:
    """How many of the training rows are looked at."""
    return OUTSIDE if isinstance(X, ExternalTable) else ROWS


def baselines(own: Columns, rows: Rows) -> list[Baseline]:
    """One of each column (n x d), from these rows: of the training rows `most`, spread over the table."""
    if not own.names:  # a helper has no table
        return []
    X = own.X[rows]
    return [
        of_texts(name, X[:, j], own.levels[name]) if name in own.levels else of_numbers(name, X[:, j])
        for j, name in enumerate(own.names)
    ]


def of_numbers(column: str, values: Floats) -> Baseline:
    """Make the baseline of numbers (n,), NaN where one is missing."""
    present = np.sort(values[~np.isnan(values)])
    places = np.floor(np.linspace(0, 1, POINTS + 1) * (len(present) - 1)).astype(np.intp)  # as np.quantile, "lower"
    points = np.unique(present[places]) if len(present) else present
    return Baseline(
        column=column,
        rows=len(values),
        missing=len(values) - len(present),
        points=tuple(points.tolist()),
        below=tuple(np.searchsorted(present, points, side="right").tolist()),
        under=tuple(np.searchsorted(present, points, side="left").tolist()),
    )


def of_texts(column: str, places: Floats, levels: tuple[str, ...]) -> Baseline:
    """Make the baseline of texts, given as places (n,) among their levels, NaN where one is missing."""
    lacks = np.isnan(places)
    counts = np.bincount(places[~lacks].astype(np.intp), minlength=len(levels))
    common = np.argsort(-counts, kind="stable")[:LEVELS]
    kept = {levels[at]: int(counts[at]) for at in common.tolist() if counts[at]}
    return Baseline(
        column=column,
        rows=len(places),
        missing=int(lacks.sum()),
        levels=kept,
        others=int(counts.sum()) - sum(kept.values()),
    )


def counted(values: NDArray[Any], points: tuple[float, ...]) -> tuple[Floats, Floats]:
    """How many of the numbers (m,) are at most each of these points, and less than each."""
    rising, at = np.sort(values), np.asarray(points)
    below, under = (np.searchsorted(rising, at, side=side) for side in ("right", "left"))
    return below.astype(np.float64), under.astype(np.float64)
