"""A run as a picture of matplotlib: convergence by round and by second, and where the time went."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING

from securevfl.base.extras import import_extra
from securevfl.display.svg import COLOURS
from securevfl.training.costs import Costs
from securevfl.training.run_page import AXES, LOSSES, curve, metric_names

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot(history: list[dict[str, float]], costs: Costs) -> Figure:
    """Three axes side by side: loss by round, loss by second, seconds by kind of work. Metrics that were taken while
    training are on a second scale of the first two. Belongs to no window: a notebook shows it, `savefig` writes it.

    ConfigError if matplotlib is not installed.
    """
    figure = _shown(import_extra("matplotlib.figure", "plot", "plot").Figure)(figsize=(13, 4), layout="constrained")
    by_round, by_second, split = figure.subplots(1, 3, width_ratios=(3, 3, 2))
    rest = [name for name in metric_names(history) if name != "loss"]
    for axes, over in ((by_round, "round"), (by_second, "seconds")):
        for name, words in LOSSES.items():
            points = curve(history, over, name)
            if points:
                axes.plot(*zip(*points, strict=True), label=f"loss {words}", linewidth=1.2)
        axes.set(xlabel=AXES[over], ylabel="loss")
        other = axes.twinx() if rest else axes
        for number, name in enumerate(rest, 2):  # the losses have the first two colours
            other.plot(*zip(*curve(history, over, name), strict=True), "--.", color=f"C{number}", label=name)
        handles = list(dict.fromkeys([*axes.get_lines(), *other.get_lines()]))
        if handles:
            axes.legend(handles=handles, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3, frameon=False)
    seconds = costs.parts
    bars = split.bar(list(seconds), list(seconds.values()), color=COLOURS[: len(seconds)])
    split.bar_label(bars, fmt="%.3g", fontsize="small")
    split.set(ylabel="seconds from start to end")
    split.tick_params(axis="x", labelsize="small", labelrotation=20)
    return figure


def _shown(kind: type[Figure]) -> type[Figure]:
    """Figures that a notebook shows without pyplot, which would keep each of them open."""

    class Picture(kind):  # type: ignore[valid-type,misc]
        """A figure that a notebook shows as PNG."""

        def _repr_png_(self) -> bytes:
            written = BytesIO()
            self.savefig(written, format="png", dpi=110)
            return written.getvalue()

    return Picture
