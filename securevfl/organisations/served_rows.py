"""Interface of checks of the rows that a server answers from, such as their drift since the training.

A package such as `securevfl.credit` registers the check.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from securevfl.base.extensions import find_tool
from securevfl.data.read_options import ReadOptions
from securevfl.display import html
from securevfl.training.model_part import ModelPart

SERVED_ROWS_ENTRY_POINTS = "securevfl.served_rows"
DRIFT_ENTRY = "drift"


@dataclass(frozen=True)
class ColumnShifts:
    """How far the columns of served rows have moved from those of the training.

    Attributes:
        heads: headings of the table for a page.
        rows: rows of that table, one for each column.
        shifted: names of the columns that have shifted.
        figures: name and description of each figure for Prometheus, with its value for each column.
    """

    heads: Sequence[str]
    rows: Sequence[Sequence[html.Cell]]
    shifted: Sequence[str]
    figures: Mapping[tuple[str, str], Mapping[str, float]]


class ServedRowsCheck(Protocol):
    """Compares the rows that a party serves with those of the training."""

    def __call__(self, part: ModelPart, data: Path, options: ReadOptions) -> ColumnShifts:
        """Return the shifts of the rows in a file.

        Args:
            part: the party's part of the model.
            data: the file of the served rows.
            options: its id column, and what happens to several rows of one id.

        Returns:
            The shifts. Raises TableError if the rows cannot be compared.
        """
        ...


def served_rows_check() -> ServedRowsCheck | None:
    """Return the check that a package has registered; None if no package has."""
    return find_tool(SERVED_ROWS_ENTRY_POINTS, DRIFT_ENTRY)
