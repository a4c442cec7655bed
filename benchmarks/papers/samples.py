"""A cheap sample of every part of the results, which a test computes again.

The sample of a part is its small plan on generated tables: the code of the part, without the real tables and in
seconds. It is computed several times, and stored next to the rows: every figure as its mean and a tolerance. If the
code later computes something else, the sample differs, and the page is stale.

Most figures follow from seeds; they are equal in all runs on one machine. Rows for which `Part.varies` returns True
have random figures: parties draw fresh keys or noise, or sums are stale and depend on the time at which messages
arrive. Of these rows, errors and AUCs are compared within `DEVIATIONS` standard deviations, but at least within the
tolerance of their kind. Rounds of these rows are not compared: a small change of an AUC moves them by a whole
evaluation.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from benchmarks.papers.study import Part, Rows, Runs

REPETITIONS = 20
"""Repetitions of a sample with random figures."""
REPETITIONS_OF_EQUAL_FIGURES = 2
"""Repetitions of a sample without them; they must agree."""
RELATIVE_TOLERANCE = 0.01
"""Tolerance of a figure that follows from seeds. Another processor may round its sums in another order."""
DEVIATIONS = 8
"""Tolerance of a random figure, in standard deviations. The deviation is estimated from `REPETITIONS` values, so that a
normal figure is outside with probability 3e-7."""
ABSOLUTE_TOLERANCES = {"error": 0.05, "auc": 0.02}
"""Smallest tolerances of random figures. Small tables have few test rows, and a rare outcome may be missing among the
repetitions."""
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
        `commit` and `date` of the run, and `rows`, in which each number became `[mean, tolerance]`.

    Raises:
        ValueError: a figure of a row without random figures differs between two repetitions.
    """
    runs = [compute(part)]
    repetitions = REPETITIONS if any(map(part.varies, runs[0])) else REPETITIONS_OF_EQUAL_FIGURES
    runs += [compute(part) for _ in range(repetitions - 1)]
    rows = [_merged(list(repeated), part.varies(repeated[0])) for repeated in zip(*runs, strict=True)]
    return {"commit": origin["commit"], "date": origin["date"], "rows": rows}


def differences(stored: Sequence[Mapping[str, Any]], rows: Rows) -> list[str]:
    """Describe every figure of the rows that is outside the stored tolerance; empty if all agree."""
    if len(stored) != len(rows):
        return [f"{len(rows)} rows instead of {len(stored)}"]
    results = []
    for number, (expected, row) in enumerate(zip(stored, rows, strict=True)):
        figures = _figures(row)
        results += [
            f"row {number}, {name}: {figures.get(name)} instead of {values}"
            for name, values in expected.items()
            if name not in figures or not _agrees(values, figures[name])
        ]
    return results


def _agrees(stored: Any, figure: Any) -> bool:
    """Return whether a figure is within the stored tolerance; texts and missing figures must be equal."""
    if not isinstance(stored, list) or not isinstance(figure, int | float):
        return bool(stored == figure)
    mean, tolerance = stored
    return bool(abs(figure - mean) <= tolerance)


def _figures(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the texts and numbers of a row, without times and choices."""
    scalars = {name: value for name, value in row.items() if value is None or isinstance(value, str | int | float)}
    return {name: value for name, value in scalars.items() if not TIMES.search(name) and name not in CHOICES}


def _merged(repeated: Sequence[Mapping[str, Any]], varies: bool) -> dict[str, Any]:
    """Merge repetitions of a row. Of a row that varies, the texts, errors and AUCs remain."""
    rows = [_figures(row) for row in repeated]
    merged: dict[str, Any] = {}
    for name, first in rows[0].items():
        values = [row.get(name) for row in rows]
        if varies:
            value = _of_random(name, values)
            merged |= {} if value is None else {name: value}
        elif any(value != first for value in values):
            raise ValueError(f"{name} differs between repetitions of a row: {values}; name the row in Part.varies")
        elif isinstance(first, int | float):
            merged[name] = [first, RELATIVE_TOLERANCE * abs(first)]
        else:
            merged[name] = first
    return merged


def _of_random(name: str, values: Sequence[Any]) -> Any:
    """Return the text, or the mean and the tolerance, of a random figure; None if it is not compared.

    A tolerance above the figure itself tests nothing, unless it is that of its kind: an error of 0 may be 0.05, and
    not 0.5.
    """
    if isinstance(values[0], str):
        return values[0] if len(set(values)) == 1 else None
    if name not in ABSOLUTE_TOLERANCES or not all(isinstance(value, int | float) for value in values):
        return None
    mean, least = statistics.fmean(values), ABSOLUTE_TOLERANCES[name]
    tolerance = max(least, DEVIATIONS * statistics.stdev(values))
    return None if tolerance > max(abs(mean), least) else [mean, tolerance]
