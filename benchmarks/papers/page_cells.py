"""Cells and tables of docs/results.md, from rows of results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
Part = Mapping[str, Any]


def number(value: float | None, digits: int = 1) -> str:
    """Format a figure; a dash for None."""
    return "-" if value is None else f"{value:,.{digits}f}"


def spread(row: Row, key: str, digits: int = 1) -> str:
    """Format a mean and its standard deviation."""
    if row[key] is None:
        return "-"
    return f"{number(row[key], digits)} ± {number(row[f'{key}_sd'], digits)}"


def rounds_cell(row: Row, prefix: str = "") -> str:
    """Format the rounds to a target: mean and deviation, or the median if some starts do not reach it.

    Args:
        row: a row of results. Rows of one start for each split have neither a median nor a number of runs.
        prefix: "one_" for the result at the step of all methods.

    Returns:
        The cell. "median 27 (12 of 15)" counts the starts that reach the target.
    """
    if row[f"{prefix}rounds"] is not None:
        return spread(row, f"{prefix}rounds") if f"{prefix}rounds_sd" in row else number(row[f"{prefix}rounds"], 0)
    if f"{prefix}reached" not in row:
        return "-"
    total = len(row[f"{prefix}runs"]) if f"{prefix}runs" in row else row["splits"]
    middle = row.get(f"{prefix}rounds_median")
    start = "-" if middle is None else f"median {number(middle)}"
    return f"{start} ({row[f'{prefix}reached']} of {total})"


def typical(row: Row, prefix: str = "") -> float | None:
    """Return the median of the rounds, in which a start that misses the target counts; the mean of older rows."""
    rounds: float | None = row.get(f"{prefix}rounds_median", row[f"{prefix}rounds"])
    return rounds


def starts(plan: Mapping[str, Any]) -> str:
    """Format the numbers of splits and of random starts; a plan without starts has one for each split."""
    number_of_starts = plan.get("starts", 1)
    splits = "one split" if plan["splits"] == 1 else f"{plan['splits']} splits"
    return f"{splits}, {number_of_starts} random start{'s' * (number_of_starts != 1)} each"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows)]
    return "\n".join(lines) + "\n"


def pick(rows: Sequence[Row], **keys: Any) -> Row:
    """Return the row with these values."""
    return next(row for row in rows if all(row[key] == value for key, value in keys.items()))


def share(one: float | None, other: float | None) -> str:
    """Format a ratio."""
    return "-" if one is None or not other else number(one / other, 2)
