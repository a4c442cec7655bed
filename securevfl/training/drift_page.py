"""How far new rows have drifted from those of a training, as rows of a table, plain data and a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from securevfl.data.baseline import SCORE
from securevfl.data.columns import Columns
from securevfl.data.drift import ALARMS, SHIFTED, STABLE, Drift, measure_drift
from securevfl.data.readers import read_table
from securevfl.display import html
from securevfl.errors import TableError
from securevfl.training.model_part import ModelPart

DRIFT_HEADS = ["column", "PSI", "size", "KS", "p", "missing", "was missing", "unseen", "shifted"]


def drift(
    part: ModelPart,
    data: str | Path,
    *,
    scores: str | Path | None = None,
    id_column: str = "id",
    alarms: float = ALARMS,
) -> list[Drift]:
    """Each of a party's own columns in a file of new rows, held against the training's; nothing leaves the party.

    scores: a file of predictions, as `securevfl predict` writes it, at whoever is told scores. alarms: the chance that
    any column is said to be shifted when none is. TableError if columns or values are not those of the training.
    """
    own = [each for each in part.baseline if each.column != SCORE]
    texts = [each.column for each in own if each.categories is not None]
    table = read_table(Path(data), id_column=id_column, label_column="", chosen=part.columns, texts=texts)
    found = measure_drift(own, table.columns, alarms=alarms)
    return found if scores is None else [*found, _of_scores(part, Path(scores), alarms)]


def _of_scores(part: ModelPart, path: Path, alarms: float) -> Drift:
    kept = [each for each in part.baseline if each.column == SCORE]
    if not kept:
        raise TableError(
            f"{part.name}: a party that was told scores was expected to compare them, this one was not; leave them out"
        )
    table = read_table(path, id_column="id", label_column="").columns
    name = "probability" if "probability" in table.names else "prediction"
    if name not in table.names:
        raise TableError(f"{path}: predictions as securevfl predict writes them were expected; bring that file")
    at = table.names.index(name)
    return measure_drift(kept, Columns(np.ascontiguousarray(table.X[:, [at]]), [SCORE]), alarms=alarms)[0]


def plain(found: Sequence[Drift], part: ModelPart) -> dict[str, Any]:
    """Return the drift as values that JSON can hold."""
    columns = [{**vars(each), "size": each.size} for each in found]
    return {"party": part.name, "run": part.run, "shifted": [each.column for each in found if each.shifted]} | {
        "columns": columns
    }


def rows(found: Sequence[Drift]) -> list[list[html.Cell]]:
    """Return a row for each column, under HEADS; the largest PSI comes first."""
    return [
        [each.column, each.psi, each.size, each.ks, each.p, each.missing, each.was_missing, each.unseen, _yes(each)]
        for each in sorted(found, key=lambda each: -each.psi)
    ]


def _yes(each: Drift) -> str:
    return "yes" if each.shifted else "no"


def page(found: Sequence[Drift], part: ModelPart) -> str:
    """Assemble the drift into one file of HTML."""
    shifted = [each.column for each in found if each.shifted]
    head = f"Shifted: {', '.join(shifted)}." if shifted else "No column has shifted."
    body = [
        f"<h1>Drift at {html.escape(part.name)}</h1>",
        f"<p>{html.escape(head)}</p>",
        f'<p class="soft">PSI below {STABLE:g} is called stable, from {SHIFTED:g} on large. A column counts as shifted '
        "where chance alone would hardly show as much. Figures are of this party's own columns.</p>",
        html.section("Columns", html.table(DRIFT_HEADS, rows(found))),
    ]
    return html.page(f"Drift at {part.name}", body)
