"""The report of a run as an HTML page and as a notebook cell.

The page is one file without scripts. It contains figures of the whole run and no row of anybody's table. What a reader
needs first is visible: the prediction, the gain by the partners, the quality of the scores, what each party learned and
the costs. Details, such as messages and the job, are folded.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from securevfl.base.config import flatten
from securevfl.base.files import write_atomic
from securevfl.base.version import __version__
from securevfl.display import html
from securevfl.job import Job
from securevfl.runtime.costs import Stage
from securevfl.training.local_baseline import LocalQuality
from securevfl.training.metric_words import REPEATS, STD_ERROR_NOTE, label_of, main_metric, meaning_of, note_sentence
from securevfl.training.model_part import ModelPart
from securevfl.training.partner_gain import PartnerGain, baseline_of
from securevfl.training.run_charts import convergence, costs_chart, quality, quality_chart
from securevfl.training.run_costs import Costs
from securevfl.training.run_disclosures import NOT_STORED, learned

NO_DISCLOSURES = "<p class='soft'>{}</p>"

NUMBERS = {
    "poisson": "a count",
    "negative_binomial": "a count",
    "gamma": "an amount",
    "tweedie": "an amount",
    "quantile": "a quantile",
}
"""What models predict if the labels are no classes, by the name of the model; others predict a number."""


def page(
    job: Job,
    parts: Mapping[str, ModelPart],
    *,
    alone: LocalQuality | Mapping[str, float] | None = None,
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
    title, baseline = title_of(job, lead), baseline_of(alone)
    full_sheet = html.details("The consent sheet of this run", f"<pre>{html.escape(sheet)}</pre>") if sheet else ""
    table = learned(lead.parties, lead.outputs_of_run) if lead.outputs_of_run else NO_DISCLOSURES.format(NOT_STORED)
    disclosures = html.section("What each party learned", table, full_sheet)
    how_good = [
        html.section(
            "What the partners' columns add" if baseline else "How good the model is", comparison(lead, baseline)
        ),
        html.section("Each class against the others", by_class(lead)) if lead.by_class else "",
        html.section("How the scores perform", quality(lead)),
    ]
    body = [
        f"<header><h1>{html.escape(title)}</h1>",
        f'<p class="soft">{html.escape(subtitle(job, lead, costs))}</p></header>',
        *(how_good if lead.leads else []),
        disclosures,
        *([html.section("Course of the training", convergence(lead))] if lead.leads else []),
        html.section("What it cost", costs_of(costs)),
        html.section("Details", *details(job, parts, costs)),
    ]
    return html.page(title, body)


def title_of(job: Job, lead: ModelPart) -> str:
    """Return what was predicted and with whom."""
    leader, *partners = lead.parties
    if lead.positive is not None:
        target = f"Prediction of \u201c{lead.positive}\u201d"
    elif lead.outputs > 1 and job.model.loss.classifies:
        target = f"Prediction of {lead.outputs} classes"
    elif job.model.loss.classifies:
        target = "Prediction of a class"
    else:
        target = f"Prediction of {NUMBERS.get(job.model.name, 'a number')}"
    return f"{target} by {leader} with {_listed(partners)}" if partners else f"{target} by {leader}"


def subtitle(job: Job, lead: ModelPart, costs: Costs) -> str:
    """Return the model, the rows, the date and the job in a line."""
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    measured = f"{lead.held_out:,} held-out rows measured it" if lead.held_out else "no rows were held out"
    rows = f" {lead.trained:,} rows trained it and {measured}." if lead.leads else ""
    return (
        f"Model: {job.model.name}; optimizer: {costs.algorithm}; protocol: {costs.protocol}.{rows} "
        f"Written {when} by securevfl {__version__}; job {job.digest.hex()[:16]}."
    )


def costs_of(costs: Costs) -> str:
    """Return the time and the bytes of a run in a sentence, a chart and a table."""
    if not costs.measured:
        return "<p class='soft'>Model files do not store costs.</p>"
    text = (
        f"The run took {costs.total:.1f} s from start to end, in {costs.rounds:,} rounds, and {costs.senders} sent "
        f"{_size(costs.bytes)} in preparation and training. Times are those of the longest chain of computations and "
        "messages that wait for each other, so they add up to the time of the run. Encryption is work with encrypted "
        "numbers. Transfers are oblivious transfers, which generate random numbers for computations on secret shares."
    )
    return f"<p>{html.escape(text)}</p>{costs_chart(costs)}"


def details(job: Job, parts: Mapping[str, ModelPart], costs: Costs) -> list[str]:
    """Return the folded parts of the page: parties, coefficients, messages, operations, the job and accepted leaks."""
    lead = next(iter(parts.values()))
    facts: dict[str, html.Cell] = {
        "algorithm": costs.algorithm,
        "protocol": costs.protocol,
        "local steps a round": costs.local_steps,
        "rounds": costs.rounds,
        "bytes sent in preparation and training": costs.bytes if costs.measured else None,
    }
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
    by_time = convergence(lead, ("seconds",)) if lead.leads and any("seconds" in row for row in lead.history) else ""
    return [
        html.details("Algorithm and parties", html.facts(facts), html.table(PARTY_HEADS, parties)),
        html.details("Coefficients", coefficients(job, parts)),
        html.details("Course of the training by time", by_time) if by_time else "",
        html.details("Messages", html.table(["from", "stage", "message", "count", "bytes"], messages)),
        html.details("Work under encryption", html.table(["at", "operation", "count", "seconds"], operations))
        if operations
        else "",
        html.details("The job", html.facts(flatten(job.to_dict()))),
        html.details("Accepted leaks", accepted),
    ]


PARTY_HEADS = "party", "role", "columns", "as prepared"


def _size(count: int) -> str:
    """Return a number of bytes as text with a unit."""
    if count < 1000:
        return f"{count} bytes"
    power = min(4, (len(str(count)) - 1) // 3)
    return f"{count / 1000**power:.3g} {('kB', 'MB', 'GB', 'TB')[power - 1]}"


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def write_report(path: Path, part: ModelPart, *, alone: LocalQuality | None, sheet: str) -> None:
    """Write the report of a run between organisations from one party's part."""
    job = Job.from_dict(part.job)
    write_atomic(path, page(job, {part.name: part}, alone=alone, sheet=sheet).encode())


def comparison(lead: ModelPart, alone: LocalQuality | None) -> str:
    """Return what the partners' columns gain as a sentence, a chart and a table of all metrics.

    If no model of one party alone was measured, only the metrics of the joint model are shown.
    """
    if not lead.metrics:
        return "<p>The model has no metrics.</p>" + notes(lead)
    gain = PartnerGain.of(lead, alone) if alone else None
    name = gain.metric if gain else main_metric(lead.metrics) or next(iter(lead.metrics))
    if gain:
        text = gain.sentence(_listed(lead.parties[1:]) if lead.parties[1:] else "nobody else")
    else:
        error = lead.metric_std_errors.get(name)
        value = html.with_error(lead.metrics[name], error)
        text = f"On the {lead.evaluated_on}, the {label_of(name)} is {value}."
    meaning = meaning_of(name)
    explained = f"{label_of(name)}: {meaning}. " if meaning else ""
    explained += STD_ERROR_NOTE if lead.metric_std_errors else ""
    sentences = f"<p class='gain'>{html.escape(text)}</p><p class='soft'>{html.escape(explained)}</p>"
    return sentences + '<div class="charts">' + quality_chart(lead, gain) + metric_table(lead, alone) + "</div>"


def metric_table(lead: ModelPart, alone: LocalQuality | None) -> str:
    """Return a table of the metrics, next to those of a model of the leading party's columns alone."""
    names = [name for name in lead.metrics if REPEATS.get(name, "") not in lead.metrics]
    together = LocalQuality(lead.metrics, lead.metric_std_errors)
    models = ({f"{lead.name} alone": alone} if alone else {}) | {"all parties": together}
    rows: list[list[html.Cell]] = [
        [
            label_of(name),
            *(
                html.with_error(model.metrics[name], model.std_errors.get(name)) if name in model.metrics else None
                for model in models.values()
            ),
        ]
        for name in names
    ]
    measured = f"{lead.held_out:,} held-out rows" if lead.held_out else "Measured on the training rows"
    caption = f"{measured}; trained on {lead.trained:,} rows."
    if lead.positive is not None:
        caption += f" Positive class: {lead.positive}."
    words = html.terms({label_of(name): meaning_of(name) for name in names if meaning_of(name)})
    table = html.table(["metric", *models], rows, figures=range(1, 1 + len(models)))
    return (
        f"<div>{table}<p class='soft'>{html.escape(caption)}</p>"
        f"{html.details('What the metrics mean', words)}{notes(lead)}</div>"
    )


def notes(lead: ModelPart) -> str:
    """Return the statements about the training and its metrics, such as which metrics are not measured and why."""
    if not lead.notes:
        return ""
    items = "".join(f"<li>{html.escape(note_sentence(note))}</li>" for note in lead.notes)
    return f"<ul class='soft'>{items}</ul>"


def by_class(lead: ModelPart) -> str:
    """Return a table of the figures of each class against all others."""
    names = list(dict.fromkeys(name for figures in lead.by_class.values() for name in figures))
    shown = [name for name in names if name != "auc_std_error"]
    rows: list[list[html.Cell]] = [
        [label, *(_class_cell(figures, name) for name in shown)] for label, figures in lead.by_class.items()
    ]
    return html.table(["class", *(label_of(name) for name in shown)], rows)


def _class_cell(figures: Mapping[str, float], name: str) -> html.Cell:
    error = figures.get("auc_std_error") if name == "auc" else None
    return html.with_error(figures[name], error) if name in figures else None


def cell(job: Job, parts: Mapping[str, ModelPart]) -> str:
    """Return a short report of the run as HTML for a notebook."""
    lead, costs = next(iter(parts.values())), Costs.of(job, parts)
    figures: list[html.Cell] = [
        html.with_error(value, lead.metric_std_errors.get(name)) for name, value in lead.metrics.items()
    ]
    head = f"{costs.algorithm} on a {job.model.name} model, {costs.protocol}, {', '.join(parts)}"
    return "".join(
        [
            f"<p><b>{html.escape(head)}</b>; metrics on the {html.escape(lead.evaluated_on)}</p>",
            html.table([label_of(name) for name in lead.metrics], [figures]) if lead.metrics else "",
            by_class(lead) if lead.by_class else "",
            notes(lead),
            convergence(lead),
            costs._repr_html_(),
        ]
    )


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
