"""Self-contained HTML pages and cells: escaped text, tables, and one style for screen, phone and paper."""

from __future__ import annotations

import html as markup
import math
from collections.abc import Container, Mapping, Sequence

from securevfl.display.printable import printable


class Markup(str):
    """Text that contains HTML markup; `escape` returns it unchanged."""

    __slots__ = ()


MAX_DECIMALS = 6
"""Largest number of digits after the decimal point of a number with a standard error."""

Cell = str | int | float | None

STYLE = """
:root { --ink: #1c2430; --soft: #5b6675; --line: #dfe4ea; --paper: #fff; --ground: #f6f7f9; --real: #b23a2e;
  --sim: #3a6ea5; --good: #3c8d5a; --tint: #eef1f4; --amber: #fff8e8; --red: #fdf0ee;
  --series-0: #3a6ea5; --series-1: #b23a2e; --series-2: #3c8d5a; --series-3: #8a5fa8; }
@media screen and (prefers-color-scheme: dark) { :root { --ink: #e3e7ee; --soft: #a3adbb; --line: #3a424e;
  --paper: #1b2027; --ground: #12161b; --tint: #2a313b; --amber: #3a2f14; --red: #43211d; color-scheme: dark;
  --real: #e0705f; --sim: #6ea3dc; --good: #5fb884;
  --series-0: #6ea3dc; --series-1: #e0705f; --series-2: #5fb884; --series-3: #b38fd0; } }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, "Segoe UI", Helvetica, Arial, sans-serif; color: var(--ink); margin: 0;
  background: var(--ground); overflow-wrap: break-word; }
main { max-width: 80rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
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
svg { width: 100%; max-width: 26rem; height: auto; display: block; }
svg text { fill: var(--soft); paint-order: stroke; stroke: var(--paper); stroke-width: 3px; stroke-linejoin: round; }
svg line { stroke: var(--line); } svg .error { stroke: var(--ink); }
figure { margin: .4rem 0; } figcaption { font-weight: 600; } .legend { font-size: .85rem; max-width: 26rem;
  text-align: center; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 19rem), 1fr)); gap: 1rem 2rem;
  max-width: 90rem; } .charts > section { margin: 0; }
details { border-top: 1px solid var(--line); padding: .45rem 0; } section > h2 + details { border-top: 0; }
summary { cursor: pointer; font-weight: 600; } .gain { font-size: 1.15rem; }
.bar { position: relative; height: .62rem; width: 9rem; background: var(--tint); border-radius: 2px; margin: .2rem 0; }
.bar i { position: absolute; left: 0; top: 0; bottom: 0; border-radius: 2px; }
.bar b { position: absolute; top: -.15rem; bottom: -.15rem; width: 2px; background: var(--ink); }
.real { background: var(--real); } .sim { background: var(--sim); }
.tag { font-size: .8rem; font-weight: 600; padding: .05rem .5rem; border-radius: 9px; background: var(--tint); }
.tag.some { background: var(--amber); } .tag.strong { background: var(--red); }
.tag.exceeds { background: #b23a2e; color: #fff; }
.key i { display: inline-block; width: .8rem; height: .6rem; margin: 0 .3rem 0 .9rem; }
@media (max-width: 40rem) { main { padding: 1.25rem .7rem 3rem; } section { padding: .3rem .8rem .8rem; }
  th, td { padding-right: .5rem; font-size: .88rem; } th { font-size: .8rem; }
  dl { grid-template-columns: 1fr; } dt { margin-top: .4rem; }
  .stack table, .stack tbody, .stack tr, .stack td { display: block; } .stack th { display: none; }
  .stack td, .stack td.figure { border: 0; padding: .15rem 0; text-align: left; white-space: normal; }
  .stack td:empty { display: none; } .stack td[data-head]::before { content: attr(data-head) ": "; font-weight: 600;
    color: var(--soft); }
  .stack tr { border-bottom: 1px solid var(--line); padding: .5rem 0; } }
@media print { html { font-size: 11px; } body { background: #fff; font-size: 1rem; }
  main { max-width: none; padding: 0; }
  .wide { overflow: visible; } section { border: 0; padding: 0; } h2, svg, tr { break-inside: avoid; }
  h2 { break-after: avoid; } p { break-inside: avoid; } figure { break-inside: avoid; }
  details:not([open]), section:not(:has(> :not(h2, details:not([open])))) { display: none; }
  .charts { grid-template-columns: repeat(auto-fit, minmax(15rem, 1fr)); } }
"""


_WIDE = (
    # a table that is wider than the screen scrolls; tabindex lets the keyboard scroll it
    '<div class="wide" tabindex="0" role="group">'
)


def escape(text: str) -> str:
    """Escape text for HTML, including control characters and direction marks. A `Markup` is returned unchanged."""
    return text if isinstance(text, Markup) else markup.escape(printable(text))


def page(title: str, parts: Sequence[str]) -> str:
    """Combine HTML parts into a page. A content security policy forbids the page to load or run anything."""
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
    """Combine HTML parts into a card, with a heading unless it is empty."""
    heading = f"<h2>{escape(title)}</h2>" if title else ""
    return "\n".join([f"<section>{heading}", *parts, "</section>"])


def details(title: str, *parts: str) -> str:
    """Combine HTML parts into a block that a reader opens by its title; it is closed at first."""
    return "\n".join([f"<details><summary>{escape(title)}</summary>", *parts, "</details>"])


def table(
    heads: Sequence[str], rows: Sequence[Sequence[Cell]], *, figures: Container[int] = (), stacked: bool = False
) -> str:
    """Format a table; text is left-aligned, and numbers are right-aligned.

    Args:
        heads: headings.
        rows: the cells.
        figures: indices of columns of text that are right-aligned too, because the text consists of formatted numbers.
        stacked: whether a phone shows the cells of a row one below the other, each with its heading.

    Returns:
        The table.
    """
    right = [
        j in figures or (all(not isinstance(row[j], str) for row in rows) and bool(rows)) for j in range(len(heads))
    ]
    kinds = [' class="figure"' if figure else "" for figure in right]

    def line(tag: str, cells: Sequence[Cell]) -> str:
        names = [f' data-head="{escape(head)}"' if tag == "td" and head and stacked else "" for head in heads]
        inner = (
            f"<{tag}{kind}{name}>{escape(cell_text(cell))}</{tag}>"
            for kind, name, cell in zip(kinds, names, cells, strict=True)
        )
        return f"<tr>{''.join(inner)}</tr>"

    body = "".join(line("td", row) for row in rows)
    result = f"{_WIDE}<table>{line('th', heads)}{body}</table></div>"
    return f'<div class="stack">{result}</div>' if stacked else result


def facts(values: Mapping[str, Cell]) -> str:
    """Format names and values as an HTML table with one row for each name."""
    rows = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(cell_text(cell))}</td></tr>" for name, cell in values.items()
    )
    return f"{_WIDE}<table>{rows}</table></div>"


def terms(meanings: Mapping[str, str]) -> str:
    """Format terms and their meanings as an HTML list of definitions."""
    return (
        "<dl>" + "".join(f"<dt>{escape(term)}</dt><dd>{escape(text)}</dd>" for term, text in meanings.items()) + "</dl>"
    )


def items(lines: Sequence[str]) -> str:
    """Format lines of text as a bulleted HTML list; return an empty string if there are none."""
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>" if lines else ""


def cell_text(cell: Cell) -> str:
    """Format a cell as text, with at most four significant digits for small numbers."""
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


def with_error(value: float, error: float | None = None) -> str:
    """Format "value ± standard error". The error has two significant digits; both have the same number of decimals.

    Without a finite standard error, only the value is returned.
    """
    decimals = decimals_of(error)
    if error is None or decimals is None or not math.isfinite(value):
        return cell_text(value)
    return f"{value:,.{decimals}f} ± {error:,.{decimals}f}"


def decimals_of(error: float | None) -> int | None:
    """Return the number of decimals to print for a value with this standard error, or None without an error."""
    if error is None or not math.isfinite(error) or error <= 0:
        return None
    return min(MAX_DECIMALS, max(0, 1 - math.floor(math.log10(error))))
