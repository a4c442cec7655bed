"""Paragraphs have the lines of Python's `textwrap`, whose digest people have agreed to."""

from __future__ import annotations

import random
import textwrap

import pytest

from securevfl.display.text_layout import paragraph


@pytest.mark.parametrize("letters", ["aab- é", "aaaa ", "ab \t\n", "a \xa0\u2003"])
@pytest.mark.parametrize("hang", [None, "", "    "])
def test_lines_are_those_of_textwrap(letters: str, hang: str | None) -> None:
    """Texts are empty, shorter than a line, of long words, and of several blanks; indents exceed the width."""
    rng = random.Random(f"{letters} {hang}")
    for _ in range(2000):
        text = "".join(rng.choices(letters, k=rng.randrange(60)))
        indent, width = " " * rng.randrange(4), rng.randrange(1, 15)
        expected = textwrap.wrap(
            text,
            width,
            initial_indent=indent,
            subsequent_indent=indent if hang is None else hang,
            break_long_words=False,
            break_on_hyphens=False,
        )
        assert paragraph(text, width, indent=indent, hang=hang) == expected, (text, width)
