"""Text of a fixed width: paragraphs and tables whose words are never broken.

The same input gives the same lines on every terminal and with every version of a library. So people can agree to a
digest of the lines that they read, as they do with consent sheets.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence

COLUMN_GAP = 2  # number of blanks between the columns of a table
RULE = "\u2500"
_OTHER_BLANKS = re.compile(r"[^\S ]|  |^ | $")  # anything but single blanks between words


def paragraph(text: str, width: int, *, indent: str = "", hang: str | None = None) -> list[str]:
    """Wrap a paragraph at blanks only.

    Args:
        text: the paragraph.
        width: maximum number of characters of a line; only a longer word exceeds it.
        indent: beginning of the first line.
        hang: beginning of the other lines; `indent` by default.

    Returns:
        The lines.
    """
    hang = indent if hang is None else hang
    if _OTHER_BLANKS.search(text):
        return textwrap.wrap(
            text,
            width,
            initial_indent=indent,
            subsequent_indent=hang,
            break_long_words=False,
            break_on_hyphens=False,
        )
    lines, start = list[str](), 0
    while start < len(text):  # gives the lines of `textwrap`, in a quarter of its time
        prefix = hang if lines else indent
        end = start + max(0, width - len(prefix))
        if end < len(text):
            end = text.rfind(" ", start, end + 1)
            end = end if end > 0 else text.find(" ", start)
        end = end if 0 < end < len(text) else len(text)
        lines.append(prefix + text[start:end])
        start = end + 1
    return lines


def text_table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int,
    *,
    flexible: int,
    right: Iterable[int] = (),
    indent: str = "",
    widest: int = 16,
) -> list[str]:
    """Format a table with wrapped cells. If the longest words of its columns do not fit, each row becomes a paragraph.

    A blank line separates rows whose first cells differ.

    Args:
        heads: the heads of the columns.
        rows: the cells.
        width: maximum number of characters of a line.
        flexible: index of the column that takes the remaining width.
        right: indices of the columns that are right-aligned.
        indent: beginning of each line.
        widest: maximum width, in characters, of columns other than `flexible`. A longer word makes its column wider.

    Returns:
        The lines.
    """
    columns = [[head, *(row[j] for row in rows)] for j, head in enumerate(heads)]
    longest = [max(len(word) for cell in column for word in (cell.split() or [""])) for column in columns]
    widths = [max(word, min(widest, max(map(len, column)))) for word, column in zip(longest, columns, strict=True)]
    available = width - len(indent) - COLUMN_GAP * (len(heads) - 1)
    widths[flexible] = available - sum(widths) + widths[flexible]
    if widths[flexible] < max(longest[flexible], widest):
        return [line for row in rows for line in _row_as_paragraph(heads, row, width, indent)]
    aligned = set(right)

    def lines_of(cells: Sequence[str]) -> list[str]:
        wrapped = [paragraph(cell, size) or [""] for cell, size in zip(cells, widths, strict=True)]
        lines = []
        for number in range(max(map(len, wrapped))):
            parts = [cell[number] if number < len(cell) else "" for cell in wrapped]
            padded = (
                part.rjust(size) if j in aligned else part.ljust(size)
                for j, (part, size) in enumerate(zip(parts, widths, strict=True))
            )
            lines.append(indent + (" " * COLUMN_GAP).join(padded).rstrip())
        return lines

    lines = [*lines_of(heads), indent + RULE * (width - len(indent))]
    for above, row in zip([rows[0], *rows], rows, strict=False):
        lines += [""] if above[0] != row[0] else []
        lines += lines_of(row)
    return lines


def _row_as_paragraph(heads: Sequence[str], row: Sequence[str], width: int, indent: str) -> list[str]:
    """Return one row as a paragraph of "head: cell" pairs, for a table whose columns do not fit into the width."""
    cells = "; ".join(f"{head.lower()}: {cell}" for head, cell in zip(heads, row, strict=True) if cell)
    return paragraph(cells, width, indent=indent, hang=f"{indent}  ")
