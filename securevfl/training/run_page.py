"""The report of a run as an HTML page and as a notebook cell.

The page is one file without scripts. It contains figures of the whole run and no row of anybody's table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from securevfl.base.config import flatten
from securevfl.base.files import write_atomic
from securevfl.base.roles import Roles
from securevfl.base.version import __version__
from securevfl.display import html, svg
from securevfl.job import Job
from securevfl.runtime.costs import Stage
from securevfl.training.model_part import ModelPart
from securevfl.training.run_costs import Costs

LOSS_LABELS = {"batch_loss": "of the batch", "loss": "evaluated"}
AXES = {"round": "round", "seconds": "seconds without evaluation"}
# meanings of the letters in descriptions of what a party learns
SIZE_LETTERS = {"n": "n rows a batch", "c": "c outputs", "p": "p parameters", "d": "d columns"}
METRIC_LABELS = {"auc": "AUC", "accuracy": "accuracy", "r2": "R2", "rmse": "RMSE", "ks": "KS", "pr_auc": "PR AUC"}
# metrics that show the same as another metric, which is shown instead
REPEATS = {"loss": "log_loss", "error": "accuracy"}
NO_METRICS = frozenset({"round", "epoch", "batch_loss", "seconds"})  # entries of a round's record that are no metrics


def page(
    job: Job,
    parts: Mapping[str, ModelPart],
    *,
    alone: Mapping[str, float] | None = None,
    sheet: str = "",
) -> str:
    """Return the report of a run as an HTML page.

    Args:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        parts: each party's part of the model, the leading party's first if it is present.
        alone: metrics of a model of the leading party's columns alone, for comparison.
        sheet: the first screen of the consent sheet.

    Returns:
        The page.
    """
    lead, costs = next(iter(parts.values())), Costs.of(job, parts)
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    who = f"{', '.join(lead.parties)}: a {job.model.name} model by {costs.algorithm}, {costs.protocol}"
    disclosures = html.section("Who learned what", learned(job, parts)) if len(parts) == len(lead.parties) else ""
    if sheet:
        disclosures = html.section("The consent sheet of this run", f"<pre>{html.escape(sheet)}</pre>")
    how_good = [
        html.section(f"How good it is, on the {lead.evaluated_on}", comparison(lead, alone)),
        html.section("Each class against the others", by_class(lead)) if lead.by_class else "",
        html.section("Lift and calibration", quality(lead)),
    ]
    seconds = "<p class='soft'>Model files do not store costs.</p>"
    if costs.measured:
        seconds = svg.share_bar(costs.parts, unit="s")
    facts: dict[str, html.Cell] = {
        "algorithm": costs.algorithm,
        "protocol": costs.protocol,
        "local steps a round": costs.local_steps,
        "rounds": costs.rounds,
    }
    measured: dict[str, html.Cell] = {"seconds from start to end": costs.total, "bytes of all messages": costs.bytes}
    parties: list[list[html.Cell]] = [
        [part.name, part.role, len(part.columns), len(part.features)] for part in parts.values()
    ]
    messages: list[list[html.Cell]] = [
        [name, stage.name.lower(), message, tally.count, int(tally.amount)]
        for name, counters in costs.counters.items()
        for (stage, message), tally in sorted(counters.traffic.items())
    ]
    operations: list[list[html.Cell]] = [
        [name, operation, tally.count, tally.amount]
        for name, counters in costs.counters.items()
        for (stage, operation), tally in sorted(counters.ops.items())
        if stage == Stage.TRAIN
    ]
    names = html.escape(", ".join(job.accepts) or "Nothing beyond what its protocol declares")
    accepted = f"<p>{names}. <span class='soft'>explain(job, parties) lists what each party learns.</span></p>"
    body = [
        "<header><h1>Training run</h1>",
        f'<p class="soft">{html.escape(who)}</p>',
        f'<p class="soft">Written {when} by securevfl {__version__}; job {job.digest.hex()[:16]}.</p></header>',
        *(how_good if lead.leads else []),
        disclosures,
        *([html.section("Convergence", convergence(lead.history))] if lead.leads else []),
        html.section("What it cost", seconds, html.facts(facts | (measured if costs.measured else {}))),
        html.section("Parties", html.table(["party", "role", "columns", "as prepared"], parties)),
        html.section("Coefficients", coefficients(job, parts)),
        html.section("Messages", html.table(["from", "stage", "message", "count", "bytes"], messages)),
        html.section("Work under encryption", html.table(["at", "operation", "count", "seconds"], operations))
        if operations
        else "",
        html.section("The job", html.facts(flatten(job.to_dict()))),
        html.section("Accepted leaks", accepted),
    ]
    return html.page("Training run", body)


def write_report(path: Path, part: ModelPart, *, alone: Mapping[str, float] | None, sheet: str) -> None:
    """Write the report of a run between organisations from one party's part."""
    job = Job.from_dict(part.job)
    write_atomic(path, page(job, {part.name: part}, alone=alone, sheet=sheet).encode())


def comparison(lead: ModelPart, alone: Mapping[str, float] | None) -> str:
    """Return a table of the metrics, next to those of a model of the leading party's columns alone."""
    names = [name for name in lead.metrics if REPEATS.get(name, "") not in lead.metrics]
    together = ", ".join(lead.parties) + ", together"
    models = ({f"{lead.name} alone": alone} if alone else {}) | {together: lead.metrics}
    errors = {together: lead.metric_std_errors}
    rows: list[list[html.Cell]] = []
    for name in names:
        values = (
            figure(measured[name], errors.get(columns, {}).get(name)) if name in measured else None
            for columns, measured in models.items()
        )
        rows.append([METRIC_LABELS.get(name, name.replace("_", " ")), *values])
    caption = f"{lead.held_out:,} held-out rows; trained on {lead.trained:,} rows."
    if lead.positive is not None:
        caption += f" Positive class: {lead.positive}."
    return html.table(["columns of", *models], rows) + f"<p class='soft'>{html.escape(caption)}</p>" + notes(lead)


def notes(lead: ModelPart) -> str:
    """Return the statements about the training and its metrics, such as which metrics are not measured and why."""
    if not lead.notes:
        return ""
    items = "".join(f"<li>{html.escape(note[:1].upper() + note[1:])}</li>" for note in lead.notes)
    return f"<ul class='soft'>{items}</ul>"


def by_class(lead: ModelPart) -> str:
    """Return a table of the figures of each class against all others."""
    names = list(dict.fromkeys(name for figures in lead.by_class.values() for name in figures))
    shown = [name for name in names if name != "auc_std_error"]
    rows: list[list[html.Cell]] = [
        [label, *(_class_cell(figures, name) for name in shown)] for label, figures in lead.by_class.items()
    ]
    return html.table(["class", *(METRIC_LABELS.get(name, name) for name in shown)], rows)


def _class_cell(figures: Mapping[str, float], name: str) -> html.Cell:
    error = figures.get("auc_std_error") if name == "auc" else None
    return figure(figures[name], error) if name in figures else None


def cell(job: Job, parts: Mapping[str, ModelPart]) -> str:
    """Return a short report of the run as HTML for a notebook."""
    lead, costs = next(iter(parts.values())), Costs.of(job, parts)
    figures: list[html.Cell] = [figure(value, lead.metric_std_errors.get(name)) for name, value in lead.metrics.items()]
    head = f"{costs.algorithm} on a {job.model.name} model, {costs.protocol}, {', '.join(parts)}"
    return "".join(
        [
            f"<p><b>{html.escape(head)}</b>; metrics on the {html.escape(lead.evaluated_on)}</p>",
            html.table(list(lead.metrics), [figures]) if lead.metrics else "",
            by_class(lead) if lead.by_class else "",
            notes(lead),
            convergence(lead.history, ("round",)),
            costs._repr_html_(),
        ]
    )


def convergence(history: list[dict[str, float]], over: Sequence[str] = ("round", "seconds")) -> str:
    """Return charts of the loss and the main metric by round and by second, as far as the run has recorded them."""
    charts, names = [], metric_names(history)
    main_metric = next((name for name in METRIC_LABELS if name in names), None)
    for axis in over:
        losses = {words: curve(history, axis, name) for name, words in LOSS_LABELS.items()}
        charts.append(svg.line_chart(losses, x=AXES[axis], y="loss"))
        if main_metric is not None:
            series = {METRIC_LABELS[main_metric]: curve(history, axis, main_metric)}
            charts.append(svg.line_chart(series, x=AXES[axis], y=METRIC_LABELS[main_metric]))
    return svg.side_by_side(charts) if any(charts) else "<p class='soft'>No round was recorded.</p>"


def metric_names(history: list[dict[str, float]]) -> list[str]:
    """Return the metrics of evaluations during training, in order of appearance."""
    return list(dict.fromkeys(name for record in history for name in record if name not in NO_METRICS))


def curve(history: list[dict[str, float]], over: str, name: str) -> list[tuple[float, float]]:
    """Return the points of one figure over rounds or seconds."""
    return [(record[over], record[name]) for record in history if over in record and name in record]


def quality(lead: ModelPart) -> str:
    """Return charts of lift, calibration and ROC curve by tenths of the rows, and their table."""
    tenths = [[float(value) for value in row] for row in lead.calibration]
    if not tenths:
        return "<p class='soft'>This model has no calibration.</p>"
    heads = ["mean prediction", "mean label", "rows"]
    if lead.positive is not None:
        heads = ["probability", f"share of {lead.positive}", "rows"]
    seen = {"this model": [(predicted, observed) for predicted, observed, _ in tenths]}
    values = [value for predicted, observed, _ in tenths for value in (predicted, observed)]
    diagonal = (0.0, 1.0) if lead.positive is not None else (min(values), max(values))
    pictures = [svg.line_chart(seen | {"as predicted": [(end, end) for end in diagonal]}, x=heads[0], y=heads[1])]
    if lead.positive is not None:
        lift = {"this model": lifts(tenths), "at random": [(0.1, 1.0), (1.0, 1.0)]}
        curves = {"this model": roc(tenths), "at random": [(0.0, 0.0), (1.0, 1.0)]}
        share = "share of rows, highest scores first"
        pictures.insert(0, svg.line_chart(lift, x=share, y=f"lift: {lead.positive} among them, as against all rows"))
        pictures.append(svg.line_chart(curves, x="false positives, share", y="true positives, share"))
    rows: list[list[html.Cell]] = [
        [f"{predicted:.3f}", f"{observed:.3f}", int(count)] for predicted, observed, count in tenths
    ]
    return svg.side_by_side(pictures) + html.table(heads, rows)


def lifts(tenths: Sequence[Sequence[float]]) -> list[tuple[float, float]]:
    """Return the lift curve.

    Args:
        tenths: (probability, share of positive rows, rows) by rising probability.

    Returns:
        Points (share of rows with the highest scores, ratio of the share of positives among them to that of all rows).
    """
    rows, positives = sum(row[2] for row in tenths), sum(row[1] * row[2] for row in tenths)
    points, seen, up = list[tuple[float, float]](), 0.0, 0.0
    for _, share, count in reversed(tenths):
        seen, up = seen + count, up + share * count
        points.append((seen / rows, up / (positives or 1.0) / (seen / rows)))
    return points


def learned(job: Job, parts: Mapping[str, ModelPart]) -> str:
    """Return what each party learns from such a run, in the words of its consent sheet, with sizes as letters."""
    roles = job.family.complete_roles(job, Roles.of((part.name, part.role) for part in parts.values()), {})
    rows: list[list[html.Cell]] = [
        [name, word, " ".join(text.split())]
        for name in roles.parties
        for word, text in job.family.statements(job, roles, name, None)
    ]
    used = [
        words for letter, words in SIZE_LETTERS.items() if any(re.search(rf"\b{letter}\b", str(row[2])) for row in rows)
    ]
    words = [*([f"{', '.join(used)}."] if used else []), "explain(job, parties) has the sheet with all figures."]
    return html.table(["party", "", "what"], rows) + f"<p class='soft'>{html.escape(' '.join(words))}</p>"


def roc(tenths: Sequence[Sequence[float]]) -> list[tuple[float, float]]:
    """Return the points (false positive rate, true positive rate) of the ROC curve.

    Args:
        tenths: probability, share of positives and number of rows, by rising probability.

    Returns:
        The points, from (0, 0) to (1, 1).
    """
    positives = [share * count for _, share, count in reversed(tenths)]
    negatives = [(1 - share) * count for _, share, count in reversed(tenths)]
    points, up, across = [(0.0, 0.0)], 0.0, 0.0
    for more, others in zip(positives, negatives, strict=True):
        up, across = up + more, across + others
        points.append((across / (sum(negatives) or 1.0), up / (sum(positives) or 1.0)))
    return points


def coefficients(job: Job, parts: Mapping[str, ModelPart]) -> str:
    """Return what one unit of each column adds, for parties that know their weights."""
    if not job.model.by_column:
        return "<p class='soft'>This model has no weights for columns.</p>"
    known = [part for part in parts.values() if part.columns and "theta" in part.state]
    if not known:
        return "<p class='soft'>All weights stay shared: no party knows any.</p>"
    rows: list[list[html.Cell]] = [
        [part.name, feature, ", ".join(f"{weight:.4g}" for weight in weights)]
        for part in known
        for feature, weights in part.coefficients().items()
    ]
    return html.table(["party", "column", "per unit"], rows)


def figure(value: float, error: float | None) -> str:
    """Format a metric, with its standard error if there is one."""
    return f"{value:.4f}" if error is None else f"{value:.4f} +- {error:.4f}"
