"""A cheap sample of every part of the results, which a test computes again.

The sample of a part is its small plan on generated tables: the code of the part, without the real tables and in
seconds. When a part is computed, its sample is computed several times and stored next to the rows, as the mean of every
figure and its range. If the code later computes something else, the sample differs, and the page is stale.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from benchmarks.papers.study import Part, Rows, Runs

REPETITIONS = 3
RELATIVE_TOLERANCE = 0.01
RANGES = 3
"""A figure may differ from the stored mean by this multiple of the stored range: runs with stale sums vary."""
TIMES = re.compile(r"(^|_)(s|ms|seconds|in_step)$")
"""Names of figures that depend on the machine; they are not compared."""
CHOICES = frozenset({"step", "eta", "gamma"})
"""Names of options that a run chooses on validation rows. On a small table the choice is random, so it is not
compared; the errors that follow from it are."""

Sample = dict[str, Any]


def compute(part: Part) -> Rows:
    """Return the rows of a part's small plan, on one thread."""
    with threadpool_limits(1):
        return part.run(None, part.quick, Runs(lambda _: None))


def sample(part: Part, origin: Mapping[str, Any]) -> Sample:
    """Compute the sample of a part several times.

    Args:
        part: the part.
        origin: the origin of this run (`benchmarks.papers.origin`).

    Returns:
        `commit` and `date` of the run, and `rows`, in which each number became its mean and its range, `[mean, range]`.
    """
    runs = [compute(part) for _ in range(REPETITIONS)]
    rows = [_merged([_figures(row) for row in rows]) for rows in zip(*runs, strict=True)]
    return {"commit": origin["commit"], "date": origin["date"], "rows": rows}


def differences(stored: Sequence[Mapping[str, Any]], rows: Rows) -> list[str]:
    """Describe every figure of the rows that is outside the stored deviation; empty if all agree."""
    if len(stored) != len(rows):
        return [f"{len(rows)} rows instead of {len(stored)}"]
    results = []
    for number, (expected, row) in enumerate(zip(stored, rows, strict=True)):
        figures = _figures(row)
        results += [
            f"row {number}, {name}: {figures.get(name)} instead of {values}"
            for name, values in expected.items()
            if name not in CHOICES and (name not in figures or not _agrees(values, figures[name]))
        ]
    return results


def _agrees(stored: Any, figure: Any) -> bool:
    """Return whether a figure is within the stored deviation; texts and missing figures must be equal."""
    if not isinstance(stored, list) or not isinstance(figure, int | float):
        return bool(stored == figure)
    mean, width = stored
    return abs(figure - mean) <= max(RELATIVE_TOLERANCE * abs(mean), RANGES * width)


def _figures(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the texts and numbers of a row, without times."""
    scalars = {name: value for name, value in row.items() if value is None or isinstance(value, str | int | float)}
    return {name: value for name, value in scalars.items() if not TIMES.search(name) and name not in CHOICES}


def _merged(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge repetitions of a row. A figure that is missing in some of them only is left out."""
    merged: dict[str, Any] = {}
    for name, first in rows[0].items():
        values = [row[name] for row in rows]
        if all(isinstance(value, int | float) for value in values):
            merged[name] = [math.fsum(values) / len(values), max(values) - min(values)]
        elif all(value == first for value in values):
            merged[name] = first
    return merged
