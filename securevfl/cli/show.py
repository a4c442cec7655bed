"""Output of the command line: tables, costs and consent sheets; plain text without a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from securevfl.display.printable import printable
from securevfl.runtime.clock import Path
from securevfl.training.metric_words import REPEATS, figure
from securevfl.training.run_costs import Costs, rounded_parts, rounded_split

if TYPE_CHECKING:
    from securevfl.training.local_baseline import LocalQuality

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


def costs_table(run: Costs) -> Table:
    """Format the costs of a run: rounds, seconds by purpose, which add up to the total, and megabytes sent."""
    rows: list[list[Cell]] = [["rounds", f"{run.rounds:,}"]]
    # kinds of work that the run did not do are left out; the others have a row, even if their seconds round to 0
    rows += [[f"{name}, s", seconds] for name, seconds in rounded_parts(run.parts, 2).items() if run.parts[name] > 0]
    rows += [["total, s", f"{run.total:.2f}"], ["sent, MB", f"{run.bytes / 1e6:.2f}"]]
    grid = table(["costs", run.protocol], rows)
    grid.columns[1].justify = "right"
    return grid


def run_time_line(path: Path) -> str:
    """Return a line with the seconds of a party's run by phase and kind of work, since all parties were connected."""
    return f"{path.sum():.1f} s from start to end: {'; '.join(phase_lines(path, 1))}"


def phase_lines(path: Path, digits: int) -> list[str]:
    """Return a line for each phase of a run (such as training) with its seconds by kind of work (`rounded_split`)."""
    return [
        f"{phase}: {', '.join(f'{kind} {seconds}' for kind, seconds in kinds.items())}"
        for phase, kinds in rounded_split(path, digits).items()
    ]


def figures(metrics: Mapping[str, float], positive: str | None, std_errors: Mapping[str, float] | None = None) -> str:
    """Format metrics in a line.

    Args:
        metrics: the metrics by name.
        positive: the positive class, if there is one.
        std_errors: standard errors of the metrics.

    Returns:
        The line.
    """
    if not metrics:
        return "no metrics, because there are too few rows,"
    shown = {name: value for name, value in metrics.items() if REPEATS.get(name, "") not in metrics}
    line = ", ".join(f"{name} {figure(value, (std_errors or {}).get(name))}" for name, value in shown.items())
    return line + ("" if positive is None else f" (positive class: {positive})")


def alone_lines(name: str, together: Mapping[str, float], alone: LocalQuality | None) -> list[str]:
    """Return a line with the metrics of a model of the labelled party's columns alone, for comparison.

    Args:
        name: the party with labels.
        together: the metrics of the model of all columns.
        alone: the metrics of the party's model; None if there is none.

    Returns:
        The line, with the metrics that both models have; no line if there is none.
    """
    shared = {} if alone is None else {key: value for key, value in alone.metrics.items() if key in together}
    if alone is None or not shared:
        return []
    return [f"{name} alone, without the other columns: {figures(shared, None, alone.std_errors)}"]


def report_lines(by_class: Mapping[str, Mapping[str, float]], notes: Sequence[str]) -> list[str]:
    """Return the lines that a command prints below the metrics of a training.

    Args:
        by_class: with several classes, the figures of each class against all others.
        notes: statements about the training and its metrics.

    Returns:
        A line for each class, and one for each statement.
    """
    lines = []
    for name, values in by_class.items():
        errors = {"auc": values["auc_std_error"]} if "auc_std_error" in values else {}
        ranking = {figure_name: value for figure_name, value in values.items() if figure_name != "auc_std_error"}
        lines.append(f"class {name} against the others: {figures(ranking, None, errors)}")
    return lines + [f"note: {note}" for note in notes]


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
