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

RULE_VERSION = 1
DELIMITER = "|"
"""Separates the values of a composite id."""
_SYLLABLES, _VOWELS, _TAILS = range(0xAC00, 0xD7A4), 21, 28  # of Hangul, whose code points follow from their letters


class IdColumns(NamedTuple):
    """The columns from which ids are composed, and whether values are normalised by the rule."""

    names: list[str]
    by_rule: bool


def id_columns(id_column: str, names: Sequence[str]) -> IdColumns:
    """Parse the value of `--id`.

    It is the name of one column, which is used as it is written; or several names, separated by commas, whose values
    are normalised by the rule. A comma after a single name normalises that column.

    Args:
        id_column: the value of `--id`.
        names: the columns of the file.

    Returns:
        The columns, and whether the rule is used.

    Raises:
        IdError: if one of several columns does not exist, or is named twice.
    """
    if id_column in names or "," not in id_column:
        return IdColumns([id_column], by_rule=False)
    columns = [name.strip() for name in id_column.removesuffix(",").split(",")]
    if missing := [column for column in columns if column not in names]:
        raise IdError(f"there are no id columns {', '.join(missing)}", code="SVFL-ID-COLUMN", columns=missing)
    if len(set(columns)) < len(columns):
        raise IdError("an id column is named twice", code="SVFL-ID-COLUMN", columns=columns)
    return IdColumns(columns, by_rule=True)


def count_rule_matches(ids: Iterable[Iterable[Any]]) -> int:
    """Return the number of ids that all parties would share if their ids were normalised by the rule."""
    return len(set.intersection(*({_normalised(value) for value in party_ids} - {""} for party_ids in ids)))


def compose_ids(columns: Sequence[Sequence[Any]]) -> list[str]:
    """Compose the ids of rows from the values of their id columns.

    Args:
        columns: the values (n,) of each id column.

    Returns:
        An id for each row.

    Raises:
        IdError: if a value is missing, or contains neither letters nor digits.
    """
    normalised = [[_normalised(value) for value in column] for column in columns]
    empty = sum(not all(row) for row in zip(*normalised, strict=True))
    if empty:
        raise IdError(
            f"{empty} rows have an id column without letters or digits",
            "fill it in, or drop these rows",
            code="SVFL-ID-MISSING",
            missing=empty,
        )
    return [DELIMITER.join((str(RULE_VERSION), *row)) for row in zip(*normalised, strict=True)]


def normalise(text: str) -> str:
    """Return a text as the rule normalises it."""
    return "".join(_decomposed(letter) for letter in text).translate(_character_table())


def _normalised(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return "" if value is None or value != value else normalise(str(value))


def _decomposed(letter: str) -> str:
    """Return the letters of a Hangul syllable, which may also be written as such; other characters unchanged."""
    number = ord(letter) - _SYLLABLES.start
    if ord(letter) not in _SYLLABLES:
        return letter
    head, remainder = divmod(number, _VOWELS * _TAILS)
    vowel, tail = divmod(remainder, _TAILS)
    return chr(0x1100 + head) + chr(0x1161 + vowel) + (chr(0x11A7 + tail) if tail else "")


@cache
def _character_table() -> dict[int, str]:
    """Read the character table of the rule.

    Its entries are FIRST=TEXT, or FIRST-LAST=TEXT for consecutive characters that become consecutive ones; entries
    without = are removed. Code points are hexadecimal.
    """
    table: dict[int, str] = {}
    path = files("securevfl.data").joinpath(f"letters_{RULE_VERSION}.txt")
    for entry in path.read_text(encoding="utf-8").split():
        span, _, text = entry.partition("=")
        first, last = (int(end, 16) for end in (span.partition("-")[0], span.rpartition("-")[2]))
        for code_point in range(first, last + 1):
            table[code_point] = chr(ord(text) + code_point - first) if last > first and text else text
    return table
