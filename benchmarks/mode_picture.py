"""Draws the picture of docs/which-mode.md: the questions that lead to a mode.

python benchmarks/mode_picture.py docs/figures/which-mode.svg
"""

from __future__ import annotations

import argparse
from html import escape
from pathlib import Path

QUESTIONS = [  # a question, and the mode to use if the answer is yes
    ("Is the model linear, or trees?", "shares", "the default; no line to write"),
    ("Are all tables of one house, for an experiment?", "open", 'protocol = "open"'),
    ("Must it rest on factoring, at any cost?", "Paillier", 'protocol = "paillier"'),
    ("Do parties go at their own pace?", "FDML", "with masks or CKKS"),
    ("Are there three parties or more?", "CKKS, hidden parts", 'sum = "pairwise"'),
]
ELSE = ("CKKS", 'protocol = "ckks"')
DIAGRAM_WIDTH, DIAGRAM_STEP, DIAGRAM_LEFT, DIAGRAM_RIGHT, BOX = 760, 84, 20, 500, 52


def box(x: int, y: int, width: int, fill: str, lines: list[str]) -> str:
    """Return a box of one line, or of two lines with the first one bold."""
    displayed = [f'<rect x="{x}" y="{y}" width="{width}" height="{BOX}" rx="8" fill="{fill}" stroke="#5b6470"/>']
    for k, line in enumerate(lines):
        at = y + BOX / 2 + 5 + (k - (len(lines) - 1) / 2) * 18
        bold = ' font-weight="bold"' if len(lines) > 1 and k == 0 else ""
        displayed.append(f'<text x="{x + width / 2}" y="{at}" text-anchor="middle"{bold}>{escape(line)}</text>')
    return "".join(displayed)


def arrow(x: int, y: int, to_x: int, to_y: int, word: str) -> str:
    """Return an arrow with a word next to it."""
    line = f'<path d="M{x} {y}L{to_x} {to_y}" stroke="#5b6470" fill="none" marker-end="url(#end)"/>'
    up = 6 if y == to_y else -5  # above an arrow to the right, to the right of an arrow down
    return f'{line}<text x="{(x + to_x) / 2 + 8}" y="{(y + to_y) / 2 - up}" fill="#5b6470">{word}</text>'


def picture() -> str:
    """Return the drawing as SVG, which fetches nothing and is readable on light and dark pages."""
    height = DIAGRAM_STEP * (len(QUESTIONS) + 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {DIAGRAM_WIDTH} {height}" width="{DIAGRAM_WIDTH}" '
        f'height="{height}" '
        'font-family="sans-serif" font-size="14" role="img">',
        "<title>Which mode to take, by five questions</title>",
        '<defs><marker id="end" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="#5b6470"/></marker></defs>',
        f'<rect width="{DIAGRAM_WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for k, (question, mode, how) in enumerate(QUESTIONS):
        y = 16 + k * DIAGRAM_STEP
        parts += [
            box(DIAGRAM_LEFT, y, 380, "#eef2f7", [question]),
            box(DIAGRAM_RIGHT, y, 240, "#e2f2e6" if k == 0 else "#f7f3e4", [mode, how]),
            arrow(DIAGRAM_LEFT + 380, y + BOX // 2, DIAGRAM_RIGHT, y + BOX // 2, "yes"),
            arrow(DIAGRAM_LEFT + 190, y + BOX, DIAGRAM_LEFT + 190, y + DIAGRAM_STEP, "no"),
        ]
    parts.append(box(DIAGRAM_LEFT, 16 + len(QUESTIONS) * DIAGRAM_STEP, 380, "#f7f3e4", list(ELSE)))
    return "".join([*parts, "</svg>\n"])


def main() -> None:
    """Run the benchmark from the command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("file", type=Path, help="where the picture goes, as SVG")
    options.parse_args().file.write_text(picture(), encoding="utf-8")


if __name__ == "__main__":
    main()
