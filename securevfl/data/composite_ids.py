"""Ids that are composed of several columns, or normalised so that different spellings match ("KD-0012", "kd0012").

Parties write the same person differently: in capitals, with blanks, hyphens or accents, or with digits of another
script. Each value is therefore normalised by a rule. The rule's character table is a file of this package, because
Python's own tables differ between versions. Each id starts with the version of the rule, so that ids of two versions
never match.

Rule 1: letters become lower case without accents, compatibility characters become their equivalents, digits become 0
to 9; blanks, punctuation and signs are removed. Letters outside the table stay as they are. The values of a row are
joined by |, which no normalised value contains. "Mueller-Luedenscheidt", "MUELLER LUEDENSCHEIDT" and
"muellerluedenscheidt" are equal; dates have to be written in the same order everywhere (1980-05-01 differs from
01.05.1980).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from securevfl.errors import IdError

RULE = 1

PARTED = "|"

_SYLLABLES, _VOWELS, _TAILS = range(0xAC00, 0xD7A4), 21, 28  # of Hangul, which are sums of letters


class IdColumns(NamedTuple):
    """The columns that ids are made of, and whether by the rule or as they are written in the one column."""

    names: list[str]
    by_rule: bool


def id_columns(id_column: str, names: Sequence[str]) -> IdColumns:
    """Return the columns that ids are made of: the one of this name, as it is written, or those that commas part in it,
    by the rule; a comma behind one name brings that to the rule too. IdError names those that are not there."""
    if id_column in names or "," not in id_column:
        return IdColumns([id_column], by_rule=False)
    columns = [each.strip() for each in id_column.removesuffix(",").split(",")]
    if lacking := [column for column in columns if column not in names]:
        raise IdError(f"columns of an id were expected, {', '.join(lacking)} are not there; correct --id")
    if len(set(columns)) < len(columns):
        raise IdError("different columns were expected that an id is made of, one came twice; correct --id")
    return IdColumns(columns, by_rule=True)


def alike(ids: Iterable[Iterable[Any]]) -> int:
    """Count the ids that all parties would share if they were brought to the rule."""
    return len(set.intersection(*({_form(value) for value in own} - {""} for own in ids)))


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
