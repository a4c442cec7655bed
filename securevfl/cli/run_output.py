"""The result of a training on a terminal: its metrics next to those of one party alone, and its seconds by phase.

A party's part of the model has the weights of its columns; the part of the party with labels also has the metrics.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from securevfl.cli.show import Cell, table
from securevfl.display import html
from securevfl.display.printable import printable
from securevfl.training.local_baseline import LocalQuality
from securevfl.training.metric_words import REPEATS, STD_ERROR_NOTE, label_of, note_sentence
from securevfl.training.run_costs import Costs, rounded_split

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from securevfl.training.model_part import ModelPart

TOO_FEW_ROWS = "No metrics, because there are too few rows."
MAX_HEAD = 24  # maximum number of characters of a party's name above a column


def print_metrics(out: Console, part: ModelPart, alone: LocalQuality | None) -> None:
    """Print the metrics of a model as a table, then those of each class, and notes about how they were measured.

    Args:
        out: console for the result.
        part: the part of the model of the party with labels, which has the metrics.
        alone: metrics of a model of this party's columns alone, for comparison; None if it was not trained.
    """
    if part.metrics:
        out.print(metrics_table(part.name, LocalQuality(part.metrics, part.metric_std_errors), alone))
        positive = "" if part.positive is None else f" Positive class: {printable(part.positive)}."
        rows = f" ({part.held_out:,})" if part.held_out else ""
        errors = f" {STD_ERROR_NOTE}" if part.metric_std_errors else ""
        out.print(f"Measured on the {part.evaluated_on}{rows}.{positive}{errors}")
    else:
        out.print(TOO_FEW_ROWS)
    if part.by_class:
        out.print("\nEach class against the others", style="bold")
        out.print(_class_table(part.by_class))
    for note in part.notes:
        out.print(f"Note: {note_sentence(note)}")


def metrics_table(party: str, together: LocalQuality, alone: LocalQuality | None) -> Table:
    """Return a table of metrics with their standard errors, next to those of a model of one party's columns.

    Args:
        party: name of the party with labels.
        together: the metrics of the model of all columns.
        alone: the metrics of a model of this party's columns alone; None if no such model was trained.

    Returns:
        The table.
    """
    models = {"all parties": together}
    if alone is not None and any(name in alone.metrics for name in together.metrics):
        short = party if len(party) <= MAX_HEAD else f"{party[:MAX_HEAD]}..."
        models = {f"{short} alone": alone} | models
    rows: list[list[Cell]] = [
        [
            label_of(name),
            *(
                html.with_error(model.metrics[name], model.std_errors.get(name)) if name in model.metrics else "-"
                for model in models.values()
            ),
        ]
        for name in together.metrics
        if REPEATS.get(name, "") not in together.metrics
    ]
    return _figures_right(table(["metric", *map(printable, models)], rows))


def _class_table(by_class: Mapping[str, Mapping[str, float]]) -> Table:
    names = [
        name for name in dict.fromkeys(key for values in by_class.values() for key in values) if name != "auc_std_error"
    ]
    rows: list[list[Cell]] = [
        [
            label,
            *(
                html.with_error(values[name], values.get("auc_std_error") if name == "auc" else None)
                if name in values
                else "-"
                for name in names
            ),
        ]
        for label, values in by_class.items()
    ]
    return _figures_right(table(["class", *map(label_of, names)], rows))


def print_costs(out: Console, costs: Costs) -> None:
    """Print how long a run took, how many bytes were sent, and its seconds by phase and kind of work.

    Args:
        out: console for the result.
        costs: the costs of all parties of the run. Between organisations, they are those of this party alone, with the
            bytes that it has sent.
    """
    out.print(f"Costs: {costs.protocol}, {costs.rounds:,} rounds", style="bold")
    out.print(f"{costs.total:.2f} s from start to end; {costs.senders} sent {costs.bytes / 1e6:,.2f} MB")
    out.print(seconds_table(costs))


def seconds_table(costs: Costs) -> Table:
    """Return a table of the seconds of each phase by kind of work, which add up to the total of the run.

    Kinds of work that the run did not do have no column.
    """
    split = rounded_split(costs.path, 2)
    worked = [kind for kind in split["training"] if any(seconds[kind] > 0 for seconds in costs.split.values())]
    rows: list[list[Cell]] = [[phase, *(seconds[kind] for kind in worked)] for phase, seconds in split.items()]
    return _figures_right(table(["seconds of", *worked], rows))


def _figures_right(grid: Table) -> Table:
    """Align all columns but the first at the right."""
    for column in grid.columns[1:]:
        column.justify = "right"
    return grid
