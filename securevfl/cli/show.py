"""How the command line shows things: tables, consent sheets. Plain text when it is no terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from securevfl.training.costs import Costs

Cell = str | int | float | None
UNCUT = 400  # columns, of what is no terminal
GAP = 2  # columns between those of a table


def console(*, err: bool = False) -> Console:
    """Stdout or stderr; neither guesses at colours for numbers in the text. A pipe or a file has no edge to wrap at."""
    made = Console(stderr=err, highlight=False, markup=False, emoji=False)
    return made if made.is_terminal else Console(stderr=err, highlight=False, markup=False, emoji=False, width=UNCUT)


def table(heads: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Table:
    """Words to the left, figures to the right; headings hold their own line breaks."""
    grid = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False)
    for j, head in enumerate(heads):
        words = all(isinstance(row[j], str) for row in rows)
        grid.add_column(head, justify="left" if words else "right", no_wrap=True)
    for row in rows:
        grid.add_row(*map(_cell, row))
    return grid


def parted(heads: Sequence[str], rows: Sequence[Sequence[Cell]], width: int) -> list[Table]:
    """Lay out a table whose columns do not fit side by side as several, each of which begins with the first column; a
    column without a text is left out."""
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
    return value


def costs_table(runs: Sequence[Costs]) -> Table:
    """Lay out the columns of FedBCD Table 2 in seconds, one row a run, with the megabytes that all parties sent.

    Seconds of work ahead have a column where there were any.
    """
    left_out = set() if any(run.ahead for run in runs) else {"ahead_s"}
    rows = [{key: value for key, value in run.row().items() if key not in left_out} for run in runs]
    grid = table([_HEADS.get(key, key) for key in rows[0]], [_costs(row) for row in rows])
    for column in grid.columns[2:]:
        column.justify = "right"
    return grid


_HEADS = {
    "encryption_s": "encrypt\ns",
    "local_s": "local\ns",
    "communication_s": "network\ns",
    "total_s": "total\ns",
    "ahead_s": "ahead\ns",
    "bytes": "sent\nMB",
}


def _costs(row: dict[str, str | int | float | None]) -> list[Cell]:
    cells: list[Cell] = [f"{v:.2f}" if isinstance(v, float) else v for k, v in row.items() if k != "bytes"]
    sent = row["bytes"]
    return [*cells, f"{sent / 1e6:.2f}" if isinstance(sent, int | float) else None]


def figures(metrics: Mapping[str, float], positive: str | None) -> str:
    """Metrics in a line, and which class they are of."""
    found = ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
    return found + ("" if positive is None else f" (positive class: {positive})")


def sheet(text: str, width: int | None) -> Text:
    """Wrap a consent sheet: lines too long for `width` continue under their own text; it is left as it is for None."""
    if width is None:
        return Text(text)
    lines = []
    for line in text.splitlines():
        hang = " " * 12 if line.startswith(" ") else "  "
        lines += textwrap.wrap(line, width, subsequent_indent=hang, break_on_hyphens=False) or [""]
    return Text("\n".join(lines))


def sheet_width(out: Console) -> int | None:
    """Return where to wrap a sheet: at the width of a terminal, nowhere in a pipe."""
    return min(out.width, 110) if out.is_terminal else None
