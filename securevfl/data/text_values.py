"""Numbers, percentages and dates that are written as text.

    1,200.50   1.200,50      numbers, if both marks or two groups of three digits show which mark separates thousands
    12 %                     percentages, if every value of the column ends with the sign: 12
    2024-05-17   2024-05-17 08:30:00   ISO 8601 dates, as days since 1970-01-01

All values of a column are read in the same way, or the column stays text. `1,200` alone is ambiguous, and so is
`05/04/2024`. Such dates, and amounts with a currency sign, are reported (`unreadable_format`) and never read as text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime

DAY = 86_400.0  # seconds

_SIGN = r"\s*[+-]?"

_MARKS = (",", "."), (".", ",")  # between thousands, and before decimals

_GROUPED = {mark: re.compile(rf"{_SIGN}\d{{1,3}}(\{mark}\d{{3}})*(\{point}\d+)?\s*") for mark, point in _MARKS}

_CLEAR = {
    mark: re.compile(rf"{_SIGN}\d{{1,3}}((\{mark}\d{{3}})+\{point}\d*|(\{mark}\d{{3}}){{2,}})\s*")
    for mark, point in _MARKS
}

_PLAIN = re.compile(rf"{_SIGN}(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?\s*")

_DATE = re.compile(r"\s*\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:?\d\d)?)?\s*")

_DAY_MONTH = re.compile(r"\s*\d{1,2}([/.-])\d{1,2}\1(\d{4}|\d\d)([T ,]\s*\d{1,2}:\d\d(:\d\d)?(\s*[AaPp][Mm])?)?\s*")

_CURRENCY = r"([$€£¥₹₽₩₺₫₪฿]|[A-Z]{3}|kr|zł|Kč|Fr\.?)"

_NUMBER = r"[+-]?\d[\d., '\u00a0\u202f]*"

_AMOUNT = re.compile(rf"\s*([+-]?\s*{_CURRENCY}\s*{_NUMBER}|{_NUMBER}\s*{_CURRENCY})\s*")


def parse_numbers(texts: Sequence[str]) -> list[float] | None:
    """Read texts as numbers with marks between thousands, or as percentages; None unless all are, beyond doubt."""
    if are_percentages(texts):
        texts = [text.rstrip()[:-1] for text in texts]
        if all(_PLAIN.fullmatch(text) for text in texts):
            return [float(text) for text in texts]
    for mark, point in _MARKS:
        if any(_CLEAR[mark].fullmatch(text) for text in texts) and all(_fits(text, mark) for text in texts):
            return [float(text.replace(mark, "").replace(point, ".")) for text in texts]
    return None


def are_percentages(texts: Sequence[str]) -> bool:
    """Say whether all texts, of one or more, end with the sign of percentages."""
    return bool(texts) and all(text.rstrip().endswith("%") for text in texts)


def parse_dates(texts: Sequence[str]) -> list[float] | None:
    """Read texts as dates of ISO 8601, with times or without, in days since 1970-01-01; None unless all are."""
    if not texts or not all(_DATE.fullmatch(text) for text in texts):
        return None
    try:
        moments = [datetime.fromisoformat(text.strip()) for text in texts]
    except ValueError:
        return None
    return [(moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() / DAY for moment in moments]


def meant(texts: Sequence[str]) -> str:
    """Say what more than half of the texts seem to be and cannot be read as, with how to write it; empty if nothing."""
    if 2 * sum(_DAY_MONTH.fullmatch(text) is not None for text in texts) > len(texts):
        return "dates of day, month and year in an order that a column does not tell; write them as 2023-04-06"
    if 2 * sum(_AMOUNT.fullmatch(text) is not None for text in texts) > len(texts):
        return "amounts with the sign of a currency; write them as numbers, as 230000.50, of one currency a column"
    return ""


def _fits(text: str, mark: str) -> bool:
    """Whether a text is a number under this mark of thousands, or a plain one that has no other meaning under it."""
    return bool(_GROUPED[mark].fullmatch(text) or (mark == "," and _PLAIN.fullmatch(text)) or text.strip().isdigit())


def is_ambiguous(text: str) -> bool:
    """Whether a text has a mark within a number, which may part thousands or decimals."""
    return any(pattern.fullmatch(text) for pattern in _GROUPED.values()) and not _PLAIN.fullmatch(text)


def is_number(text: str) -> bool:
    """Whether a text is a plain number; one with _ within, which Python reads, is none."""
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text
