"""Output of the command line: consoles, tables and consent sheets; plain text without a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from securevfl.display.printable import printable

Cell = str | int | float | None
PIPE_WIDTH = 400  # width, in characters, of output that is not on a terminal
GAP = 2  # number of blanks between the columns of a table


def console(*, err: bool = False) -> Console:
    """Return a console that does not colour numbers, and does not wrap lines in a pipe or a file.

    Args:
        err: whether to write to stderr instead of stdout.

    Returns:
        The console.
    """
    out = Console(stderr=err, highlight=False, markup=False, emoji=False)
    if out.is_terminal:
        return out
    return Console(stderr=err, highlight=False, markup=False, emoji=False, width=PIPE_WIDTH)


def table(heads: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Table:
    """Format a table; text is left-aligned, and numbers are right-aligned.

    Args:
        heads: headings, which may contain line breaks.
        rows: the cells.

    Returns:
        The table.
    """
    grid = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False)
    for j, head in enumerate(heads):
        is_text = all(isinstance(row[j], str) for row in rows)
        grid.add_column(head, justify="left" if is_text else "right", no_wrap=True)
    for row in rows:
        grid.add_row(*map(_cell, row))
    return grid


def split_wide_table(heads: Sequence[str], rows: Sequence[Sequence[Cell]], width: int) -> list[Table]:
    """Split a table that is too wide into several, each of which begins with the first column.

    Args:
        heads: headings.
        rows: the cells. Columns without text are left out.
        width: available width in characters.

    Returns:
        The tables.
    """
    needed = [max([len(head), *(len(_cell(row[j])) for row in rows)]) + GAP for j, head in enumerate(heads)]
    groups: list[list[int]] = [[0]]
    for j in range(1, len(heads)):
        if all(row[j] == "" for row in rows):
            continue
        if len(groups[-1]) > 1 and sum(needed[k] for k in groups[-1]) + needed[j] > width:
            groups.append([0])
        groups[-1].append(j)
    return [table([heads[j] for j in group], [[row[j] for j in group] for row in rows]) for group in groups]


def _cell(value: Cell) -> str:
    match value:
        case None:
            return "-"
        case float():
            if 0 < abs(value) < 1e-3:
                return f"{value:.0e}"
            return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
        case int():
            return f"{value:,}"
    return printable(value)


def styled_sheet(text: str) -> Text:
    """Return a consent sheet with bold titles; a leak that would be refused is red.

    Args:
        text: the lines of the consent sheet.

    Returns:
        The same lines with styles, which a console without colours leaves out.
    """
    styled = Text(text)
    styled.highlight_regex(r"(?m)^\S.*$", "bold")
    styled.highlight_regex(r"(?m)^ +would be refused\b", "bold red")
    return styled
