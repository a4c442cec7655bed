"""Pages and cells of HTML that need no other file: escaped text, tables, one style for screen, phone and paper."""

from __future__ import annotations

import html as markup
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import cycle


class Markup(str):
    """Text that is HTML already, and stands in a cell as it is."""

    __slots__ = ()


Cell = str | int | float | None

STYLE = """
:root { --ink: #1c2430; --soft: #5b6675; --line: #dfe4ea; --paper: #fff; --ground: #f6f7f9; --real: #b23a2e;
  --sim: #3a6ea5; --good: #3c8d5a; --tint: #eef1f4; --amber: #fff8e8; --red: #fdf0ee; }
@media screen and (prefers-color-scheme: dark) { :root { --ink: #e3e7ee; --soft: #a3adbb; --line: #3a424e;
  --paper: #1b2027; --ground: #12161b; --tint: #2a313b; --amber: #3a2f14; --red: #43211d; color-scheme: dark; } }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, "Segoe UI", Helvetica, Arial, sans-serif; color: var(--ink); margin: 0;
  background: var(--ground); overflow-wrap: break-word; }
main { max-width: 100rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .6rem; }
p { margin: .3rem 0; } p, pre { max-width: 62rem; } .soft { color: var(--soft); }
section, .verdict { background: var(--paper); border: 1px solid var(--line); border-radius: 6px;
  padding: .4rem 1.1rem 1rem; margin: 1rem 0; }
section h2 { margin: .7rem 0 .5rem; }
.verdict { border-left: 6px solid var(--good); padding: .9rem 1.1rem; font-weight: 600; }
.verdict.amber { border-left-color: #d99a1c; background: var(--amber); }
.verdict.red { border-left-color: var(--real); background: var(--red); }
.wide { overflow-x: auto; } .wide:focus-visible { outline: 2px solid var(--sim); outline-offset: 2px; }
table { border-collapse: collapse; }
th, td { text-align: left; vertical-align: top; padding: .35rem 1rem .35rem 0; border-bottom: 1px solid var(--line); }
tr:last-child > * { border-bottom: 0; } th { font-weight: 600; color: var(--soft); font-size: .85rem; }
td.figure, th.figure { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem .9rem; margin: .6rem 0; }
dt { font-weight: 600; color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
pre { font: 13px/1.45 ui-monospace, Menlo, Consolas, monospace; white-space: pre-wrap; margin: .5rem 0 0; }
code { font: .92em ui-monospace, Menlo, Consolas, monospace; }
svg { width: 100%; max-width: 40rem; height: auto; display: block; }
svg text { fill: var(--soft); } svg line { stroke: var(--line); }
.bar { position: relative; height: .62rem; width: 9rem; background: var(--tint); border-radius: 2px; margin: .2rem 0; }
.bar i { position: absolute; left: 0; top: 0; bottom: 0; border-radius: 2px; }
.bar b { position: absolute; top: -.15rem; bottom: -.15rem; width: 2px; background: var(--ink); }
.real { background: var(--real); } .sim { background: var(--sim); }
.tag { font-size: .8rem; font-weight: 600; padding: .05rem .5rem; border-radius: 9px; background: var(--tint); }
.tag.some { background: var(--amber); } .tag.strong { background: var(--red); }
.tag.exceeds { background: var(--real); color: #fff; }
.key i { display: inline-block; width: .8rem; height: .6rem; margin: 0 .3rem 0 .9rem; }
@media (max-width: 40rem) { main { padding: 1.25rem .7rem 3rem; } section { padding: .3rem .8rem .8rem; }
  dl { grid-template-columns: 1fr; } dt { margin-top: .4rem; }
  .stack table, .stack tbody, .stack tr, .stack td { display: block; } .stack th { display: none; }
  .stack td { border: 0; padding: .15rem 0; text-align: left; white-space: normal; }
  .stack tr { border-bottom: 1px solid var(--line); } }
@media print { body { background: #fff; font-size: 11px; } main { max-width: none; padding: 0; }
  .wide { overflow: visible; } section { border: 0; padding: 0; } h2, svg, tr { break-inside: avoid; }
  h2 { break-after: avoid; } }
"""


_WIDE = '<div class="wide" tabindex="0" role="group">'  # what is wider than a phone scrolls, by keyboard too


def escape(text: str) -> str:
    """Text as HTML shows it; Markup stays as it is."""
    return text if isinstance(text, Markup) else markup.escape(text)


def page(title: str, parts: Sequence[str]) -> str:
    """Assemble a whole page from these parts, which are HTML. It loads nothing and runs nothing, and says so to the
    browser."""
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>",
            *parts,
            "</main></body></html>",
            "",
        ]
    )


def section(title: str, *parts: str) -> str:
    """Assemble a card with a heading from these parts, which are HTML."""
    return "\n".join([f"<section><h2>{escape(title)}</h2>", *parts, "</section>"])


def table(heads: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Words to the left, figures to the right."""
    figures = [all(not isinstance(row[j], str) for row in rows) and bool(rows) for j in range(len(heads))]
    kinds = [' class="figure"' if figure else "" for figure in figures]

    def line(tag: str, cells: Sequence[Cell]) -> str:
        inner = (f"<{tag}{kind}>{escape(cell_text(cell))}</{tag}>" for kind, cell in zip(kinds, cells, strict=True))
        return f"<tr>{''.join(inner)}</tr>"

    body = "".join(line("td", row) for row in rows)
    return f"{_WIDE}<table>{line('th', heads)}{body}</table></div>"


def facts(of: Mapping[str, Cell]) -> str:
    """Names and what they stand for, one a line."""
    rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(cell_text(cell))}</td></tr>" for name, cell in of.items())
    return f"{_WIDE}<table>{rows}</table></div>"


def terms(of: Mapping[str, str]) -> str:
    """Words and what they mean, as a list of definitions."""
    return "<dl>" + "".join(f"<dt>{escape(term)}</dt><dd>{escape(text)}</dd>" for term, text in of.items()) + "</dl>"


def items(lines: Sequence[str]) -> str:
    """Lines as a list; empty for none."""
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>" if lines else ""


def cell_text(cell: Cell) -> str:
    """Format a cell as text: figures with as many digits as serve."""
    match cell:
        case None:
            return "-"
        case str():
            return cell
        case bool():
            return str(cell)
        case int():
            return f"{cell:,}"
    return f"{cell:,.0f}" if abs(cell) >= 1000 else f"{cell:.4g}"


# Pictures as SVG within a page: lines over an axis, and a bar split into shares. No script, no font, no other file.


COLOURS = "#3a6ea5", "#b23a2e", "#3c8d5a", "#8a5fa8", "#b8862b", "#5b6675", "#1b9e9e", "#d1669a", "#7a7a1f"
WIDTH, HEIGHT = 480.0, 270.0
LEFT, RIGHT, TOP, BOTTOM = 58.0, 14.0, 26.0, 40.0
POINTS = 600  # of a line; more would not show

Points = Sequence[tuple[float, float]]
_Place = Callable[[float], float]


def lines(series: Mapping[str, Points], *, x: str, y: str) -> str:
    """Lines by name over a common x axis; points that are not finite are left out. Empty if none remain."""
    kept = {name: _thin([p for p in points if all(map(math.isfinite, p))]) for name, points in series.items()}
    kept = {name: points for name, points in kept.items() if points}
    if not kept:
        return ""
    xs, ys = ([point[axis] for points in kept.values() for point in points] for axis in (0, 1))
    x_ticks, y_ticks = ticks(min(xs), max(xs)), ticks(min(ys), max(ys))
    x_low, x_high, y_low, y_high = min(xs), max(xs), y_ticks[0], y_ticks[-1]
    x_ticks = [tick for tick in x_ticks if x_low <= tick <= x_high]

    def across(value: float) -> float:
        return LEFT + (value - x_low) / ((x_high - x_low) or 1.0) * (WIDTH - LEFT - RIGHT)

    def down(value: float) -> float:
        return HEIGHT - BOTTOM - (value - y_low) / ((y_high - y_low) or 1.0) * (HEIGHT - TOP - BOTTOM)

    parts = [_axes(x_ticks, y_ticks, across, down), _text(WIDTH / 2, HEIGHT - 6, x, "middle"), _text(4, 14, y)]
    for points, colour in zip(kept.values(), cycle(COLOURS), strict=False):
        places = [(f"{across(a):.1f}", f"{down(b):.1f}") for a, b in points]
        way = " ".join(",".join(place) for place in places)
        parts.append(f'<polyline points="{way}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        if len(places) == 1:
            parts.append(f'<circle cx="{places[0][0]}" cy="{places[0][1]}" r="3" fill="{colour}"/>')
    return _svg(HEIGHT, f"{', '.join(kept)} over {x}", parts) + (_legend(kept) if len(kept) > 1 else "")


def side_by_side(pictures: Iterable[str]) -> str:
    """Lay pictures out side by side, as many as the screen has room for; empty ones are left out."""
    drawn = "".join(
        f'<div style="flex: 1 1 20rem; max-width: 40rem">{picture}</div>' for picture in pictures if picture
    )
    return f'<div style="display: flex; flex-wrap: wrap; gap: 1rem">{drawn}</div>'


def split(shares: Mapping[str, float], *, unit: str) -> str:
    """One bar, cut in proportion to the shares, with a line of words below for each."""
    whole = sum(shares.values())
    parts, at = [], 0.0
    for row, ((name, share), colour) in enumerate(zip(shares.items(), cycle(COLOURS), strict=False)):
        width = WIDTH * share / whole if whole > 0 else 0.0
        parts.append(f'<rect x="{at:.1f}" y="0" width="{width:.1f}" height="26" fill="{colour}"/>')
        line = 50.0 + 20.0 * row
        percent = 100 * share / whole if whole > 0 else 0.0
        parts.append(f'<rect x="0" y="{line - 10:.0f}" width="12" height="12" fill="{colour}"/>')
        parts.append(_text(20, line, f"{name}: {share:.3f} {unit}, {percent:.0f}%"))
        at += width
    return _svg(44.0 + 20.0 * len(shares), ", ".join(shares), parts)


def ticks(low: float, high: float) -> list[float]:
    """Choose some four to eight round numbers that span low to high (steps of 1, 2 or 5 times a power of ten)."""
    span = (high - low) or abs(high) or 1.0
    raw = span / 5
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(size * power for size in (1, 2, 5, 10) if size * power >= raw)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [k * step for k in range(first, max(last, first + 1) + 1)]


def _axes(x_ticks: list[float], y_ticks: list[float], across: _Place, down: _Place) -> str:
    grid = [
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{down(tick):.1f}" y2="{down(tick):.1f}" stroke="#dfe4ea"/>'
        + _text(LEFT - 6, down(tick) + 4, _tick(tick), "end")
        for tick in y_ticks
    ]
    marks = [_text(across(tick), HEIGHT - BOTTOM + 16, _tick(tick), "middle") for tick in x_ticks]
    return "".join([*grid, *marks])


def _legend(names: Iterable[str]) -> str:
    words = zip(names, cycle(COLOURS), strict=False)
    mark = "display: inline-block; width: 1.2em; height: .25em; vertical-align: middle; background: "
    marks = (
        f'<span style="margin-right: 1.2em"><span style="{mark}{colour}"></span> {escape(name)}</span>'
        for name, colour in words
    )
    return f'<div style="font-size: .85rem; text-align: center">{" ".join(marks)}</div>'


def _text(x: float, y: float, words: str, anchor: str = "start", colour: str = "#5b6675") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="12" text-anchor="{anchor}" fill="{colour}">{escape(words)}</text>'


def _svg(height: float, label: str, parts: Sequence[str]) -> str:
    head = f'<svg viewBox="0 0 {WIDTH:g} {height:g}" role="img" aria-label="{escape(label)}" font-family="sans-serif">'
    return head + "".join(parts) + "</svg>"


def _tick(value: float) -> str:
    return cell_text(int(value)) if value == int(value) and abs(value) < 1e6 else f"{value:.3g}"


def _thin(points: Points) -> Points:
    """Every so many-th point of a long line, and always the last."""
    step = math.ceil(len(points) / POINTS) or 1
    return [*points[:-1:step], *points[-1:]]
