"""SVG charts for an HTML page: line charts, bar charts with standard errors, and stacked bar charts.

The SVG needs no script, font or other file. docs/architecture.md names the chart libraries that we considered instead.

A chart consists of axes with *ticks* (round numbers at equal distances), and of lines or bars for the data. Callers set
a smallest *span* of an axis (its largest minus its smallest value), so that differences that are only noise do not fill
the chart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from itertools import cycle, pairwise

from securevfl.display.html import escape, with_error

SERIES_COLOURS = "#3a6ea5", "#b23a2e", "#3c8d5a", "#8a5fa8", "#b8862b", "#5b6675", "#1b9e9e", "#d1669a", "#7a7a1f"

CHART_WIDTH, CHART_HEIGHT = 360.0, 240.0

MARGIN_LEFT, MARGIN_RIGHT, MARGIN_TOP, MARGIN_BOTTOM = 52.0, 16.0, 28.0, 42.0

BAR_HEIGHT, BAR_PITCH = 18.0, 48.0  # pixels: height of a bar, and distance from the top of a bar to that of the next

BAR_LEFT = 22.0  # pixels between the bars and either side, half the width of the widest label of an axis

MAX_LINE_POINTS = 600  # maximum number of points of a line; more would not be visible

MAX_MARKED_POINTS = 20  # each point of a line with at most this number of points is marked

MIN_RELATIVE_SPAN = 1e-6  # smallest span of an axis as a share of its largest value; labels of less would be equal

MIN_RAW_STEP = 1e-300  # smallest distance between ticks; smaller floating-point numbers are inexact

MAX_LABEL_CHARACTERS = 32  # longer labels of bars are cut, because a bar's label is one line

Points = Sequence[tuple[float, float]]

Range = tuple[float, float]

_Scale = Callable[[float], float]


def line_chart(
    series: Mapping[str, Points],
    *,
    x: str,
    y: str,
    min_span: float = 0.0,
    y_range: Range | None = None,
    references: Container[str] = (),
    x_start: float | None = None,
) -> str:
    """Draw lines over a common x axis.

    Args:
        series: points by name; points that are not finite are left out.
        x: label of the x axis.
        y: label of the y axis.
        min_span: smallest span of the y axis, such as a few standard errors of the values.
        y_range: values that the y axis covers in addition to the points.
        references: names of the series that other series are compared with; they are dashed and grey.
        x_start: the value where the x axis begins, if it is below all points; by default the smallest x.

    Returns:
        The chart, or an empty string if no points remain.
    """
    visible = {name: _thin([p for p in points if all(map(math.isfinite, p))]) for name, points in series.items()}
    visible = {name: points for name, points in visible.items() if points}
    if not visible:
        return ""
    xs, ys = ([point[axis] for points in visible.values() for point in points] for axis in (0, 1))
    x_low, x_high = min([*xs, *([] if x_start is None else [x_start])]), max(xs)
    x_ticks = ticks(x_low, x_high)
    y_ticks = ticks(*axis_range(min(ys), max(ys), min_span=min_span, covered=y_range))
    y_low, y_high = y_ticks[0], y_ticks[-1]
    x_ticks = [tick for tick in x_ticks if x_low <= tick <= x_high] or [x_low]

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
        _text((CHART_WIDTH + MARGIN_LEFT - MARGIN_RIGHT) / 2, CHART_HEIGHT - 8, x, "middle"),
        _text(4, 14, y),
    ]
    colours = series_colours(visible, references)
    for name, points in visible.items():
        positions = [(f"{across(a):.1f}", f"{down(b):.1f}") for a, b in points]
        way = " ".join(",".join(position) for position in positions)
        dashes = ' stroke-dasharray="5 4"' if name in references else ""
        colour = colours[name]
        parts.append(f'<polyline points="{way}" fill="none" style="stroke: {colour}" stroke-width="1.8"{dashes}/>')
        if len(positions) <= MAX_MARKED_POINTS and name not in references:
            parts += [f'<circle cx="{a}" cy="{b}" r="2.6" style="fill: {colour}"/>' for a, b in positions]
    return _svg(CHART_HEIGHT, f"{', '.join(visible)}: {y} over {x}", parts) + (
        legend(colours) if len(visible) > 1 else ""
    )


def bar_chart(
    bars: Mapping[str, tuple[float, float | None]], *, x: str, base: float = 0.0, references: Container[str] = ()
) -> str:
    """Draw horizontal bars with standard errors.

    Args:
        bars: by name, the value and its standard error; None draws no error.
        x: label of the axis of values.
        base: the value at which bars begin, such as 0.5 for an AUC, which is that of guessing. The axis extends below
            it for smaller values.
        references: names of the bars that other bars are compared with; they are grey.

    Returns:
        The chart. The span of the axis is at least four times the largest standard error.
    """
    errors = [error or 0.0 for _, error in bars.values()]
    ends = [value + sign * error for (value, _), error in zip(bars.values(), errors, strict=True) for sign in (-1, 1)]
    positions = ticks(*axis_range(min([base, *ends]), max([base, *ends]), min_span=4 * max(errors, default=0.0)))
    low, high = positions[0], positions[-1]
    bottom = BAR_PITCH * len(bars) + 6

    def across(value: float) -> float:
        return BAR_LEFT + (value - low) / ((high - low) or 1.0) * (CHART_WIDTH - 2 * BAR_LEFT)

    parts = [_columns(positions, across, bottom)]
    colours = series_colours(bars, references)
    for row, (name, (value, error)) in enumerate(bars.items()):
        top = BAR_PITCH * row + 20
        label = f"{_cut(name)}: {with_error(value, error)}"
        parts.append(_text(BAR_LEFT, top - 5, label))
        left, right = sorted((across(base), across(value)))
        parts.append(
            f'<rect x="{left:.1f}" y="{top}" width="{right - left:.1f}" height="{BAR_HEIGHT}" '
            f'style="fill: {colours[name]}"/>'
        )
        if error is not None:
            left, middle = across(value - error), top + BAR_HEIGHT / 2
            way = f"M{left:.1f} {middle}H{across(value + error):.1f}"
            way += "".join(f"M{across(value + sign * error):.1f} {middle - 5}v10" for sign in (-1, 1))
            parts.append(f'<path class="error" d="{way}" fill="none" stroke="#1c2430" stroke-width="2"/>')
    parts.append(_text(CHART_WIDTH / 2, bottom + 36, x, "middle"))
    return _svg(bottom + 44, f"{', '.join(bars)}: {x}", parts)


def stacked_bars(rows: Mapping[str, Mapping[str, float]], *, unit: str) -> str:
    """Draw one horizontal bar for each row. Each bar is the sum of coloured segments, one for each kind of value.

    Args:
        rows: for each row its values (0 or more) by kind. All rows have the same kinds.
        unit: their unit, the label of the axis.

    Returns:
        The chart and its legend.
    """
    positions = ticks(0.0, max((sum(kinds.values()) for kinds in rows.values()), default=0.0))
    bottom = BAR_PITCH * len(rows) + 6

    def across(value: float) -> float:
        return BAR_LEFT + value / (positions[-1] or 1.0) * (CHART_WIDTH - 2 * BAR_LEFT)

    parts, colours = [_columns(positions, across, bottom)], series_colours(next(iter(rows.values()), {}))
    for row, (name, kinds) in enumerate(rows.items()):
        top, end = BAR_PITCH * row + 20, 0.0
        parts.append(_text(BAR_LEFT, top - 5, _cut(name)))
        for kind, value in kinds.items():
            left, end = end, end + value
            width = across(end) - across(left)
            parts.append(
                f'<rect x="{across(left):.1f}" y="{top}" width="{width:.1f}" height="{BAR_HEIGHT}" '
                f'style="fill: {colours[kind]}"/>'
            )
    parts.append(_text(CHART_WIDTH / 2, bottom + 36, unit, "middle"))
    return _svg(bottom + 44, f"{', '.join(rows)}: {unit}", parts) + legend(colours)


def captioned(title: str, picture: str, text: str = "") -> str:
    """Put a title above a chart and a sentence below it; an empty chart stays empty."""
    if not picture:
        return ""
    below = f'<p class="soft">{escape(text)}</p>' if text else ""
    return f"<figure><figcaption>{escape(title)}</figcaption>{picture}{below}</figure>"


def side_by_side(pictures: Iterable[str]) -> str:
    """Arrange charts of equal size side by side, as many as fit on the screen; empty ones are left out."""
    return f'<div class="charts">{"".join(f"<div>{picture}</div>" for picture in pictures if picture)}</div>'


def axis_range(low: float, high: float, *, min_span: float = 0.0, covered: Range | None = None) -> Range:
    """Return the range of an axis around the values from `low` to `high`.

    Args:
        low: the smallest value.
        high: the largest value.
        min_span: the smallest span of the range. If `low` is not negative, the range has no negative values.
        covered: a second range that the axis includes too, such as 0 to 1 for a probability.

    Returns:
        The ends of the range.
    """
    if covered is not None:
        low, high = min(low, covered[0]), max(high, covered[1])
    missing = min_span - (high - low)
    if missing > 0:
        lower = low - missing / 2
        if low >= 0 > lower:
            return 0.0, max(min_span, high)
        low, high = lower, lower + min_span
    return low, high


def ticks(low: float, high: float) -> list[float]:
    """Return three to eight round numbers that cover a range, at distances of 1, 2 or 5 times a power of ten.

    A range whose span is below the share MIN_RELATIVE_SPAN of its values is widened, because the labels of the ticks
    would otherwise be equal.
    """
    size = max(abs(low), abs(high))
    span = max(high - low, MIN_RELATIVE_SPAN * size) if high > low else size or 1.0
    raw = span / 5
    power = 10.0 ** math.floor(math.log10(raw)) if raw > MIN_RAW_STEP else MIN_RAW_STEP
    step = next((factor * power for factor in (1, 2, 5, 10) if factor * power >= raw), power)
    first, final = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [k * step for k in range(first, max(final, first + 1) + 1)]


def tick_labels(positions: Sequence[float]) -> list[str]:
    """Return labels of equally spaced numbers, with as many digits as their step needs: no two labels are equal."""
    if len(positions) < 2:
        return [f"{position:.6g}" for position in positions]
    step = min(high - low for low, high in pairwise(positions))
    size = max(map(abs, positions))
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    if size < 1e6 and decimals <= 5:
        return [f"{position + 0.0:,.{decimals}f}" for position in positions]
    digits = max(0, math.floor(math.log10(size)) - math.floor(math.log10(step) + 1e-9))
    return ["0" if abs(position) < step / 2 else f"{position:.{digits}e}" for position in positions]


def series_colours(names: Iterable[str], references: Container[str] = ()) -> dict[str, str]:
    """Return the colour of each series in CSS, which depends on the colour scheme of the page."""
    colours = (f"var(--series-{number}, {colour})" for number, colour in cycle(enumerate(SERIES_COLOURS)))
    return {name: "var(--soft, #5b6675)" if name in references else next(colours) for name in names}


def legend(colours: Mapping[str, str]) -> str:
    """Return the names of the series of a chart with their colours (`series_colours`)."""
    marks = (
        f'<span style="display: inline-block; margin-right: 1.2em">{swatch(colour)} {escape(name)}</span>'
        for name, colour in colours.items()
    )
    return f'<div class="legend">{" ".join(marks)}</div>'


def swatch(colour: str) -> str:
    """Return a small rectangle of a colour, for legends and tables."""
    shape = "display: inline-block; width: 1.2em; height: .5em; vertical-align: middle; background: "
    return f'<span style="{shape}{colour}"></span>'


def _axes(x_ticks: list[float], y_ticks: list[float], across: _Scale, down: _Scale) -> str:
    grid = [
        f'<line x1="{MARGIN_LEFT}" x2="{CHART_WIDTH - MARGIN_RIGHT}" y1="{down(tick):.1f}" y2="{down(tick):.1f}" '
        'stroke="#dfe4ea"/>' + _text(MARGIN_LEFT - 6, down(tick) + 4, label, "end", "tick-y")
        for tick, label in zip(y_ticks, tick_labels(y_ticks), strict=True)
    ]
    marks = [
        _text(across(tick), CHART_HEIGHT - MARGIN_BOTTOM + 16, label, "middle", "tick-x")
        for tick, label in zip(x_ticks, tick_labels(x_ticks), strict=True)
    ]
    return "".join([*grid, *marks])


def _columns(positions: list[float], across: _Scale, bottom: float) -> str:
    """Return the grid and the labels of a horizontal axis below bars."""
    return "".join(
        f'<line x1="{across(tick):.1f}" x2="{across(tick):.1f}" y1="{BAR_PITCH - BAR_HEIGHT - 10}" y2="{bottom}" '
        f'stroke="#dfe4ea"/>{_text(across(tick), bottom + 16, label, "middle", "tick-x")}'
        for tick, label in zip(positions, tick_labels(positions), strict=True)
    )


def _cut(label: str) -> str:
    return label if len(label) <= MAX_LABEL_CHARACTERS else f"{label[: MAX_LABEL_CHARACTERS - 1]}…"


def _text(x: float, y: float, words: str, anchor: str = "start", kind: str = "label") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" font-size="12" text-anchor="{anchor}"'
    return f'<text class="{kind}" {place} fill="#5b6675">{escape(words)}</text>'


def _svg(height: float, label: str, parts: Sequence[str]) -> str:
    box = f"0 0 {CHART_WIDTH:g} {height:g}"
    head = f'<svg viewBox="{box}" role="img" aria-label="{escape(label)}" font-family="sans-serif">'
    return head + "".join(parts) + "</svg>"


def _thin(points: Points) -> Points:
    """Return at most about MAX_LINE_POINTS points of a line, always including the final one."""
    step = math.ceil(len(points) / MAX_LINE_POINTS) or 1
    return [*points[:-1:step], *points[-1:]]
