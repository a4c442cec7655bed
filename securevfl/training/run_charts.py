"""Charts of the report of a run: the gain by partners, lift, calibration, ROC curve, convergence and costs.

*Tenths* are ten groups of equally many rows by rising predicted probability.
"""

from __future__ import annotations

from collections.abc import Sequence

from securevfl.display import html, svg
from securevfl.training.metric_words import GUESSING, label_of, main_metric
from securevfl.training.model_part import ModelPart
from securevfl.training.partner_gain import PartnerGain
from securevfl.training.run_costs import Costs, rounded_split

LOSS_LABELS = {"batch_loss": "of the batch", "loss": "evaluated"}
AXES = {"round": "round", "seconds": "seconds without evaluation"}
NO_METRICS = frozenset({"round", "epoch", "batch_loss", "seconds"})  # keys of a round's record that are not metrics
MIN_SPAN_ERRORS = 4.0
"""An axis of a metric is at least as wide as this number of its standard errors, so that noise does not fill it."""
MIN_LOSS_SPAN = 0.25
"""The axis of losses is at least as wide as this share of the largest loss."""


def quality_chart(lead: ModelPart, gain: PartnerGain | None) -> str:
    """Return a chart of the main metric with two bars: the leading party alone (if measured), and all parties."""
    name = gain.metric if gain else main_metric(lead.metrics)
    if name is None:
        return ""
    bars: dict[str, tuple[float, float | None]] = {}
    if gain:
        bars[f"{lead.name} alone"] = gain.alone, gain.alone_error
    bars["all parties together"] = lead.metrics[name], lead.metric_std_errors.get(name)
    guess = GUESSING.get(name, 0.0)
    axis = f"{label_of(name)} (bars begin at {guess:g}, guessing)" if name in GUESSING else label_of(name)
    return svg.bar_chart(bars, x=axis, base=guess, references=[f"{lead.name} alone"])


def convergence(lead: ModelPart, over: Sequence[str] = ("round",)) -> str:
    """Return charts of the loss and the main metric by round or by second, if the run has recorded them."""
    charts, errors, history = [], lead.metric_std_errors, lead.history
    for axis in over:
        losses = {words: curve(history, axis, name) for name, words in LOSS_LABELS.items()}
        values = [value for points in losses.values() for _, value in points]
        span = max(
            MIN_LOSS_SPAN * max(map(abs, values), default=0.0),
            MIN_SPAN_ERRORS * errors.get("loss", errors.get("log_loss", 0.0)),
        )
        charts.append(svg.captioned("Loss", svg.line_chart(losses, x=AXES[axis], y="loss", min_span=span, x_start=0)))
        name = main_metric(name for name in metric_names(history) if name != "loss")
        if name is not None:
            points = {label_of(name): curve(history, axis, name)}
            error = MIN_SPAN_ERRORS * errors.get(name, 0.0)
            picture = svg.line_chart(points, x=AXES[axis], y=label_of(name), min_span=error, x_start=0)
            charts.append(svg.captioned(f"{label_of(name)} on the {lead.evaluated_on}", picture))
    return (
        svg.side_by_side(charts)
        if any(charts)
        else "<p class='soft'>The run recorded no loss and no metric by round.</p>"
    )


def metric_names(history: list[dict[str, float]]) -> list[str]:
    """Return the metrics of evaluations during training, in order of appearance."""
    return list(dict.fromkeys(name for record in history for name in record if name not in NO_METRICS))


def curve(history: list[dict[str, float]], over: str, name: str) -> list[tuple[float, float]]:
    """Return the points (round or second, value) of one metric from the records of the rounds."""
    return [(record[over], record[name]) for record in history if over in record and name in record]


def quality(lead: ModelPart) -> str:
    """Return lift curve, calibration and ROC curve of the tenths as charts, and a table of their figures."""
    tenths = [[float(value) for value in row] for row in lead.calibration]
    if not tenths:
        return "<p class='soft'>This model has no calibration.</p>"
    heads = ["mean prediction", "mean label", "rows"]
    if lead.positive is not None:
        heads = ["mean probability", f"share of {lead.positive}", "rows"]
    seen = {"this model": [(predicted, observed) for predicted, observed, _ in tenths]}
    values = [value for predicted, observed, _ in tenths for value in (predicted, observed)]
    binary = lead.positive is not None
    diagonal = (0.0, 1.0) if binary else (min(values), max(values))
    exact = {"exact": [(end, end) for end in diagonal]}
    pictures = [
        svg.captioned(
            "Calibration: right on average?",
            svg.line_chart(seen | exact, x=heads[0], y="observed share" if binary else heads[1], references=["exact"]),
            "Each point is a tenth of the rows. Above the line, the model predicts too low a value.",
        )
    ]
    if binary:
        lift = {"this model": lifts(tenths), "at random": [(0.0, 1.0), (1.0, 1.0)]}
        curves = {"this model": roc(tenths), "at random": [(0.0, 0.0), (1.0, 1.0)]}
        pictures.insert(
            0,
            svg.captioned(
                "Lift: what do top scores find?",
                svg.line_chart(
                    lift,
                    x="share of rows, highest scores first",
                    y="lift (times the mean)",
                    y_range=(0, 1),
                    references=["at random"],
                ),
                f"{lift['this model'][0][1]:.1f} times as many positive rows as at random are among the "
                f"{100 * lift['this model'][0][0]:.0f} % of rows with the highest scores.",
            ),
        )
        pictures.append(
            svg.captioned(
                "ROC curve: any threshold",
                svg.line_chart(
                    curves,
                    x="share of other rows above the threshold",
                    y="share of positive rows found",
                    references=["at random"],
                ),
                "Each point is a threshold for the score. The area under the curve is the AUC.",
            )
        )
    rows: list[list[html.Cell]] = [
        [html.cell_text(predicted), html.cell_text(observed), int(count)] for predicted, observed, count in tenths
    ]
    table = html.table(heads, rows, figures=range(len(heads)))
    return svg.side_by_side(pictures) + html.details("Figures of each tenth of the rows", table)


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


def costs_chart(costs: Costs) -> str:
    """Return a bar chart and a table of each phase's seconds by kind of work, such as encryption or waiting."""
    digits = 3 if costs.total < 10 else 1
    split = rounded_split(costs.path, digits)
    colours = svg.series_colours(next(iter(split.values())))
    rows: list[list[html.Cell]] = []
    for kind, colour in colours.items():
        seconds = [phase[kind] for phase in split.values()]
        name = html.Markup(f"{svg.swatch(colour)} {html.escape(kind)}")
        rows.append([name, *seconds, f"{sum(map(float, seconds)):.{digits}f}"])
    sums = [sum(map(float, phase.values())) for phase in split.values()]
    rows.append(["all", *(f"{value:.{digits}f}" for value in (*sums, sum(sums)))])
    heads = ["seconds of", *split, "all"]
    bars = {
        f"{phase}: {value:.{digits}f} s": kinds for (phase, kinds), value in zip(costs.split.items(), sums, strict=True)
    }
    picture = svg.stacked_bars(bars, unit="seconds")
    return svg.side_by_side([picture, html.table(heads, rows, figures=range(1, len(heads)))])
