"""How the command line shows things: tables, consent sheets. Plain text when it is no terminal."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from securevfl.runtime.clock import Path
from securevfl.training.costs import Costs, split_seconds
from securevfl.training.run_page import REPEATS, figure

Cell = str | int | float | None
UNCUT = 400  # columns, of what is no terminal
HANG = " " * 12  # before what continues a line of a sheet
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


def split_wide_table(heads: Sequence[str], rows: Sequence[Sequence[Cell]], width: int) -> list[Table]:
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


def costs_table(run: Costs) -> Table:
    """Lay out what a run cost: rounds, the seconds from start to end by what they went into, which add up to the total,
    and the megabytes that all parties sent."""
    rows: list[list[Cell]] = [["rounds", f"{run.rounds:,}"]]
    rows += [[f"{word}, s", seconds] for word, seconds in rounded_parts(run.parts, 2).items() if seconds != "0.00"]
    rows += [["total, s", f"{run.total:.2f}"], ["sent, MB", f"{run.bytes / 1e6:.2f}"]]
    grid = table(["what it cost", run.protocol], rows)
    grid.columns[1].justify = "right"
    return grid


def rounded_parts(parts: Mapping[str, float], digits: int) -> dict[str, str]:
    """Format parts so that, as they are printed, they add up to their printed sum."""
    ends = [round(end, digits) for end in accumulate(parts.values(), initial=0.0)]
    return {word: f"{end - start:.{digits}f}" for word, (start, end) in zip(parts, pairwise(ends), strict=True)}


def run_time_line(path: Path) -> str:
    """Say in a line how long a party's run took by the clock, from when all were there, and what that went into."""
    went = ", ".join(f"{word} {seconds}" for word, seconds in rounded_parts(split_seconds(path), 1).items())
    return f"{path.sum():.1f} s from start to end: {went}"


def figures(metrics: Mapping[str, float], positive: str | None, spread: Mapping[str, float] | None = None) -> str:
    """Metrics in a line, each with its standard error, and which class they are of."""
    if not metrics:
        return "no metrics, of too few rows,"
    shown = {name: value for name, value in metrics.items() if REPEATS.get(name, "") not in metrics}
    found = ", ".join(f"{name} {figure(value, (spread or {}).get(name))}" for name, value in shown.items())
    return found + ("" if positive is None else f" (positive class: {positive})")


def sheet(text: str, width: int | None) -> Text:
    """Wrap a consent sheet: what a word in front says goes on under itself, a line of its own for each party that it
    names; it is left as it is for None."""
    if width is None:
        return Text(text)
    whole, lines = list[str](), list[str]()
    for line in text.splitlines():
        if line.startswith(HANG) and whole[-1:] > [""] and not re.match(r" +[\w-]+: ", line):
            whole[-1] += f" {line.strip()}"
        else:
            whole.append(line)
    for line in whole:
        hang = HANG if re.match(r"  \w| {12}", line) else " " * 10 if re.match(r"\w+ {2,}", line) else "  "
        lines += textwrap.wrap(line, width, subsequent_indent=hang, break_on_hyphens=False) or [""]
    return Text("\n".join(lines))


def sheet_width(out: Console) -> int | None:
    """Return where to wrap a sheet: at the width of a terminal, nowhere in a pipe."""
    return min(out.width, 110) if out.is_terminal else None
