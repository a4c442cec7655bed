"""Every consent sheet is a document of 80 columns that has each output of its job once, as text and as a page."""

from __future__ import annotations

import re
from collections import Counter
from html import unescape

import pytest

import securevfl as vfl
from securevfl.consent.consent_sheet import ConsentSheet
from securevfl.consent.learned_table import LEARNED_TITLE
from securevfl.consent.sheet_document import WIDTH, table_lines
from securevfl.display.text_layout import RULE
from securevfl.families.run_facts import pooled_run_facts
from tests.builders import learned_rows, section_words
from tests.disclosure.disclosed_jobs import cases

CASES = cases()


@pytest.fixture(scope="module")
def sheets() -> dict[str, ConsentSheet]:
    """Return the sheet of each job."""
    return {name: vfl.explain(job, parties) for name, (job, parties) in CASES.items()}


@pytest.mark.parametrize("name", CASES)
def test_no_line_is_wider_than_a_terminal_and_no_word_is_broken(name: str, sheets: dict[str, ConsentSheet]) -> None:
    sheet = sheets[name]
    assert [line for line in sheet.splitlines() if len(line) > WIDTH or line != line.rstrip()] == []
    expected = Counter(word for section in sheet.sections for word in section_words(section))
    assert Counter(word for word in sheet.first_screen.split() if set(word) != {RULE}) == expected
    assert sheet.startswith(f"{sheet.first_screen}\n\n")


@pytest.mark.parametrize("name", CASES)
def test_the_heads_are_short_enough_for_a_table(name: str, sheets: dict[str, ConsentSheet]) -> None:
    """The sheet and the audit show columns, and not one paragraph for each row."""
    (table,) = (item.table for item in sheets[name].sections if item.title == LEARNED_TITLE)
    assert table is not None
    heads, *_ = table_lines(table)
    assert heads.split()[:4] == [*table.heads[:4]]


@pytest.mark.parametrize("name", CASES)
def test_every_output_is_in_the_table_once_with_its_bits(name: str, sheets: dict[str, ConsentSheet]) -> None:
    job, parties = CASES[name]
    outputs = pooled_run_facts(job, parties).outputs
    expected = Counter(
        (
            output.receiver,
            output.words or output.name + (f" (of {output.rows:,} rows)" if output.rows and output.numbers else ""),
            f"{'labels' if output.kind == 'labels' else 'columns'} of {', '.join(output.about)}",
            str(output.bits) if output.numbers else "-",
        )
        for output in outputs
    )
    assert all(f" {output.rows:,} rows" in output.words for output in outputs if output.words)
    rows = learned_rows(sheets[name])
    assert Counter((*row[:3], row[4]) for row in rows if row[2]) == expected
    silent = {party.name for party in parties} - {output.receiver for output in outputs}
    assert {row[0] for row in rows if not row[2]} == silent
    for row in rows:
        numbers = {output.numbers for output in outputs if (output.receiver, output.source) == (row[0], row[2])}
        assert not row[2] or row[4] == "-" or int(row[3].split()[0].strip(",").replace(",", "")) in numbers


@pytest.mark.parametrize("name", CASES)
def test_the_page_has_the_same_sections_in_the_same_order(name: str, sheets: dict[str, ConsentSheet]) -> None:
    sheet = sheets[name]
    page = sheet.page()
    titles = [unescape(title) for title in re.findall(r"<h[12]>(.*?)</h[12]>", page)]
    assert titles == [section.title for section in sheet.sections]
    text = unescape(re.sub(r"<[^>]*>", " ", sheet._repr_html_()))
    words = (word for section in sheet.sections for word in section_words(section))
    assert Counter(text.split()) == Counter(word.replace("`", "") for word in words)  # a page marks commands by a font
    assert sheet.digest in page
    assert "<script" not in page


def test_the_digest_covers_the_lines_and_not_the_date() -> None:
    job, parties = CASES["shares"]
    sheet = vfl.explain(job, parties)
    assert sheet.digest == vfl.explain(job, parties).digest
    assert sheet.footer not in sheet
    assert sheet.digest in sheet.footer
    assert sheet.digest != ConsentSheet(f"{sheet} ", sheet.first_screen, sheet.sections).digest
    assert sheet.digest != ConsentSheet(str(sheet), f"{sheet.first_screen} ", sheet.sections).digest


def test_names_of_any_length_are_not_broken() -> None:
    """With names of 60 characters the columns of the table do not fit, so that each row is a paragraph."""
    job, (bank, shop, *_) = CASES["shares of two parties"]
    names = ("bank-" + "b" * 55, "shop_" + "s" * 55)
    parties = [
        vfl.Party(names[0], bank.X, bank.y, ids=bank.ids),
        vfl.Party(names[1], shop.X, ids=shop.ids),
    ]
    sheet = vfl.explain(job, parties)
    assert max(map(len, sheet.splitlines())) <= WIDTH
    for row in learned_rows(sheet):
        assert all(word in sheet.split() or f"{word};" in sheet.split() for cell in row for word in cell.split())
