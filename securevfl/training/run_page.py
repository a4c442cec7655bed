"""A run as a page for a browser and as a cell of a notebook: what came out, how it got there, what it cost.

The page is one file without scripts; it holds figures of the whole run and no row of anyone's table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from securevfl.base.config import flatten
from securevfl.base.files import write_atomic
from securevfl.base.roles import Roles
from securevfl.base.version import __version__
from securevfl.display import html, svg
from securevfl.job import Job
from securevfl.runtime.clock import Path as LongestPath
from securevfl.runtime.costs import CostCounters, Kind, Stage
from securevfl.training.model_part import ModelPart

# What a run cost: its critical path from start to end by what it went into, its counters, one table.


KINDS = {Kind.ENCRYPTION: "encryption", Kind.LOCAL: "other work", Kind.COMMUNICATION: "network"}
PARTS = "encryption_s", "local_s", "communication_s", "ahead_s", "evaluation_s"  # columns of `Costs.parts`


@dataclass(frozen=True)
class Costs:
    """The costs of one run in time and messages.

    `path` is the critical path (stage x kind, seconds) from the start of the run to its end: in virtual time, or by the
    clock where parties are apart; `books` are the parties' books; `rounds` counts exchanges.
    """

    algorithm: str
    protocol: str
    local_steps: int
    rounds: int
    path: LongestPath
    counters: dict[str, CostCounters]

    @classmethod
    def of(cls, job: Job, parts: Mapping[str, ModelPart]) -> Costs:
        """Return what a run cost by the books of these parts, those of the leading party among them or one alone."""
        some = next((part for part in parts.values() if part.leads), next(iter(parts.values())))
        return cls(
            algorithm=job.optimizer.label,
            protocol=job.method.label(job, len(some.parties) - 1),
            local_steps=job.optimizer.steps,
            rounds=some.rounds,
            path=max((part.path for part in parts.values()), key=lambda path: float(path.sum())),
            counters={name: part.counters for name, part in parts.items()},
        )

    def seconds(self, kind: Kind, stage: Stage = Stage.TRAIN) -> float:
        """Seconds of the critical path that went into `kind` in one stage."""
        return float(self.path[stage, kind])

    @property
    def parts(self) -> dict[str, float]:
        """Seconds of the critical path by what they went into; they add up to `total` (`spent`)."""
        return spent(self.path)

    @property
    def measured(self) -> bool:
        """Whether there are any: a run that is read from files has none."""
        return bool(self.path.sum() or any(counters.traffic or counters.ops for counters in self.counters.values()))

    @property
    def total(self) -> float:
        """Seconds of the critical path, from the start of the run to its end."""
        return float(self.path.sum())

    @property
    def training(self) -> float:
        """Seconds on the critical path of training alone, without meeting, work ahead and evaluation: for methods that
        do nothing ahead."""
        return float(self.path[Stage.TRAIN].sum())

    @property
    def bytes(self) -> int:
        """Bytes of all frames of training, over all parties, with those of work ahead of it."""
        return sum(
            counters.bytes_sent(stage) for counters in self.counters.values() for stage in (Stage.AHEAD, Stage.TRAIN)
        )

    @property
    def ahead(self) -> float:
        """Seconds on the critical path of work that could be done ahead of training."""
        return float(self.path[Stage.AHEAD].sum())

    def row(self) -> dict[str, str | int | float | None]:
        """One row of FedBCD Table 2, with the parts of the total, the protocol and the bytes beside it; None for what
        files do not keep."""
        row: dict[str, str | int | float | None] = {
            "algorithm": self.algorithm,
            "protocol": self.protocol,
            "Q": self.local_steps,
            "rounds": self.rounds,
            **dict(zip(PARTS, self.parts.values(), strict=True)),
            "total_s": self.total,
            "bytes": self.bytes,
        }
        return row if self.measured else row | dict.fromkeys([key for key in row if key.endswith("_s")] + ["bytes"])

    def table(self, *others: Costs) -> str:
        """Format this run and others as text, one below the other."""
        return format_table([costs.row() for costs in (self, *others)])

    def _repr_html_(self) -> str:
        row = self.row()
        return html.table(
            [key.replace("_s", " s") if key.endswith("_s") else key for key in row],
            [["-" if each is None else each for each in row.values()]],
        )


def spent(path: LongestPath) -> dict[str, float]:
    """Split the seconds of a path (stage x kind) by what they went into.

    RunHello and training are split by kind of work. Work that could be done before the training (`securevfl prepare`)
    and evaluation stand by themselves, whatever they went into: which of them lie on the critical path differs from run
    to run where they are done beside the training.
    """
    by_kind = {word: float(path[[Stage.SETUP, Stage.TRAIN], kind].sum()) for kind, word in KINDS.items()}
    return by_kind | {"work ahead": float(path[Stage.AHEAD].sum()), "evaluation": float(path[Stage.EVALUATE].sum())}


def format_table(rows: Sequence[dict[str, str | int | float | None]]) -> str:
    """Rows of equal keys as aligned text: words to the left, figures to the right."""
    cells = [[_cell(value) for value in row.values()] for row in rows]
    heads = [key.replace("_s", " s") if key.endswith("_s") else key for key in rows[0]]
    words = [isinstance(value, str) for value in rows[0].values()]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    lines = [
        "  ".join(c.ljust(w) if word else c.rjust(w) for c, w, word in zip(line, widths, words, strict=True)).rstrip()
        for line in [heads, ["-" * width for width in widths], *cells]
    ]
    return "\n".join(lines)


def _cell(value: str | int | float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value


LOSSES = {"batch_loss": "of the batch", "loss": "evaluated"}
AXES = {"round": "round", "seconds": "seconds without evaluation"}
LETTERS = {"n": "n rows a batch", "c": "c outputs", "p": "p parameters", "d": "d columns"}  # of what is learned
NAMES = {"auc": "AUC", "accuracy": "accuracy", "r2": "R2", "rmse": "RMSE", "ks": "KS", "pr_auc": "PR AUC"}
REPEATS = {"loss": "log_loss", "error": "accuracy"}  # what says again what another metric says
NO_METRICS = frozenset({"round", "epoch", "batch_loss", "seconds"})  # what a record of a round has beside metrics


def page(
    job: Job,
    parts: Mapping[str, ModelPart],
    *,
    alone: Mapping[str, float] | None = None,
    sheet: str = "",
) -> str:
    """Assemble the report of a run into one file of HTML: how good the model is, beside that of the leading party's
    columns `alone` where these metrics are at hand; what was agreed to; how it went and what it cost. The first of
    `parts` is the leading party's, if that is among them. sheet: the first screen of the consent sheet."""
    lead, costs = next(iter(parts.values())), Costs.of(job, parts)
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    who = f"{', '.join(lead.parties)}: a {job.model.name} model by {costs.algorithm}, {costs.protocol}"
    told = html.section("Who learned what", learned(job, parts)) if len(parts) == len(lead.parties) else ""
    if sheet:
        told = html.section("What was agreed to", f"<pre>{html.escape(sheet)}</pre>")
    how_good = [
        html.section(f"How good it is, on the {lead.evaluated_on}", comparison(lead, alone)),
        html.section("Lift and calibration", quality(lead)),
    ]
    seconds = "<p class='soft'>Costs are not kept in model files.</p>"
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
    accepted = f"<p>{names}. <span class='soft'>explain(job, parties) says what each party learns.</span></p>"
    body = [
        "<header><h1>Training run</h1>",
        f'<p class="soft">{html.escape(who)}</p>',
        f'<p class="soft">Written {when} by securevfl {__version__}; job {job.digest.hex()[:16]}.</p></header>',
        *(how_good if lead.leads else []),
        told,
        *([html.section("Convergence", convergence(lead.history))] if lead.leads else []),
        html.section("What it cost", seconds, html.facts(facts | (measured if costs.measured else {}))),
        html.section("Parties", html.table(["party", "role", "columns", "as prepared"], parties)),
        html.section("Coefficients", coefficients(job, parts)),
        html.section("Messages", html.table(["from", "stage", "message", "count", "bytes"], messages)),
        html.section("Work under encryption", html.table(["at", "operation", "count", "seconds"], operations))
        if operations
        else "",
        html.section("The job", html.facts(flatten(job.to_dict()))),
        html.section("What the job accepts to tell", accepted),
    ]
    return html.page("Training run", body)


def write_report(path: Path, part: ModelPart, *, alone: Mapping[str, float] | None, sheet: str) -> None:
    """Write the report of a run between organisations, as one party has it: its own part, its own counters."""
    job = Job.from_dict(part.job)
    write_atomic(path, page(job, {part.name: part}, alone=alone, sheet=sheet).encode())


def comparison(lead: ModelPart, alone: Mapping[str, float] | None) -> str:
    """Return the metrics of the model, beside those of the leading party's columns alone, and name the rows."""
    names = [name for name in lead.metrics if REPEATS.get(name, "") not in lead.metrics]
    together = ", ".join(lead.parties) + ", together"
    models = ({f"{lead.name} alone": alone} if alone else {}) | {together: lead.metrics}
    errors = {together: lead.spread}
    rows: list[list[html.Cell]] = []
    for name in names:
        each = (figure(of[name], errors.get(who, {}).get(name)) if name in of else None for who, of in models.items())
        rows.append([NAMES.get(name, name.replace("_", " ")), *each])
    of = f"{lead.held_out:,} held-out rows; {lead.trained:,} rows trained it."
    if lead.positive is not None:
        of += f" Positive class: {lead.positive}."
    return html.table(["columns of", *models], rows) + f"<p class='soft'>{html.escape(of)}</p>"


def cell(job: Job, parts: Mapping[str, ModelPart]) -> str:
    """Assemble a short report of the run, as HTML for a notebook."""
    lead, costs = next(iter(parts.values())), Costs.of(job, parts)
    figures: list[html.Cell] = [figure(value, lead.spread.get(name)) for name, value in lead.metrics.items()]
    head = f"{costs.algorithm} on a {job.model.name} model, {costs.protocol}, {', '.join(parts)}"
    return "".join(
        [
            f"<p><b>{html.escape(head)}</b>; metrics on the {html.escape(lead.evaluated_on)}</p>",
            html.table(list(lead.metrics), [figures]) if lead.metrics else "",
            convergence(lead.history, ("round",)),
            costs._repr_html_(),
        ]
    )


def convergence(history: list[dict[str, float]], over: Sequence[str] = ("round", "seconds")) -> str:
    """Loss and the foremost metric by round and by second, as far as the run has noted them."""
    drawn, names = [], metric_names(history)
    foremost = next((name for name in NAMES if name in names), None)
    for axis in over:
        losses = {words: curve(history, axis, name) for name, words in LOSSES.items()}
        drawn.append(svg.line_chart(losses, x=AXES[axis], y="loss"))
        if foremost is not None:
            rest = {NAMES[foremost]: curve(history, axis, foremost)}
            drawn.append(svg.line_chart(rest, x=AXES[axis], y=NAMES[foremost]))
    return svg.side_by_side(drawn) if any(drawn) else "<p class='soft'>No round was noted.</p>"


def metric_names(history: list[dict[str, float]]) -> list[str]:
    """List the metrics that were taken while training, in the order in which they came."""
    return list(dict.fromkeys(name for record in history for name in record if name not in NO_METRICS))


def curve(history: list[dict[str, float]], over: str, name: str) -> list[tuple[float, float]]:
    """Return the points of one figure over rounds or seconds, where it was noted."""
    return [(record[over], record[name]) for record in history if over in record and name in record]


def quality(lead: ModelPart) -> str:
    """Return pictures of the model by tenths of the rows: lift, what was predicted beside what was seen, the ROC curve;
    below them the figures that they are of."""
    tenths = [[float(each) for each in row] for row in lead.calibration]
    if not tenths:
        return "<p class='soft'>None was taken of this model.</p>"
    heads = ["mean prediction", "mean label", "rows"]
    if lead.positive is not None:
        heads = ["probability", f"share of {lead.positive}", "rows"]
    seen = {"this model": [(said, found) for said, found, _ in tenths]}
    ends = [each for said, found, _ in tenths for each in (said, found)]
    whole = (0.0, 1.0) if lead.positive is not None else (min(ends), max(ends))
    pictures = [svg.line_chart(seen | {"as predicted": [(end, end) for end in whole]}, x=heads[0], y=heads[1])]
    if lead.positive is not None:
        lift = {"this model": lifts(tenths), "at random": [(0.1, 1.0), (1.0, 1.0)]}
        curves = {"this model": roc(tenths), "at random": [(0.0, 0.0), (1.0, 1.0)]}
        share = "share of rows, highest scores first"
        pictures.insert(0, svg.line_chart(lift, x=share, y=f"lift: {lead.positive} among them, as against all rows"))
        pictures.append(svg.line_chart(curves, x="false positives, share", y="true positives, share"))
    rows: list[list[html.Cell]] = [[f"{said:.3f}", f"{found:.3f}", int(count)] for said, found, count in tenths]
    return svg.side_by_side(pictures) + html.table(heads, rows)


def lifts(tenths: Sequence[Sequence[float]]) -> list[tuple[float, float]]:
    """Points (share of the rows with the highest scores, how many times as many positives are among them as among as
    many of all) from (probability, share positive, rows) by rising probability."""
    rows, positives = sum(row[2] for row in tenths), sum(row[1] * row[2] for row in tenths)
    points, seen, up = list[tuple[float, float]](), 0.0, 0.0
    for _, share, count in reversed(tenths):
        seen, up = seen + count, up + share * count
        points.append((seen / rows, up / (positives or 1.0) / (seen / rows)))
    return points


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


def figure(value: float, error: float | None) -> str:
    """Format a metric, with its standard error if there is one."""
    return f"{value:.4f}" if error is None else f"{value:.4f} +- {error:.4f}"
