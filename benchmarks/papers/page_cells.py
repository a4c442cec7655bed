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
