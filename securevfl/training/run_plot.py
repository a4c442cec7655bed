"""A run as a picture of matplotlib: loss and main metric by round, and the seconds by phase and kind of work."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING

from securevfl.base.extras import import_extra
from securevfl.display.svg import SERIES_COLOURS, axis_range
from securevfl.training.metric_words import label_of, main_metric
from securevfl.training.model_part import ModelPart
from securevfl.training.run_charts import AXES, LOSS_LABELS, MIN_LOSS_SPAN, MIN_SPAN_ERRORS, curve, metric_names
from securevfl.training.run_costs import COST_KINDS, Costs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plot(lead: ModelPart, costs: Costs) -> Figure:
    """Return loss by round, the main metric by round, and seconds by phase and kind of work, as three axes.

    An axis of a metric is at least as wide as four standard errors. Without a metric of several rounds, the second axes
    have the calibration, or the loss by second if there is none. The figure opens no window: a notebook shows it, and
    `savefig` writes it to a file. Raises ConfigError if matplotlib is not installed.

    Args:
        lead: the part of the leading party.
        costs: the costs of the run.

    Returns:
        The figure.
    """
    figure = _notebook_figure(import_extra("matplotlib.figure", "plot", "plot").Figure)(
        figsize=(13, 4), layout="constrained"
    )
    losses, second, split = figure.subplots(1, 3)
    _draw_losses(losses, lead, "round")
    name = main_metric(name for name in metric_names(lead.history) if name != "loss")
    if name is None and len(lead.calibration):
        _draw_calibration(second, lead)
    elif name is None:
        _draw_losses(second, lead, "seconds")
    else:
        points = curve(lead.history, "round", name)
        second.plot(*zip(*points, strict=True), ".-", color=SERIES_COLOURS[0])
        values = [value for _, value in points]
        span = MIN_SPAN_ERRORS * lead.metric_std_errors.get(name, 0.0)
        second.set(xlabel=AXES["round"], ylabel=label_of(name), title=f"{label_of(name)} on the {lead.evaluated_on}")
        if span:
            second.set_ylim(*axis_range(min(values), max(values), min_span=span))
    phases = costs.split
    bottom = [0.0] * len(phases)
    for word, colour in zip(COST_KINDS.values(), SERIES_COLOURS, strict=False):
        heights = [kinds[word] for kinds in phases.values()]
        split.bar(list(phases), heights, bottom=bottom, color=colour, label=word)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    split.legend(fontsize="small", frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=2)
    split.set(ylabel="seconds", title=f"{costs.total:.1f} s from start to end")
    return figure


def _draw_losses(axes: Axes, lead: ModelPart, over: str) -> None:
    """Draw the loss over rounds or seconds. The axis spans some standard errors, so that noise does not fill it."""
    values = []
    for name, words in LOSS_LABELS.items():
        points = curve(lead.history, over, name)
        if points:
            axes.plot(*zip(*points, strict=True), label=words, linewidth=1.4)
            values += [value for _, value in points]
    axes.set(xlabel=AXES[over], ylabel="loss", title=f"Loss by {over.removesuffix('s')}")
    if values:
        axes.set_xlim(left=0)
        axes.set_ylim(*axis_range(min(values), max(values), min_span=MIN_LOSS_SPAN * max(map(abs, values))))
        axes.legend(frameon=False)


def _draw_calibration(axes: Axes, lead: ModelPart) -> None:
    """Draw mean labels over mean predictions of tenths of the rows, and the line of exact predictions."""
    predicted, observed = ([float(row[k]) for row in lead.calibration] for k in (0, 1))
    ends = [min(*predicted, *observed), max(*predicted, *observed)]
    axes.plot(ends, ends, "--", color=SERIES_COLOURS[5], label="exact")
    axes.plot(predicted, observed, ".-", color=SERIES_COLOURS[0], label="this model")
    axes.set(xlabel="mean prediction", ylabel="mean label", title=f"Calibration on the {lead.evaluated_on}")
    axes.legend(frameon=False)


def _notebook_figure(kind: type[Figure]) -> type[Figure]:
    """Return a subclass of matplotlib's Figure that notebooks show without pyplot, which would keep figures open."""

    class Picture(kind):  # type: ignore[valid-type,misc]
        """A figure that a notebook shows as PNG."""

        def _repr_png_(self) -> bytes:
            buffer = BytesIO()
            self.savefig(buffer, format="png", dpi=110)
            return buffer.getvalue()

    return Picture
