"""Lines over an axis as an SVG file: no script, no font, nothing fetched, the same bytes every time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path

from securevfl.display.html import escape
from securevfl.display.svg import SERIES_COLOURS, ticks

PICTURE_WIDTH, PICTURE_HEIGHT = 560.0, 320.0
PICTURE_LEFT, PICTURE_RIGHT, PICTURE_TOP, PICTURE_BOTTOM = 56.0, 190.0, 30.0, 44.0


def draw(path: Path, series: Mapping[str, Sequence[tuple[float, float]]], *, x: str, y: str, log: bool = False) -> None:
    """Draw lines by name; log: the x axis is logarithmic."""
    lines = {name: [(_at(a, log), b) for a, b in points] for name, points in series.items() if points}
    xs, ys = ([point[axis] for points in lines.values() for point in points] for axis in (0, 1))
    below, *_, above = ticks(min(ys), max(ys))

    def across(value: float) -> float:
        return PICTURE_LEFT + (value - min(xs)) / ((max(xs) - min(xs)) or 1.0) * (
            PICTURE_WIDTH - PICTURE_LEFT - PICTURE_RIGHT
        )

    def down(value: float) -> float:
        return (
            PICTURE_HEIGHT
            - PICTURE_BOTTOM
            - (value - below) / (above - below) * (PICTURE_HEIGHT - PICTURE_TOP - PICTURE_BOTTOM)
        )

    marks = sorted({a for points in series.values() for a, _ in points}) if log else ticks(min(xs), max(xs))
    parts = ['<rect width="100%" height="100%" fill="#fff"/>']
    for tick in ticks(min(ys), max(ys)):
        parts.append(
            f'<line x1="{PICTURE_LEFT}" x2="{PICTURE_WIDTH - PICTURE_RIGHT}" '
            f'y1="{down(tick):.1f}" y2="{down(tick):.1f}" stroke="#ddd"/>'
        )
        parts.append(_text(PICTURE_LEFT - 6, down(tick) + 4, f"{tick:.4g}", "end"))
    parts += [
        _text(across(_at(mark, log)), PICTURE_HEIGHT - PICTURE_BOTTOM + 16, f"{mark:.4g}", "middle")
        for mark in marks
        if min(xs) <= _at(mark, log) <= max(xs)
    ]
    parts += [
        _text((PICTURE_LEFT + PICTURE_WIDTH - PICTURE_RIGHT) / 2, PICTURE_HEIGHT - 8, x, "middle"),
        _text(6, 16, y),
    ]
    for row, ((name, points), colour) in enumerate(zip(lines.items(), cycle(SERIES_COLOURS), strict=False)):
        way = " ".join(f"{across(a):.1f},{down(b):.1f}" for a, b in points)
        parts.append(f'<polyline points="{way}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
        parts.append(_text(PICTURE_WIDTH - PICTURE_RIGHT + 12, PICTURE_TOP + 18 * row + 8, name, colour=colour))
    size = f'viewBox="0 0 {PICTURE_WIDTH:g} {PICTURE_HEIGHT:g}" width="{PICTURE_WIDTH:g}" height="{PICTURE_HEIGHT:g}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="sans-serif">'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(head + "\n".join(parts) + "</svg>\n", encoding="utf-8")


def _at(value: float, log: bool) -> float:
    return math.log(value) if log else value


def _text(x: float, y: float, words: str, anchor: str = "start", colour: str = "#444") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="12" text-anchor="{anchor}" fill="{colour}">{escape(words)}</text>'
