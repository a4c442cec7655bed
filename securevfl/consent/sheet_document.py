"""The parts of a consent sheet and their two forms: lines of 80 characters, and HTML with the same order and words.

A sheet consists of sections. A section has a title, possibly a table, and blocks of statements. A statement is a word,
such as "learns", and a text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from securevfl.display import html
from securevfl.display.text_layout import paragraph, text_table

WIDTH = 80
"""Maximum number of characters of a line of a consent sheet."""
_WORD_WIDTH = 10  # width of the word that introduces a statement, with the blanks behind it
_LIST_ITEM = re.compile(r"[\w-]+: ")  # the beginning of a line that is an item of a list, such as "shop: 3 bits"
_COMMAND = re.compile("`([^`]+)`")  # a command in a text
Statement = tuple[str, str]


@dataclass(frozen=True)
class SheetTable:
    """A table of a sheet.

    Attributes:
        heads: the heads of the columns.
        rows: the cells.
        flexible: index of the column with the longest texts.
        right: indices of the columns that are aligned at the right.
        widest: maximum width, in characters, of the other columns of the text, unless a word is longer.
    """

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    flexible: int
    right: tuple[int, ...] = ()
    widest: int = 16


@dataclass(frozen=True)
class SheetBlock:
    """Statements about one party, or about all parties if the heading is empty."""

    statements: tuple[Statement, ...]
    heading: str = ""


@dataclass(frozen=True)
class SheetSection:
    """A section of a sheet.

    Attributes:
        title: the heading.
        blocks: the statements.
        table: the table, which precedes the statements.
    """

    title: str
    blocks: tuple[SheetBlock, ...] = ()
    table: SheetTable | None = None


def section(title: str, *texts: str) -> SheetSection:
    """Return a section of a consent sheet that consists of paragraphs."""
    return SheetSection(title, (SheetBlock(tuple(("", text) for text in texts)),))


def combine(sheets: Mapping[str, Sequence[SheetSection]]) -> list[SheetSection]:
    """Combine sheets into one that states once what all of them state, and names the sheets that state anything else.

    Args:
        sheets: the sections of each sheet by its name.

    Returns:
        The sections, in the order of their first occurrence.
    """
    titles = dict.fromkeys(item.title for sections in sheets.values() for item in sections)
    by_title = {
        title: {name: item for name, sections in sheets.items() for item in sections if item.title == title}
        for title in titles
    }
    return [
        SheetSection(title, _combine_blocks(items, len(sheets)), _combine_tables(items, len(sheets)))
        for title, items in by_title.items()
    ]


def _combine_blocks(items: Mapping[str, SheetSection], count: int) -> tuple[SheetBlock, ...]:
    """Return a block of the statements that all `count` sheets contain, and a block for each smaller set of sheets."""
    names: dict[tuple[str, Statement], list[str]] = {}
    for name, item in items.items():
        for block in item.blocks:
            for statement in block.statements:
                names.setdefault((block.heading, statement), []).append(name)
    blocks: dict[tuple[str, ...], list[Statement]] = {}
    for (heading, statement), having in names.items():
        blocks.setdefault((heading, *(having if len(having) < count else ())), []).append(statement)
    return tuple(
        SheetBlock(tuple(statements), ", ".join(filter(None, heading))) for heading, statements in blocks.items()
    )


def _combine_tables(items: Mapping[str, SheetSection], count: int) -> SheetTable | None:
    """Return one table; the flexible cell of a row names the sheets that have it, unless all `count` sheets have it."""
    tables = {name: item.table for name, item in items.items() if item.table is not None}
    if not tables:
        return None
    first = next(iter(tables.values()))
    names: dict[tuple[str, ...], list[str]] = {}
    for name, table in tables.items():
        for row in table.rows:
            names.setdefault(row, []).append(name)
    rows = [
        tuple(
            f"{cell} ({', '.join(having)})" if column == first.flexible and len(having) < count else cell
            for column, cell in enumerate(row)
        )
        for row, having in names.items()
    ]
    leading = {row[0]: number for number, row in reversed([*enumerate(rows)])}  # rows of one party follow each other
    return replace(first, rows=tuple(sorted(rows, key=lambda row: leading[row[0]])))


def as_text(sections: Iterable[SheetSection]) -> str:
    """Return sections as lines of at most 80 characters."""
    return "\n\n".join("\n".join(_section_lines(item)) for item in sections)


def _section_lines(item: SheetSection) -> list[str]:
    lines = paragraph(item.title, WIDTH, hang="  ")
    if item.table is not None:
        lines += table_lines(item.table)
    for number, block in enumerate(item.blocks):
        lines += [""] if number or item.table is not None else []
        if block.heading:
            lines += paragraph(block.heading, WIDTH, indent="  ", hang="    ")
        for statement in block.statements:
            lines += _statement_lines(statement, "    " if block.heading else "  ")
    return lines


def table_lines(table: SheetTable) -> list[str]:
    """Return a table as lines of at most 80 characters."""
    return text_table(
        table.heads, table.rows, WIDTH, flexible=table.flexible, right=table.right, indent="  ", widest=table.widest
    )


def _statement_lines(statement: Statement, indent: str) -> list[str]:
    """Return a statement as lines: its word, its text, and each item of a list on a line of its own."""
    word, text = statement
    hang = indent + " " * _WORD_WIDTH * bool(word)
    first, *items = _items(text)
    head = f"{indent}{word:<{_WORD_WIDTH - 1}} " if word else indent
    lines = paragraph(first, WIDTH, indent=head, hang=hang)
    return lines + [line for text in items for line in paragraph(text, WIDTH, indent=hang, hang=f"{hang}  ")]


def _items(text: str) -> list[str]:
    """Join the lines of a text, except those that begin an item of a list."""
    items: list[str] = []
    for line in text.split("\n"):
        if items and not _LIST_ITEM.match(line):
            items[-1] += f" {line}"
        else:
            items.append(line)
    return items


def as_html(sections: Sequence[SheetSection]) -> str:
    """Return sections as HTML, in the same order and with the same words."""
    return "\n".join(_section_html(item) for item in sections)


def _section_html(item: SheetSection) -> str:
    parts = []
    if item.table is not None:
        parts.append(html.table(item.table.heads, item.table.rows, figures=item.table.right, stacked=True))
    for block in item.blocks:
        parts += [f"<h3>{html.escape(block.heading)}</h3>"] if block.heading else []
        if any(word for word, _ in block.statements):
            pairs = (f"<dt>{html.escape(word)}</dt><dd>{_text_html(text)}</dd>" for word, text in block.statements)
            parts.append(f"<dl>{''.join(pairs)}</dl>")
        else:
            parts += [f"<p>{_text_html(text)}</p>" for _, text in block.statements]
    return html.section(item.title, *parts)


def _text_html(text: str) -> str:
    return "<br>".join(_COMMAND.sub(r"<code>\1</code>", html.escape(item)) for item in _items(text))
