"""A run as a page for a browser and as a cell of a notebook: what came out, how it got there, what it cost.

The page is one file without scripts; it holds figures of the whole run and no row of anyone's table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from securevfl.base.config import flat
from securevfl.base.roles import Roles
from securevfl.base.version import __version__
from securevfl.display import chart, html
from securevfl.job import Job
from securevfl.runtime.clock import Stage
from securevfl.training.costs import Costs
from securevfl.training.model_part import ModelPart

LOSSES = {"batch_loss": "of the batch", "loss": "evaluated"}
AXES = {"round": "round", "seconds": "seconds without evaluation"}
LETTERS = {"n": "n rows a batch", "c": "c outputs", "p": "p parameters", "d": "d columns"}  # of what is learned
NO_METRICS = frozenset({"round", "epoch", "batch_loss", "seconds"})  # what a record of a round has beside metrics


def page(job: Job, parts: Mapping[str, ModelPart], costs: Costs, evaluated_on: str) -> str:
    """Assemble the report of a run into one file of HTML. The first of `parts` is the leading party's."""
    lead = next(iter(parts.values()))
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    who = f"{', '.join(parts)}; {costs.algorithm} on a {job.model.name} model, {costs.protocol}"
    body = [
        "<h1>Training run</h1>",
        f'<p class="soft">{html.escape(who)}</p>',
        f'<p class="soft">Written {when} by securevfl {__version__}; job {job.digest.hex()[:16]}.</p>',
        html.section(f"Metrics on the {evaluated_on}", html.facts(_of(lead) | _figures(lead.metrics))),
        html.section("Ranking and calibration", quality(lead)),
        *_by_class(lead),
        html.section("Who learned what", learned(job, parts)),
        html.section("Convergence", convergence(lead.history)),
        html.section("What it cost", cost_split(costs), html.facts(cost_facts(costs))),
        html.section("Parties", parties(parts)),
        html.section("Coefficients", coefficients(job, parts)),
        html.section("Messages", html.table(*messages(costs))),
        html.section("Work under encryption", html.table(*operations(costs))),
        html.section("The job", html.facts(flat(job.to_dict()))),
        html.section("What the job accepts to tell", _accepted(job)),
    ]
    return html.page("Training run", body)


def cell(job: Job, parts: Mapping[str, ModelPart], costs: Costs, evaluated_on: str) -> str:
    """Assemble a short report of the run, as HTML for a notebook."""
    lead = next(iter(parts.values()))
    head = f"{costs.algorithm} on a {job.model.name} model, {costs.protocol}, {', '.join(parts)}"
    return "".join(
        [
            f"<p><b>{html.escape(head)}</b>; metrics on the {html.escape(evaluated_on)}</p>",
            html.table(list(lead.metrics), [list(_figures(lead.metrics).values())]) if lead.metrics else "",
            convergence(lead.history, ("round",)),
            costs._repr_html_(),
        ]
    )


def convergence(history: list[dict[str, float]], over: Sequence[str] = ("round", "seconds")) -> str:
    """Loss and metrics by round and by second, as far as the run has noted them."""
    drawn = []
    for axis in over:
        losses = {words: curve(history, axis, name) for name, words in LOSSES.items()}
        rest = {name: curve(history, axis, name) for name in metric_names(history) if name != "loss"}
        drawn += [chart.lines(losses, x=AXES[axis], y="loss"), chart.lines(rest, x=AXES[axis], y="metric")]
    pictures = [f'<div style="flex: 1 1 20rem; max-width: 34rem">{each}</div>' for each in drawn if each]
    if not pictures:
        return "<p class='soft'>No round was noted.</p>"
    return f'<div style="display: flex; flex-wrap: wrap; gap: 1rem">{"".join(pictures)}</div>'


def metric_names(history: list[dict[str, float]]) -> list[str]:
    """List the metrics that were taken while training, in the order in which they came."""
    return list(dict.fromkeys(name for record in history for name in record if name not in NO_METRICS))


def curve(history: list[dict[str, float]], over: str, name: str) -> list[tuple[float, float]]:
    """Return the points of one figure over rounds or seconds, where it was noted."""
    return [(record[over], record[name]) for record in history if over in record and name in record]


def cost_split(costs: Costs) -> str:
    """Seconds of the critical path by what they went into, as a bar; a run read from files has none."""
    if not costs.kept:
        return "<p class='soft'>Costs are not kept in model files.</p>"
    return chart.split(costs.parts, unit="s")


def cost_facts(costs: Costs) -> dict[str, html.Cell]:
    """Return the columns of FedBCD Table 2 in words; times and bytes where they are kept."""
    facts: dict[str, html.Cell] = {
        "algorithm": costs.algorithm,
        "protocol": costs.protocol,
        "local steps a round": costs.local_steps,
        "rounds": costs.rounds,
    }
    measured: dict[str, html.Cell] = {
        "seconds from start to end": costs.total,
        "bytes of all messages": costs.bytes,
    }
    return facts | measured if costs.kept else facts


def parties(parts: Mapping[str, ModelPart]) -> str:
    """Who took part, as what, with how many columns."""
    rows: list[list[html.Cell]] = [
        [part.name, part.role, len(part.columns), len(part.features)] for part in parts.values()
    ]
    return html.table(["party", "role", "columns", "as prepared"], rows)


def quality(lead: ModelPart) -> str:
    """Return the ROC curve by tenths of the rows, and what was predicted beside what was found in each of them."""
    tenths = [[float(each) for each in row] for row in lead.calibration]
    if not tenths:
        return "<p class='soft'>None was taken of this model.</p>"
    heads = ["mean prediction", "mean label", "rows"] if lead.positive is None else ["probability", "share", "rows"]
    pictures = [chart.lines({"found": [(said, found) for said, found, _ in tenths]}, x=heads[0], y=heads[1])]
    if lead.positive is not None:
        pictures.append(chart.lines({"ROC by tenths": roc(tenths)}, x="false positives", y="true positives"))
    drawn = "".join(f'<div style="flex: 1 1 20rem; max-width: 34rem">{each}</div>' for each in pictures)
    rows: list[list[html.Cell]] = [[f"{said:.3f}", f"{found:.3f}", int(count)] for said, found, count in tenths]
    return f'<div style="display: flex; flex-wrap: wrap; gap: 1rem">{drawn}</div>' + html.table(heads, rows)


def _by_class(lead: ModelPart) -> list[str]:
    """Return how many rows of either class have each level of probability, of a model of two classes."""
    tenths = [[float(each) for each in row] for row in lead.calibration]
    if not tenths or lead.positive is None:
        return []
    classes = {lead.positive: [(said, found * count) for said, found, count in tenths]}
    classes["others"] = [(said, (1 - found) * count) for said, found, count in tenths]
    rows: list[list[html.Cell]] = [
        [f"{said:.3f}", round(own), round(other)]
        for (said, own), (_, other) in zip(classes[lead.positive], classes["others"], strict=True)
    ]
    picture = chart.lines(classes, x="probability", y="rows")
    return [html.section("Levels by class", picture, html.table(["probability", lead.positive, "others"], rows))]


def learned(job: Job, parts: Mapping[str, ModelPart]) -> str:
    """Return what each party learns of such a run, in the words of its consent sheet; sizes as letters."""
    roles = job.method.assigned(job, Roles.of((part.name, part.role) for part in parts.values()), {})
    rows: list[list[html.Cell]] = [
        [name, word, " ".join(text.split())]
        for name in roles.parties
        for word, text in job.method.tells(job, roles, name, None)
    ]
    used = [words for letter, words in LETTERS.items() if any(re.search(rf"\b{letter}\b", str(row[2])) for row in rows)]
    words = [*([f"{', '.join(used)}."] if used else []), "explain(job, parties) has the sheet with all figures."]
    return html.table(["party", "", "what"], rows) + f"<p class='soft'>{html.escape(' '.join(words))}</p>"


def roc(tenths: Sequence[Sequence[float]]) -> list[tuple[float, float]]:
    """Points (false positives, true positives) from (probability, share positive, rows) by rising probability."""
    positives = [found * count for _, found, count in reversed(tenths)]
    negatives = [(1 - found) * count for _, found, count in reversed(tenths)]
    points, up, across = [(0.0, 0.0)], 0.0, 0.0
    for more, others in zip(positives, negatives, strict=True):
        up, across = up + more, across + others
        points.append((across / (sum(negatives) or 1.0), up / (sum(positives) or 1.0)))
    return points


def coefficients(job: Job, parts: Mapping[str, ModelPart]) -> str:
    """Return what one unit of each column adds, of the parties that know weights of theirs."""
    if not job.model.by_column:
        return "<p class='soft'>This model has no weights for columns.</p>"
    known = [part for part in parts.values() if part.columns and "theta" in part.state]
    if not known:
        return "<p class='soft'>All weights stay shared: no party knows any.</p>"
    rows: list[list[html.Cell]] = [
        [part.name, feature, ", ".join(f"{each:.4g}" for each in own)]
        for part in known
        for feature, own in part.coefficients().items()
    ]
    return html.table(["party", "column", "per unit"], rows)


def messages(costs: Costs) -> tuple[list[str], list[list[html.Cell]]]:
    """Return what each party sent, by kind of message and stage: the heads of a table, and its rows."""
    rows: list[list[html.Cell]] = [
        [name, stage.name.lower(), message, tally.count, int(tally.amount)]
        for name, books in costs.books.items()
        for (stage, message), tally in sorted(books.traffic.items())
    ]
    return ["from", "stage", "message", "count", "bytes"], rows


def operations(costs: Costs) -> tuple[list[str], list[list[html.Cell]]]:
    """Seconds that each party's homomorphic operations took, in training."""
    rows: list[list[html.Cell]] = [
        [name, operation, tally.count, tally.amount]
        for name, books in costs.books.items()
        for (stage, operation), tally in sorted(books.ops.items())
        if stage == Stage.TRAIN
    ]
    return ["at", "operation", "count", "seconds"], rows


def _of(lead: ModelPart) -> dict[str, html.Cell]:
    """Which rows and which class metrics are of."""
    found: dict[str, html.Cell] = {"training rows": lead.trained, "held-out rows": lead.held_out}
    return found if lead.positive is None else found | {"positive class": lead.positive}


def _figures(metrics: Mapping[str, float]) -> dict[str, html.Cell]:
    return {name: f"{value:.4f}" for name, value in metrics.items()}


def _accepted(job: Job) -> str:
    names = ", ".join(job.accepts) or "Nothing beyond what its protocol declares"
    return f"<p>{html.escape(names)}. <span class='soft'>explain(job, parties) says what each party learns.</span></p>"
