"""A run as a page for a browser and as a cell of a notebook: what came out, how it got there, what it cost.

The page is one file without scripts; it holds figures of the whole run and no row of anyone's table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from securevfl.config import flat
from securevfl.display import chart, html
from securevfl.job import Job
from securevfl.runtime.clock import Kind, Stage
from securevfl.training.costs import Costs
from securevfl.training.model_part import ModelPart
from securevfl.version import __version__

KINDS = {Kind.ENCRYPTION: "encryption", Kind.LOCAL: "other work", Kind.COMMUNICATION: "network"}
LOSSES = {"batch_loss": "of the batch", "loss": "evaluated"}
AXES = {"round": "round", "seconds": "seconds on the critical path"}
NO_METRICS = frozenset({"round", "epoch", "batch_loss", "seconds"})  # what a record of a round has beside metrics


def page(job: Job, parts: Mapping[str, ModelPart], costs: Costs, evaluated_on: str) -> str:
    """The report of a run as one file of HTML. The first of `parts` is the leading party's."""
    lead = next(iter(parts.values()))
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    who = f"{', '.join(parts)}; {costs.algorithm} on a {job.model.name} model, {costs.protocol}"
    body = [
        "<h1>Training run</h1>",
        f'<p class="soft">{html.escape(who)}</p>',
        f'<p class="soft">Written {when} by securevfl {__version__}; job {job.digest.hex()[:16]}.</p>',
        html.section(f"Metrics on the {evaluated_on}", html.facts(_figures(lead.metrics))),
        html.section("Convergence", convergence(lead.history)),
        html.section("What it cost", cost_split(costs), html.facts(cost_facts(costs))),
        html.section("Parties", parties(parts)),
        html.section("Messages", html.table(*messages(costs))),
        html.section("Work under encryption", html.table(*operations(costs))),
        html.section("The job", html.facts(flat(job.to_dict()))),
        html.section("What the job accepts to tell", _accepted(job)),
    ]
    return html.page("Training run", body)


def cell(job: Job, parts: Mapping[str, ModelPart], costs: Costs, evaluated_on: str) -> str:
    """The run in short, for a notebook."""
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
    """The metrics that were taken while training, in the order they came."""
    return list(dict.fromkeys(name for record in history for name in record if name not in NO_METRICS))


def curve(history: list[dict[str, float]], over: str, name: str) -> list[tuple[float, float]]:
    """The points of one figure over rounds or seconds, where it was noted."""
    return [(record[over], record[name]) for record in history if over in record and name in record]


def cost_split(costs: Costs) -> str:
    """Seconds of training on the critical path by kind of work, as a bar; a run read from files has none."""
    if not costs.total:
        return "<p class='soft'>Costs are not kept in model files.</p>"
    return chart.split({word: costs.seconds(kind) for kind, word in KINDS.items()}, unit="s")


def cost_facts(costs: Costs) -> dict[str, html.Cell]:
    """The columns of FedBCD Table 2 in words."""
    return {
        "algorithm": costs.algorithm,
        "protocol": costs.protocol,
        "local steps a round": costs.local_steps,
        "rounds": costs.rounds,
        "seconds of training": costs.total,
        "seconds of work ahead": costs.ahead,
        "bytes of all messages": costs.bytes,
    }


def parties(parts: Mapping[str, ModelPart]) -> str:
    """Who took part, as what, with how many columns."""
    rows: list[list[html.Cell]] = [[part.name, part.role, len(part.columns)] for part in parts.values()]
    return html.table(["party", "role", "columns"], rows)


def messages(costs: Costs) -> tuple[list[str], list[list[html.Cell]]]:
    """What each party sent, by kind of message and stage."""
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


def _figures(metrics: Mapping[str, float]) -> dict[str, html.Cell]:
    return {name: f"{value:.4f}" for name, value in metrics.items()}


def _accepted(job: Job) -> str:
    names = ", ".join(job.accepts) or "Nothing beyond what its protocol declares"
    return f"<p>{html.escape(names)}. <span class='soft'>explain(job, parties) says what each party learns.</span></p>"
