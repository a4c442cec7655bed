"""Ids that are composed of several columns, or normalised so that different spellings match ("KD-0012", "kd0012").

Parties write the same person's id differently: in capitals, with blanks, hyphens or accents. The *rule for spellings*
normalises each value and joins the values of a row by |. Each id starts with the rule's version, so that ids of two
versions never match. The character table is a file of this package, because Python's tables differ between versions.

Rule 2 normalises a value as one of:
    number    keeps sign, decimal point and leading zeros: 1.0 equals 1 and 1,5 equals 1.5, but 007 differs from 7
    date      becomes its day: 1980-05-01, 1980/05/01, 19800501 and a timestamp of that day are equal; dates that start
              with the day or the month are texts
    text      letters become lower case without accents, digits 0 to 9; blanks, punctuation and signs are removed
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime
from decimal import Decimal
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from securevfl.errors import IdError

RULE_VERSION = 2
CHARACTER_TABLE = "letters_1.txt"
"""The file of the character table, which rules 1 and 2 share."""
DELIMITER = "|"
"""Separates the values of a composite id."""
_NUMBER = re.compile(r"([+-]?)(\d*)([.,]\d*)?(-?)")
_DATE = re.compile(r"(\d{4})([-/.])(\d\d)\2(\d\d)([T ]\d\d:\d\d.*)?|((?:19|20)\d\d)(\d\d)(\d\d)")
_ASCII_MARKS = {0x2212: "-", 0xFE63: "-", 0xFF0D: "-", 0xFF0B: "+", 0xFF0E: ".", 0xFF0C: ",", 0xFF0F: "/"}
# Korean (Hangul): the letters of a syllable are computed from its code point, with these numbers of vowels and endings
_SYLLABLES, _VOWELS, _TAILS = range(0xAC00, 0xD7A4), 21, 28


class IdColumns(NamedTuple):
    """The columns from which ids are composed, and whether values are normalised by the rule."""

    names: list[str]
    by_rule: bool

    @property
    def prediction_names(self) -> list[str]:
        """The id columns of a file of predictions: the columns of a composite id, or `id`."""
        return self.names if self.by_rule and len(self.names) > 1 else ["id"]


def id_columns(id_column: str, names: Sequence[str]) -> IdColumns:
    """Parse the value of the option `--id`.

    It is the name of one column, whose values are then used as ids unchanged. Or it is several names, separated by
    commas, whose values are normalised by the rule. A comma after a single name normalises the values of that column.

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


class RuleMatches(NamedTuple):
    """How many ids all parties would share if they all used the rule for spellings, with an example.

    Attributes:
        matches: the number of ids that all parties would share.
        party: the party of the example.
        before: the pattern of an id that the rule changes: 9 for a digit, A and a for letters.
        after: the pattern of the same id once it is normalised.
    """

    matches: int
    party: str
    before: str
    after: str


def rule_matches(ids: Mapping[str, Iterable[Any]]) -> RuleMatches | None:
    """Return how many ids all parties would share if the rule for spellings normalised their ids, with an example.

    Args:
        ids: the ids of each party.

    Returns:
        The number of shared ids and an example; None if no id is shared.
    """
    normalised = {name: {_normalised(value): value for value in party_ids} for name, party_ids in ids.items()}
    shared = set.intersection(*(set(by_form) - {""} for by_form in normalised.values()))
    if not shared:
        return None
    changed = ((name, form) for form in sorted(shared) for name in ids if str(normalised[name][form]) != form)
    name, form = next(changed, (next(iter(ids)), min(shared)))
    return RuleMatches(len(shared), name, id_pattern(normalised[name][form]), id_pattern(form))


class ZeroMatches(NamedTuple):
    """How many ids match only if leading zeros are ignored, with an example (some tables have probably lost zeros).

    Attributes:
        matches: the number of ids that differ by leading zeros only.
        parties: the parties whose tables have lost zeros.
        stripped: the pattern of an id of the first of these parties.
        padded_party: a party whose table has the zeros.
        padded: the pattern of the same id with zeros.
    """

    matches: int
    parties: tuple[str, ...]
    stripped: str
    padded_party: str
    padded: str


_LEADING_ZERO = re.compile(r"(^|\D)0\d")


def zero_matches(ids: Mapping[str, Iterable[Any]]) -> ZeroMatches | None:
    """Count the ids of different parties that differ only by leading zeros, and return the count with an example.

    Args:
        ids: the ids of each party.

    Returns:
        The number of ids and an example; None if there are no such ids. Ids of one table that differ by leading zeros
        only do not count, since they may be different people.
    """
    tables = {name: values.tolist() if isinstance(values, np.ndarray) else [*values] for name, values in ids.items()}
    texts = (value for values in tables.values() for value in values if isinstance(value, str))
    if not any(_LEADING_ZERO.search(text) for text in texts):
        return None
    spellings = {name: _by_form_without_zeros(values) for name, values in tables.items()}
    shared = set.intersection(*(set(by_form) for by_form in spellings.values()))
    differing = [form for form in shared if len({by_form[form] for by_form in spellings.values()}) > 1]
    if not differing:
        return None
    longest = {form: max(len(by_form[form]) for by_form in spellings.values()) for form in differing}
    lost = tuple(
        name for name, by_form in spellings.items() if any(len(by_form[form]) < longest[form] for form in differing)
    )
    example = min(form for form in differing if len(spellings[lost[0]][form]) < longest[form])
    padded = next(name for name, by_form in spellings.items() if len(by_form[example]) == longest[example])
    stripped_pattern, padded_pattern = (id_pattern(spellings[name][example]) for name in (lost[0], padded))
    return ZeroMatches(len(differing), lost, stripped_pattern, padded, padded_pattern)


def _by_form_without_zeros(ids: Iterable[Any]) -> dict[str, str]:
    """Return each id by its form without leading zeros; forms that several ids of the table share are left out."""
    by_form: dict[str, str] = {}
    repeated = set[str]()
    for value in ids:
        is_composed = isinstance(value, str) and value.startswith(f"{RULE_VERSION}{DELIMITER}")
        text = value if is_composed else _normalised(value)
        parts = [part.lstrip("0") or part[:1] if part.isdigit() else part for part in text.split(DELIMITER)]
        form = DELIMITER.join(parts)
        if form in by_form:
            repeated.add(form)
        by_form[form] = text
    return {form: text for form, text in by_form.items() if form and form not in repeated}


def id_pattern(value: Any) -> str:
    """Return the pattern of an id, which does not contain the id: 9 for each digit, A or a for each letter."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = "".join("9" if c.isdigit() else ("A" if c.isupper() else "a") if c.isalpha() else c for c in str(value))
    return ascii(text if len(text) <= 40 else f"{text[:40]}...")


_PECULIARITIES = (
    ("leading zeros", re.compile(r"\s*0\d+\s*")),
    ("a decimal point", re.compile(r"\s*[+-]?\d+\.\d*\s*")),
    ("an exponent", re.compile(r"\s*[+-]?\d+(\.\d+)?[eE][+-]?\d+\s*")),
    ("a sign", re.compile(r"\s*[+-]\d+.*")),
    ("blanks at an end", re.compile(r"\s.*|.*\s", re.DOTALL)),
)
_SAMPLED_IDS = 1000


def id_spelling(ids: Sequence[Any] | NDArray[Any]) -> str:
    """Describe how the ids of a table are written: their commonest pattern and peculiarities, but no id itself.

    Args:
        ids: the ids (n,), of which the first 1,000 are described.

    Returns:
        The description, for a message to this party.
    """
    texts = [str(value) for value in ids[:_SAMPLED_IDS]]
    patterns = Counter(id_pattern(text) for text in texts)
    (pattern, count), *_ = patterns.most_common(1)
    notes = [
        what for what, form in _PECULIARITIES if sum(bool(form.fullmatch(text)) for text in texts) * 2 > len(texts)
    ]
    return f"{pattern} in {count / len(texts):.0%}" + (f" (with {' and '.join(notes)})" if notes else "")


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


def requested_id(key: IdColumns | None, row_id: Any) -> Any:
    """Return the id by which a row is looked up in a table, from the id that an application writes.

    Args:
        key: the id columns of the table; None if its ids are used as they are.
        row_id: the id as an application writes it: a value, or the values of several id columns by name.

    Returns:
        The id; it is composed by the rule if the table's ids are composed by it.

    Raises:
        IdError: if values of id columns are missing.
    """
    if key is None or not key.by_rule:
        return row_id
    if len(key.names) == 1 and not isinstance(row_id, Mapping):
        return compose_ids([[row_id]])[0]
    if not isinstance(row_id, Mapping) or set(row_id) != set(key.names):
        raise IdError(
            f"an id does not consist of the columns {', '.join(key.names)}",
            "write it as an object with these columns",
            code="SVFL-ID-INVALID",
        )
    return compose_ids([[row_id[name]] for name in key.names])[0]


def normalise(text: str) -> str:
    """Return the normalised form of a text under the rule for spellings."""
    return "".join(_decomposed(letter) for letter in text).translate(_character_table())


def _normalised(value: Any) -> str:
    """Return the normalised form of a value of any type; empty if the value is missing."""
    if value is None or value != value:
        return ""
    if isinstance(value, np.datetime64):
        value = value.astype("datetime64[us]").item()
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if isinstance(value, datetime):
        return value.date().isoformat()
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, float | np.floating | Decimal):
        value = f"{Decimal(repr(float(value))) if not isinstance(value, Decimal) else value:f}"
    text = str(value).strip()
    plain = text if text.isascii() else "".join(_ascii_character(character) for character in text)
    return _day(plain) or _number(plain) or normalise(text)


def _ascii_character(character: str) -> str:
    """Return a digit, sign or punctuation mark of any script as its ASCII equivalent; other characters unchanged."""
    code_point = ord(character)
    mark = _ASCII_MARKS.get(code_point) or _character_table().get(code_point, "")
    return mark if len(mark) == 1 and (mark.isdigit() or code_point in _ASCII_MARKS) else character


def _number(text: str) -> str:
    """Return the normalised form of a text that is a number: no plus sign, no zeros at its end. Else return ""."""
    match = _NUMBER.fullmatch(text)
    if match is None or not any(map(str.isdigit, text)):
        return ""
    sign, whole, fraction, sign_at_end = (group or "" for group in match.groups())
    if sign and sign_at_end:
        return ""
    digits = f"{whole or '0'}.{fraction[1:]}".rstrip("0").rstrip(".") if fraction.strip(".,0") else whole or "0"
    return f"-{digits}" if "-" in (sign, sign_at_end) and digits.strip("0") else digits


def _day(text: str) -> str:
    """Return the day of a text that is a date beginning with the year, with or without a time. Else return ""."""
    if match := _DATE.fullmatch(text):
        year, _, month, day, _, *compact = match.groups()
        with suppress(ValueError):
            return date(*map(int, compact if year is None else (year, month, day))).isoformat()
    return ""


def _decomposed(letter: str) -> str:
    """Return a Hangul syllable as its letters, because texts may contain either. Other characters stay unchanged."""
    number = ord(letter) - _SYLLABLES.start
    if ord(letter) not in _SYLLABLES:
        return letter
    head, remainder = divmod(number, _VOWELS * _TAILS)
    vowel, tail = divmod(remainder, _TAILS)
    return chr(0x1100 + head) + chr(0x1161 + vowel) + (chr(0x11A7 + tail) if tail else "")


@cache
def _character_table() -> dict[int, str]:
    """Read the table of characters that the rule for spellings replaces or removes.

    An entry FIRST=TEXT replaces a character, and FIRST-LAST=TEXT replaces consecutive characters by consecutive ones,
    which begin with TEXT. Characters of entries without = are removed. Characters are written as hexadecimal code
    points.
    """
    table: dict[int, str] = {}
    path = files("securevfl.data").joinpath(CHARACTER_TABLE)
    for entry in path.read_text(encoding="utf-8").split():
        span, _, text = entry.partition("=")
        first, last = (int(end, 16) for end in (span.partition("-")[0], span.rpartition("-")[2]))
        for code_point in range(first, last + 1):
            table[code_point] = chr(ord(text) + code_point - first) if last > first and text else text
    return table
