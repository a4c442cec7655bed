"""The type of a column of texts, decided from its values, and the conversion of texts to the numbers of a type.

All values of a column decide together:
    numbers       all values are plain numbers, or numbers whose separators are unambiguous. Codes with leading zeros
                  are categories. In a typed file (Parquet, a frame) one text must have a decimal point
    dates         all values are ISO 8601 dates, or dates such as 31/12/2023 if one value shows their order
    percentages   all values end with the percent sign
    categories    all others

If most values are of the first three types and the others are not, the column has that type. The others are *misfits*,
which are an error or are read as missing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.data.column_types import KIND_NAMES, ColumnType, Kind
from securevfl.data.text_values import (
    DAY,
    are_percentages,
    day_month_format,
    impossible_dates,
    is_ambiguous,
    is_number,
    parse_dates,
    parse_grouped,
    parse_numbers,
    unreadable_format,
)
from securevfl.errors import ConfigError

TextOrigin = Literal["csv", "text", "category"]
"""Where texts are from: a file without types ("csv"), or a column that its file declares as texts or as categories."""

SUSPECTED_MARKS = frozenset(
    [
        *("?", ".", "-", "--", "\\N", "None", "none", "NONE", "<NA>", "NaT", "n.a.", "N.A.", "na", "#DIV/0!", "#REF!"),
        *("#VALUE!", "missing", "Missing", "unknown", "Unknown", "Null", "n/k", "N/K", "k.A.", "0000-00-00"),
        *("x", "X", "*", "-999", "-9999", "9999-99-99", "."),
    ]
)
"""Texts that often mark missing values. Only a declaration makes them missing values; otherwise a message names
them."""
MAX_NUMERIC_CATEGORIES = 20
"""Maximum number of distinct numbers among the texts of a category column, such as "1" and "2" next to "3+"."""
CURRENCY_SIGNS = {
    **{"EUR": ("€",), "USD": ("$",), "GBP": ("£",), "JPY": ("¥",), "INR": ("₹",), "CHF": ("Fr.", "Fr"), "PLN": ("zł",)},
    **{"€": ("EUR",), "$": ("USD",), "£": ("GBP",), "¥": ("JPY",), "₹": ("INR",), "Fr.": ("CHF", "Fr"), "zł": ("PLN",)},
}
"""Other spellings of a unit of money, by a code or a sign."""
_LEADING_ZERO = re.compile(r"\s*[+-]?0\d+\s*")
_SEPARATED = re.compile(r"[+-]?\d[\d.,' ]*[.,' ][\d.,' ]*\d")  # such as 1,000 or 1.000,5
_DECIMAL_COMMA = re.compile(r"\s*[+-]?\d*,?\d+([eE][+-]?\d+)?\s*")


class Decision(NamedTuple):
    """The type of a column of texts.

    Attributes:
        type: the type, or None if no type is possible.
        problem: why no type is possible.
        remedy: what the user can do about it.
        bad: positions (in the given texts) of the texts that make every type impossible.
        remark: a fact about the values that a notice reports to the user.
    """

    type: ColumnType | None
    problem: str = ""
    remedy: str = ""
    bad: Sequence[int] = ()
    remark: str = ""


def decide_type(texts: Sequence[str], origin: TextOrigin, delimiter: str = "") -> Decision:
    """Decide the type of a column from its distinct texts.

    Args:
        texts: the distinct texts, without missing ones.
        origin: where the texts are from.
        delimiter: the delimiter of a CSV file; semicolons allow decimal commas.

    Returns:
        The type, or the reason why no type is possible.
    """
    if origin == "category":
        return Decision(ColumnType(type="category", origin="file"))
    numbers = [is_number(text) for text in texts]
    if texts and any(_LEADING_ZERO.fullmatch(text) for text in texts) and all(numbers):
        return _values("category", remark="numbers with leading zeros, which are read as categories")
    if all(numbers):
        if origin == "csv" or any(not text.strip().lstrip("+-").isdigit() for text in texts):
            return _values("number")
        remark = f"{len(texts):,} different whole numbers in a column of texts, which are read as categories"
        return _values("category", remark=remark)
    if origin == "csv" and any("," in text for text in texts) and all(map(_DECIMAL_COMMA.fullmatch, texts)):
        if delimiter == ";":
            return _values("number", decimal=",")
        return Decision(
            None,
            "contains commas within numbers",
            'export it with decimal points, with semicolons between values, or declare it as decimal = ","',
        )
    if parse_dates(texts) is not None:
        return _values("date")
    if are_percentages(texts):
        mark = _decimal_mark([text.rstrip()[:-1] for text in texts])
        return _decide_mixed(texts, numbers, delimiter) if mark is None else _values("percent", decimal=mark)
    if parse_numbers(texts) is not None:
        return _values("number", decimal="." if parse_grouped(texts, ".") is not None else ",")
    return _decide_mixed(texts, numbers, delimiter)


def _decimal_mark(texts: Sequence[str]) -> Literal["", ".", ","] | None:
    """Return the decimal mark of these numbers; None if a text is not a number, or can be read as two numbers."""
    if all(map(is_number, texts)):
        return ""
    if parse_numbers(texts) is not None:
        return "." if parse_grouped(texts, ".") is not None else ","
    is_comma = parse_grouped(texts, ",") is not None and not any(map(is_ambiguous, texts))
    return "," if is_comma else None


def _values(kind: Kind, remark: str = "", decimal: Literal["", ".", ","] = "") -> Decision:
    return Decision(ColumnType(type=kind, decimal=decimal, origin="values"), remark=remark)


def infer_decimal(texts: Sequence[str], kind: ColumnType, delimiter: str = "") -> Literal["", ".", ","]:
    """Return the decimal mark of a declared column of numbers with separators; "" if they have none or are ambiguous.

    Args:
        texts: the distinct texts of the column.
        kind: the declared type.
        delimiter: the delimiter of a CSV file; semicolons allow decimal commas, as for a column without declaration.

    Returns:
        The mark.
    """
    marks = {mark_form(mark) for mark in (*kind.missing, *kind.special)}
    amounts = [
        _without_unit(text.strip().removesuffix("%").strip(), kind.unit)
        for text in texts
        if mark_form(text) not in marks
    ]
    separated = [amount for amount in amounts if is_number(amount) or _SEPARATED.fullmatch(amount)]
    if delimiter == ";" and not all(map(is_number, separated)) and parse_grouped(separated, ",") is not None:
        return ","
    return _decimal_mark(separated) or ""


def _mixed_with_separators(texts: Sequence[str], delimiter: str) -> Decision | None:
    """Return the type of a column in which most texts are numbers with separators; None for other columns."""
    commas = [text for text in texts if delimiter == ";" and _DECIMAL_COMMA.fullmatch(text)]
    separated = [text for text in texts if is_number(text) or _SEPARATED.fullmatch(text.strip())]
    numbers = max(commas, separated, key=len)
    others = {text.strip() for text in texts} - {text.strip() for text in numbers}
    if 2 * len(numbers) < len(texts) or not (len(numbers) > MAX_NUMERIC_CATEGORIES or others <= SUSPECTED_MARKS):
        return None
    mark = "," if numbers is commas else _decimal_mark(numbers)
    return _values("number", decimal=mark) if mark else None


def _decide_mixed(texts: Sequence[str], numbers: Sequence[bool], delimiter: str) -> Decision:
    """Decide the type of a column of which some texts are numbers, dates or percentages and others are not."""
    if (form := day_month_format(texts)) is not None:
        first = "day" if form.startswith("%d") else "month"
        remark = f"dates that are read with the {first} first, because numbers above 12 allow no other order"
        return Decision(ColumnType(type="date", format=form, origin="values"), remark=remark)
    if recognised := unreadable_format(texts):
        what, remedy = recognised
        impossible = impossible_dates(texts)
        also = f", and {len(impossible)} different values that are dates in neither order" if impossible else ""
        return Decision(None, f"seems to contain {what}{also}", remedy, impossible)
    if (decision := _mixed_with_separators(texts, delimiter)) is not None:
        return decision
    count = sum(numbers)
    separated = [
        _SEPARATED.fullmatch(text) is not None and not number for text, number in zip(texts, numbers, strict=True)
    ]
    if any(separated) and count + sum(separated) == len(texts):
        return Decision(
            None,
            "contains numbers whose separators can be read in two ways",
            'export numbers with a decimal point and without thousands separators, or declare decimal = "." or ","',
            [position for position, text in enumerate(texts) if is_ambiguous(text)]
            or [position for position, is_separated in enumerate(separated) if is_separated],
        )
    dates = sum(parse_dates([text]) is not None for text in texts)
    percents = sum(are_percentages([text]) and is_number(text.rstrip()[:-1]) for text in texts)
    if 2 * dates > len(texts):
        return _values("date")
    if 2 * percents > len(texts):
        return _values("percent")
    others = [text.strip() for text, number in zip(texts, numbers, strict=True) if not number]
    if 2 * count >= len(texts) and (count > MAX_NUMERIC_CATEGORIES or SUSPECTED_MARKS.issuperset(others)):
        return _values("number")
    marks = sorted(SUSPECTED_MARKS.intersection(others))
    remarks = [f"{count} numbers and {len(others)} texts"] if count else []
    remarks += [f"{mark!r}, which may mark missing values" for mark in marks[:3]]
    return _values("category", remark=f"{' and '.join(remarks)}, read as categories" if remarks else "")


def special_numbers(kind: ColumnType) -> dict[str, float]:
    """Return the number of each special code of a column.

    Args:
        kind: the type of the column.

    Returns:
        The number of each code, by code. The number of a date is its days since 1970-01-01.

    Raises:
        ConfigError: if a code is no number, or no date in a column of dates.
    """
    numbers: dict[str, float] = {}
    for code in kind.special:
        text = code.strip()
        number = _parse_date(text, kind.format) if kind.kind == "date" else _parse_number(text, kind.decimal)
        if number is None and kind.kind == "date" and kind.format:
            number = _parse_date(text, None)
        if number is None:
            raise ConfigError(
                f"the special code {code!r} is none of the values of a column of {KIND_NAMES[kind.kind]}",
                "list it under missing, or declare the column as a category",
                code="SVFL-JOB-OPTION",
                option="special",
            )
        numbers[text] = number
    return numbers


class Conversion(NamedTuple):
    """Distinct texts of a column, converted to numbers.

    Attributes:
        numbers: the number of each text; NaN if the text is missing or a misfit.
        misfits: positions of the texts that do not fit the type.
        categories: the sorted texts of a category column; `numbers` are positions in it.
    """

    numbers: list[float]
    misfits: list[int]
    categories: tuple[str, ...] = ()


def mark_form(text: str) -> str:
    """Return the form in which declared marks and texts are compared: without blanks at the ends.

    A number with a decimal point becomes its shortest text. So the mark -999 stands for -999.0 as well, but 7 does not
    stand for 007, which may be a code.
    """
    text = text.strip()
    return text_of_number(float(text)) if "." in text and is_number(text) and math.isfinite(float(text)) else text


def convert_texts(texts: Sequence[str], kind: ColumnType) -> Conversion:
    """Convert distinct texts to numbers of a type.

    Args:
        texts: the texts.
        kind: the type of the column.

    Returns:
        The numbers.
    """
    marks = {mark_form(mark) for mark in kind.missing}
    if kind.kind == "category":
        used = sorted({text for text in texts if mark_form(text) not in marks})
        position = {text: float(number) for number, text in enumerate(used)}
        return Conversion([position.get(text, math.nan) for text in texts], [], tuple(used))
    numbers, misfits, special = list[float](), list[int](), special_numbers(kind)
    missing_numbers = set(kind.missing_numbers) if kind.kind != "date" else set()
    for index, text in enumerate(texts):
        number = special.get(text.strip(), _convert(text, kind))
        missing = mark_form(text) in marks or number in missing_numbers
        number = None if missing else number
        numbers.append(math.nan if number is None else number)
        if number is None and not missing:
            misfits.append(index)
    return Conversion(numbers, misfits)


def _convert(text: str, kind: ColumnType) -> float | None:
    """Return the number that a text of a typed column means; None if the text does not fit the type."""
    plain = text.strip()
    if kind.kind == "date":
        days = _parse_date(plain, kind.format)
        # an ISO 8601 date begins with the year, so it is unambiguous even in a column of another format
        is_other = days is None and kind.format is not None and not kind.format.startswith("%Y")
        return _parse_date(plain, None) if is_other else days
    if kind.kind == "percent":
        if plain.endswith("%"):
            plain = plain[:-1].strip()
        elif not kind.declared:
            return None  # without the percent sign, 0.12 may mean 12 % or 0.12 %
    if kind.kind == "currency":
        amount = _without_unit(plain, kind.unit)
        if amount == plain and not kind.declared:
            return None
        plain = amount
    return _parse_number(plain, kind.decimal)


def _parse_number(text: str, decimal: str) -> float | None:
    """Return the number that a text states, or None if it is not a number.

    Args:
        text: the text.
        decimal: the decimal mark, "." or ","; the number may then contain thousands separators. If it is "", the
            decimal mark is a point, and thousands separators are not allowed.

    Returns:
        The number, or None.
    """
    if decimal:
        parsed = parse_grouped([text], decimal)
        return None if parsed is None else parsed[0]
    return float(text) if is_number(text) else None


def _without_unit(text: str, unit: str) -> str:
    """Return an amount of money without the currency sign `unit`."""
    sign = text[:1] if text[:1] in "+-" else ""
    amount = text[len(sign) :].strip()
    spellings = {unit, *CURRENCY_SIGNS.get(unit, ())} - {""}
    for spelling in sorted(spellings, key=lambda text: (-len(text), text)):  # "Fr." before "Fr", which it begins with
        if amount.startswith(spelling):
            return sign + amount[len(spelling) :].strip()
        if amount.endswith(spelling):
            return sign + amount[: -len(spelling)].strip()
    return text


def _parse_date(text: str, form: str | None) -> float | None:
    """Parse a date in the format `form` (None: ISO 8601) and return days since 1970-01-01; None if it is no date."""
    if form is None:
        days = parse_dates([text])
        return None if days is None else days[0]
    with suppress(ValueError):
        moment = datetime.strptime(text, form)  # a date without a time zone is read as UTC
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() / DAY
    return None


def text_of_number(number: float) -> str:
    """Return a number as the text of a category: 100 and 100.0 are equal."""
    return str(int(number)) if float(number).is_integer() else repr(float(number))


def number_texts(values: Floats) -> tuple[list[str], NDArray[np.intp]]:
    """Return the distinct numbers among `values` (n,) as texts, and for each value its text's position, -1 for NaN."""
    missing = np.isnan(values)
    distinct, inverse = np.unique(np.where(missing, 0.0, values), return_inverse=True)
    return [text_of_number(number) for number in distinct.tolist()], np.where(missing, -1, inverse)
