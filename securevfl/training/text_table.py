"""Tables of figures as aligned text."""

from __future__ import annotations

from collections.abc import Sequence


def format_table(rows: Sequence[dict[str, str | int | float | None]]) -> str:
    """Return rows with equal keys as an aligned text table with the keys as heads: words left, figures right."""
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
