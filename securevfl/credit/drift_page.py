"""Drift of new rows from the training rows, as a table, as JSON and as a page.

The drift of a column is the difference between its distribution in new rows and in the training rows. Its measures,
such as the population stability index (PSI), are defined in `securevfl.credit.drift`. A party's part of the model, the
file that it keeps after a training, contains a summary of the training rows. A server is a party that answers requests
for scores; its status page shows the drift of its rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from securevfl.credit.drift import ALARMS, SHIFTED, STABLE, Drift, measure_drift
from securevfl.data.baseline import SCORE_COLUMN
from securevfl.data.columns import Columns
from securevfl.data.composite_ids import id_columns
from securevfl.data.read_options import ReadOptions
from securevfl.data.readers import column_names, read_table
from securevfl.display import html
from securevfl.errors import IdError, TableError
from securevfl.organisations.served_rows import ColumnShifts
from securevfl.training.model_part import ModelPart

DRIFT_HEADS = ["column", "PSI", "shift", "KS", "p", "missing", "missing before", "new values", "shifted"]


def drift(
    part: ModelPart,
    data: str | Path,
    *,
    scores: str | Path | None = None,
    options: ReadOptions = ReadOptions(),
    alarms: float = ALARMS,
) -> list[Drift]:
    """Compare each column of a party in a file of new rows with the training rows; nothing is sent.

    Args:
        part: the party's part of the model.
        data: the file of new rows.
        scores: a file of predictions as `securevfl predict` writes it, at the party that receives scores.
        options: the id column of both files, and what happens to several rows of one id.
        alarms: probability that any column is reported as shifted if none is.

    Returns:
        The drift of each column, and of the scores last. Raises TableError if columns differ from the training.
    """
    column_baselines = [item for item in part.baseline if item.column != SCORE_COLUMN]
    known = part.preparation.types
    table = read_table(Path(data), replace(options, label_column="", chosen=part.columns, known=known))
    column_drifts = measure_drift(column_baselines, table.columns, alarms=alarms)
    if scores is None:
        return column_drifts
    id_names = id_columns(options.id_column, column_names(data, options.id_column)).prediction_names
    return [*column_drifts, _of_scores(part, Path(scores), id_names, alarms)]


def _of_scores(part: ModelPart, path: Path, id_names: Sequence[str], alarms: float) -> Drift:
    """Return the drift of the scores in a file of predictions, whose id columns have these names."""
    score_baselines = [item for item in part.baseline if item.column == SCORE_COLUMN]
    if not score_baselines:
        raise TableError(
            f"{part.name}: this party received no scores in the training, so scores cannot be compared",
            "leave --scores out",
            code="SVFL-MODEL-UNSUPPORTED",
            party=part.name,
        )
    id_column = ",".join(id_names)
    try:
        names = column_names(path, id_column)
    except IdError:
        names = []
    name = "probability" if "probability" in names else "prediction"
    if name not in names:
        raise TableError(
            f"{path}: the file has no predictions with the columns {', '.join(id_names)}",
            "pass a file that securevfl predict wrote, and the same --id",
            code="SVFL-FILE-WRONG-KIND",
            path=str(path),
        )
    table = read_table(path, ReadOptions(id_column, label_column="", chosen=(name,))).columns
    return measure_drift(score_baselines, Columns(table.X, [SCORE_COLUMN]), alarms=alarms)[0]


def column_shifts(part: ModelPart, data: Path, options: ReadOptions) -> ColumnShifts:
    """Return the drift of a server's rows from the training rows; see `organisations.served_rows.ServedRowsCheck`."""
    return shifts_of(drift(part, data, options=options))


def shifts_of(drifts: Sequence[Drift]) -> ColumnShifts:
    """Return the drift of columns as headings and rows for the status page of a server."""
    figures = {
        ("psi", "Population stability index"): {item.column: item.psi for item in drifts},
        ("missing", "Share of missing values"): {item.column: item.missing for item in drifts},
    }
    return ColumnShifts(DRIFT_HEADS, rows(drifts), [item.column for item in drifts if item.shifted], figures)


def plain(column_drifts: Sequence[Drift], part: ModelPart) -> dict[str, Any]:
    """Return the drift as lists and dicts that can be written as JSON."""
    columns = [{**vars(drift), "size": drift.size} for drift in column_drifts]
    return {
        "party": part.name,
        "run": part.run,
        "shifted": [drift.column for drift in column_drifts if drift.shifted],
    } | {"columns": columns}


def rows(column_drifts: Sequence[Drift]) -> list[list[html.Cell]]:
    """Return a row for each column, under `DRIFT_HEADS`, with the largest PSI first."""
    return [
        [
            item.column,
            item.psi,
            item.size,
            item.ks,
            _p_value(item.p),
            item.missing,
            item.was_missing,
            item.unseen,
            _yes(item),
        ]
        for item in sorted(column_drifts, key=lambda item: -item.psi)
    ]


def _p_value(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def _yes(drift: Drift) -> str:
    return "yes" if drift.shifted else "no"


def page(column_drifts: Sequence[Drift], part: ModelPart) -> str:
    """Return the drift as an HTML page."""
    shifted = [drift.column for drift in column_drifts if drift.shifted]
    head = f"Shifted: {', '.join(shifted)}." if shifted else "No column has shifted."
    body = [
        f"<h1>Drift at {html.escape(part.name)}</h1>",
        f"<p>{html.escape(head)}</p>",
        f'<p class="soft">PSI below {STABLE:g} is called stable, from {SHIFTED:g} on large. A column counts as shifted '
        "if chance alone would rarely cause such a difference. Figures are of this party's own columns.</p>",
        html.section("Columns", html.table(DRIFT_HEADS, rows(column_drifts), figures=[DRIFT_HEADS.index("p")])),
    ]
    return html.page(f"Drift at {part.name}", body)
