"""Draws the picture of README.md: which party learns what in the default mode.

python benchmarks/learning_picture.py docs/figures/who-learns-what.svg
"""

from __future__ import annotations

import argparse
from html import escape
from pathlib import Path

WIDTH, HEIGHT, BOX_WIDTH, MARGIN, LINE = 880, 336, 416, 16, 24
PARTIES = {
    "Bank: some columns, and the labels": [
        ("before", "which people both have; column counts"),
        ("training", "nothing: random numbers, ciphertexts"),
        ("evaluation", "sum of losses; shuffled (score, label) pairs; a count"),
        ("later", "a score of a few bits per requested person"),
    ],
    "Shop: other columns of the same people": [
        ("before", "which people both have; column counts"),
        ("training", "nothing: random numbers, ciphertexts"),
        ("evaluation", "nothing"),
        ("later", "which people the bank asks about"),
    ],
}
NOBODY = [
    "During the training nobody learns a column of the other party, a label, a weight or a gradient.",
    "This holds if both follow the protocol. A party that deviates can learn more (SECURITY.md).",
]
STYLE = """
text { font-family: system-ui, sans-serif; font-size: 14px; fill: #1f2328 }
.head { font-weight: bold; font-size: 15px }
.when { fill: #59636e }
.bank { fill: #eef4fb; stroke: #4a78a8 }
.shop { fill: #eef7ee; stroke: #4d8653 }
.all { fill: #f6f8fa; stroke: #818b98 }
.line { stroke: #59636e; stroke-width: 1.5 }
.end { fill: #59636e }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc }
.when { fill: #a8b3bf }
.bank { fill: #14263a; stroke: #6ca0d8 }
.shop { fill: #15291a; stroke: #6fb377 }
.all { fill: #1c2128; stroke: #818b98 }
.line { stroke: #a8b3bf }
.end { fill: #a8b3bf }
}
"""


def picture() -> str:
    """Return the drawing as SVG, which fetches nothing and follows the light or dark scheme of the reader."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'role="img">',
        "<title>Which party learns what in the default mode</title>",
        f"<style>{STYLE}</style>",
        '<defs><marker id="end" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto-start-reverse">'
        '<path class="end" d="M0 0L8 4L0 8z"/></marker></defs>',
    ]
    for number, (name, lines) in enumerate(PARTIES.items()):
        x = MARGIN + number * (WIDTH - 2 * MARGIN - BOX_WIDTH)
        parts.append(
            f'<rect class="{"shop" if number else "bank"}" x="{x}" y="16" width="{BOX_WIDTH}" height="152" rx="8"/>'
            f'<text class="head" x="{x + 14}" y="44">{escape(name)}</text>'
        )
        for row, (when, learned) in enumerate(lines):
            y = 76 + row * LINE
            parts.append(
                f'<text class="when" x="{x + 14}" y="{y}">{when}</text><text x="{x + 104}" y="{y}">{learned}</text>'
            )
    left, right = MARGIN + BOX_WIDTH // 2, WIDTH - MARGIN - BOX_WIDTH // 2
    route = f"M{left} 170V210H{right}V170"
    parts.append(
        f'<path class="line" fill="none" d="{route}" marker-start="url(#end)" marker-end="url(#end)"/>'
        f'<text x="{WIDTH // 2}" y="201" text-anchor="middle" class="when">'
        "random shares and ciphertexts over mutual TLS</text>"
        f'<rect class="all" x="{MARGIN}" y="232" width="{WIDTH - 2 * MARGIN}" height="84" rx="8"/>'
    )
    parts += [f'<text x="{MARGIN + 14}" y="{266 + row * 28}">{escape(line)}</text>' for row, line in enumerate(NOBODY)]
    return "".join([*parts, "</svg>\n"])


def main() -> None:
    """Write the picture from the command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("file", type=Path, help="where the picture is written, as SVG")
    options.parse_args().file.write_text(picture(), encoding="utf-8")


if __name__ == "__main__":
    main()
