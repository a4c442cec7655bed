"""Charts as SVG for an HTML page: lines over an axis, and a bar that is divided into shares.

They need no script, no font and no other file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import cycle

from securevfl.display.html import cell_text, escape

SERIES_COLOURS = "#3a6ea5", "#b23a2e", "#3c8d5a", "#8a5fa8", "#b8862b", "#5b6675", "#1b9e9e", "#d1669a", "#7a7a1f"

CHART_WIDTH, CHART_HEIGHT = 480.0, 270.0

MARGIN_LEFT, MARGIN_RIGHT, MARGIN_TOP, MARGIN_BOTTOM = 58.0, 14.0, 26.0, 40.0

MAX_LINE_POINTS = 600  # maximum number of points of a line; more would not be visible

Points = Sequence[tuple[float, float]]

_Scale = Callable[[float], float]


def line_chart(series: Mapping[str, Points], *, x: str, y: str) -> str:
    """Draw lines over a common x axis.

    Args:
        series: points by name; points that are not finite are left out.
        x: label of the x axis.
        y: label of the y axis.

    Returns:
        The chart, or an empty string if no points remain.
    """
    visible = {name: _thin([p for p in points if all(map(math.isfinite, p))]) for name, points in series.items()}
    visible = {name: points for name, points in visible.items() if points}
    if not visible:
        return ""
    xs, ys = ([point[axis] for points in visible.values() for point in points] for axis in (0, 1))
    x_ticks, y_ticks = ticks(min(xs), max(xs)), ticks(min(ys), max(ys))
    x_low, x_high, y_low, y_high = min(xs), max(xs), y_ticks[0], y_ticks[-1]
    x_ticks = [tick for tick in x_ticks if x_low <= tick <= x_high]

    def across(value: float) -> float:
        return MARGIN_LEFT + (value - x_low) / ((x_high - x_low) or 1.0) * (CHART_WIDTH - MARGIN_LEFT - MARGIN_RIGHT)

    def down(value: float) -> float:
        return (
            CHART_HEIGHT
            - MARGIN_BOTTOM
            - (value - y_low) / ((y_high - y_low) or 1.0) * (CHART_HEIGHT - MARGIN_TOP - MARGIN_BOTTOM)
        )

    parts = [
        _axes(x_ticks, y_ticks, across, down),
        _text(CHART_WIDTH / 2, CHART_HEIGHT - 6, x, "middle"),
        _text(4, 14, y),
    ]
    for points, colour in zip(visible.values(), cycle(SERIES_COLOURS), strict=False):
        positions = [(f"{across(a):.1f}", f"{down(b):.1f}") for a, b in points]
        way = " ".join(",".join(position) for position in positions)
        parts.append(f'<polyline points="{way}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        if len(positions) == 1:
            parts.append(f'<circle cx="{positions[0][0]}" cy="{positions[0][1]}" r="3" fill="{colour}"/>')
    return _svg(CHART_HEIGHT, f"{', '.join(visible)} over {x}", parts) + (_legend(visible) if len(visible) > 1 else "")


def side_by_side(pictures: Iterable[str]) -> str:
    """Arrange charts side by side, as many as fit on the screen; empty ones are left out."""
    drawn = "".join(
        f'<div style="flex: 1 1 20rem; max-width: 40rem">{picture}</div>' for picture in pictures if picture
    )
    return f'<div style="display: flex; flex-wrap: wrap; gap: 1rem">{drawn}</div>'


def share_bar(shares: Mapping[str, float], *, unit: str) -> str:
    """Draw one bar that is divided in proportion to the shares, with a line of text for each.

    Args:
        shares: values by name.
        unit: their unit.

    Returns:
        The chart.
    """
    total = sum(shares.values())
    parts, left = [], 0.0
    for row, ((name, share), colour) in enumerate(zip(shares.items(), cycle(SERIES_COLOURS), strict=False)):
        width = CHART_WIDTH * share / total if total > 0 else 0.0
        parts.append(f'<rect x="{left:.1f}" y="0" width="{width:.1f}" height="26" fill="{colour}"/>')
        line = 50.0 + 20.0 * row
        percent = 100 * share / total if total > 0 else 0.0
        parts.append(f'<rect x="0" y="{line - 10:.0f}" width="12" height="12" fill="{colour}"/>')
        parts.append(_text(20, line, f"{name}: {share:.3f} {unit}, {percent:.0f}%"))
        left += width
    return _svg(44.0 + 20.0 * len(shares), ", ".join(shares), parts)


def ticks(low: float, high: float) -> list[float]:
    """Return about four to eight round numbers that cover the range (steps of 1, 2 or 5 times a power of ten)."""
    span = (high - low) or abs(high) or 1.0
    raw = span / 5
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(size * power for size in (1, 2, 5, 10) if size * power >= raw)
    first, final = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [k * step for k in range(first, max(final, first + 1) + 1)]


def _axes(x_ticks: list[float], y_ticks: list[float], across: _Scale, down: _Scale) -> str:
    grid = [
        f'<line x1="{MARGIN_LEFT}" x2="{CHART_WIDTH - MARGIN_RIGHT}" y1="{down(tick):.1f}" y2="{down(tick):.1f}" '
        'stroke="#dfe4ea"/>' + _text(MARGIN_LEFT - 6, down(tick) + 4, _tick(tick), "end")
        for tick in y_ticks
    ]
    marks = [_text(across(tick), CHART_HEIGHT - MARGIN_BOTTOM + 16, _tick(tick), "middle") for tick in x_ticks]
    return "".join([*grid, *marks])


def _legend(names: Iterable[str]) -> str:
    words = zip(names, cycle(SERIES_COLOURS), strict=False)
    mark = "display: inline-block; width: 1.2em; height: .25em; vertical-align: middle; background: "
    marks = (
        f'<span style="margin-right: 1.2em"><span style="{mark}{colour}"></span> {escape(name)}</span>'
        for name, colour in words
    )
    return f'<div style="font-size: .85rem; text-align: center">{" ".join(marks)}</div>'


def _text(x: float, y: float, words: str, anchor: str = "start", colour: str = "#5b6675") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="12" text-anchor="{anchor}" fill="{colour}">{escape(words)}</text>'


def _svg(height: float, label: str, parts: Sequence[str]) -> str:
    box = f"0 0 {CHART_WIDTH:g} {height:g}"
    head = f'<svg viewBox="{box}" role="img" aria-label="{escape(label)}" font-family="sans-serif">'
    return head + "".join(parts) + "</svg>"


def _tick(value: float) -> str:
    return cell_text(int(value)) if value == int(value) and abs(value) < 1e6 else f"{value:.3g}"


def _thin(points: Points) -> Points:
    """Return at most about MAX_LINE_POINTS points of a line, always including the final one."""
    step = math.ceil(len(points) / MAX_LINE_POINTS) or 1
    return [*points[:-1:step], *points[-1:]]
