"""A run as a picture of matplotlib: convergence by round and by second, and where the time went."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING

from securevfl.base.extras import import_extra
from securevfl.display.svg import SERIES_COLOURS
from securevfl.training.run_costs import COST_KINDS, Costs
from securevfl.training.run_page import AXES, LOSS_LABELS, curve, metric_names

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot(history: list[dict[str, float]], costs: Costs) -> Figure:
    """Return loss by round, loss by second, and seconds by kind of work, as three axes.

    Metrics of evaluations during training have a second scale in the first two. The figure opens no window: a notebook
    shows it, and `savefig` writes it to a file. Raises ConfigError if matplotlib is not installed.

    Args:
        history: one record per round.
        costs: the costs of the run.

    Returns:
        The figure.
    """
    figure = _notebook_figure(import_extra("matplotlib.figure", "plot", "plot").Figure)(
        figsize=(13, 4), layout="constrained"
    )
    by_round, by_second, split = figure.subplots(1, 3, width_ratios=(3, 3, 2))
    other_metrics = [name for name in metric_names(history) if name != "loss"]
    for axes, over in ((by_round, "round"), (by_second, "seconds")):
        for name, words in LOSS_LABELS.items():
            points = curve(history, over, name)
            if points:
                axes.plot(*zip(*points, strict=True), label=f"loss {words}", linewidth=1.2)
        axes.set(xlabel=AXES[over], ylabel="loss")
        other = axes.twinx() if other_metrics else axes
        # metrics begin with the third colour, because losses have the first two
        for number, name in enumerate(other_metrics, 2):
            other.plot(*zip(*curve(history, over, name), strict=True), "--.", color=f"C{number}", label=name)
        handles = list(dict.fromkeys([*axes.get_lines(), *other.get_lines()]))
        if handles:
            axes.legend(handles=handles, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3, frameon=False)
    phases = costs.split
    bottom = [0.0] * len(phases)
    for word, colour in zip(COST_KINDS.values(), SERIES_COLOURS, strict=False):
        heights = [kinds[word] for kinds in phases.values()]
        split.bar(list(phases), heights, bottom=bottom, color=colour, label=word)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    split.legend(fontsize="small", frameon=False)
    split.set(ylabel="seconds from start to end")
    split.tick_params(axis="x", labelsize="small", labelrotation=20)
    return figure


def _notebook_figure(kind: type[Figure]) -> type[Figure]:
    """Return a class of figures that a notebook shows without pyplot, which would leave each figure open."""

    class Picture(kind):  # type: ignore[valid-type,misc]
        """A figure that a notebook shows as PNG."""

        def _repr_png_(self) -> bytes:
            buffer = BytesIO()
            self.savefig(buffer, format="png", dpi=110)
            return buffer.getvalue()

    return Picture
