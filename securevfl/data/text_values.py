"""Numbers, percentages and dates that are written as text.

    1,200.50   1.200,50      numbers, if it is clear which of the marks , and . separates thousands
    12 %                     the number 12, if every value of the column ends with a percent sign
    2024-05-17   2024/05/17   2024-05-17 08:30:00   ISO 8601 dates, as days since 1970-01-01

All values of a column are read in the same way, or the column stays text. `1,200` alone is ambiguous (1200 or 1.2). So
is `05/04/2024`, unless another value such as `31/03/2024` shows the order (`day_month_format`). `unreadable_format`
recognises further formats, for an error message.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, date, datetime

DAY = 86_400.0
"""Number of seconds of a day."""

_SIGN = r"\s*[+-]?"
_MARKS = (",", "."), (".", ",")  # the two possible pairs of thousands separator and decimal mark
_GROUPED = {mark: re.compile(rf"{_SIGN}\d{{1,3}}(\{mark}\d{{3}})*(\{point}\d+)?\s*") for mark, point in _MARKS}
_UNAMBIGUOUS = {
    mark: re.compile(rf"{_SIGN}\d{{1,3}}((\{mark}\d{{3}})+\{point}\d*|(\{mark}\d{{3}}){{2,}})\s*")
    for mark, point in _MARKS
}
_PLAIN = re.compile(rf"{_SIGN}(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?\s*")
_DATE = re.compile(r"\s*\d{4}([-/.])\d\d\1\d\d([T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:?\d\d)?)?\s*")
_DAY_MONTH = re.compile(r"\s*\d{1,2}([/.-])\d{1,2}\1(\d{4}|\d\d)([T ,]\s*\d{1,2}:\d\d(:\d\d)?(\s*[AaPp][Mm])?)?\s*")
_DAY_MONTH_YEAR = re.compile(r"\s*(\d{1,2})([/.-])(\d{1,2})\2(\d{4})\s*")
_DECIMAL_COMMA = re.compile(rf"{_SIGN}\d*,?\d+([eE][+-]?\d+)?\s*")
_CURRENCY = r"([$€£¥₹₽₩₺₫₪฿]|[A-Z]{3}|kr|zł|Kč|Fr\.?)"
_NUMBER = r"[+-]?\d[\d., '\u00a0\u202f]*"
_AMOUNT = re.compile(rf"\s*([+-]?\s*{_CURRENCY}\s*{_NUMBER}|{_NUMBER}\s*{_CURRENCY})\s*")


def parse_numbers(texts: Sequence[str]) -> list[float] | None:
    """Parse numbers with thousands separators, or percentages.

    Args:
        texts: the distinct values of a column.

    Returns:
        The numbers, or None unless every text is a number without ambiguity.
    """
    if are_percentages(texts):
        texts = [text.rstrip()[:-1] for text in texts]
        if all(_PLAIN.fullmatch(text) for text in texts):
            return [float(text) for text in texts]
    for mark, point in _MARKS:
        if any(_UNAMBIGUOUS[mark].fullmatch(text) for text in texts):
            numbers = parse_grouped(texts, point)
            if numbers is not None:
                return numbers
    return None


def parse_grouped(texts: Sequence[str], point: str) -> list[float] | None:
    """Parse numbers with this decimal mark; the other mark may separate thousands.

    Args:
        texts: the texts.
        point: the decimal mark, "." or ",".

    Returns:
        The numbers, or None unless every text is such a number.
    """
    mark = "," if point == "." else "."
    if not all(_fits(text, mark) or (point == "," and _DECIMAL_COMMA.fullmatch(text)) for text in texts):
        return None
    return [float(text.replace(mark, "").replace(point, ".")) for text in texts]


def are_percentages(texts: Sequence[str]) -> bool:
    """Return whether there is at least one text and every text ends with a percent sign."""
    return bool(texts) and all(text.rstrip().endswith("%") for text in texts)


def parse_dates(texts: Sequence[str]) -> list[float] | None:
    """Parse ISO 8601 dates, with or without times, as days since 1970-01-01; return None unless all texts are dates."""
    if not texts or not all(_DATE.fullmatch(text) for text in texts):
        return None
    try:
        moments = [datetime.fromisoformat(_with_hyphens(text.strip())) for text in texts]
    except ValueError:
        return None
    return [(moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() / DAY for moment in moments]


def _with_hyphens(text: str) -> str:
    """Return a date with year, month and day separated by hyphens."""
    return f"{text[:4]}-{text[5:7]}-{text[8:10]}{text[10:]}"


def day_month_format(texts: Sequence[str]) -> str | None:
    """Return the format of dates such as 31/12/2023 if values show whether day or month comes first.

    Args:
        texts: the distinct values of a column.

    Returns:
        The format for `datetime.strptime`; None if fewer than half of the values are such dates, if they have different
        separators, if no value is a date in one order only, or if values contradict each other.
    """
    dates = [match for text in texts if (match := _DAY_MONTH_YEAR.fullmatch(text)) is not None]
    if 2 * len(dates) <= len(texts) or len({match[2] for match in dates}) > 1:
        return None
    orders = {_possible_orders(match) for match in dates}
    is_first, is_second = (True, False) in orders, (False, True) in orders
    if is_first == is_second:
        return None
    order = ("%d", "%m", "%Y") if is_first else ("%m", "%d", "%Y")
    return dates[0][2].join(order)


def impossible_dates(texts: Sequence[str]) -> list[int]:
    """Return the positions of texts such as 45/01/2023 that are no dates, whether day or month comes first."""
    matches = [_DAY_MONTH_YEAR.fullmatch(text) for text in texts]
    return [k for k, match in enumerate(matches) if match is not None and not any(_possible_orders(match))]


def _possible_orders(match: re.Match[str]) -> tuple[bool, bool]:
    """Return whether a date exists if the day comes first, and whether it exists if the month comes first."""
    first, second, year = int(match[1]), int(match[3]), int(match[4])
    return _exists(year, second, first), _exists(year, first, second)


def _exists(year: int, month: int, day: int) -> bool:
    with suppress(ValueError):
        return bool(date(year, month, day))
    return False


def unreadable_format(texts: Sequence[str]) -> tuple[str, str] | None:
    """Recognise a format that cannot be parsed, if more than half of the texts have it.

    Args:
        texts: the distinct values of a column.

    Returns:
        What the values seem to be, and how to write them instead; None if no such format is recognised.
    """
    if 2 * sum(_DAY_MONTH.fullmatch(text) is not None for text in texts) > len(texts):
        remedy = (
            "write dates as 2023-04-06, or declare their format with --columns TYPES.TOML, a file with a line such as "
        )
        remedy += 'COLUMN = { type = "date", format = "%d.%m.%Y" }'
        return "dates whose order of day and month is ambiguous", remedy
    amounts = [match for text in texts if (match := _AMOUNT.fullmatch(text)) is not None]
    if 2 * len(amounts) > len(texts):
        sign = amounts[0][2] or amounts[0][3]
        # the message shows no letters of a value, because they could belong to a code; EUR is an example
        unit = "EUR" if sign.isascii() and sign != "$" else sign
        remedy = "write plain numbers, or declare the unit with --columns TYPES.TOML, a file with a line such as "
        remedy += f'COLUMN = {{ type = "currency", unit = "{unit}" }}'
        return "amounts with a currency sign", remedy
    return None


def _fits(text: str, mark: str) -> bool:
    """Return whether a text is a number with `mark` as thousands separator, and cannot be read in any other way."""
    return bool(_GROUPED[mark].fullmatch(text) or (mark == "," and _PLAIN.fullmatch(text)) or text.strip().isdigit())


def is_ambiguous(text: str) -> bool:
    """Return whether a text contains a mark that may separate either thousands or decimals."""
    return all(pattern.fullmatch(text) for pattern in _GROUPED.values()) and not _PLAIN.fullmatch(text)


def is_number(text: str) -> bool:
    """Return whether a text is a plain number. Numbers with an underscore, which Python accepts, are not."""
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text
