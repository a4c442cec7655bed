"""Ids that are made of several columns, as of a name, a date of birth and a postcode: one text a row, alike everywhere.

Parties write the same person differently: in capitals, with blanks, hyphens or accents, in digits of another script. So
each value is brought to one form, by a rule whose tables are a file of this package: Python's own differ from version
to version. The number of the rule is the beginning of each such id, so that ids of two rules never meet.

Rule 1, value by value: letters become small ones without accents, forms of compatibility what they stand for, digits 0
to 9; blanks, marks and signs are left out. Letters that its tables do not have stay as they are. The values of a row
follow each other, parted by |, which is none of them. So "Müller-Lüdenscheidt", "MULLER LUDENSCHEIDT" and
"mullerludenscheidt" are one, "Mueller" is another, and 1980-05-01 is not 01.05.1980: dates have one order everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from securevfl.errors import IdError

RULE = 1
PARTED = "|"
_SYLLABLES, _VOWELS, _TAILS = range(0xAC00, 0xD7A4), 21, 28  # of Hangul, which are sums of letters


def key_columns(id_column: str, names: Sequence[str]) -> list[str]:
    """Return the columns that ids are made of: the one of this name, or those that commas part in it. IdError names
    those that are not there."""
    if id_column in names or "," not in id_column:
        return [id_column]
    columns = [each.strip() for each in id_column.split(",")]
    if lacking := [each for each in columns if each not in names]:
        raise IdError(f"columns of an id were expected, {', '.join(lacking)} are not there; correct --id")
    if len(set(columns)) < len(columns):
        raise IdError("different columns were expected that an id is made of, one came twice; correct --id")
    return columns


def composed(columns: Sequence[Sequence[Any]]) -> list[str]:
    """Return an id for each row from the values of its columns. IdError, which counts the rows, where one is missing or
    has neither letters nor digits."""
    forms = [[_form(value) for value in column] for column in columns]
    empty = sum(not all(row) for row in zip(*forms, strict=True))
    if empty:
        raise IdError(
            f"letters or digits in each column of an id were expected, {empty} rows lack them in one; fill or drop them"
        )
    return [PARTED.join((str(RULE), *row)) for row in zip(*forms, strict=True)]


def normal(text: str) -> str:
    """Bring a value to its form by the rule."""
    return "".join(_syllable(letter) for letter in text).translate(_letters())


def _form(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return "" if value is None or value != value else normal(str(value))


def _syllable(letter: str) -> str:
    """Take a syllable of Hangul apart, as it may be written in its letters as well."""
    place = ord(letter) - _SYLLABLES.start
    if ord(letter) not in _SYLLABLES:
        return letter
    head, rest = divmod(place, _VOWELS * _TAILS)
    vowel, tail = divmod(rest, _TAILS)
    return chr(0x1100 + head) + chr(0x1161 + vowel) + (chr(0x11A7 + tail) if tail else "")


@cache
def _letters() -> dict[int, str]:
    """Read the rule's tables: FIRST=TEXT, or FIRST-LAST=TEXT where the letters that follow become those that follow it;
    in hexadecimal, and without = what is left out."""
    found: dict[int, str] = {}
    for entry in files("securevfl.data").joinpath(f"letters_{RULE}.txt").read_text(encoding="utf-8").split():
        span, _, text = entry.partition("=")
        first, last = (int(end, 16) for end in (span.partition("-")[0], span.rpartition("-")[2]))
        for number in range(first, last + 1):
            found[number] = chr(ord(text) + number - first) if last > first and text else text
    return found
